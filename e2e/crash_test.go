//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// kills is how often the process is killed in a row.
const kills = 24

// chance is the randomness of a story; E2E_SEED repeats one.
func chance(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("E2E_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("E2E_SEED: %v", err)
		}
	}
	t.Logf("E2E_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// TestM3KillLoop: the process is killed with SIGKILL at random moments under
// load, again and again. Afterwards everything acknowledged is in the register
// once, each event is in the log once, and nothing has a hole.
func TestM3KillLoop(t *testing.T) {
	random := chance(t)
	data := path(t, "data")
	b := serve(t, data, "")
	addr := b.addr()
	p := startLoad(t, load{URL: b.ready.NATS, Attempts: 4, Repeats: 2, Commands: 1, Requests: 3, Size: 150})
	for n := range kills {
		if n%5 == 4 {
			// Once in a while in the middle of its recovery.
			lasts(t, time.Duration(random.IntN(250))*time.Millisecond, "it starts", b.running)
		} else {
			if n > 0 {
				b.awaitReady()
			}
			lasts(t, time.Duration(30+random.IntN(900))*time.Millisecond, "it runs", b.running)
		}
		b.kill()
		b = launch(t, data, addr)
	}
	b.awaitReady()
	before := p.latest.Load()
	until(t, 20*time.Second, "the publishers go on", func() error {
		if p.latest.Load() < before+100 {
			return fmt.Errorf("%d acknowledged since the last start", p.latest.Load()-before)
		}
		return nil
	})
	p.finish()
	settled(t, b)
	account(t, b.register(), p)

	js := stream(t, client(t, b.ready.NATS), "BUS")
	if rows := number(t, b.register(), `SELECT count(*) FROM messages`); uint64(rows) != js.LastSeq || uint64(rows) != js.Msgs {
		t.Errorf("the register has %d rows, the log %d messages up to %d", rows, js.Msgs, js.LastSeq)
	}
	t.Logf("%d kills, %d rows, %d acknowledged, %d requests answered", kills,
		number(t, b.register(), `SELECT count(*) FROM messages`), len(p.acked), len(p.answered))
	b.stop()
	account(t, b.register(), p) // and with the write-ahead log moved into the file
}

// settled waits until all that the log has is registered and all that the
// register caused is in the log.
func settled(t *testing.T, b *box) {
	t.Helper()
	nc := client(t, b.ready.NATS)
	until(t, 60*time.Second, "log and register agree", func() error {
		last := stream(t, nc, "BUS").LastSeq
		seq, err := tryNumber(b.register(), `SELECT seq FROM cursors WHERE stream='BUS'`)
		if err != nil {
			return err
		}
		if uint64(seq) != last {
			return fmt.Errorf("the cursor is at %d and the log at %d", seq, last)
		}
		return counts(b.register(), `SELECT outbox_last - outbox_seen FROM bridge_state`, 0)()
	})
	nc.Close()
}

// account compares the register with what the publishers were told.
func account(t *testing.T, file string, p *publishers) {
	t.Helper()
	rows := map[string]int{} // by message id and content
	for _, line := range sqlite(t, file, `SELECT message_id || ' ' || coalesce(json_extract(body, '$.id'), '') FROM messages
		WHERE kind IN ('msg', 'cmd') AND "from" GLOB '[arc][toe]*[0-9]'`) {
		rows[line]++
	}
	missing, doubled := 0, 0
	for id, times := range p.acked {
		if times != 1 {
			t.Errorf("%s was acknowledged %d times to one who asked once", id, times)
		}
		if rows[id+" "+id] == 0 {
			if missing++; missing < 5 {
				t.Errorf("%s was acknowledged and has no row", id)
			}
		}
	}
	for id, n := range rows {
		if strings.HasPrefix(id, "request") {
			continue // its repeats are rows; the outcomes say that they had no effect
		}
		if n > 1 {
			if doubled++; doubled < 5 {
				t.Errorf("%s has %d rows", id, n)
			}
		}
	}
	if missing > 0 || doubled > 0 {
		t.Errorf("of %d acknowledged, %d are missing and %d doubled", len(p.acked), missing, doubled)
	}
	answers(t, file, p)
	whole(t, file)
}

// answers checks that each request has one outcome, and that every answer to it
// named the row that the outcome names.
func answers(t *testing.T, file string, p *publishers) {
	t.Helper()
	outcomes := map[string]string{}
	for _, line := range sqlite(t, file, `SELECT o.id, o.cause FROM outcomes o JOIN messages m ON m.id = o.cause
		AND json_extract(m.body, '$.id') = o.id AND o.status = 0`) {
		id, cause, _ := strings.Cut(line, "|")
		if outcomes[id] != "" {
			t.Errorf("request %s has two outcomes", id)
		}
		outcomes[id] = cause
	}
	wrong := 0
	for id, rows := range p.answered {
		if len(rows) != 1 || !rows[outcomes[id]] {
			if wrong++; wrong < 5 {
				t.Errorf("request %s was answered with the rows %v and its outcome is row %q", id, rows, outcomes[id])
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d requests were answered wrongly", wrong, len(p.answered))
	}
}

// whole checks what must hold of any register of one unbroken log.
func whole(t *testing.T, file string) {
	t.Helper()
	for _, check := range []struct{ what, query string }{
		{"ids have a hole", `SELECT max(id) - count(*) FROM messages`},
		{"sequence numbers have a hole", `SELECT count(*) FROM (SELECT seq - lag(seq) OVER (ORDER BY id) AS step FROM messages) WHERE step <> 1`},
		{"there are gaps", `SELECT count(*) FROM gaps`},
		{"there is more than one incarnation", `SELECT count(*) - 1 FROM incarnations`},
		{"an event is in the log twice", `SELECT count(*) - count(DISTINCT message_id) FROM messages WHERE kind='evt'`},
		{"an event has two names", `SELECT count(*) FROM messages WHERE kind='evt' AND message_id <> json_extract(headers, '$."ce-id"[0]')`},
		{"a refused command has no event", `SELECT count(*) FROM refusals r JOIN messages c ON c.id = r.id
			WHERE c."from" GLOB 'command*' AND c.incarnation || ':' || c.seq NOT IN
			(SELECT json_extract(headers, '$."Bus-Cause"[0]') FROM messages WHERE kind='evt')`},
		{"a refused command has no dead letter", `SELECT (SELECT count(*) FROM refusals) - (SELECT count(*) FROM dead_letters)`},
		{"the outbox is not empty", `SELECT count(*) FROM outbox WHERE n > (SELECT outbox_seen FROM bridge_state) AND NOT seen`},
		{"the database is damaged", `SELECT count(*) FROM pragma_quick_check WHERE quick_check <> 'ok'`},
	} {
		if n := number(t, file, check.query); n != 0 {
			t.Errorf("%s: %d", check.what, n)
		}
	}
	commands := number(t, file, `SELECT count(*) FROM refusals r JOIN messages c ON c.id = r.id WHERE c."from" GLOB 'command*'`)
	events := number(t, file, `SELECT count(DISTINCT json_extract(headers, '$."Bus-Cause"[0]')) FROM messages WHERE kind='evt' AND subject GLOB 'bus.evt.notice.command*.refused'`)
	all := number(t, file, `SELECT count(*) FROM messages WHERE kind='evt' AND subject GLOB 'bus.evt.notice.command*.refused'`)
	if commands != events || commands != all {
		t.Errorf("%d commands were refused, and %d events say so of %d of them", commands, all, events)
	}
}
