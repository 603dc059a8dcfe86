package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"signalbox/audit"
	"signalbox/wire"
)

// Bounds of what a reader holds before it is folded: of the 16 MiB that may be
// read ahead, two pull requests bring 12, and the rest waits in the queue of
// the loop.
const (
	aheadBytes = 4 << 20
	queueItems = 16384
)

// logReader is one log as the loop sees it. All but the goroutine of its
// session belongs to the loop.
type logReader struct {
	logSpec
	stream  jetstream.Stream
	cursor  audit.Cursor
	known   bool   // the register has a cursor for it
	pending uint64 // messages behind the last one received

	verdict  verdict   // from which it is being read
	failures int       // since a message of it was folded
	again    time.Time // when it is to be checked again; zero when it has passed

	session int
	stop    context.CancelFunc
	joined  sync.WaitGroup
	ahead   *semaphore.Weighted // bytes that are read but not folded
}

// trouble is what ends a reader's session: the log must be checked again.
type trouble struct {
	log     *logReader
	session int
	err     error // nil when only a number was out of order
}

// start reads the log from where the verdict says, in a goroutine of its own,
// until halt, or until something is wrong with the log, which it reports.
func (l *logReader) start(ctx context.Context, v verdict, b builder, js jetstream.JetStream, out chan<- item, report chan<- trouble) {
	l.session++
	l.verdict = v
	ctx, l.stop = context.WithCancel(ctx)
	l.ahead = semaphore.NewWeighted(aheadBytes)
	b.log, b.session, b.stream, b.incarnation, b.tap = l, l.session, l.name, v.incarnation, l.tap
	s := session{ctx: ctx, js: js, stream: l.stream, verdict: v, build: &b, out: out, ahead: l.ahead}
	l.joined.Add(1)
	go func() {
		defer l.joined.Done()
		err := s.run()
		if ctx.Err() != nil {
			return
		}
		select {
		case report <- trouble{log: l, session: s.build.session, err: err}:
		case <-ctx.Done():
		}
	}()
}

// halt ends the session and waits for it. What it has delivered is dropped.
func (l *logReader) halt() {
	if l.stop != nil {
		l.stop()
		l.joined.Wait()
		l.stop = nil
	}
	l.session++
}

// session is one reader's goroutine.
type session struct {
	ctx     context.Context //nolint:containedctx // the life of the session is the life of this value
	js      jetstream.JetStream
	stream  jetstream.Stream
	verdict verdict
	build   *builder
	out     chan<- item
	ahead   *semaphore.Weighted
}

func (s *session) run() error {
	p, err := newPull(s.ctx, s.js.Conn(), s.stream, s.verdict.from)
	if err != nil {
		return fmt.Errorf("read stream: %w", err)
	}
	defer p.close()
	next := s.verdict.from
	for {
		m, meta, err := p.next(s.ctx)
		if err != nil {
			return fmt.Errorf("read stream: %w", err)
		}
		it := s.build.build(m.Subject, wire.Header(m.Header), m.Data, meta.Sequence.Stream, meta.Timestamp)
		it.pending = meta.NumPending
		if it.row.Seq < next {
			return nil
		}
		if it.row.Seq > next {
			if err := s.fill(next, &it); err != nil {
				return err
			}
		}
		next = it.row.Seq + 1
		if !s.pass(it) {
			return nil
		}
	}
}

// fill asks the stream for what lies between next and a message that came too
// early; what it does not have is a gap before the message that follows it.
func (s *session) fill(next uint64, it *item) error {
	for next < it.row.Seq {
		m, err := stored(s.ctx, s.js.Conn(), s.build.stream, next, true)
		if err != nil && !errors.Is(err, errNoMessage) {
			return fmt.Errorf("read stream: %w", err)
		}
		found := *it
		if err == nil && m.seq < it.row.Seq {
			found = s.build.build(m.subject, wire.Header(m.header), m.data, m.seq, m.at)
			found.pending = it.pending + it.row.Seq - m.seq
		}
		if found.row.Seq > next {
			found.gaps = append(found.gaps, audit.Gap{Stream: s.build.stream, Incarnation: s.build.incarnation,
				From: next, To: found.row.Seq - 1, Reason: audit.Missing})
		}
		if found.row == it.row {
			*it = found
			return nil
		}
		next = found.row.Seq + 1
		if !s.pass(found) {
			return nil
		}
	}
	return nil
}

// pass hands an item to the loop as soon as there is room; what the verdict
// says goes before the first.
func (s *session) pass(it item) bool {
	it.opens, s.verdict.opens = s.verdict.opens, nil
	it.gaps, s.verdict.gaps = append(s.verdict.gaps, it.gaps...), nil
	it.size = min(it.size, aheadBytes)
	if s.ahead.Acquire(s.ctx, int64(it.size)) != nil {
		return false
	}
	select {
	case s.out <- it:
		return true
	case <-s.ctx.Done():
		return false
	}
}
