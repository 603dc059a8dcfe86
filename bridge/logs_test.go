package bridge_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/embeddednats"
)

// broker is a NATS server on a store directory, without a bridge.
type broker struct {
	server *embeddednats.Server
	nc     *nats.Conn
	js     jetstream.JetStream
}

// serveStore starts a broker; listen "" picks a port.
func serveStore(t *testing.T, store, listen string) *broker {
	t.Helper()
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	s, err := embeddednats.Start(t.Context(), embeddednats.Options{Listen: listen, StoreDir: store,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{server: s}
	if b.nc, err = s.Conn(); err != nil {
		t.Fatal(err)
	}
	if b.js, err = jetstream.New(b.nc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.end(t) })
	return b
}

func (b *broker) end(t *testing.T) {
	t.Helper()
	b.nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := b.server.Shutdown(ctx); err != nil {
		t.Errorf("stop the server: %v", err)
	}
}

// address is what a broker listens on, for its successor.
func (b *broker) address(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(b.server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// say publishes n messages of size bytes and waits for their PubAcks.
func say(t *testing.T, nc *nats.Conn, subject string, n, size int) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		body := fmt.Appendf(nil, "%s %d ", subject, i)
		body = append(body, bytes.Repeat([]byte("x"), max(0, size-len(body)))...)
		if _, err := js.Publish(t.Context(), subject, body); err != nil {
			t.Fatal(err)
		}
	}
}

// offline publishes while no bridge runs.
func offline(t *testing.T, store string, do func(*broker)) {
	t.Helper()
	b := serveStore(t, store, "")
	do(b)
	b.end(t)
}

// putBack replaces a store by a copy of it.
func putBack(t *testing.T, dir, from string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(dir, "jetstream")); err != nil {
		t.Fatal(err)
	}
	keep(t, filepath.Join(from, "jetstream"), filepath.Join(dir, "jetstream"))
}

// keep copies a directory.
func keep(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// leaves are the rows of the register by id.
func leaves(t *testing.T, r *rig) map[int64][32]byte {
	t.Helper()
	all := map[int64][32]byte{}
	for _, row := range r.rows(t, audit.Filter{}) {
		all[row.ID] = row.Leaf
	}
	return all
}

// untouched checks that rows are what they were.
func untouched(t *testing.T, r *rig, before map[int64][32]byte) {
	t.Helper()
	now := leaves(t, r)
	for id, leaf := range before {
		if now[id] != leaf {
			t.Errorf("row %d is not what it was", id)
		}
	}
}

// complete checks that each message which the stream has is in the register
// once, and that the ids have no hole.
func complete(t *testing.T, r *rig, stream string) {
	t.Helper()
	type place struct {
		seq     uint64
		at      int64
		subject string
		body    string
	}
	rows := map[place]int{}
	for i, row := range r.rows(t, audit.Filter{}) {
		rows[place{row.Seq, row.AtNS, row.Subject, string(row.Body)}]++
		if row.ID != int64(i+1) {
			t.Fatalf("row %d stands at place %d", row.ID, i+1)
		}
	}
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	state := s.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := s.GetMsg(t.Context(), seq)
		if err != nil {
			continue // deleted
		}
		if n := rows[place{seq, m.Time.UnixNano(), m.Subject, string(m.Data)}]; n != 1 {
			t.Errorf("message %d (%s) is in %d rows, want 1", seq, m.Subject, n)
		}
	}
}

