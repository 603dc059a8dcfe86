package inbox_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"signalbox/inbox"
	"signalbox/step"
	"signalbox/wire"
)

func equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// told are the notices of effects, as <key>.<what>.
func told(effects ...step.Effects) (list []string) {
	for _, e := range effects {
		for _, h := range e.Told {
			list = append(list, h.Key+"."+h.What)
		}
	}
	return list
}

func TestI1AMessageToAnUnknownAgentWaitsAndItsSenderHearsAtOnce(t *testing.T) {
	r := newRig(t)
	kept, e := r.send(draft{from: "me", to: "late", ttl: time.Minute})
	equal(t, "the sender hears", told(e), []string{"me.unknown_recipient"})
	h := e.Told[0]
	equal(t, "the chain", []string{h.CorrelationID, h.TraceID}, []string{"c1", "t1"})
	equal(t, "the notice", h.Body, any(map[string]any{"message_id": "m1", "id": kept, "to": "agent:late", "expires_at_ms": r.nowMS + 60_000}))
	equal(t, "deliveries", e.Deliveries, 1)
	lost, _ := r.send(draft{from: "me", to: "never", ttl: time.Second})
	if _, refusal := r.try("late", "fetch", ""); refusal == nil || refusal.Code != wire.AgentNotFound {
		t.Errorf("a fetch before the registration: %v", refusal)
	}
	r.nowMS += 1000
	equal(t, "the sender hears", told(r.tick()...), []string{"me.dead"})
	r.register("late")
	r.register("never")
	equal(t, "late gets", r.fetch("late", ""), []int64{kept})
	equal(t, "never gets", r.fetch("never", ""), []int64(nil))
	equal(t, "what had expired", r.deliveries(lost), []string{"never:expired"})
	// A start looks at nothing that is over.
	r.m.Forget()
	r.nowMS += 10_000
	equal(t, "the tick after a start", len(r.tick()), 0)
	equal(t, "dead letters", r.count(`SELECT count(*) FROM dead_letters`), 1)
}

func TestI2ARestartedAgentGetsWhatItHasNotAckedOnceAndNothingExpired(t *testing.T) {
	r := newRig(t)
	r.register("a")
	one, _ := r.send(draft{to: "a"})
	two, _ := r.send(draft{to: "a"})
	three, _ := r.send(draft{to: "a", ttl: 5 * time.Second})
	unread, _ := r.send(draft{to: "a", ttl: 5 * time.Second, priority: 1})
	equal(t, "the first fetch", r.fetch("a", `{"max_messages":3}`), []int64{one, two, three})
	equal(t, "acked", r.do("a", "ack", fmt.Sprintf(`{"ids":[%d]}`, one))["acked"], any(1.0))
	equal(t, "the same process again", r.fetch("a", `{"include_topics":["none"]}`), []int64(nil))
	r.nowMS += 5000 // two of them are over, though no tick has said so yet
	r.register("a")
	equal(t, "the restarted agent", r.fetch("a", ""), []int64{two})
	equal(t, "and again", r.fetch("a", ""), []int64(nil))
	r.nowMS += 30_000
	equal(t, "after redeliver_after_ms", r.fetch("a", ""), []int64{two})
	r.tick()
	equal(t, "what expired", append(r.deliveries(three), r.deliveries(unread)...), []string{"a:expired", "a:expired"})
}

func TestI3UrgentOnesComeFirstThenTheOldest(t *testing.T) {
	r := newRig(t)
	r.register("a")
	r.agents["b"] = r.agents["a"]
	r.held["p/lead"] = "a"
	var want []int64
	for i := range 100 {
		to := "a"
		if i%3 == 1 {
			to = "role:p/lead"
		}
		id, _ := r.send(draft{to: to, priority: 5})
		want = append(want, id)
	}
	urgent, _ := r.send(draft{to: "a", priority: 9})
	low, _ := r.send(draft{to: "role:p/lead", priority: 1})
	want = append(append([]int64{urgent}, want...), low)
	var got []int64
	for range 11 {
		got = append(got, r.fetch("a", `{"max_messages":10}`)...)
	}
	equal(t, "the order", got, want)
	// In flight it is the same.
	equal(t, "again", r.fetch("a", `{"max_messages":100,"redeliver_after_ms":0}`), want[:100])
}

