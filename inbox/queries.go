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
}

func newListing(db step.DB) (*listing, error) {
	room, err := listingBytes(db)
	return &listing{list: []json.RawMessage{}, room: room}, err
}

// add takes one more entry; false when the listing is full.
func (l *listing) add(v any) (bool, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return false, err
	}
	if l.room -= len(raw) + 1; l.room < 0 && len(l.list) > 0 {
		return false, nil
	}
	l.list = append(l.list, raw)
	return true, nil
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
	out, err := newListing(db)
	if err != nil {
		return nil, err
	}
	var reply deadReply
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
