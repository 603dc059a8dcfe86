package inbox_test

import (
	"fmt"
	"testing"
	"time"

	"signalbox/step"
	"signalbox/wire"
)

func (r *rig) sendMany(n int, d draft) (ids []int64) {
	r.Helper()
	for range n {
		id, _ := r.send(d)
		ids = append(ids, id)
	}
	return ids
}

// owned are how many open deliveries a recipient has.
func (r *rig) owned(recipient string) int {
	r.Helper()
	return int(r.count(`SELECT count(*) FROM deliveries WHERE recipient = ? AND outcome IS NULL`, recipient))
}

func TestWhatWaitsAtATopicGoesToTheFirstThatSubscribes(t *testing.T) {
	r := newRig(t)
	r.register("a")
	r.register("b")
	low, _ := r.send(draft{to: "topic:x", priority: 2})
	high, _ := r.send(draft{to: "topic:x", priority: 8})
	short, _ := r.send(draft{to: "topic:x", ttl: time.Second})
	other, _ := r.send(draft{to: "topic:y"})
	r.nowMS += 1000
	equal(t, "a live agent is told", r.enrol("deaf", agent{live: true, topics: []string{"x"}}), step.Effects{})
	equal(t, "woken", r.subscribe("a", "x", "none"), step.Effects{Woken: []string{"a"}})
	equal(t, "the second hears", r.subscribe("b", "x"), step.Effects{})
	equal(t, "the first gets", r.fetch("a", ""), []int64{high, low})
	equal(t, "the second gets", r.fetch("b", ""), []int64(nil))
	equal(t, "what had expired", r.deliveries(short), []string{"topic:x:queued"})
	r.tick()
	equal(t, "what had expired", r.deliveries(short), []string{"topic:x:expired"})
	equal(t, "another topic", r.deliveries(other), []string{"topic:y:queued"})
	later, _ := r.send(draft{to: "topic:x"})
	equal(t, "what comes later", r.deliveries(later), []string{"a:queued", "b:queued"})
	r.agents["c"] = &agent{}
	if _, err := r.m.Apply(r.db, r.input("c", step.Notice{Machine: "agents", What: "online", Key: "c"})); err == nil {
		t.Error("a notice without its data is no fault")
	}
}

func TestManyThatWaitAtATopicGoOverInBoundedSteps(t *testing.T) {
	r := newRig(t)
	first := r.sendMany(700, draft{to: "topic:x"})
	r.sendMany(600, draft{to: "topic:y"})
	r.register("a", "x", "y", "z")
	equal(t, "after the first step", []int{r.owned("a"), r.owned("topic:x"), r.owned("topic:y")}, []int{500, 200, 600})
	// The agent goes, others wait, and another subscribes: to it what the first
	// has not been promised.
	r.agents["a"].offline = true
	second := r.sendMany(650, draft{to: "topic:x"})
	r.register("b", "x")
	equal(t, "the second's first step", []int{r.owned("a"), r.owned("b"), r.owned("topic:x")}, []int{500, 500, 350})
	r.m.Forget()
	due, err := r.m.Due(r.db, r.nowMS, 10)
	equal(t, "the error", err, nil)
	keys := make([]string, len(due))
	for i, d := range due {
		keys[i] = d.Key
	}
	equal(t, "the deadlines", keys, []string{fmt.Sprintf("move/topic:x/a/%019d", 0), fmt.Sprintf("move/topic:x/b/%019d", r.agents["a"].registeredID),
		fmt.Sprintf("move/topic:y/a/%019d", 0)})
	equal(t, "limited", func() int { due, _ := r.m.Due(r.db, r.nowMS, 2); return len(due) }(), 2)
	equal(t, "not yet due", func() int { due, _ := r.m.Due(r.db, r.nowMS-1, 2); return len(due) }(), 0)
	effects := r.tick()
	equal(t, "woken", []any{effects[0].Woken, effects[1].Woken, effects[2].Woken}, []any{[]string{"a"}, []string{"b"}, []string{"a"}})
	equal(t, "after a tick", []int{r.owned("a"), r.owned("b"), r.owned("topic:x"), r.owned("topic:y")}, []int{1200, 650, 0, 100})
	r.tick()
	equal(t, "after two", []int{r.owned("a"), r.owned("topic:y")}, []int{1300, 0})
	equal(t, "moves left", r.count(`SELECT count(*) FROM inbox_moves`), 0)
	equal(t, "the last tick", len(r.tick()), 0)
	equal(t, "the first's", r.count(`SELECT count(*) FROM deliveries WHERE recipient = 'a' AND id BETWEEN ? AND ?`, first[0], first[699]), 700)
	equal(t, "the second's", r.count(`SELECT count(*) FROM deliveries WHERE recipient = 'b' AND id BETWEEN ? AND ?`, second[0], second[649]), 650)
}

func TestWhatExpiresBeforeItsMoveExpiresAtTheTopic(t *testing.T) {
	r := newRig(t)
	r.sendMany(600, draft{to: "topic:x", ttl: time.Second})
	r.register("a", "x")
	r.nowMS += 1000
	for len(r.tick()) > 0 {
	}
	equal(t, "moved", r.count(`SELECT count(*) FROM dead_letters WHERE recipient = 'a'`), 500)
	equal(t, "not moved", r.count(`SELECT count(*) FROM dead_letters WHERE recipient = 'topic:x'`), 100)
	equal(t, "moves left", r.count(`SELECT count(*) FROM inbox_moves`), 0)
}

