package inbox

import (
	"encoding/json"
	"fmt"
	"strings"

	"signalbox/step"
	"signalbox/wire"
)

// mostNamed is how many recipients a refusal lists.
const mostNamed = 20

// RedriveReply is the reply to redrive.
type RedriveReply struct {
	MessageID   string `json:"message_id"`
	ID          int64  `json:"id"`
	Recipient   string `json:"recipient"`
	ExpiresAtMS int64  `json:"expires_at_ms"` // bus time
	Idempotent  bool   `json:"idempotent,omitempty"`
}

// redrive puts a dead letter back, with the message's own time to live. What
// had waited at a topic that has subscribers by now goes to the first of them.
func (m *Machine) redrive(db step.DB, in step.Input, body []byte) (step.Effects, error) {
	n, recipient, err := readRedrive(body)
	if err != nil {
		return step.Effects{}, err
	}
	letters, err := lettersOf(db, n, recipient, mostNamed)
	if err != nil {
		return step.Effects{}, err
	}
	if len(letters) == 0 {
		return m.redrivenBefore(db, n, recipient)
	}
	l, refusal := oneOf(letters)
	if refusal != nil {
		return step.Effects{}, refusal
	}
	d, found, err := read(db, l.ID, l.Recipient)
	if err != nil {
		return step.Effects{}, err
	}
	if !found {
		return step.Effects{}, wire.Errorf(wire.NotRedrivable, "row %d was never delivered to %q: %s", l.ID, l.Recipient, l.Reason).
			WithHint("send it again, with what last_error says put right")
	}
	msg, err := m.facts.Rows.Message(db, d.ID)
	if err != nil {
		return step.Effects{}, fmt.Errorf("row %d: %w", d.ID, err)
	}
	d = d.redriven(in, msg)
	first, err := m.firstWithout(db, d)
	if err != nil {
		return step.Effects{}, err
	}
	if _, err := db.Exec(`DELETE FROM dead_letters WHERE recipient = ? AND id = ?`, l.Recipient, l.ID); err != nil {
		return step.Effects{}, fmt.Errorf("take the dead letter of row %d for %q away: %w", l.ID, l.Recipient, err)
	}
	if err := keepRedriven(db, d); err != nil {
		return step.Effects{}, err
	}
	if first != "" {
		if _, err := db.Exec(`UPDATE deliveries SET recipient = ? WHERE id = ? AND recipient = ?`, first, d.ID, d.Recipient); err != nil {
			return step.Effects{}, fmt.Errorf("give row %d to %q: %w", d.ID, first, err)
		}
		d.Recipient = first
	}
	return step.Effects{
		Reply: RedriveReply{MessageID: msg.MessageID, ID: d.ID, Recipient: d.Recipient, ExpiresAtMS: d.ExpiresAtMS},
		Woken: []string{d.Recipient},
		Told: []step.Happened{toldOf(msg, "redriven", map[string]any{"message_id": msg.MessageID, "id": d.ID, "recipient": d.Recipient,
			"was": l.Reason, "expires_at_ms": d.ExpiresAtMS})},
	}, nil
}

// firstWithout is the first agent who follows the topic that the delivery waits
// at and has none of its message; "" for none, or for any other delivery. Of a
// topic that somebody follows nobody will subscribe first any more.
func (m *Machine) firstWithout(db step.DB, d Delivery) (string, error) {
	topic, ok := strings.CutPrefix(d.Recipient, topicRecipient(""))
	if !ok {
		return "", nil
	}
	agents, _, err := m.facts.Agents.Subscribers(db, topic)
	if err != nil {
		return "", fmt.Errorf("who follows %q: %w", topic, err)
	}
	for _, agent := range agents {
		_, found, err := read(db, d.ID, agent)
		if err != nil || !found {
			return agent, err
		}
	}
	return "", nil
}

// readRedrive reads the body of a redrive. recipient is "" where it is left
// out.
func readRedrive(body []byte) (n named, recipient string, err error) {
	var b struct {
		MessageID json.RawMessage `json:"message_id"`
		ID        json.RawMessage `json:"id"`
		Recipient string          `json:"recipient"`
	}
	if err := step.Decode(body, &b); err != nil {
		return n, "", err
	}
	field, raw := "message_id", b.MessageID
	switch {
	case b.MessageID == nil && b.ID != nil:
		field, raw = "id", b.ID
	case b.MessageID != nil && b.ID != nil:
		return n, "", wire.Errorf(wire.BodyInvalid, "message_id and id are both given").WithHint("one of them names the message")
	}
	n, refusal := readNamed(field, raw)
	if refusal != nil {
		return n, "", refusal
	}
	return n, b.Recipient, nil
}

// oneOf is the only letter; with several, the refusal lists whose they are.
func oneOf(letters []letter) (letter, *wire.Error) {
	if len(letters) == 1 {
		return letters[0], nil
	}
	whose := make([]map[string]any, len(letters))
	for i, l := range letters {
		whose[i] = map[string]any{"recipient": l.Recipient, "id": l.ID}
	}
	refusal := wire.Errorf(wire.RecipientRequired, "the message is a dead letter of several").
		WithHint("say whose with recipient; where a message id was used twice, name the row with id")
	refusal.Current, _ = json.Marshal(map[string]any{"dead": whose}) // texts and numbers always marshal
	return letter{}, refusal
}

// redrivenBefore is the reply to a redrive that has had its effect. Where the
// recipient is a topic, what went from there to a subscriber is meant too.
func (m *Machine) redrivenBefore(db step.DB, n named, recipient string) (step.Effects, error) {
	const (
		which = `AND (?2 = '' OR recipient = ?2 OR topic = ?3) AND outcome IS NULL AND redriven_id IS NOT NULL ORDER BY redriven_id DESC LIMIT ?4`
		byRow = `SELECT ` + columns + ` FROM deliveries WHERE id = ?1 ` + which
		byID  = `SELECT ` + columns + ` FROM deliveries INDEXED BY deliveries_redriven WHERE message_id = ?1 ` + which
	)
	query, key := byRow, any(n.id)
	if n.messageID != "" {
		query, key = byID, n.messageID
	}
	topic, ofTopic := strings.CutPrefix(recipient, topicRecipient(""))
	if !ofTopic {
		topic = "" // no delivery has it
	}
	list, err := collect(db, scanRows, query, key, recipient, topic, mostNamed)
	if err != nil {
		return step.Effects{}, fmt.Errorf("read what was redriven: %w", err)
	}
	for _, d := range list {
		if ofTopic && d.Recipient != recipient {
			// A message to an agent may have the topic too.
			msg, err := m.facts.Rows.Message(db, d.ID)
			if err != nil {
				return step.Effects{}, fmt.Errorf("row %d: %w", d.ID, err)
			}
			if msg.To.Class != wire.ToTopic {
				continue
			}
		}
		return step.Effects{Reply: RedriveReply{MessageID: d.messageID, ID: d.ID, Recipient: d.Recipient, ExpiresAtMS: d.ExpiresAtMS, Idempotent: true}}, nil
	}
	return step.Effects{}, wire.Errorf(wire.NotFound, "there is no such dead letter").WithHint("inbox.dead lists them")
}
