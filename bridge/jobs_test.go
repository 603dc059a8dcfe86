package bridge_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"signalbox/audit"
	"signalbox/bridge"
)

// job asks a verb of assign as an agent.
func (r *rig) job(t *testing.T, agent, verb string, more map[string]any) map[string]any {
	t.Helper()
	return r.request(t, "bus.api."+agent+".assign."+verb, body(more), nil)
}

func (r *rig) created(t *testing.T, more map[string]any) {
	t.Helper()
	if reply := r.job(t, "boss", "create", more); reply["status"] != "queued" {
		t.Fatalf("created: %v", reply)
	}
}

// lives is what has happened to a job's status, in order, with reasons.
func (r *rig) lives(t *testing.T, id string) string {
	t.Helper()
	return one[string](t, r.db(t), `SELECT coalesce(group_concat(to_state || '/' || reason, ' '), '') FROM
		(SELECT to_state, reason FROM transitions WHERE machine = 'assign' AND key = ? ORDER BY id)`, id)
}

func (r *rig) awaitJob(t *testing.T, id, status string) map[string]any {
	t.Helper()
	var job map[string]any
	eventually(t, id+" is "+status, func() bool {
		job = r.job(t, "boss", "get", map[string]any{"job_id": id})
		return job["status"] == status
	})
	return job
}

// J1: eight workers, each with a connection of its own, claim one offered job
// in the same instant, a thousand times: one winner each.
func TestJ1EightWorkersClaimOneJobAThousandTimes(t *testing.T) {
	const workers, rounds = 8, 1000
	r := start(t, plan{})
	conns := make([]*nats.Conn, workers)
	for i := range conns {
		var err error
		if conns[i], err = nats.Connect(r.nc.ConnectedUrl()); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
	}
	for round := range rounds {
		id := "job-" + strconv.Itoa(round)
		r.created(t, map[string]any{"job_id": id, "worker_topic": "work", "task": round})
		begin := make(chan struct{})
		var won, lost atomic.Int64
		var winner atomic.Value
		var all sync.WaitGroup
		for i, nc := range conns {
			all.Go(func() {
				<-begin
				me := "worker-" + strconv.Itoa(i)
				m, err := nc.Request("bus.api."+me+".assign.claim", body(map[string]any{"job_id": id}), within)
				if err != nil {
					t.Errorf("claim: %v", err)
					return
				}
				var reply map[string]any
				if err := json.Unmarshal(m.Data, &reply); err != nil {
					t.Errorf("claim: %v", err)
				}
				switch code(reply) {
				case "":
					won.Add(1)
					winner.Store(me)
				case "ASSIGN_CLAIMED":
					lost.Add(1)
				default:
					t.Errorf("claim: %v", reply)
				}
			})
		}
		close(begin)
		all.Wait()
		if won.Load() != 1 || lost.Load() != workers-1 {
			t.Fatalf("round %d: %d won and %d lost", round, won.Load(), lost.Load())
		}
		if round%100 == 0 {
			if job := r.awaitJob(t, id, "running"); job["worker_agent"] != winner.Load() {
				t.Errorf("round %d: %v won and the job is with %v", round, winner.Load(), job["worker_agent"])
			}
		}
	}
	if n := one[int](t, r.db(t), `SELECT count(*) FROM transitions WHERE to_state = 'running'`); n != rounds {
		t.Errorf("%d jobs began to run, want %d", n, rounds)
	}
}

