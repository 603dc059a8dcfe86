package assign

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"signalbox/wire"
)

// J5: what each word of a report makes of a job, alone and with what metadata
// says.
func TestTheWordsOfReports(t *testing.T) {
	for _, c := range []struct{ report, want string }{
		{`"status":"running"`, "running"}, {`"status":"in_progress"`, "running"}, {`"status":"progress"`, "running"},
		{`"status":"succeeded"`, "succeeded"}, {`"status":"success"`, "succeeded"}, {`"status":"completed"`, "succeeded"},
		{`"status":"Completed "`, "succeeded"},
		{`"status":"failed"`, "failed"}, {`"status":"error"`, "failed"},
		{`"status":"timed_out"`, "timed_out"}, {`"status":"timeout"`, "timed_out"},
		{`"status":"released"`, "queued"},
		{`"status":"completed","metadata":{"result":"failed"}`, "failed"},
		{`"status":"completed","metadata":{"result":"error"}`, "failed"},
		{`"status":"completed","metadata":{"status":" FAILED "}`, "failed"},
		{`"status":"completed","metadata":{"outcome":"timeout"}`, "timed_out"},
		{`"status":"completed","metadata":{"result":"timed_out"}`, "timed_out"},
		{`"status":"completed","metadata":{"result":"success","outcome":"error"}`, "failed"},
		{`"status":"completed","metadata":{"result":"partial"}`, "succeeded"},
		{`"status":"completed","metadata":{"result":7,"status":null}`, "succeeded"},
		{`"status":"completed","metadata":{}`, "succeeded"},
		{`"status":"completed","metadata":null`, "succeeded"},
	} {
		b := newBus(t)
		b.do("sup", verbCreate, `{"job_id":"j","worker_agent":"w"}`)
		if got := b.do("w", verbReport, `{"job_id":"j","attempt":1,`+c.report+`}`)["status"]; got != c.want {
			t.Errorf("%s makes it %v, want %s", c.report, got, c.want)
		}
	}
}

// J5: anything else is never a success.
func TestNoOtherWordIsASuccess(t *testing.T) {
	b := newBus(t)
	b.do("sup", verbCreate, `{"job_id":"j","worker_agent":"w"}`)
	for _, word := range []string{"done-ish", "done", "ok", "succeeded!", "cancelled", "queued", ""} {
		refusal := b.refused(wire.AssignStatusUnknown, "w", verbReport, fmt.Sprintf(`{"job_id":"j","attempt":1,"status":%q,"metadata":{"result":"success"}}`, word))
		if object(t, refusal.Current)["status"] != "queued" {
			t.Errorf("%q: the job in the refusal is %s", word, refusal.Current)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.String().Draw(t, "word")
		if _, known := words[strings.ToLower(strings.TrimSpace(word))]; !known && meaning(word, []byte(`{"result":"succeeded"}`)) != saysUnknown {
			t.Fatalf("%q means %s", word, meaning(word, nil))
		}
	})
}

