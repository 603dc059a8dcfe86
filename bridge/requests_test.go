package bridge_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/wire"
)

// withID is the header of a request that may be repeated.
func withID(id string) nats.Header { return nats.Header{wire.HeaderMsgID: {id}} }

// value reads a counter.
func value(t *testing.T, r *rig, key string) any {
	t.Helper()
	return r.request(t, "bus.api.me.counter.get", body(map[string]string{"key": key}), nil)["value"]
}

// change writes to the register of a bridge that has stopped.
func change(t *testing.T, dir, query string, args ...any) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(dir, "signalbox.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	res, err := db.Exec(query, args...)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		t.Fatalf("%s changed nothing (%v)", query, err)
	}
}

func TestM1ARepeatedRequestHasOneEffectAndTheFirstOutcome(t *testing.T) {
	r := start(t, plan{})
	ask := func(n int64) map[string]any {
		return r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: n}), withID("one"))
	}
	check := func(when string, rows int) {
		t.Helper()
		if got := ask(3); got["value"] != 3.0 {
			t.Errorf("%s: the answer is %v, want the first outcome", when, got)
		}
		if got := code(ask(4)); got != "CONFLICT" {
			t.Errorf("%s: another body has the code %q, want CONFLICT", when, got)
		}
		if got := ask(3); got["value"] != 3.0 {
			t.Errorf("%s: after a conflict the answer is %v, want the first outcome", when, got)
		}
		if got := value(t, r, "k"); got != 3.0 {
			t.Errorf("%s: the counter is %v, want 3: one effect", when, got)
		}
		r.settled(t)
		if n := len(r.rows(t, audit.Filter{Subject: "bus.cmd.me.counter.add"})); n != rows {
			t.Errorf("%s: %d rows, want %d: every repeat is one", when, n, rows)
		}
		if n := len(r.rows(t, audit.Filter{Subject: "bus.evt.counter.>"})); n != 1 {
			t.Errorf("%s: %d events, want 1", when, n)
		}
	}
	check("at once", 3)
	r = r.restart(t, nil)
	check("after a restart", 6)
	r = r.restart(t, func() {
		if err := os.RemoveAll(filepath.Join(r.dir, "jetstream")); err != nil {
			t.Fatal(err)
		}
	})
	check("after the log was lost", 9)
	r = r.restart(t, func() {
		change(t, r.dir, `UPDATE outcomes SET at_ms = at_ms - ?`, (24*time.Hour - time.Minute).Milliseconds())
	})
	check("a day later, but for a minute", 12)
	r = r.restart(t, func() { change(t, r.dir, `UPDATE outcomes SET at_ms = at_ms - ?`, time.Minute.Milliseconds()) })
	if got := ask(4); got["value"] != 7.0 {
		t.Errorf("after a day of bus time the answer is %v, want a second effect", got)
	}
}

func TestM1ARefusalIsAnOutcomeToo(t *testing.T) {
	r := start(t, plan{})
	ask := func(m string) (code, status, text string) {
		reply, err := r.nc.RequestMsg(&nats.Msg{Subject: "bus.api.me.counter.add", Data: []byte(m), Header: withID("one")}, within)
		if err != nil {
			t.Fatal(err)
		}
		var e struct{ Error wire.Error }
		if err := json.Unmarshal(reply.Data, &e); err != nil {
			t.Fatal(err)
		}
		return string(e.Error.Code), reply.Header.Get(wire.HeaderErrorCode), reply.Header.Get(wire.HeaderError)
	}
	for range 2 {
		if code, status, text := ask(`{"kee":1}`); code != "BODY_INVALID" || status != "400" || !strings.Contains(text, "kee") {
			t.Errorf("the refusal is %s %s %q", code, status, text)
		}
	}
	if code, status, _ := ask(`{"key":"k","n":1}`); code != "CONFLICT" || status != "409" {
		t.Errorf("the same id with another body is %s %s, want CONFLICT 409", code, status)
	}
	if got := value(t, r, "k"); got != 0.0 {
		t.Errorf("the counter is %v, want 0", got)
	}
	if n := one[int](t, r.db(t), `SELECT count(*) FROM dead_letters`); n != 0 {
		t.Errorf("%d dead letters: a sender that waits is told by the reply", n)
	}
}

