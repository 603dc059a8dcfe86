package bridge_test

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"signalbox/audit"
	"signalbox/wire"
)

// fetched are the messages of a fetch.
func (r *rig) fetch(t *testing.T, agent string, options map[string]any) []map[string]any {
	t.Helper()
	if options == nil {
		options = map[string]any{}
	}
	reply := r.request(t, "bus.api."+agent+".inbox.fetch", body(options), nil)
	list, ok := reply["messages"].([]any)
	if !ok {
		t.Fatalf("a fetch of %s: %v", agent, reply)
	}
	messages := make([]map[string]any, len(list))
	for i, m := range list {
		messages[i] = m.(map[string]any)
	}
	return messages
}

func bodiesOf(messages []map[string]any) (list []string) {
	for _, m := range messages {
		list = append(list, fmt.Sprint(m["body"]))
	}
	return list
}

func (r *rig) send(t *testing.T, subject, text string, h nats.Header) {
	t.Helper()
	if err := r.nc.PublishMsg(&nats.Msg{Subject: subject, Data: []byte(text), Header: h}); err != nil {
		t.Fatal(err)
	}
}

// captured waits until all that this connection has published is folded. The
// stream takes plain publishes in its own time, in order: an event that nobody
// minds, and that is acknowledged, comes after them.
func (r *rig) captured(t *testing.T) {
	t.Helper()
	if _, err := r.nc.Request("bus.evt.test.fence", nil, within); err != nil {
		t.Fatal(err)
	}
	r.settled(t)
}

func ttl(d time.Duration) nats.Header {
	return nats.Header{wire.HeaderTTL: {strconv.FormatInt(d.Milliseconds(), 10)}}
}

func (r *rig) status(t *testing.T, id any) any {
	t.Helper()
	return r.request(t, "bus.api.me.audit.get", body(map[string]any{"id": id}), nil)["status"]
}

func TestI1AMessageToAnUnknownAgentWaitsAndItsSenderHearsOfIt(t *testing.T) {
	r := start(t, plan{})
	told, err := r.nc.SubscribeSync("bus.evt.notice.me.*")
	if err != nil {
		t.Fatal(err)
	}
	r.send(t, "bus.msg.me.agent.late", "kept", ttl(time.Minute))
	r.send(t, "bus.msg.me.agent.never", "lost", ttl(time.Second))
	for range 2 {
		if m, err := told.NextMsg(within); err != nil || m.Subject != "bus.evt.notice.me.unknown_recipient" {
			t.Fatalf("the sender heard %v, %v", m, err)
		}
	}
	r.register(t, "late", nil)
	if got := bodiesOf(r.fetch(t, "late", nil)); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("the agent that registered got %v", got)
	}
	if m, err := told.NextMsg(within); err != nil || m.Subject != "bus.evt.notice.me.dead" {
		t.Fatalf("the sender heard %v, %v", m, err)
	}
	r.captured(t)
	transitions := func() (letters, rows int) {
		return one[int](t, r.db(t), `SELECT count(*) FROM dead_letters`), one[int](t, r.db(t), `SELECT count(*) FROM messages WHERE subject LIKE 'bus.evt.notice.%'`)
	}
	letters, notices := transitions()
	if letters != 1 || notices != 3 {
		t.Errorf("%d dead letters and %d notices, want 1 and 3", letters, notices)
	}
	r = r.restart(t, nil)
	r.register(t, "never", nil)
	if got := r.fetch(t, "never", nil); len(got) != 0 {
		t.Errorf("what had expired was delivered: %v", got)
	}
	r.captured(t)
	if l, n := transitions(); l != letters || n != notices {
		t.Errorf("a restart made %d dead letters and %d notices of %d and %d", l, n, letters, notices)
	}
}

func TestI2ARestartedAgentGetsOnceWhatItHasNotAcked(t *testing.T) {
	r := start(t, plan{})
	r.register(t, "a", nil)
	for i := range 3 {
		r.send(t, "bus.msg.me.agent.a", strconv.Itoa(i), nil)
	}
	r.send(t, "bus.msg.me.agent.a", "expired", ttl(time.Second))
	r.captured(t)
	got := r.fetch(t, "a", nil)
	if len(got) != 4 {
		t.Fatalf("fetched %v", bodiesOf(got))
	}
	if n := r.request(t, "bus.api.a.inbox.ack", body(map[string]any{"ids": []any{got[0]["id"]}}), nil)["acked"]; n != 1.0 {
		t.Errorf("%v acked", n)
	}
	eventually(t, "one has expired", func() bool { return one[int](t, r.db(t), `SELECT count(*) FROM dead_letters`) == 1 })
	if again := r.fetch(t, "a", nil); len(again) != 0 {
		t.Errorf("the same agent got %v again", bodiesOf(again))
	}
	r.register(t, "a", nil)
	if again := bodiesOf(r.fetch(t, "a", nil)); !slices.Equal(again, []string{"1", "2"}) {
		t.Errorf("the restarted agent got %v", again)
	}
	if again := r.fetch(t, "a", nil); len(again) != 0 {
		t.Errorf("and again %v", bodiesOf(again))
	}
}

