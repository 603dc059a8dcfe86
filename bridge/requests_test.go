package bridge_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
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
