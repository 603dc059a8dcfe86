package inbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"signalbox/step"
	"signalbox/wire"
)

// maxReply is how many bytes of messages a fetch gives, where the setting
// reply_bytes does not say less: the server may carry less.
const maxReply = 512 << 10

// replyBytes is what the settings say, at least what an outline takes.
func replyBytes(s step.Settings) (int, error) {
	set := struct {
		ReplyBytes int `json:"reply_bytes"`
	}{maxReply}
	if err := s.Read("inbox", &set); err != nil {
		return 0, fmt.Errorf("the settings of inbox: %w", err)
	}
	return min(max(set.ReplyBytes, leastReply), maxReply), nil
}

const leastReply = 16 << 10

// Fetched is the reply to a fetch: register rows as JSON, each with attempts,
// delivered_at_ms and recipient.
type Fetched struct {
	Messages []json.RawMessage `json:"messages"`
	More     bool              `json:"more"` // another fetch would find something now
}

// nothing is the reply where there is nothing to give.
func nothing() Fetched { return Fetched{Messages: []json.RawMessage{}} }

// fetch gives out what the sender may have. What does not fit into the reply
// is not marked.
func (m *Machine) fetch(db step.DB, in step.Input, body []byte) (step.Effects, error) {
	options, err := ReadOptions(body)
	if err != nil {
		return step.Effects{}, err
	}
	known, _, registeredID, err := m.facts.Agents.Owed(db, in.From)
	if err != nil {
		return step.Effects{}, err
	}
	if !known {
		return step.Effects{}, notRegistered(in.From)
	}
	recipients, err := m.recipients(db, in.From)
	if err != nil {
		return step.Effects{}, err
	}
	if err := m.Flush(db); err != nil {
		return step.Effects{}, err
	}
	l := look{agent: in.From, recipients: recipients, registeredID: registeredID, nowMS: in.NowMS, options: options}
	list, err := l.eligible(db, options.MaxMessages+1)
	if err != nil {
		return step.Effects{}, err
	}
	reply, err := m.give(db, in, options, list)
	return step.Effects{Reply: reply}, err
}

// give marks what fits into the reply.
func (m *Machine) give(db step.DB, in step.Input, options Options, list []Delivery) (Fetched, error) {
	reply := nothing()
	most, err := replyBytes(in.Settings)
	if err != nil {
		return reply, err
	}
	room := most
	for i, d := range list {
		if i == options.MaxMessages {
			reply.More = true
			break
		}
		first := d.Attempts == 0
		d = d.fetched(in, "", options.AutoAck)
		raw, messageID, err := m.row(db, &d, most)
		if err != nil {
			return reply, err
		}
		if len(raw) > room { // never the first
			reply.More = true
			break
		}
		room -= len(raw)
		reply.Messages = append(reply.Messages, raw)
		d.messageID = messageID
		keep := keepFetched
		if options.AutoAck {
			keep = keepFetchedAndAcked
			m.sums.Acked++
		}
		if err := keep(db, d); err != nil {
			return reply, err
		}
		if first {
			m.sums.Delivered++
			m.sums.WaitMS += in.NowMS - d.QueuedAtMS
		}
	}
	return reply, nil
}

// row is the message of a delivery as the agent gets it, and its message id.
// Every message fits into a reply of its own: as an outline if need be.
func (m *Machine) row(db step.DB, d *Delivery, most int) (raw json.RawMessage, messageID string, err error) {
	tail := marks(d)
	most -= len(tail)
	raw, err = m.facts.Rows.JSON(db, d.ID, most)
	if err == nil && len(raw) > most { // it is the headers that are too large
		raw, err = m.bare(db, d.ID)
	}
	if err == nil {
		messageID, err = messageIDOf(raw)
	}
	if err != nil {
		return nil, "", fmt.Errorf("row %d for %q: %w", d.ID, d.Recipient, err)
	}
	raw = bytes.TrimRight(raw, " \n")
	return append(raw[:len(raw)-1:len(raw)-1], tail...), messageID, nil
}

// marks are the fields of a delivery that go at the end of its message. No
// recipient has a character that JSON would escape.
func marks(d *Delivery) []byte {
	b := strconv.AppendInt([]byte(`,"attempts":`), d.Attempts, 10)
	b = strconv.AppendInt(append(b, `,"delivered_at_ms":`...), *d.DeliveredAtMS, 10)
	b = append(append(b, `,"recipient":"`...), d.Recipient...)
	return append(b, `"}`...)
}

// bare is an outline without headers, for where they are what is too large:
// audit.get has them.
func (m *Machine) bare(db step.DB, id int64) (json.RawMessage, error) {
	msg, err := m.facts.Rows.Message(db, id)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"id": id, "message_id": msg.MessageID, "type": msg.Envelope.Type, "from": msg.From, "to": msg.To.String(),
		"topic": msg.Envelope.Topic, "priority": msg.Envelope.Priority, "expires_at_ms": msg.ExpiresAtMS,
		"correlation_id": msg.CorrelationID, "trace_id": msg.TraceID, "headers_omitted": true, "body": map[string]any{"id": id}})
}

// messageIDOf is the field message_id of a row. Nothing behind it is read: it
// stands before headers and body, which are nearly all of a row.
func messageIDOf(raw json.RawMessage) (string, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		return "", err
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return "", err
		}
		if name == "message_id" {
			var id string
			return id, dec.Decode(&id)
		}
		var skipped json.RawMessage
		if err := dec.Decode(&skipped); err != nil {
			return "", err
		}
	}
	return "", errors.New("the row has no message_id")
}

func notRegistered(agent string) *wire.Error {
	return wire.Errorf(wire.AgentNotFound, "nobody has registered as %q", agent).
		WithHint("register first, with agents.register")
}
