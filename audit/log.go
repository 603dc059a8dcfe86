package audit

import (
	"database/sql"
	"errors"
	"fmt"
)

// Cursor is how far a log has been read.
type Cursor struct {
	Stream      string
	Incarnation int64
	StreamID    string
	FirstSeq    uint64 // of the incarnation
	Seq         uint64 // the last message that is in the register
}

// Cursors reads the cursor of every log.
func (r *Register) Cursors() (map[string]Cursor, error) {
	rows, err := r.Query(`SELECT c.stream, c.incarnation, i.stream_id, i.first_seq, c.seq
		FROM cursors c JOIN incarnations i ON i.id = c.incarnation`)
	if err != nil {
		return nil, judge("reading cursors", err)
	}
	defer rows.Close()
	cursors := map[string]Cursor{}
	for rows.Next() {
		var c Cursor
		if err := rows.Scan(&c.Stream, &c.Incarnation, &c.StreamID, &c.FirstSeq, &c.Seq); err != nil {
			return nil, err
		}
		cursors[c.Stream] = c
	}
	return cursors, judge("reading cursors", rows.Err())
}

// SetCursor says that the log has been read up to seq.
func (b *Batch) SetCursor(stream string, incarnation int64, seq uint64) error {
	_, err := b.r.Exec(`INSERT INTO cursors (stream, incarnation, seq) VALUES (?, ?, ?)
		ON CONFLICT (stream) DO UPDATE SET incarnation = excluded.incarnation, seq = excluded.seq`,
		stream, incarnation, int64(seq))
	return err
}

// Reasons for a new incarnation or a gap.
const (
	Created       = "created"        // the first incarnation of a log
	StreamChanged = "stream_changed" // the stream has another id
	LogWentBack   = "log_went_back"  // the stream ends before the cursor or tells another story
	Overtaken     = "overtaken"      // retention removed messages before they were read
	Missing       = "missing"        // the stream has a hole
)

// NextIncarnation is the number that the next incarnation will have.
func (r *Register) NextIncarnation() (int64, error) {
	var id int64
	err := r.QueryRow(`SELECT coalesce(max(id), 0) + 1 FROM incarnations`).Scan(&id)
	return id, err
}

// Incarnation is a stretch of a stream's life.
type Incarnation struct {
	ID       int64
	Stream   string
	StreamID string
	FirstSeq uint64
	Reason   string
}

// OpenIncarnation records an incarnation that starts with the next row.
func (b *Batch) OpenIncarnation(i Incarnation) error {
	_, err := b.r.Exec(`INSERT INTO incarnations (id, stream, stream_id, first_seq, first_id, reason) VALUES (?, ?, ?, ?, ?, ?)`,
		i.ID, i.Stream, i.StreamID, int64(i.FirstSeq), b.NextID(), i.Reason)
	if err != nil {
		return err
	}
	// Its first row is a place to search from, whatever its number.
	_, err = b.r.Exec(`INSERT INTO places (incarnation, seq, id) VALUES (?, ?, ?)`, i.ID, int64(i.FirstSeq), b.NextID())
	return err
}

// Gap is what a log had and the register has not.
type Gap struct {
	ID          int64  `json:"id"`
	Stream      string `json:"stream"`
	Incarnation int64  `json:"incarnation"` // in which From counts
	From        uint64 `json:"from"`
	To          uint64 `json:"to,omitempty"` // 0: unknown
	Reason      string `json:"reason"`
	Cause       int64  `json:"cause"` // the row just after the gap
	AtMS        int64  `json:"at_ms"`
}

// Gap records a gap just before the next row, which is its cause.
func (b *Batch) Gap(g Gap) error {
	var to any
	if g.To != 0 {
		to = int64(g.To)
	}
	_, err := b.r.Exec(`INSERT INTO gaps (stream, incarnation, from_seq, to_seq, reason, cause, at_ms) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		g.Stream, g.Incarnation, int64(g.From), to, g.Reason, b.NextID(), g.AtMS)
	return err
}

// Owner is the incarnation whose rows a stream's messages up to the cursor
// must equal at seq: the newest one of the same stream that starts at or before
// it. An incarnation that began where a log went back shares what lies before
// with the one it left.
func (r *Register) Owner(c Cursor, seq uint64) (int64, bool, error) {
	var id int64
	err := r.QueryRow(`SELECT id FROM incarnations WHERE stream = ? AND stream_id = ? AND id <= ? AND first_seq <= ?
		ORDER BY id DESC LIMIT 1`, c.Stream, c.StreamID, c.Incarnation, int64(seq)).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return id, err == nil, err
}

// RowAt is the row with the greatest number at or below seq in an incarnation;
// sql.ErrNoRows where there is none.
func (r *Register) RowAt(incarnation int64, seq uint64) (*Row, error) {
	row, err := rowAt(r.QueryRow, incarnation, seq)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, judge("reading a row by its place", fmt.Errorf("row at %d:%d: %w", incarnation, seq, err))
	}
	return row, err
}

func rowAt(query func(string, ...any) *sql.Row, incarnation int64, seq uint64) (*Row, error) {
	var from, until int64
	err := query(`SELECT id FROM places WHERE incarnation = ? AND seq <= ? ORDER BY seq DESC LIMIT 1`,
		incarnation, int64(seq)).Scan(&from)
	if err != nil {
		return nil, err
	}
	err = query(`SELECT coalesce(min(id), 9223372036854775807) FROM (SELECT id FROM places
		WHERE incarnation = ? AND seq > ? ORDER BY seq LIMIT 1)`, incarnation, int64(seq)).Scan(&until)
	if err != nil {
		return nil, err
	}
	return scanRow(query(`SELECT `+rowColumns+` FROM messages WHERE id >= ? AND id < ? AND incarnation = ? AND seq <= ?
		ORDER BY id DESC LIMIT 1`, from, until, incarnation, int64(seq)).Scan)
}
