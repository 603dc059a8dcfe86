package bridge

import (
	"context"
	"database/sql"
	"fmt"

	"signalbox/agents"
	"signalbox/assign"
	"signalbox/audit"
	"signalbox/inbox"
	"signalbox/wire"
)

// Fate is what became of a row, for each of its recipients too.
type Fate struct {
	audit.Fate
	Deliveries []inbox.Delivery `json:"deliveries"`           // at most MaxDeliveries, by recipient
	Recipients int              `json:"recipients,omitempty"` // how many there are, where there are more
}

// MaxDeliveries are the deliveries that a Fate lists.
const MaxDeliveries = 500

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
			f.Status = inbox.Status(list)
			if f.Deliveries = list; len(list) > MaxDeliveries {
				f.Deliveries, f.Recipients = list[:MaxDeliveries], len(list)
			}
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
	c, err := readCounts(ctx, r)
	if err != nil {
		return s, err
	}
	s.OnlineAgents = c.agents[string(agents.Online)]
	s.AssignQueued, s.AssignRunning = c.jobs[string(assign.Queued)], c.jobs[string(assign.Running)]
	s.AssignFailed, s.AssignTimedOut = c.jobs[string(assign.Failed)], c.jobs[string(assign.TimedOut)]
	s.ActiveAssignJobs = s.AssignQueued + s.AssignRunning
	s.TotalDeliveries = c.inbox.Deliveries
	if c.inbox.Delivered > 0 {
		s.AvgDeliveryMS = float64(c.inbox.WaitMS) / float64(c.inbox.Delivered)
	}
	return s, nil
}

// machineCounts are what the machines keep, in numbers.
type machineCounts struct {
	agents, jobs map[string]int64 // by status
	inbox        inbox.Totals
}

func readCounts(ctx context.Context, r *audit.Reader) (c machineCounts, err error) {
	return c, machineTables(ctx, r, func(tx *sql.Tx) (err error) {
		if c.agents, err = agents.New(nil).Count(tx); err != nil {
			return err
		}
		if c.jobs, err = assign.New().Count(tx); err != nil {
			return err
		}
		c.inbox, err = inbox.ReadTotals(tx)
		return err
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
