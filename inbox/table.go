package inbox

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"signalbox/step"
)

// columns are all columns of deliveries, in the order in which scan takes them.
const columns = `id, recipient, coalesce(topic, ''), priority, queued_at_ms, expires_at_ms, attempts, coalesce(message_id, ''),
	delivered_at_ms, delivered_id, coalesce(delivered_to, ''), coalesce(outcome, ''), outcome_at_ms, outcome_id, acked_at_ms, redriven_id`

func scan(row interface{ Scan(dest ...any) error }) (d Delivery, err error) {
	err = row.Scan(&d.ID, &d.Recipient, &d.Topic, &d.Priority, &d.QueuedAtMS, &d.ExpiresAtMS, &d.Attempts, &d.messageID,
		&d.DeliveredAtMS, &d.DeliveredID, &d.DeliveredTo, &d.Outcome, &d.OutcomeAtMS, &d.OutcomeID, &d.AckedAtMS, &d.RedrivenID)
	d.Status = d.state()
	return d, err
}

func scanRows(rows *sql.Rows) (Delivery, error) { return scan(rows) }

// collect reads all rows of a query, so that the connection is free again.
func collect[T any](db step.DB, scan func(*sql.Rows) (T, error), query string, args ...any) (list []T, err error) {
	rows, err := db.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, rows.Err()
}

// read is one delivery; found says whether there is one.
func read(db step.DB, id int64, recipient string) (d Delivery, found bool, err error) {
	d, err = scan(db.QueryRow(`SELECT `+columns+` FROM deliveries WHERE id = ? AND recipient = ?`, id, recipient))
	if errors.Is(err, sql.ErrNoRows) {
		return d, false, nil
	}
	if err != nil {
		return d, false, fmt.Errorf("read the delivery of row %d for %q: %w", id, recipient, err)
	}
	return d, true, nil
}

// Deliveries are all deliveries of a message, by recipient, as of db: those of
// the open batch of another connection are not among them.
func Deliveries(db step.DB, id int64) ([]Delivery, error) {
	list, err := collect(db, scanRows, `SELECT `+columns+` FROM deliveries WHERE id = ? ORDER BY recipient`, id)
	if err != nil {
		return nil, fmt.Errorf("read the deliveries of row %d: %w", id, err)
	}
	return list, nil
}

// Pending counts the open deliveries of a recipient: an agent id, topic:… or
// role:…. One whose time is over counts until a tick has said so. It reads the
// table only.
func Pending(db step.DB, recipient string) (n int64, err error) {
	err = db.QueryRow(`SELECT
		(SELECT count(*) FROM deliveries INDEXED BY deliveries_fresh WHERE recipient = ?1 AND outcome IS NULL AND delivered_at_ms IS NULL) +
		(SELECT count(*) FROM deliveries INDEXED BY deliveries_flight WHERE recipient = ?1 AND outcome IS NULL AND delivered_at_ms IS NOT NULL)`,
		recipient).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count what %q is owed: %w", recipient, err)
	}
	return n, nil
}

// Totals are all deliveries in numbers.
type Totals struct {
	Deliveries int64 `json:"deliveries"` // ever made
	Delivered  int64 `json:"delivered"`  // fetched at least once
	WaitMS     int64 `json:"wait_ms"`    // sum over those, from queued_at_ms to the first fetch
	Acked      int64 `json:"acked"`
	Dead       int64 `json:"dead"` // ever given up, redriven ones included
}

// ReadTotals are the totals as of db. It reads the table only.
func ReadTotals(db step.DB) (t Totals, err error) {
	err = db.QueryRow(`SELECT deliveries, delivered, wait_ms, acked, dead FROM inbox_totals WHERE n = 1`).
		Scan(&t.Deliveries, &t.Delivered, &t.WaitMS, &t.Acked, &t.Dead)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return t, fmt.Errorf("read the totals of deliveries: %w", err)
	}
	return t, nil
}

