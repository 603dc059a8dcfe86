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

func TestWhatIsOutOfRangeIsRefusedWithItsRange(t *testing.T) {
	r := newRig(t)
	r.register("a")
	topics := func(n int) string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf("t%d", i)
		}
		raw, _ := json.Marshal(list)
		return string(raw)
	}
	for body, want := range map[string]string{
		``: "", `{}`: "", `{"max_messages":null}`: "", `{"max_messages":1}`: "", `{"max_messages":100}`: "", `{"max_messages":0}`: "max_messages is 0, and must be 1 to 100",
		`{"max_messages":101}`: "1 to 100", `{"wait_ms":-1}`: "wait_ms is -1, and must be 0 to 30000", `{"wait_ms":30001}`: "30000", `{"wait_ms":30000}`: "",
		`{"redeliver_after_ms":-1}`: "redeliver_after_ms is -1, and must be 0 to 86400000", `{"redeliver_after_ms":86400001}`: "86400000", `{"redeliver_after_ms":86400000}`: "",
		`{"redeliver_after_ms":0}`: "", `{"include_topics":` + topics(64) + `}`: "", `{"include_topics":` + topics(65) + `}`: "at most 64",
		`{"include_topics":["a b"]}`: "include_topics", `{"include_topics":[""]}`: "include_topics", `{"include_topics":"x"}`: "include_topics",
		`{"limit":1}`: "limit", `{"auto_ack":1}`: "auto_ack", `[]`: "object",
	} {
		_, fetched := r.try("a", "fetch", body)
		_, polled := r.poll("a", body)
		for _, refusal := range []*wire.Error{fetched, polled} {
			if want == "" && refusal != nil || want != "" && (refusal == nil || refusal.Code != wire.BodyInvalid || !strings.Contains(refusal.Message, want)) {
				t.Errorf("%.60s: %v, want %q", body, refusal, want)
			}
		}
	}
	for ids, want := range map[string]string{`{}`: "ids is missing", `{"ids":null}`: "missing", `{"ids":[null]}`: "missing", `{"ids":[1.5]}`: "must be", `{"ids":[true]}`: "must be",
		`{"ids":[{}]}`: "must be", `{"ids":[""]}`: "must be", `{"ids":[1e30]}`: "must be", `{"ids":[` + strings.Repeat("1,", 1000) + `1]}`: "at most 1000"} {
		if _, refusal := r.try("a", "ack", ids); refusal == nil || refusal.Code != wire.BodyInvalid || !strings.Contains(refusal.Message, want) {
			t.Errorf("%.60s: %v, want %q", ids, refusal, want)
		}
	}
	equal(t, "a thousand", r.do("a", "ack", `{"ids":[`+strings.Repeat("1,", 999)+`1]}`)["acked"], any(0.0))
}

func TestARefusalWritesNothing(t *testing.T) {
	r := newRig(t)
	r.register("a")
	r.send(draft{to: "a"}) // waits in memory
	for _, c := range [][3]string{{"nobody", "fetch", "{}"}, {"a", "fetch", `{"x":1}`}, {"a", "ack", `{}`}, {"a", "reject", `{"id":77}`}, {"a", "reject", `{"id":"other"}`},
		{"a", "redrive", `{"id":2}`}, {"a", "redrive", `{"message_id":"m2"}`}} {
		if _, refusal := r.try(c[0], c[1], c[2]); refusal == nil {
			t.Errorf("%v is not refused", c)
		}
		equal(t, fmt.Sprintf("rows written by %v", c), r.count(`SELECT total_changes()`), 2) // the rig's own
	}
	// What is in memory only can be rejected all the same.
	equal(t, "rejected", r.do("a", "reject", `{"id":"m2"}`)["rejected"], any(1.0))
}

