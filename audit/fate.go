package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"signalbox/wire"
)

// Fate is what became of a row; the row itself never changes.
type Fate struct {
	Status      string       `json:"status"` // refused, done or registered
	Refusal     *wire.Error  `json:"refusal,omitempty"`
	Transitions []Transition `json:"transitions,omitempty"` // that it caused
}

// Fate looks up what became of a row. A command is done or refused; a message
// that was not refused, an event and a tap are just registered.
func (r *Reader) Fate(ctx context.Context, row *Row) (Fate, error) {
	f := Fate{Status: "registered"}
	refusal, err := r.Refusal(ctx, row.ID)
	switch {
	case err == nil:
		f.Status, f.Refusal = "refused", &refusal.Error
	case !errors.Is(err, ErrNotFound):
		return f, err
	case row.Kind == wire.Cmd:
		f.Status = "done"
	}
	f.Transitions, err = r.TransitionsBy(ctx, row.ID)
	return f, err
}

// View runs f on one commit's state, read-only.
func (r *Reader) View(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := r.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("read the register: %w", err)
	}
	return errors.Join(f(tx), tx.Rollback())
}
