package inbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"signalbox/inbox"
	"signalbox/wire"
)

// register puts a message into the register's own table too, where the queries
// find it.
func (r *rig) registered(d draft) int64 {
	r.Helper()
	id, _ := r.send(d)
	m := r.rows[id]
	topic := any(m.Envelope.Topic)
	if m.Envelope.Topic == "" {
		topic = nil
	}
	if _, err := r.db.Exec(`INSERT INTO messages (id, incarnation, seq, at, kind, subject, message_id, type, "from", identity, topic, priority,
		correlation_id, trace_id, headers, leaf) VALUES (?, 1, ?, 1, 'msg', 's', ?, ?, ?, 'claimed', ?, ?, 'c', 't', '{}', zeroblob(32))`,
		id, id, m.MessageID, string(m.Envelope.Type), m.From, topic, m.Envelope.Priority); err != nil {
		r.Fatal(err)
	}
	return id
}

func entries(t testing.TB, answer map[string]any, list string, fields ...string) (out []string) {
	t.Helper()
	for _, e := range answer[list].([]any) {
		var line []string
		for _, f := range fields {
			v, ok := e.(map[string]any)[f]
			if !ok {
				v = "-"
			}
			line = append(line, fmt.Sprint(v))
		}
		out = append(out, strings.Join(line, " "))
	}
	return out
}

