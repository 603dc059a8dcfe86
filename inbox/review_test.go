package inbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"signalbox/inbox"
	"signalbox/step"
	"signalbox/wire"
)

func TestARepeatedRedriveOfATopicLetterAnswersWithTheSubscriber(t *testing.T) {
	r := newRig(t)
	id, _ := r.send(draft{to: "topic:x", ttl: time.Second, messageID: "x"})
	other, _ := r.send(draft{to: "b", topic: "x", ttl: time.Second, messageID: "y"})
	r.nowMS += 1000
	r.tick()
	r.enrol("deaf", agent{live: true, topics: []string{"x"}})
	r.enrol("gone", agent{offline: true, topics: []string{"x"}})
	r.register("b", "x")
	if _, err := r.db.Exec(`INSERT INTO deliveries (id, recipient, priority, queued_at_ms, expires_at_ms, outcome) VALUES (?, 'a', 5, 1, 2, 'acked')`, id); err != nil {
		t.Fatal(err)
	}
	r.register("a", "x") // has a row of it already
	e, refusal := r.try("op", "redrive", `{"message_id":"x","recipient":"topic:x"}`)
	equal(t, "refused", refusal, nil)
	want := asMap(t, e.Reply)
	equal(t, "it goes to", want["recipient"], any("b"))
	equal(t, "the notice says", e.Told[0].Body.(map[string]any)["recipient"], any("b"))
	equal(t, "the table", r.deliveries(id), []string{"a:acked", "b:queued"})
	want["idempotent"] = true
	for _, body := range []string{`{"message_id":"x","recipient":"topic:x"}`, fmt.Sprintf(`{"id":%d}`, id), `{"message_id":"x","recipient":"b"}`} {
		e, refusal := r.try("op", "redrive", body)
		equal(t, "refused", refusal, nil)
		equal(t, "again, "+body, asMap(t, e.Reply), want)
		equal(t, "wakes", e.Woken, []string(nil))
	}
	r.do("op", "redrive", fmt.Sprintf(`{"id":%d}`, other))
	if _, refusal := r.try("op", "redrive", `{"message_id":"y","recipient":"topic:x"}`); refusal == nil || refusal.Code != wire.NotFound {
		t.Errorf("a message to an agent was taken for one to the topic that it has: %v", refusal)
	}
}

// A fetch must not pass over what the fetches before it gave out again: after
// a restart with 100,000 in flight that would be 50,000 rows here.
func TestTheFiveHundredthFetchAfterARestartIsAsFastAsTheFirst(t *testing.T) {
	for _, options := range []string{`{"max_messages":100}`, `{"max_messages":100,"include_topics":["x"]}`} {
		r := newRig(t)
		r.register("a")
		const n = 100_000
		if _, err := r.db.Exec(`INSERT INTO deliveries (id, recipient, topic, priority, queued_at_ms, expires_at_ms, attempts, message_id, delivered_at_ms, delivered_id, delivered_to)
			WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 - 1)
			SELECT i + 10, 'a', 'x', 1 + i % 9, 1, 1 << 60, 1, 'm' || i, 900000 + i / 100, ?1 + i / 100, 'a' FROM n`, n); err != nil {
			t.Fatal(err)
		}
		r.lastID = 2 * n
		r.register("a")
		fastest, given := time.Hour, 0
		for i := range 500 {
			began := time.Now()
			e, refusal := r.try("a", "fetch", options)
			if took := time.Since(began); i >= 490 { // the fastest, since others use the machine too
				fastest = min(fastest, took)
			}
			equal(t, "refused", refusal, nil)
			given += len(e.Reply.(inbox.Fetched).Messages)
		}
		t.Logf("%s: the 500th takes %v", options, fastest)
		equal(t, "given", given, 50_000)
		equal(t, "given twice", r.count(`SELECT count(*) FROM deliveries WHERE attempts > 2`), 0)
		equal(t, "less urgent before more urgent", r.count(`SELECT count(*) FROM deliveries WHERE attempts = 2
			AND priority < (SELECT max(priority) FROM deliveries WHERE attempts = 1)`), 0)
		if fastest > 20*time.Millisecond {
			t.Errorf("%s: the 500th fetch takes %v", options, fastest)
		}
	}
}

// What several earlier holders of a role have in flight is given to the next,
// however many they are.
func TestARoleIsHandedOnThroughManyHolders(t *testing.T) {
	for _, options := range []string{`{"max_messages":7}`, `{"max_messages":7,"include_topics":["x"]}`} {
		r := newRig(t)
		var want []int64
		for i := range 30 {
			who := fmt.Sprintf("h%02d", i)
			r.register(who)
			r.held["p/lead"] = who
			id, _ := r.send(draft{to: "role:p/lead", topic: "x"})
			want = append(want, id)
			r.flush()
			// In flight to this holder, as if it had fetched this one alone.
			if _, err := r.db.Exec(`UPDATE deliveries SET attempts = 1, message_id = 'm', delivered_at_ms = ?, delivered_id = ?, delivered_to = ? WHERE id = ?`,
				r.nowMS, r.lastID, who, id); err != nil {
				t.Fatal(err)
			}
		}
		r.register("a")
		r.held["p/lead"] = "a"
		var got []int64
		for range 10 {
			r.flush()
			polled, _ := r.poll("a", options)
			page := r.fetch("a", options)
			equal(t, "the poll", polled.Ready, len(page) > 0)
			got = append(got, page...)
		}
		slices.Sort(got)
		equal(t, "given", got, want)
	}
}

