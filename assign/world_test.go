package assign

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"signalbox/step"
)

// Small worlds, so that things meet.
var (
	someone   = rapid.SampledFrom([]string{"a", "b", "s"})
	somebody  = rapid.SampledFrom([]string{"s", "t"})
	someJob   = rapid.SampledFrom([]string{"j1", "j2", "j3"})
	someWords = rapid.SampledFrom([]string{"running", "in_progress", "progress", "succeeded", "completed", "completed as failed",
		"completed as timeout", "failed", "error", "timed_out", "timeout", "released", "done-ish", ""})
	pauses = rapid.SampledFrom([]int64{0, 1, 500, 999, 1000, 1001, 1999, 2000, 5000, 60_000})
)

// means are the words' meanings, once more.
var means = map[string]string{
	"running": "running", "in_progress": "running", "progress": "progress", "succeeded": "succeeded", "completed": "succeeded",
	"completed as failed": "failed", "completed as timeout": "timed_out", "failed": "failed", "error": "failed", "timed_out": "timed_out",
	"timeout": "timed_out", "released": "released",
}

// world is one history, told to the machine and to the model.
type world struct {
	bus    *bus
	model  *model
	eyes   *witness
	forced map[string]bool

	savedModel *model // as the tables have it after a crash
	savedEyes  *witness
}

func (w *world) later(t *rapid.T) {
	w.bus.nowMS += pauses.Draw(t, "later")
	w.model.now = w.bus.nowMS
	w.model.said = nil
}

