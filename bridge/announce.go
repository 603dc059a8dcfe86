package bridge

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"signalbox/audit"
	"signalbox/step"
	"signalbox/wire"
)

// maxValue is the size from which a value of an event's body is left out.
const maxValue = 32 << 10

// Names that are no machine's.
const (
	bridgeName  = "bridge"
	clockName   = "clock"
	auditName   = "audit"
	noticeName  = "notice"
	messageName = "message"
)

// derive makes the next id of this step.
func (s *stepRun) derive(purpose string) string {
	s.ids++
	return s.in.DeriveID(purpose + ":" + strconv.Itoa(s.ids))
}

// event queues an event: the snapshot after the change, what happened, and its
// cause.
func (s *stepRun) event(machine string, h step.Happened, body map[string]any) error {
	subject := s.config.Root.Event(machine, h.Key, h.What)
	if !validSubject(subject) {
		return fmt.Errorf("the event's subject %q cannot be published", subject)
	}
	id := s.derive("event")
	body["event"], body["cause"] = h.What, s.cause()
	raw, err := marshalEvent(id, body)
	if err != nil {
		return err
	}
	e := wire.Event{ID: id, Instance: s.config.Instance, Machine: machine, Key: h.Key, What: h.What,
		At: time.UnixMilli(s.in.NowMS), Cause: s.in.Place.String(), CorrelationID: h.CorrelationID, TraceID: h.TraceID}
	return s.batch.Queue(audit.Outgoing{ID: id, Subject: subject,
		Header: e.Header(), Body: raw, Cause: s.it.row.ID})
}

func (s *stepRun) cause() map[string]any {
	return map[string]any{"id": s.it.row.ID, "incarnation": s.in.Place.Incarnation, "seq": s.in.Place.Seq}
}

// marshalEvent writes the body; a value that is too large is replaced by its
// size and the event's id, under which its cause can be looked up.
func marshalEvent(id string, body map[string]any) ([]byte, error) {
	// Put together by hand: a map of values that are JSON already would be
	// written, checked and compacted a second time.
	out := append(make([]byte, 0, 1024), '{')
	for i, name := range slices.Sorted(maps.Keys(body)) {
		raw, err := json.Marshal(body[name])
		if err == nil && len(raw) > maxValue {
			raw, err = json.Marshal(map[string]any{"omitted": true, "bytes": len(raw), "id": id})
		}
		if err != nil {
			return nil, fmt.Errorf("event field %s: %w", name, err)
		}
		quoted, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, quoted...), ':'), raw...)
	}
	return append(out, '}'), nil
}

// announce queues an event of the bridge itself.
func (s *stepRun) announce(what string, body map[string]any) error {
	return s.event(bridgeName, step.Happened{What: what}, body)
}

// send queues a message of the bridge.
func (s *stepRun) send(o step.Outgoing) error {
	id := o.ID
	if id == "" {
		id = s.derive("message")
	}
	body, err := json.Marshal(o.Body)
	if err != nil {
		return err
	}
	h := wire.Header{wire.HeaderMsgID: {id}, wire.HeaderCause: {s.in.Place.String()}}
	set := func(name, value string) {
		if value != "" {
			h[name] = []string{value}
		}
	}
	set(wire.HeaderType, string(o.Type))
	set(wire.HeaderTopic, o.Topic)
	set(wire.HeaderCorrelationID, o.CorrelationID)
	set(wire.HeaderTraceID, o.TraceID)
	if o.Priority != 0 {
		set(wire.HeaderPriority, strconv.Itoa(o.Priority))
	}
	if o.TTL != 0 {
		set(wire.HeaderTTL, strconv.FormatInt(o.TTL.Milliseconds(), 10))
	}
	return s.batch.Queue(audit.Outgoing{ID: id, Subject: s.config.Root.To(wire.Bridge, o.To), Header: h, Body: body, Cause: s.it.row.ID})
}

// announceLog queues the events about the log itself, whose cause is the row
// that follows.
func (s *stepRun) announceLog(stepped bool) error {
	if i := s.it.opens; i != nil && i.Reason != audit.Created {
		if err := s.announce("incarnation", map[string]any{"stream": i.Stream, "stream_id": i.StreamID,
			"incarnation": i.ID, "first_seq": i.FirstSeq, "reason": i.Reason}); err != nil {
			return err
		}
	}
	for _, g := range s.it.gaps {
		body := map[string]any{"stream": g.Stream, "incarnation": g.Incarnation, "from": g.From, "reason": g.Reason}
		if g.To != 0 {
			body["to"] = g.To
		}
		if err := s.announce("gap", body); err != nil {
			return err
		}
	}
	if stepped {
		return s.announce("clock_step", map[string]any{"direction": "back", "log_ns": s.it.row.AtNS})
	}
	return nil
}

// validSubject reports whether a message can be published on the subject: no
// empty token, no wildcard, no white space.
func validSubject(s string) bool {
	for token := range strings.SplitSeq(s, ".") {
		if token == "" || token == "*" || token == ">" || strings.ContainsAny(token, " \t\r\n\x00") {
			return false
		}
	}
	return true
}
