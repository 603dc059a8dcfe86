package assign

import (
	"fmt"
	"maps"
	"slices"
)

// The model says by itself, and in its own words, what becomes of jobs: what a
// command answers, what is announced, and what a job is afterwards. It takes the
// length of a backoff from the machine and checks it against its bounds.

type modelOutcome struct {
	worker, status, result string
	retryable, reported    bool
	requeued               bool // by a retry
}

type modelJob struct {
	id, supervisor, worker, topic, key string
	status, by                         string
	attempt, retries, most             int64
	timeout, lease                     int64
	runAt, deadline, leaseEnd, started int64
	dispatched                         bool
	outcomes                           map[int64]modelOutcome
	request                            string // that created it
}

func (j *modelJob) live() bool { return j.status == "queued" || j.status == "running" }

// due is when a tick must look at it, 0 for never.
func (j *modelJob) due() int64 {
	switch {
	case !j.live():
		return 0
	case j.status == "queued" && !j.dispatched && j.runAt < j.deadline:
		return j.runAt
	case j.leaseEnd != 0 && j.leaseEnd < j.deadline:
		return j.leaseEnd
	}
	return j.deadline
}

type model struct {
	now  int64
	jobs map[string]*modelJob
	said []string // in the step that is judged
}

func newModel() *model { return &model{jobs: map[string]*modelJob{}} }

func (m *model) clone() *model {
	c := newModel()
	for id, j := range m.jobs {
		copied := *j
		copied.outcomes = maps.Clone(j.outcomes)
		c.jobs[id] = &copied
	}
	return c
}

func (m *model) say(format string, args ...any) {
	m.said = append(m.said, fmt.Sprintf(format, args...))
}

// verdict is what the sender of a command gets.
type verdict struct {
	code       string // "" taken
	idempotent bool
}

func refusedWith(code string) verdict { return verdict{code: code} }

var repeated = verdict{idempotent: true}

func (m *model) create(j modelJob, runAt int64) verdict {
	if old := m.jobs[j.id]; old != nil {
		if old.request == j.request {
			return repeated
		}
		return refusedWith("ASSIGN_EXISTS")
	}
	if j.key != "" && m.rival(&j) != nil {
		return repeated
	}
	j.status, j.by, j.attempt, j.outcomes = "queued", "created", 1, map[int64]modelOutcome{}
	if j.runAt = m.now; runAt != 0 {
		j.runAt = runAt
	}
	j.deadline = max(m.now, j.runAt) + j.timeout
	m.jobs[j.id] = &j
	m.say("event %s >queued created", j.id)
	m.dispatch(&j)
	return verdict{}
}

func (m *model) rival(j *modelJob) *modelJob {
	for _, other := range m.jobs {
		if other.id != j.id && other.key == j.key && other.supervisor == j.supervisor && other.live() {
			return other
		}
	}
	return nil
}

func (m *model) dispatch(j *modelJob) {
	if j.status != "queued" || j.dispatched || m.now < j.runAt {
		return
	}
	j.dispatched = true
	to := "agent:" + j.worker
	if j.topic != "" {
		to = "topic:" + j.topic
	}
	m.say("message to %s: assign.job %s attempt %d", to, j.id, j.attempt)
}

func (m *model) begin(j *modelJob, why string) {
	j.status, j.started, j.deadline = "running", m.now, m.now+j.timeout
	m.alive(j)
	m.say("event %s queued>running %s", j.id, why)
}

func (m *model) alive(j *modelJob) {
	if j.lease != 0 {
		j.leaseEnd = m.now + j.lease
	}
}

