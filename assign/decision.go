package assign

import (
	"encoding/json"

	"signalbox/step"
)

// Decision is what a rule makes of a job: the job as it is to be from now on,
// and what follows. A rule that refuses gives messages at most. The zero
// Decision is nothing.
type Decision struct {
	Job     Job
	New     bool     // the job has no row yet
	Changed bool     // the job must be written
	Beat    bool     // only its lease must be
	Ended   *Attempt // to be kept: it ended in this step
	Effects step.Effects
}

// moved announces that the job's status has changed, or that it was queued
// again: one transition, whatever led to it.
func (d *Decision) moved(from Status, reason string, more map[string]any) {
	body := d.Job.Snapshot(inEvents)
	for name, v := range more {
		body[name] = v
	}
	d.Effects.Transitions = append(d.Effects.Transitions, step.Transition{Key: d.Job.JobID, From: string(from), To: string(d.Job.Status),
		Reason: reason, Body: body, CorrelationID: d.Job.CorrelationID, TraceID: d.Job.TraceID})
}

// happened announces what is no change of the status.
func (d *Decision) happened(what string, body map[string]any) {
	d.Effects.Events = append(d.Effects.Events, step.Happened{Key: d.Job.JobID, What: what, Body: body,
		CorrelationID: d.Job.CorrelationID, TraceID: d.Job.TraceID})
}

// again is the answer to a command that has had its effect already.
func again(j Job, more map[string]any) Decision {
	reply := j.Snapshot(inReplies)
	for name, v := range more {
		reply[name] = v
	}
	reply["idempotent"] = true
	return Decision{Job: j, Effects: step.Effects{Reply: reply}}
}

// start makes a queued attempt a running one.
func (d *Decision) start(in step.Input) {
	j := &d.Job
	j.Status, j.StartedAtMS, j.StartedID = Running, in.NowMS, in.ID
	j.DeadlineMS = in.NowMS + j.TimeoutMS
	d.alive(in)
	j.UpdatedAtMS, d.Changed = in.NowMS, true
}

// alive gives a running attempt its whole lease again. Its deadline stays.
func (d *Decision) alive(in step.Input) {
	if d.Job.LeaseMS != 0 && d.Job.Status == Running {
		d.Job.LeaseExpires, d.Beat = in.NowMS+d.Job.LeaseMS, true
	}
}

// end is how an attempt ends.
type end struct {
	outcome   string
	reason    string // of the transition
	reported  bool
	retryable bool
	result    json.RawMessage
	err       json.RawMessage
}

// close ends the job's attempt and keeps it.
func (d *Decision) close(e end, in step.Input) {
	a := d.Job.live()
	a.FinishedAtMS, a.FinishedID = in.NowMS, in.ID
	a.Outcome, a.Reason, a.Reported, a.Retryable, a.Result, a.Error = e.outcome, e.reason, e.reported, e.retryable, e.result, e.err
	d.Ended, d.Changed = &a, true
}

// finish makes the job terminal with the attempt that was closed.
func (d *Decision) finish(to Status, in step.Input) {
	j := &d.Job
	from := j.Status
	j.Status, j.Result, j.Error = to, d.Ended.Result, d.Ended.Error
	j.CompletedAtMS, j.UpdatedAtMS, j.DeadlineMS, j.LeaseExpires = in.NowMS, in.NowMS, 0, 0
	d.tellEnd(in)
	d.moved(from, d.Ended.Reason, nil)
}

// queue begins the next attempt at runAtMS: as one change, so that nobody sees
// the job without an attempt. What the last one left stays on its own row.
// more is what else there is to announce.
func (d *Decision) queue(by string, runAtMS int64, more map[string]any, in step.Input) {
	j := &d.Job
	from, worker := j.Status, j.WorkerAgent
	j.Status = Queued
	j.Attempt++
	if j.WorkerTopic != "" {
		j.WorkerAgent = "" // it is offered again
	}
	if by != ByRelease {
		j.RetryCount++
		j.LastRetryAtMS = in.NowMS
	}
	j.RunAtMS = runAtMS
	j.DeadlineMS = max(in.NowMS, runAtMS) + j.TimeoutMS
	j.StartedAtMS, j.StartedID, j.CompletedAtMS, j.DispatchedAtMS, j.LeaseExpires = 0, 0, 0, 0, 0
	j.Result, j.Error = nil, nil
	j.BegunBy, j.BegunAtMS, j.BegunID = by, in.NowMS, in.ID
	j.UpdatedAtMS, d.Changed = in.NowMS, true
	if d.Ended != nil {
		d.Ended.Requeued = true
		more = map[string]any{"ended": d.Ended.Snapshot(inEvents)}
	}
	if by != ByRelease {
		d.tellRetry(worker, more, in)
	}
	d.dispatch(in)
	d.moved(from, by, more)
}

// dispatch queues the handoff of an attempt that was just queued, or has waited
// for its run_at, if that has come.
func (d *Decision) dispatch(in step.Input) {
	if in.NowMS < d.Job.RunAtMS {
		return
	}
	d.Job.DispatchedAtMS, d.Job.UpdatedAtMS, d.Changed = in.NowMS, in.NowMS, true
	d.handOff(in)
}