func TestADeliveryThatTheAgentHasAlreadyStaysWhereItWaits(t *testing.T) {
	r := newRig(t)
	id, _ := r.send(draft{to: "topic:x"})
	r.flush()
	if _, err := r.db.Exec(`INSERT INTO deliveries (id, recipient, priority, queued_at_ms, expires_at_ms, outcome) VALUES (?, 'a', 5, 1, 2, 'acked')`, id); err != nil {
		t.Fatal(err)
	}
	equal(t, "the effects", r.register("a", "x"), step.Effects{})
	equal(t, "the deliveries", r.deliveries(id), []string{"a:acked", "topic:x:queued"})
	equal(t, "moves", r.count(`SELECT count(*) FROM inbox_moves`), 0)
}

func TestAClosedRolesMessagesAreDeadLettersInBoundedSteps(t *testing.T) {
	r := newRig(t)
	r.register("a")
	r.held["p/lead/s"] = "a"
	r.sendMany(30, draft{to: "role:p/lead/s"})
	r.do("a", "ack", `{"ids":[2]}`)
	r.fetch("a", `{"max_messages":20}`)
	r.sendMany(1200, draft{to: "role:p/lead/s", kind: wire.TypeRequest})
	kept, _ := r.send(draft{to: "role:p/lead"})
	e := r.apply(r.input("op", step.Notice{Machine: "roles", What: "closed", Key: "p/lead/s"}))
	after, _ := r.send(draft{to: "role:p/lead/s"})
	steps := [][]string{told(e)}
	for {
		effects := r.tick()
		if len(effects) == 0 {
			break
		}
		steps = append(steps, told(effects...))
		equal(t, "messages", len(effects[0].Messages), 0)
	}
	equal(t, "steps", []int{len(steps), len(steps[0]), len(steps[1]), len(steps[2])}, []int{3, 500, 500, 229})
	equal(t, "the first heard", steps[0][0], "me.dead")
	equal(t, "dead letters", r.count(`SELECT count(*) FROM dead_letters WHERE recipient = 'role:p/lead/s' AND reason = 'scope_closed'`), 1229)
	equal(t, "deliveries", r.count(`SELECT count(*) FROM deliveries WHERE outcome = 'dead_letter'`), 1229)
	equal(t, "another role's", r.deliveries(kept), []string{"role:p/lead:queued"})
	equal(t, "one that came later", r.deliveries(after), []string{"role:p/lead/s:queued"})
	equal(t, "fetched", r.fetch("a", ""), []int64{after})
}

func TestDeadlinesAreSortedByTimeThenKey(t *testing.T) {
	r := newRig(t)
	r.nowMS = 100_000
	r.send(draft{to: "b", ttl: time.Second})
	r.send(draft{to: "a", ttl: 2 * time.Second})
	r.lastID = 98
	r.register("c", "x")
	r.register("d", "x")
	r.send(draft{to: "topic:x", ttl: time.Second})
	r.send(draft{to: "topic:x", ttl: time.Second})
	if _, err := r.db.Exec(`INSERT INTO inbox_moves (source, after_id, last_id, agent, at_ms) VALUES ('topic:y', 0, 9, 'c', 101000), ('topic:y', 9, 10, 'd', 100500)`); err != nil {
		t.Fatal(err)
	}
	key := func(id int64, recipient string) string { return fmt.Sprintf("%019d/%s", id, recipient) }
	want := []step.Deadline{{AtMS: 100_500, Key: "move/topic:y/d/" + fmt.Sprintf("%019d", 9)}, {AtMS: 101_000, Key: key(1, "b")}, {AtMS: 101_000, Key: key(101, "c")},
		{AtMS: 101_000, Key: key(101, "d")}, {AtMS: 101_000, Key: key(102, "c")}, {AtMS: 101_000, Key: key(102, "d")},
		{AtMS: 101_000, Key: "move/topic:y/c/" + fmt.Sprintf("%019d", 0)}, {AtMS: 102_000, Key: key(2, "a")}}
	for limit := range len(want) + 2 {
		got, err := r.m.Due(r.db, 1<<62, limit)
		equal(t, "the error", err, nil)
		equal(t, fmt.Sprintf("the first %d", limit), fmt.Sprint(got), fmt.Sprint(want[:min(limit, len(want))]))
	}
	// One that moved since it was read is nothing.
	in := r.input(wire.Bridge, step.Deadline{AtMS: 101_000, Key: key(1, "b")})
	equal(t, "too early", r.apply(in), step.Effects{})
	r.do("b", "ack", `{"ids":[1]}`)
	r.nowMS += 1000
	in.NowMS = r.nowMS
	equal(t, "acked", r.apply(in), step.Effects{})
	in.Event = step.Deadline{AtMS: 1, Key: key(55, "nobody")}
	equal(t, "gone", r.apply(in), step.Effects{})
	in.Event = step.Deadline{AtMS: 1, Key: "move/role:p/k/s/a/0"}
	equal(t, "a move that is done", r.apply(in), step.Effects{})
	for _, odd := range []string{"", "x/y", "move/x", "move/x/y/z"} {
		in.Event = step.Deadline{Key: odd}
		if _, err := r.m.Apply(r.db, in); err == nil {
			t.Errorf("the key %q is no fault", odd)
		}
	}
}