func (m *model) claim(id, from string, attempt int64) verdict {
	j := m.jobs[id]
	switch {
	case j == nil:
		return refusedWith("ASSIGN_NOT_FOUND")
	case attempt != 0 && attempt != j.attempt:
		return refusedWith("ASSIGN_ATTEMPT_MISMATCH")
	case j.topic == "" && j.worker != from:
		return refusedWith("ASSIGN_WORKER_MISMATCH")
	case j.worker != "" && j.worker != from:
		return refusedWith("ASSIGN_CLAIMED")
	case !j.live():
		return refusedWith("ASSIGN_TERMINAL")
	case j.status == "running":
		return repeated
	case !j.dispatched:
		return refusedWith("ASSIGN_NOT_DUE")
	}
	j.worker = from
	m.begin(j, "claimed")
	return verdict{}
}

func (m *model) heartbeat(id, from string, attempt int64) verdict {
	j := m.jobs[id]
	switch {
	case j == nil:
		return refusedWith("ASSIGN_NOT_FOUND")
	case attempt != j.attempt:
		return refusedWith("ASSIGN_ATTEMPT_MISMATCH")
	case from != j.worker:
		return refusedWith("ASSIGN_WORKER_MISMATCH")
	case !j.live():
		return refusedWith("ASSIGN_TERMINAL")
	case j.status != "running":
		return refusedWith("ASSIGN_NOT_RUNNING")
	}
	m.alive(j)
	return verdict{}
}

// modelReport is a report; status is the meaning of its word, "" for none.
type modelReport struct {
	id, from, status, result string
	attempt, after           int64 // after: retry_after_ms, -1 for none
	retryable                bool
}

// report judges; delay is the backoff that the machine chose, if it did.
func (m *model) report(r modelReport, delay int64) verdict {
	j := m.jobs[r.id]
	if j == nil {
		return refusedWith("ASSIGN_NOT_FOUND")
	}
	past, ended := j.outcomes[r.attempt]
	if ended && past == (modelOutcome{r.from, r.status, r.result, r.retryable, true, past.requeued}) {
		return repeated
	}
	switch {
	case r.status == "":
		return refusedWith("ASSIGN_STATUS_UNKNOWN")
	case r.attempt != j.attempt:
		m.late(j, r, past, ended)
		return refusedWith("ASSIGN_ATTEMPT_MISMATCH")
	case r.from != j.worker:
		return refusedWith("ASSIGN_WORKER_MISMATCH")
	case !j.live():
		m.late(j, r, past, ended)
		return refusedWith("ASSIGN_TERMINAL")
	}
	switch r.status {
	case "running", "progress":
		first := j.status == "queued"
		if first {
			m.begin(j, "reported")
		}
		m.alive(j)
		if r.status == "progress" {
			m.say("event %s progress", j.id)
		}
		return verdict{idempotent: r.status == "running" && !first}
	case "released":
		m.closed(j, r.status, &r)
		m.again(j, "released", max(1000, r.after))
	case "succeeded":
		m.closed(j, r.status, &r)
		m.over(j, r.status, "reported")
	default:
		m.closed(j, r.status, &r)
		m.failed(j, r.status, "reported", r.retryable, r.after, delay)
	}
	return verdict{}
}

func (m *model) late(j *modelJob, r modelReport, past modelOutcome, ended bool) {
	if ended && past.worker == r.from && r.status != "running" && r.status != "progress" {
		m.say("message to agent:%s: late_result %s attempt %d", j.supervisor, j.id, r.attempt)
	}
}

func (m *model) closed(j *modelJob, status string, r *modelReport) {
	o := modelOutcome{worker: j.worker, status: status, retryable: true}
	if r != nil {
		o.result, o.retryable, o.reported = r.result, r.retryable, true
	}
	j.outcomes[j.attempt] = o
}

func (m *model) failed(j *modelJob, status, why string, retryable bool, after, delay int64) {
	if !retryable || j.retries >= j.most {
		m.over(j, status, why)
		return
	}
	if after < 0 {
		rest := min(int64(1000)<<j.retries, 300_000)
		if delay < rest*8/10 || delay > rest*12/10 {
			m.say("a rest of %d before retry %d", delay, j.retries+1)
		}
		after = delay
	}
	o := j.outcomes[j.attempt]
	o.requeued = true
	j.outcomes[j.attempt] = o
	m.again(j, "retry", after)
}