func TestI3UrgentMessagesComeFirstThenTheOldest(t *testing.T) {
	r := start(t, plan{})
	r.register(t, "a", nil)
	for i := range 100 {
		r.send(t, "bus.msg.me.agent.a", strconv.Itoa(i), nil)
	}
	r.send(t, "bus.msg.me.agent.a", "urgent", nats.Header{wire.HeaderPriority: {"9"}})
	r.captured(t)
	if got := bodiesOf(r.fetch(t, "a", map[string]any{"max_messages": 4})); !slices.Equal(got, []string{"urgent", "0", "1", "2"}) {
		t.Errorf("fetched %v", got)
	}
}

func TestI4TwoFetchesAtOnceShareTheMessages(t *testing.T) {
	r := start(t, plan{})
	r.register(t, "a", nil)
	r.register(t, "b", nil)
	const n = 200
	for i := range n {
		r.send(t, "bus.msg.me.agent.a", strconv.Itoa(i), nil)
	}
	r.captured(t)
	var mu sync.Mutex
	seen := map[string]int{}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for {
				list := bodiesOf(r.fetch(t, "a", map[string]any{"max_messages": 7}))
				if len(list) == 0 {
					return
				}
				mu.Lock()
				for _, b := range list {
					seen[b]++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(seen) != n {
		t.Errorf("%d of %d messages were fetched", len(seen), n)
	}
	for b, times := range seen {
		if times != 1 {
			t.Errorf("%s was given out %d times", b, times)
		}
	}
	foreign := r.rows(t, audit.Filter{To: "agent:a"})[0].ID
	for what, c := range map[string]struct {
		agent string
		ids   []any
	}{"of another": {"b", []any{foreign}}, "unknown": {"a", []any{99999999, "no-such-id"}}} {
		if got := r.request(t, "bus.api."+c.agent+".inbox.ack", body(map[string]any{"ids": c.ids}), nil)["acked"]; got != 0.0 {
			t.Errorf("an ack of a message %s counts %v", what, got)
		}
	}
	if got := r.request(t, "bus.api.a.inbox.ack", body(map[string]any{"ids": []any{foreign, foreign}}), nil)["acked"]; got != 1.0 {
		t.Errorf("an ack twice counts %v", got)
	}
}

func TestI6TenThousandThatExpireTogetherAreEachDeadOnce(t *testing.T) {
	r := start(t, plan{})
	r.register(t, "a", nil)
	const n = 10_000
	for range n {
		r.send(t, "bus.msg.me.agent.a", "x", ttl(time.Second))
	}
	r.captured(t)
	eventually(t, "all have expired", func() bool {
		// Others are served all the while.
		r.request(t, "bus.api.me.message.send", []byte(`{"to":"a","ttl_ms":86400000}`), nil)
		return one[int](t, r.db(t), `SELECT count(*) FROM dead_letters`) >= n
	})
	r.captured(t)
	db := r.db(t)
	for what, query := range map[string]string{
		"dead letters": `SELECT count(*) FROM dead_letters WHERE reason = 'ttl_expired'`,
		"notices":      `SELECT count(DISTINCT json_extract(body, '$.id')) FROM messages WHERE subject = 'bus.evt.notice.me.dead'`,
		"events":       `SELECT count(*) FROM messages WHERE subject = 'bus.evt.notice.me.dead'`,
		"deliveries":   `SELECT count(*) FROM deliveries WHERE outcome = 'expired'`,
	} {
		if got := one[int](t, db, query); got != n {
			t.Errorf("%d %s, want %d", got, what, n)
		}
	}
	if got := one[int](t, db, `SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM deliveries WHERE outcome = 'expired' GROUP BY outcome_id)`); got > 500 {
		t.Errorf("one tick let %d expire", got)
	}
}

func TestI7ARedrivenLetterIsTheOriginalWithAFreshTime(t *testing.T) {
	r := start(t, plan{})
	h := ttl(time.Second)
	h["X-Own"], h[wire.HeaderTraceID] = []string{"kept"}, []string{"the-trace"}
	r.send(t, "bus.msg.me.agent.a", "original", h)
	eventually(t, "it has expired", func() bool { return one[int](t, r.db(t), `SELECT count(*) FROM dead_letters`) == 1 })
	row := r.rows(t, audit.Filter{To: "agent:a"})[0]
	if got := r.status(t, row.ID); got != "expired" {
		t.Errorf("audit.get says %v", got)
	}
	redrive := func() map[string]any {
		return r.request(t, "bus.api.op.inbox.redrive", body(map[string]any{"message_id": row.MessageID, "recipient": "a"}), nil)
	}
	reply := redrive()
	if left := int64(reply["expires_at_ms"].(float64)) - time.Now().UnixMilli(); left < 1 || left > 1000 {
		t.Errorf("the redriven letter has %d ms left, want up to its own second", left)
	}
	if again := redrive(); again["idempotent"] != true {
		t.Errorf("a second redrive: %v", again)
	}
	r.register(t, "a", nil)
	got := r.fetch(t, "a", map[string]any{"auto_ack": true})
	if len(got) != 1 || got[0]["body"] != "original" || fmt.Sprint(got[0]["headers"].(map[string]any)["X-Own"]) != "[kept]" {
		t.Fatalf("fetched %v", got)
	}
	if got := r.status(t, row.ID); got != "acked" {
		t.Errorf("audit.get says %v", got)
	}
	r.captured(t)
	var chain []string
	for _, row := range r.rows(t, audit.Filter{Chain: "the-trace"}) {
		chain = append(chain, row.Subject)
	}
	want := []string{"bus.msg.me.agent.a", "bus.evt.notice.me.unknown_recipient", "bus.evt.notice.me.dead", "bus.evt.notice.me.redriven"}
	if !slices.Equal(chain, want) {
		t.Errorf("the chain is %v, want %v", chain, want)
	}
	if got := one[int](t, r.db(t), `SELECT count(*) FROM dead_letters`); got != 0 {
		t.Errorf("%d dead letters are left", got)
	}
}

func TestAMessageToATopicIsDeliveredToItsSubscribersOrWaitsForTheFirst(t *testing.T) {
	r := start(t, plan{})
	r.register(t, "a", map[string]any{"topics": []string{"news.eu"}})
	r.register(t, "b", map[string]any{"topics": []string{"news.eu", "other"}})
	r.register(t, "deaf", map[string]any{"topics": []string{"news.eu"}, "delivery": "live"})
	sent := r.request(t, "bus.api.me.message.send", []byte(`{"to":"topic:news.eu","payload":"both"}`), nil)
	if sent["fanout_count"] != 2.0 {
		t.Errorf("the message went to %v", sent["fanout_count"])
	}
	waiting := r.request(t, "bus.api.me.message.send", []byte(`{"to":"topic:news.us","payload":"first"}`), nil)
	if waiting["fanout_count"] != 1.0 || r.status(t, waiting["id"]) != "queued" {
		t.Errorf("the message to nobody went to %v, %v", waiting["fanout_count"], r.status(t, waiting["id"]))
	}
	for _, id := range []string{"a", "b"} {
		if got := bodiesOf(r.fetch(t, id, nil)); !slices.Equal(got, []string{`"both"`}) {
			t.Errorf("%s got %v", id, got)
		}
	}
	if got := r.status(t, sent["id"]); got != "delivered" {
		t.Errorf("fetched by both: %v", got)
	}
	r.request(t, "bus.api.a.inbox.ack", body(map[string]any{"ids": []any{sent["message_id"]}}), nil)
	if got := r.status(t, sent["id"]); got != "delivered" {
		t.Errorf("acked by one: %v", got)
	}
	r.request(t, "bus.api.b.inbox.ack", body(map[string]any{"ids": []any{sent["id"]}}), nil)
	if got := r.status(t, sent["id"]); got != "acked" {
		t.Errorf("acked by both: %v", got)
	}
	r.request(t, "bus.api.b.agents.subscribe", []byte(`{"topics":["news.us"]}`), nil)
	r.request(t, "bus.api.a.agents.subscribe", []byte(`{"topics":["news.us"]}`), nil)
	if a, b := r.fetch(t, "a", nil), bodiesOf(r.fetch(t, "b", nil)); len(a) != 0 || !slices.Equal(b, []string{`"first"`}) {
		t.Errorf("a got %v, b got %v", bodiesOf(a), b)
	}
}

func TestAFetchWaitsForTheFirstMessageAndAnEmptyOneLeavesNoRow(t *testing.T) {
	r := start(t, plan{})
	r.register(t, "a", nil)
	r.captured(t)
	rows := func() int {
		return one[int](t, r.db(t), `SELECT count(*) FROM messages WHERE subject LIKE 'bus.cmd.%.inbox.fetch'`)
	}
	begin := time.Now()
	if got := r.fetch(t, "a", map[string]any{"wait_ms": 300}); len(got) != 0 || time.Since(begin) < 300*time.Millisecond {
		t.Errorf("an empty fetch gave %v after %s", got, time.Since(begin))
	}
	if got := r.fetch(t, "a", nil); len(got) != 0 || rows() != 0 {
		t.Errorf("empty fetches gave %v and left %d rows", got, rows())
	}
	// Of many that wait, each message wakes all and goes to one; the others go
	// on waiting.
	const n = 6
	got := make(chan string, n)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for _, b := range bodiesOf(r.fetch(t, "a", map[string]any{"wait_ms": 20_000, "max_messages": 1})) {
				got <- b
			}
		})
	}
	eventually(t, "all wait", func() bool { return r.bridge.Waiting() == n })
	for i := range n {
		r.send(t, "bus.msg.me.agent.a", strconv.Itoa(i), nil)
	}
	all.Wait()
	close(got)
	var list []string
	for b := range got {
		list = append(list, b)
	}
	slices.Sort(list)
	if want := []string{"0", "1", "2", "3", "4", "5"}; !slices.Equal(list, want) {
		t.Errorf("%d that waited got %v", n, list)
	}
	// What is in flight comes to one that waits when its time is over.
	begin = time.Now()
	if again := r.fetch(t, "a", map[string]any{"wait_ms": 20_000, "redeliver_after_ms": 1500}); len(again) == 0 || time.Since(begin) > 15*time.Second {
		t.Errorf("a redelivery gave %v after %s", bodiesOf(again), time.Since(begin))
	}
}