func TestPendingComesInPagesWithWhatTheRolesAreOwed(t *testing.T) {
	r := newRig(t)
	r.register("a")
	r.held["p/lead"] = "a"
	r.held["p/other"] = "b"
	var ids []int64
	for i := range 60 {
		id := r.registered(draft{to: []string{"a", "role:p/lead", "role:p/other"}[i%3], priority: 1 + i%4})
		if i%3 != 2 {
			ids = append(ids, id)
		}
		if i == 30 {
			r.fetch("a", "")
		}
	}
	r.flush()
	slices.SortStableFunc(ids, func(a, b int64) int { return r.rows[b].Envelope.Priority - r.rows[a].Envelope.Priority })
	for _, limit := range []int{1, 3, 39, 40, 1000} {
		var got []string
		after := ""
		for range 100 {
			page := r.query("pending", fmt.Sprintf(`{"agent":"a","limit":%d,"after":%q}`, limit, after))
			equal(t, "pending", page["pending"], any(40.0))
			got = append(got, entries(t, page, "deliveries", "id")...)
			if page["more"] != true {
				equal(t, "after the last", page["next_after"], nil)
				break
			}
			after = page["next_after"].(string)
		}
		equal(t, fmt.Sprintf("in pages of %d", limit), strings.Join(got, " "), strings.Trim(fmt.Sprint(ids), "[]"))
	}
	equal(t, "of the role alone", r.query("pending", `{"agent":"role:p/lead"}`)["pending"], any(20.0))
	for _, after := range []string{"x", "5", "5/x", "/1"} {
		var refusal *wire.Error
		if _, err := r.m.Queries()["pending"](r.db, "a", []byte(fmt.Sprintf(`{"after":%q}`, after))); !errors.As(err, &refusal) || refusal.Code != wire.BodyInvalid {
			t.Errorf("after %q: %v", after, err)
		}
	}
}

func TestANewHolderThatWaitsIsWoken(t *testing.T) {
	r := newRig(t)
	r.register("a")
	notice := step.Notice{Machine: "roles", What: "active", Key: "p/lead", Data: "a"}
	equal(t, "the effects", r.apply(r.input("op", notice)), step.Effects{Woken: []string{"a"}})
	for _, data := range []any{nil, "", 1} {
		notice.Data = data
		if _, err := r.m.Apply(r.db, r.input("op", notice)); err == nil {
			t.Errorf("a notice of the holder %v is no fault", data)
		}
	}
}

func TestAReplyIsNoLargerThanTheSettingsSay(t *testing.T) {
	r := newRig(t)
	r.register("a")
	for range 8 {
		r.registered(draft{to: "a", body: strings.Repeat("b", 30_000)})
	}
	fetch := func(settings string) (raw []byte) {
		in := r.input("a", step.Command{Verb: "fetch", Body: []byte(`{"redeliver_after_ms":0}`)})
		if settings != "" {
			in.Settings = step.Settings{"inbox": json.RawMessage(settings)}
		}
		e, err := r.m.Apply(r.db, in)
		if err == nil {
			raw, err = json.Marshal(e.Reply)
		}
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for settings, want := range map[string]int{"": 8, `{}`: 8, `{"reply_bytes":524288}`: 8, `{"reply_bytes":100000}`: 3, `{"reply_bytes":35000}`: 1} {
		equal(t, "messages with "+settings, strings.Count(string(fetch(settings)), `"message_id"`), want)
	}
	if raw := fetch(`{"reply_bytes":1}`); !strings.Contains(string(raw), `"bytes":30000`) {
		t.Errorf("with too little for a body the reply is %.200s, not outlines", raw)
	}
	if _, err := r.m.Apply(r.db, func() step.Input {
		in := r.input("a", step.Command{Verb: "fetch"})
		in.Settings = step.Settings{"inbox": json.RawMessage(`{"reply_bytes":"x"}`)}
		return in
	}()); err == nil {
		t.Error("settings that cannot be read are no fault")
	}
}

func TestAListingIsNoLargerThanTheSettingsSay(t *testing.T) {
	r := newRig(t)
	for range 300 {
		r.registered(draft{to: "a"})
	}
	r.flush()
	if _, err := r.db.Exec(`UPDATE bridge_state SET settings = '{"inbox":{"reply_bytes":20000}}'`); err != nil {
		t.Fatal(err)
	}
	got, after := 0, ""
	for range 300 {
		page := r.query("pending", fmt.Sprintf(`{"agent":"a","limit":1000,"after":%q}`, after))
		raw, err := json.Marshal(page["deliveries"])
		if err != nil || len(raw) > 20_100 {
			t.Fatalf("a page has %d bytes, %v", len(raw), err)
		}
		got += len(page["deliveries"].([]any))
		if page["more"] != true {
			break
		}
		after = page["next_after"].(string)
	}
	equal(t, "listed", got, 300)
}