func (m *model) over(j *modelJob, status, why string) {
	from := j.status
	j.status, j.deadline, j.leaseEnd = status, 0, 0
	m.say("event %s %s>%s %s", j.id, from, status, why)
	what := "completed"
	if status == "cancelled" {
		what = "cancelled"
	}
	m.say("message to agent:%s: %s %s attempt %d", j.supervisor, what, j.id, j.attempt)
}

func (m *model) again(j *modelJob, by string, wait int64) {
	m.say("event %s %s>queued %s", j.id, j.status, by)
	j.status, j.by, j.dispatched = "queued", by, false
	j.attempt++
	if j.topic != "" {
		j.worker = ""
	}
	j.started, j.leaseEnd = 0, 0
	j.runAt = m.now + wait
	j.deadline = j.runAt + j.timeout
	if by != "released" {
		j.retries++
		m.say("message to agent:%s: retry_scheduled %s attempt %d", j.supervisor, j.id, j.attempt)
	}
	m.dispatch(j)
}

func (m *model) stop(j *modelJob) {
	if j.worker != "" && (j.status == "running" || j.dispatched) {
		m.say("message to agent:%s: assign.cancel %s attempt %d", j.worker, j.id, j.attempt)
	}
}

func (m *model) retry(id string, attempt int64, force bool) verdict {
	j := m.jobs[id]
	switch {
	case j == nil:
		return refusedWith("ASSIGN_NOT_FOUND")
	case j.by == "retry_requested" && j.live() && (attempt == 0 || attempt == j.attempt-1):
		return repeated
	case attempt != 0 && attempt != j.attempt:
		return refusedWith("ASSIGN_ATTEMPT_MISMATCH")
	case j.live() || j.status == "succeeded":
		return refusedWith("ASSIGN_NOT_RETRYABLE")
	case j.retries >= j.most && !force:
		return refusedWith("ASSIGN_RETRY_EXHAUSTED")
	case j.key != "" && m.rival(j) != nil:
		return refusedWith("ASSIGN_DEDUP_CONFLICT")
	}
	m.again(j, "retry_requested", 0)
	return verdict{}
}

func (m *model) cancel(id string) verdict {
	j := m.jobs[id]
	switch {
	case j == nil:
		return refusedWith("ASSIGN_NOT_FOUND")
	case j.status == "cancelled":
		return repeated
	case !j.live():
		return refusedWith("ASSIGN_TERMINAL")
	}
	m.stop(j)
	m.closed(j, "cancelled", nil)
	m.over(j, "cancelled", "cancelled")
	return verdict{}
}

// restart is a start after so long.
func (m *model) restart(last int64) {
	for _, j := range m.jobs {
		if j.leaseEnd > last && m.now+j.lease > j.leaseEnd {
			j.leaseEnd = m.now + j.lease
		}
	}
}

// dueNow are the jobs that a tick must handle, in order.
func (m *model) dueNow() []string {
	list := slices.DeleteFunc(slices.Sorted(maps.Keys(m.jobs)), func(id string) bool {
		at := m.jobs[id].due()
		return at == 0 || at > m.now
	})
	slices.SortStableFunc(list, func(a, b string) int { return int(m.jobs[a].due() - m.jobs[b].due()) })
	return list
}

// tick is what a tick makes of one job.
func (m *model) tick(id string, delay int64) {
	j := m.jobs[id]
	why := ""
	switch at := j.due(); {
	case at == 0 || at > m.now:
		return
	case m.now >= j.deadline:
		why = "deadline_over"
	case j.status == "running":
		why = "lease_over"
	default:
		m.dispatch(j)
		m.say("event %s dispatched", j.id)
		return
	}
	m.stop(j)
	m.closed(j, "timed_out", nil)
	m.failed(j, "timed_out", why, true, -1, delay)
}