func TestPendingListsWhatIsOwedInTheOrderOfAFetch(t *testing.T) {
	r := newRig(t)
	r.register("a")
	one := r.registered(draft{to: "a", topic: "x", kind: wire.TypeRequest})
	r.fetch("a", "")
	two := r.registered(draft{to: "a", priority: 9, from: "you"})
	three := r.registered(draft{to: "a"})
	waits := r.registered(draft{to: "topic:y"})
	role := r.registered(draft{to: "role:p/lead"})
	r.flush()
	m := inbox.New(inbox.Facts{}) // queries need no facts
	ask := func(from, body string) map[string]any {
		answer, err := m.Queries()["pending"](r.db, from, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return asMap(t, answer)
	}
	want := []string{fmt.Sprintf("%d a m%d queued 9 you event - 0 -", two, two), fmt.Sprintf("%d a m%d delivered 5 me request x 1 a", one, one),
		fmt.Sprintf("%d a m%d queued 5 me event - 0 -", three, three)}
	fields := []string{"id", "recipient", "message_id", "status", "priority", "from", "type", "topic", "attempts", "delivered_to"}
	for _, body := range []string{`{"agent":"a"}`, `{"agent":"agent:a"}`, `{"agent":"a","limit":3}`} {
		answer := ask("me", body)
		equal(t, "pending", entries(t, answer, "deliveries", fields...), want)
		equal(t, "their number", []any{answer["pending"], answer["more"]}, []any{3.0, false})
	}
	answer := ask("a", `{"limit":2}`)
	equal(t, "the first two of the sender", entries(t, answer, "deliveries", fields...), want[:2])
	equal(t, "of all", []any{answer["pending"], answer["more"]}, []any{3.0, true})
	equal(t, "at a topic", entries(t, ask("me", `{"agent":"topic:y"}`), "deliveries", "id"), []string{fmt.Sprint(waits)})
	equal(t, "of a role", entries(t, ask("me", `{"agent":"role:p/lead"}`), "deliveries", "id"), []string{fmt.Sprint(role)})
	equal(t, "of nobody", len(ask("nobody", ``)["deliveries"].([]any)), 0)
	for _, body := range []string{`{"limit":0}`, `{"limit":1001}`, `{"agent":"a b"}`, `{"x":1}`} {
		var refusal *wire.Error
		if _, err := m.Queries()["pending"](r.db, "me", []byte(body)); !errors.As(err, &refusal) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestDeadListsTheNewestFirstInPages(t *testing.T) {
	r := newRig(t)
	r.register("a", "x")
	r.register("b", "x")
	r.registered(draft{to: "topic:x", ttl: time.Second})
	second := r.registered(draft{to: "a", ttl: time.Second, from: "you", kind: wire.TypeHandoff})
	r.nowMS += 1000
	r.tick()
	third := r.registered(draft{to: "a", topic: "y"})
	r.do("a", "reject", fmt.Sprintf(`{"id":%d,"reason":"no"}`, third))
	r.flush()
	fields := []string{"id", "recipient", "message_id", "reason", "from", "type", "topic"}
	all := []string{fmt.Sprintf("%d a m%d ttl_expired you handoff <nil>", second, second), "3 a m3 ttl_expired me event x", "3 b m3 ttl_expired me event x"}
	rejected := fmt.Sprintf("%d a m%d rejected me event y", third, third)
	all = append([]string{rejected}, all...)
	// The rejected one has the same time as the expired ones, and the highest row.
	answer := r.query("dead", "")
	equal(t, "all", entries(t, answer, "dead", fields...), all)
	equal(t, "no more", []any{answer["more"], answer["next_after"]}, []any{false, nil})
	equal(t, "last_error", entries(t, answer, "dead", "last_error")[0], "no")
	equal(t, "of b", entries(t, r.query("dead", `{"recipient":"b"}`), "dead", fields...), all[3:])
	equal(t, "rejected", entries(t, r.query("dead", `{"reason":"rejected"}`), "dead", fields...), all[:1])
	equal(t, "of both", entries(t, r.query("dead", `{"reason":"ttl_expired","recipient":"a"}`), "dead", fields...), all[1:3])
	var paged []string
	after := ""
	for {
		answer := r.query("dead", fmt.Sprintf(`{"limit":1,"after":%q}`, after))
		paged = append(paged, entries(t, answer, "dead", fields...)...)
		if answer["more"] != true {
			break
		}
		after = answer["next_after"].(string)
	}
	equal(t, "in pages", paged, all)
	for _, body := range []string{`{"limit":0}`, `{"limit":1001}`, `{"after":"x"}`, `{"after":"1/2"}`, `{"after":"1/x/a"}`, `{"x":1}`} {
		var refusal *wire.Error
		if _, err := r.m.Queries()["dead"](r.db, "me", []byte(body)); !errors.As(err, &refusal) || refusal.Code != wire.BodyInvalid {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestAListingIsNotTooLargeForAReply(t *testing.T) {
	r := newRig(t)
	r.register("a")
	const n = 200
	for range n {
		id, _ := r.send(draft{to: "a"})
		r.do("a", "reject", fmt.Sprintf(`{"id":%d,"reason":%q}`, id, strings.Repeat("語", 1000)))
	}
	got, after := 0, ""
	for pages := 1; ; pages++ {
		answer, err := r.m.Queries()["dead"](r.db, "me", []byte(fmt.Sprintf(`{"limit":1000,"after":%q}`, after)))
		if err != nil {
			t.Fatal(err)
		}
		page := asMap(t, answer)
		got += len(page["dead"].([]any))
		if page["more"] != true {
			equal(t, "pages", pages, 2)
			break
		}
		after = page["next_after"].(string)
	}
	equal(t, "dead letters", got, n)
}

func TestCountsComeFromTheTables(t *testing.T) {
	r := newRig(t)
	r.register("a")
	r.sendMany(5, draft{to: "a"})
	r.fetch("a", `{"max_messages":2}`)
	r.do("a", "ack", `{"ids":["m2"]}`)
	r.flush()
	pending, err := inbox.Pending(r.db, "a")
	equal(t, "pending", pending, 4)
	equal(t, "the error", err, nil)
	if _, err := r.db.Exec(`DELETE FROM inbox_totals`); err != nil { // as a replay does
		t.Fatal(err)
	}
	totals, err := inbox.ReadTotals(r.db)
	equal(t, "totals of an empty table", totals, inbox.Totals{})
	equal(t, "the error", err, nil)
	r.send(draft{to: "a"})
	r.flush()
	totals, _ = inbox.ReadTotals(r.db)
	equal(t, "totals", totals, inbox.Totals{Deliveries: 1})
}
