package bridge

import "time"

// armTick sets the one timer to the earliest deadline of all tables. Without
// a move of deadlines since the last time, it stands already.
func (l *loop) armTick(moved bool) error {
	if !moved && l.nextDue != 0 {
		return nil
	}
	l.nextDue = never
	// Deadlines that failed are left out for a while: they must neither spin nor
	// hold up those behind them.
	due, err := l.folder.machines.due(l.reg, never, len(l.stuck)+1)
	if err != nil {
		return err
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
		return err
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

// sendTick appends the one tick that may be in flight.
func (l *loop) sendTick() error {
	if l.nextDue == never && l.retryAt.IsZero() {
		l.tick.Reset(time.Hour)
		return nil
	}
	if !l.inFlight.IsZero() && time.Since(l.inFlight) < tickLost {
		l.tick.Reset(tickLost - time.Since(l.inFlight))
		return nil
	}
	l.inFlight = time.Now()
	l.tick.Reset(tickLost)
	return l.appendCommand(clockName, verbTick, struct{}{})
}
