//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// resident reads a line of the process's status, in MiB: VmRSS is its resident
// memory, VmHWM the most it ever was.
func resident(t *testing.T, b *box, line string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(text, line+":"); ok {
			kb, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
			if err != nil {
				t.Fatal(err)
			}
			return kb >> 10
		}
	}
	t.Fatalf("no line %s", line)
	return 0
}

// TestM17MemoryFallsAgain: a million messages, each with its own
// subject and id, cost memory in the stream's indexes. When they have expired
// the memory is given back, and the register still has every one.
func TestM17MemoryFallsAgain(t *testing.T) {
	const messages = 1_000_000
	b := serve(t, path(t, "data"), "", "bus.max_age=1m", "bus.duplicates=5s")
	idle := resident(t, b, "VmRSS")
	p := startLoad(t, load{URL: b.ready.NATS, Plain: messages, Size: 60})
	until(t, 120*time.Second, "all are published", func() error {
		if p.sent.Load() != messages {
			return fmt.Errorf("%d so far", p.sent.Load())
		}
		return nil
	})
	p.finish()
	nc := client(t, b.ready.NATS)
	until(t, 120*time.Second, "all that are captured are registered", func() error {
		return counts(b.register(), `SELECT seq FROM cursors WHERE stream='BUS'`, int(stream(t, nc, "BUS").LastSeq))()
	})
	until(t, 120*time.Second, "the stream is empty", func() error {
		if s := stream(t, nc, "BUS"); s.Msgs > 100 {
			return fmt.Errorf("it has %d messages", s.Msgs)
		}
		return nil
	})
	peak := resident(t, b, "VmHWM")
	until(t, 60*time.Second, "memory has fallen", func() error {
		now := resident(t, b, "VmRSS")
		if now-idle > (peak-idle)*2/3 {
			return fmt.Errorf("it is %d MiB after %d, and was %d when idle", now, peak, idle)
		}
		return nil
	})
	t.Logf("resident memory: %d MiB idle, %d at the peak, %d when all has expired", idle, peak, resident(t, b, "VmRSS"))
	// A machine that registers them more slowly than they expire says which.
	if n := number(t, b.register(), `SELECT count(*) + (SELECT coalesce(sum(to_seq - from_seq + 1), 0) FROM gaps) FROM messages`); uint64(n) != stream(t, nc, "BUS").LastSeq {
		t.Errorf("%d messages are registered or in a gap, of %d", n, stream(t, nc, "BUS").LastSeq)
	}
	if n := number(t, b.register(), `SELECT count(*) FROM messages WHERE message_id GLOB 'plain-*'`); n < messages/2 {
		t.Errorf("%d of %d messages are registered", n, messages)
	}
	b.stop()
}

// flood is how many messages come as fast as one core can send them.
const flood = 300_000

// TestM18Flood: a publisher floods the bus from one core. Until the register has
// caught up, each request is answered within the 5 s that the stock nats command
// line waits: with its outcome, that the register lags, or that the outcome is
// not known yet. Health says that it lags, and in the end everything is registered.
func TestM18Flood(t *testing.T) {
	b := serve(t, path(t, "data"), "")
	nc := client(t, b.ready.NATS)
	p := startLoad(t, load{URL: b.ready.NATS, Plain: flood, Size: 200, OneCore: true})
	codes, slowest, sawRed := map[string]int{}, time.Duration(0), false
	until(t, 120*time.Second, "the flood is registered", func() error {
		began := time.Now()
		_, code, err := request(nc, "message.send", `{"to":"sink","payload":"in the flood"}`, 20*time.Second)
		took := time.Since(began)
		slowest = max(slowest, took)
		if err != nil || !slices.Contains([]string{"", "LAGGING", "OUTCOME_PENDING"}, code) || took > 5*time.Second {
			t.Errorf("a request took %s and came to %q %v", took.Round(time.Millisecond), code, err)
		}
		codes[code]++
		sawRed = sawRed || b.isRed("lag") == nil
		return counts(b.register(), `SELECT count(*) FROM messages WHERE message_id GLOB 'plain-*'`, flood)()
	})
	p.finish()
	t.Logf("requests by code: %v; the slowest took %s; health was red for the lag: %t", codes, slowest.Round(time.Millisecond), sawRed)
	if codes["LAGGING"] > 0 && !sawRed {
		t.Error("requests were refused for the lag, and health was green")
	}
	until(t, 20*time.Second, "health is green", b.green)
	if _, code, err := request(nc, "message.send", `{"to":"sink","payload":"afterwards"}`, 5*time.Second); code != "" || err != nil {
		t.Errorf("after the flood a request comes to %q %v", code, err)
	}
	n := number(t, b.register(), `SELECT count(*) FROM messages WHERE body LIKE '%in the flood%' AND kind='msg'`)
	if n < codes[""] || n > codes[""]+codes["OUTCOME_PENDING"] {
		t.Errorf("of requests %v, %d are registered", codes, n)
	}
	settled(t, b)
	whole(t, b.register())
	b.stop()
}
