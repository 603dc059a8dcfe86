package bridge

import (
	"time"

	"signalbox/audit"
)

// armTick sets the one timer to the earliest deadline of all tables. Without
// a move of deadlines since the last time, it stands already.
func (l *loop) armTick(moved bool) error {
	if !moved && l.nextDue != 0 {
		return nil
	}
	l.nextDue = never
	// Deadlines that failed are left out for a while: they must neither spin nor
	// hold up those behind them.
	due, err := l.folder.machines.due(l.reg, never, len(l.stuck)+1, func(Machine, error) {})
	if err != nil {
		return l.armLater(err)
	}
	l.retryAt = time.Time{}
	for _, d := range due {
		until, failed := l.stuck[d.dueKey()]
		if !failed || time.Now().After(until) {
			delete(l.stuck, d.dueKey())
			l.nextDue = d.deadline.AtMS
			break
		}
		if l.retryAt.IsZero() || until.Before(l.retryAt) {
			l.retryAt = until
		}
	}
	oldest, some, err := l.reg.OldestOutcome()
	if err != nil {
		return l.armLater(err)
	}
	if some {
		l.nextDue = min(l.nextDue, oldest+keepOutcomes.Milliseconds()+1)
	}
	d := time.Hour
	if l.nextDue != never {
		state := l.reg.State()
		d = max(wait(l.nextDue, state.BusNS, state.LogNS, time.Since(l.foldedAt)), time.Until(l.notTick), 0)
	}
	if !l.retryAt.IsZero() {
		d = min(d, time.Until(l.retryAt))
	}
	l.tick.Reset(d)
	return nil
}

// armLater looks for deadlines again in a moment, where the register may be
// asked again at all.
func (l *loop) armLater(err error) error {
	if !audit.Retryable(err) {
		return err
	}
	l.log.Warn("the next deadline was not read; trying again", "err", err)
	l.retryAt = time.Now().Add(tickAgain)
	l.tick.Reset(tickAgain)
	return nil
}

// tickNow sends a tick as soon as possible.
func (l *loop) tickNow() {
	l.retryAt, l.inFlight = time.Now(), time.Time{}
	l.tick.Reset(0)
}

// tickAgain is when a tick that the client did not take is tried again.
const tickAgain = time.Second

// sendTick appends the one tick that may be in flight.
func (l *loop) sendTick() {
	if l.nextDue == never && l.retryAt.IsZero() {
		l.tick.Reset(time.Hour)
		return
	}
	if !l.inFlight.IsZero() && time.Since(l.inFlight) < tickLost {
		l.tick.Reset(tickLost - time.Since(l.inFlight))
		return
	}
	l.rollUp() // who beat in time must not be found late
	if err := l.appendCommand(clockName, verbTick, struct{}{}); err != nil {
		l.log.Warn("a tick was not sent; trying again", "err", err)
		l.tick.Reset(tickAgain)
		return
	}
	l.inFlight = time.Now()
	l.tick.Reset(tickLost)
}
