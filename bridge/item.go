package bridge

import (
	"time"

	"signalbox/audit"
	"signalbox/wire"
)

// item is one message on its way from a log to the register, as far as it can
// be read without the register.
type item struct {
	log       *logReader
	session   int        // of the log's reader; items of an ended one are dropped
	row       *audit.Row // all but its id
	addr      wire.Address
	envelope  wire.Envelope
	problem   *wire.Error // what is wrong with its subject or headers
	requestID string
	pending   uint64 // messages behind it in the stream
	size      int

	// What is to be recorded just before it.
	opens *audit.Incarnation
	gaps  []audit.Gap
}

// builder makes items of one incarnation of a log. It is used by one
// goroutine.
type builder struct {
	log         *logReader
	session     int
	root        wire.Root
	stream      string
	incarnation int64
	tap         bool
	scratch     []byte
}

// build makes the item of a message.
func (b *builder) build(subject string, h wire.Header, body []byte, seq uint64, at time.Time) item {
	it := item{log: b.log, session: b.session, size: len(subject) + len(body) + 256}
	row := &audit.Row{
		Incarnation: b.incarnation, Seq: seq, AtNS: at.UnixNano(), Subject: subject,
		Kind: wire.Tap, Header: h, Body: body,
	}
	it.row = row
	env, err := wire.ReadEnvelope(h)
	it.envelope = env
	if !b.tap {
		it.address(b.root, err)
	}
	derive := func(id, purpose string) string {
		if id != "" {
			return id
		}
		return wire.DeriveID(at, b.incarnation, seq, purpose)
	}
	row.MessageID = derive(env.MessageID, "message")
	row.CorrelationID = derive(env.CorrelationID, "correlation")
	row.TraceID = derive(env.TraceID, "trace")
	row.Type, row.Topic, row.Priority = env.Type, it.envelope.Topic, env.Priority
	if row.Kind == wire.Msg {
		row.ExpiresAtMS = at.Add(env.TTL).UnixMilli()
	}
	row.Leaf, b.scratch = audit.Leaf(audit.LeafInput{
		Stream: b.stream, Incarnation: b.incarnation, Seq: seq, AtNS: row.AtNS, Subject: subject, Header: h, Body: body,
	}, b.scratch)
	return it
}

// address reads what the subject says. A subject that is captured but means
// nothing is registered all the same; its sender is told.
func (it *item) address(root wire.Root, headers error) {
	addr, err := root.Parse(it.row.Subject)
	it.addr = addr
	it.row.Kind, it.row.From = addr.Kind, addr.From
	if it.requestID = it.row.Header.First(wire.HeaderRequestID); it.requestID != "" && !wire.Visible(it.requestID) {
		it.requestID = "" // nobody can wait for it
		if headers == nil {
			headers = wire.Errorf(wire.HeaderInvalid, "header %s is not 1 to 128 visible characters", wire.HeaderRequestID)
		}
	}
	if addr.Kind == wire.Msg && addr.To.Class == wire.ToTopic {
		it.envelope.Topic = addr.To.Name // the header is for messages to an agent or a role
	}
	if err == nil {
		it.row.To = addr.To.String()
		if addr.Kind != wire.Evt {
			err = headers
		}
	}
	if refusal, ok := asRefusal(err); ok {
		it.problem = refusal
	}
}