// flight sends requests at the same time and collects the replies in their
// order.
func flight(t *testing.T, r *rig, messages []*nats.Msg) []map[string]any {
	t.Helper()
	replies := make([]map[string]any, len(messages))
	var all sync.WaitGroup
	for i, m := range messages {
		all.Go(func() {
			reply, err := r.nc.RequestMsg(m, within)
			if err == nil {
				err = json.Unmarshal(reply.Data, &replies[i])
			}
			if err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		})
	}
	all.Wait()
	return replies
}

func TestM1FiftyThatWaitForOneIDAllGetTheFirstOutcome(t *testing.T) {
	r := start(t, plan{})
	const n = 50
	var messages []*nats.Msg
	for range n {
		messages = append(messages, &nats.Msg{Subject: "bus.api.me.counter.add", Data: body(add{Key: "k", N: 2}), Header: withID("one")})
	}
	for i, reply := range flight(t, r, messages) {
		if reply["value"] != 2.0 {
			t.Errorf("waiter %d got %v, want 2", i, reply)
		}
	}
	r.settled(t)
	if got := value(t, r, "k"); got != 2.0 {
		t.Errorf("the counter is %v, want 2", got)
	}
	if n := len(r.rows(t, audit.Filter{Subject: "bus.cmd.me.>"})); n != 50 {
		t.Errorf("%d rows, want 50", n)
	}
}

// Two requests with one id and different bodies, in flight at the same time:
// each sender is told what became of its own.
func TestM1AConflictInFlightIsToldToItsOwnSender(t *testing.T) {
	r := start(t, plan{})
	for round := range 30 {
		var messages []*nats.Msg
		for i := range 4 {
			messages = append(messages, &nats.Msg{Subject: "bus.api.me.counter.add",
				Data: body(add{Key: fmt.Sprintf("k%d-%d", round, i), N: int64(i) + 1}), Header: withID(fmt.Sprint("round-", round))})
		}
		done := 0
		for i, reply := range flight(t, r, messages) {
			switch {
			case reply["value"] == float64(i+1):
				done++
			case code(reply) != "CONFLICT":
				t.Fatalf("round %d: the sender of %d was told %v", round, i+1, reply)
			}
		}
		if done != 1 {
			t.Fatalf("round %d: %d senders were told of success, want 1", round, done)
		}
	}
}

// A request that the log does not take says nothing about another one with the
// same id that it took.
func TestM1AFailedRepeatDoesNotAnswerForTheFirst(t *testing.T) {
	r := start(t, plan{})
	for round := range 20 {
		id := fmt.Sprint("round-", round)
		command := body(add{Key: id, N: 1})
		first := &nats.Msg{Subject: "bus.api.me.counter.add", Data: command, Header: withID(id)}
		// As large as the server takes; the command that carries it is larger.
		room := int(r.nc.MaxPayload()) - len("NATS/1.0\r\n"+"Nats-Msg-Id: "+id+"\r\n"+"Padding: \r\n"+"\r\n") - len(command)
		repeat := &nats.Msg{Subject: first.Subject, Data: command, Header: withID(id)}
		repeat.Header.Set("Padding", strings.Repeat("x", room))
		replies := flight(t, r, []*nats.Msg{first, repeat})
		if got := replies[0]; got["value"] != 1.0 {
			t.Fatalf("round %d: the counter is %v, its sender was told %v", round, value(t, r, id), got)
		}
		if got := code(replies[1]); got != "BODY_TOO_LARGE" && replies[1]["value"] != 1.0 {
			t.Fatalf("round %d: the repeat that is too large was told %v", round, replies[1])
		}
	}
}

func TestM1ARequestIDThatCannotBeKeptIsRefused(t *testing.T) {
	r := start(t, plan{})
	for _, id := range []string{"~mine", "~", "with space", strings.Repeat("x", 129), "ü"} {
		if got := code(r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1}), withID(id))); got != "REQUEST_ID_INVALID" {
			t.Errorf("id %.20q has the code %q, want REQUEST_ID_INVALID", id, got)
		}
	}
	if got := value(t, r, "k"); got != 0.0 {
		t.Errorf("the counter is %v, want 0", got)
	}
	if got := r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1}), withID(strings.Repeat("x", 128))); got["value"] != 1.0 {
		t.Errorf("an id of 128 characters: %v", got)
	}
}

