//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// same complains unless the register has exactly what the log has, in its order.
func same(t *testing.T, b *box, nc *nats.Conn) func() error {
	return func() error {
		s := stream(t, nc, "BUS")
		return counts(b.register(), fmt.Sprintf(`SELECT (SELECT count(*) = %d AND max(seq) = %d FROM messages) AND (SELECT count(*) FROM gaps) = 0`, s.Msgs, s.LastSeq), 1)()
	}
}

// TestM5BridgeStopped: the bridge of an external server is stopped (SIGSTOP) for
// 10 s while 100,000 plain messages are published; afterwards the register has
// everything that the log has.
func TestM5BridgeStopped(t *testing.T) {
	ns := startServer(t, path(t, "store"), "")
	b := serve(t, path(t, "data"), "", "nats.url="+ns.url())
	nc := client(t, ns.url())
	publish(t, nc, "bus.msg.a.agent.b", "before")
	until(t, 10*time.Second, "the first message is registered", same(t, b, nc))

	b.signal(syscall.SIGSTOP)
	stopped := time.Now()
	p := startLoad(t, load{URL: ns.url(), Plain: 100_000, Size: 100})
	until(t, 60*time.Second, "all are published and 10 s are over", func() error {
		if p.sent.Load() != 100_000 {
			return errors.New("still publishing")
		}
		if since := time.Since(stopped); since < 10*time.Second {
			return fmt.Errorf("%s so far", since)
		}
		return nil
	})
	p.finish()
	publish(t, nc, "bus.msg.a.agent.b", "after")
	if n := stream(t, nc, "BUS").Msgs; n < 10_000 {
		t.Fatalf("the stream took %d of 100,000 messages", n)
	} else {
		t.Logf("the stream has %d messages", n)
	}
	b.signal(syscall.SIGCONT)
	until(t, 60*time.Second, "the register has what the log has", same(t, b, nc))
	until(t, 20*time.Second, "health is green", b.green)
	whole(t, b.register())
	b.stop()
}

// TestM20ServerGone: the external server is away for more than 60 failed
// reconnects; when it comes back the bridge goes on at its cursor by itself.
func TestM20ServerGone(t *testing.T) {
	t.Parallel()
	ns := startServer(t, path(t, "store"), "")
	b := serve(t, path(t, "data"), "", "nats.url="+ns.url())
	nc := client(t, ns.url())
	for n := range 100 {
		publish(t, nc, "bus.msg.a.agent.b", fmt.Sprint(n))
	}
	until(t, 10*time.Second, "all is registered", same(t, b, nc))
	began := b.cmd.Process.Pid
	ns.kill()
	until(t, 10*time.Second, "health says that NATS is gone", func() error { return b.isRed("nats") })
	// A reconnect is tried every 500 to 600 ms: the 61st is tried after 37 s at
	// the latest.
	lasts(t, 38*time.Second, "the server is away", func() error {
		if err := b.running(); err != nil {
			return err
		}
		return b.isRed("nats")
	})
	startServer(t, ns.store, ns.addr)
	for n := range 100 {
		publish(t, nc, "bus.msg.a.agent.b", fmt.Sprint("later ", n))
	}
	until(t, 30*time.Second, "the register has what the log has", same(t, b, nc))
	until(t, 20*time.Second, "health is green", b.green)
	if _, code, err := request(nc, "message.send", `{"to":"b","payload":1}`, 5*time.Second); err != nil || code != "" {
		t.Errorf("a request after the return: %s %v", code, err)
	}
	if b.cmd.Process.Pid != began {
		t.Error("another process")
	}
	until(t, 10*time.Second, "the register has what the log has", same(t, b, nc))
	whole(t, b.register())
	b.stop()
}

