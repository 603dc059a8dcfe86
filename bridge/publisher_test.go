package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/embeddednats"
	"signalbox/wire"
)

// eventOnce checks that the event of counter k is in the log once.
func eventOnce(t *testing.T, r *rig, id string) *audit.Row {
	t.Helper()
	r.settled(t)
	var found []*audit.Row
	for _, row := range r.rows(t, audit.Filter{Subject: "bus.evt.counter.>"}) {
		if row.Header.First("ce-id") == id && row.Header.First("forged") == "" {
			found = append(found, row)
		}
	}
	if len(found) != 1 {
		t.Fatalf("event %s is in the log %d times, want once", id, len(found))
	}
	return found[0]
}

// owed is the one entry of the outbox of a bridge that has stopped.
func owed(t *testing.T, dir string) (id, subject string) {
	t.Helper()
	db := (&rig{plan: plan{dir: dir}}).db(t)
	if err := db.QueryRow(`SELECT id, subject FROM outbox WHERE seen = 0`).Scan(&id, &subject); err != nil {
		t.Fatal(err)
	}
	return id, subject
}

var errInjected = errors.New("injected by a test")

// crashWithEventUnseen leaves a bridge that published its event and ended
// before the fold saw it come back.
func crashWithEventUnseen(t *testing.T, dir string, duplicates time.Duration) {
	t.Helper()
	var armed atomic.Bool
	published := make(chan struct{})
	var once sync.Once
	var begins atomic.Int64
	r, err := build(plan{dir: dir,
		config: func(c *bridge.Config) {
			c.Duplicates = duplicates
			c.OnStep = func(s bridge.Step) error {
				if s == bridge.AfterPublish && armed.Load() {
					once.Do(func() { close(published) })
				}
				return nil
			}
		},
		options: audit.Options{OnStep: func(s audit.Step) error {
			// The command goes through; what comes next waits for the publish.
			if s == audit.BeforeBegin && armed.Load() && begins.Add(1) > 1 {
				select {
				case <-published:
				case <-time.After(within):
				}
				return errInjected
			}
			return nil
		}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.run(); err != nil {
		t.Fatal(err)
	}
	r.settled(t)
	armed.Store(true)
	r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1}), nil)
	select {
	case <-r.done: // by the injected error, once the event was published
	case <-time.After(within):
		t.Error("the bridge goes on")
	}
	if err := r.close(true); !errors.Is(err, errInjected) {
		t.Errorf("the bridge ended with %v", err)
	}
}

// M2: an event that was published and not seen come back is not published again,
// however long the duplicate window has been over.
func TestM2AnEventIsOnceInTheLogWhenTheWindowIsOver(t *testing.T) {
	dir := t.TempDir()
	const window = 100 * time.Millisecond
	crashWithEventUnseen(t, dir, window)
	id, subject := owed(t, dir)
	offline(t, dir, func(b *broker) {
		probe := func() bool {
			ack, err := b.js.PublishMsg(t.Context(), &nats.Msg{Subject: "bus.msg.me.agent.you", Header: withID("probe")})
			return err == nil && !ack.Duplicate
		}
		if !probe() {
			t.Fatal("the probe's id was used before")
		}
		eventually(t, "the duplicate window is over", probe)
		s, err := b.js.Stream(t.Context(), "BUS")
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
			if m, err := s.GetMsg(t.Context(), seq); err == nil && m.Subject == subject {
				found++
			}
		}
		if found != 1 {
			t.Fatalf("the event is in the log %d times before the start, want once", found)
		}
	})
	r := start(t, plan{dir: dir, config: func(c *bridge.Config) { c.Duplicates = window }})
	eventOnce(t, r, id)
}

