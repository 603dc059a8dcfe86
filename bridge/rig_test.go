package bridge_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"signalbox/agents"
	"signalbox/assign"
	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/embeddednats"
	"signalbox/inbox"
	"signalbox/message"
)

// within bounds every wait of a test; a test that needs it has failed.
const within = 30 * time.Second

// machines are the program's and the test's.
func machines() []bridge.Machine {
	who := agents.New(inbox.Pending)
	return []bridge.Machine{message.Machine{}, who, inbox.New(inbox.Facts{Agents: who, Rows: audit.Rows{}}), assign.New(), counter{}, echo{counters: counter{}}}
}

// plan is what a rig is made of.
type plan struct {
	dir     string // holds register and streams
	url     string // of an external server; "" embeds one
	config  func(*bridge.Config)
	options audit.Options
}

// rig is a bridge in this process, with a real server and real files.
type rig struct {
	plan
	server *embeddednats.Server
	nc     *nats.Conn // of a client
	conn   *nats.Conn // of the bridge
	reg    *audit.Register
	reader *audit.Reader
	index  *audit.Index
	check  *audit.Checkpointer
	bridge *bridge.Bridge

	soft, hard context.CancelFunc
	done       chan struct{} // closed when Run has returned
	err        error         // of Run, then
	joined     sync.WaitGroup
}

// build opens a rig without a testing.T, for the child processes of crash tests
// too.
func build(p plan) (*rig, error) {
	r := &rig{plan: p}
	url := p.url
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var err error
	if url == "" {
		r.server, err = embeddednats.Start(ctx, embeddednats.Options{Listen: "127.0.0.1:0", StoreDir: p.dir, Logger: log})
		if err != nil {
			return nil, err
		}
		url = r.server.ClientURL()
	}
	if r.conn, err = nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond)); err != nil {
		return nil, err
	}
	if r.nc, err = nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond)); err != nil {
		return nil, err
	}
	path := filepath.Join(p.dir, "signalbox.db")
	if r.reg, err = audit.Open(ctx, path, p.options); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, counterTables); err != nil {
		return nil, err
	}
	if err := db.Close(); err != nil {
		return nil, err
	}
	if r.index, err = audit.OpenIndex(ctx, filepath.Join(p.dir, "index.db"), path, audit.IndexOptions{Search: true}); err != nil {
		return nil, err
	}
	if r.reader, err = audit.OpenReader(ctx, path, audit.ReaderOptions{}); err != nil {
		return nil, err
	}
	if r.check, err = r.reg.Checkpointer(); err != nil {
		return nil, err
	}
	js, err := bridge.JetStream(r.conn)
	if err != nil {
		return nil, err
	}
	config := bridge.Config{Log: log, FirstTick: time.Millisecond, Embedded: r.server != nil}
	if p.config != nil {
		p.config(&config)
	}
	r.bridge, err = bridge.New(config, bridge.Parts{JetStream: js, Register: r.reg, Reader: r.reader, Index: r.index, Machines: machines()})
	return r, err
}

// run runs the bridge and waits until it takes requests or has failed.
func (r *rig) run() error {
	soft, stopSoft := context.WithCancel(context.Background())
	hard, stopHard := context.WithCancel(context.Background())
	r.soft, r.hard, r.done = stopSoft, stopHard, make(chan struct{})
	ready := make(chan struct{})
	go func() {
		defer close(r.done)
		r.err = r.bridge.Run(soft, hard, func() { close(ready) })
	}()
	r.joined.Go(func() { r.check.Run(hard, func(error) {}) })
	select {
	case <-ready:
		return nil
	case <-r.done:
		return r.err
	}
}

// close ends everything; at once when hard.
func (r *rig) close(hard bool) error {
	r.soft()
	if hard {
		r.hard()
	}
	var err error
	select {
	case <-r.done:
		err = r.err
	case <-time.After(within):
		err = fmt.Errorf("the bridge did not stop within %s", within)
	}
	r.hard()
	<-r.done
	r.joined.Wait()
	r.nc.Close()
	r.conn.Close()
	for _, c := range []interface{ Close() error }{r.check, r.reader, r.index, r.reg} {
		err = errors.Join(err, c.Close())
	}
	if r.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		err = errors.Join(err, r.server.Shutdown(ctx))
	}
	return err
}

// start starts a rig that ends with the test.
func start(t *testing.T, p plan) *rig {
	t.Helper()
	if p.dir == "" {
		p.dir = t.TempDir()
	}
	r, err := build(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.run(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r.bridge != nil {
			r.stop(t)
		}
	})
	return r
}

// stop ends the rig in good order.
func (r *rig) stop(t *testing.T) {
	t.Helper()
	if err := r.close(false); err != nil {
		t.Errorf("stop: %v", err)
	}
	r.bridge = nil
}

// restart ends the rig and starts it anew on the same files; change, where
// given, is called in between.
func (r *rig) restart(t *testing.T, change func()) *rig {
	t.Helper()
	p := r.plan
	r.stop(t)
	if change != nil {
		change()
	}
	return start(t, p)
}

// request asks the API; the reply's body must be JSON.
func (r *rig) request(t *testing.T, subject string, body []byte, header nats.Header) map[string]any {
	t.Helper()
	m, err := r.nc.RequestMsg(&nats.Msg{Subject: subject, Data: body, Header: header}, within)
	if err != nil {
		t.Fatalf("request %s: %v", subject, err)
	}
	var v map[string]any
	if err := json.Unmarshal(m.Data, &v); err != nil {
		t.Fatalf("reply to %s: %v in %q", subject, err, m.Data)
	}
	return v
}

// code is the error code of a reply, or "".
func code(reply map[string]any) string {
	e, _ := reply["error"].(map[string]any)
	c, _ := e["code"].(string)
	return c
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", within, what)
		}
		time.Sleep(2 * time.Millisecond) //nolint:forbidigo // polls another goroutine's or process's files
	}
}

// settled waits until the log is folded to its end and the outbox is empty.
func (r *rig) settled(t *testing.T) {
	t.Helper()
	js, err := bridge.JetStream(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the log is folded and the outbox empty", func() bool {
		s, err := js.Stream(t.Context(), "BUS")
		if err != nil {
			return false
		}
		// The outbox after the position: what is folded in between fills it.
		if r.bridge.Position() < s.CachedInfo().State.LastSeq {
			return false
		}
		entries, err := r.reader.Unseen(t.Context(), 0, 1)
		return err == nil && len(entries) == 0
	})
}

// rows are all rows of the register.
func (r *rig) rows(t *testing.T, f audit.Filter) []*audit.Row {
	t.Helper()
	f.After, f.Limit = new(int64), audit.MaxLimit
	var all []*audit.Row
	for {
		page, err := r.reader.Log(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, page.Rows...)
		if !page.More {
			return all
		}
		*f.After = page.NextAfter
	}
}
