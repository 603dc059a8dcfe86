package audit

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Options of a register. The zero value is the default.
type Options struct {
	// CacheBytes is the memory that the writer's page cache takes. Default 32 MiB.
	CacheBytes int64
	// OnStep, where set, is called around each durable step, for fault
	// injection: an error from Before keeps the step from happening, one from
	// After says that it failed although it happened.
	OnStep func(Step) error
}

// Step names a moment around a durable step of a batch.
type Step string

// The durable steps of a batch, in their order.
const (
	BeforeBegin  Step = "before begin"
	BeforeAppend Step = "before append"
	AfterAppend  Step = "after append"
	BeforeCursor Step = "before cursor"
	BeforeCommit Step = "before commit"
	AfterCommit  Step = "after commit"
)

const defaultCache = 32 << 20

// cachePragma is the cache_size of a cache that takes that many bytes: the
// driver's allocator rounds a page and its header up to the next power of two,
// so that each takes twice its size.
func cachePragma(bytes int64) string { return fmt.Sprintf("cache_size(-%d)", max(bytes>>11, 64)) }

// Register is the one writer of a register. Its methods belong to the one
// goroutine that folds the log.
type Register struct {
	path    string
	options Options
	db      *sql.DB
	conn    *sql.Conn
	file    os.FileInfo // the file that was opened, to notice when it is gone
	stmts   map[string]*sql.Stmt
	insert  [2]driver.StmtExecContext // of rowsAtOnce rows, and of one
	args    []driver.NamedValue
	state   State
	lastID  int64
	ahead   int64        // entries of the outbox above its watermark that came back
	loaded  bool         // state and lastID are those of the file
	commits int64        // since the start
	moved   atomic.Int64 // bytes of the write-ahead log that are in the file
}

// Open opens the register at path as its one writer, makes it where there is
// none, and applies the migrations that it lacks. The caller MUST hold the
// lock of the data directory. Errors: ErrNewer, ErrNotRegister, or the true
// cause from the operating system or SQLite.
func Open(ctx context.Context, path string, o Options) (*Register, error) {
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCache
	}
	if err := checkFile(ctx, path); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", dsn(path, url.Values{
		"_pragma": {
			"busy_timeout(5000)", "journal_mode(wal)", "synchronous(full)", "wal_autocheckpoint(0)", "journal_size_limit(0)",
			cachePragma(o.CacheBytes), "temp_store(memory)", "trusted_schema(off)",
		},
	}))
	if err != nil {
		return nil, fmt.Errorf("open register %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	r := &Register{path: path, options: o, db: db}
	if err := r.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open register %s: %w", path, err), db.Close())
	}
	return r, nil
}

func (r *Register) open(ctx context.Context) error {
	if err := migrate(ctx, r.db, migrations); err != nil {
		return err
	}
	// SQLite gives a new file the mode of the umask; the register is private.
	if err := os.Chmod(r.path, 0o600); err != nil {
		return err
	}
	var err error
	if r.file, err = os.Stat(r.path); err != nil {
		return err
	}
	if r.conn, err = r.db.Conn(ctx); err != nil {
		return err
	}
	if err := checkVersion(ctx, r.conn); err != nil {
		return err
	}
	r.stmts = map[string]*sql.Stmt{}
	if err := r.prepareInserts(); err != nil {
		return err
	}
	return r.load()
}

// minVersion is the oldest SQLite that a register may be written with: those
// before it can damage a write-ahead log that two connections checkpoint.
const minVersion = "3.51.3"

func checkVersion(ctx context.Context, conn *sql.Conn) error {
	var version string
	if err := conn.QueryRowContext(ctx, `SELECT sqlite_version()`).Scan(&version); err != nil {
		return err
	}
	if olderVersion(version, minVersion) {
		return fmt.Errorf("SQLite is %s, and must be %s or newer", version, minVersion)
	}
	return nil
}

// olderVersion compares versions of numbers with dots.
func olderVersion(a, b string) bool {
	var x, y [3]int
	_, _ = fmt.Sscanf(a, "%d.%d.%d", &x[0], &x[1], &x[2]) // what is missing counts as 0
	_, _ = fmt.Sscanf(b, "%d.%d.%d", &y[0], &y[1], &y[2])
	return slices.Compare(x[:], y[:]) < 0
}

