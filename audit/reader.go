package audit

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	lib "modernc.org/sqlite/lib"

	"signalbox/wire"
)

// ReaderOptions of a reader. The zero value is the default.
type ReaderOptions struct {
	// IndexPath is the index that makes look-ups fast. Default "index.db"
	// beside the register. One that is missing, damaged or of another register
	// makes answers slower, never different.
	IndexPath string
	// Root is the first token of the bus's subjects. Default "bus".
	Root wire.Root
}

// readerConns is how many reads run at the same time; more wait.
const readerConns = 6

// Reader reads a register, in this or another process, whether the bridge
// runs, has stopped or has crashed. It never writes, makes or migrates
// anything. Its methods may be called from any goroutine.
type Reader struct {
	path  string
	root  wire.Root
	db    *sql.DB
	index *indexFile
}

// OpenReader opens the register at path for reading. Errors: ErrNoRegister
// where there is none, ErrNotRegister, ErrNewer, or the true cause from the
// operating system or SQLite.
func OpenReader(ctx context.Context, path string, o ReaderOptions) (*Reader, error) {
	if o.IndexPath == "" {
		o.IndexPath = filepath.Join(filepath.Dir(path), "index.db")
	}
	if o.Root == "" {
		o.Root = "bus"
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w at %s", ErrNoRegister, path)
	case err != nil:
		return nil, fmt.Errorf("register %s: %w", path, err)
	case info.IsDir():
		return nil, fmt.Errorf("register %s: %w: it is a directory", path, ErrNotRegister)
	}
	r := &Reader{path: path, root: o.Root, index: &indexFile{path: o.IndexPath}}
	r.db, err = openReadOnly(ctx, path, false)
	if err != nil && quietWAL(path) {
		// A directory that this process may not write to has no room for the
		// shared memory of a write-ahead log. There is no such log, so the
		// file alone is the whole register.
		if db, again := openReadOnly(ctx, path, true); again == nil {
			r.db, err = db, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("register %s: %w", path, err)
	}
	return r, nil
}

// SchemaVersion is the version of the register's schema; it may be older than
// what this program knows.
func (r *Reader) SchemaVersion(ctx context.Context) (int64, error) { return fileVersion(ctx, r.db) }

func openReadOnly(ctx context.Context, path string, immutable bool) (*sql.DB, error) {
	query := url.Values{
		"mode": {"ro"},
		"_pragma": {"busy_timeout(5000)", "query_only(true)", "cache_size(-4096)", "temp_store(memory)",
			"trusted_schema(off)"},
	}
	if immutable {
		query.Set("immutable", "1")
	}
	db, err := sql.Open("sqlite", dsn(path, query))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(readerConns)
	db.SetMaxIdleConns(readerConns)
	version, err := fileVersion(ctx, db)
	switch {
	case err == nil && version == 0:
		err = ErrNoRegister // an empty file, made and not yet filled
	case primary(err) == lib.SQLITE_NOTADB:
		err = fmt.Errorf("%w: %w", ErrNotRegister, err)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// quietWAL reports whether the register's write-ahead log is absent or empty.
func quietWAL(path string) bool {
	size, err := WALBytes(path)
	return err == nil && size == 0
}

// Close closes the reader. Reads that run are waited for.
func (r *Reader) Close() error { return errors.Join(r.db.Close(), r.index.close()) }

// Path is the register's file.
func (r *Reader) Path() string { return r.path }

// LastID is the id of the newest committed row, 0 for none.
func (r *Reader) LastID(ctx context.Context) (int64, error) {
	var id int64
	if err := r.db.QueryRowContext(ctx, `SELECT coalesce(max(id), 0) FROM messages`).Scan(&id); err != nil {
		return 0, fmt.Errorf("read the last row: %w", err)
	}
	return id, nil
}

// State is what the last committed batch left.
func (r *Reader) State(ctx context.Context) (State, error) {
	var s State
	err := r.db.QueryRowContext(ctx,
		`SELECT register_id, bus_ns, log_ns, rules_version, settings, outbox_last, outbox_seen FROM bridge_state`).
		Scan(&s.RegisterID, &s.BusNS, &s.LogNS, &s.RulesVersion, &s.Settings, &s.OutboxLast, &s.OutboxSeen)
	if err != nil {
		return State{}, fmt.Errorf("read the register's state: %w", err)
	}
	return s, nil
}

// Cursors reads how far each log has been read, by stream.
func (r *Reader) Cursors(ctx context.Context) (map[string]Cursor, error) {
	list, err := collect(ctx, r.db, "read cursors", func(scan func(...any) error) (c Cursor, err error) {
		err = scan(&c.Stream, &c.Incarnation, &c.StreamID, &c.FirstSeq, &c.Seq)
		return c, err
	}, `SELECT c.stream, c.incarnation, i.stream_id, i.first_seq, c.seq
		FROM cursors c JOIN incarnations i ON i.id = c.incarnation`)
	cursors := make(map[string]Cursor, len(list))
	for _, c := range list {
		cursors[c.Stream] = c
	}
	return cursors, err
}

// Gaps are the gaps that stand just before the rows fromID to toID, oldest
// first.
func (r *Reader) Gaps(ctx context.Context, fromID, toID int64) ([]Gap, error) {
	return collect(ctx, r.db, "read gaps", func(scan func(...any) error) (g Gap, err error) {
		var to sql.NullInt64
		err = scan(&g.ID, &g.Stream, &g.Incarnation, &g.From, &to, &g.Reason, &g.Cause, &g.AtMS)
		g.To = uint64(to.Int64)
		return g, err
	}, `SELECT id, stream, incarnation, from_seq, to_seq, reason, cause, at_ms FROM gaps
		WHERE cause BETWEEN ? AND ? ORDER BY id`, fromID, toID)
}

// Refusal is why a row was refused.
type Refusal struct {
	ID    int64      `json:"id"` // the register row
	Code  wire.Code  `json:"code"`
	Error wire.Error `json:"error"`
}

// Refusal is the refusal of a row; ErrNotFound where it was not refused.
func (r *Reader) Refusal(ctx context.Context, id int64) (Refusal, error) {
	refusal := Refusal{ID: id}
	var text string
	err := r.db.QueryRowContext(ctx, `SELECT code, error FROM refusals WHERE id = ?`, id).Scan(&refusal.Code, &text)
	if err != nil {
		return Refusal{}, notFound(err, "refusal of row %d", id)
	}
	if err := json.Unmarshal([]byte(text), &refusal.Error); err != nil {
		return Refusal{}, fmt.Errorf("refusal of row %d: %w", id, err)
	}
	return refusal, nil
}

// DeadLetters are the newest dead letters, newest first; of one recipient, or
// of all where it is "". limit is 1 to 1000, 0 for 100.
func (r *Reader) DeadLetters(ctx context.Context, recipient string, limit int) ([]DeadLetter, error) {
	return collect(ctx, r.db, "read dead letters", func(scan func(...any) error) (d DeadLetter, err error) {
		err = scan(&d.Recipient, &d.ID, &d.MessageID, &d.Reason, &d.FailedAtMS, &d.LastError, &d.Cause)
		return d, err
	}, `SELECT recipient, id, (SELECT m.message_id FROM messages m WHERE m.id = d.id), reason, failed_at_ms, last_error, cause
		FROM dead_letters d
		WHERE ?1 = '' OR recipient = ?1 ORDER BY failed_at_ms DESC, id DESC, recipient LIMIT ?2`,
		recipient, clampLimit(limit))
}

const transitionColumns = `SELECT id, machine, key, from_state, to_state, reason, cause, at_ms FROM transitions `

// TransitionsOf are the transitions of one thing of a machine with an id above
// after, oldest first. limit is 1 to 1000, 0 for 100.
func (r *Reader) TransitionsOf(ctx context.Context, machine, key string, after int64, limit int) ([]Transition, error) {
	return collect(ctx, r.db, "read transitions", scanTransition,
		transitionColumns+`WHERE machine = ? AND key = ? AND id > ? ORDER BY id LIMIT ?`, machine, key, after, clampLimit(limit))
}

// TransitionsBy are the transitions that a row caused, in their order.
func (r *Reader) TransitionsBy(ctx context.Context, cause int64) ([]Transition, error) {
	return collect(ctx, r.db, "read transitions", scanTransition, transitionColumns+`WHERE cause = ? ORDER BY id`, cause)
}

func scanTransition(scan func(...any) error) (t Transition, err error) {
	err = scan(&t.ID, &t.Machine, &t.Key, &t.From, &t.To, &t.Reason, &t.Cause, &t.AtMS)
	return t, err
}

// collect reads all rows of a query; none give an empty slice.
func collect[T any](ctx context.Context, db interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}, what string, read func(scan func(...any) error) (T, error), query string, args ...any) ([]T, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer rows.Close()
	list := []T{}
	for rows.Next() {
		v, err := read(rows.Scan)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		list = append(list, v)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return list, nil
}