func TestEachFieldOfTheOtherCommandsIsChecked(t *testing.T) {
	for _, c := range []struct {
		verb, body string
		want       wire.Code
	}{
		{verbReport, `{"attempt":1,"status":"running"}`, wire.BodyInvalid},
		{verbReport, `{"job_id":"a.b","attempt":1,"status":"running"}`, wire.IDInvalid},
		{verbReport, `{"job_id":"nothing","status":"?"}`, wire.AssignNotFound},
		{verbReport, `{"job_id":"j","attempt":1,"status":"running","worker_agent":"v"}`, wire.IdentityMismatch},
		{verbReport, `{"job_id":"j","attempt":1,"status":"running","worker_agent":"w"}`, ""},
		{verbReport, `{"job_id":"j","attempt":1,"status":"?","result":` + text256(MaxResult+1) + `}`, wire.BodyTooLarge},
		{verbReport, `{"job_id":"j","attempt":1,"status":"succeeded","result":` + text256(MaxResult) + `}`, ""},
		{verbReport, `{"job_id":"j","attempt":1,"status":"failed","error":` + text256(MaxError+1) + `}`, wire.BodyTooLarge},
		{verbReport, `{"job_id":"j","attempt":1,"status":"progress","metadata":{"a":` + text256(MaxMetadata) + `}}`, wire.BodyTooLarge},
		{verbReport, `{"job_id":"j","attempt":1,"status":"completed","metadata":"failed"}`, wire.BodyInvalid},
		{verbReport, `{"job_id":"j","attempt":1,"status":"failed","retry_after_ms":-1}`, wire.BodyInvalid},
		{verbReport, `{"job_id":"j","attempt":1,"status":"failed","retry_after_ms":86400000}`, ""},
		{verbReport, `{"job_id":"j","attempt":1,"status":"failed","retry_after_ms":86400001}`, wire.BodyInvalid},
		{verbReport, `{"job_id":"j","attempt":"1","status":"running"}`, wire.BodyInvalid},
		{verbReport, `{"job_id":"j","attempt":0,"status":"running"}`, wire.AssignAttemptMismatch},
		{verbReport, `{"job_id":"j","attempt":-1,"status":"running"}`, wire.AssignAttemptMismatch},
		{verbReport, `{"job_id":"j","attempt":1,"state":"running"}`, wire.BodyInvalid},
		{verbClaim, `{"job_id":"nothing"}`, wire.AssignNotFound},
		{verbClaim, `{"job_id":"j","worker_agent":"v"}`, wire.IdentityMismatch},
		{verbClaim, `{"job_id":"j","attempt":0}`, wire.AssignAttemptMismatch},
		{verbClaim, `{"job_id":"j","who":"w"}`, wire.BodyInvalid},
		{verbHeartbeat, `{"job_id":"nothing","attempt":1}`, wire.AssignNotFound},
		{verbHeartbeat, `{"job_id":"j"}`, wire.AssignAttemptMismatch},
		{verbHeartbeat, `{"job_id":"j","attempt":1}`, wire.AssignNotRunning},
		{verbHeartbeat, `{"job":"j"}`, wire.BodyInvalid},
		{verbRetry, `{"job_id":"nothing"}`, wire.AssignNotFound},
		{verbRetry, `{"job_id":"j"}`, wire.AssignNotRetryable},
		{verbRetry, `{"job_id":"j","reason":"` + strings.Repeat("x", 1001) + `"}`, wire.BodyInvalid},
		{verbRetry, `{"job_id":"j","force":1}`, wire.BodyInvalid},
		{verbCancel, `{"job_id":"nothing"}`, wire.AssignNotFound},
		{verbCancel, `{"job_id":"j","reason":"` + strings.Repeat("x", 1001) + `"}`, wire.BodyInvalid},
		{verbCancel, `{"job_id":"j","reason":"` + strings.Repeat("x", 1000) + `"}`, ""},
		{verbCancel, `{}`, wire.BodyInvalid},
		{verbCancel, `{"job_id":"j","force":true}`, wire.BodyInvalid},
	} {
		b := newBus(t)
		b.do("sup", verbCreate, `{"job_id":"j","worker_agent":"w"}`)
		_, refusal := b.send("w", c.verb, c.body)
		got := wire.Code("")
		if refusal != nil {
			got = refusal.Code
		}
		if got != c.want {
			t.Errorf("%s %.100s: %v, want %q", c.verb, c.body, refusal, c.want)
		}
	}
}

// The checks of a report come in the order of the machine's description.
func TestTheChecksOfAReportComeInOrder(t *testing.T) {
	b := newBus(t)
	b.do("sup", verbCreate, `{"job_id":"j","worker_agent":"w","max_retries":1}`)
	b.do("w", verbReport, `{"job_id":"j","attempt":1,"status":"failed","retry_after_ms":0}`)
	b.do("w", verbReport, `{"job_id":"j","attempt":2,"status":"failed"}`)
	for _, c := range []struct {
		from, body string
		want       wire.Code
	}{
		{"x", `{"job_id":"k","attempt":9,"status":"?"}`, wire.AssignNotFound},
		{"x", `{"job_id":"j","attempt":9,"status":"?"}`, wire.AssignStatusUnknown},
		{"x", `{"job_id":"j","attempt":9,"status":"failed"}`, wire.AssignAttemptMismatch},
		{"x", `{"job_id":"j","attempt":1,"status":"failed"}`, wire.AssignAttemptMismatch},
		{"x", `{"job_id":"j","attempt":2,"status":"failed"}`, wire.AssignWorkerMismatch},
		{"w", `{"job_id":"j","attempt":2,"status":"succeeded"}`, wire.AssignTerminal},
		{"w", `{"job_id":"j","attempt":2,"status":"failed"}`, ""},
		{"w", `{"job_id":"j","attempt":1,"status":"failed"}`, ""},
	} {
		effects, refusal := b.send(c.from, verbReport, c.body)
		switch {
		case c.want == "" && (refusal != nil || object(t, effects.Reply)["idempotent"] != true || len(said(effects)) > 0):
			t.Errorf("%s of %s: %v, %v, which is a repeat", c.body, c.from, refusal, effects)
		case c.want != "" && (refusal == nil || refusal.Code != c.want):
			t.Errorf("%s of %s: %v, want %s", c.body, c.from, refusal, c.want)
		case c.want != "" && c.want != wire.AssignNotFound && object(t, refusal.Current)["job_id"] != "j":
			t.Errorf("%s of %s: the refusal carries %s", c.body, c.from, refusal.Current)
		}
	}
	// A repeat answers like the first time, whatever has become of the job.
	if reply := b.do("w", verbReport, `{"job_id":"j","attempt":1,"status":"failed"}`); reply["retried"] != true || reply["reported_attempt"] != 1.0 || reply["reported_status"] != "failed" {
		t.Errorf("the repeat of the first report answers %v", reply)
	}
}