func TestI4AcksOfUnknownOrForeignIDsCountNothing(t *testing.T) {
	r := newRig(t)
	r.register("a")
	r.register("b")
	mine, _ := r.send(draft{to: "a", messageID: "x"})
	theirs, _ := r.send(draft{to: "b", messageID: "y"})
	unread, _ := r.send(draft{to: "a", messageID: "z"})
	equal(t, "fetched", r.fetch("a", `{"max_messages":1}`), []int64{mine})
	r.fetch("b", "")
	for _, c := range []struct {
		what, ids string
		want      float64
	}{
		{"none", `[]`, 0}, {"foreign ones", fmt.Sprintf(`[%d,"y"]`, theirs), 0}, {"unknown ones", `[999,-1,0,"nobody","` + strings.Repeat("x", 300) + `"]`, 0},
		{"one, under both its names", fmt.Sprintf(`[%d.0,"x",%d]`, mine, mine), 1}, {"the same again", `["x"]`, 0},
		{"one that was not fetched, by its row", fmt.Sprintf(`[%d]`, unread), 1}, {"the same again", `["z"]`, 0},
	} {
		equal(t, "an ack of "+c.what, r.do("a", "ack", `{"ids":`+c.ids+`}`)["acked"], any(c.want))
	}
	equal(t, "the foreign one", r.deliveries(theirs), []string{"b:delivered"})
	totals, err := inbox.ReadTotals(r.db)
	equal(t, "the totals", totals, inbox.Totals{Deliveries: 3, Delivered: 2, Acked: 2})
	equal(t, "their error", err, nil)
}

func TestI6TenThousandThatExpireTogetherAreEachDeadOnce(t *testing.T) {
	r := newRig(t)
	r.register("a")
	const n = 10_000
	for i := range n {
		r.send(draft{to: []string{"a", "nobody", "topic:x", "role:p/lead"}[i%4], ttl: time.Second})
	}
	r.nowMS += 1000
	heard, ticks := map[any]int{}, 0
	for {
		effects := r.tick()
		if len(effects) == 0 {
			break
		}
		if ticks++; len(effects) > 500 {
			t.Fatalf("one tick handles %d", len(effects))
		}
		for _, e := range effects {
			for _, h := range e.Told {
				heard[h.Body.(map[string]any)["id"]]++
			}
		}
	}
	equal(t, "ticks", ticks, n/500)
	equal(t, "told", len(heard), n)
	for id, times := range heard {
		equal(t, fmt.Sprintf("row %v is told", id), times, 1)
	}
	equal(t, "dead letters", r.count(`SELECT count(*) FROM dead_letters WHERE reason = 'ttl_expired'`), n)
	equal(t, "expired", r.count(`SELECT count(*) FROM deliveries WHERE outcome = 'expired' AND outcome_at_ms = ?`, r.nowMS), n)
	r.flush()
	totals, _ := inbox.ReadTotals(r.db)
	equal(t, "the totals", totals, inbox.Totals{Deliveries: n, Dead: n})
}

func TestARequestThatExpiresIsAnsweredToItsSender(t *testing.T) {
	for _, c := range []struct {
		from     string
		kind     wire.Type
		messages int
	}{{"me", wire.TypeRequest, 1}, {"me", wire.TypeHandoff, 1}, {"me", wire.TypeEvent, 0}, {wire.Bridge, wire.TypeHandoff, 0}} {
		r := newRig(t)
		r.register("a")
		id, _ := r.send(draft{from: c.from, to: "a", kind: c.kind, ttl: time.Second})
		r.fetch("a", "")
		fetchedAt := r.nowMS
		r.nowMS += 1000
		effects := r.tick()
		equal(t, "told", told(effects...), []string{c.from + ".dead"})
		equal(t, "the notice", effects[0].Told[0].Body, any(map[string]any{"message_id": "m2", "id": id, "recipient": "a", "reason": "ttl_expired",
			"attempts": int64(1), "delivered_at_ms": fetchedAt, "last_error": "fetched 1 times and not acked within its time to live"}))
		if equal(t, "messages", len(effects[0].Messages), c.messages); c.messages > 0 {
			equal(t, "the message", effects[0].Messages[0], step.Outgoing{To: wire.Recipient{Class: wire.ToAgent, Name: "me"}, Type: wire.TypeSystem,
				Topic: "handoff.dead_letter", Priority: 7, CorrelationID: "c2", TraceID: "t2",
				Body: map[string]any{"message_id": "m2", "id": id, "recipient": "a", "reason": "ttl_expired", "attempts": int64(1)}})
		}
	}
}