func TestM1OneIDOfTwoSendersIsTwoRequests(t *testing.T) {
	r := start(t, plan{})
	for i, from := range []string{"me", "you"} {
		if got := r.request(t, "bus.api."+from+".counter.add", body(add{Key: "k", N: 1}), withID("one"))["value"]; got != float64(i+1) {
			t.Errorf("%s got %v, want %d", from, got, i+1)
		}
	}
}

func TestM1APlainPublishRepeatedWithinTheWindowIsOneRow(t *testing.T) {
	r := start(t, plan{})
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		ack, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "bus.cmd.me.counter.add", Data: body(add{Key: "k", N: 1}), Header: withID("one")})
		if err != nil || ack.Duplicate != (i > 0) {
			t.Fatalf("publish %d: %+v, %v", i, ack, err)
		}
	}
	r.settled(t)
	if n := len(r.rows(t, audit.Filter{Subject: "bus.cmd.me.>"})); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

// fields are the names in a reply.
func fields(v map[string]any) string {
	return strings.Join(slices.Sorted(maps.Keys(v)), " ")
}

func TestMessageRepliesHaveTheFieldsOfTheContract(t *testing.T) {
	r := start(t, plan{})
	for _, c := range []struct{ verb, body, want string }{
		{"send", `{"to":"you"}`, "expires_at_ms fanout_count id leaf message_id seq"},
		{"send", `{"to":"topic:a.b","payload":[1]}`, "expires_at_ms fanout_count id leaf message_id seq"},
		{"send", `{"to":"role:p/k/s","priority":9}`, "expires_at_ms fanout_count id leaf message_id role seq"},
		{"ask", `{"to":"you","question":"how?"}`, "correlation_id request_message_id state"},
		{"handoff", `{"to":"you","task":"do"}`, "assigned_to handoff_message_id state"},
	} {
		reply := r.request(t, "bus.api.me.message."+c.verb, []byte(c.body), nil)
		if got := fields(reply); got != c.want {
			t.Errorf("message.%s %s has the fields %q, want %q: %v", c.verb, c.body, got, c.want, reply)
		}
	}
	reply := r.request(t, "bus.api.me.message.send", []byte(`{"to":"role:p/k/s","payload":{"a": "<b>"},"ttl_ms":1,"correlation_id":"c"}`), nil)
	row, err := r.reader.Row(t.Context(), int64(reply["id"].(float64)))
	if err != nil {
		t.Fatal(err)
	}
	if row.Subject != "bus.msg.me.role.p.k.s" || row.To != "role:p/k/s" || string(row.Body) != `{"a": "<b>"}` || row.CorrelationID != "c" ||
		row.MessageID != reply["message_id"] || float64(row.Seq) != reply["seq"] || fmt.Sprintf("%x", row.Leaf) != reply["leaf"] ||
		float64(row.ExpiresAtMS) != reply["expires_at_ms"] || row.ExpiresAtMS != row.At().UnixMilli()+1000 || reply["role"] != "p/k/s" {
		t.Errorf("the row is %+v\nthe reply %v", row, reply)
	}
}

func TestAPayloadIsSentByteForByte(t *testing.T) {
	r := start(t, plan{})
	for _, body := range []string{
		`{"to":"you","payload":{ "a" : "<b>" }}`,
		`{"schema_version":1,"to":"you","payload":{ "a" : "<b>" }}`,
		`{"to":"you","payload":{ "a" : "<b>" },"schema_version":"1"}`,
	} {
		reply := r.request(t, "bus.api.me.message.send", []byte(body), nil)
		row, err := r.reader.Row(t.Context(), int64(reply["id"].(float64)))
		if err != nil {
			t.Fatal(err)
		}
		if want := `{ "a" : "<b>" }`; string(row.Body) != want {
			t.Errorf("%s was sent as %s, want %s", body, row.Body, want)
		}
	}
}

