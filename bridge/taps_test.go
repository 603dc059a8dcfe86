package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/wire"
)

// orders makes a stream of another application.
func orders(t *testing.T, dir string, change func(*jetstream.StreamConfig)) {
	t.Helper()
	offline(t, dir, func(b *broker) {
		c := jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}
		if change != nil {
			change(&c)
		}
		if _, err := b.js.CreateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		say(t, b.nc, "orders.new", 10, 0)
	})
}

func tapOrders(c *bridge.Config) { c.Taps = []bridge.Tap{{Stream: "ORDERS"}} }

// tapped waits until the register has read a tapped stream up to seq.
func tapped(t *testing.T, r *rig, stream string, seq uint64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s is read up to %d", stream, seq), func() bool { return r.cursor(t, stream).Seq == seq })
	r.settled(t)
}

func TestM8AHoleInATappedStreamIsAGapInItsPlace(t *testing.T) {
	dir := t.TempDir()
	orders(t, dir, nil)
	r := start(t, plan{dir: dir, config: tapOrders})
	tapped(t, r, "ORDERS", 10)
	if n := len(r.gaps(t)); n != 0 {
		t.Errorf("%d gaps in a whole stream", n)
	}
	r = r.restart(t, func() {
		offline(t, dir, func(b *broker) {
			say(t, b.nc, "orders.new", 10, 0)
			s, err := b.js.Stream(t.Context(), "ORDERS")
			if err != nil {
				t.Fatal(err)
			}
			for seq := uint64(13); seq <= 15; seq++ {
				if err := s.DeleteMsg(t.Context(), seq); err != nil {
					t.Fatal(err)
				}
			}
		})
	})
	tapped(t, r, "ORDERS", 20)
	complete(t, r, "ORDERS")
	gaps := r.gaps(t)
	if len(gaps) != 1 || gaps[0].Stream != "ORDERS" || gaps[0].From != 13 || gaps[0].To != 15 || gaps[0].Reason != audit.Missing {
		t.Fatalf("gaps: %+v, want 13 to 15 missing", gaps)
	}
	after, err := r.reader.Row(t.Context(), gaps[0].Cause)
	if err != nil || after.Seq != 16 || after.Kind != wire.Tap || after.Subject != "orders.new" {
		t.Errorf("the row after the gap is %+v, %v", after, err)
	}
	if n := r.events(t, "gap"); n != 1 {
		t.Errorf("%d events of the gap, want 1", n)
	}
}

// A stream that keeps the last message of each subject has holes by nature.
// Many of them behind the cursor are no reason to doubt the log.
func TestATappedStreamWithManyHolesBehindTheCursorGoesOn(t *testing.T) {
	dir := t.TempDir()
	orders(t, dir, func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 })
	r := start(t, plan{dir: dir, config: tapOrders})
	say(t, r.nc, "orders.first", 1, 0)
	say(t, r.nc, "orders.busy", 400, 0)
	tapped(t, r, "ORDERS", 411)
	rows := len(r.rows(t, audit.Filter{Kinds: []wire.Kind{wire.Tap}}))
	r = r.restart(t, func() { offline(t, dir, func(b *broker) { say(t, b.nc, "orders.busy", 1, 0) }) })
	tapped(t, r, "ORDERS", 412)
	if n := one[int](t, r.db(t), `SELECT count(*) FROM incarnations WHERE stream = 'ORDERS'`); n != 1 {
		t.Errorf("%d incarnations of a stream that only went on, want 1", n)
	}
	if n := len(r.rows(t, audit.Filter{Kinds: []wire.Kind{wire.Tap}})); n != rows+1 {
		t.Errorf("%d rows after one more message, want %d", n, rows+1)
	}
}

func TestM7ATappedStreamThatWasMadeAnewIsNoticedByItsContent(t *testing.T) {
	dir := t.TempDir()
	orders(t, dir, nil)
	r := start(t, plan{dir: dir, config: tapOrders})
	tapped(t, r, "ORDERS", 10)
	before := leaves(t, r)
	r = r.restart(t, func() {
		offline(t, dir, func(b *broker) {
			if err := b.js.DeleteStream(t.Context(), "ORDERS"); err != nil {
				t.Fatal(err)
			}
		})
		orders(t, dir, nil)
		offline(t, dir, func(b *broker) { say(t, b.nc, "orders.new", 5, 0) })
	})
	tapped(t, r, "ORDERS", 15)
	untouched(t, r, before)
	complete(t, r, "ORDERS")
	if n := one[int](t, r.db(t), `SELECT count(*) FROM incarnations WHERE stream = 'ORDERS' AND reason = 'log_went_back' AND first_seq = 1`); n != 1 {
		t.Errorf("%d incarnations from 1 on, want 1", n)
	}
}

