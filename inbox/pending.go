package inbox

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"signalbox/step"
	"signalbox/wire"
)

// listed is an entry of inbox.pending: a delivery, and what is to be said of
// its message.
type listed struct {
	Delivery
	MessageID string  `json:"message_id"`
	From      *string `json:"from"`
	Type      string  `json:"type"`
}

type pendingReply struct {
	Deliveries []json.RawMessage `json:"deliveries"`
	Pending    int64             `json:"pending"` // all that are open, on whatever page
	More       bool              `json:"more"`
	NextAfter  string            `json:"next_after,omitempty"` // for the next page, where there is more
}

// queryPending lists what a recipient is owed, in the order of a fetch; what an
// agent is owed includes what the roles that it holds are.
func (m *Machine) queryPending(db step.DB, from string, body []byte) (any, error) {
	var q struct {
		Agent string `json:"agent"` // an agent id, topic:… or role:…; the sender where it is left out
		Limit *int64 `json:"limit"`
		After string `json:"after"` // next_after of the page before
	}
	if err := step.Decode(body, &q); err != nil {
		return nil, err
	}
	limit, refusal := within("limit", q.Limit, 1, maxLimit, defaultLimit)
	if refusal != nil {
		return nil, refusal
	}
	after, refusal := readTurn(q.After)
	if refusal != nil {
		return nil, refusal
	}
	if q.Agent == "" {
		q.Agent = from
	}
	to, err := wire.ParseRecipient(q.Agent)
	if err != nil {
		return nil, err
	}
	recipients := []string{to.String()}
	if to.Class == wire.ToAgent {
		if recipients, err = m.recipients(db, to.Name); err != nil {
			return nil, err
		}
	}
	var reply pendingReply
	var list []listed
	for _, recipient := range recipients {
		n, err := Pending(db, recipient)
		if err != nil {
			return nil, err
		}
		some, err := openOf(db, recipient, after, limit+1)
		if err != nil {
			return nil, fmt.Errorf("list what %q is owed: %w", recipient, err)
		}
		reply.Pending += n
		list = append(list, some...)
	}
	slices.SortFunc(list, func(a, b listed) int { return inOrder(&a.Delivery, &b.Delivery) })
	return reply, reply.fill(db, list, int(limit))
}

// fill puts into the reply what fits of a sorted list.
func (p *pendingReply) fill(db step.DB, list []listed, limit int) error {
	out, err := newListing(db)
	if err != nil {
		return err
	}
	for i := range list {
		ok := i < limit
		if ok {
			if ok, err = out.add(list[i]); err != nil {
				return err
			}
		}
		if !ok {
			p.More, p.NextAfter = true, turnOf(&list[i-1].Delivery)
			break
		}
	}
	p.Deliveries = out.list
	return nil
}

// turn is a place in the order of a fetch. It names one delivery of an agent
// and its roles, since a message is for the one or for the other.
type turn struct{ priority, id int64 }

func turnOf(d *Delivery) string { return fmt.Sprintf("%d/%d", d.Priority, d.ID) }

// readTurn reads a place; "" is before the first.
func readTurn(s string) (t turn, refusal *wire.Error) {
	if s == "" {
		return turn{priority: wire.MaxPriority + 1}, nil
	}
	priority, id, _ := strings.Cut(s, "/")
	var err error
	if t.priority, err = strconv.ParseInt(priority, 10, 64); err == nil {
		t.id, err = strconv.ParseInt(id, 10, 64)
	}
	if err != nil {
		return t, wire.Errorf(wire.BodyInvalid, "after is %.200q, which no next_after was", s)
	}
	return t, nil
}

// openOf are the first open deliveries of a recipient after a place, at most
// so many. Each part is a stretch of an index, in its order: what is left of
// the priority of the place, and the lower ones; of what is fresh, and of what
// is in flight.
func openOf(db step.DB, recipient string, after turn, most int64) ([]listed, error) {
	return collect(db, func(rows *sql.Rows) (l listed, err error) {
		d := &l.Delivery
		err = rows.Scan(&d.ID, &d.Recipient, &d.Topic, &d.Priority, &d.QueuedAtMS, &d.ExpiresAtMS, &d.Attempts, &d.DeliveredAtMS, &d.DeliveredID,
			&d.DeliveredTo, &d.RedrivenID, &l.MessageID, &l.From, &l.Type)
		d.Status = d.state()
		return l, err
	}, `SELECT d.id, d.recipient, coalesce(d.topic, ''), d.priority, d.queued_at_ms, d.expires_at_ms, d.attempts, d.delivered_at_ms, d.delivered_id,
			coalesce(d.delivered_to, ''), d.redriven_id, coalesce(m.message_id, ''), m."from", coalesce(m.type, '')
		FROM (
			SELECT * FROM (SELECT id, recipient, priority FROM deliveries INDEXED BY deliveries_fresh
				WHERE recipient = ?1 AND priority = ?2 AND id > ?3 AND outcome IS NULL AND delivered_at_ms IS NULL ORDER BY id LIMIT ?4)
			UNION ALL
			SELECT * FROM (SELECT id, recipient, priority FROM deliveries INDEXED BY deliveries_fresh
				WHERE recipient = ?1 AND priority < ?2 AND outcome IS NULL AND delivered_at_ms IS NULL ORDER BY priority DESC, id LIMIT ?4)
			UNION ALL
			SELECT * FROM (SELECT id, recipient, priority FROM deliveries INDEXED BY deliveries_flight
				WHERE recipient = ?1 AND priority = ?2 AND id > ?3 AND outcome IS NULL AND delivered_at_ms IS NOT NULL ORDER BY id LIMIT ?4)
			UNION ALL
			SELECT * FROM (SELECT id, recipient, priority FROM deliveries INDEXED BY deliveries_flight
				WHERE recipient = ?1 AND priority < ?2 AND outcome IS NULL AND delivered_at_ms IS NOT NULL ORDER BY priority DESC, id LIMIT ?4)
			ORDER BY priority DESC, id LIMIT ?4) AS o
		JOIN deliveries AS d ON d.id = o.id AND d.recipient = o.recipient
		LEFT JOIN messages AS m ON m.id = o.id
		ORDER BY d.priority DESC, d.id`, recipient, after.priority, after.id, most)
}