// keepFetched writes what a fetch has changed.
func keepFetched(db step.DB, d Delivery) error {
	return written(d)(db.Exec(`UPDATE deliveries SET attempts = ?, message_id = ?, delivered_at_ms = ?, delivered_id = ?, delivered_to = ?
		WHERE id = ? AND recipient = ?`,
		d.Attempts, d.messageID, *d.DeliveredAtMS, *d.DeliveredID, d.DeliveredTo, d.ID, d.Recipient))
}

// keepFetchedAndAcked writes what a fetch with auto_ack has changed.
func keepFetchedAndAcked(db step.DB, d Delivery) error {
	return written(d)(db.Exec(`UPDATE deliveries SET attempts = ?, message_id = ?, delivered_at_ms = ?, delivered_id = ?, delivered_to = ?,
		outcome = ?, outcome_at_ms = ?, outcome_id = ?, acked_at_ms = ? WHERE id = ? AND recipient = ?`,
		d.Attempts, d.messageID, *d.DeliveredAtMS, *d.DeliveredID, d.DeliveredTo, d.Outcome, *d.OutcomeAtMS, *d.OutcomeID, *d.AckedAtMS,
		d.ID, d.Recipient))
}

// keepClosed writes the outcome.
func keepClosed(db step.DB, d Delivery) error {
	return written(d)(db.Exec(`UPDATE deliveries SET outcome = ?, outcome_at_ms = ?, outcome_id = ?, acked_at_ms = ? WHERE id = ? AND recipient = ?`,
		d.Outcome, *d.OutcomeAtMS, *d.OutcomeID, d.AckedAtMS, d.ID, d.Recipient))
}

// keepRedriven writes a delivery that is open again.
func keepRedriven(db step.DB, d Delivery) error {
	return written(d)(db.Exec(`UPDATE deliveries SET message_id = ?, queued_at_ms = ?, expires_at_ms = ?, redriven_id = ?, delivered_at_ms = NULL,
		delivered_id = NULL, delivered_to = NULL, outcome = NULL, outcome_at_ms = NULL, outcome_id = NULL, acked_at_ms = NULL
		WHERE id = ? AND recipient = ?`,
		d.messageID, d.QueuedAtMS, d.ExpiresAtMS, *d.RedrivenID, d.ID, d.Recipient))
}

// written says which delivery was not written.
func written(d Delivery) func(sql.Result, error) error {
	return func(_ sql.Result, err error) error {
		if err != nil {
			return fmt.Errorf("write the delivery of row %d for %q: %w", d.ID, d.Recipient, err)
		}
		return nil
	}
}

// firstFresh are the first deliveries that a recipient has not fetched, in
// order, at most so many; those that are not written yet are among them.
func (m *Machine) firstFresh(db step.DB, recipient string, most int) ([]Delivery, error) {
	list, err := collect(db, scanRows, `SELECT `+columns+` FROM deliveries INDEXED BY deliveries_fresh
		WHERE recipient = ? AND outcome IS NULL AND delivered_at_ms IS NULL ORDER BY priority DESC, id LIMIT ?`, recipient, most)
	if err != nil {
		return nil, fmt.Errorf("read what is fresh for %q: %w", recipient, err)
	}
	written := len(list)
	for i := range m.made {
		if f := &m.made[i]; f.recipient == recipient {
			list = append(list, f.delivery())
		}
	}
	if len(list) > written {
		slices.SortFunc(list, func(a, b Delivery) int { return inOrder(&a, &b) })
	}
	return list[:min(most, len(list))], nil
}

func (f *fresh) delivery() Delivery {
	return Delivery{ID: f.id, Recipient: f.recipient, Status: Queued, Topic: f.topic, Priority: int64(f.priority),
		QueuedAtMS: f.queuedAtMS, ExpiresAtMS: f.expiresAtMS}
}
