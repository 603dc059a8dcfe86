package bridge

import (
	"context"
	"database/sql"
	"fmt"

	"signalbox/agents"
	"signalbox/audit"
	"signalbox/inbox"
	"signalbox/wire"
)

// Fate is what became of a row, for each of its recipients too.
type Fate struct {
	audit.Fate
	Deliveries []inbox.Delivery `json:"deliveries"`
}

// ReadFate looks up what became of a row. The status of a message is that of
// its least advanced delivery: queued, delivered, acked, expired or
// dead_letter; one that nobody was owed is registered.
func ReadFate(ctx context.Context, r *audit.Reader, row *audit.Row) (Fate, error) {
	base, err := r.Fate(ctx, row)
	f := Fate{Fate: base, Deliveries: []inbox.Delivery{}}
	if err != nil || row.Kind != wire.Msg {
		return f, err
	}
	err = machineTables(ctx, r, func(tx *sql.Tx) error {
		list, err := inbox.Deliveries(tx, row.ID)
		if len(list) > 0 {
			f.Deliveries, f.Status = list, inbox.Status(list)
		}
		return err
	})
	return f, err
}

// ReadStats counts what the register holds, and what the machines keep.
func ReadStats(ctx context.Context, r *audit.Reader) (audit.Stats, error) {
	s, err := r.Stats(ctx)
	if err != nil {
		return s, err
	}
	return s, machineTables(ctx, r, func(tx *sql.Tx) error {
		byStatus, err := agents.New(nil).Count(tx)
		if err != nil {
			return err
		}
		s.OnlineAgents = byStatus["online"]
		t, err := inbox.ReadTotals(tx)
		if err != nil {
			return err
		}
		s.TotalDeliveries = t.Deliveries
		if t.Delivered > 0 {
			s.AvgDeliveryMS = float64(t.WaitMS) / float64(t.Delivered)
		}
		return nil
	})
}

// machineTables reads the machines' tables, where the register has them: one
// of an older version does not, until the bridge has run on it.
func machineTables(ctx context.Context, r *audit.Reader, read func(*sql.Tx) error) error {
	version, err := r.SchemaVersion(ctx)
	if err != nil {
		return fmt.Errorf("read the register: %w", err)
	}
	if version < audit.SchemaVersion() {
		return nil
	}
	return r.View(ctx, read)
}