// cursor is how far the register has read a stream.
func (r *rig) cursor(t *testing.T, stream string) audit.Cursor {
	t.Helper()
	all, err := r.reader.Cursors(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all[stream]
}

// gaps are all gap records.
func (r *rig) gaps(t *testing.T) []audit.Gap {
	t.Helper()
	gaps, err := r.reader.Gaps(t.Context(), 0, 1<<62)
	if err != nil {
		t.Fatal(err)
	}
	return gaps
}

// events counts the events of the bridge itself.
func (r *rig) events(t *testing.T, what string) int {
	t.Helper()
	return len(r.rows(t, audit.Filter{Subject: "bus.evt.bridge." + what}))
}

func TestM6TheStoreDeletedAndTheRegisterKept(t *testing.T) {
	r := start(t, plan{})
	say(t, r.nc, "bus.msg.me.agent.you", 20, 0)
	r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 3}), nil)
	r.settled(t)
	before, cursor := leaves(t, r), r.cursor(t, "BUS")
	r = r.restart(t, func() {
		if err := os.RemoveAll(filepath.Join(r.dir, "jetstream")); err != nil {
			t.Fatal(err)
		}
	})
	say(t, r.nc, "bus.msg.me.agent.you", 20, 0)
	r.settled(t)
	untouched(t, r, before)
	complete(t, r, "BUS")
	first := int64(len(before)) + 1
	row, err := r.reader.Row(t.Context(), first)
	if err != nil || row.Seq != 1 || row.Incarnation != 2 {
		t.Fatalf("the first row after it: %+v, %v; want number 1 of incarnation 2", row, err)
	}
	if row.Subject != "bus.cmd.signalbox.bridge.started" {
		t.Errorf("the first command after the start is %s, want bridge.started: what is due must not be judged before it", row.Subject)
	}
	want := audit.Gap{ID: 1, Stream: "BUS", Incarnation: 1, From: cursor.Seq + 1, Reason: audit.StreamChanged, Cause: first}
	gaps := r.gaps(t)
	if len(gaps) != 1 {
		t.Fatalf("gaps: %+v, want one", gaps)
	}
	if gaps[0].AtMS = 0; gaps[0] != want {
		t.Errorf("the gap is %+v, want %+v", gaps[0], want)
	}
	db := r.db(t)
	if reason := one[string](t, db, `SELECT reason FROM incarnations WHERE id = 2 AND first_seq = 1 AND first_id = ?`, first); reason != audit.StreamChanged {
		t.Errorf("the reason is %q", reason)
	}
	if a, b := r.events(t, "incarnation"), r.events(t, "gap"); a != 1 || b != 1 {
		t.Errorf("%d events of the incarnation and %d of the gap, want 1 and 1", a, b)
	}
	if got := r.request(t, "bus.api.me.counter.get", []byte(`{"key":"k"}`), nil)["value"]; got != 3.0 {
		t.Errorf("the state is %v, want 3: the register keeps it", got)
	}
	// And once more nothing happens at the next start.
	r = r.restart(t, nil)
	r.settled(t)
	if n := one[int](t, r.db(t), `SELECT count(*) FROM incarnations`); n != 2 {
		t.Errorf("%d incarnations after a start without any change, want 2", n)
	}
}

// M7: the store is put back to an older copy at random points, and the numbers
// reused by fewer, as many, or more messages than were lost.
func TestM7TheTailCutBackAndItsNumbersReused(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	r := start(t, plan{})
	for round := range 6 {
		say(t, r.nc, "bus.msg.me.agent.before", random.IntN(20), 0)
		r.settled(t)
		r.stop(t)
		copied := t.TempDir()
		keep(t, r.dir, copied)
		var cut uint64
		offline(t, copied, func(b *broker) {
			s, err := b.js.Stream(t.Context(), "BUS")
			if err != nil {
				t.Fatal(err)
			}
			cut = s.CachedInfo().State.LastSeq
		})
		r = start(t, r.plan)
		say(t, r.nc, "bus.msg.me.agent.lost", random.IntN(20), 0)
		r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1}), nil)
		r.settled(t)
		before, cursor, events := leaves(t, r), r.cursor(t, "BUS"), r.events(t, "incarnation")
		gaps := len(r.gaps(t))
		anew := 0
		if round > 0 {
			anew = random.IntN(2 * int(cursor.Seq-cut))
		}
		r = r.restart(t, func() {
			putBack(t, r.dir, copied)
			offline(t, r.dir, func(b *broker) { say(t, b.nc, "bus.msg.me.agent.anew", anew, 0) })
		})
		r.settled(t)
		t.Logf("cut back from %d to %d, then %d written anew", cursor.Seq, cut, anew)
		untouched(t, r, before)
		complete(t, r, "BUS")
		var first uint64
		var reason string
		if err := r.db(t).QueryRow(`SELECT first_seq, reason FROM incarnations ORDER BY id DESC LIMIT 1`).Scan(&first, &reason); err != nil {
			t.Fatal(err)
		}
		if first != cut+1 || reason != audit.LogWentBack {
			t.Errorf("the newest incarnation is from %d on, %s; want %d, %s", first, reason, cut+1, audit.LogWentBack)
		}
		all := r.gaps(t)
		if len(all) != gaps+1 || all[gaps].From != cursor.Seq+1 || all[gaps].To != 0 || all[gaps].Incarnation != cursor.Incarnation ||
			all[gaps].Reason != audit.LogWentBack || all[gaps].Cause != int64(len(before))+1 {
			t.Errorf("gaps: %+v; want one more, from %d of incarnation %d", all, cursor.Seq+1, cursor.Incarnation)
		}
		if n := r.events(t, "incarnation"); n != events+1 {
			t.Errorf("%d events of incarnations, want %d", n, events+1)
		}
		if t.Failed() {
			return
		}
	}
	if got := r.request(t, "bus.api.me.counter.get", []byte(`{"key":"k"}`), nil)["value"]; got != 6.0 {
		t.Errorf("the counter is %v, want 6: what the log lost is still in the register", got)
	}
}

