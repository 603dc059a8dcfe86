package assign

import (
	"encoding/json"
	"strings"

	"signalbox/wire"
)

// ReportStatus is what a report says, whatever word it used.
type ReportStatus string

// What a report may say. running and progress are on the way; the others end
// the attempt.
const (
	SaysRunning   ReportStatus = "running"
	SaysProgress  ReportStatus = "progress"
	SaysSucceeded ReportStatus = "succeeded"
	SaysFailed    ReportStatus = "failed"
	SaysTimedOut  ReportStatus = "timed_out"
	SaysReleased  ReportStatus = "released"
	saysUnknown   ReportStatus = ""
)

// words are the words that mean them. What is not here is never a success.
var words = map[string]ReportStatus{
	"running": SaysRunning, "in_progress": SaysRunning,
	"progress":  SaysProgress,
	"succeeded": SaysSucceeded, "success": SaysSucceeded, "completed": SaysSucceeded,
	"failed": SaysFailed, "error": SaysFailed,
	"timed_out": SaysTimedOut, "timeout": SaysTimedOut,
	"released": SaysReleased,
}

// wordCompleted alone says that the attempt is over, not how: metadata may.
const wordCompleted = "completed"

func (s ReportStatus) final() bool {
	return s != saysUnknown && s != SaysRunning && s != SaysProgress
}

// ReportCommand is the body of report.
type ReportCommand struct {
	JobID        string          `json:"job_id"`
	WorkerAgent  string          `json:"worker_agent"` // must be the sender
	Attempt      *int64          `json:"attempt"`      // required
	Status       string          `json:"status"`
	Result       json.RawMessage `json:"result"`         // any JSON, at most MaxResult
	Error        json.RawMessage `json:"error"`          // any JSON, at most MaxError
	Metadata     json.RawMessage `json:"metadata"`       // an object, at most MaxMetadata
	Retryable    *bool           `json:"retryable"`      // false: not to be tried again
	RetryAfterMS *int64          `json:"retry_after_ms"` // 0 to MaxDelay, instead of the backoff
}

// Report is a report in the form in which it is judged.
type Report struct {
	Attempt    int64 // 0: missing
	Status     ReportStatus
	Word       string // as the sender wrote it
	Result     json.RawMessage
	Error      json.RawMessage
	Metadata   json.RawMessage
	Retryable  bool
	RetryAfter *int64 // milliseconds
}

// normalize checks a report of a sender. Whether its status is known is judged
// later: what the job says comes first.
func (c *ReportCommand) normalize() (Report, *wire.Error) {
	r := Report{Attempt: given(c.Attempt), Word: c.Status, Retryable: c.Retryable == nil || *c.Retryable, RetryAfter: c.RetryAfterMS}
	for _, f := range [...]struct {
		name string
		raw  json.RawMessage
		most int
		into *json.RawMessage
	}{{"result", c.Result, MaxResult, &r.Result}, {"error", c.Error, MaxError, &r.Error}, {"metadata", c.Metadata, MaxMetadata, &r.Metadata}} {
		v, refusal := value(f.name, f.raw, f.most)
		if refusal != nil {
			return r, refusal
		}
		*f.into = v
	}
	if r.Metadata != nil && r.Metadata[0] != '{' {
		return r, wire.Errorf(wire.BodyInvalid, "metadata must be a JSON object").WithHint("put what the job gives into result")
	}
	if c.RetryAfterMS != nil && (*c.RetryAfterMS < 0 || *c.RetryAfterMS > MaxDelay.Milliseconds()) {
		return r, outOfRange("retry_after_ms", *c.RetryAfterMS, 0, MaxDelay.Milliseconds())
	}
	r.Status = meaning(c.Status, r.Metadata)
	return r, nil
}

// meaning is what a word means, together with what metadata says beside
// "completed".
func meaning(word string, metadata json.RawMessage) ReportStatus {
	word = strings.ToLower(strings.TrimSpace(word))
	if word == wordCompleted && metadata != nil {
		if s := tagged(metadata); s != saysUnknown {
			return s
		}
	}
	return words[word]
}

// tagged is the failure that metadata tells of in result, status or outcome.
func tagged(metadata json.RawMessage) ReportStatus {
	var tags struct {
		Result  any `json:"result"`
		Status  any `json:"status"`
		Outcome any `json:"outcome"`
	}
	if json.Unmarshal(metadata, &tags) != nil {
		return saysUnknown
	}
	for _, tag := range [...]any{tags.Result, tags.Status, tags.Outcome} {
		text, _ := tag.(string)
		if s := words[strings.ToLower(strings.TrimSpace(text))]; s == SaysFailed || s == SaysTimedOut {
			return s
		}
	}
	return saysUnknown
}
