package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
)

// Phase is a part of the bench that may be left out.
type Phase string

// The phases, in the order in which they run.
const (
	Ceiling Phase = "ceiling"
	Capture Phase = "capture"
	API     Phase = "api"
	Lag     Phase = "lag"
	Burst   Phase = "burst"
	Memory  Phase = "memory"

	Deliveries Phase = "deliveries"
	Inbox      Phase = "inbox"
	Jobs       Phase = "jobs"
)

// Phases are all of them.
func Phases() []Phase {
	return []Phase{Ceiling, Capture, Deliveries, API, Lag, Burst, Memory, Inbox, Jobs}
}

// Options of a bench.
type Options struct {
	Program        string // the executable with the commands serve and bench-publish
	Version        string
	Dir            string    // where the run works: new or empty
	Messages       int       // of the capture and of each ceiling
	BurstMessages  int       // of the burst
	MemoryMessages int       // that have gone through the node when its memory is read
	Publishers     int       // processes
	Size           int       // of a body, bytes
	Only           []Phase   // none: all
	Set            []string  // settings of the node, key=value
	Keep           bool      // leave Dir behind
	Progress       io.Writer // where bars go; nil for none
}

// Limits of options.
const (
	maxMessages = 100_000_000
	maxSize     = 512 << 10
)

// Validate says what is wrong with the options.
func (o *Options) Validate() error {
	for _, n := range []struct {
		name            string
		value, from, to int
	}{
		{"messages", o.Messages, 1, maxMessages}, {"burst-messages", o.BurstMessages, 1, maxMessages},
		{"memory-messages", o.MemoryMessages, 1, maxMessages}, {"publishers", o.Publishers, 1, maxPublisher},
		{"size", o.Size, minSize, maxSize},
	} {
		if n.value < n.from || n.value > n.to {
			return fmt.Errorf("%s is %d; it may be %d to %d", n.name, n.value, n.from, n.to)
		}
	}
	for _, p := range o.Only {
		if !slices.Contains(Phases(), p) {
			return fmt.Errorf("there is no phase %q; there are %v", p, Phases())
		}
	}
	return nil
}

func (o *Options) wants(p Phase) bool { return len(o.Only) == 0 || slices.Contains(o.Only, p) }

// Run measures. Missed targets are no error; ErrNotEmpty is one where Dir holds
// something.
func Run(ctx context.Context, o Options) (result *Result, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := emptyDir(o.Dir); err != nil {
		return nil, err
	}
	if !o.Keep {
		defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
	}
	r := &run{options: o, result: &Result{Messages: o.Messages, Publishers: o.Publishers, Size: o.Size, Machine: Machine{
		Cores: runtime.NumCPU(), OS: runtime.GOOS, Arch: runtime.GOARCH, Signalbox: o.Version, Go: runtime.Version()}}}
	if o.wants(Ceiling) {
		if r.result.CeilingBefore, err = r.ceiling(ctx, "ceiling-before"); err != nil {
			return nil, err
		}
	}
	if slices.ContainsFunc(Phases(), func(p Phase) bool { return p != Ceiling && o.wants(p) }) {
		if err := r.withNode(ctx); err != nil {
			return nil, err
		}
	} else if r.result.CeilingAfter, err = r.ceiling(ctx, "ceiling-after"); err != nil {
		return nil, err
	}
	r.result.compare()
	return r.result, nil
}

// ErrNotEmpty means that the directory holds something; it was left alone.
var ErrNotEmpty = errors.New("is a directory that is not empty")

// emptyDir makes a directory, or finds it empty: the bench fills a register
// with noise, and no register of anybody may be that one.
func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s %w: the bench works in a new or empty one", dir, ErrNotEmpty)
	}
	return err
}

// run is one run.
type run struct {
	options Options
	result  *Result
	node    *node
}

// ceiling measures one ceiling and removes its register.
func (r *run) ceiling(ctx context.Context, name string) (*float64, error) {
	dir := filepath.Join(r.options.Dir, name)
	bar := r.bar(name, r.options.Messages)
	defer bar.end()
	rate, err := ceiling(ctx, dir, r.options.Messages, r.options.Size, bar.add)
	return &rate, errors.Join(err, os.RemoveAll(dir))
}

// withNode measures all that needs a node.
func (r *run) withNode(ctx context.Context) (err error) {
	r.node, err = startNode(ctx, r.options, filepath.Join(r.options.Dir, "node"))
	if err != nil {
		return err
	}
	stop := sync.OnceValue(r.node.stop)
	defer func() {
		// When ctx has ended, so have the processes, and not well: that is known.
		if stopped := stop(); ctx.Err() == nil {
			err = errors.Join(err, stopped)
		}
	}()
	if err := r.versions(ctx); err != nil {
		return err
	}
	// To nobody, each message would be announced to its sender as such.
	if err := r.node.register(ctx, live); err != nil {
		return err
	}
	for _, step := range []struct {
		phase Phase
		do    func(context.Context) error
	}{
		{Capture, r.capture}, {Ceiling, r.ceilingAfter}, {Deliveries, r.deliveries}, {API, r.api}, {Lag, r.lag}, {Burst, r.burst}, {Memory, r.memory}, {Inbox, r.inbox}, {Jobs, r.jobs},
	} {
		if !r.options.wants(step.phase) {
			continue
		}
		if err := r.node.settle(ctx); err != nil {
			return err
		}
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.phase, err)
		}
	}
	rows, err := r.node.reader.LastID(ctx)
	if err != nil {
		return err
	}
	if err := stop(); err != nil { // a stopped node leaves all in the one file
		return err
	}
	size, err := r.node.registerBytes()
	if err == nil && rows > 0 {
		r.result.DBBytesPerMsg = ptr(float64(size) / float64(rows))
	}
	return err
}

// versions notes what takes part.
func (r *run) versions(ctx context.Context) error {
	r.result.Machine.NATSServer = r.node.conn.ConnectedServerVersion()
	return r.node.reader.View(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, `SELECT sqlite_version()`).Scan(&r.result.Machine.SQLite)
	})
}

func ptr[T any](v T) *T { return &v }
