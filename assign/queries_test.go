package assign

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"signalbox/step"
	"signalbox/wire"
)

// listed are the ids of a list, and whether there are more.
func (b *bus) listed(body string) (ids []string, more bool) {
	b.t.Helper()
	page, refusal := b.ask("list", body)
	if refusal != nil {
		b.t.Fatalf("list %s: %v", body, refusal)
	}
	for _, j := range page["jobs"].([]any) {
		ids = append(ids, j.(map[string]any)["job_id"].(string))
	}
	return ids, page["more"].(bool)
}

func TestAListIsFilteredAndTheLastUpdatedComesFirst(t *testing.T) {
	b := newBus(t)
	for i, body := range []string{
		`"worker_agent":"w1","trace_id":"t1","timeout_ms":5000`,
		`"worker_agent":"w2","trace_id":"t1","correlation_id":"c1"`,
		`"worker_topic":"work","trace_id":"t2","correlation_id":"c1","timeout_ms":8000`,
		`"worker_agent":"w1","timeout_ms":9000,"max_retries":1`,
	} {
		b.nowMS++
		b.do([]string{"s1", "s2"}[i%2], verbCreate, fmt.Sprintf(`{"job_id":"j%d",%s}`, i+1, body))
	}
	b.nowMS++
	b.do("w1", verbReport, `{"job_id":"j1","attempt":1,"status":"succeeded"}`)
	b.do("w2", verbReport, `{"job_id":"j2","attempt":1,"status":"running"}`)
	for _, c := range []struct {
		body, want string
		more       bool
	}{
		{`{}`, "j2 j1 j4 j3", false},
		{``, "j2 j1 j4 j3", false},
		{`{"limit":3}`, "j2 j1 j4", true},
		{`{"limit":4}`, "j2 j1 j4 j3", false},
		{`{"supervisor_agent":"s1"}`, "j1 j3", false},
		{`{"supervisor_agent":"s1","limit":1}`, "j1", true},
		{`{"supervisor_agent":"s2","worker_agent":"w1"}`, "j4", false},
		{`{"worker_agent":"w1"}`, "j1 j4", false},
		{`{"worker_agent":"nobody"}`, "", false},
		{`{"statuses":["queued"]}`, "j4 j3", false},
		{`{"statuses":["running","succeeded"]}`, "j2 j1", false},
		{`{"statuses":["running","succeeded"],"worker_agent":"w1"}`, "j1", false},
		{`{"statuses":[]}`, "j2 j1 j4 j3", false},
		{`{"trace_id":"t1"}`, "j2 j1", false},
		{`{"correlation_id":"c1"}`, "j2 j3", false},
		{`{"correlation_id":"c1","trace_id":"t2"}`, "j3", false},
		{fmt.Sprintf(`{"active_before_ms":%d}`, start+8003), "j3", false},
		{fmt.Sprintf(`{"active_before_ms":%d}`, start+8002), "", false},
		{fmt.Sprintf(`{"active_before_ms":%d,"supervisor_agent":"s2"}`, start+9004), "j4", false},
	} {
		ids, more := b.listed(c.body)
		if got := strings.Join(ids, " "); got != c.want || more != c.more {
			t.Errorf("list %s: %q, more %v, want %q, %v", c.body, got, more, c.want, c.more)
		}
	}
	for _, body := range []string{`{"limit":0}`, `{"limit":101}`, `{"limit":-1}`, `{"statuses":["done"]}`, `{"status":"queued"}`} {
		if _, refusal := b.ask("list", body); refusal == nil || refusal.Code != wire.BodyInvalid || refusal.Hint == "" {
			t.Errorf("list %s: %v", body, refusal)
		}
	}
}

