package assign

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"signalbox/step"
)

// jobColumns are all columns of a job but those that only SQL needs, in the
// order in which scanJob takes them.
const jobColumns = `j.n, j.job_id, j.supervisor_agent, coalesce(j.worker_agent, ''), coalesce(j.worker_topic, ''), j.topic, j.status,
	j.attempt, j.retry_count, j.max_retries, j.priority, j.timeout_ms, coalesce(j.lease_ms, 0), coalesce(j.deadline_ms, 0), j.run_at_ms,
	coalesce(j.lease_expires_at_ms, 0), coalesce(j.dedup_key, ''), j.trace_id, j.correlation_id, coalesce(j.last_message_id, ''),
	j.result, j.error, j.created_at_ms, j.updated_at_ms, coalesce(j.started_at_ms, 0), coalesce(j.dispatched_at_ms, 0),
	coalesce(j.completed_at_ms, 0), coalesce(j.last_retry_at_ms, 0), j.begun_by, j.begun_at_ms, j.begun_id, coalesce(j.started_id, 0),
	j.digest, t.task, t.payload FROM jobs j LEFT JOIN job_tasks t ON t.n = j.n`

const attemptColumns = `attempt, coalesce(worker_agent, ''), begun_by, begun_at_ms, coalesce(started_at_ms, 0), finished_at_ms, outcome,
	reason, reported, retryable, requeued, result, error, begun_id, coalesce(started_id, 0), finished_id FROM attempts`

// scanner is a row, or rows at one.
type scanner interface{ Scan(dest ...any) error }

// scanJob reads a row. damaged says why it cannot be used, if so; its id is in
// the job then. Other errors are of the database.
func scanJob(row scanner) (j *Job, damaged, err error) {
	j = &Job{}
	if err := row.Scan(&j.row, &j.JobID, &j.SupervisorAgent, &j.WorkerAgent, &j.WorkerTopic, &j.Topic, &j.Status, &j.Attempt, &j.RetryCount,
		&j.MaxRetries, &j.Priority, &j.TimeoutMS, &j.LeaseMS, &j.DeadlineMS, &j.RunAtMS, &j.LeaseExpires, &j.DedupKey, &j.TraceID,
		&j.CorrelationID, &j.LastMessageID, (*[]byte)(&j.Result), (*[]byte)(&j.Error), &j.CreatedAtMS, &j.UpdatedAtMS, &j.StartedAtMS,
		&j.DispatchedAtMS, &j.CompletedAtMS, &j.LastRetryAtMS, &j.BegunBy, &j.BegunAtMS, &j.BegunID, &j.StartedID, &j.Digest,
		(*[]byte)(&j.Task), (*[]byte)(&j.Payload)); err != nil {
		return j, nil, err
	}
	return j, j.damage(), nil
}

// damage says what a row has that no step ever writes.
func (j *Job) damage() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("the row of job %q is damaged: %s", j.JobID, fmt.Sprintf(format, args...))
	}
	for _, v := range [...]struct {
		column string
		raw    json.RawMessage
	}{{"result", j.Result}, {"error", j.Error}, {"task", j.Task}, {"payload", j.Payload}} {
		if v.raw != nil && !json.Valid(v.raw) {
			return bad("%s is no JSON", v.column)
		}
	}
	switch {
	case !j.Status.known():
		return bad("it has the status %.60q", j.Status)
	case j.Status.Live() && j.DeadlineMS == 0:
		return bad("it is %s without a deadline", j.Status)
	case j.Status == Running && (j.WorkerAgent == "" || j.StartedAtMS == 0):
		return bad("it is running without a worker or a start")
	case j.WorkerAgent == "" && j.WorkerTopic == "":
		return bad("it has neither a worker nor a topic")
	case j.Attempt < 1:
		return bad("it is at attempt %d", j.Attempt)
	}
	return nil
}

func scanAttempt(row scanner) (Attempt, error) {
	var a Attempt
	err := row.Scan(&a.Attempt, &a.WorkerAgent, &a.BegunBy, &a.BegunAtMS, &a.StartedAtMS, &a.FinishedAtMS, &a.Outcome, &a.Reason,
		&a.Reported, &a.Retryable, &a.Requeued, (*[]byte)(&a.Result), (*[]byte)(&a.Error), &a.BegunID, &a.StartedID, &a.FinishedID)
	if err == nil && (a.Result != nil && !json.Valid(a.Result) || a.Error != nil && !json.Valid(a.Error)) {
		err = fmt.Errorf("the row of attempt %d is damaged: its result or error is no JSON", a.Attempt)
	}
	return a, err
}

// tables are the shelf in the register.
type tables struct{ db step.DB }

func one(row *sql.Row) (*Job, error) {
	j, damaged, err := scanJob(row)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	case damaged != nil:
		return nil, damaged
	}
	return j, nil
}

func (t tables) job(id string) (*Job, error) {
	j, err := one(t.db.QueryRow(`SELECT `+jobColumns+` WHERE j.job_id = ?`, id))
	if err != nil {
		return nil, fmt.Errorf("read job %q: %w", id, err)
	}
	return j, nil
}

func (t tables) known(id string) (bool, error) {
	var n int64
	err := t.db.QueryRow(`SELECT n FROM jobs WHERE job_id = ?`, id).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

func (t tables) liveWith(supervisor, key string) (*Job, error) {
	j, err := one(t.db.QueryRow(`SELECT `+jobColumns+` WHERE j.supervisor_agent = ? AND j.dedup_key = ? AND j.status IN ('queued', 'running')`,
		supervisor, key))
	if err != nil {
		return nil, fmt.Errorf("read the live job of %q with dedup_key %q: %w", supervisor, key, err)
	}
	return j, nil
}

func (t tables) attempt(j *Job, n int64) (*Attempt, error) {
	a, err := scanAttempt(t.db.QueryRow(`SELECT `+attemptColumns+` WHERE n = ? AND attempt = ?`, j.row, n))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read attempt %d of job %q: %w", n, j.JobID, err)
	}
	return &a, nil
}

