//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// ask asks the API until it answers; with the id, a repeat has no second
// effect. The answer of a refusal is its error.
func ask(ctx context.Context, nc *nats.Conn, subject, id string, body any) (map[string]any, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	m := &nats.Msg{Subject: subject, Data: raw, Header: nats.Header{}}
	if id != "" {
		m.Header.Set(nats.MsgIdHdr, id)
	}
	for {
		one, cancel := context.WithTimeout(ctx, 2*time.Second)
		reply, err := nc.RequestMsgWithContext(one, m)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
		case reply.Header.Get("Nats-Service-Error-Code") == "503":
		case reply.Header.Get("Nats-Service-Error-Code") != "":
			return nil, errors.New(string(reply.Data))
		default:
			var answer map[string]any
			return answer, json.Unmarshal(reply.Data, &answer)
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestKillsInAStormOfFetchesAndAcksLoseNoDelivery: agents fetch and ack while
// the process is killed with SIGKILL again and again. No message is lost, and
// none is acked that its agent did not ack.
func TestKillsInAStormOfFetchesAndAcksLoseNoDelivery(t *testing.T) {
	const workers, storms = 4, 10
	random := chance(t)
	b := serve(t, path(t, "data"), "")
	addr := b.addr()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	connect := func() *nats.Conn {
		nc, err := nats.Connect(b.ready.NATS, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.RetryOnFailedConnect(true))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	sending, stopSending := context.WithCancel(ctx)
	var sent atomic.Int64
	var storm, publishing sync.WaitGroup
	done := make(chan struct{})
	for w := range workers {
		id := fmt.Sprintf("worker-%d", w)
		nc, publisher := connect(), connect()
		if _, err := ask(ctx, nc, "bus.api."+id+".agents.register", "", map[string]any{"heartbeat_ttl_ms": 3_600_000}); err != nil {
			t.Fatal(err)
		}
		publishing.Go(func() {
			for n := 0; sending.Err() == nil; n++ {
				if _, err := ask(ctx, publisher, "bus.api.boss.message.send", fmt.Sprintf("%s-%d", id, n),
					map[string]any{"to": id, "payload": n, "ttl_ms": 3_600_000, "priority": 1 + n%9}); err != nil {
					t.Errorf("send: %v", err)
					return
				}
				sent.Add(1)
			}
		})
		storm.Go(func() {
			for given := 0; ; {
				select {
				case <-done:
					return
				default:
				}
				got, err := ask(ctx, nc, "bus.api."+id+".inbox.fetch", "", map[string]any{"max_messages": 7, "wait_ms": 100, "redeliver_after_ms": 300})
				if err != nil {
					t.Errorf("fetch: %v", err)
					return
				}
				var ids []any
				for _, m := range got["messages"].([]any) {
					if given++; given%3 != 0 { // the others come again
						ids = append(ids, m.(map[string]any)["id"])
					}
				}
				if len(ids) == 0 {
					continue
				}
				if _, err := ask(ctx, nc, "bus.api."+id+".inbox.ack", "", map[string]any{"ids": ids}); err != nil {
					t.Errorf("ack: %v", err)
					return
				}
			}
		})
	}
	for range storms {
		lasts(t, time.Duration(100+random.IntN(700))*time.Millisecond, "it runs", b.running)
		b.kill()
		b = launch(t, b.data, addr)
		b.awaitReady()
	}
	stopSending()
	publishing.Wait()
	until(t, time.Minute, "everything is acked", counts(b.register(), `SELECT count(*) FROM deliveries WHERE outcome IS NULL`, 0))
	close(done)
	storm.Wait()
	settled(t, b)
	file := b.register()
	if n := number(t, file, `SELECT count(DISTINCT message_id) FROM messages WHERE "from" = 'boss' AND kind = 'msg'`); n < int(sent.Load()) || n == 0 {
		t.Errorf("%d messages are registered, %d were answered", n, sent.Load())
	}
	for _, check := range []struct{ what, query string }{
		{"messages without a delivery", `SELECT count(*) FROM messages m JOIN (SELECT min(id) AS id FROM messages WHERE "from" = 'boss' AND kind = 'msg'
			GROUP BY json_extract(headers, '$."Bus-Request-Id"[0]')) USING (id) WHERE NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.id = m.id)`},
		{"deliveries that are not acked", `SELECT count(*) FROM deliveries WHERE outcome <> 'acked' OR outcome IS NULL`},
		{"deliveries that nobody fetched", `SELECT count(*) FROM deliveries WHERE attempts = 0`},
		{"acks of what nobody acked", `SELECT count(*) FROM deliveries d LEFT JOIN messages c ON c.id = d.outcome_id
			WHERE c.subject IS NOT 'bus.cmd.' || d.recipient || '.inbox.ack'
			OR NOT EXISTS (SELECT 1 FROM json_each(c.body, '$.ids') WHERE value = d.id)`},
		{"deliveries that were fetched by no fetch", `SELECT count(*) FROM deliveries d LEFT JOIN messages c ON c.id = d.delivered_id
			WHERE c.subject IS NOT 'bus.cmd.' || d.recipient || '.inbox.fetch'`},
		{"dead letters", `SELECT count(*) FROM dead_letters`},
	} {
		if n := number(t, file, check.query); n != 0 {
			t.Errorf("%s: %d", check.what, n)
		}
	}
	whole(t, file)
	t.Logf("%d messages, %d fetches, %d acks, %d kills", sent.Load(),
		number(t, file, `SELECT count(*) FROM messages WHERE subject GLOB 'bus.cmd.worker*.inbox.fetch'`),
		number(t, file, `SELECT count(*) FROM messages WHERE subject GLOB 'bus.cmd.worker*.inbox.ack'`), storms)
	b.stop()
}

// TestTheExampleAgents: the examples work as they stand, with the stock client
// alone and in Go: they get what waited for them and what comes, ack it, and
// beat.
func TestTheExampleAgents(t *testing.T) {
	program := filepath.Join(t.TempDir(), "agent")
	build := exec.Command("go", "build", "-o", program, "./examples/agent")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the example: %v\n%s", err, out)
	}
	script, err := filepath.Abs("../examples/agent/agent.sh")
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, path(t, "data"), "", "agents.rollup=1s")
	for id, command := range map[string]string{"gopher": program, "shell": script} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			send := func(n int) {
				out, err := exec.Command(tool.signalbox, "--data", b.data, "send", id, fmt.Sprintf(`{"n":%d}`, n)).CombinedOutput()
				if err != nil {
					t.Fatalf("send: %v\n%s", err, out)
				}
			}
			send(1)
			cmd := exec.Command(command, id, "3")
			cmd.Env = append(os.Environ(), "NATS_URL="+b.ready.NATS, "PATH="+filepath.Dir(tool.nats)+":"+os.Getenv("PATH"))
			p := begin(t, id, cmd, nil)
			until(t, 30*time.Second, "it beats", counts(b.register(), `SELECT count(*) > 0 FROM agents WHERE agent_id = '`+id+`' AND last_seen_at_ms > registered_at_ms + 4000`, 1))
			send(2)
			send(3)
			if code := p.exit(30 * time.Second); code != 0 {
				t.Fatalf("it ended with %d: %v", code, p.said())
			}
			text := strings.Join(p.said(), "\n")
			for n := 1; n <= 3; n++ {
				if !strings.Contains(text, fmt.Sprintf("n\":%d", n)) && !strings.Contains(text, fmt.Sprintf(`n\":%d`, n)) {
					t.Errorf("it did not work on message %d:\n%s", n, text)
				}
			}
			if n := number(t, b.register(), `SELECT count(*) FROM deliveries WHERE outcome = 'acked' AND recipient = '`+id+`'`); n != 3 {
				t.Errorf("%d messages are acked, want 3", n)
			}
		})
	}
}
