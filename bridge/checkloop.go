package bridge

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"

	"signalbox/audit"
)

// checkTimeout bounds one attempt to ask a stream: what is sent while the
// connection is being lost is never answered.
const checkTimeout = 3 * time.Second

// check compares a log with the register until it gets an answer, and reads the
// log on from where the answer says. restart reads anew even where all is well.
func (l *loop) check(ctx context.Context, r *logReader, restart bool) error {
	v, err := l.verdictOn(ctx, r)
	if err != nil || ctx.Err() != nil {
		return err
	}
	if r == l.logs[0] {
		l.position.set(v.from - 1)
	}
	if !restart && v.opens == nil && len(v.gaps) == 0 && v.incarnation == r.cursor.Incarnation && v.from == r.cursor.Seq+1 {
		return nil
	}
	for _, g := range v.gaps {
		l.log.Warn("the log lacks messages that the register does not have", "stream", g.Stream, "from", g.From, "to", g.To, "reason", g.Reason)
	}
	if v.opens != nil {
		l.log.Info("a new incarnation of the log", "stream", r.name, "incarnation", v.opens.ID, "seq", v.from, "reason", v.opens.Reason)
	}
	r.halt()
	r.start(l.life, v, builder{root: l.config.Root}, l.js, l.items, l.troubles)
	if !l.opened || v.opens == nil && len(v.gaps) == 0 || !r.known || r.tap {
		return nil
	}
	// What was found is recorded with the next row; a tick makes sure of one. At
	// the start, bridge.started does.
	return l.appendCommand(clockName, verbTick, struct{}{})
}

// verdictOn asks until the stream answers; what a person must settle is the
// error.
func (l *loop) verdictOn(ctx context.Context, r *logReader) (verdict, error) {
	var v verdict
	ask := func() error {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		e, err := r.look(ctx, l.js, l.reg, l.config.NewRegister)
		if err != nil {
			if settle(err) {
				return backoff.Permanent(err)
			}
			return err
		}
		v, err = check(r.cursor, r.known, r.name, e, func() int64 { l.lastInc++; return l.lastInc })
		return err
	}
	retry := backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
	err := backoff.RetryNotify(ask, backoff.WithContext(retry, ctx), func(err error, _ time.Duration) {
		l.health.red(PartCheck, err.Error())
		l.log.Warn("the log cannot be checked; trying again", "stream", r.name, "err", err)
	})
	if ctx.Err() != nil {
		return v, nil
	}
	if err == nil {
		l.health.green(PartCheck)
	}
	return v, err
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

// recover starts a log's reader again after it ended by itself.
func (l *loop) recover(ctx context.Context, t trouble) error {
	if t.session != t.log.session {
		return nil
	}
	l.metrics.rereads.Inc()
	if t.err != nil {
		l.log.Warn("a log's reader stopped; checking the log", "stream", t.log.name, "err", t.err)
	}
	return l.check(ctx, t.log, true)
}

// connection follows the state of the connection: after each reconnect the
// server may have another log.
func (l *loop) connection(ctx context.Context, s nats.Status) error {
	switch s {
	case nats.CONNECTED:
		l.health.green(PartNATS)
		// What was asked of the server before is not asked of it now.
		if err := l.checkAll(ctx, true); err != nil {
			return err
		}
		l.publisher.resync()
		if l.restarted.CompareAndSwap(true, false) {
			return l.sayStarted(ctx)
		}
		return nil
	case nats.CLOSED:
		l.health.red(PartNATS, "the connection is closed")
		return errClosed
	default:
		l.health.red(PartNATS, "not connected: "+s.String())
		// How far the fold is says nothing about a log that may have changed.
		l.position.set(0)
	}
	return nil
}

var errClosed = errors.New("the connection to NATS was closed")
