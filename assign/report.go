package assign

import (
	"signalbox/step"
	"signalbox/wire"
)

// reasonReported is the reason of a change that its worker reported.
const reasonReported = "reported"

// Judge decides a report about a job. past is the attempt that the report
// names, nil where that has not ended. The checks come in this order: a repeat
// of what ended the attempt; ASSIGN_STATUS_UNKNOWN; ASSIGN_ATTEMPT_MISMATCH;
// ASSIGN_WORKER_MISMATCH; ASSIGN_TERMINAL. Beside a refusal the decision has
// messages at most.
func Judge(j Job, past *Attempt, r Report, s Settings, in step.Input) (Decision, *wire.Error) {
	if past != nil && past.recorded(&r, in.From) {
		return again(j, r.answer(past.Requeued && past.Outcome != Released)), nil
	}
	switch {
	case r.Status == saysUnknown:
		return Decision{}, refuse(&j, wire.AssignStatusUnknown, "use running, progress, succeeded, failed, timed_out or released",
			"%q is no status of a report", clip(r.Word))
	case r.Attempt != j.Attempt:
		return r.tooLate(j, past, in), attemptMismatch(&j, r.Attempt)
	case in.From != j.WorkerAgent:
		return Decision{}, workerMismatch(&j, in.From)
	case !j.Status.Live():
		return r.tooLate(j, past, in), terminal(&j)
	}
	d := Decision{Job: j}
	switch r.Status {
	case SaysRunning, SaysProgress:
		d.underWay(&r, in)
	case SaysReleased:
		d.close(r.end(), in)
		d.queue(ByRelease, in.NowMS+max(minRelease.Milliseconds(), r.after()), nil, in)
	case SaysSucceeded:
		d.close(r.end(), in)
		d.finish(Succeeded, in)
	default:
		d.close(r.end(), in)
		d.fail(Status(r.Status), s, r.RetryAfter, in)
	}
	if d.Effects.Reply == nil {
		reply := d.Job.Snapshot(inReplies)
		for name, v := range r.answer(d.Job.BegunBy == ByRetry && d.Job.Attempt > j.Attempt) {
			reply[name] = v
		}
		d.Effects.Reply = reply
	}
	return d, nil
}

// answer are the fields of the reply that a repeat gets like the first time.
func (r *Report) answer(retried bool) map[string]any {
	return map[string]any{"reported_attempt": r.Attempt, "reported_status": r.Status, "retried": retried}
}

func (r *Report) after() int64 {
	if r.RetryAfter == nil {
		return 0
	}
	return *r.RetryAfter
}

func (r *Report) end() end {
	return end{outcome: string(r.Status), reason: reasonReported, reported: true, retryable: r.Retryable, result: r.Result, err: r.Error}
}

// tooLate is what a refused report leaves: its supervisor hears of a final one
// by the worker that the attempt had.
func (r *Report) tooLate(j Job, past *Attempt, in step.Input) Decision {
	if past == nil || past.WorkerAgent != in.From || !r.Status.final() {
		return Decision{}
	}
	return late(j, r, in.From, in)
}

// underWay takes a report of an attempt that goes on. The first makes it
// running; a second "running" is a repeat; progress is announced. Each is a
// sign of life.
func (d *Decision) underWay(r *Report, in step.Input) {
	began := d.Job.Status == Queued
	switch {
	case began:
		d.start(in)
		d.moved(Queued, reasonReported, nil)
	default:
		d.alive(in)
	}
	if r.Status == SaysRunning {
		if !began {
			d.Effects.Reply = again(d.Job, r.answer(false)).Effects.Reply
		}
		return
	}
	body := map[string]any{"job_id": d.Job.JobID, "attempt": d.Job.Attempt, "worker_agent": d.Job.WorkerAgent,
		"supervisor_agent": d.Job.SupervisorAgent, "status": d.Job.Status}
	setValue(body, "result", r.Result, whole)
	setValue(body, "error", r.Error, whole)
	setValue(body, "metadata", r.Metadata, whole)
	d.happened("progress", body)
}

// fail makes of a closed attempt another one while retries are left, and the
// end of the job otherwise.
func (d *Decision) fail(to Status, s Settings, afterMS *int64, in step.Input) {
	j := &d.Job
	if !d.Ended.Retryable || j.RetryCount >= j.MaxRetries {
		d.finish(to, in)
		return
	}
	wait := s.Backoff.Delay(j.RetryCount+1, j.JobID, j.Attempt+1)
	if afterMS != nil {
		wait = *afterMS
	}
	d.queue(ByRetry, in.NowMS+wait, nil, in)
}
