package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"sync/atomic"
	"time"
)

// Bounds of the write-ahead log, in bytes.
const (
	walPassive = 8 << 20   // so much more, and a passive checkpoint runs beside the writer
	walWriter  = 64 << 20  // from here on the writer takes part, so that the log can start over
	WALAlarm   = 512 << 20 // past this some reader keeps it from starting over
)

// walPoll is how often the size of the write-ahead log is looked at.
const walPoll = 100 * time.Millisecond

// Checkpointer moves the write-ahead log into the file from a connection of
// its own, so that the writer need not wait for it.
type Checkpointer struct {
	path  string
	db    *sql.DB
	moved *atomic.Int64 // bytes of the write-ahead log that are in the file; the writer's
}

// Checkpointer makes the register's checkpointer.
func (r *Register) Checkpointer() (*Checkpointer, error) {
	path := r.path
	db, err := sql.Open("sqlite", dsn(path, url.Values{
		"_pragma": {"busy_timeout(1000)", "synchronous(full)", "wal_autocheckpoint(0)", "cache_size(-1024)"},
	}))
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	return &Checkpointer{path: path, db: db, moved: &r.moved}, nil
}

// Run checkpoints whenever there is enough to move, until ctx ends. report is
// called with each failure; the next turn tries again.
func (c *Checkpointer) Run(ctx context.Context, report func(error)) {
	tick := time.NewTicker(walPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		size, err := WALBytes(c.path)
		// The log is cut to nothing when it starts over (journal_size_limit).
		if moved := c.moved.Load(); err == nil && (size-moved >= walPassive || size < moved) {
			_, err = c.db.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)")
			c.moved.Store(size)
		}
		if err != nil && ctx.Err() == nil {
			report(fmt.Errorf("checkpoint: %w", err))
		}
	}
}

// Close closes the checkpointer's connection.
func (c *Checkpointer) Close() error { return c.db.Close() }

// WALBytes is the size of the write-ahead log of the register at path.
func WALBytes(path string) (int64, error) {
	info, err := os.Stat(path + "-wal")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Bound keeps the write-ahead log small; the writer calls it between batches.
// While a writer appends, a checkpoint beside it never reaches the end of the
// log; only from the writer itself it does, and the log starts over with the
// next write. It waits for a moment at which most of the work is done already:
// what is left holds up every message that arrives meanwhile.
func (r *Register) Bound() error {
	r.commits++
	if r.commits%8 != 0 {
		return nil
	}
	size, err := WALBytes(r.path)
	if err != nil || size < walWriter || size < 4*walWriter && size-r.moved.Load() > walPassive/2 {
		return err
	}
	var busy, frames, moved int64
	if err := r.QueryRow("PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &frames, &moved); err != nil {
		return judge("checkpointing", err)
	}
	return nil
}
