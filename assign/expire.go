package assign

import (
	"signalbox/step"
)

// Why an attempt timed out.
const (
	reasonDeadline = "deadline_over"
	reasonLease    = "lease_over"
)

// Expire is what a tick makes of a job: it dispatches what is due, and ends
// what is over. The job may have changed since it was found; then, unless it is
// due again, it is left alone.
func Expire(j Job, s Settings, in step.Input) Decision {
	due := j.DueAtMS()
	if due == 0 || in.NowMS < due {
		return Decision{}
	}
	d := Decision{Job: j}
	switch {
	case in.NowMS >= j.DeadlineMS:
		d.timeOut(reasonDeadline, "not done within "+millis(j.TimeoutMS), s, in)
	case j.Status == Running:
		d.timeOut(reasonLease, "no sign of life for "+millis(j.LeaseMS), s, in)
	default:
		d.dispatch(in)
		d.happened("dispatched", d.Job.Snapshot(inEvents))
	}
	return d
}

func (d *Decision) timeOut(reason, message string, s Settings, in step.Input) {
	d.callOff(string(TimedOut), in)
	d.close(end{outcome: string(TimedOut), reason: reason, retryable: true,
		err: problem(map[string]string{"code": reason, "message": message})}, in)
	d.fail(TimedOut, s, nil, in)
}

// Restart gives a lease that had not run out by the last message before a start
// its whole length again: while the bridge was away nobody could renew it. The
// deadline stays.
func Restart(j Job, nowMS, lastMS int64) Job {
	if j.Status == Running && lastMS < j.LeaseExpires {
		j.LeaseExpires = nowMS + j.LeaseMS
	}
	return j
}
