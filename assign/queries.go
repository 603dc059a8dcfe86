package assign

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"signalbox/step"
	"signalbox/wire"
)

// Bounds of queries.
const (
	defaultPage = 50
	maxPage     = 100
	pageBytes   = 512 << 10 // a list stops early, with more, where it would be larger
	maxAttempts = 50        // of one job that get shows, the newest
)

// Queries implements the machine's interface.
func (*Machine) Queries() map[string]step.Query {
	return map[string]step.Query{"get": queryGet, "list": queryList}
}

func queryGet(db step.DB, _ string, body []byte) (any, error) {
	var q struct {
		JobID string `json:"job_id"`
	}
	if err := decode(body, &q); err != nil {
		return nil, err
	}
	if !wire.ValidID(q.JobID) {
		return nil, invalidID("job_id", q.JobID)
	}
	j, err := tables{db}.job(q.JobID)
	if err != nil {
		return nil, err
	}
	if j == nil {
		return nil, notFound(q.JobID)
	}
	list, err := attemptsOf(db, j)
	if err != nil {
		return nil, err
	}
	shown := make([]map[string]any, len(list))
	for i := range list {
		shown[i] = list[i].Snapshot(inAttempt)
	}
	snapshot := j.Snapshot(whole)
	snapshot["attempts"] = shown
	return snapshot, nil
}

// Attempts are the attempts of a job, oldest first, with the one that is live
// last; of more than 50 the newest. The error is a *wire.Error where there is no
// such job.
func (*Machine) Attempts(db step.DB, jobID string) ([]Attempt, error) {
	j, err := tables{db}.job(jobID)
	if err != nil {
		return nil, err
	}
	if j == nil {
		return nil, notFound(jobID)
	}
	return attemptsOf(db, j)
}

func attemptsOf(db step.DB, j *Job) ([]Attempt, error) {
	rows, err := db.Query(`SELECT `+attemptColumns+` WHERE n = ? ORDER BY attempt DESC LIMIT ?`, j.row, maxAttempts)
	if err != nil {
		return nil, fmt.Errorf("read the attempts of job %q: %w", j.JobID, err)
	}
	defer rows.Close()
	var list []Attempt
	if j.Status.Live() {
		list = append(list, j.live())
	}
	for rows.Next() && len(list) < maxAttempts {
		a, err := scanAttempt(rows)
		if err != nil {
			return nil, fmt.Errorf("read the attempts of job %q: %w", j.JobID, err)
		}
		list = append(list, a)
	}
	slices.Reverse(list)
	return list, rows.Err()
}

// ListQuery is the body of list. What is left out does not narrow it.
type ListQuery struct {
	SupervisorAgent string   `json:"supervisor_agent"`
	WorkerAgent     string   `json:"worker_agent"`
	Statuses        []Status `json:"statuses"`
	TraceID         string   `json:"trace_id"`
	CorrelationID   string   `json:"correlation_id"`
	ActiveBeforeMS  int64    `json:"active_before_ms"` // live jobs whose deadline is at or before this instant
	Limit           *int     `json:"limit"`            // 1 to 100, 50 if left out
}

// Page are the jobs of a list, the last updated first. One whose row cannot be
// read is there as {job_id, damaged}.
type Page struct {
	Jobs []json.RawMessage `json:"jobs"`
	More bool              `json:"more"`
}

func queryList(db step.DB, _ string, body []byte) (any, error) {
	var q ListQuery
	if err := decode(body, &q); err != nil {
		return nil, err
	}
	limit := defaultPage
	if q.Limit != nil {
		limit = *q.Limit
	}
	if limit < 1 || limit > maxPage {
		return nil, outOfRange("limit", int64(limit), 1, maxPage)
	}
	for _, s := range q.Statuses {
		if !s.known() {
			return nil, wire.Errorf(wire.BodyInvalid, "%q in statuses is no status", clip(string(s))).
				WithHint("the statuses are queued, running, succeeded, failed, timed_out and cancelled")
		}
	}
	return q.page(db, limit)
}

// place is where a job stands in the order of a list.
type place struct{ updatedMS, row int64 }

