// Package node puts a whole Signalbox together from its configuration: lock,
// server, register, index, bridge, health endpoint, in the order in which they
// must start and the reverse order in which they must stop.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"signalbox/agents"
	"signalbox/assign"
	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/cmd/signalbox/config"
	"signalbox/embeddednats"
	"signalbox/inbox"
	"signalbox/message"
)

// stopWithin bounds the stop of the embedded server.
const stopWithin = 20 * time.Second

// Options are what a start may be told beside the configuration.
type Options struct {
	Version     string
	NewRegister bool // accept a log that another register has read
	Log         *slog.Logger

	// Ready is called when requests are taken; it may be nil.
	Ready func(Status)
}

// Status is what a started node says of itself.
type Status struct {
	ClientURL string
	HTTP      string // address of metrics and health; "" for off
	DataDir   string
	Register  string
	LastID    int64 // of the register
	Position  uint64
	Embedded  bool
}

// node is a Signalbox while it runs.
type node struct {
	config  config.Config
	options Options
	log     *slog.Logger

	lock         *audit.Lock
	registerLock *audit.Lock          // of the register's directory, where it is another
	server       *embeddednats.Server // nil with an external server
	conn         *nats.Conn
	reg          *audit.Register
	reader       *audit.Reader
	index        *audit.Index
	check        *audit.Checkpointer
	bridge       *bridge.Bridge
	http         *httpServer
	drops        chan embeddednats.DropReport
}

// Run starts a node and runs it until ctx ends: it then stops taking requests,
// finishes the batch, flushes the outbox within a bound, drains, stops
// JetStream, checkpoints and closes SQLite, and releases the lock. hard stops it
// at once; the next start recovers.
func Run(ctx, hard context.Context, c config.Config, o Options) error {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	n := &node{config: c, options: o, log: o.Log, drops: make(chan embeddednats.DropReport, 64)}
	err := n.start(ctx)
	if err == nil {
		err = n.run(ctx, hard)
	}
	return errors.Join(err, n.stop())
}