func TestWhoIsOwedAMessage(t *testing.T) {
	r := newRig(t)
	r.enrol("deaf", agent{live: true, topics: []string{"x", "live.only"}})
	r.enrol("gone", agent{offline: true, topics: []string{"x", "away"}})
	r.register("a", "x")
	r.register("b", "x", "y")
	for _, c := range []struct {
		to    string
		want  []string
		woken []string
		told  []string
	}{
		{"a", []string{"a:queued"}, []string{"a"}, nil}, {"deaf", nil, nil, nil}, {"gone", []string{"gone:queued"}, []string{"gone"}, nil},
		{"nobody", []string{"nobody:queued"}, nil, []string{"me.unknown_recipient"}}, {wire.Bridge, nil, nil, nil},
		{"topic:x", []string{"a:queued", "b:queued"}, []string{"a", "b"}, nil}, {"topic:y", []string{"b:queued"}, []string{"b"}, nil},
		{"topic:live.only", nil, nil, nil}, {"topic:away", []string{"topic:away:queued"}, nil, nil}, {"topic:none", []string{"topic:none:queued"}, nil, nil},
		{"role:p/lead/s", []string{"role:p/lead/s:queued"}, []string{"role:p/lead/s"}, nil},
	} {
		id, e := r.send(draft{to: c.to})
		equal(t, "deliveries of "+c.to, r.deliveries(id), c.want)
		equal(t, "their number", e.Deliveries, len(c.want))
		equal(t, "woken", e.Woken, c.woken)
		equal(t, "told", told(e), c.told)
	}
	msg, in := r.message(draft{to: "a"})
	msg.Problem = wire.Errorf(wire.HeaderInvalid, "no")
	in.Event = msg
	equal(t, "one that is refused", r.apply(in), step.Effects{})
	equal(t, "its deliveries", r.deliveries(msg.ID), []string(nil))
}

func TestWhatADeliveryTakesFromItsMessage(t *testing.T) {
	r := newRig(t)
	msg, in := r.message(draft{to: "a", topic: "build", priority: 8, ttl: 7 * time.Second})
	msg.ExpiresAtMS = 1 // the row's own time is of the wall clock
	in.Event = msg
	r.apply(in)
	r.send(draft{to: "a"})
	r.flush()
	ds, err := inbox.Deliveries(r.db, msg.ID)
	equal(t, "the error", err, nil)
	equal(t, "the delivery", ds, []inbox.Delivery{{ID: msg.ID, Recipient: "a", Status: "queued", Topic: "build", Priority: 8,
		QueuedAtMS: r.nowMS, ExpiresAtMS: r.nowMS + 7000}})
	equal(t, "without a topic", r.count(`SELECT count(*) FROM deliveries WHERE topic IS NULL`), 1)
}

func TestAFormerHoldersMessagesGoToTheNextAtOnce(t *testing.T) {
	r := newRig(t)
	r.register("a")
	r.register("b")
	r.held["p/lead"] = "a"
	var ids []int64
	for range 6 {
		id, _ := r.send(draft{to: "role:p/lead"})
		ids = append(ids, id)
	}
	equal(t, "the holder gets", r.fetch("a", `{"max_messages":4}`), ids[:4])
	equal(t, "another gets", r.fetch("b", ""), []int64(nil))
	equal(t, "the holder acks", r.do("a", "ack", fmt.Sprintf(`{"ids":[%d]}`, ids[0]))["acked"], any(1.0))
	r.held["p/lead"] = "b"
	equal(t, "the former holder acks", r.do("a", "ack", fmt.Sprintf(`{"ids":[%d,"m%d"]}`, ids[1], ids[1]))["acked"], any(0.0))
	equal(t, "the former holder gets", r.fetch("a", `{"redeliver_after_ms":0}`), []int64(nil))
	equal(t, "the next gets", r.fetch("b", `{"max_messages":2}`), ids[1:3])
	equal(t, "and the rest", r.fetch("b", ""), ids[3:])
	equal(t, "and nothing", r.fetch("b", ""), []int64(nil))
	// The same agent that holds it again starts where it was.
	r.held["p/lead"] = "a"
	equal(t, "the first again", r.fetch("a", ""), ids[1:])
	equal(t, "by name", r.do("a", "ack", fmt.Sprintf(`{"ids":["m%d"]}`, ids[5]))["acked"], any(1.0))
}

func TestStatusIsThatOfTheLeastAdvancedDelivery(t *testing.T) {
	at := int64(1)
	queued, delivered := inbox.Delivery{}, inbox.Delivery{DeliveredAtMS: &at}
	acked, expired := inbox.Delivery{Outcome: "acked", DeliveredAtMS: &at}, inbox.Delivery{Outcome: "expired"}
	rejected, dead := inbox.Delivery{Outcome: "rejected", DeliveredAtMS: &at}, inbox.Delivery{Outcome: "dead_letter"}
	for _, c := range []struct {
		want string
		list []inbox.Delivery
	}{
		{"", nil}, {"queued", []inbox.Delivery{acked, delivered, queued, expired}}, {"delivered", []inbox.Delivery{acked, expired, delivered, dead}},
		{"expired", []inbox.Delivery{acked, expired}}, {"dead_letter", []inbox.Delivery{acked, rejected}}, {"dead_letter", []inbox.Delivery{expired, dead, acked}},
		{"acked", []inbox.Delivery{acked, acked}},
	} {
		equal(t, "status", inbox.Status(c.list), c.want)
		slices.Reverse(c.list)
		equal(t, "status in the other order", inbox.Status(c.list), c.want)
	}
}
