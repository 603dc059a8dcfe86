package audit

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"signalbox/wire"
)

// outboxTrim is how many entries that came back are removed at once.
const outboxTrim = 1024

// Outgoing is an entry of the outbox: an event or a message of the bridge that
// must be in the log exactly once.
type Outgoing struct {
	N       int64 // its place in the order
	ID      string
	Subject string
	Header  wire.Header
	Body    []byte
	Cause   int64 // the row that caused it
}

// Queue adds an entry to the outbox.
func (b *Batch) Queue(o Outgoing) error {
	headers, raw := encodeHeader(o.Header, b.scratch)
	if b.scratch = headers; raw != nil {
		return fmt.Errorf("a header of %s is not UTF-8", o.Subject)
	}
	b.State.OutboxLast++
	o.N = b.State.OutboxLast
	b.queued = append(b.queued, o)
	_, err := b.r.Exec(`INSERT INTO outbox (n, id, subject, headers, body, cause) VALUES (?, ?, ?, ?, ?, ?)`,
		b.State.OutboxLast, o.ID, o.Subject, string(headers), o.Body, o.Cause)
	return err
}

// Queued are the entries that the batch has added, oldest first: what Unseen
// would give once it is committed, without reading it.
func (b *Batch) Queued() []Outgoing { return b.queued }

// CameBack notes that a message with an entry's id was seen in the log. It is
// the entry only if it says the same: anyone may publish under a claimed id.
// The result says whether it was.
func (b *Batch) CameBack(id, subject string, body []byte) (bool, error) {
	var n, seen int64
	var same bool
	if body == nil {
		body = []byte{}
	}
	err := b.r.QueryRow(`SELECT n, seen, subject = ? AND body = ? FROM outbox WHERE id = ?`, subject, body, id).Scan(&n, &seen, &same)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, err
	case !same:
		return false, nil
	case seen == 1 || n <= b.State.OutboxSeen:
		return true, nil
	}
	return true, b.done(n)
}

// GiveUp takes an entry that the server will never accept out of the way; the
// caller records it as a dead letter. The result is false where there is no
// such entry, or none that is still owed.
func (b *Batch) GiveUp(id string) (Outgoing, bool, error) {
	o := Outgoing{ID: id}
	var headers string
	err := b.r.QueryRow(`SELECT n, subject, headers, body, cause FROM outbox WHERE id = ? AND seen = 0 AND n > ?`,
		id, b.State.OutboxSeen).Scan(&o.N, &o.Subject, &headers, &o.Body, &o.Cause)
	if errors.Is(err, sql.ErrNoRows) {
		return o, false, nil
	}
	if err != nil {
		return o, false, err
	}
	if err := json.Unmarshal([]byte(headers), &o.Header); err != nil {
		return o, false, err
	}
	return o, true, b.done(o.N)
}

// done marks entry n and moves the watermark over all that are done.
func (b *Batch) done(n int64) error {
	if n != b.State.OutboxSeen+1 {
		_, err := b.r.Exec(`UPDATE outbox SET seen = 1 WHERE n = ?`, n)
		b.ahead++
		return err
	}
	next, before := n+1, b.State.OutboxSeen
	if b.ahead > 0 { // some after it are done already
		if err := b.r.QueryRow(`SELECT coalesce(min(n), ?) FROM outbox WHERE n > ? AND seen = 0`, b.State.OutboxLast+1, n).Scan(&next); err != nil {
			return err
		}
		b.ahead -= next - 1 - n
	}
	b.State.OutboxSeen = next - 1
	if b.State.OutboxSeen/outboxTrim == before/outboxTrim && b.State.OutboxSeen != b.State.OutboxLast {
		return nil
	}
	_, err := b.r.Exec(`DELETE FROM outbox WHERE n <= ?`, b.State.OutboxSeen)
	return err
}

// Unseen are the next entries after n that have not come back, oldest first.
// It reads what the last commit left.
func (r *Reader) Unseen(ctx context.Context, after int64, limit int) ([]Outgoing, error) {
	rows, err := r.db.QueryContext(ctx, `SELECT n, id, subject, headers, body, cause FROM outbox
		WHERE n > max(?, (SELECT outbox_seen FROM bridge_state)) AND seen = 0 ORDER BY n LIMIT ?`, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	defer rows.Close()
	var out []Outgoing
	for rows.Next() {
		var o Outgoing
		var headers string
		if err := rows.Scan(&o.N, &o.ID, &o.Subject, &headers, &o.Body, &o.Cause); err != nil {
			return nil, fmt.Errorf("read the outbox: %w", err)
		}
		if err := json.Unmarshal([]byte(headers), &o.Header); err != nil {
			return nil, fmt.Errorf("read the outbox: entry %d: %w", o.N, err)
		}
		out = append(out, o)
	}
	return out, rows.Err()
}