func TestAnAckOrRejectMayComeFromOneWhoReadTheSubject(t *testing.T) {
	r := newRig(t)
	r.register("a")
	r.held["p/lead"] = "a"
	for _, flushed := range []bool{true, false} {
		own, _ := r.send(draft{to: "a"})
		role, _ := r.send(draft{to: "role:p/lead"})
		third, _ := r.send(draft{to: "a"})
		if flushed {
			r.flush()
		}
		equal(t, "rejected", r.do("a", "reject", fmt.Sprintf(`{"id":"m%d"}`, third))["rejected"], any(1.0))
		equal(t, "acked", r.do("a", "ack", fmt.Sprintf(`{"ids":["m%d","m%d","m%d"]}`, own, role, third))["acked"], any(2.0))
	}
	r.flush()
	totals, _ := inbox.ReadTotals(r.db)
	equal(t, "the totals", totals, inbox.Totals{Deliveries: 6, Acked: 4, Dead: 2})
	// Only the first thousand are compared, in the order of a fetch, wherever
	// they are kept.
	ids := r.sendMany(700, draft{to: "a"})
	r.flush()
	ids = append(ids, r.sendMany(350, draft{to: "a"})...)
	urgent, _ := r.send(draft{to: "a", priority: 9})
	role, _ := r.send(draft{to: "role:p/lead"})
	equal(t, "an urgent one", r.do("a", "reject", fmt.Sprintf(`{"id":"m%d"}`, urgent))["id"], any(float64(urgent)))
	equal(t, "the last of the first thousand", r.do("a", "reject", fmt.Sprintf(`{"id":"m%d"}`, ids[999]))["id"], any(float64(ids[999])))
	equal(t, "one of a role, behind them", r.do("a", "ack", fmt.Sprintf(`{"ids":["m%d"]}`, role))["acked"], any(0.0))
	if _, refusal := r.try("a", "reject", fmt.Sprintf(`{"id":"m%d"}`, ids[1049])); refusal == nil {
		t.Error("one behind them was found")
	}
	equal(t, "by its row", r.do("a", "ack", fmt.Sprintf(`{"ids":[%d]}`, ids[1049]))["acked"], any(1.0))
}

func TestAnAckByMessageIDAcksAllItsDeliveries(t *testing.T) {
	r := newRig(t)
	r.register("a")
	r.held["p/lead"] = "a"
	for _, to := range []string{"a", "a", "role:p/lead"} {
		r.send(draft{to: to, messageID: "twice"})
	}
	r.fetch("a", "")
	fresh, _ := r.send(draft{to: "a", messageID: "twice"})
	equal(t, "acked", r.do("a", "ack", `{"ids":["twice","twice"]}`)["acked"], any(3.0))
	equal(t, "one that was not fetched", r.deliveries(fresh), []string{"a:queued"})
	equal(t, "acked then", r.do("a", "ack", `{"ids":["twice"]}`)["acked"], any(1.0))
}

func TestAFetchTakesWhatFitsAndMarksOnlyThat(t *testing.T) {
	r := newRig(t)
	r.register("a")
	const large = 200 << 10
	var ids []int64
	for range 4 {
		id, _ := r.send(draft{to: "a", body: strings.Repeat("x", large)})
		ids = append(ids, id)
	}
	huge, _ := r.send(draft{to: "a", body: strings.Repeat("y", 600<<10)})
	small, _ := r.send(draft{to: "a"})
	fetch := func() (got []int64, more bool, bodies []any) {
		e, _ := r.try("a", "fetch", "{}")
		raw, err := json.Marshal(e.Reply)
		if err != nil {
			t.Fatal(err)
		}
		if limit := 512<<10 + 100; len(raw) > limit {
			t.Errorf("a reply has %d bytes", len(raw))
		}
		reply := asMap(t, e.Reply)
		for _, m := range reply["messages"].([]any) {
			got = append(got, int64(m.(map[string]any)["id"].(float64)))
			bodies = append(bodies, m.(map[string]any)["body"])
		}
		return got, reply["more"].(bool), bodies
	}
	got, more, _ := fetch()
	equal(t, "the first two", []any{got, more}, []any{ids[:2], true})
	equal(t, "marked", r.count(`SELECT count(*) FROM deliveries WHERE attempts > 0`), 2)
	got, more, bodies := fetch()
	equal(t, "the rest", []any{got, more}, []any{[]int64{ids[2], ids[3], huge, small}, false})
	equal(t, "an outline", bodies[2], any(map[string]any{"id": float64(huge), "bytes": 600.0 * 1024}))
	got, more, _ = fetch()
	equal(t, "nothing", []any{got, more}, []any{[]int64(nil), false})
}

// headerRows give every message headers that are too large for a reply.
type headerRows struct{ *world }

func (h headerRows) JSON(_ step.DB, id int64, _ int) (json.RawMessage, error) {
	return json.Marshal(map[string]any{"id": id, "headers": strings.Repeat("h", 600<<10), "message_id": h.rows[id].MessageID})
}

func TestHeadersTooLargeForAReplyDoNotBlockTheInbox(t *testing.T) {
	r := newRig(t)
	r.m = inbox.New(inbox.Facts{Agents: r.world, Rows: headerRows{r.world}})
	r.register("a")
	id, _ := r.send(draft{to: "a", kind: wire.TypeRequest, topic: "x"})
	m := r.do("a", "fetch", "")["messages"].([]any)[0].(map[string]any)
	equal(t, "what is left", []any{m["id"], m["message_id"], m["from"], m["to"], m["type"], m["topic"], m["headers_omitted"], m["attempts"]},
		[]any{float64(id), "m2", "me", "agent:a", "request", "x", true, 1.0})
}

