package inbox

import (
	"cmp"
	"fmt"
	"strings"

	"signalbox/step"
)

// The states of a delivery, and of a message that has some; the package's
// diagram says how each is entered and left.
const (
	Queued     = "queued"
	Delivered  = "delivered"
	Acked      = "acked"
	Expired    = "expired"
	DeadLetter = "dead_letter"
)

// The outcomes of a delivery, as its row has them; "" while it is open.
const (
	outcomeAcked      = "acked"
	outcomeExpired    = "expired"
	outcomeRejected   = "rejected"
	outcomeDeadLetter = "dead_letter"
)

// The reasons of dead letters that were deliveries.
const (
	reasonTTLExpired  = "ttl_expired"
	reasonRejected    = "rejected"
	reasonScopeClosed = "scope_closed"
)

// Delivery is what became of a message for one recipient. Instants are
// milliseconds of bus time; each …ID is the register row of a cause.
type Delivery struct {
	ID            int64  `json:"id"`        // the register row of the message
	Recipient     string `json:"recipient"` // an agent id, topic:… or role:…
	Status        string `json:"status"`
	Topic         string `json:"topic,omitempty"`
	Priority      int64  `json:"priority"`
	QueuedAtMS    int64  `json:"queued_at_ms"` // when it was made, or last redriven
	ExpiresAtMS   int64  `json:"expires_at_ms"`
	Attempts      int64  `json:"attempts"`                  // fetches that gave it out
	DeliveredAtMS *int64 `json:"delivered_at_ms,omitempty"` // of the last fetch
	DeliveredID   *int64 `json:"delivered_id,omitempty"`
	DeliveredTo   string `json:"delivered_to,omitempty"`
	Outcome       string `json:"outcome,omitempty"` // acked, expired, rejected or dead_letter
	OutcomeAtMS   *int64 `json:"outcome_at_ms,omitempty"`
	OutcomeID     *int64 `json:"outcome_id,omitempty"`
	AckedAtMS     *int64 `json:"acked_at_ms,omitempty"`
	RedrivenID    *int64 `json:"redriven_id,omitempty"`

	messageID string // since the first fetch
}

func (d *Delivery) open() bool { return d.Outcome == "" }

// state is the state of one delivery.
func (d *Delivery) state() string {
	switch {
	case d.Outcome == outcomeRejected:
		return DeadLetter
	case d.Outcome != "":
		return d.Outcome
	case d.DeliveredAtMS != nil:
		return Delivered
	}
	return Queued
}

// Status is the state of a message with these deliveries: of the open ones the
// least advanced decides; with none open, one that was given up; otherwise it
// is acked. Without deliveries it is "".
func Status(ds []Delivery) string {
	status, rank := "", len(leastAdvanced)
	for i := range ds {
		state := ds[i].state()
		for r, s := range leastAdvanced {
			if s == state && r < rank {
				status, rank = state, r
			}
		}
	}
	return status
}

// leastAdvanced are the states in the order in which one decides for all.
var leastAdvanced = []string{Queued, Delivered, DeadLetter, Expired, Acked}

// fetched is the delivery after a fetch by the agent; autoAck acks it at once.
func (d Delivery) fetched(in step.Input, messageID string, autoAck bool) Delivery {
	d.Attempts++
	d.messageID, d.DeliveredTo = messageID, in.From
	d.DeliveredAtMS, d.DeliveredID = &in.NowMS, &in.ID
	if autoAck {
		return d.acked(in)
	}
	return d
}

func (d Delivery) acked(in step.Input) Delivery {
	d = d.closed(in, outcomeAcked)
	d.AckedAtMS = &in.NowMS
	return d
}

func (d Delivery) closed(in step.Input, outcome string) Delivery {
	d.Outcome, d.OutcomeAtMS, d.OutcomeID = outcome, &in.NowMS, &in.ID
	return d
}

// redriven is the delivery open again, as if nobody had fetched it, with the
// message's own time to live. Its attempts still count.
func (d Delivery) redriven(in step.Input, m step.Message) Delivery {
	d.messageID = m.MessageID
	d.QueuedAtMS, d.ExpiresAtMS = in.NowMS, in.NowMS+m.Envelope.TTL.Milliseconds()
	d.DeliveredAtMS, d.DeliveredID, d.DeliveredTo = nil, nil, ""
	d.Outcome, d.OutcomeAtMS, d.OutcomeID, d.AckedAtMS = "", nil, nil, nil
	d.RedrivenID = &in.ID
	return d
}

// letter is a row of dead_letters.
type letter struct {
	Recipient  string `json:"recipient"`
	ID         int64  `json:"id"`
	MessageID  string `json:"message_id"`
	Reason     string `json:"reason"`
	FailedAtMS int64  `json:"failed_at_ms"` // bus time
	LastError  string `json:"last_error"`
	Cause      int64  `json:"cause"` // register row
}

// buried gives an open delivery up: the delivery after it, its dead letter, and
// what the sender of the message hears.
func (d Delivery) buried(in step.Input, m step.Message, outcome, reason, lastError string) (Delivery, letter, step.Happened) {
	body := map[string]any{"message_id": m.MessageID, "id": d.ID, "recipient": d.Recipient, "reason": reason,
		"attempts": d.Attempts, "last_error": lastError}
	if d.DeliveredAtMS != nil {
		body["delivered_at_ms"] = *d.DeliveredAtMS
	}
	l := letter{Recipient: d.Recipient, ID: d.ID, MessageID: m.MessageID, Reason: reason, FailedAtMS: in.NowMS,
		LastError: lastError, Cause: in.ID}
	return d.closed(in, outcome), l, toldOf(m, "dead", body)
}

// toldOf is what the sender of a message must hear of it, in the message's
// chain.
func toldOf(m step.Message, what string, body map[string]any) step.Happened {
	return step.Happened{Key: m.From, What: what, Body: body, CorrelationID: m.CorrelationID, TraceID: m.TraceID}
}

// expiry is the text of last_error where the time to live is over.
func (d *Delivery) expiry() string {
	if d.Attempts == 0 {
		return "nobody fetched it within its time to live"
	}
	return fmt.Sprintf("fetched %d times and not acked within its time to live", d.Attempts)
}

// inOrder sorts as a fetch gives out: priority descending, then oldest first.
func inOrder(a, b *Delivery) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.ID, b.ID), strings.Compare(a.Recipient, b.Recipient))
}
