package wire

import "time"

// Event is an announcement as CloudEvents 1.0 carry it in binary mode
// (https://github.com/cloudevents/spec, NATS protocol binding): the attributes
// are headers, the body is the data.
type Event struct {
	ID       string // unique for the source; also the Nats-Msg-Id
	Instance string // of the bridge
	Machine  string
	Key      string // what it is about; may have several tokens, or none
	What     string // what happened, in the past tense, or the new state
	At       time.Time
	Cause    string // <incarnation>:<seq>

	// The chain that it belongs to; "" for its own.
	CorrelationID string
	TraceID       string
}

// Header are the event's headers.
func (e Event) Header() Header {
	h := Header{
		HeaderMsgID:      {e.ID},
		"ce-specversion": {"1.0"},
		"ce-id":          {e.ID},
		"ce-source":      {"/signalbox/" + e.Instance},
		"ce-type":        {"signalbox." + e.Machine + "." + e.What + ".v1"},
		"ce-time":        {e.At.UTC().Format(time.RFC3339Nano)},
		"content-type":   {"application/json"},
		HeaderCause:      {e.Cause},
	}
	if e.Key != "" {
		h["ce-subject"] = []string{e.Key}
	}
	if e.CorrelationID != "" {
		h[HeaderCorrelationID] = []string{e.CorrelationID}
		h[HeaderType] = []string{string(TypeEvent)} // with a correlation id and no type it would be a response
	}
	if e.TraceID != "" {
		h[HeaderTraceID] = []string{e.TraceID}
	}
	return h
}