// J2: the result of attempt 1 comes during attempt 2, from the same worker.
func TestJ2AStaleReportChangesNothingAndTheSupervisorHearsOfIt(t *testing.T) {
	r := start(t, plan{config: quickRetries})
	r.register(t, "boss", nil)
	r.created(t, map[string]any{"job_id": "j", "worker_agent": "w", "task": 1, "max_retries": 1})
	report := func(attempt any, status string) map[string]any {
		more := map[string]any{"job_id": "j", "status": status, "result": "late"}
		if attempt != nil {
			more["attempt"] = attempt
		}
		return r.job(t, "w", "report", more)
	}
	report(1, "failed")
	report(2, "running")
	for _, attempt := range []any{1, 3, nil} {
		reply := report(attempt, "succeeded")
		current, _ := reply["error"].(map[string]any)["current"].(map[string]any)
		if code(reply) != "ASSIGN_ATTEMPT_MISMATCH" || current["attempt"] != 2.0 || current["status"] != "running" {
			t.Errorf("a report with attempt %v: %v", attempt, reply)
		}
	}
	if job := r.awaitJob(t, "j", "running"); job["attempt"] != 2.0 || job["result"] != nil {
		t.Errorf("the job is %v", job)
	}
	r.settled(t)
	if n := one[int](t, r.db(t), `SELECT count(*) FROM messages WHERE "to" = 'agent:boss' AND json_extract(body, '$.stale_attempt') = 1 AND json_extract(body, '$.late_status') = 'succeeded'`); n != 1 {
		t.Errorf("%d messages tell the supervisor of the late result, want 1", n)
	}
	if n := one[int](t, r.db(t), `SELECT count(*) FROM refusals WHERE code = 'ASSIGN_ATTEMPT_MISMATCH'`); n != 3 {
		t.Errorf("%d refusals are registered, want 3", n)
	}
}

// quickRetries makes a retry due at once, and ticks come at once.
func quickRetries(c *bridge.Config) {
	c.Settings = map[string]json.RawMessage{"assign": json.RawMessage(`{"backoff":{"base_ms":1,"factor":2,"max_ms":2,"jitter":0}}`)}
}

// J4: a deadline that passes while everything is down fires once, at the first
// tick after the start; one that lies ahead fires on time.
func TestJ4ADeadlinePassesWhileEverythingIsDown(t *testing.T) {
	r := start(t, plan{})
	r.created(t, map[string]any{"job_id": "past", "worker_agent": "w", "task": 1, "timeout_ms": 1000})
	r.created(t, map[string]any{"job_id": "ahead", "worker_agent": "w", "task": 1, "timeout_ms": 4000})
	over := time.Now().Add(1500 * time.Millisecond)
	r = r.restart(t, func() {
		eventually(t, "the deadline has passed", func() bool { return time.Now().After(over) })
	})
	r.awaitJob(t, "past", "timed_out")
	ahead := r.awaitJob(t, "ahead", "timed_out")
	if late := ahead["completed_at_ms"].(float64) - ahead["created_at_ms"].(float64); late < 4000 {
		t.Errorf("the deadline ahead fired after %v ms, want 4000 at least", late)
	}
	for _, id := range []string{"past", "ahead"} {
		if got := r.lives(t, id); got != "queued/created timed_out/deadline_over" {
			t.Errorf("%s: %s", id, got)
		}
	}
}

// J8: a worker that is gone loses a job with a lease to the next attempt; one
// that beats keeps it.
func TestJ8ALeaseThatNobodyRenewsGivesTheJobBack(t *testing.T) {
	r := start(t, plan{config: quickRetries})
	for _, id := range []string{"gone", "alive"} {
		r.created(t, map[string]any{"job_id": id, "worker_agent": "w", "task": 1, "max_retries": 1, "lease_ms": 1000})
		r.job(t, "w", "report", map[string]any{"job_id": id, "attempt": 1, "status": "running"})
	}
	eventually(t, "the job is queued again", func() bool {
		if reply := r.job(t, "w", "heartbeat", map[string]any{"job_id": "alive", "attempt": 1}); code(reply) != "" {
			t.Fatalf("a heartbeat: %v", reply)
		}
		return r.job(t, "boss", "get", map[string]any{"job_id": "gone"})["attempt"] == 2.0
	})
	if got := r.lives(t, "gone"); got != "queued/created running/reported queued/retry" {
		t.Errorf("the job of the worker that is gone: %s", got)
	}
	if job := r.awaitJob(t, "alive", "running"); job["attempt"] != 1.0 {
		t.Errorf("the job of the worker that beats: %v", job)
	}
	if reply := r.job(t, "w", "report", map[string]any{"job_id": "gone", "attempt": 1, "status": "succeeded"}); code(reply) != "ASSIGN_ATTEMPT_MISMATCH" {
		t.Errorf("the report of the worker that came back: %v", reply)
	}
}

