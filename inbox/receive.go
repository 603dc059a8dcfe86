package inbox

import (
	"fmt"

	"signalbox/step"
	"signalbox/wire"
)

// audience is what is known of those a message is for.
type audience struct {
	known, live bool     // to an agent: it has registered; its delivery is live
	inbox       []string // to a topic: the subscribers that are owed it, sorted
	liveCount   int      // and how many are owed nothing
}

// owe says who must get a message: for each of the recipients there is a
// delivery. wakes says that they may have asked already. unknown says that the
// sender must hear that there is no such agent yet.
func owe(to wire.Recipient, a audience) (recipients []string, wakes, unknown bool) {
	switch to.Class {
	case wire.ToAgent:
		if to.Name == wire.Bridge || a.known && a.live {
			return nil, false, false
		}
		return []string{to.Name}, a.known, !a.known
	case wire.ToTopic:
		switch {
		case len(a.inbox) > 0:
			return a.inbox, true, false
		case a.liveCount > 0:
			return nil, false, false
		}
		return []string{topicRecipient(to.Name)}, false, false
	case wire.ToRole:
		return []string{roleRecipient(to.Name)}, true, false
	}
	return nil, false, false
}

// receive makes the deliveries of a message.
func (m *Machine) receive(db step.DB, in step.Input, msg step.Message) (step.Effects, error) {
	if msg.Problem != nil {
		return step.Effects{}, nil // it is refused
	}
	var a audience
	var err error
	switch {
	case msg.To.Class == wire.ToAgent && msg.To.Name != wire.Bridge:
		a.known, a.live, _, err = m.facts.Agents.Owed(db, msg.To.Name)
	case msg.To.Class == wire.ToTopic:
		a.inbox, a.liveCount, err = m.facts.Agents.Subscribers(db, msg.To.Name)
	}
	if err != nil {
		return step.Effects{}, fmt.Errorf("who gets row %d: %w", msg.ID, err)
	}
	recipients, wakes, unknown := owe(msg.To, a)
	f := fresh{id: msg.ID, topic: msg.Envelope.Topic, priority: msg.Envelope.Priority, queuedAtMS: in.NowMS,
		expiresAtMS: in.NowMS + msg.Envelope.TTL.Milliseconds()}
	for _, f.recipient = range recipients {
		m.made = append(m.made, f)
	}
	m.sums.Deliveries += int64(len(recipients))
	effects := step.Effects{Deliveries: len(recipients)}
	if wakes {
		effects.Woken = recipients
	}
	if unknown {
		effects.Told = []step.Happened{toldOf(msg, "unknown_recipient", map[string]any{"message_id": msg.MessageID, "id": msg.ID,
			"to": msg.To.String(), "expires_at_ms": f.expiresAtMS})}
	}
	if len(recipients) > 1 && len(m.made) > mostInside {
		return effects, m.Flush(db)
	}
	return effects, nil
}
