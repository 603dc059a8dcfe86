package assign

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"signalbox/step"
	"signalbox/wire"
)

func asTime(ms int64) time.Time { return time.UnixMilli(ms) }

// must is the effects of a command that must be taken.
func (b *bus) must(from, verb, body string) step.Effects {
	b.t.Helper()
	effects, refusal := b.send(from, verb, body)
	if refusal != nil {
		b.t.Fatalf("%s %s of %s: %v", verb, body, from, refusal)
	}
	return effects
}

// sameJSON compares a value with JSON.
func sameJSON(t *testing.T, what string, got any, want string) {
	t.Helper()
	var w any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%s: %v", want, err)
	}
	raw, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	is, err := json.Marshal(object(t, got))
	if err != nil {
		t.Fatal(err)
	}
	if string(is) != string(raw) {
		t.Errorf("%s is\n\t%s\nwant\n\t%s", what, is, raw)
	}
}

// envelope is all of a message but its body and its id.
func envelope(m step.Outgoing) string {
	return fmt.Sprintf("%s %s %s %d %s %s %s", m.To, m.Type, m.Topic, m.Priority, m.TTL, m.CorrelationID, m.TraceID)
}

func TestTheMessagesAboutAJob(t *testing.T) {
	b := newBus(t)
	e := b.must("sup", verbCreate, `{"job_id":"j","worker_topic":"builders","topic":"build.all","task":"build <it>","payload":{"n":1},"max_retries":1,
		"priority":3,"ttl_ms":60000,"lease_ms":5000,"trace_id":"tr","correlation_id":"co"}`)
	handoff := e.Messages[0]
	if got, want := envelope(handoff), "topic:builders handoff build.all 3 1m0s co tr"; got != want {
		t.Errorf("the handoff is %s, want %s", got, want)
	}
	sameJSON(t, "the handoff", handoff.Body, fmt.Sprintf(`{"kind":"assign.job","assign_job_id":"j","reason":"created","attempt":1,"retry_count":0,
		"max_retries":1,"timeout_ms":60000,"deadline_ms":%d,"lease_ms":5000,"topic":"build.all","supervisor":"sup",
		"worker_topic":"builders","task":"build <it>","payload":{"n":1}}`, start+60_000))
	if b.get("j")["last_message_id"] != handoff.ID {
		t.Errorf("the last message is %v, want %s", b.get("j")["last_message_id"], handoff.ID)
	}

	b.do("w", verbClaim, `{"job_id":"j"}`)
	b.nowMS += 1000
	e = b.must("w", verbReport, `{"job_id":"j","attempt":1,"status":"failed","error":{"code":"E"},"result":"half","retry_after_ms":2000}`)
	told := e.Messages[0]
	if got, want := envelope(told), "agent:sup event assign.result 5 24h0m0s co tr"; got != want {
		t.Errorf("the result is %s, want %s", got, want)
	}
	body := object(t, told.Body)
	for name, want := range map[string]any{"event": "retry_scheduled", "retry_reason": "retry", "job_id": "j", "status": "queued", "attempt": 2.0,
		"worker_agent": "w", "worker_topic": "builders", "last_message_id": told.ID} {
		if body[name] != want {
			t.Errorf("in retry_scheduled %s is %v, want %v", name, body[name], want)
		}
	}
	sameJSON(t, "what has ended", body["ended"], fmt.Sprintf(`{"attempt":1,"worker_agent":"w","begun_by":"created","begun_at_ms":%d,"begun_id":1,
		"started_at_ms":%d,"started_id":2,"finished_at_ms":%d,"finished_id":3,"outcome":"failed","reason":"reported","retryable":true,
		"requeued":true,"result":"half","error":{"code":"E"}}`, start, start, start+1000))
	if moved := object(t, e.Transitions[0].Body); moved["worker_agent"] != nil || moved["ended"].(map[string]any)["worker_agent"] != "w" || moved["error"] != nil {
		t.Errorf("the event of the retry is %v", moved)
	}

	b.nowMS += 2000
	b.tick(1)
	b.do("w", verbClaim, `{"job_id":"j"}`)
	b.nowMS += 5000
	effects := b.tick(1)
	stop := effects[0].Messages[0]
	if got, want := envelope(stop), "agent:w event assign.cancel 8 1m0s co tr"; got != want {
		t.Errorf("the cancel is %s, want %s", got, want)
	}
	sameJSON(t, "the cancel", stop.Body, `{"kind":"assign.cancel","assign_job_id":"j","attempt":2,"reason":"timed_out"}`)
	body = object(t, effects[0].Messages[1].Body)
	for name, want := range map[string]any{"event": "completed", "completion_reason": "lease_over", "status": "timed_out", "attempt": 2.0,
		"worker_agent": "w", "last_message_id": effects[0].Messages[1].ID} {
		if body[name] != want {
			t.Errorf("in completed %s is %v, want %v", name, body[name], want)
		}
	}
	sameJSON(t, "the error", body["error"], `{"code":"lease_over","message":"no sign of life for 5s"}`)

	_, refusal := b.send("w", verbReport, `{"job_id":"j","attempt":2,"status":"succeeded","result":[1]}`)
	if refusal == nil || refusal.Code != wire.AssignTerminal {
		t.Fatalf("a late report: %v", refusal)
	}
	e = b.must("sup", verbRetry, `{"job_id":"j","force":true,"reason":"try again"}`)
	body = object(t, e.Messages[0].Body)
	for name, want := range map[string]any{"event": "retry_scheduled", "retry_reason": "retry_requested", "requested_by": "sup",
		"request_reason": "try again", "worker_agent": "w", "attempt": 3.0, "retry_count": 2.0} {
		if body[name] != want {
			t.Errorf("after the request %s is %v, want %v", name, body[name], want)
		}
	}
	e = b.must("anybody", verbCancel, `{"job_id":"j","reason":"enough"}`)
	body = object(t, e.Messages[0].Body)
	if body["event"] != "cancelled" || len(e.Messages) != 1 {
		t.Errorf("after cancel the supervisor hears %v", e.Messages)
	}
	sameJSON(t, "the error of a cancelled job", body["error"], `{"code":"cancelled","message":"enough","cancelled_by":"anybody"}`)
}

