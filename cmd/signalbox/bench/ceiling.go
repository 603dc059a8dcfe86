package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"signalbox/audit"
	"signalbox/wire"
)

// How the ceiling is inserted.
const (
	ceilingBatch = 1_000
	ceilingChunk = 20 * ceilingBatch // made at once, outside of the time
)

// ceiling appends n rows to a fresh register under dir and gives the rate, in
// rows a second.
func ceiling(ctx context.Context, dir string, n, size int, done func(int)) (rate float64, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	reg, err := audit.Open(ctx, filepath.Join(dir, "signalbox.db"), audit.Options{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, reg.Close()) }()
	// Rows that are only in the write-ahead log are not in the table yet: the
	// log is moved as it is beside the bridge.
	check, err := reg.Checkpointer()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, check.Close()) }()
	moving, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop()
	failed := make(chan error, 1)
	beside.Go(func() {
		check.Run(moving, func(err error) {
			select {
			case failed <- err:
			default: // the first says it
			}
		})
	})
	var took time.Duration
	maker := &rowMaker{load: newLoad(0, 0, size), began: time.Now()}
	for first := 0; first < n; first += ceilingChunk {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		rows := maker.rows(first, min(ceilingChunk, n-first))
		runtime.GC() // what making them left is not part of inserting them
		start := time.Now()
		if err := insert(reg, rows); err != nil {
			return 0, fmt.Errorf("ceiling: %w", err)
		}
		took += time.Since(start)
		done(len(rows))
	}
	select {
	case err := <-failed:
		return 0, fmt.Errorf("ceiling: %w", err)
	default:
	}
	return float64(n) / took.Seconds(), nil
}

func insert(reg *audit.Register, rows []*audit.Row) error {
	for len(rows) > 0 {
		batch := rows[:min(ceilingBatch, len(rows))]
		rows = rows[len(batch):]
		b, err := reg.Begin()
		if err != nil {
			return err
		}
		for _, row := range batch {
			if err := b.Append(row); err != nil {
				return errors.Join(err, b.Rollback())
			}
		}
		if err := b.Commit(); err != nil {
			return err
		}
		if err := reg.Bound(); err != nil {
			return err
		}
	}
	return nil
}

// rowMaker makes rows as the bridge would of the same messages.
type rowMaker struct {
	load    *load
	began   time.Time
	scratch []byte
}

func (m *rowMaker) rows(first, n int) []*audit.Row {
	rows := make([]*audit.Row, n)
	for i := range rows {
		rows[i] = m.row(first + i)
	}
	return rows
}

func (m *rowMaker) row(n int) *audit.Row {
	const incarnation = 1
	seq := uint64(n + 1)
	at := m.began.Add(time.Duration(n) * 20 * time.Microsecond)
	l := m.load.letter(n, nil)
	row := &audit.Row{
		Incarnation: incarnation, Seq: seq, AtNS: at.UnixNano(), Kind: wire.Msg, Subject: l.subject, Type: "response",
		MessageID: wire.DeriveID(at, incarnation, seq, "message"), From: l.sender, To: "agent:" + l.receiver, Priority: 5,
		ExpiresAtMS: at.Add(5 * time.Minute).UnixMilli(), CorrelationID: l.correlation, TraceID: l.trace,
		Header: wire.Header{headerCorrelation: {l.correlation}, headerTrace: {l.trace}}, Body: l.body,
	}
	row.Leaf, m.scratch = audit.Leaf(audit.LeafInput{Stream: "BUS", Incarnation: incarnation, Seq: seq, AtNS: row.AtNS,
		Subject: row.Subject, Header: row.Header, Body: row.Body}, m.scratch)
	return row
}
