package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"signalbox/audit"
)

// checkTimeout bounds one attempt to ask a stream: what is sent while the
// connection is being lost is never answered.
const checkTimeout = 2 * time.Second

// How long a log that cannot be asked is left alone, and how often the loop
// looks up from its work.
const (
	checkFirst = 100 * time.Millisecond
	checkLast  = 5 * time.Second
	beatEvery  = 250 * time.Millisecond
)

// check compares a log with the register, and reads the log on from where the
// answer says; restart reads it anew even where all is well. A log that cannot
// be asked is not read until it can: it is asked again later, while the others
// go on. The error is what a person must settle.
func (l *loop) check(ctx context.Context, r *logReader, restart bool) error {
	if !l.nc.IsConnected() {
		l.postpone(r, nats.ErrDisconnected) // a request would be sent into the void
		return nil
	}
	v, err := l.verdictOn(ctx, r)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil && settle(err):
		return err
	case err != nil:
		l.postpone(r, err)
		return nil
	}
	l.checked(r)
	if r == l.logs[0] {
		l.position.set(v.from - 1)
	}
	if !restart && r.stop != nil && v.same(r.verdict, r.cursor) {
		return nil
	}
	for _, g := range v.gaps {
		l.log.Warn("the log lacks messages that the register does not have", "stream", g.Stream, "from", g.From, "to", g.To, "reason", g.Reason)
	}
	if v.opens != nil {
		l.lastInc = max(l.lastInc, v.opens.ID)
		l.log.Info("a new incarnation of the log", "stream", r.name, "incarnation", v.opens.ID, "seq", v.from, "reason", v.opens.Reason)
	}
	r.halt()
	r.start(l.life, v, builder{root: l.config.Root}, l.js, l.items, l.troubles)
	if r != l.logs[0] {
		return nil
	}
	// What was acknowledged may be lost with the log.
	l.publisher.resync()
	if l.opened && r.known && (v.opens != nil || len(v.gaps) > 0) {
		// What was found is recorded with the next row; a tick makes sure of one.
		// At the start, bridge.started does.
		l.tickNow()
	}
	return nil
}

// same reports whether a log is being read already as the verdict says.
func (v verdict) same(running verdict, c audit.Cursor) bool {
	if v.opens != nil { // and nothing of it has been folded yet
		return running.opens != nil && running.from == v.from && running.opens.StreamID == v.opens.StreamID &&
			running.opens.Reason == v.opens.Reason
	}
	return len(v.gaps) == 0 && v.incarnation == c.Incarnation && v.from == c.Seq+1
}

// verdictOn asks the stream once.
func (l *loop) verdictOn(ctx context.Context, r *logReader) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	e, err := r.look(ctx, l.js, l.reg, l.config.NewRegister)
	if err != nil {
		return verdict{}, err
	}
	return check(r.cursor, r.known, r.name, e, l.nextIncarnation(r))
}

// nextIncarnation is the number that an incarnation of the log would have: the
// one that waits for its first message, or the next that no log has.
func (l *loop) nextIncarnation(r *logReader) func() int64 {
	return func() int64 {
		if w := r.verdict.opens; w != nil && (!r.known || w.ID != r.cursor.Incarnation) {
			return w.ID
		}
		return l.lastInc + 1
	}
}

// postpone stops reading a log until it can be checked.
func (l *loop) postpone(r *logReader, err error) {
	r.halt()
	delay := min(checkFirst<<min(r.failures, 10), checkLast)
	r.failures++
	r.again = time.Now().Add(delay)
	l.health.red(PartCheck, fmt.Sprintf("stream %s: %v", r.name, err))
	l.log.Warn("the log cannot be read; trying again", "stream", r.name, "err", err, "in", delay)
}

// checked notes that a log has passed.
func (l *loop) checked(r *logReader) {
	r.again = time.Time{}
	for _, other := range l.logs {
		if !other.again.IsZero() {
			return
		}
	}
	l.health.green(PartCheck)
}

// settle reports whether only a person can help.
func settle(err error) bool {
	return errors.Is(err, ErrForeignStream) || errors.Is(err, ErrOtherRegister) || errors.Is(err, ErrRetention) ||
		errors.Is(err, audit.ErrFatal)
}

func (l *loop) checkAll(ctx context.Context, restart bool) error {
	for _, r := range l.logs {
		if err := l.check(ctx, r, restart); err != nil {
			return err
		}
	}
	return nil
}

// recover reads a log again after its reader ended by itself. It waits a moment
// first: a server that says farewell answers nothing any more, and what ends
// without a message must not go round in circles.
func (l *loop) recover(ctx context.Context, t trouble) error {
	if t.session != t.log.session {
		return nil
	}
	l.metrics.rereads.Inc()
	if t.err != nil {
		l.postpone(t.log, t.err)
		return nil
	}
	return l.check(ctx, t.log, true)
}

// beat looks at what no event can be relied on to tell: the connection, and the
// logs that are to be asked again.
func (l *loop) beat(ctx context.Context) error {
	if err := l.connection(ctx); err != nil {
		return err
	}
	for _, r := range l.logs {
		if !r.again.IsZero() && time.Now().After(r.again) && l.nc.IsConnected() {
			if err := l.check(ctx, r, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// connection follows the state of the connection: after each reconnect the
// server may have another log. The client drops changes of its state that
// nobody reads in time, so they only wake us.
func (l *loop) connection(ctx context.Context) error {
	switch status := l.nc.Status(); status {
	case nats.CONNECTED:
		n := l.nc.Stats().Reconnects
		if n == l.reconnects && !l.apart {
			return nil
		}
		l.reconnects, l.apart = n, false
		l.health.green(PartNATS)
		// What was asked of the server before is not asked of it now.
		if err := l.checkAll(ctx, true); err != nil {
			return err
		}
		if l.restarted.CompareAndSwap(true, false) {
			l.tell(verbStarted, l.startedBody())
		}
	case nats.CLOSED:
		l.health.red(PartNATS, "the connection is closed")
		return errClosed
	default:
		l.apart = true
		l.health.red(PartNATS, "not connected: "+status.String())
		// How far the fold is says nothing about a log that may have changed.
		l.position.set(0)
	}
	return nil
}

var errClosed = errors.New("the connection to NATS was closed")