// dsn is the data source name of a file; a path may hold any character.
func dsn(path string, query url.Values) string {
	u := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: query.Encode()}
	if abs, err := filepath.Abs(path); err == nil {
		u.Path = abs
	}
	return u.String()
}

// Close checkpoints the write-ahead log into the file and closes it.
func (r *Register) Close() error {
	var errs []error
	for _, s := range r.stmts {
		errs = append(errs, s.Close())
	}
	for _, s := range r.insert {
		if closer, ok := s.(driver.Stmt); ok {
			errs = append(errs, closer.Close())
		}
	}
	if r.conn != nil {
		_, err := r.conn.ExecContext(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)")
		errs = append(errs, err, r.conn.Close())
	}
	return errors.Join(append(errs, r.db.Close())...)
}

// Path is the register's file.
func (r *Register) Path() string { return r.path }

// present fails when the file that was opened is no longer at its path: what is
// written now would be gone with the process.
func (r *Register) present() error {
	now, err := os.Stat(r.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &fatalError{"its file was deleted while it was open", err}
	case err != nil:
		return &fatalError{"its file cannot be seen", err}
	case !os.SameFile(now, r.file):
		return &fatalError{"its file was replaced while it was open", os.ErrInvalid}
	}
	return nil
}

// State is the one row of the bridge's own that goes from message to message.
type State struct {
	RegisterID   string
	BusNS        int64  // bus time
	LogNS        int64  // time of the last message of the log
	RulesVersion string // of the rules that made the state tables
	Settings     string // of the last bridge.started, JSON
	OutboxLast   int64  // greatest outbox number given out
	OutboxSeen   int64  // every outbox entry up to it has come back
}

func (r *Register) load() error {
	s := &r.state
	err := r.QueryRow(`SELECT register_id, bus_ns, log_ns, rules_version, settings, outbox_last, outbox_seen FROM bridge_state`).
		Scan(&s.RegisterID, &s.BusNS, &s.LogNS, &s.RulesVersion, &s.Settings, &s.OutboxLast, &s.OutboxSeen)
	if err != nil {
		return judge("reading its state", err)
	}
	if err := r.QueryRow(`SELECT coalesce(max(id), 0) FROM messages`).Scan(&r.lastID); err != nil {
		return judge("reading its last row", err)
	}
	if err := r.QueryRow(`SELECT count(*) FROM outbox WHERE seen = 1 AND n > ?`, s.OutboxSeen).Scan(&r.ahead); err != nil {
		return judge("reading its outbox", err)
	}
	r.loaded = true
	return nil
}

// State is what the last committed batch left.
func (r *Register) State() State { return r.state }

// LastID is the id of the newest committed row, 0 for none.
func (r *Register) LastID() int64 { return r.lastID }

// stmt is the cached statement of a constant text.
func (r *Register) stmt(query string) (*sql.Stmt, error) {
	if s, ok := r.stmts[query]; ok {
		return s, nil
	}
	// No context: one that can end would cost a goroutine a statement.
	s, err := r.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	r.stmts[query] = s
	return s, nil
}

// Exec implements step.DB on the writer's connection.
func (r *Register) Exec(query string, args ...any) (sql.Result, error) {
	s, err := r.stmt(query)
	if err != nil {
		return nil, err
	}
	res, err := s.Exec(args...)
	return res, judge("writing", err)
}

// Query implements step.DB on the writer's connection.
func (r *Register) Query(query string, args ...any) (*sql.Rows, error) {
	s, err := r.stmt(query)
	if err != nil {
		return nil, err
	}
	rows, err := s.Query(args...)
	return rows, judge("reading", err)
}

// QueryRow implements step.DB on the writer's connection.
func (r *Register) QueryRow(query string, args ...any) *sql.Row {
	s, err := r.stmt(query)
	if err != nil {
		// The row carries the error of preparing the same text once more.
		return r.conn.QueryRowContext(context.Background(), query, args...)
	}
	return s.QueryRow(args...)
}
