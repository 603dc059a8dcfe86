package inbox

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"signalbox/step"
	"signalbox/wire"
)

// MaxReason is how many characters the reason of a reject may have.
const MaxReason = 1000

// RejectReply is the reply to reject. A message id that was used twice, or a
// message that the sender and a role of it were owed, may mean several
// deliveries: ID is then the row of the first.
type RejectReply struct {
	ID         int64  `json:"id"`
	MessageID  string `json:"message_id"`
	Rejected   int    `json:"rejected"` // deliveries that became dead letters
	Idempotent bool   `json:"idempotent,omitempty"`
}

// reject gives a message back as one that its recipient cannot handle.
func (m *Machine) reject(db step.DB, in step.Input, body []byte) (step.Effects, error) {
	var b struct {
		ID     json.RawMessage `json:"id"`
		Reason string          `json:"reason"`
	}
	if err := step.Decode(body, &b); err != nil {
		return step.Effects{}, err
	}
	n, refusal := readNamed("id", b.ID)
	if refusal != nil {
		return step.Effects{}, refusal
	}
	if c := utf8.RuneCountInString(b.Reason); c > MaxReason {
		return step.Effects{}, wire.Errorf(wire.BodyInvalid, "reason has %d characters, at most %d may be", c, MaxReason)
	}
	w, err := m.whose(db, in.From)
	if err != nil {
		return step.Effects{}, err
	}
	list, err := m.rejectable(db, w, n)
	if err != nil {
		return step.Effects{}, err
	}
	if len(list) == 0 {
		reply, err := rejectedBefore(db, w, n)
		if err == nil && reply.Rejected == 0 {
			err = wire.Errorf(wire.NotFound, "no message of yours is open that could be rejected").
				WithHint("it may be acked, expired, or for another agent; audit.get says what became of it")
		}
		return step.Effects{Reply: reply}, err
	}
	// Only here, since what is refused must not have written.
	if err := m.Flush(db); err != nil {
		return step.Effects{}, err
	}
	reply, effects := RejectReply{ID: list[0].ID, Rejected: len(list)}, step.Effects{}
	for _, d := range list {
		msg, err := m.facts.Rows.Message(db, d.ID)
		if err != nil {
			return step.Effects{}, fmt.Errorf("row %d: %w", d.ID, err)
		}
		reply.MessageID = msg.MessageID
		told, err := m.bury(db, in, d, msg, outcomeRejected, reasonRejected, b.Reason)
		if err != nil {
			return step.Effects{}, err
		}
		effects.Told = append(effects.Told, told)
	}
	effects.Reply = reply
	return effects, nil
}

// rejectable are the open deliveries that a reject means. It writes nothing.
func (m *Machine) rejectable(db step.DB, w whose, n named) ([]Delivery, error) {
	if n.messageID != "" {
		list, err := inFlight(db, w, n.messageID, maxStep)
		if err != nil || len(list) > 0 {
			return list, err
		}
		return m.notFetched(db, w, map[string]bool{n.messageID: true})
	}
	list, err := openByRow(db, w, n.id)
	if err != nil {
		return nil, err
	}
	for i := range m.made {
		f := &m.made[i]
		for _, recipient := range w.recipients {
			if f.id == n.id && f.recipient == recipient {
				list = append(list, f.delivery())
			}
		}
	}
	return list, nil
}

// rejectedBefore is the reply to a reject that has had its effect.
func rejectedBefore(db step.DB, w whose, n named) (RejectReply, error) {
	query, key := `SELECT count(*), coalesce(min(id), 0), coalesce(max(message_id), '') FROM dead_letters
		WHERE id = ? AND recipient IN (SELECT value FROM json_each(?)) AND reason = 'rejected'`, any(n.id)
	if n.messageID != "" {
		query, key = `SELECT count(*), coalesce(min(id), 0), coalesce(max(message_id), '') FROM dead_letters
			WHERE message_id = ? AND recipient IN (SELECT value FROM json_each(?)) AND reason = 'rejected'`, n.messageID
	}
	reply := RejectReply{Idempotent: true}
	if err := db.QueryRow(query, key, w.text).Scan(&reply.Rejected, &reply.ID, &reply.MessageID); err != nil {
		return reply, fmt.Errorf("read what was rejected: %w", err)
	}
	return reply, nil
}