// M7b: the same while the bridge runs, against an external server that comes
// back with a shorter stream.
func TestM7bAnExternalServerComesBackWithAShorterStream(t *testing.T) {
	for _, anew := range []int{0, 5, 40} {
		t.Run(fmt.Sprintf("%d written anew", anew), func(t *testing.T) {
			store, copied := t.TempDir(), t.TempDir()
			b := serveStore(t, store, "")
			address := b.address(t)
			r := start(t, plan{url: b.server.ClientURL()})
			say(t, r.nc, "bus.msg.me.agent.before", 10, 0)
			r.settled(t)
			cut := r.cursor(t, "BUS").Seq
			b.end(t)
			keep(t, store, copied)
			b = serveStore(t, store, address)
			eventually(t, "the client is connected again", r.nc.IsConnected)
			say(t, r.nc, "bus.msg.me.agent.lost", 20, 0)
			r.settled(t)
			before := leaves(t, r)
			b.end(t)
			putBack(t, store, copied)
			offline(t, store, func(b *broker) { say(t, b.nc, "bus.msg.me.agent.anew", anew, 0) })
			serveStore(t, store, address)
			eventually(t, "the client is connected again", r.nc.IsConnected)
			db := r.db(t)
			eventually(t, "the bridge notices", func() bool {
				return one[int](t, db, `SELECT count(*) FROM incarnations WHERE first_seq = ? AND reason = 'log_went_back'`, cut+1) == 1
			})
			say(t, r.nc, "bus.msg.me.agent.after", 10, 0)
			r.settled(t)
			untouched(t, r, before)
			complete(t, r, "BUS")
			if a, b := r.events(t, "incarnation"), r.events(t, "gap"); a != 1 || b != 1 {
				t.Errorf("%d events of the incarnation and %d of the gap, want 1 and 1", a, b)
			}
			if got := r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1}), nil)["value"]; got != 1.0 {
				t.Errorf("a command afterwards answers %v", got)
			}
		})
	}
}

func TestM8TheHeadHasMovedPastTheCursor(t *testing.T) {
	r := start(t, plan{config: func(c *bridge.Config) { c.MaxBytes = 100_000 }})
	say(t, r.nc, "bus.msg.me.agent.you", 10, 0)
	r.settled(t)
	before, cursor := leaves(t, r), r.cursor(t, "BUS")
	var first uint64
	r = r.restart(t, func() {
		offline(t, r.dir, func(b *broker) {
			say(t, b.nc, "bus.msg.me.agent.you", 200, 1000)
			s, err := b.js.Stream(t.Context(), "BUS")
			if err != nil {
				t.Fatal(err)
			}
			if first = s.CachedInfo().State.FirstSeq; first <= cursor.Seq+1 {
				t.Fatalf("the stream still begins at %d", first)
			}
		})
	})
	r.settled(t)
	untouched(t, r, before)
	gaps := r.gaps(t)
	// The bridge's own start may push the head a little further.
	if len(gaps) != 1 || gaps[0].From != cursor.Seq+1 || gaps[0].To < first-1 || gaps[0].To > first+3 || gaps[0].Reason != audit.Overtaken {
		t.Fatalf("gaps: %+v, want one from %d to %d", gaps, cursor.Seq+1, first-1)
	}
	after, err := r.reader.Row(t.Context(), gaps[0].Cause)
	if err != nil || after.Seq != gaps[0].To+1 || after.Incarnation != cursor.Incarnation || after.ID != int64(len(before))+1 {
		t.Errorf("the row after the gap is %+v, %v; want number %d of the same incarnation", after, err, gaps[0].To+1)
	}
	if n := r.events(t, "gap"); n != 1 {
		t.Errorf("%d events of the gap, want 1", n)
	}
	rows := r.rows(t, audit.Filter{})
	if got := len(rows) + int(gaps[0].To-gaps[0].From) + 1; got != int(r.cursor(t, "BUS").Seq) {
		t.Errorf("rows and gap cover %d numbers of %d", got, r.cursor(t, "BUS").Seq)
	}
}