func TestAFetchedMessageSaysHowItWasDelivered(t *testing.T) {
	r := newRig(t)
	r.register("a")
	r.held["p/lead/s"] = "a"
	own, _ := r.send(draft{to: "a"})
	role, _ := r.send(draft{to: "role:p/lead/s", body: `"} `})
	r.nowMS += 40
	reply := r.do("a", "fetch", "")
	row := func(id int64, attempts float64, recipient, body string) map[string]any {
		return map[string]any{"id": float64(id), "message_id": fmt.Sprintf("m%d", id), "priority": 5.0, "body": body, "attempts": attempts,
			"delivered_at_ms": float64(r.nowMS), "recipient": recipient}
	}
	equal(t, "the reply", reply, map[string]any{"messages": []any{row(own, 1, "a", ""), row(role, 1, "role:p/lead/s", `"} `)}, "more": false})
	fetchID := r.lastID
	equal(t, "the marks", r.count(`SELECT count(*) FROM deliveries WHERE attempts = 1 AND delivered_at_ms = ? AND delivered_id = ? AND delivered_to = 'a'
		AND message_id = 'm' || id`, r.nowMS, fetchID), 2)
	r.nowMS += 30_000
	reply = r.do("a", "fetch", `{"max_messages":1}`)
	equal(t, "again", reply, map[string]any{"messages": []any{row(own, 2, "a", "")}, "more": true})
	r.flush()
	totals, _ := inbox.ReadTotals(r.db)
	equal(t, "the totals count the first fetch", totals, inbox.Totals{Deliveries: 2, Delivered: 2, WaitMS: 80})
}

func TestAutoAckAcksInTheSameStep(t *testing.T) {
	r := newRig(t)
	r.register("a")
	one, _ := r.send(draft{to: "a"})
	two, _ := r.send(draft{to: "a"})
	equal(t, "fetched", r.fetch("a", `{"auto_ack":true,"max_messages":1}`), []int64{one})
	equal(t, "one", r.deliveries(one), []string{"a:acked"})
	equal(t, "two", r.deliveries(two), []string{"a:queued"})
	equal(t, "its columns", r.count(`SELECT count(*) FROM deliveries WHERE id = ? AND attempts = 1 AND acked_at_ms = outcome_at_ms
		AND outcome_id = delivered_id AND outcome_id = ?`, one, r.lastID), 1)
	totals, _ := inbox.ReadTotals(r.db)
	equal(t, "the totals", totals, inbox.Totals{Deliveries: 2, Delivered: 1, Acked: 1})
}

func TestOnlyTheTopicsAskedForAreFetched(t *testing.T) {
	r := newRig(t)
	r.register("a", "x")
	r.held["p/lead"] = "a"
	x, _ := r.send(draft{to: "topic:x", priority: 3})
	y, _ := r.send(draft{to: "role:p/lead", topic: "y"})
	r.send(draft{to: "a", topic: "x.y"})
	r.send(draft{to: "a"})
	own, _ := r.send(draft{to: "a", topic: "x"})
	equal(t, "fresh", r.fetch("a", `{"include_topics":["y","x","x"],"max_messages":2}`), []int64{y, own})
	equal(t, "fresh", r.fetch("a", `{"include_topics":["y","x","x"]}`), []int64{x})
	equal(t, "nothing", r.fetch("a", `{"include_topics":["y","x"]}`), []int64(nil))
	equal(t, "in flight", r.fetch("a", `{"include_topics":["y","x"],"redeliver_after_ms":0}`), []int64{y, own, x})
	r.held["p/lead"], r.agents["b"] = "b", &agent{}
	equal(t, "the next holder", r.fetch("b", `{"include_topics":["x","y"]}`), []int64{y})
}

