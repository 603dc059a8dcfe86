//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

// heldFor is how long another process keeps its transaction.
const heldFor = 30 * time.Second

// walSize is the size of the register's write-ahead log, in bytes.
func walSize(b *box) int64 {
	info, err := os.Stat(b.register() + "-wal")
	if err != nil {
		return 0
	}
	return info.Size()
}

// TestM4AnotherProcessWrites: while a sqlite3 shell holds the write lock for
// 30 s nothing is answered and nothing is lost; health says why.
func TestM4AnotherProcessWrites(t *testing.T) {
	t.Parallel()
	b := serve(t, path(t, "data"), "")
	p := startLoad(t, load{URL: b.ready.NATS, Attempts: 8, Commands: 1, Requests: 2, Size: 200, Rate: 250})
	until(t, 20*time.Second, "there is load", func() error {
		if p.latest.Load() < 500 {
			return errors.New("none yet")
		}
		return nil
	})
	h := hold(t, b.register(), "BEGIN IMMEDIATE;")
	rows := number(t, b.register(), `SELECT count(*) FROM messages`)
	nc := client(t, b.ready.NATS)
	sawRed, early := false, 0
	lasts(t, heldFor, "the register is locked", func() error {
		if err := b.running(); err != nil {
			return err
		}
		if b.isRed("register") == nil {
			sawRed = true
		}
		reply, code, err := request(nc, "message.send", `{"to":"sink","payload":1}`, 50*time.Millisecond)
		if err == nil && code == "" {
			early++
			return fmt.Errorf("a request was answered with %v", reply)
		}
		return counts(b.register(), `SELECT count(*) FROM messages`, rows)()
	})
	if !sawRed {
		t.Error("health was never red for the register that took no rows")
	}
	if n, err := b.metric("signalbox_commit_retries_total"); err != nil || n < 2 {
		t.Errorf("%v retries were counted (%v)", n, err)
	}
	h.release()
	p.finish()
	settled(t, b)
	until(t, 20*time.Second, "health is green again", b.green)
	t.Logf("%d rows before, %d afterwards", rows, number(t, b.register(), `SELECT count(*) FROM messages`))
	account(t, b.register(), p)
	b.stop()
}

// TestM4AnotherProcessReads: while a sqlite3 shell keeps a snapshot for 30 s
// under 8 publishers, the register goes on, and the write-ahead log is bounded
// or an alarm; with the reader gone it becomes small again.
func TestM4AnotherProcessReads(t *testing.T) {
	t.Parallel()
	b := serve(t, path(t, "data"), "")
	p := startLoad(t, load{URL: b.ready.NATS, Attempts: 8, Requests: 2, Size: 12_000, Rate: 250})
	until(t, 20*time.Second, "there is load", counts(b.register(), `SELECT count(*) > 500 FROM messages`, 1))
	h := hold(t, b.register(), "BEGIN; SELECT count(*) FROM messages;")
	rows := number(t, b.register(), `SELECT count(*) FROM messages`)
	const alarm = 512 << 20
	peak, alarmed := int64(0), false
	lasts(t, heldFor, "a reader keeps its snapshot", func() error {
		if err := b.running(); err != nil {
			return err
		}
		peak = max(peak, walSize(b))
		alarmed = alarmed || b.isRed("wal") == nil
		return nil
	})
	if now := number(t, b.register(), `SELECT count(*) FROM messages`); now < rows+1000 {
		t.Errorf("beside a reader the register grew from %d to %d rows only", rows, now)
	}
	t.Logf("the write-ahead log grew to %d MiB, alarmed: %t", peak>>20, alarmed)
	if peak > alarm+alarm/4 && !alarmed {
		t.Errorf("the write-ahead log has %d MiB and health says nothing", peak>>20)
	}
	h.release()
	until(t, 30*time.Second, "the write-ahead log is small again", func() error {
		if size := walSize(b); size > 128<<20 {
			return fmt.Errorf("it has %d MiB after %d", size>>20, peak>>20)
		}
		return nil
	})
	p.finish()
	settled(t, b)
	until(t, 20*time.Second, "health is green again", b.green)
	account(t, b.register(), p)
	b.stop()
	if size := walSize(b); size != 0 {
		t.Errorf("after the stop the write-ahead log has %d bytes", size)
	}
}
