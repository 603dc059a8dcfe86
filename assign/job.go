package assign

import (
	"encoding/json"
)

// Status is the state of a job.
type Status string

// The states of a job. The last four are terminal: only the command retry
// leaves them, and succeeded for nothing.
const (
	Queued    Status = "queued"
	Running   Status = "running"
	Succeeded Status = "succeeded"
	Failed    Status = "failed"
	TimedOut  Status = "timed_out"
	Cancelled Status = "cancelled"
)

// statuses are all of them.
var statuses = [...]Status{Queued, Running, Succeeded, Failed, TimedOut, Cancelled}

func (s Status) known() bool {
	for _, known := range statuses {
		if s == known {
			return true
		}
	}
	return false
}

// Live reports whether the job is still to be done.
func (s Status) Live() bool { return s == Queued || s == Running }

// What began an attempt.
const (
	ByCreate  = "created"
	ByRetry   = "retry"           // the attempt before failed or timed out, with a retry left
	ByRelease = "released"        // its worker gave the job back
	ByRequest = "retry_requested" // the command retry
)

// Job is a job as its row has it. Instants are milliseconds of bus time, 0
// where there is none yet; JSON values are compact, nil where there is none.
type Job struct {
	JobID           string
	SupervisorAgent string // who created it and hears of it
	WorkerAgent     string // who is to do it; "" while it is offered to a topic
	WorkerTopic     string // to which it is offered; "" where it is for one agent
	Topic           string // of its handoff
	Task            json.RawMessage
	Payload         json.RawMessage
	Status          Status
	Attempt         int64 // 1, 2, 3 …
	RetryCount      int64 // ≤ MaxRetries, unless a retry was forced
	MaxRetries      int64
	Priority        int64
	TimeoutMS       int64 // how long it may be queued, and then how long an attempt may run
	LeaseMS         int64 // how long a running one may be without a sign of life; 0 for ever
	DeadlineMS      int64 // when it times out; 0 when it is terminal
	RunAtMS         int64 // not dispatched before
	LeaseExpires    int64 // while running with a lease
	DedupKey        string
	TraceID         string
	CorrelationID   string
	LastMessageID   string // of the last message about it: handoff, cancel or result
	Result          json.RawMessage
	Error           json.RawMessage
	CreatedAtMS     int64
	UpdatedAtMS     int64 // of the last change but signs of life
	StartedAtMS     int64 // of this attempt
	DispatchedAtMS  int64 // when the handoff of this attempt was queued
	CompletedAtMS   int64
	LastRetryAtMS   int64

	BegunBy   string // what began this attempt
	BegunAtMS int64
	BegunID   int64 // messages.id of its cause
	StartedID int64 // messages.id of what made this attempt running
	Digest    string

	row int64 // jobs.n; 0 before it is stored
}

// DueAtMS is when a tick must look at the job: to dispatch it, or because its
// deadline or its lease is over. 0: never.
func (j *Job) DueAtMS() int64 {
	switch {
	case !j.Status.Live():
		return 0
	case j.Status == Queued && j.DispatchedAtMS == 0:
		return min(j.RunAtMS, j.DeadlineMS)
	case j.LeaseExpires != 0:
		return min(j.LeaseExpires, j.DeadlineMS)
	}
	return j.DeadlineMS
}

// Sizes from which a value is left out of a snapshot, in bytes of JSON.
const (
	inEvents  = 32 << 10 // events, messages and refusals
	inReplies = 1 << 10  // replies and lists, to those who know the job or will get it
	inAttempt = 1 << 10  // each attempt that get shows
	whole     = 1 << 30  // get and claim: everything
)

// Snapshot is the job as JSON shows it, with the names of its row. What is not
// set is left out; a JSON value of more than most bytes is {omitted, bytes}. The
// map is the caller's.
func (j *Job) Snapshot(most int) map[string]any {
	m := make(map[string]any, 40) // and room for what the caller adds
	m["job_id"], m["supervisor_agent"], m["topic"], m["status"] = j.JobID, j.SupervisorAgent, j.Topic, j.Status
	m["attempt"], m["retry_count"], m["max_retries"], m["priority"] = j.Attempt, j.RetryCount, j.MaxRetries, j.Priority
	m["ttl_ms"], m["timeout_ms"], m["run_at_ms"] = j.TimeoutMS, j.TimeoutMS, j.RunAtMS
	m["trace_id"], m["correlation_id"] = j.TraceID, j.CorrelationID
	m["created_at_ms"], m["updated_at_ms"] = j.CreatedAtMS, j.UpdatedAtMS
	for _, f := range [...]struct{ name, value string }{
		{"worker_agent", j.WorkerAgent}, {"worker_topic", j.WorkerTopic}, {"dedup_key", j.DedupKey}, {"last_message_id", j.LastMessageID},
	} {
		if f.value != "" {
			m[f.name] = f.value
		}
	}
	for _, f := range [...]struct {
		name  string
		value int64
	}{
		{"lease_ms", j.LeaseMS}, {"deadline_ms", j.DeadlineMS}, {"lease_expires_at_ms", j.LeaseExpires},
		{"started_at_ms", j.StartedAtMS}, {"dispatched_at_ms", j.DispatchedAtMS}, {"completed_at_ms", j.CompletedAtMS},
		{"last_retry_at_ms", j.LastRetryAtMS},
	} {
		if f.value != 0 {
			m[f.name] = f.value
		}
	}
	for _, f := range [...]struct {
		name  string
		value json.RawMessage
	}{{"task", j.Task}, {"payload", j.Payload}, {"result", j.Result}, {"error", j.Error}} {
		setValue(m, f.name, f.value, most)
	}
	return m
}

// MarshalJSON writes the whole snapshot.
func (j *Job) MarshalJSON() ([]byte, error) { return json.Marshal(j.Snapshot(whole)) }

// current is the snapshot that a refusal carries.
func (j *Job) current() json.RawMessage {
	raw, err := json.Marshal(j.Snapshot(inEvents))
	if err != nil {
		return nil // values that were JSON when they were kept
	}
	return raw
}
