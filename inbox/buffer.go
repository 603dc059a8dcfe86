package inbox

import (
	"fmt"
	"slices"
	"strings"

	"signalbox/step"
)

// Sizes of the buffer of new deliveries, in rows.
const (
	rowsAtOnce = 16   // of one INSERT; more gain nothing
	mostInside = 4096 // before a message to many is written at once
)

const insertColumns = `INSERT INTO deliveries (id, recipient, topic, priority, queued_at_ms, expires_at_ms) VALUES `

var (
	insertOne  = insertColumns + "(?, ?, ?, ?, ?, ?)"
	insertMany = insertColumns + strings.Repeat("(?, ?, ?, ?, ?, ?), ", rowsAtOnce-1) + "(?, ?, ?, ?, ?, ?)"
)

// fresh is a delivery that was made and is not in the table yet.
type fresh struct {
	id          int64
	recipient   string
	topic       string // "" for none
	priority    int
	queuedAtMS  int64
	expiresAtMS int64
}

// buffer is what the tables do not have yet.
type buffer struct {
	made []fresh // in the order of the rows
	sums Totals
	args []any
}

// Flush writes what memory has and the tables have not. The error is of the
// database.
func (b *buffer) Flush(db step.DB) error {
	for list := range slices.Chunk(b.made, rowsAtOnce) {
		if len(list) == rowsAtOnce {
			if err := b.insert(db, insertMany, list); err != nil {
				return err
			}
			continue
		}
		for i := range list {
			if err := b.insert(db, insertOne, list[i:i+1]); err != nil {
				return err
			}
		}
	}
	b.made = b.made[:0]
	if b.sums == (Totals{}) {
		return nil
	}
	// The row is not there when a replay starts from empty tables.
	_, err := db.Exec(`INSERT INTO inbox_totals (n, deliveries, delivered, wait_ms, acked, dead) VALUES (1, ?, ?, ?, ?, ?)
		ON CONFLICT (n) DO UPDATE SET deliveries = deliveries + excluded.deliveries, delivered = delivered + excluded.delivered,
		wait_ms = wait_ms + excluded.wait_ms, acked = acked + excluded.acked, dead = dead + excluded.dead`,
		b.sums.Deliveries, b.sums.Delivered, b.sums.WaitMS, b.sums.Acked, b.sums.Dead)
	if err != nil {
		return fmt.Errorf("write the totals of deliveries: %w", err)
	}
	b.sums = Totals{}
	return nil
}

func (b *buffer) insert(db step.DB, query string, list []fresh) error {
	b.args = b.args[:0]
	for i := range list {
		f := &list[i]
		b.args = append(b.args, f.id, f.recipient, orNull(f.topic), f.priority, f.queuedAtMS, f.expiresAtMS)
	}
	if _, err := db.Exec(query, b.args...); err != nil {
		return fmt.Errorf("write deliveries of row %d and later: %w", list[0].id, err)
	}
	return nil
}

// Forget drops what is in memory, because the tables have gone back.
func (b *buffer) Forget() { b.made, b.sums = b.made[:0], Totals{} }

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
