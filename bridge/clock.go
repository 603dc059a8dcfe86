package bridge

import "time"

// clockStep is the size from which a step of the log's time is announced.
const clockStep = 2 * time.Second

// advance is bus time after a message with log time t, where the one before
// had log time last: it follows the log and never goes back. When the log's
// time has stepped back, bus time is ahead of it and goes on at half speed
// until they meet, so that neither do leases last for ever nor does a deadline
// pass twice. All are nanoseconds; the result says whether the log's time
// stepped back by more than clockStep.
func advance(now, last, t int64) (next int64, stepped bool) {
	if now == 0 {
		return t, false
	}
	d := max(0, t-last)
	if now > last { // ahead of the log
		d = max(d/2, t-now)
	}
	return max(now+d, t), last-t > int64(clockStep)
}

// wait is how long it takes until bus time reaches the deadline, when now was
// bus time elapsed ago and the log's time then was last. Bus time that is ahead
// runs at half speed until they meet.
func wait(deadlineMS, now, last int64, elapsed time.Duration) time.Duration {
	left := deadlineMS*int64(time.Millisecond) - now
	if ahead := now - last; ahead > 0 {
		// Half speed for as long as it takes the log to catch up: 2 × ahead.
		left += min(max(left, 0), ahead)
	}
	// A tick that comes a little early finds nothing due; a millisecond spares it.
	return time.Duration(left) - elapsed + time.Millisecond
}
