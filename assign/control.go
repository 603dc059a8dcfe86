package assign

import (
	"encoding/json"

	"signalbox/step"
	"signalbox/wire"
)

// maxReason bounds the reasons that callers give, in bytes.
const maxReason = 1000

// RetryCommand is the body of retry.
type RetryCommand struct {
	JobID   string `json:"job_id"`
	Attempt *int64 `json:"attempt"` // the attempt that is to be repeated; the last one if left out
	Force   bool   `json:"force"`   // also where no retries are left
	Reason  string `json:"reason"`
}

// CancelCommand is the body of cancel.
type CancelCommand struct {
	JobID  string `json:"job_id"`
	Reason string `json:"reason"`
}

// mayControl says whether the sender may retry and cancel the job: its
// supervisor, its worker and operators. As long as senders are not
// authenticated an id proves nothing, so everybody may.
func mayControl(_ *Job, _ string) *wire.Error { return nil }

// Retry begins another attempt of a job that has failed, timed out or was
// cancelled: at once, with a fresh deadline. rival is another live job of the
// supervisor with the same dedup_key, or nil.
func Retry(j Job, c RetryCommand, rival *Job, in step.Input) (Decision, *wire.Error) {
	if refusal := mayControl(&j, in.From); refusal != nil {
		return Decision{}, refusal
	}
	stated := given(c.Attempt)
	repeat := j.BegunBy == ByRequest && j.Status.Live()
	switch {
	case repeat && (c.Attempt == nil || stated == j.Attempt-1):
		return again(j, map[string]any{"retried": true}), nil
	case c.Attempt != nil && stated != j.Attempt:
		return Decision{}, attemptMismatch(&j, stated)
	case j.Status.Live() || j.Status == Succeeded:
		return Decision{}, refuse(&j, wire.AssignNotRetryable, "only what has failed, timed out or was cancelled can be tried again",
			"the status of job %q is %s", j.JobID, j.Status)
	case j.RetryCount >= j.MaxRetries && !c.Force:
		return Decision{}, refuse(&j, wire.AssignRetryExhausted, `"force":true tries it all the same`,
			"job %q has had %d of %d retries", j.JobID, j.RetryCount, j.MaxRetries)
	case rival != nil:
		return Decision{}, refuse(rival, wire.AssignDedupConflict, "wait for the other job, or cancel it",
			"job %q has taken over the dedup_key of job %q", rival.JobID, j.JobID)
	}
	d := Decision{Job: j}
	more := map[string]any{"requested_by": in.From}
	if c.Reason != "" {
		more["request_reason"] = c.Reason
	}
	d.queue(ByRequest, in.NowMS, more, in)
	reply := d.Job.Snapshot(inReplies)
	reply["retried"] = true
	d.Effects.Reply = reply
	return d, nil
}

// Cancel ends a job that is queued or running. Its worker is told to stop.
func Cancel(j Job, c CancelCommand, in step.Input) (Decision, *wire.Error) {
	if refusal := mayControl(&j, in.From); refusal != nil {
		return Decision{}, refusal
	}
	switch {
	case j.Status == Cancelled:
		return again(j, nil), nil
	case !j.Status.Live():
		return Decision{}, terminal(&j)
	}
	d := Decision{Job: j}
	reason := "cancelled"
	if c.Reason != "" {
		reason = c.Reason
	}
	d.callOff(reason, in)
	d.close(end{outcome: string(Cancelled), reason: "cancelled", retryable: true,
		err: problem(map[string]string{"code": "cancelled", "message": reason, "cancelled_by": in.From})}, in)
	d.finish(Cancelled, in)
	d.Effects.Reply = d.Job.Snapshot(inReplies)
	return d, nil
}

// problem is an error that the machine itself gives an attempt.
func problem(fields map[string]string) json.RawMessage {
	raw, _ := json.Marshal(fields) // texts always marshal
	return raw
}
