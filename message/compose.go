package message

import (
	"encoding/json"
	"strconv"
	"time"

	"signalbox/step"
	"signalbox/wire"
)

// Verbs of the API.
const (
	Send    = "send"
	Ask     = "ask"
	Handoff = "handoff"
)

// MaxWait is the longest that an ask waits for its response.
const MaxWait = 30 * time.Second

// Request is the body of message.send, ask or handoff.
type Request struct {
	To            string          `json:"to"`
	From          string          `json:"from"` // checked against the subject
	Type          wire.Type       `json:"type"`
	Topic         string          `json:"topic"`
	Priority      int64           `json:"priority"`
	TTLMS         int64           `json:"ttl_ms"`
	Payload       json.RawMessage `json:"payload"`
	CorrelationID string          `json:"correlation_id"`
	TraceID       string          `json:"trace_id"`

	Question           string          `json:"question"`            // ask
	ContextRefs        json.RawMessage `json:"context_refs"`        // ask, handoff
	AwaitResponseMS    int64           `json:"await_response_ms"`   // ask; 0 to 30,000, clamped
	Task               json.RawMessage `json:"task"`                // handoff
	AcceptanceCriteria json.RawMessage `json:"acceptance_criteria"` // handoff
}

// Draft is a message to be published for a caller.
type Draft struct {
	To     wire.Recipient
	Header wire.Header
	Body   []byte
	Wait   time.Duration // for a response; ask only
}

// fields are the fields that a verb takes beside the common ones.
var fields = map[string][]string{
	Send:    nil,
	Ask:     {"question", "context_refs", "await_response_ms"},
	Handoff: {"task", "acceptance_criteria", "context_refs"},
}

// Compose makes the message that a request of the verb publishes for from. The
// error is a *wire.Error that names the field.
func Compose(verb, from string, body []byte) (Draft, error) {
	var r Request
	if err := step.Decode(body, &r); err != nil {
		return Draft{}, err
	}
	if r.From != "" && r.From != from {
		return Draft{}, wire.Errorf(wire.IdentityMismatch, "from is %q, but the subject says %q", r.From, from)
	}
	if r.To == "" {
		return Draft{}, wire.Errorf(wire.BodyInvalid, "to is missing").WithHint(`say whom it is for, as in {"to":"agent:x"}`)
	}
	to, err := wire.ParseRecipient(r.To)
	if err != nil {
		return Draft{}, err
	}
	if err := r.only(verb); err != nil {
		return Draft{}, err
	}
	d := Draft{To: to, Header: r.header(verb), Body: r.payload(verb)}
	if verb == Ask {
		d.Wait = min(max(0, time.Duration(r.AwaitResponseMS)*time.Millisecond), MaxWait)
	}
	_, err = wire.ReadEnvelope(d.Header)
	return d, err
}

// only refuses fields that belong to another verb, and asks for the verb's own.
func (r *Request) only(verb string) error {
	given := map[string]bool{
		"question": r.Question != "", "context_refs": r.ContextRefs != nil, "await_response_ms": r.AwaitResponseMS != 0,
		"task": r.Task != nil, "acceptance_criteria": r.AcceptanceCriteria != nil,
	}
	for _, name := range fields[verb] {
		delete(given, name)
	}
	for _, name := range []string{"question", "context_refs", "await_response_ms", "task", "acceptance_criteria"} {
		if given[name] {
			return wire.Errorf(wire.BodyInvalid, "message.%s has no field %q", verb, name)
		}
	}
	switch {
	case verb != Send && r.Type != "":
		return wire.Errorf(wire.BodyInvalid, "message.%s has no field \"type\"", verb)
	case verb == Ask && r.Question == "":
		return wire.Errorf(wire.BodyInvalid, "question is missing")
	case verb == Handoff && r.Task == nil:
		return wire.Errorf(wire.BodyInvalid, "task is missing")
	}
	return nil
}

func (r *Request) header(verb string) wire.Header {
	h := wire.Header{}
	set := func(name, value string) {
		if value != "" {
			h[name] = []string{value}
		}
	}
	switch verb {
	case Ask:
		r.Type = wire.TypeRequest
	case Handoff:
		r.Type = wire.TypeHandoff
	}
	set(wire.HeaderType, string(r.Type))
	set(wire.HeaderTopic, r.Topic)
	set(wire.HeaderCorrelationID, r.CorrelationID)
	set(wire.HeaderTraceID, r.TraceID)
	if r.Priority != 0 {
		set(wire.HeaderPriority, strconv.FormatInt(r.Priority, 10))
	}
	if r.TTLMS != 0 {
		set(wire.HeaderTTL, strconv.FormatInt(r.TTLMS, 10))
	}
	return h
}

// payload is the body of the message: what the caller gave, byte for byte, or
// an object of the verb's fields.
func (r *Request) payload(verb string) []byte {
	if verb == Send {
		return r.Payload
	}
	body := map[string]json.RawMessage{}
	add := func(name string, value json.RawMessage) {
		if value != nil {
			body[name] = value
		}
	}
	if r.Question != "" {
		quoted, _ := json.Marshal(r.Question) // a string always marshals
		add("question", quoted)
	}
	add("task", r.Task)
	add("acceptance_criteria", r.AcceptanceCriteria)
	add("context_refs", r.ContextRefs)
	add("payload", r.Payload)
	raw, _ := json.Marshal(body) // raw messages that were decoded marshal again
	return raw
}

// Reply is what the caller of the verb is told about an accepted message.
func Reply(verb string, a Accepted) any {
	switch verb {
	case Ask:
		return AskReply{RequestMessageID: a.MessageID, CorrelationID: a.CorrelationID, State: a.State}
	case Handoff:
		return struct {
			HandoffMessageID string `json:"handoff_message_id"`
			AssignedTo       string `json:"assigned_to"`
			State            string `json:"state"`
		}{a.MessageID, a.To, a.State}
	}
	return struct {
		MessageID   string `json:"message_id"`
		ID          int64  `json:"id"`
		Seq         uint64 `json:"seq"`
		Leaf        Leaf   `json:"leaf"`
		FanoutCount int    `json:"fanout_count"`
		ExpiresAtMS int64  `json:"expires_at_ms"`
		Role        string `json:"role,omitempty"`
	}{a.MessageID, a.ID, a.Seq, a.Leaf, a.FanoutCount, a.ExpiresAtMS, a.Role}
}

// AskReply is what an asker is told; Response is the register row of the
// response where the state is answered.
type AskReply struct {
	RequestMessageID string          `json:"request_message_id"`
	CorrelationID    string          `json:"correlation_id"`
	State            string          `json:"state"`
	Response         json.RawMessage `json:"response,omitempty"`
}