// The texts of lists: the same filter through the index that fits it. Which
// jobs, first; the jobs themselves are read one by one, so that no large value
// is read in vain.
const (
	listWhere = ` AND (?1 = '' OR supervisor_agent = ?1) AND (?2 = '' OR worker_agent = ?2) AND (?3 = '' OR trace_id = ?3)
	AND (?4 = '' OR correlation_id = ?4) AND (?5 = 0 OR deadline_ms <= ?5) AND (?6 = '' OR instr(?6, ',' || status || ',') > 0)
	ORDER BY updated_at_ms DESC, n DESC LIMIT ?7`
	listSelect        = `SELECT updated_at_ms, n FROM jobs `
	listByTrace       = listSelect + `INDEXED BY jobs_trace WHERE trace_id = ?3` + listWhere
	listByCorrelation = listSelect + `INDEXED BY jobs_correlation WHERE correlation_id = ?4` + listWhere
	listByWorker      = listSelect + `INDEXED BY jobs_worker WHERE worker_agent = ?2` + listWhere
	listBySupervisor  = listSelect + `INDEXED BY jobs_supervisor WHERE supervisor_agent = ?1` + listWhere
	listByStatus      = listSelect + `INDEXED BY jobs_status WHERE status = ?8` + listWhere
)

// page reads one job more than it shows, to know whether there are more.
func (q ListQuery) page(db step.DB, limit int) (*Page, error) {
	places, err := q.places(db, limit+1)
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	page := &Page{Jobs: []json.RawMessage{}}
	room := pageBytes
	for _, p := range places {
		raw, err := line(db, p.row)
		if err != nil {
			return nil, fmt.Errorf("list jobs: %w", err)
		}
		if room -= len(raw); len(page.Jobs) == limit || room < 0 && len(page.Jobs) > 0 {
			page.More = true
			break
		}
		page.Jobs = append(page.Jobs, raw)
	}
	return page, nil
}

// places are the first places of the list, at most limit.
func (q ListQuery) places(db step.DB, limit int) ([]place, error) {
	switch {
	case q.TraceID != "":
		return q.ask(db, limit, listByTrace)
	case q.CorrelationID != "":
		return q.ask(db, limit, listByCorrelation)
	case q.WorkerAgent != "":
		return q.ask(db, limit, listByWorker)
	case q.SupervisorAgent != "":
		return q.ask(db, limit, listBySupervisor)
	}
	var all []place
	kinds, err := q.ranges(db)
	if err != nil {
		return nil, err
	}
	for _, status := range kinds {
		some, err := q.ask(db, limit, listByStatus, status)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	slices.SortFunc(all, func(a, b place) int {
		return cmp.Or(cmp.Compare(b.updatedMS, a.updatedMS), cmp.Compare(b.row, a.row))
	})
	return all[:min(limit, len(all))], nil
}

// ranges are the statuses whose ranges make the list. They are those that the
// table has, by one look into its index each, so that a damaged one is listed
// too.
func (q ListQuery) ranges(db step.DB) ([]Status, error) {
	rows, err := db.Query(`WITH RECURSIVE kinds (status) AS (SELECT min(status) FROM jobs
		UNION ALL SELECT (SELECT min(status) FROM jobs WHERE status > kinds.status) FROM kinds WHERE kinds.status IS NOT NULL)
		SELECT status FROM kinds WHERE status IS NOT NULL LIMIT 100`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []Status
	for rows.Next() {
		var s Status
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		if len(q.Statuses) == 0 || slices.Contains(q.Statuses, s) {
			list = append(list, s)
		}
	}
	return list, rows.Err()
}

func (q ListQuery) ask(db step.DB, limit int, query string, status ...Status) ([]place, error) {
	names := ""
	for _, s := range q.Statuses {
		names += string(s) + ","
	}
	if names != "" {
		names = "," + names
	}
	args := []any{q.SupervisorAgent, q.WorkerAgent, q.TraceID, q.CorrelationID, q.ActiveBeforeMS, names, limit}
	for _, s := range status {
		args = append(args, string(s))
	}
	rows, err := db.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []place
	for rows.Next() {
		var p place
		if err := rows.Scan(&p.updatedMS, &p.row); err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, rows.Err()
}

// line is one job of a list.
func line(db step.DB, row int64) (json.RawMessage, error) {
	j, damaged, err := scanJob(db.QueryRow(`SELECT `+jobColumns+` WHERE j.n = ?`, row))
	if err != nil {
		return nil, err
	}
	if damaged != nil {
		return json.Marshal(map[string]string{"job_id": j.JobID, "damaged": damaged.Error()})
	}
	return json.Marshal(j.Snapshot(inReplies))
}

// Count counts the jobs by status; a status without any is left out.
func (*Machine) Count(db step.DB) (map[string]int64, error) {
	rows, err := db.Query(`SELECT status, count(*) FROM jobs GROUP BY status`)
	if err != nil {
		return nil, fmt.Errorf("count jobs: %w", err)
	}
	defer rows.Close()
	counts := map[string]int64{}
	for rows.Next() {
		var status string
		var n int64
		if err := rows.Scan(&status, &n); err != nil {
			return nil, err
		}
		counts[status] = n
	}
	return counts, rows.Err()
}