// Whichever index a list goes through, it is the same as a look at every job.
func TestAnyListIsWhatALookAtEveryJobGives(t *testing.T) {
	b := newBus(t)
	rapid.Check(t, func(rt *rapid.T) {
		for _, table := range b.m.Tables() {
			if _, err := b.db.DB.Exec(`DELETE FROM ` + table); err != nil {
				rt.Fatal(err)
			}
		}
		b.m.Forget()
		type row struct {
			id, supervisor, worker, trace, correlation string
			status                                     Status
			updated                                    int64
		}
		var all []row
		pick := func(name string, of ...string) string { return rapid.SampledFrom(of).Draw(rt, name) }
		for i := range rapid.IntRange(0, 12).Draw(rt, "jobs") {
			b.nowMS += rapid.Int64Range(0, 1).Draw(rt, "later")
			r := row{fmt.Sprint("j", i), pick("supervisor", "s1", "s2"), pick("worker", "w1", "w2"), pick("trace", "t1", "t2"), pick("correlation", "c1", "c2"), Queued, b.nowMS}
			b.do(r.supervisor, verbCreate, fmt.Sprintf(`{"job_id":%q,"worker_agent":%q,"trace_id":%q,"correlation_id":%q}`, r.id, r.worker, r.trace, r.correlation))
			if status := pick("status", "queued", "running", "succeeded", "failed"); status != "queued" {
				b.do(r.worker, verbReport, fmt.Sprintf(`{"job_id":%q,"attempt":1,"status":%q}`, r.id, status))
				r.status = Status(status)
			}
			all = append(all, r)
		}
		slices.Reverse(all)
		slices.SortStableFunc(all, func(x, y row) int { return int(y.updated - x.updated) })
		supervisor, worker := pick("by supervisor", "", "s1"), pick("by worker", "", "w1")
		trace, correlation := pick("by trace", "", "t1"), pick("by correlation", "", "c1")
		status, limit := pick("by status", "", "queued", "running"), rapid.IntRange(1, 5).Draw(rt, "limit")
		var want []string
		for _, r := range all {
			if (supervisor == "" || supervisor == r.supervisor) && (worker == "" || worker == r.worker) && (trace == "" || trace == r.trace) &&
				(correlation == "" || correlation == r.correlation) && (status == "" || status == string(r.status)) {
				want = append(want, r.id)
			}
		}
		statuses := "[]"
		if status != "" {
			statuses = fmt.Sprintf("[%q]", status)
		}
		ids, more := b.listed(fmt.Sprintf(`{"supervisor_agent":%q,"worker_agent":%q,"trace_id":%q,"correlation_id":%q,"statuses":%s,"limit":%d}`,
			supervisor, worker, trace, correlation, statuses, limit))
		if !slices.Equal(ids, want[:min(limit, len(want))]) || more != (len(want) > limit) {
			rt.Fatalf("the list is %v, more %v, want %d of %v", ids, more, limit, want)
		}
	})
}

// A list never reads all jobs to find some, and no step or tick does.
func TestEveryLookGoesThroughAnIndex(t *testing.T) {
	b := newBus(t)
	for _, query := range []string{listByTrace, listByCorrelation, listByWorker, listBySupervisor, listByStatus, restartLeases,
		`SELECT ` + jobColumns + ` WHERE j.job_id = ?1`,
		`SELECT ` + jobColumns + ` WHERE j.supervisor_agent = ?1 AND j.dedup_key = ?2 AND j.status IN ('queued', 'running')`,
		`SELECT job_id, due_at_ms FROM jobs WHERE due_at_ms <= ?1 ORDER BY due_at_ms, job_id LIMIT ?2`,
		`SELECT ` + attemptColumns + ` WHERE n = ?1 ORDER BY attempt DESC LIMIT ?2`} {
		for _, detail := range b.plan(query) {
			sorted := query == listByTrace || query == listByCorrelation // chains are short
			if strings.HasPrefix(detail, "SCAN") || strings.Contains(detail, "TEMP B-TREE") && !sorted {
				t.Errorf("%s: %s", query, detail)
			}
		}
	}
}

// plan is how SQLite carries a query out.
func (b *bus) plan(query string) []string {
	b.t.Helper()
	args := make([]any, 0, 8)
	for n := 1; strings.Contains(query, fmt.Sprint("?", n)); n++ {
		args = append(args, "")
	}
	rows, err := b.db.DB.Query(`EXPLAIN QUERY PLAN `+query, args...)
	if err != nil {
		b.t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			b.t.Fatal(err)
		}
		plan = append(plan, detail)
	}
	if err := rows.Err(); err != nil || len(plan) == 0 {
		b.t.Fatalf("%s: no plan, %v", query, err)
	}
	return plan
}