// J9: a job without retries has one attempt, whatever crashes around it.
func TestJ9WithoutRetriesACrashLoopMakesOneAttempt(t *testing.T) {
	r := start(t, plan{})
	r.created(t, map[string]any{"job_id": "j", "worker_agent": "w", "task": 1})
	r.job(t, "w", "report", map[string]any{"job_id": "j", "attempt": 1, "status": "running"})
	for range 10 {
		p := r.plan
		if err := r.close(true); err != nil {
			t.Fatal(err)
		}
		r.bridge = nil
		r = start(t, p)
	}
	if job := r.awaitJob(t, "j", "running"); job["attempt"] != 1.0 || job["retry_count"] != 0.0 {
		t.Errorf("after ten crashes the job is %v", job)
	}
	r.settled(t)
	if n := len(r.rows(t, audit.Filter{To: "agent:w"})); n != 1 {
		t.Errorf("%d handoffs, want 1", n)
	}
}

// J10: cancel and succeed, cancel and claim, at the same instant: one outcome,
// and never running after cancelled.
func TestJ10CancelAgainstSucceedAndClaim(t *testing.T) {
	r := start(t, plan{})
	other, err := nats.Connect(r.nc.ConnectedUrl())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	cancelled, succeeded := 0, 0
	for n := range 300 {
		id := "j" + strconv.Itoa(n)
		r.created(t, map[string]any{"job_id": id, "worker_agent": "w", "task": 1})
		var all sync.WaitGroup
		ask := func(nc *nats.Conn, subject string, more map[string]any) {
			all.Go(func() {
				if _, err := nc.Request(subject, body(more), within); err != nil {
					t.Errorf("%s: %v", subject, err)
				}
			})
		}
		ask(other, "bus.api.w.assign.claim", map[string]any{"job_id": id})
		ask(r.nc, "bus.api.boss.assign.cancel", map[string]any{"job_id": id})
		ask(other, "bus.api.w.assign.report", map[string]any{"job_id": id, "attempt": 1, "status": "succeeded"})
		all.Wait()
		switch got := r.lives(t, id); got {
		case "queued/created cancelled/cancelled", "queued/created running/claimed cancelled/cancelled":
			cancelled++
		case "queued/created running/claimed succeeded/reported", "queued/created succeeded/reported":
			succeeded++
		default:
			t.Errorf("%s: %s", id, got)
		}
	}
	t.Logf("%d cancelled, %d succeeded", cancelled, succeeded)
}

// J11: while a live job has a dedup_key, every create means that one.
func TestJ11ManyCreatesWithOneKeyMakeOneJob(t *testing.T) {
	r := start(t, plan{})
	var mu sync.Mutex
	ids := map[any]int{}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			reply := r.job(t, "boss", "create", map[string]any{"worker_agent": "w", "task": 1, "dedup_key": "nightly"})
			mu.Lock()
			defer mu.Unlock()
			ids[reply["job_id"]]++
		})
	}
	all.Wait()
	if len(ids) != 1 {
		t.Fatalf("20 creates made the jobs %v", ids)
	}
	for id := range ids {
		r.job(t, "w", "report", map[string]any{"job_id": id, "attempt": 1, "status": "succeeded"})
		if next := r.job(t, "boss", "create", map[string]any{"worker_agent": "w", "task": 1, "dedup_key": "nightly"}); next["job_id"] == id || next["status"] != "queued" {
			t.Errorf("after the end of %v the key gave %v", id, next)
		}
	}
}

