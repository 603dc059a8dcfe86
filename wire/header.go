package wire

import (
	"strconv"
	"strings"
	"time"
)

// Headers that a sender may set.
const (
	HeaderMsgID         = "Nats-Msg-Id"
	HeaderType          = "Bus-Type"
	HeaderPriority      = "Bus-Priority"
	HeaderTTL           = "Bus-TTL-Ms"
	HeaderCorrelationID = "Bus-Correlation-Id"
	HeaderTraceID       = "Bus-Trace-Id"
	HeaderTraceparent   = "traceparent"
	HeaderTopic         = "Bus-Topic"
	HeaderRole          = "Bus-Role"
	HeaderRoleEpoch     = "Bus-Role-Epoch"
)

// Headers that the bridge sets.
const (
	HeaderRequestID = "Bus-Request-Id" // a request's id, and that somebody waits
	HeaderOutboxID  = "Bus-Outbox-Id"  // the id of an event or message resent without Nats-Msg-Id
	HeaderCause     = "Bus-Cause"      // <incarnation>:<seq> of the cause
	HeaderError     = "Nats-Service-Error"
	HeaderErrorCode = "Nats-Service-Error-Code"
)

// Once starts a request id that the bridge made up for a caller without one:
// it finds the waiter and is not kept. A caller's own id may not start so.
const Once = "~"

// Type is what a message is for its recipient.
type Type string

// The types of messages.
const (
	TypeRequest       Type = "request"
	TypeResponse      Type = "response"
	TypeEvent         Type = "event"
	TypeHandoff       Type = "handoff"
	TypeHumanRequest  Type = "human_request"
	TypeHumanResponse Type = "human_response"
	TypeSystem        Type = "system"
)

// Bounds and defaults of priority (1 to 9, 7 and up is urgent) and time to live.
const (
	MinPriority     = 1
	MaxPriority     = 9
	DefaultPriority = 5
	UrgentPriority  = 7

	MinTTL            = time.Second
	MaxTTL            = 24 * time.Hour
	DefaultTTL        = 5 * time.Minute
	DefaultHandoffTTL = 10 * time.Minute
)

// Header are the headers of a message as nats.go holds them; names are
// case-sensitive.
type Header map[string][]string

// First is the first value of the header, or "".
func (h Header) First(name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// Envelope is what a message's headers say, with defaults in place. Ids that
// the sender left out are empty; the fold derives them.
type Envelope struct {
	MessageID     string
	Type          Type
	Priority      int
	TTL           time.Duration
	CorrelationID string
	TraceID       string
	Topic         string
	Role          string // the sender acts as its holder: project/kind[/scope]
	RoleEpoch     string // at this epoch, as the sender wrote it
}

// ReadEnvelope reads the headers of a message. Values out of range are clamped.
// A value that means nothing gives an *Error with code HeaderInvalid that names
// the header; the envelope then has the default in its place, so the message
// can be registered all the same.
func ReadEnvelope(h Header) (Envelope, error) {
	e := Envelope{
		MessageID:     h.First(HeaderMsgID),
		Type:          Type(h.First(HeaderType)),
		CorrelationID: h.First(HeaderCorrelationID),
		TraceID:       h.First(HeaderTraceID),
		Topic:         h.First(HeaderTopic),
		Role:          h.First(HeaderRole),
		RoleEpoch:     h.First(HeaderRoleEpoch),
		Priority:      DefaultPriority,
	}
	var bad *Error
	note := func(name, want string) {
		if bad == nil {
			bad = Errorf(HeaderInvalid, "header %s: %q is not %s", name, clip(h.First(name)), want).
				WithHint("leave the header out for its default")
		}
	}
	for _, id := range []struct {
		name  string
		value *string
	}{{HeaderMsgID, &e.MessageID}, {HeaderCorrelationID, &e.CorrelationID}, {HeaderTraceID, &e.TraceID}} {
		if *id.value != "" && !Visible(*id.value) {
			note(id.name, "1 to 128 visible characters")
			*id.value = ""
		}
	}
	if e.TraceID == "" {
		e.TraceID = traceOf(h.First(HeaderTraceparent))
	}
	switch e.Type {
	case TypeRequest, TypeResponse, TypeEvent, TypeHandoff, TypeHumanRequest, TypeHumanResponse, TypeSystem:
	default:
		if e.Type != "" {
			note(HeaderType, "a type of message")
		}
		if e.Type = TypeEvent; e.CorrelationID != "" && h.First(HeaderType) == "" {
			e.Type = TypeResponse
		}
	}
	if e.Topic != "" && !ValidTopic(e.Topic) {
		note(HeaderTopic, "a topic of 1 to 8 tokens")
		e.Topic = ""
	}
	if s := h.First(HeaderPriority); s != "" {
		if p, ok := parseInt(s); ok {
			e.Priority = int(min(max(p, MinPriority), MaxPriority))
		} else {
			note(HeaderPriority, "a whole number")
		}
	}
	e.TTL = DefaultTTL
	if e.Type == TypeHandoff {
		e.TTL = DefaultHandoffTTL
	}
	if s := h.First(HeaderTTL); s != "" {
		if ms, ok := parseInt(s); ok {
			e.TTL = ClampTTL(ms)
		} else {
			note(HeaderTTL, "a whole number of milliseconds")
		}
	}
	if bad != nil {
		return e, bad
	}
	return e, nil
}

// ClampTTL is a time to live of ms milliseconds within its bounds.
func ClampTTL(ms int64) time.Duration {
	return time.Duration(min(max(ms, MinTTL.Milliseconds()), MaxTTL.Milliseconds())) * time.Millisecond
}

// parseInt reads a whole number; one too large for 64 bits is the largest.
func parseInt(s string) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil && n != 0 { // out of range: n is the nearest bound
		return n, true
	}
	return n, err == nil
}

// traceOf is the trace id of a W3C traceparent (version 00), or "".
func traceOf(s string) string {
	const dashes, size = 3, 55
	if len(s) != size || strings.Count(s, "-") != dashes || s[2] != '-' || s[35] != '-' {
		return ""
	}
	id := s[3:35]
	if strings.Trim(id, "0123456789abcdef") != "" || strings.Trim(id, "0") == "" {
		return ""
	}
	return id
}