// Where more are due than are read and sorted, they are looked for in the order
// of a fetch; the result is the same.
func TestManyThatAreDueComeInTheSameOrder(t *testing.T) {
	for _, recipient := range []string{"a", "role:p/lead"} {
		for _, topic := range []string{"", "x"} {
			r := newRig(t)
			r.register("a")
			r.register("b")
			r.held["p/lead"] = "a"
			type place struct {
				priority int
				id       int64
			}
			var all []place
			// What is urgent comes later, so the order of the fetches is another
			// than that of the next fetch.
			for i := range 1300 {
				p, ttl := 1+i/150, time.Hour
				if i%10 == 0 {
					ttl = 10 * time.Second // over when they are due
				}
				id, _ := r.send(draft{to: recipient, priority: p, topic: topic, ttl: ttl})
				if i%10 != 0 {
					all = append(all, place{p, id})
				}
				if i%100 == 99 {
					r.fetch("a", `{"max_messages":100}`)
				}
			}
			if recipient != "a" {
				r.held["p/lead"] = "b"
			}
			r.nowMS += 30_000
			slices.SortStableFunc(all, func(a, b place) int { return b.priority - a.priority })
			options := `{"max_messages":100}`
			if topic != "" {
				options = `{"max_messages":100,"include_topics":["x","other"]}`
			}
			who := map[string]string{"a": "a", "role:p/lead": "b"}[recipient]
			var got []place
			for len(got) < len(all) {
				page := r.fetch(who, options)
				if len(page) == 0 {
					break
				}
				for _, id := range page {
					got = append(got, place{r.rows[id].Envelope.Priority, id})
				}
			}
			equal(t, recipient+" "+topic, got, all)
			equal(t, "and then", r.fetch(who, options), []int64(nil))
		}
	}
}

func TestAPollSaysWhatAFetchWouldFind(t *testing.T) {
	r := newRig(t)
	if _, refusal := r.poll("a", ""); refusal == nil || refusal.Code != wire.AgentNotFound {
		t.Errorf("a poll of nobody: %v", refusal)
	}
	r.register("a")
	r.held["p/lead"] = "a"
	empty := step.Polled{Keys: []string{"a", "role:p/lead"}, WaitMS: 700, Empty: inbox.Fetched{Messages: []json.RawMessage{}}}
	poll := func(what, options string, ready bool, inMS int64) {
		t.Helper()
		r.flush()
		want := empty
		want.Ready, want.InMS = ready, inMS
		got, refusal := r.poll("a", options)
		equal(t, what, got, want)
		equal(t, "its refusal", refusal, nil)
	}
	const options = `{"wait_ms":700,"redeliver_after_ms":5000}`
	const ofX = `{"wait_ms":700,"redeliver_after_ms":5000,"include_topics":["w","x"]}`
	poll("nothing", options, false, 0)
	r.send(draft{to: "role:p/lead", topic: "x", ttl: 20 * time.Second})
	poll("one fresh", options, true, 0)
	poll("one fresh of x", ofX, true, 0)
	r.fetch("a", "")
	poll("in flight", options, false, 5000)
	r.nowMS += 1000
	r.send(draft{to: "a", ttl: time.Hour})
	poll("a fresh one of no topic", ofX, false, 4000)
	r.fetch("a", "")
	poll("two in flight", options, false, 4000)
	r.nowMS += 4000
	poll("the first is due", options, true, 0)
	poll("the first is due", ofX, true, 0)
	r.fetch("a", options)
	poll("it was fetched", options, false, 1000)
	r.nowMS += 20_000
	poll("the first is over, the second due", options, true, 0)
	poll("the first is over", ofX, false, 0)
	r.fetch("a", options)
	r.send(draft{to: "a", ttl: 7 * time.Second})
	r.nowMS += 1000
	r.fetch("a", options)
	r.nowMS += 1000
	r.send(draft{to: "a", ttl: 2 * time.Second})
	r.do("a", "fetch", `{"auto_ack":true}`)
	r.register("a")
	poll("a new registration", options, true, 0)
	// What a fetch answers where there is nothing is what the poll says.
	r.fetch("a", "")
	e, _ := r.try("a", "fetch", "")
	got, err1 := json.Marshal(e.Reply)
	want, err2 := json.Marshal(empty.Empty)
	if err := errors.Join(err1, err2); err != nil || string(got) != string(want) {
		t.Errorf("an empty fetch is %s, the poll says %s, %v", got, want, err)
	}
}

// clockDB knows bus time between messages.
type clockDB struct {
	step.DB
	nowMS int64
}

func (c clockDB) NowMS() int64 { return c.nowMS }

func TestAPollOnASilentBusGoesByTheClock(t *testing.T) {
	r := newRig(t)
	r.register("a")
	r.send(draft{to: "a"})
	r.fetch("a", "")
	r.flush()
	for after, want := range map[int64]step.Polled{0: {InMS: 30_000}, 29_999: {InMS: 1}, 30_000: {Ready: true}} {
		got, err := r.m.Polls()["fetch"](clockDB{r.db, r.nowMS + after}, "a", nil)
		if err != nil || got.Ready != want.Ready || got.InMS != want.InMS {
			t.Errorf("after %d ms: %+v, %v", after, got, err)
		}
	}
}