func TestI5AnAskIsAnsweredByAResponseBeforeOrDuringItsWait(t *testing.T) {
	r := start(t, plan{})
	respond := func(correlation, text string) {
		t.Helper()
		if err := r.nc.PublishMsg(&nats.Msg{Subject: "bus.msg.you.agent.me", Data: []byte(text),
			Header: nats.Header{wire.HeaderCorrelationID: {correlation}}}); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(correlation string, wait int, id string) map[string]any {
		var h nats.Header
		if id != "" {
			h = withID(id)
		}
		return r.request(t, "bus.api.me.message.ask", body(map[string]any{"to": "you", "question": "how?", "correlation_id": correlation,
			"await_response_ms": wait}), h)
	}
	answered := func(what string, reply map[string]any, text string) {
		t.Helper()
		response, _ := reply["response"].(map[string]any)
		if reply["state"] != "answered" || response["body"] != text || response["from"] != "you" {
			t.Errorf("%s: %v", what, reply)
		}
	}

	respond("before", "early")
	r.settled(t)
	answered("a response before the wait", ask("before", 0, ""), "early")
	answered("a response before the wait, waiting", ask("before", 20_000, ""), "early")

	sub, err := r.nc.SubscribeSync("bus.msg.me.agent.you")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	go func() {
		if _, err := sub.NextMsg(within); err == nil {
			_ = r.nc.PublishMsg(&nats.Msg{Subject: "bus.msg.you.agent.me", Data: []byte("at once"),
				Header: nats.Header{wire.HeaderCorrelationID: {"during"}}})
		}
	}()
	answered("a response during the wait", ask("during", 25_000, ""), "at once")

	begin := time.Now()
	if got := ask("none", 200, "again"); got["state"] != "queued" || got["correlation_id"] != "none" || got["response"] != nil {
		t.Errorf("no response: %v", got)
	}
	if d := time.Since(begin); d < 200*time.Millisecond || d > 5*time.Second {
		t.Errorf("the wait of 200 ms took %s", d)
	}
	respond("none", "late")
	r.settled(t)
	answered("the same ask repeated after the response", ask("none", 200, "again"), "late")

	// What is no response to it must not answer it.
	for _, subject := range []string{"bus.msg.you.agent.other", "bus.msg.you.topic.me"} {
		if err := r.nc.PublishMsg(&nats.Msg{Subject: subject, Header: nats.Header{wire.HeaderCorrelationID: {"stray"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := ask("stray", 100, ""); got["state"] != "queued" {
		t.Errorf("an ask was answered by a message to somebody else: %v", got)
	}
}

func TestLowDiskRefusesRequestsAndKeepsCapturing(t *testing.T) {
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk")
	if err := os.Symlink("/proc", disk); err != nil { // a file system without any free space
		t.Fatal(err)
	}
	r := start(t, plan{dir: dir, config: func(c *bridge.Config) { c.DataDir, c.MinFree = disk, 1 }})
	eventually(t, "the disk is red", func() bool { return r.bridge.Health().Red()[bridge.PartDisk] != "" })
	if got := code(r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1}), nil)); got != "DISK_LOW" {
		t.Errorf("a request has the code %q, want DISK_LOW", got)
	}
	if got := value(t, r, "k"); got != 0.0 {
		t.Errorf("a query answers %v", got)
	}
	say(t, r.nc, "bus.msg.me.agent.you", 3, 0)
	r.settled(t)
	if n := len(r.rows(t, audit.Filter{Subject: "bus.msg.me.>"})); n != 3 {
		t.Errorf("%d plain messages are registered, want 3", n)
	}
	if n := r.events(t, "disk"); n != 1 {
		t.Errorf("%d events of the disk, want 1", n)
	}
	if err := errors.Join(os.Remove(disk), os.Symlink(dir, disk)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the disk is green", func() bool { return r.bridge.Health().Red()[bridge.PartDisk] == "" })
	if got := r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1}), nil)["value"]; got != 1.0 {
		t.Errorf("with space again a request answers %v", got)
	}
	r.settled(t)
	if n := r.events(t, "disk"); n != 2 {
		t.Errorf("%d events of the disk, want 2", n)
	}
}
