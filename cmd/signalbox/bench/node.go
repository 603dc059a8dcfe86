package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"signalbox/audit"
)

// Bounds of waits.
const (
	stillFor    = 5 * time.Second // no new row for so long: what is missing is lost
	settledIn   = 2 * time.Minute // an index that is behind longer is left alone
	lookEvery   = 5 * time.Millisecond
	lookClosely = time.Millisecond
	leastRate   = 500 // messages a second; slower than this is given up
)

// node is the running node with its publishers, and the bench's view of its
// register.
type node struct {
	options    Options
	dir        string
	process    *process
	publishers publishers
	conn       *nats.Conn
	reader     *audit.Reader
	phase      int
	orders     sync.WaitGroup // what the publishers are at
}

func startNode(ctx context.Context, o Options, dir string) (n *node, err error) {
	n = &node{options: o, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.stop())
		}
	}()
	var url string
	if n.process, url, err = serveNode(ctx, o, dir); err != nil {
		return n, err
	}
	if n.publishers, err = startPublishers(ctx, o.Publishers, o.Program, url); err != nil {
		return n, err
	}
	if n.conn, err = nats.Connect(url, nats.Name("signalbox bench")); err != nil {
		return n, fmt.Errorf("connect to the node: %w", err)
	}
	n.reader, err = audit.OpenReader(ctx, n.registerPath(), audit.ReaderOptions{})
	return n, err
}

func (n *node) registerPath() string { return filepath.Join(n.dir, "signalbox.db") }

// stop ends all processes, the node last.
func (n *node) stop() error {
	var errs []error
	if n.conn != nil {
		n.conn.Close()
	}
	if n.reader != nil {
		errs = append(errs, n.reader.Close())
	}
	errs = append(errs, n.publishers.stop())
	n.orders.Wait()
	if n.process != nil {
		errs = append(errs, n.process.stop())
	}
	n.conn, n.reader, n.publishers, n.process = nil, nil, nil, nil
	return errors.Join(errs...)
}

// sample is a moment at which the register was seen to end with a row.
type sample struct {
	at   time.Time
	last int64
}

// passage is what is known of messages that went through the node.
type passage struct {
	began   time.Time
	ended   time.Time // the last row of it was seen
	base    int64     // the last row before
	last    int64     // the last row of it
	lost    int
	doubled int
	indexed time.Time // the look-ups covered all of it; zero: not within settledIn
	samples []sample  // whenever the last row was seen to be another
}

// indexLag is how long after the last row the look-ups covered it, in seconds.
func (p *passage) indexLag() *float64 {
	if p.indexed.IsZero() {
		return ptr(settledIn.Seconds())
	}
	return ptr(max(0, p.indexed.Sub(p.ended).Seconds()))
}

// rate is the messages a second of n messages.
func (p *passage) rate(n int) float64 { return float64(n) / p.ended.Sub(p.began).Seconds() }

// seen is when a row was first seen.
func (p *passage) seen(id int64) time.Time {
	i, _ := slices.BinarySearchFunc(p.samples, id, func(s sample, id int64) int { return int(s.last - id) })
	return p.samples[min(i, len(p.samples)-1)].at
}

// pass publishes count messages, at a rate or as fast as the server takes them,
// looks at the register until it has them all or gets no more, and then counts
// them.
func (n *node) pass(ctx context.Context, count int, rate float64, every time.Duration, done func(int)) (*passage, error) {
	limit := time.Minute + time.Duration(float64(count)/leastRate*float64(time.Second))
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%d messages did not pass within %s", count, limit))
	defer cancel()
	n.phase++
	base, err := n.reader.LastID(ctx)
	if err != nil {
		return nil, err
	}
	p := &passage{base: base, began: time.Now()}
	sent := make(chan error, 1)
	list, o := n.publishers, order{Phase: n.phase, Count: count, Size: n.options.Size, Rate: rate}
	n.orders.Go(func() { sent <- list.publish(o) }) // ends with the order, or with the publishers' processes
	if err := n.look(ctx, p, count, every, sent, done); err != nil {
		return nil, err
	}
	for {
		if p.indexed, err = n.lookedUp(ctx, p.base+int64(count), false); err != nil {
			return nil, err
		}
		numbers := newTally(n.phase, n.publishers.counts(count))
		if err := n.count(ctx, p, numbers); err != nil {
			return nil, err
		}
		p.lost, p.doubled = numbers.lost(), numbers.doubled
		if p.last == 0 {
			p.last = base
		}
		if p.ended = p.began; len(p.samples) > 0 {
			p.ended = p.seen(p.last)
		}
		still := time.Since(p.lastChange()) > stillFor
		if p.lost == 0 || still {
			return p, nil
		}
		// Rows of others, such as ticks, were among those waited for.
		if err := n.look(ctx, p, math.MaxInt, every, nil, done); err != nil {
			return nil, err
		}
	}
}

func (p *passage) lastChange() time.Time {
	if len(p.samples) == 0 {
		return p.began
	}
	return p.samples[len(p.samples)-1].at
}

// look looks at the register until it has count more rows than before, or has
// got no more for stillFor since all was sent. A nil sent has been received.
func (n *node) look(ctx context.Context, p *passage, count int, every time.Duration, sent <-chan error, done func(int)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	allSent := time.Time{}
	if sent == nil {
		allSent = p.began
	}
	seen := p.base
	if len(p.samples) > 0 {
		seen = p.samples[len(p.samples)-1].last
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-sent:
			if err != nil {
				return err
			}
			allSent, sent = time.Now(), nil
		case <-tick.C:
		}
		last, err := n.reader.LastID(ctx)
		if err != nil {
			return errors.Join(err, n.process.check())
		}
		if now := time.Now(); last > seen {
			p.samples = append(p.samples, sample{now, last})
			done(int(last - seen))
			seen = last
		}
		if sent == nil && (seen-p.base >= int64(count) || time.Since(later(allSent, p.lastChange())) > stillFor) {
			return nil
		}
		if err := n.process.check(); err != nil {
			return err
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// lookedUp waits until the look-ups of the index, and its full text too where
// text is set, cover a row, and gives the moment; the zero time where they do
// not within settledIn.
func (n *node) lookedUp(ctx context.Context, id int64, text bool) (time.Time, error) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	until := time.Now().Add(settledIn)
	for time.Now().Before(until) {
		refs, search := n.reader.Indexed(ctx)
		if refs >= id && (!text || search >= id) {
			return time.Now(), nil
		}
		if err := n.process.check(); err != nil {
			return time.Time{}, err
		}
		select {
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-tick.C:
		}
	}
	return time.Time{}, nil
}

// settle waits until the node has nothing to do any more.
func (n *node) settle(ctx context.Context) error {
	last, err := n.reader.LastID(ctx)
	if err != nil {
		return err
	}
	_, err = n.lookedUp(ctx, last, true)
	return err
}

// registerBytes is the size of the register's file.
func (n *node) registerBytes() (int64, error) {
	info, err := os.Stat(n.registerPath())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("the node has left no register: %w", err)
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
