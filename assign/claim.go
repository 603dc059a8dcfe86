package assign

import (
	"signalbox/step"
	"signalbox/wire"
)

// ClaimCommand is the body of claim.
type ClaimCommand struct {
	JobID       string `json:"job_id"`
	WorkerAgent string `json:"worker_agent"` // must be the sender
	Attempt     *int64 `json:"attempt"`      // the attempt that was offered; any if left out
}

// HeartbeatCommand is the body of heartbeat.
type HeartbeatCommand struct {
	JobID       string `json:"job_id"`
	WorkerAgent string `json:"worker_agent"` // must be the sender
	Attempt     *int64 `json:"attempt"`      // required
}

// Claim gives an attempt to its sender and makes it running. Of an offered job
// the first claim wins and the others are refused with ASSIGN_CLAIMED; of a job
// for one agent only that agent may claim. The winner's next claim of the same
// attempt is a repeat.
func Claim(j Job, c ClaimCommand, in step.Input) (Decision, *wire.Error) {
	stated := given(c.Attempt)
	switch {
	case c.Attempt != nil && stated != j.Attempt:
		return Decision{}, attemptMismatch(&j, stated)
	case j.WorkerAgent != "" && j.WorkerAgent != in.From && j.WorkerTopic == "":
		return Decision{}, workerMismatch(&j, in.From)
	case j.WorkerAgent != "" && j.WorkerAgent != in.From:
		return Decision{}, refuse(&j, wire.AssignClaimed, "leave it to the winner",
			"attempt %d of job %q was claimed by %q; its status is %s", j.Attempt, j.JobID, j.WorkerAgent, j.Status)
	case !j.Status.Live():
		return Decision{}, terminal(&j)
	case j.Status == Running:
		more := map[string]any{}
		setValue(more, "task", j.Task, whole)
		setValue(more, "payload", j.Payload, whole)
		return again(j, more), nil
	case j.DispatchedAtMS == 0:
		return Decision{}, refuse(&j, wire.AssignNotDue, "wait for its handoff",
			"job %q is not to run for another %s", j.JobID, millis(max(0, j.RunAtMS-in.NowMS)))
	}
	d := Decision{Job: j}
	d.Job.WorkerAgent = in.From
	d.start(in)
	d.moved(Queued, "claimed", nil)
	d.Effects.Reply = d.Job.Snapshot(whole)
	return d, nil
}

// Heartbeat is a sign of life of a running attempt: it has its whole lease
// again. The deadline stays.
func Heartbeat(j Job, c HeartbeatCommand, in step.Input) (Decision, *wire.Error) {
	stated := given(c.Attempt)
	switch {
	case stated != j.Attempt:
		return Decision{}, attemptMismatch(&j, stated)
	case in.From != j.WorkerAgent:
		return Decision{}, workerMismatch(&j, in.From)
	case !j.Status.Live():
		return Decision{}, terminal(&j)
	case j.Status != Running:
		return Decision{}, refuse(&j, wire.AssignNotRunning, "claim it, or report it running, first",
			"attempt %d of job %q is not running", j.Attempt, j.JobID)
	}
	d := Decision{Job: j}
	d.alive(in)
	reply := map[string]any{"job_id": j.JobID, "attempt": j.Attempt, "status": j.Status, "deadline_ms": j.DeadlineMS,
		"server_time_ms": in.NowMS}
	if d.Job.LeaseExpires != 0 {
		reply["lease_expires_at_ms"] = d.Job.LeaseExpires
	}
	d.Effects.Reply = reply
	return d, nil
}

// given is the attempt that a command names, 0 for none.
func given(attempt *int64) int64 {
	if attempt == nil {
		return 0
	}
	return *attempt
}
