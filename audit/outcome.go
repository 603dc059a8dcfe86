package audit

import (
	"database/sql"
	"encoding/json"
	"errors"

	"signalbox/step"
	"signalbox/wire"
)

// Outcome is what became of a request the first time it was folded.
type Outcome struct {
	From     string
	ID       string // the request id
	BodyHash []byte
	Status   int // 0 done, otherwise the status of the error
	Reply    []byte
	Cause    int64 // the row that was first
	AtMS     int64 // bus time
}

// Outcome is the first outcome of a request id at or after sinceMS of bus
// time. The result is false where there is none.
func (b *Batch) Outcome(from, id string, sinceMS int64) (Outcome, bool, error) {
	o := Outcome{From: from, ID: id}
	var reply string
	err := b.r.QueryRow(`SELECT body_hash, status, reply, cause, at_ms FROM outcomes WHERE "from" = ? AND id = ? AND at_ms >= ?`,
		from, id, sinceMS).Scan(&o.BodyHash, &o.Status, &reply, &o.Cause, &o.AtMS)
	if errors.Is(err, sql.ErrNoRows) {
		return o, false, nil
	}
	o.Reply = []byte(reply)
	return o, err == nil, err
}

// HasOutcome reports whether a request id of the sender has an outcome, however
// old.
func HasOutcome(db step.DB, from, id string) (bool, error) {
	var n int
	err := db.QueryRow(`SELECT count(*) FROM outcomes WHERE "from" = ? AND id = ?`, from, id).Scan(&n)
	return n > 0, err
}

// Remember keeps an outcome; one of the same id that is too old to count goes.
func (b *Batch) Remember(o Outcome) error {
	_, err := b.r.Exec(`INSERT OR REPLACE INTO outcomes ("from", id, body_hash, status, reply, cause, at_ms) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		o.From, o.ID, o.BodyHash, o.Status, string(o.Reply), o.Cause, o.AtMS)
	return err
}

// OldestOutcome is the bus time of the oldest outcome kept; false for none.
func (r *Register) OldestOutcome() (int64, bool, error) {
	var at sql.NullInt64
	err := r.QueryRow(`SELECT min(at_ms) FROM outcomes`).Scan(&at)
	return at.Int64, at.Valid, err
}

// ForgetOutcomes removes at most limit outcomes older than beforeMS of bus
// time and says how many it removed.
func (b *Batch) ForgetOutcomes(beforeMS int64, limit int) (int, error) {
	res, err := b.r.Exec(`DELETE FROM outcomes WHERE ("from", id) IN
		(SELECT "from", id FROM outcomes WHERE at_ms < ? ORDER BY at_ms, "from", id LIMIT ?)`, beforeMS, limit)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// Refuse records that a row was refused.
func (b *Batch) Refuse(id int64, refusal *wire.Error) error {
	text, err := json.Marshal(refusal)
	if err != nil {
		return err
	}
	_, err = b.r.Exec(`INSERT INTO refusals (id, code, error) VALUES (?, ?, ?)`, id, string(refusal.Code), string(text))
	return err
}

// DeadLetter is what was not delivered, refused or given up on.
type DeadLetter struct {
	Recipient  string `json:"recipient"`
	ID         int64  `json:"id"` // the register row
	MessageID  string `json:"message_id"`
	Reason     string `json:"reason"`
	FailedAtMS int64  `json:"failed_at_ms"`
	LastError  string `json:"last_error"`
	Cause      int64  `json:"cause"`
}

// Bury adds a dead letter.
func (b *Batch) Bury(d DeadLetter) error {
	_, err := b.r.Exec(`INSERT INTO dead_letters (recipient, id, message_id, reason, failed_at_ms, last_error, cause)
		VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`, d.Recipient, d.ID, d.MessageID, d.Reason, d.FailedAtMS, d.LastError, d.Cause)
	return err
}

// Transition is one change of a state column, and what caused it.
type Transition struct {
	ID      int64  `json:"id"`
	Machine string `json:"machine"`
	Key     string `json:"key"`
	From    string `json:"from_state"`
	To      string `json:"to_state"`
	Reason  string `json:"reason"`
	Cause   int64  `json:"cause"` // the register row
	AtMS    int64  `json:"at_ms"` // bus time
}

// Transit records a transition.
func (b *Batch) Transit(t Transition) error {
	_, err := b.r.Exec(`INSERT INTO transitions (machine, key, from_state, to_state, reason, cause, at_ms) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		t.Machine, t.Key, t.From, t.To, t.Reason, t.Cause, t.AtMS)
	return err
}