func TestARepeatedFetchGivesTheSameMessages(t *testing.T) {
	r := start(t, plan{})
	r.register(t, "a", nil)
	r.send(t, "bus.msg.me.agent.a", "one", nil)
	r.captured(t)
	fetch := func() any {
		return r.request(t, "bus.api.a.inbox.fetch", []byte(`{}`), withID("fetch-1"))["messages"]
	}
	first := fmt.Sprint(fetch())
	r.send(t, "bus.msg.me.agent.a", "two", nil)
	r.captured(t)
	if again := fmt.Sprint(fetch()); again != first || first == "[]" {
		t.Errorf("the repeat gave %s, the first %s", again, first)
	}
}

func TestARequestThatExpiresIsAnsweredToItsSender(t *testing.T) {
	r := start(t, plan{})
	r.register(t, "me", nil)
	reply := r.request(t, "bus.api.me.message.handoff", []byte(`{"to":"nobody","task":"do","ttl_ms":1000}`), nil)
	var got []map[string]any
	eventually(t, "the sender has a message", func() bool { got = r.fetch(t, "me", nil); return len(got) > 0 })
	if m := got[0]; m["topic"] != "handoff.dead_letter" || m["priority"] != 7.0 || m["from"] != "signalbox" || m["type"] != "system" {
		t.Errorf("the sender got %v", m)
	}
	if id := r.request(t, "bus.api.me.inbox.dead", nil, nil)["dead"].([]any)[0].(map[string]any)["message_id"]; id != reply["handoff_message_id"] {
		t.Errorf("the dead letter is %v, want %v", id, reply["handoff_message_id"])
	}
}

func TestAnAskSaysWhetherItsQuestionWasFetched(t *testing.T) {
	r := start(t, plan{})
	r.register(t, "you", nil)
	asked := make(chan map[string]any, 1)
	go func() {
		asked <- r.request(t, "bus.api.me.message.ask", []byte(`{"to":"you","question":"?","await_response_ms":1500}`), nil)
	}()
	if got := r.fetch(t, "you", map[string]any{"wait_ms": 10_000}); len(got) != 1 {
		t.Fatalf("fetched %v", got)
	}
	if got := <-asked; got["state"] != "delivered" {
		t.Errorf("an ask that was fetched and not answered: %v", got)
	}
	if got := r.request(t, "bus.api.me.message.ask", []byte(`{"to":"you","question":"?"}`), nil); got["state"] != "queued" {
		t.Errorf("an ask that was not fetched: %v", got)
	}
}