// A reply holds what it can, says that there is more, and shows large values by
// their size.
func TestALongListStopsAtItsSize(t *testing.T) {
	b := newBus(t)
	small, id := text256(inReplies), strings.Repeat("i", 120)
	topic := strings.Repeat(id+".", 7) + id
	for i := range 100 {
		b.nowMS++
		failure := small
		if i == 99 {
			failure = text256(inReplies + 1)
		}
		b.do(id, verbCreate, fmt.Sprintf(`{"job_id":"%s-%d","worker_agent":%q,"topic":%q,"task":%s,"payload":%s}`, id, i, id, topic, small, small))
		b.do(id, verbReport, fmt.Sprintf(`{"job_id":"%s-%d","attempt":1,"status":"failed","result":%s,"error":%s}`, id, i, small, failure))
	}
	page, refusal := b.ask("list", `{"limit":100}`)
	if refusal != nil {
		t.Fatal(refusal)
	}
	raw, err := json.Marshal(page)
	if err != nil {
		t.Fatal(err)
	}
	jobs := page["jobs"].([]any)
	if len(jobs) < 80 || len(jobs) == 100 || page["more"] != true || len(raw) > pageBytes+100 {
		t.Errorf("it shows %d in %d bytes, more %v", len(jobs), len(raw), page["more"])
	}
	first := jobs[0].(map[string]any)
	if first["job_id"] != id+"-99" || first["task"] != small[1:len(small)-1] {
		t.Errorf("the first is %.300v", first)
	}
	sameJSON(t, "a large error", first["error"], `{"omitted":true,"bytes":1025}`)
}

func TestGetShowsTheJobAndItsAttempts(t *testing.T) {
	b := newBus(t)
	b.do("sup", verbCreate, `{"job_id":"j","worker_topic":"work","task":"t","payload":`+text256(50<<10)+`,"max_retries":1}`)
	b.do("w1", verbClaim, `{"job_id":"j"}`)
	b.do("w1", verbReport, `{"job_id":"j","attempt":1,"status":"failed","error":"e","retry_after_ms":0,"result":`+text256(5000)+`}`)
	got := b.get("j")
	attempts := got["attempts"].([]any)
	if len(attempts) != 2 || len(got["payload"].(string)) != 50<<10-2 {
		t.Fatalf("it is %v", got)
	}
	first, second := attempts[0].(map[string]any), attempts[1].(map[string]any)
	if first["outcome"] != "failed" || first["worker_agent"] != "w1" || first["error"] != "e" || first["requeued"] != true ||
		first["begun_id"] != 1.0 || first["started_id"] != 2.0 || first["finished_id"] != 3.0 {
		t.Errorf("the first attempt is %v", first)
	}
	sameJSON(t, "its result", first["result"], `{"omitted":true,"bytes":5000}`)
	sameJSON(t, "the second attempt", second, fmt.Sprintf(`{"attempt":2,"begun_by":"retry","begun_at_ms":%d,"begun_id":3}`, start))
	for body, want := range map[string]wire.Code{`{"job_id":"k"}`: wire.AssignNotFound, `{"job_id":"*"}`: wire.IDInvalid, `{}`: wire.BodyInvalid, `{"id":"j"}`: wire.BodyInvalid} {
		if _, refusal := b.ask("get", body); refusal == nil || refusal.Code != want {
			t.Errorf("get %s: %v, want %s", body, refusal, want)
		}
	}
	var refusal *wire.Error
	if _, err := b.m.Attempts(b.db, "k"); !errors.As(err, &refusal) || refusal.Code != wire.AssignNotFound {
		t.Errorf("the attempts of nothing: %v", err)
	}
}

