// Package message is the small machine of plain messages: it accepts a message
// or says what is wrong with it, and keeps no state. What becomes of a message
// that is accepted is for the machines that own deliveries.
//
//	published ──► judged ──► accepted   row, reply
//	                    └──► refused    row, code; dead letter for a plain publish
//
// message.send, ask and handoff exist as requests only: Compose makes the
// message that they publish.
package message

import (
	"encoding/hex"

	"signalbox/step"
	"signalbox/wire"
)

// Machine is the message machine.
type Machine struct{}

// Name implements the machine's interface.
func (Machine) Name() string { return "message" }

// Verbs implements the machine's interface: there are no commands.
func (Machine) Verbs() []string { return nil }

// Queries implements the machine's interface.
func (Machine) Queries() map[string]step.Query { return nil }

// Tables implements the machine's interface: there is no state.
func (Machine) Tables() []string { return nil }

// Due implements the machine's interface: nothing is ever due.
func (Machine) Due(step.DB, int64, int) ([]step.Deadline, error) { return nil, nil }

// Receives marks the machine as one that sees every message.
func (Machine) Receives() {}

// Apply judges a message.
func (Machine) Apply(_ step.DB, in step.Input) (step.Effects, error) {
	m, ok := in.Event.(step.Message)
	if !ok {
		return step.Effects{}, nil
	}
	return Judge(m, in.Place)
}

// Judge accepts a message with an Accepted as the reply, or refuses it.
func Judge(m step.Message, place step.Place) (step.Effects, error) {
	switch {
	case m.Problem != nil:
		return step.Effects{}, m.Problem
	case m.To == (wire.Recipient{Class: wire.ToAgent, Name: wire.Bridge}):
		return step.Effects{}, wire.Errorf(wire.ReservedRecipient, "nothing is delivered to %q", wire.Bridge).
			WithHint("requests to the bridge go to the api subjects")
	}
	a := Accepted{MessageID: m.MessageID, ID: m.ID, Seq: place.Seq, Leaf: m.Leaf, CorrelationID: m.CorrelationID,
		To: m.To.String(), ExpiresAtMS: m.ExpiresAtMS, State: Queued}
	if m.To.Class == wire.ToRole {
		a.Role = m.To.Name
	}
	return step.Effects{Reply: &a}, nil
}

// States of a message that a reply can say.
const (
	Queued    = "queued"    // registered, not yet fetched
	Delivered = "delivered" // fetched
	Acked     = "acked"     // and acked
	Answered  = "answered"  // a response is in the register
)

// Leaf is a leaf hash, in hex where it is written.
type Leaf []byte

// MarshalText writes the hash in hex.
func (l Leaf) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, l), nil }

// UnmarshalText reads hex.
func (l *Leaf) UnmarshalText(text []byte) (err error) {
	*l, err = hex.DecodeString(string(text))
	return err
}

// Accepted is the outcome of a message: what its reply is made from.
type Accepted struct {
	MessageID     string `json:"message_id"`
	ID            int64  `json:"id"`  // the register row
	Seq           uint64 `json:"seq"` // in the log
	Leaf          Leaf   `json:"leaf"`
	CorrelationID string `json:"correlation_id"`
	To            string `json:"to"`
	FanoutCount   int    `json:"fanout_count"` // deliveries made for it
	ExpiresAtMS   int64  `json:"expires_at_ms"`
	Role          string `json:"role,omitempty"`
	State         string `json:"state"`
}