func TestATapDisturbsNoRequestAndRegistersIt(t *testing.T) {
	r := start(t, plan{config: func(c *bridge.Config) { c.Taps = []bridge.Tap{{Subject: "svc.>"}} }})
	sub, err := r.nc.Subscribe("svc.echo", func(m *nats.Msg) { _ = m.Respond(append([]byte("echo "), m.Data...)) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	inbox := r.nc.NewInbox()
	replies, err := r.nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := r.nc.PublishRequest("svc.echo", inbox, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		m, err := replies.NextMsg(within)
		if err != nil || string(m.Data) != fmt.Sprint("echo ", i) {
			t.Fatalf("reply %d is %+v, %v", i, m, err)
		}
	}
	tapped(t, r, "BUS_TAP", 10)
	if m, err := replies.NextMsg(200 * time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
		t.Errorf("one reply too many: %+v, %v", m, err)
	}
	rows := r.rows(t, audit.Filter{Kinds: []wire.Kind{wire.Tap}})
	if len(rows) != 10 || rows[3].Subject != "svc.echo" || string(rows[3].Body) != "3" || rows[3].From != "" {
		t.Errorf("the taps: %d rows", len(rows))
	}
	complete(t, r, "BUS_TAP")
}

// refused runs a bridge that must not start.
func refused(t *testing.T, p plan, want error) {
	t.Helper()
	r, err := build(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.run(); !errors.Is(err, want) {
		t.Errorf("the start says %v, want %v", err, want)
	}
	_ = r.close(true)
}

// configOf is a stream's configuration and state.
func configOf(t *testing.T, dir, stream string) (c jetstream.StreamConfig, last uint64) {
	t.Helper()
	offline(t, dir, func(b *broker) {
		s, err := b.js.Stream(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		c, last = s.CachedInfo().Config, s.CachedInfo().State.LastSeq
	})
	return c, last
}

func TestAStreamThatCannotBeReadIsRefusedAndUntouched(t *testing.T) {
	t.Run("work queue", func(t *testing.T) {
		dir := t.TempDir()
		orders(t, dir, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
		before, last := configOf(t, dir, "ORDERS")
		refused(t, plan{dir: dir, config: tapOrders}, bridge.ErrRetention)
		after, lastAfter := configOf(t, dir, "ORDERS")
		if !reflect.DeepEqual(before, after) || last != lastAfter {
			t.Errorf("the stream was %+v and is %+v", before, after)
		}
	})
	t.Run("not ours", func(t *testing.T) {
		dir := t.TempDir()
		offline(t, dir, func(b *broker) {
			if _, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "BUS", Subjects: []string{"bus.>"}}); err != nil {
				t.Fatal(err)
			}
			say(t, b.nc, "bus.x", 3, 0)
		})
		before, last := configOf(t, dir, "BUS")
		refused(t, plan{dir: dir}, bridge.ErrForeignStream)
		after, lastAfter := configOf(t, dir, "BUS")
		if !reflect.DeepEqual(before, after) || last != lastAfter {
			t.Errorf("the stream was %+v and is %+v", before, after)
		}
	})
	t.Run("of another register", func(t *testing.T) {
		r := start(t, plan{})
		for i := range 5 {
			r.request(t, "bus.api.me.counter.add", body(add{Key: fmt.Sprint("k", i), N: 1}), withID(fmt.Sprint(i)))
		}
		r.settled(t)
		r.stop(t)
		for _, name := range []string{"signalbox.db", "index.db"} {
			files, err := filepath.Glob(filepath.Join(r.dir, name+"*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				if err := os.Remove(f); err != nil {
					t.Fatal(err)
				}
			}
		}
		before, last := configOf(t, r.dir, "BUS")
		refused(t, r.plan, bridge.ErrOtherRegister)
		after, lastAfter := configOf(t, r.dir, "BUS")
		if !reflect.DeepEqual(before, after) || last != lastAfter {
			t.Errorf("the stream was %+v and is %+v", before, after)
		}
		p := r.plan
		p.config = func(c *bridge.Config) { c.NewRegister = true }
		r = start(t, p)
		r.settled(t)
		complete(t, r, "BUS")
		if n := one[int](t, r.db(t), `SELECT count(*) FROM counter WHERE value = 1`); n != 5 {
			t.Errorf("%d counters are back, want 5", n)
		}
		if n := len(r.rows(t, audit.Filter{Subject: "bus.evt.counter.>"})); n != 5 {
			t.Errorf("%d events, want the same 5", n)
		}
		// From now on it is the register of the stream.
		p.config = nil
		r.stop(t)
		r = start(t, p)
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		js, err := bridge.JetStream(r.nc)
		if err != nil {
			t.Fatal(err)
		}
		if owner, err := bridge.Claimed(ctx, js, "BUS"); err != nil || owner != one[string](t, r.db(t), `SELECT register_id FROM bridge_state`) {
			t.Errorf("the stream is claimed by %s, %v", owner, err)
		}
	})
}

// What happens to a stream of others keeps nothing of ours from being done.
func TestADeletedTappedStreamDoesNotStopTheBus(t *testing.T) {
	dir := t.TempDir()
	orders(t, dir, nil)
	r := start(t, plan{dir: dir, config: tapOrders})
	tapped(t, r, "ORDERS", 10)
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "ORDERS"); err != nil {
		t.Fatal(err)
	}
	red := func() bool { _, red := r.bridge.Health().Red()[bridge.PartCheck]; return red }
	eventually(t, "health says so", red)
	if got := r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1}), nil)["value"]; got != 1.0 {
		t.Errorf("a command answers %v meanwhile", got)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	say(t, r.nc, "orders.new", 3, 0)
	tapped(t, r, "ORDERS", 3)
	eventually(t, "health is well again", func() bool { return !red() })
	if n := one[int](t, r.db(t), `SELECT count(*) FROM incarnations WHERE stream = 'ORDERS' AND reason = 'log_went_back'`); n != 1 {
		t.Errorf("%d new incarnations of the tap, want 1", n)
	}
}