// start opens everything, from the lock up. What was opened before an error is
// closed by stop.
func (n *node) start(ctx context.Context) (err error) {
	if n.lock, err = audit.LockDir(n.config.DataDir); err != nil {
		return err
	}
	if err = n.connect(ctx); err != nil {
		return err
	}
	js, err := bridge.JetStream(n.conn)
	if err != nil {
		return err
	}
	path := n.config.RegisterPath()
	if dir := filepath.Dir(path); !sameDir(dir, n.config.DataDir) {
		// Another node may have another data directory and the same register.
		if n.registerLock, err = audit.LockDir(dir); err != nil {
			return err
		}
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && !n.options.NewRegister {
		owner, err := bridge.Claimed(ctx, js, n.config.Bus.Stream)
		if err != nil {
			return err
		}
		if owner != "" {
			return fmt.Errorf("the register %s is missing, but stream %s was read by register %s: "+
				"put the register back, or start once with --new-register to register anew what the stream still holds",
				path, n.config.Bus.Stream, owner)
		}
	}
	if n.reg, err = audit.Open(ctx, path, audit.Options{CacheBytes: int64(n.config.Audit.Cache)}); err != nil {
		return err
	}
	indexPath := filepath.Join(filepath.Dir(path), "index.db")
	n.index, err = audit.OpenIndex(ctx, indexPath, path, audit.IndexOptions{Search: bool(n.config.Audit.Search), Logger: n.log})
	if err != nil {
		return err
	}
	if n.reader, err = audit.OpenReader(ctx, path, audit.ReaderOptions{IndexPath: indexPath}); err != nil {
		return err
	}
	if n.check, err = n.reg.Checkpointer(); err != nil {
		return err
	}
	n.bridge, err = bridge.New(n.bridgeConfig(), bridge.Parts{JetStream: js, Register: n.reg, Reader: n.reader, Index: n.index,
		Machines: Machines()})
	if err != nil {
		return err
	}
	n.http, err = listenHTTP(n.config.HTTP.Listen, n.bridge)
	return err
}

// Machines are the program's machines, wired to each other's facts, in the
// order in which they act.
func Machines() []bridge.Machine {
	who := agents.New(inbox.Pending)
	return []bridge.Machine{
		message.Machine{},
		who,
		inbox.New(inbox.Facts{Agents: who, Rows: audit.Rows{}}),
		assign.New(),
	}
}

func (n *node) bridgeConfig() bridge.Config {
	c := n.config
	b := bridge.Config{
		Instance: c.Instance, Version: n.options.Version, Embedded: n.server != nil,
		Root: rootOf(c), Stream: c.Bus.Stream, MaxAge: c.Bus.MaxAge.Std(), MaxBytes: int64(c.Bus.MaxBytes),
		Replicas: c.Bus.Replicas, Duplicates: c.Bus.Duplicates.Std(),
		TapMaxAge: c.Bus.TapMaxAge.Std(), TapBytes: int64(c.Bus.TapMaxBytes),
		BatchMax: c.Audit.BatchMax, FirstTick: max(10*time.Second, 2*c.Agents.Rollup.Std()),
		DataDir: c.DataDir, MinFree: int64(c.Audit.MinFree), NewRegister: n.options.NewRegister,
		Rollup: c.Agents.Rollup.Std(), Settings: settings(c), Log: n.log,
	}
	for _, t := range c.Bus.Taps {
		b.Taps = append(b.Taps, bridge.Tap{Subject: t.Subject, Stream: t.Stream})
	}
	if n.server != nil {
		b.RestartServer = n.server.Restart
	}
	return b
}

// settings are what the rules of the machines are set to, by machine, as
// bridge.started puts them into the log.
func settings(c config.Config) map[string]json.RawMessage {
	backoff := func(b config.Backoff) map[string]any {
		return map[string]any{"base_ms": b.Base.Std().Milliseconds(), "factor": b.Factor, "max_ms": b.Max.Std().Milliseconds(), "jitter": b.Jitter}
	}
	kinds := make([]map[string]any, len(c.Roles.Kinds))
	for i, k := range c.Roles.Kinds {
		kinds[i] = map[string]any{"name": k.Name, "scoped": k.Scoped, "charter_version": k.CharterVersion, "probe": k.Probe}
	}
	out := map[string]json.RawMessage{}
	for name, fields := range map[string]map[string]any{
		"agents": {"heartbeat_ttl_ms": c.Agents.HeartbeatTTL.Std().Milliseconds(), "rollup_ms": c.Agents.Rollup.Std().Milliseconds(),
			"offline_after_ms": c.Agents.OfflineAfter.Std().Milliseconds()},
		"assign": {"timeout_ms": c.Assign.Timeout.Std().Milliseconds(), "max_retries": c.Assign.MaxRetries, "backoff": backoff(c.Assign.Backoff)},
		"roles": {"kinds": kinds, "probe_timeout_ms": c.Roles.ProbeTimeout.Std().Milliseconds(), "ack_timeout_ms": c.Roles.AckTimeout.Std().Milliseconds(),
			"max_probe_failures": c.Roles.MaxProbeFailures, "quarantine_ms": c.Roles.Quarantine.Std().Milliseconds(), "backoff": backoff(c.Roles.Backoff)},
	} {
		raw, err := json.Marshal(fields)
		if err != nil {
			panic(err) // maps of numbers and texts always marshal
		}
		out[name] = raw
	}
	return out
}

// run runs the bridge and what stands beside it.
func (n *node) run(ctx, hard context.Context) error {
	life, end := context.WithCancel(hard)
	var beside errgroup.Group
	beside.Go(func() error { return n.http.serve(life) })
	beside.Go(func() error {
		n.check.Run(life, func(err error) { n.log.Warn("the write-ahead log was not moved into the register", "err", err) })
		return nil
	})
	beside.Go(func() error { n.reportDrops(life); return nil })
	err := n.bridge.Run(ctx, hard, func() {
		status := n.status()
		n.writeURL(status.ClientURL)
		if n.options.Ready != nil {
			n.options.Ready(status)
		}
	})
	end()
	return errors.Join(err, beside.Wait())
}

func (n *node) status() Status {
	s := Status{ClientURL: n.conn.ConnectedUrlRedacted(), HTTP: n.http.address(), DataDir: n.config.DataDir,
		Register: n.reg.Path(), Position: n.bridge.Position(), Embedded: n.server != nil}
	if n.server != nil {
		s.ClientURL = n.server.ClientURL()
	}
	if id, err := n.reader.LastID(context.Background()); err == nil {
		s.LastID = id
	}
	return s
}

// writeURL leaves the client's address where scripts find it. It is a
// convenience: a failure is logged.
func (n *node) writeURL(url string) {
	// In one step: who waits for the file must not find it empty.
	path := filepath.Join(n.config.DataDir, "nats.url")
	err := os.WriteFile(path+".new", []byte(url+"\n"), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		n.log.Warn("the client address was not written", "err", err)
	}
}

// reportDrops tells the bridge what the embedded server lost, until ctx ends.
func (n *node) reportDrops(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case d := <-n.drops:
			if d.Kind.Frozen() {
				n.bridge.Frozen(d.At)
			} else {
				n.bridge.Overflowed(d.At.Add(-time.Second), d.At)
			}
		}
	}
}

// stop closes what start opened, from the top down.
func (n *node) stop() error {
	var errs []error
	if n.http != nil {
		errs = append(errs, n.http.close())
	}
	if n.conn != nil {
		n.conn.Close()
	}
	if n.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
		errs = append(errs, n.server.Shutdown(ctx))
		cancel()
	}
	if n.check != nil {
		errs = append(errs, n.check.Close())
	}
	if n.reader != nil {
		errs = append(errs, n.reader.Close())
	}
	if n.index != nil { // after its readers: the last to close it tidies up
		errs = append(errs, n.index.Close())
	}
	if n.reg != nil {
		errs = append(errs, n.reg.Close())
	}
	if n.registerLock != nil {
		errs = append(errs, n.registerLock.Release())
	}
	if n.lock != nil {
		_ = os.Remove(filepath.Join(n.config.DataDir, "nats.url")) // it names a server that is gone
		errs = append(errs, n.lock.Release())
	}
	return errors.Join(errs...)
}

func sameDir(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