func (t tables) keep(d *Decision) error {
	j := &d.Job
	var err error
	switch {
	case d.New:
		err = t.insert(j)
	case d.Changed:
		err = t.update(j)
	default:
		// A sign of life moves nothing but these two, and one index.
		_, err = t.db.Exec(`UPDATE jobs SET lease_expires_at_ms = ?, due_at_ms = ? WHERE n = ?`, number(j.LeaseExpires), number(j.DueAtMS()), j.row)
	}
	if err != nil || d.Ended == nil {
		return err
	}
	a := d.Ended
	_, err = t.db.Exec(`INSERT INTO attempts (n, job_id, attempt, worker_agent, begun_by, begun_at_ms, started_at_ms, finished_at_ms, outcome,
		reason, reported, retryable, requeued, result, error, begun_id, started_id, finished_id)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		j.row, j.JobID, a.Attempt, text(a.WorkerAgent), a.BegunBy, a.BegunAtMS, number(a.StartedAtMS), a.FinishedAtMS, a.Outcome,
		a.Reason, a.Reported, a.Retryable, a.Requeued, text(a.Result), text(a.Error), a.BegunID, number(a.StartedID), a.FinishedID)
	return err
}

// insert writes a new job. It has no start, no end and no retry yet.
func (t tables) insert(j *Job) error {
	result, err := t.db.Exec(`INSERT INTO jobs (job_id, supervisor_agent, worker_agent, worker_topic, topic, status, attempt, retry_count,
		max_retries, priority, timeout_ms, lease_ms, deadline_ms, run_at_ms, due_at_ms, dedup_key, trace_id, correlation_id, last_message_id,
		created_at_ms, updated_at_ms, dispatched_at_ms, begun_by, begun_at_ms, begun_id, digest)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		j.JobID, j.SupervisorAgent, text(j.WorkerAgent), text(j.WorkerTopic), j.Topic, string(j.Status), j.Attempt, j.RetryCount,
		j.MaxRetries, j.Priority, j.TimeoutMS, number(j.LeaseMS), number(j.DeadlineMS), j.RunAtMS, number(j.DueAtMS()), text(j.DedupKey),
		j.TraceID, j.CorrelationID, text(j.LastMessageID), j.CreatedAtMS, j.UpdatedAtMS, number(j.DispatchedAtMS), j.BegunBy, j.BegunAtMS,
		j.BegunID, j.Digest)
	if err != nil {
		return err
	}
	if j.row, err = result.LastInsertId(); err != nil || j.Task == nil && j.Payload == nil {
		return err
	}
	_, err = t.db.Exec(`INSERT INTO job_tasks (n, task, payload) VALUES (?, ?, ?)`, j.row, text(j.Task), text(j.Payload))
	return err
}

// update writes everything of a job that can change.
func (t tables) update(j *Job) error {
	_, err := t.db.Exec(`UPDATE jobs SET worker_agent = ?, status = ?, attempt = ?, retry_count = ?, deadline_ms = ?, run_at_ms = ?,
		lease_expires_at_ms = ?, due_at_ms = ?, last_message_id = ?, result = ?, error = ?, updated_at_ms = ?, started_at_ms = ?,
		dispatched_at_ms = ?, completed_at_ms = ?, last_retry_at_ms = ?, begun_by = ?, begun_at_ms = ?, begun_id = ?, started_id = ?
		WHERE n = ?`,
		text(j.WorkerAgent), string(j.Status), j.Attempt, j.RetryCount, number(j.DeadlineMS), j.RunAtMS, number(j.LeaseExpires),
		number(j.DueAtMS()), text(j.LastMessageID), text(j.Result), text(j.Error), j.UpdatedAtMS, number(j.StartedAtMS),
		number(j.DispatchedAtMS), number(j.CompletedAtMS), number(j.LastRetryAtMS), j.BegunBy, j.BegunAtMS, j.BegunID, number(j.StartedID),
		j.row)
	return err
}

// restartLeases is the rule Restart in one statement, since there may be any number of
// running jobs.
const restartLeases = `UPDATE jobs SET lease_expires_at_ms = ?1 + lease_ms, due_at_ms = min(deadline_ms, ?1 + lease_ms)
	WHERE status = 'running' AND lease_expires_at_ms > ?2 AND deadline_ms IS NOT NULL`

func (t tables) restart(nowMS, lastMS int64) error {
	if _, err := t.db.Exec(restartLeases, nowMS, lastMS); err != nil {
		return fmt.Errorf("renew the leases of jobs: %w", err)
	}
	return nil
}

// text is a text for a column, NULL for none.
func text[T ~string | ~[]byte](v T) any {
	if len(v) == 0 {
		return nil
	}
	return string(v)
}

// number is an instant, a duration or a row for a column, NULL for none.
func number(v int64) any {
	if v == 0 {
		return nil
	}
	return v
}

// due reads the jobs with something due at or before nowMS.
func due(db step.DB, nowMS int64, limit int) ([]step.Deadline, error) {
	rows, err := db.Query(`SELECT job_id, due_at_ms FROM jobs WHERE due_at_ms <= ? ORDER BY due_at_ms, job_id LIMIT ?`, nowMS, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []step.Deadline
	for rows.Next() {
		var d step.Deadline
		if err := rows.Scan(&d.Key, &d.AtMS); err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, rows.Err()
}