// TestM7bLogWentBackWhileRunning: the external server loses the end of its
// stream (a power cut, an old snapshot) and reuses the numbers while the bridge
// runs. It is noticed by content; what was registered stays, what comes anew is
// registered, and the register says what happened.
func TestM7bLogWentBackWhileRunning(t *testing.T) {
	for _, anew := range []struct {
		name     string
		messages int
	}{{"the new end is shorter", 5}, {"the new end is longer", 200}} {
		t.Run(anew.name, func(t *testing.T) {
			store := path(t, "store")
			ns := startServer(t, store, "")
			b := serve(t, path(t, "data"), "", "nats.url="+ns.url())
			nc := client(t, ns.url())
			for n := range 100 {
				publish(t, nc, "bus.msg.a.agent.b", fmt.Sprint("kept ", n))
			}
			until(t, 10*time.Second, "all is registered", same(t, b, nc))
			ns.stop()
			old := path(t, "old")
			copyTree(t, store, old)

			ns = startServer(t, store, ns.addr)
			for n := range 50 {
				publish(t, nc, "bus.msg.a.agent.b", fmt.Sprint("lost ", n))
			}
			until(t, 20*time.Second, "all is registered", same(t, b, nc))
			const dump = `SELECT id, incarnation, seq, at, subject, message_id, body, hex(leaf) FROM messages WHERE id <= %d ORDER BY id`
			last := number(t, b.register(), `SELECT max(id) FROM messages`)
			cursor := number(t, b.register(), `SELECT seq FROM cursors WHERE stream='BUS'`)
			before := sqlite(t, b.register(), fmt.Sprintf(dump, last))
			ns.kill()
			replaceTree(t, old, store)
			startServer(t, store, ns.addr)
			if s := stream(t, nc, "BUS"); int(s.LastSeq) >= cursor {
				t.Fatalf("the stream is at %d and did not go back from %d", s.LastSeq, cursor)
			}
			for n := range anew.messages {
				publish(t, nc, "bus.msg.a.agent.b", fmt.Sprint("new ", n))
			}
			until(t, 30*time.Second, "what is new is registered", counts(b.register(),
				`SELECT count(*) FROM messages WHERE body LIKE 'new %'`, anew.messages))
			settled(t, b)
			if after := sqlite(t, b.register(), fmt.Sprintf(dump, last)); !slices.Equal(before, after) {
				t.Error("rows that were registered have changed")
			}
			if got := sqlite(t, b.register(), `SELECT id, reason FROM incarnations ORDER BY id`); strings.Join(got, " ") != "1|created 2|log_went_back" {
				t.Errorf("the incarnations are %v", got)
			}
			gap := fmt.Sprintf("BUS|1|%d||log_went_back", cursor+1)
			if got := sqlite(t, b.register(), `SELECT stream, incarnation, from_seq, to_seq, reason FROM gaps`); len(got) != 1 || got[0] != gap {
				t.Errorf("the gaps are %v and not %s", got, gap)
			}
			for _, event := range []string{"incarnation", "gap"} {
				if n := number(t, b.register(), fmt.Sprintf(`SELECT count(*) FROM messages WHERE subject='bus.evt.bridge.%s'`, event)); n != 1 {
					t.Errorf("%d events %s", n, event)
				}
			}
			// The log as it is now is registered whole: its second story from the fork on.
			s := stream(t, nc, "BUS")
			if n := number(t, b.register(), `SELECT max(seq) - min(seq) + 1 - count(*) FROM messages WHERE incarnation=2`); n != 0 {
				t.Errorf("the second incarnation has %d holes", n)
			}
			if n := number(t, b.register(), `SELECT max(seq) FROM messages WHERE incarnation=2`); n != int(s.LastSeq) {
				t.Errorf("the second incarnation ends at %d and the log at %d", n, s.LastSeq)
			}
			listed := logRows(t, b.data, "--after", "0", "--limit", "1000")
			if !slices.ContainsFunc(listed, func(r row) bool { return r.Gap != nil && r.Gap.Reason == "log_went_back" }) {
				t.Error("signalbox log does not show the gap")
			}
			until(t, 20*time.Second, "health is green", b.green)
			b.stop()
		})
	}
}