// J2: what is late is refused, and the supervisor gets all of it.
func TestALateResultReachesTheSupervisorWhole(t *testing.T) {
	b := newBus(t)
	b.do("sup", verbCreate, `{"job_id":"j","worker_agent":"w","max_retries":1,"priority":8}`)
	b.do("w", verbReport, `{"job_id":"j","attempt":1,"status":"failed","retry_after_ms":0}`)
	before := fmt.Sprint(b.get("j"))
	large := text256(200 << 10)
	e, refusal := b.send("w", verbReport, `{"job_id":"j","attempt":1,"status":"completed","result":`+large+`,"error":"none"}`)
	if refusal == nil || refusal.Code != wire.AssignAttemptMismatch || len(e.Messages) != 1 || len(e.Transitions)+len(e.Events) > 0 {
		t.Fatalf("%v, %+v", refusal, e)
	}
	if got, want := envelope(e.Messages[0])[:38], "agent:sup event assign.result 8 24h0m0"; got != want {
		t.Errorf("the message is %s, want %s", got, want)
	}
	body := object(t, e.Messages[0].Body)
	for name, want := range map[string]any{"event": "late_result", "stale_attempt": 1.0, "late_status": "succeeded", "late_result": large[1 : len(large)-1],
		"late_error": "none", "reported_by": "w", "attempt": 2.0, "status": "queued"} {
		if body[name] != want {
			t.Errorf("%s is %.100v, want %.100v", name, body[name], want)
		}
	}
	if after := fmt.Sprint(b.get("j")); after != before {
		t.Errorf("the job was %s, and is %s", before, after)
	}
}

