package inbox

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"signalbox/step"
	"signalbox/wire"
)

// Limits of listings.
const (
	defaultLimit = 50
	maxLimit     = 1000
)

// A listing ends where it would be too large a reply.
type listing struct {
	list []json.RawMessage
	room int
	more bool
}

func newListing() *listing { return &listing{list: []json.RawMessage{}, room: maxReply} }

// add takes one more entry; false when the listing is full.
func (l *listing) add(v any) (bool, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return false, err
	}
	if l.room -= len(raw) + 1; l.room < 0 && len(l.list) > 0 {
		l.more = true
		return false, nil
	}
	l.list = append(l.list, raw)
	return true, nil
}

// listed is an entry of inbox.pending: a delivery, and what is to be said of
// its message.
type listed struct {
	Delivery
	MessageID string  `json:"message_id"`
	From      *string `json:"from"`
	Type      string  `json:"type"`
}

// queryPending lists what a recipient is owed, in the order of a fetch.
func queryPending(db step.DB, from string, body []byte) (any, error) {
	var q struct {
		Agent string `json:"agent"` // an agent id, topic:… or role:…; the sender where it is left out
		Limit *int64 `json:"limit"`
	}
	if err := step.Decode(body, &q); err != nil {
		return nil, err
	}
	limit, refusal := within("limit", q.Limit, 1, maxLimit, defaultLimit)
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
	recipient := to.String()
	if to.Class == wire.ToAgent {
		recipient = to.Name
	}
	pending, err := Pending(db, recipient)
	if err != nil {
		return nil, err
	}
	list, err := openOf(db, recipient, limit)
	if err != nil {
		return nil, fmt.Errorf("list what %q is owed: %w", recipient, err)
	}
	out := newListing()
	for i := range list {
		if ok, err := out.add(list[i]); err != nil || !ok {
			return pendingReply{out.list, pending, out.more}, err
		}
	}
	return pendingReply{out.list, pending, pending > int64(len(list))}, nil
}

type pendingReply struct {
	Deliveries []json.RawMessage `json:"deliveries"`
	Pending    int64             `json:"pending"` // all that are open
	More       bool              `json:"more"`
}

// openOf are the first open deliveries of a recipient. Both halves are sorted
// by their indexes.
func openOf(db step.DB, recipient string, limit int64) ([]listed, error) {
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
				WHERE recipient = ?1 AND outcome IS NULL AND delivered_at_ms IS NULL ORDER BY priority DESC, id LIMIT ?2)
			UNION ALL
			SELECT * FROM (SELECT id, recipient, priority FROM deliveries INDEXED BY deliveries_flight
				WHERE recipient = ?1 AND outcome IS NULL AND delivered_at_ms IS NOT NULL ORDER BY priority DESC, id LIMIT ?2)
			ORDER BY priority DESC, id LIMIT ?2) AS o
		JOIN deliveries AS d ON d.id = o.id AND d.recipient = o.recipient
		LEFT JOIN messages AS m ON m.id = o.id
		ORDER BY d.priority DESC, d.id`, recipient, limit)
}

// queryDead lists dead letters, newest first.
func queryDead(db step.DB, _ string, body []byte) (any, error) {
	var q struct {
		Recipient string `json:"recipient"`
		Reason    string `json:"reason"`
		Limit     *int64 `json:"limit"`
		After     string `json:"after"` // next_after of the page before
	}
	if err := step.Decode(body, &q); err != nil {
		return nil, err
	}
	limit, refusal := within("limit", q.Limit, 1, maxLimit, defaultLimit)
	if refusal != nil {
		return nil, refusal
	}
	after, refusal := readAfter(q.After)
	if refusal != nil {
		return nil, refusal
	}
	list, err := lettersFrom(db, q.Recipient, q.Reason, after, limit+1)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	out, reply := newListing(), deadReply{}
	for i := range list {
		more := int64(i) == limit
		if !more {
			ok, err := out.add(list[i])
			if err != nil {
				return nil, err
			}
			more = !ok
		}
		if more {
			reply.More, reply.NextAfter = true, position(list[i-1].letter)
			break
		}
	}
	reply.Dead = out.list
	return reply, nil
}

type deadReply struct {
	Dead      []json.RawMessage `json:"dead"`
	More      bool              `json:"more"`
	NextAfter string            `json:"next_after,omitempty"` // for the next page, where there is more
}

// dead is an entry of inbox.dead.
type dead struct {
	letter
	From  *string `json:"from"`
	Topic *string `json:"topic"`
	Type  string  `json:"type"`
}

// position names a letter's place in the order of inbox.dead.
func position(l letter) string { return fmt.Sprintf("%d/%d/%s", l.FailedAtMS, l.ID, l.Recipient) }

// readAfter reads a position; "" is before the first.
func readAfter(s string) (l letter, refusal *wire.Error) {
	if s == "" {
		const never = 1<<63 - 1
		return letter{FailedAtMS: never}, nil
	}
	at, rest, _ := strings.Cut(s, "/")
	id, recipient, ok := strings.Cut(rest, "/")
	var err error
	if l.FailedAtMS, err = strconv.ParseInt(at, 10, 64); err == nil {
		l.ID, err = strconv.ParseInt(id, 10, 64)
	}
	if l.Recipient = recipient; err != nil || !ok {
		return l, wire.Errorf(wire.BodyInvalid, "after is %.200q, which no next_after was", s)
	}
	return l, nil
}

func lettersFrom(db step.DB, recipient, reason string, after letter, limit int64) ([]dead, error) {
	const (
		what = `SELECT d.recipient, d.id, d.message_id, d.reason, d.failed_at_ms, d.last_error, d.cause, m."from", m.topic, coalesce(m.type, '')
			FROM dead_letters AS d LEFT JOIN messages AS m ON m.id = d.id WHERE `
		from = `(?2 = '' OR d.reason = ?2) AND d.failed_at_ms <= ?3 AND (d.failed_at_ms < ?3 OR d.id < ?4 OR d.id = ?4 AND d.recipient > ?5)
			ORDER BY d.failed_at_ms DESC, d.id DESC, d.recipient LIMIT ?6`
	)
	query := what + from
	if recipient != "" {
		query = what + `d.recipient = ?1 AND ` + from
	}
	return collect(db, func(rows *sql.Rows) (l dead, err error) {
		err = rows.Scan(&l.Recipient, &l.ID, &l.MessageID, &l.Reason, &l.FailedAtMS, &l.LastError, &l.Cause, &l.From, &l.Topic, &l.Type)
		return l, err
	}, query, recipient, reason, after.FailedAtMS, after.ID, after.Recipient, limit)
}
