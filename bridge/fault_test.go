package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/wire"
)

// load publishes n commands, each to a counter of its own and acknowledged by
// the server; every third is a request instead.
func load(t *testing.T, url, prefix string, n int) {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		id := fmt.Sprintf("%s-%d", prefix, i)
		err := persist(t.Context(), func(ctx context.Context) error {
			m := &nats.Msg{Subject: "bus.cmd.load.counter.add", Data: body(add{Key: id, N: 1}), Header: nats.Header{wire.HeaderMsgID: {id}}}
			if i%3 == 0 {
				m.Subject = "bus.api.load.counter.add"
				reply, err := nc.RequestMsgWithContext(ctx, m)
				if err == nil && reply.Header.Get(wire.HeaderErrorCode) != "" {
					err = errors.New(reply.Header.Get(wire.HeaderError))
				}
				return err
			}
			_, err := js.PublishMsg(ctx, m)
			return err
		})
		if err != nil {
			t.Fatalf("command %s: %v", id, err)
		}
	}
}

// whole checks what must hold after any fault: of the commands acknowledged
// under the prefix each had its effect once, every event is in the log once,
// and the rows and places have no hole.
func whole(t *testing.T, r *rig, prefix string, n int) {
	t.Helper()
	r.settled(t)
	db := r.db(t)
	if got := one[int](t, db, `SELECT count(*) FROM counter WHERE value = 1 AND key LIKE ?`, prefix+"-%"); got != n {
		t.Errorf("%d of %d commands had their effect exactly once", got, n)
	}
	if got := one[int](t, db, `SELECT count(*) FROM counter WHERE value <> 1`); got != 0 {
		t.Errorf("%d counters are not 1", got)
	}
	if a, b := one[int](t, db, `SELECT count(*) FROM transitions`), one[int](t, db, `SELECT count(*) FROM messages WHERE kind = 'evt' AND subject LIKE 'bus.evt.counter.%'`); a != b {
		t.Errorf("%d transitions, but %d events in the register", a, b)
	}
	if got := one[int](t, db, `SELECT count(*) FROM (SELECT message_id FROM messages WHERE kind = 'evt' GROUP BY message_id HAVING count(*) > 1)`); got != 0 {
		t.Errorf("%d events are in the log more than once", got)
	}
	if got := one[int](t, db, `SELECT max(id) - count(*) FROM messages`); got != 0 {
		t.Errorf("%d ids are missing", got)
	}
	if got := one[int](t, db, `SELECT count(*) FROM (SELECT seq - lag(seq) OVER (PARTITION BY incarnation ORDER BY id) d FROM messages) WHERE d <> 1`); got != 0 {
		t.Errorf("%d places are out of order", got)
	}
	if got := one[int](t, db, `SELECT count(*) FROM gaps`); got != 0 {
		t.Errorf("%d gaps", got)
	}
}

// faulty fails the nth time and the two after it that a step comes.
type faulty struct {
	step  string
	nth   int64
	err   error
	count atomic.Int64
	hits  atomic.Int64
}

func (f *faulty) at(step string) error {
	if step != f.step {
		return nil
	}
	if n := f.count.Add(1); n >= f.nth && n < f.nth+3 {
		f.hits.Add(1)
		return f.err
	}
	return nil
}

func (f *faulty) plan(p plan) plan {
	p.options = audit.Options{OnStep: func(s audit.Step) error { return f.at(string(s)) }}
	p.config = func(c *bridge.Config) { c.OnStep = func(s bridge.Step) error { return f.at(string(s)) } }
	return p
}

var registerSteps = []audit.Step{audit.BeforeBegin, audit.BeforeAppend, audit.AfterAppend, audit.BeforeCursor, audit.BeforeCommit, audit.AfterCommit}

// A step that fails, whether or not it happened, loses nothing and doubles
// nothing: the bridge tries again, or stops and the next start goes on.
func TestEveryDurableStepMayFailBothWays(t *testing.T) {
	const n = 60
	for _, step := range registerSteps {
		for _, kind := range []string{"again", "stop"} {
			t.Run(strings.ReplaceAll(string(step), " ", "-")+"-"+kind, func(t *testing.T) {
				f := &faulty{step: string(step), nth: 7, err: fmt.Errorf("injected: %w", audit.ErrRetry)}
				if kind == "stop" {
					f.err = errors.New("injected")
				}
				r := start(t, f.plan(plan{}))
				if kind == "again" && step != audit.AfterCommit {
					load(t, r.server.ClientURL(), "x", n)
					whole(t, r, "x", n)
				} else {
					dir := r.dir
					publish(t, r, "x", n)
					for running := true; running; { // until the step has come often enough
						select {
						case <-r.done:
							running = false
						default:
							publish(t, r, "x", n) // repeats, which the log drops
							if err := r.nc.Publish("bus.msg.load.agent.x", nil); err != nil {
								t.Fatal(err)
							}
						}
					}
					if r.err == nil || step == audit.AfterCommit && !errors.Is(r.err, audit.ErrFatal) {
						t.Errorf("the bridge ended with %v", r.err)
					}
					_ = r.close(true) // with the error above
					r.bridge = nil
					r = start(t, plan{dir: dir})
					whole(t, r, "x", n)
				}
				if f.hits.Load() == 0 {
					t.Error("the fault was never injected")
				}
			})
		}
	}
}

// publish puts n commands into the log without the bridge's help.
func publish(t *testing.T, r *rig, prefix string, n int) {
	t.Helper()
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		id := fmt.Sprintf("%s-%d", prefix, i)
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "bus.cmd.load.counter.add", Data: body(add{Key: id, N: 1}),
			Header: nats.Header{wire.HeaderMsgID: {id}}}); err != nil {
			t.Fatal(err)
		}
	}
}

// What comes after the commit may be lost as well: replies, and the publish of
// the outbox, before and after it happened.
func TestEveryStepAfterTheCommitMayFail(t *testing.T) {
	const n = 60
	for _, step := range []bridge.Step{bridge.BeforeReply, bridge.BeforePublish, bridge.AfterPublish, bridge.BeforeAppend, bridge.AfterAppendLog} {
		t.Run(strings.ReplaceAll(string(step), " ", "-"), func(t *testing.T) {
			f := &faulty{step: string(step), nth: 4, err: errors.New("injected")}
			r := start(t, f.plan(plan{}))
			load(t, r.server.ClientURL(), "x", n)
			whole(t, r, "x", n)
			if f.hits.Load() == 0 {
				t.Error("the fault was never injected")
			}
		})
	}
}