// What a supervisor hears of the end needs no further look: the result is whole,
// the payload that it gave itself is not repeated.
func TestTheSupervisorGetsTheWholeResult(t *testing.T) {
	b := newBus(t)
	large := text256(200 << 10)
	b.do("sup", verbCreate, `{"job_id":"j","worker_agent":"w","payload":`+large+`}`)
	e := b.must("w", verbReport, `{"job_id":"j","attempt":1,"status":"succeeded","result":`+large+`}`)
	body := object(t, e.Messages[0].Body)
	if body["result"] != large[1:len(large)-1] {
		t.Errorf("the result is %.100v", body["result"])
	}
	sameJSON(t, "the payload", body["payload"], fmt.Sprintf(`{"omitted":true,"bytes":%d}`, len(large)))
	sameJSON(t, "the result in the event", object(t, e.Transitions[0].Body)["result"], fmt.Sprintf(`{"omitted":true,"bytes":%d}`, len(large)))
}

// What a tick has ended is not repeated by a report, even if it says the same.
func TestAReportRepeatsOnlyAReport(t *testing.T) {
	b := newBus(t)
	b.do("sup", verbCreate, `{"job_id":"j","worker_agent":"w","timeout_ms":5000}`)
	b.nowMS += 5000
	b.tick(1)
	raw, err := json.Marshal(b.get("j")["error"])
	if err != nil {
		t.Fatal(err)
	}
	_ = b.refused(wire.AssignTerminal, "w", verbReport, fmt.Sprintf(`{"job_id":"j","attempt":1,"status":"timed_out","error":%s}`, raw))
}

// Whatever a job has, its messages, its replies and its refusals fit: into
// max_payload less 64 KiB, and replies into three quarters of it.
func TestAllThatIsSaidOfTheLargestJobFits(t *testing.T) {
	const maxPayload = 1 << 20
	b := newBus(t)
	payload, task := `"`+strings.Repeat("<", (MaxPayload-2)/6)+`"`, text256(MaxTask)
	result, problem := text256(MaxResult), `"`+strings.Repeat("&", (MaxError-2)/6)+`"`
	b.do("sup", verbCreate, `{"job_id":"j","worker_agent":"w","max_retries":20,"payload":`+payload+`,"task":`+task+`}`)
	size := func(what string, v any, most int) {
		t.Helper()
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) > most {
			t.Errorf("%s has %d bytes, more than %d", what, len(raw), most)
		}
	}
	report := func(status string) string {
		return fmt.Sprintf(`{"job_id":"j","attempt":%d,"status":%q,"result":%s,"error":%s,"retry_after_ms":0}`, b.attemptOf("j"), status, result, problem)
	}
	check := func(e step.Effects) {
		t.Helper()
		for _, m := range e.Messages {
			size("the message to "+m.To.String(), m.Body, maxPayload-64<<10)
		}
		for _, tr := range e.Transitions {
			size("the event "+tr.To, tr.Body, maxPayload-64<<10)
		}
		size("the reply", e.Reply, maxPayload/4*3)
	}
	for range 20 {
		check(b.must("w", verbReport, report("failed")))
	}
	for range 40 {
		check(b.must("w", verbReport, report("released")))
		b.nowMS += 1000
		for _, e := range b.tick(1) {
			check(e)
		}
	}
	check(b.must("w", verbClaim, `{"job_id":"j"}`))
	check(b.must("w", verbReport, report("progress")))
	check(b.must("w", verbReport, report("succeeded")))
	size("get", b.get("j"), maxPayload/4*3)
	if n := len(b.get("j")["attempts"].([]any)); n != maxAttempts {
		t.Errorf("get shows %d attempts", n)
	}
	e, refusal := b.send("w", verbReport, strings.Replace(report("failed"), `"x`, `"y`, 1))
	size("the refusal", refusal, maxPayload/4*3)
	check(e)
	current := object(t, refusal.Current)
	sameJSON(t, "the result in a refusal", current["result"], fmt.Sprintf(`{"omitted":true,"bytes":%d}`, MaxResult))
}

func (b *bus) attemptOf(id string) int64 {
	b.t.Helper()
	j, err := tables{b.db}.job(id)
	if err != nil {
		b.t.Fatal(err)
	}
	return j.Attempt
}
