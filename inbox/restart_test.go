package inbox_test

import (
	"fmt"
	"testing"
	"time"
)

// An agent that restarts with thousands in flight gets each of them once, the
// most urgent first, in fetches none of which passes over what the fetches
// before it gave out.
func TestI2ARestartWithThousandsInFlightGivesEachOnce(t *testing.T) {
	const n = 3000
	r := newRig(t)
	r.register("a")
	for i := range n {
		r.send(draft{to: "a", priority: 1 + i%9, ttl: time.Hour})
		if i%100 == 99 {
			r.fetch("a", `{"max_messages":100}`)
			r.nowMS++
		}
	}
	equal(t, "the same process again", r.fetch("a", ""), []int64(nil))
	r.register("a")
	seen := map[int64]bool{}
	last := 9
	for range n/100 + 1 {
		r.nowMS++
		for _, id := range r.fetch("a", `{"max_messages":100}`) {
			priority := int(r.count(`SELECT priority FROM deliveries WHERE id = ?`, id))
			if seen[id] || priority > last {
				t.Fatalf("row %d of priority %d after %d ones of priority %d; it came before: %t", id, priority, len(seen), last, seen[id])
			}
			seen[id], last = true, priority
		}
	}
	equal(t, "fetched again", len(seen), n)
	equal(t, "and once more", r.fetch("a", ""), []int64(nil))
	r.nowMS += 30_000
	if again := r.fetch("a", ""); len(again) == 0 {
		t.Error("what was not acked for 30 s did not come again")
	}
}

// BenchmarkFetchAfterARestart is the 500th fetch of a hundred after a restart
// with 100,000 in flight.
func BenchmarkFetchAfterARestart(b *testing.B) {
	r := newRig(b)
	r.register("a")
	for i := range 100_000 {
		r.send(draft{to: "a", priority: 1 + i%9, ttl: 24 * time.Hour})
	}
	for range 1000 {
		r.fetch("a", `{"max_messages":100}`)
		r.nowMS++
	}
	r.register("a")
	for range 499 {
		r.fetch("a", `{"max_messages":100}`)
		r.nowMS++
	}
	b.ResetTimer()
	for i := range b.N {
		r.nowMS++
		if len(r.fetch("a", `{"max_messages":100}`)) == 0 && i < 500 {
			b.Fatal("nothing was fetched")
		}
	}
}

// A letter to a topic that is redriven goes to the first who follows the topic
// and has none of it; nobody will subscribe first any more.
func TestARedrivenTopicLetterGoesToASubscriber(t *testing.T) {
	r := newRig(t)
	id, _ := r.send(draft{to: "topic:x", ttl: time.Second})
	r.nowMS += 1000
	r.tick()
	r.register("b", "x")
	r.register("a", "x")
	effects, refusal := r.try("op", "redrive", fmt.Sprintf(`{"id":%d}`, id))
	if refusal != nil {
		t.Fatal(refusal)
	}
	equal(t, "it goes to", asMap(t, effects.Reply)["recipient"], any("a"))
	equal(t, "wakes", effects.Woken, []string{"a"})
	equal(t, "told", told(effects), []string{"me.redriven"})
	equal(t, "a gets", r.fetch("a", ""), []int64{id})
	equal(t, "b gets", r.fetch("b", ""), []int64(nil))
	again, _ := r.send(draft{to: "topic:y", ttl: time.Second})
	r.nowMS += 1000
	r.tick()
	effects, refusal = r.try("op", "redrive", fmt.Sprintf(`{"id":%d}`, again))
	if refusal != nil {
		t.Fatal(refusal)
	}
	equal(t, "without subscribers it waits", asMap(t, effects.Reply)["recipient"], any("topic:y"))
}