// J13: a failure with a retry left is one event, queued; and the supervisor and
// the worker get their messages through their inboxes.
func TestJ13AFailureWithARetryLeftIsNeverSeenAsFailed(t *testing.T) {
	r := start(t, plan{config: quickRetries})
	r.register(t, "boss", nil)
	r.register(t, "w", nil)
	events, err := r.nc.SubscribeSync("bus.evt.assign.j.*")
	if err != nil {
		t.Fatal(err)
	}
	r.created(t, map[string]any{"job_id": "j", "worker_agent": "w", "task": "do it", "payload": map[string]any{"n": 1}, "max_retries": 1, "trace_id": "t-1"})
	take := func() map[string]any {
		t.Helper()
		got := r.fetch(t, "w", map[string]any{"wait_ms": 20_000, "auto_ack": true})
		if len(got) != 1 || got[0]["type"] != "handoff" || got[0]["topic"] != "assign.job" || got[0]["trace_id"] != "t-1" {
			t.Fatalf("the worker got %v", got)
		}
		var handoff map[string]any
		if err := json.Unmarshal([]byte(got[0]["body"].(string)), &handoff); err != nil {
			t.Fatal(err)
		}
		return handoff
	}
	first := take()
	if first["kind"] != "assign.job" || first["assign_job_id"] != "j" || first["attempt"] != 1.0 || first["task"] != "do it" || first["supervisor"] != "boss" {
		t.Errorf("the handoff is %v", first)
	}
	r.job(t, "w", "report", map[string]any{"job_id": "j", "attempt": 1, "status": "failed", "error": "flaky"})
	if second := take(); second["attempt"] != 2.0 || second["retry_count"] != 1.0 {
		t.Errorf("the second handoff is %v", second)
	}
	r.job(t, "w", "report", map[string]any{"job_id": "j", "attempt": 2, "status": "succeeded", "result": map[string]any{"ok": true}})
	var seen []string
	for len(seen) == 0 || seen[len(seen)-1] != "succeeded" {
		m, err := events.NextMsg(within)
		if err != nil {
			t.Fatal(err, seen)
		}
		seen = append(seen, m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	}
	if slices.Contains(seen, "failed") || !slices.Equal(seen[:2], []string{"queued", "queued"}) {
		t.Errorf("the events are %v", seen)
	}
	var told []string
	eventually(t, "the supervisor has both messages", func() bool {
		for _, m := range r.fetch(t, "boss", map[string]any{"auto_ack": true}) {
			var result map[string]any
			if err := json.Unmarshal([]byte(m["body"].(string)), &result); err != nil {
				t.Fatal(err)
			}
			told = append(told, fmt.Sprint(result["event"]))
		}
		return len(told) >= 2
	})
	if !slices.Equal(told, []string{"retry_scheduled", "completed"}) {
		t.Errorf("the supervisor was told %v", told)
	}
	why, err := bridge.ReadWhy(t.Context(), r.reader, "job:j", 0)
	if err != nil || why.State != "succeeded" || len(why.Steps) < 3 {
		t.Fatalf("why: %+v, %v", why, err)
	}
	if s := why.Steps[0]; s.From != "boss" || s.Subject != "bus.cmd.boss.assign.create" || len(s.Changes) != 1 || s.Changes[0].To != "queued" || len(s.LedTo) != 2 {
		t.Errorf("the first step is %+v", s)
	}
	if s := why.Steps[len(why.Steps)-1]; len(s.Changes) != 1 || s.Changes[0].To != "succeeded" || len(s.LedTo) < 2 {
		t.Errorf("the last step is %+v", s)
	}
	if _, err := bridge.ReadWhy(t.Context(), r.reader, "job:none", 0); !errors.Is(err, audit.ErrNotFound) {
		t.Errorf("why of a job that there is not: %v", err)
	}
}
