package assign

import (
	"bytes"
	"encoding/json"
)

// Released is how an attempt ends whose worker gives the job back. The other
// outcomes are the terminal statuses.
const Released = "released"

// Attempt is one try at a job. Instants are milliseconds of bus time, 0 where
// there is none; ids are rows of the register.
type Attempt struct {
	Attempt      int64
	WorkerAgent  string // "": nobody had claimed it
	BegunBy      string
	BegunAtMS    int64
	StartedAtMS  int64
	FinishedAtMS int64
	Outcome      string // succeeded, failed, timed_out, cancelled, released; "" while it is live
	Reason       string // why, as the transition says it
	Reported     bool   // its worker said so itself
	Retryable    bool   // as the worker reported it; true where it said nothing
	Requeued     bool   // its end queued the job again
	Result       json.RawMessage
	Error        json.RawMessage
	BegunID      int64
	StartedID    int64
	FinishedID   int64
}

// live is the job's current attempt.
func (j *Job) live() Attempt {
	return Attempt{Attempt: j.Attempt, WorkerAgent: j.WorkerAgent, BegunBy: j.BegunBy, BegunAtMS: j.BegunAtMS,
		StartedAtMS: j.StartedAtMS, Retryable: true, BegunID: j.BegunID, StartedID: j.StartedID}
}

// recorded reports whether the attempt ended by just this report of just this
// worker.
func (a *Attempt) recorded(r *Report, from string) bool {
	return a.Reported && a.WorkerAgent == from && a.Outcome == string(r.Status) && a.Retryable == r.Retryable &&
		bytes.Equal(a.Result, r.Result) && bytes.Equal(a.Error, r.Error)
}

// Snapshot is the attempt as JSON shows it; values of more than most bytes are
// {omitted, bytes}.
func (a *Attempt) Snapshot(most int) map[string]any {
	m := map[string]any{"attempt": a.Attempt, "begun_by": a.BegunBy, "begun_at_ms": a.BegunAtMS, "begun_id": a.BegunID}
	if a.WorkerAgent != "" {
		m["worker_agent"] = a.WorkerAgent
	}
	if a.StartedAtMS != 0 {
		m["started_at_ms"], m["started_id"] = a.StartedAtMS, a.StartedID
	}
	if a.Outcome != "" {
		m["finished_at_ms"], m["finished_id"] = a.FinishedAtMS, a.FinishedID
		m["outcome"], m["reason"], m["retryable"], m["requeued"] = a.Outcome, a.Reason, a.Retryable, a.Requeued
	}
	setValue(m, "result", a.Result, most)
	setValue(m, "error", a.Error, most)
	return m
}

// MarshalJSON writes the whole snapshot.
func (a *Attempt) MarshalJSON() ([]byte, error) { return json.Marshal(a.Snapshot(whole)) }