// crashBeforePublish leaves a bridge that owes an event.
func crashBeforePublish(t *testing.T, dir string) (id, subject string) {
	t.Helper()
	r, err := build(plan{dir: dir, config: func(c *bridge.Config) {
		c.OnStep = func(s bridge.Step) error {
			if s == bridge.BeforePublish {
				return errInjected
			}
			return nil
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.run(); err != nil {
		t.Fatal(err)
	}
	r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1}), nil)
	if err := r.close(true); err != nil {
		t.Fatal(err)
	}
	return owed(t, dir)
}

// M2: somebody else has used up the event's id.
func TestM2AnEventWhoseIDWasBurntIsPublishedUnderAnother(t *testing.T) {
	dir := t.TempDir()
	id, _ := crashBeforePublish(t, dir)
	offline(t, dir, func(b *broker) {
		if _, err := b.js.PublishMsg(t.Context(), &nats.Msg{Subject: "bus.msg.me.agent.you", Data: []byte("mine"), Header: withID(id)}); err != nil {
			t.Fatal(err)
		}
	})
	r := start(t, plan{dir: dir})
	row := eventOnce(t, r, id)
	if row.Header.First(wire.HeaderMsgID) != id+".again" || row.Header.First(wire.HeaderOutboxID) != id {
		t.Errorf("the event came with the headers %v, want it under another id, and its own in %s", row.Header, wire.HeaderOutboxID)
	}
	r = r.restart(t, nil)
	eventOnce(t, r, id)
}

// A message that only claims to be the event does not stand for it.
func TestM2AForgedEventDoesNotTakeTheRealOneOffTheOutbox(t *testing.T) {
	dir := t.TempDir()
	id, subject := crashBeforePublish(t, dir)
	offline(t, dir, func(b *broker) {
		for _, m := range []*nats.Msg{
			{Subject: subject, Data: []byte(`{"value":99}`), Header: nats.Header{wire.HeaderMsgID: {id}, "ce-id": {id}, "forged": {"1"}}},
			{Subject: subject, Data: []byte(`{}`), Header: nats.Header{wire.HeaderOutboxID: {id}, "ce-id": {id}, "forged": {"2"}}},
			{Subject: "bus.msg.signalbox.agent.me", Data: []byte(`{}`), Header: nats.Header{wire.HeaderOutboxID: {id}, "forged": {"3"}}},
		} {
			if _, err := b.js.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
	})
	r := start(t, plan{dir: dir})
	row := eventOnce(t, r, id)
	if row.Subject != subject || row.Header.First("ce-type") != "signalbox.counter.1.v1" {
		t.Errorf("the event is %+v", row)
	}
}

// The publisher may fail as often as it likes, before or after the server has
// taken the event.
func TestM2AnEventIsOnceInTheLogHoweverOftenItsPublishFails(t *testing.T) {
	for _, step := range []bridge.Step{bridge.BeforePublish, bridge.AfterPublish} {
		t.Run(string(step), func(t *testing.T) {
			var failures atomic.Int64
			r := start(t, plan{config: func(c *bridge.Config) {
				c.Duplicates = 100 * time.Millisecond
				c.OnStep = func(s bridge.Step) error {
					if s == step && failures.Add(1) <= 3 {
						return errInjected
					}
					return nil
				}
			}})
			for i := range 10 {
				r.request(t, "bus.api.me.counter.add", body(add{Key: fmt.Sprint("k", i), N: 1}), nil)
			}
			r.settled(t)
			seen := map[string]int{}
			for _, row := range r.rows(t, audit.Filter{Subject: "bus.evt.counter.>"}) {
				seen[row.Header.First("ce-id")]++
			}
			if len(seen) != 10 {
				t.Errorf("%d events, want 10", len(seen))
			}
			for id, n := range seen {
				if n != 1 {
					t.Errorf("event %s is in the log %d times", id, n)
				}
			}
			if failures.Load() == 0 {
				t.Error("nothing failed")
			}
		})
	}
}

// refusedEvent checks that the event of big was given up and the one behind it
// was not.
func refusedEvent(t *testing.T, r *rig) {
	t.Helper()
	eventually(t, "the event is given up", func() bool {
		letters, err := r.reader.DeadLetters(t.Context(), "", 10)
		return err == nil && len(letters) == 1
	})
	r.settled(t)
	letters, err := r.reader.DeadLetters(t.Context(), "bus.evt.counter.big.1", 10)
	if err != nil || len(letters) != 1 || letters[0].Reason != "OUTBOX_REFUSED" || letters[0].LastError == "" {
		t.Fatalf("dead letters: %+v, %v", letters, err)
	}
	command := r.rows(t, audit.Filter{Subject: "bus.cmd.me.counter.add"})[0]
	if letters[0].Cause != command.ID {
		t.Errorf("the dead letter's cause is row %d, want the command's %d", letters[0].Cause, command.ID)
	}
	for subject, want := range map[string]int{"bus.evt.counter.big.1": 0, "bus.evt.counter.small.1": 1, "bus.evt.notice.signalbox.dead": 1,
		"bus.cmd.signalbox.bridge.outbox_refused": 1} {
		if n := len(r.rows(t, audit.Filter{Subject: subject})); n != want {
			t.Errorf("%d rows of %s, want %d", n, subject, want)
		}
	}
}

func TestAnEventThatTheClientCannotSendIsADeadLetterAndBlocksNothing(t *testing.T) {
	s, err := embeddednats.Start(t.Context(), embeddednats.Options{Listen: "127.0.0.1:0", StoreDir: t.TempDir(), MaxPayload: 20_000,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	r := start(t, plan{url: s.ClientURL()})
	for _, a := range []add{{Key: "big", N: 1, Big: 5000}, {Key: "small", N: 1}} {
		if err := r.nc.Publish("bus.cmd.me.counter.add", body(a)); err != nil {
			t.Fatal(err)
		}
	}
	refusedEvent(t, r)
}

func TestAnEventThatTheStreamRefusesIsADeadLetterAndBlocksNothing(t *testing.T) {
	r := start(t, plan{})
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "BUS")
	if err != nil {
		t.Fatal(err)
	}
	config := s.CachedInfo().Config
	config.MaxMsgSize = 8192
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	for _, a := range []add{{Key: "big", N: 1, Big: 5000}, {Key: "small", N: 1}} {
		if got := r.request(t, "bus.api.me.counter.add", body(a), nil)["value"]; got != 1.0 {
			t.Fatalf("the command on %s answers %v", a.Key, got)
		}
	}
	refusedEvent(t, r)
}

// A machine's key may be what no subject can hold.
func TestAnEventWithoutAValidSubjectIsADeadLetterAndBlocksNothing(t *testing.T) {
	r := start(t, plan{})
	for _, key := range []string{"a b", "a\r\nb", "a..b", "tail."} {
		r.request(t, "bus.api.me.counter.add", body(add{Key: key, N: 1}), nil)
	}
	r.request(t, "bus.api.me.counter.add", body(add{Key: "small", N: 1}), nil)
	eventually(t, "the event behind them is out", func() bool { return len(r.rows(t, audit.Filter{Subject: "bus.evt.counter.small.1"})) == 1 })
	r.settled(t)
}