func TestJobsAreCountedByStatus(t *testing.T) {
	b := newBus(t)
	for i, status := range []string{"running", "running", "failed", "succeeded", "timed_out"} {
		b.do("sup", verbCreate, fmt.Sprintf(`{"job_id":"j%d","worker_agent":"w"}`, i))
		b.do("w", verbReport, fmt.Sprintf(`{"job_id":"j%d","attempt":1,"status":%q}`, i, status))
	}
	b.do("sup", verbCreate, `{"worker_agent":"w"}`)
	got, err := b.m.Count(b.db)
	if err != nil || fmt.Sprint(got) != "map[failed:1 queued:1 running:2 succeeded:1 timed_out:1]" {
		t.Errorf("there are %v, %v", got, err)
	}
}

// J12: a damaged value, row or attempt makes only what is about that job fail.
func TestDamageStaysWithItsJob(t *testing.T) {
	for _, damage := range []string{
		`UPDATE jobs SET status = 'banana' WHERE job_id = 'bad'`,
		`UPDATE jobs SET error = '{' WHERE job_id = 'bad'`,
		`UPDATE jobs SET deadline_ms = NULL WHERE job_id = 'bad'`,
		`UPDATE jobs SET worker_agent = NULL WHERE job_id = 'bad'`,
		`UPDATE jobs SET started_at_ms = NULL WHERE job_id = 'bad'`,
		`UPDATE jobs SET attempt = 0 WHERE job_id = 'bad'`,
		`UPDATE job_tasks SET payload = 'x' WHERE n = (SELECT n FROM jobs WHERE job_id = 'bad')`,
		`UPDATE job_tasks SET task = '' WHERE n = (SELECT n FROM jobs WHERE job_id = 'bad')`,
	} {
		b := newBus(t)
		for _, id := range []string{"bad", "good"} {
			b.do("sup", verbCreate, fmt.Sprintf(`{"job_id":%q,"worker_agent":"w","timeout_ms":5000,"payload":1,"task":2,"dedup_key":%q}`, id, id))
			b.do("w", verbReport, fmt.Sprintf(`{"job_id":%q,"attempt":1,"status":"running"}`, id))
		}
		if _, err := b.db.DB.Exec(damage); err != nil {
			t.Fatal(err)
		}
		b.m.Forget()
		names := func(err error) bool {
			var refusal *wire.Error
			return err != nil && !errors.As(err, &refusal) && strings.Contains(err.Error(), `"bad"`) && strings.Contains(err.Error(), "damaged")
		}
		for _, command := range []step.Command{{Verb: verbReport, Body: []byte(`{"job_id":"bad","attempt":1,"status":"succeeded"}`)}, {Verb: verbCancel, Body: []byte(`{"job_id":"bad"}`)},
			{Verb: verbCreate, Body: []byte(`{"job_id":"bad","worker_agent":"w"}`)}} {
			if _, err := b.apply("w", command); !names(err) {
				t.Errorf("%s: %s: %v", damage, command.Verb, err)
			}
		}
		if _, err := b.m.Queries()["get"](b.db, "x", []byte(`{"job_id":"bad"}`)); !names(err) {
			t.Errorf("%s: get: %v", damage, err)
		}
		if ids, _ := b.listed(`{}`); !slices.Equal(ids, []string{"good", "bad"}) {
			t.Errorf("%s: the list is %v", damage, ids)
		}
		b.nowMS += 5000
		b.row++
		var failed, done int
		for _, d := range b.due(10) {
			switch _, err := b.apply(wire.Bridge, d); {
			case names(err):
				failed++
			case err == nil && d.Key == "good":
				done++
			default:
				t.Errorf("%s: the deadline of %s: %v", damage, d.Key, err)
			}
		}
		if failed != 1 || done != 1 || b.get("good")["status"] != "timed_out" {
			t.Errorf("%s: %d failed, %d were handled", damage, failed, done)
		}
	}
	b := newBus(t)
	b.do("sup", verbCreate, `{"job_id":"j","worker_agent":"w"}`)
	b.do("w", verbReport, `{"job_id":"j","attempt":1,"status":"failed","error":"e"}`)
	if _, err := b.db.DB.Exec(`UPDATE attempts SET error = '{'`); err != nil {
		t.Fatal(err)
	}
	if _, err := b.m.Attempts(b.db, "j"); err == nil || !strings.Contains(err.Error(), `"j"`) {
		t.Errorf("a damaged attempt: %v", err)
	}
}