func (w *world) stored(t *rapid.T, id string) *Job {
	var j *Job
	var err error
	if w.bus.db == nil {
		j, err = w.bus.mem.job(id)
	} else {
		j, err = tables{w.bus.db}.job(id)
	}
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// attempt draws an attempt near the job's; 0 is none.
func (w *world) attempt(t *rapid.T, id string) int64 {
	j := w.model.jobs[id]
	if j == nil {
		return 1
	}
	return max(0, j.attempt+rapid.SampledFrom([]int64{0, 0, 0, 0, -1, -2, 1, -j.attempt}).Draw(t, "attempt"))
}

// tell tells the machine a command, and then the model what the machine has
// made of it.
func (w *world) tell(t *rapid.T, id, from, verb, body string, judge func(delay int64) verdict) {
	effects, refusal := w.bus.send(from, verb, body)
	var delay int64
	if j := w.stored(t, id); j != nil {
		delay = j.RunAtMS - w.bus.nowMS
	}
	want := judge(delay)
	got := verdict{}
	if refusal != nil {
		got.code = string(refusal.Code)
	} else {
		got.idempotent = effects.Reply.(map[string]any)["idempotent"] == true
	}
	if got != want {
		t.Fatalf("%s %s of %s: %+v, want %+v", verb, body, from, got, want)
	}
	w.compare(t, fmt.Sprintf("%s %s of %s", verb, body, from), effects)
}

func (w *world) compare(t *rapid.T, what string, effects step.Effects) {
	lines := said(effects)
	slices.Sort(lines)
	slices.Sort(w.model.said)
	if !slices.Equal(lines, w.model.said) {
		t.Fatalf("%s announces\n\t%s\nwant\n\t%s", what, strings.Join(lines, "\n\t"), strings.Join(w.model.said, "\n\t"))
	}
	if wrong := w.eyes.see(effects, w.bus.nowMS); wrong != "" {
		t.Fatalf("%s: %s", what, wrong)
	}
}

func (w *world) create(t *rapid.T) {
	w.later(t)
	j := modelJob{id: someJob.Draw(t, "job"), supervisor: somebody.Draw(t, "supervisor"), timeout: rapid.SampledFrom([]int64{2000, 5000}).Draw(t, "timeout"),
		most: rapid.Int64Range(0, 2).Draw(t, "retries")}
	body := fmt.Sprintf(`"job_id":%q,"timeout_ms":%d,"max_retries":%d`, j.id, j.timeout, j.most)
	if rapid.Bool().Draw(t, "offered") {
		j.topic = "work"
		body += `,"worker_topic":"work"`
	} else {
		j.worker = someone.Draw(t, "worker")
		body += fmt.Sprintf(`,"worker_agent":%q`, j.worker)
	}
	if rapid.Bool().Draw(t, "leased") {
		j.lease = 1000
		body += `,"lease_ms":1000`
	}
	if rapid.Bool().Draw(t, "alone") {
		j.key = "k"
		body += `,"dedup_key":"k"`
	}
	var runAt int64
	if rapid.Bool().Draw(t, "ahead") {
		runAt = start + rapid.SampledFrom([]int64{0, 1000, 3000, 10_000}).Draw(t, "run_at")
		body += fmt.Sprintf(`,"run_at_ms":%d`, runAt)
	}
	j.request = j.supervisor + body
	w.tell(t, j.id, j.supervisor, verbCreate, "{"+body+"}", func(int64) verdict { return w.model.create(j, runAt) })
}

// createAgain repeats the command that made a job, word for word.
func (w *world) createAgain(t *rapid.T) {
	id := someJob.Draw(t, "job")
	j := w.model.jobs[id]
	if j == nil {
		t.Skip("no such job")
	}
	w.later(t)
	w.tell(t, id, j.supervisor, verbCreate, "{"+strings.TrimPrefix(j.request, j.supervisor)+"}", func(int64) verdict { return w.model.create(*j, 0) })
}

// sender draws who speaks: mostly the job's worker.
func (w *world) sender(t *rapid.T, id string) string {
	if j := w.model.jobs[id]; j != nil && j.worker != "" && rapid.IntRange(0, 3).Draw(t, "stranger") > 0 {
		return j.worker
	}
	return someone.Draw(t, "from")
}

func (w *world) claim(t *rapid.T) {
	w.later(t)
	id := someJob.Draw(t, "job")
	from, attempt := w.sender(t, id), int64(0)
	body := fmt.Sprintf(`{"job_id":%q}`, id)
	if rapid.Bool().Draw(t, "with attempt") {
		if attempt = w.attempt(t, id); attempt > 0 {
			body = fmt.Sprintf(`{"job_id":%q,"attempt":%d}`, id, attempt)
		}
	}
	w.tell(t, id, from, verbClaim, body, func(int64) verdict { return w.model.claim(id, from, attempt) })
}

func (w *world) report(t *rapid.T) {
	w.later(t)
	r := modelReport{id: someJob.Draw(t, "job"), after: -1, retryable: rapid.IntRange(0, 4).Draw(t, "retryable") > 0}
	r.from, r.attempt = w.sender(t, r.id), w.attempt(t, r.id)
	word, metadata, _ := strings.Cut(someWords.Draw(t, "status"), " as ")
	body := fmt.Sprintf(`"job_id":%q,"status":%q`, r.id, word)
	if r.status = means[word]; metadata != "" {
		r.status = means[word+" as "+metadata]
		body += fmt.Sprintf(`,"metadata":{"result":%q}`, metadata)
	}
	if r.attempt > 0 {
		body += fmt.Sprintf(`,"attempt":%d`, r.attempt)
	}
	if !r.retryable {
		body += `,"retryable":false`
	}
	if rapid.Bool().Draw(t, "with result") {
		r.result = "1"
		body += `,"result":1`
	}
	if rapid.IntRange(0, 3).Draw(t, "wait") == 0 {
		r.after = rapid.SampledFrom([]int64{0, 1500}).Draw(t, "after")
		body += fmt.Sprintf(`,"retry_after_ms":%d`, r.after)
	}
	w.tell(t, r.id, r.from, verbReport, "{"+body+"}", func(delay int64) verdict { return w.model.report(r, delay) })
}

// reportAgain repeats what ended an attempt, or nearly.
func (w *world) reportAgain(t *rapid.T) {
	id := someJob.Draw(t, "job")
	j := w.model.jobs[id]
	if j == nil || len(j.outcomes) == 0 {
		t.Skip("nothing has ended")
	}
	w.later(t)
	attempt := rapid.SampledFrom(slices.Sorted(maps.Keys(j.outcomes))).Draw(t, "attempt")
	o := j.outcomes[attempt]
	r := modelReport{id: id, from: o.worker, status: o.status, result: o.result, attempt: attempt, after: -1, retryable: o.retryable}
	switch rapid.IntRange(0, 5).Draw(t, "unlike") {
	case 0:
		r.retryable = !r.retryable
	case 1:
		r.result = "2"
	case 2:
		r.status = "failed"
	}
	if r.from == "" {
		r.from = "a"
	}
	body := fmt.Sprintf(`"job_id":%q,"status":%q,"attempt":%d,"retryable":%v`, id, r.status, attempt, r.retryable)
	if r.result != "" {
		body += `,"result":` + r.result
	}
	if means[r.status] == "" { // cancelled is nothing that a worker may say
		r.status = ""
	}
	w.tell(t, id, r.from, verbReport, "{"+body+"}", func(delay int64) verdict { return w.model.report(r, delay) })
}

func (w *world) heartbeat(t *rapid.T) {
	w.later(t)
	id := someJob.Draw(t, "job")
	from, attempt := w.sender(t, id), w.attempt(t, id)
	body := fmt.Sprintf(`{"job_id":%q}`, id)
	if attempt > 0 {
		body = fmt.Sprintf(`{"job_id":%q,"attempt":%d}`, id, attempt)
	}
	w.tell(t, id, from, verbHeartbeat, body, func(int64) verdict { return w.model.heartbeat(id, from, attempt) })
}

func (w *world) retry(t *rapid.T) {
	w.later(t)
	id, force, attempt := someJob.Draw(t, "job"), rapid.IntRange(0, 3).Draw(t, "force") > 1, int64(0)
	body := fmt.Sprintf(`{"job_id":%q,"force":%v}`, id, force)
	if rapid.Bool().Draw(t, "with attempt") {
		if attempt = w.attempt(t, id); attempt > 0 {
			body = fmt.Sprintf(`{"job_id":%q,"force":%v,"attempt":%d}`, id, force, attempt)
		}
	}
	w.forced[id] = w.forced[id] || force
	w.tell(t, id, somebody.Draw(t, "from"), verbRetry, body, func(int64) verdict { return w.model.retry(id, attempt, force) })
}

func (w *world) cancel(t *rapid.T) {
	w.later(t)
	id := someJob.Draw(t, "job")
	w.tell(t, id, somebody.Draw(t, "from"), verbCancel, fmt.Sprintf(`{"job_id":%q}`, id), func(int64) verdict { return w.model.cancel(id) })
}

// tick handles the first of what is due, as if there were more than a tick may
// handle.
func (w *world) tick(t *rapid.T) {
	w.later(t)
	limit := rapid.IntRange(1, 4).Draw(t, "limit")
	want := w.model.dueNow()
	want = want[:min(limit, len(want))]
	w.bus.row++
	var got []string
	for _, d := range w.bus.due(limit) {
		got = append(got, d.Key)
		w.deadline(t, d)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("due are %v, want %v", got, want)
	}
}

// restart is a start of the bridge.
func (w *world) restart(t *rapid.T) {
	last := w.bus.nowMS
	w.bus.restart(pauses.Draw(t, "down"))
	w.model.now = w.bus.nowMS
	w.model.restart(last)
}

// stale is a deadline of a job that may have changed since it was found.
func (w *world) stale(t *rapid.T) {
	w.later(t)
	w.bus.row++
	w.deadline(t, step.Deadline{Key: someJob.Draw(t, "job"), AtMS: w.bus.nowMS})
}

func (w *world) deadline(t *rapid.T, d step.Deadline) {
	w.model.said = nil
	effects, err := w.bus.apply("signalbox", d)
	if err != nil {
		t.Fatal(err)
	}
	j := w.stored(t, d.Key)
	if j == nil {
		return
	}
	w.model.tick(d.Key, j.RunAtMS-w.bus.nowMS)
	w.compare(t, "the deadline of "+d.Key, effects)
}

// check compares the jobs with the model's, and looks at what must always hold.
func (w *world) check(t *rapid.T) {
	keys := map[string]string{}
	for id, m := range w.model.jobs {
		j := w.stored(t, id)
		got := fmt.Sprint(j.Status, j.BegunBy, j.Attempt, j.RetryCount, j.WorkerAgent, j.RunAtMS, j.DeadlineMS, j.LeaseExpires, j.StartedAtMS,
			j.DispatchedAtMS != 0, j.DueAtMS())
		want := fmt.Sprint(m.status, m.by, m.attempt, m.retries, m.worker, m.runAt, m.deadline, m.leaseEnd, m.started, m.dispatched, m.due())
		if got != want {
			t.Fatalf("%s is %s, want %s", id, got, want)
		}
		switch {
		case j.Status == Running && (j.WorkerAgent == "" || j.Attempt < 1 || j.StartedAtMS == 0 || j.DeadlineMS == 0):
			t.Fatalf("%s is running without a worker, an attempt, a start or a deadline", id)
		case j.Status.Live() != (j.DueAtMS() != 0):
			t.Fatalf("%s is %s and due at %d", id, j.Status, j.DueAtMS())
		case j.Status.Live() == (j.CompletedAtMS != 0):
			t.Fatalf("%s is %s, completed at %d", id, j.Status, j.CompletedAtMS)
		case j.RetryCount > j.MaxRetries && !w.forced[id]:
			t.Fatalf("%s has had %d of %d retries", id, j.RetryCount, j.MaxRetries)
		}
		if key := m.supervisor + m.key; m.key != "" && m.live() {
			if keys[key] != "" {
				t.Fatalf("%s and %s are live with one dedup_key", id, keys[key])
			}
			keys[key] = id
		}
	}
}
