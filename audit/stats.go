package audit

import (
	"context"
	"fmt"
	"time"

	"signalbox/wire"
)

// Stats is the register in numbers. Fields of machines that this register has
// no tables of are 0.
type Stats struct {
	OnlineAgents     int64   `json:"online_agents"`
	TotalMessages    int64   `json:"total_messages"` // rows of every kind
	ActiveAssignJobs int64   `json:"active_assign_jobs"`
	Urgent           int64   `json:"urgent"` // messages of priority 7 and up that have not expired by bus time
	Normal           int64   `json:"normal"` // the others that have not expired
	DLQ              int64   `json:"dlq"`    // dead letters
	AssignQueued     int64   `json:"assign_queued"`
	AssignRunning    int64   `json:"assign_running"`
	AssignFailed     int64   `json:"assign_failed"`
	AssignTimedOut   int64   `json:"assign_timed_out"`
	TotalDeliveries  int64   `json:"total_deliveries"`
	AvgDeliveryMS    float64 `json:"avg_delivery_ms"`

	Kinds        map[wire.Kind]int64 `json:"kinds"` // rows by kind; "" is any other
	FirstID      int64               `json:"first_id"`
	LastID       int64               `json:"last_id"`
	FirstAt      time.Time           `json:"first_at,omitzero"` // the log's time of the first row
	LastAt       time.Time           `json:"last_at,omitzero"`
	Gaps         int64               `json:"gaps"`
	Incarnations int64               `json:"incarnations"`
	OutboxDepth  int64               `json:"outbox_depth"` // events and messages that have not come back
	Refusals     map[wire.Code]int64 `json:"refusals"`     // by code
}

// Stats counts. What the index has counted is taken from it; rows that it has
// not reached are looked through, which without an index are all of them. Dead
// letters and refusals are counted one by one.
func (r *Reader) Stats(ctx context.Context) (Stats, error) {
	s := Stats{Kinds: map[wire.Kind]int64{}, Refusals: map[wire.Code]int64{}}
	// The index first: what it has counted is then all in the rows up to last.
	view, release := r.index.view(ctx, r.db, maxTime)
	defer release()
	last, err := r.LastID(ctx)
	if err != nil {
		return s, err
	}
	state, err := r.State(ctx)
	if err != nil {
		return s, err
	}
	s.TotalMessages, s.LastID = last, last // ids have no holes
	if last > 0 {
		first, err := r.Row(ctx, 1)
		if err != nil {
			return s, err
		}
		newest, err := r.Row(ctx, last)
		if err != nil {
			return s, err
		}
		s.FirstID, s.FirstAt, s.LastAt = first.ID, first.At(), newest.At()
	}
	for _, count := range []struct {
		into  *int64
		query string
	}{
		{&s.Gaps, `SELECT count(*) FROM gaps`},
		{&s.Incarnations, `SELECT count(*) FROM incarnations`},
		{&s.OutboxDepth, `SELECT count(*) FROM outbox WHERE seen = 0 AND n > (SELECT outbox_seen FROM bridge_state)`},
		{&s.DLQ, `SELECT count(*) FROM dead_letters`},
	} {
		if err := r.db.QueryRowContext(ctx, count.query).Scan(count.into); err != nil {
			return s, fmt.Errorf("count: %w", err)
		}
	}
	refusals, err := collect(ctx, r.db, "count refusals", scanTally, `SELECT code, count(*) FROM refusals GROUP BY code`)
	for _, t := range refusals {
		s.Refusals[wire.Code(t.name)] = t.n
	}
	if err != nil {
		return s, err
	}
	if err := r.countKinds(ctx, &view, &s); err != nil {
		return s, err
	}
	return s, r.countLive(ctx, &view, state.BusNS/int64(time.Millisecond), &s)
}

type tally struct {
	name string
	n    int64
}

func scanTally(scan func(...any) error) (t tally, err error) {
	err = scan(&t.name, &t.n)
	return t, err
}

func (r *Reader) countKinds(ctx context.Context, view *indexView, s *Stats) error {
	after := view.refs
	if after > 0 {
		counted, err := collect(ctx, view.conn, "read the index", scanTally, `SELECT kind, n FROM kinds WHERE n > 0`)
		if err != nil {
			after = 0
		}
		for _, t := range counted {
			s.Kinds[wire.Kind(t.name)] += t.n
		}
	}
	for p := range ranges(after+1, s.LastID, false) {
		counted, err := collect(ctx, r.db, "count kinds", scanTally,
			`SELECT iif(kind IN ('msg', 'cmd', 'evt', 'tap'), kind, '') AS k, count(*) FROM messages WHERE id BETWEEN ? AND ? GROUP BY k`,
			p.lo, p.hi)
		if err != nil {
			return err
		}
		for _, t := range counted {
			s.Kinds[wire.Kind(t.name)] += t.n
		}
	}
	return nil
}

// countLive counts the messages that have not expired at nowMS of bus time, in
// the blocks that have any row which has not.
func (r *Reader) countLive(ctx context.Context, view *indexView, nowMS int64, s *Stats) error {
	after := view.refs
	var parts []part
	if after > 0 {
		blocks, err := collect(ctx, view.conn, "read the index", scanID,
			`SELECT block FROM spans WHERE expires_last > ? ORDER BY block`, nowMS)
		if err != nil {
			after = 0
		}
		for p := range blockRanges(blocks, 1, after, false) {
			parts = append(parts, p)
		}
	}
	for p := range ranges(after+1, s.LastID, false) {
		parts = append(parts, p)
	}
	for _, p := range parts {
		var urgent, all int64
		err := r.db.QueryRowContext(ctx, `SELECT coalesce(sum(priority >= ?), 0), count(*) FROM messages
			WHERE id BETWEEN ? AND ? AND kind = 'msg' AND expires_at_ms > ?`, wire.UrgentPriority, p.lo, p.hi, nowMS).Scan(&urgent, &all)
		if err != nil {
			return fmt.Errorf("count messages: %w", err)
		}
		s.Urgent += urgent
		s.Normal += all - urgent
	}
	return nil
}
