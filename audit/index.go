package audit

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
)

// The format of index.db: another one is deleted and built again.
const (
	indexApplication = 0x53424958 // "SBIX"
	indexVersion     = 3
)

// indexSchema are the tables of the index. A row of marks says up to which row
// of the register the others are complete; it is written with them.
var indexSchema = []string{
	fmt.Sprintf("PRAGMA application_id = %d", indexApplication),
	fmt.Sprintf("PRAGMA user_version = %d", indexVersion),
	`CREATE TABLE marks (
		id          INTEGER PRIMARY KEY CHECK (id = 1),
		register_id TEXT    NOT NULL,
		boot        TEXT    NOT NULL,           -- of the machine, when it was opened for writing
		clean       INTEGER NOT NULL,           -- 1: closed, and all of it is on the disk
		refs_mark   INTEGER NOT NULL DEFAULT 0, -- last row of the register in refs, blocks, spans and kinds
		leaf        INTEGER NOT NULL DEFAULT 0, -- first bytes of that row's leaf
		search_mark INTEGER NOT NULL DEFAULT 0  -- last row in words
	) STRICT`,
	// Values that few rows share.
	// run is id >> 16, so that inserts touch the newest rows' part of the table
	// alone, however large it grows; a look-up asks each run.
	`CREATE TABLE refs (run INTEGER, key INTEGER, id INTEGER, PRIMARY KEY (run, key, id)) STRICT, WITHOUT ROWID`,
	// Values that many rows share: once for 512 rows, block = id >> 9.
	`CREATE TABLE blocks (key INTEGER, block INTEGER, PRIMARY KEY (key, block)) STRICT, WITHOUT ROWID`,
	// Between which times the rows of a block are (ns), and when the last of them expires (ms).
	`CREATE TABLE spans (block INTEGER PRIMARY KEY, at_first INTEGER NOT NULL, at_last INTEGER NOT NULL,
		expires_last INTEGER NOT NULL) STRICT`,
	`CREATE TABLE kinds (kind TEXT PRIMARY KEY, n INTEGER NOT NULL) STRICT, WITHOUT ROWID`,
}

// IndexOptions of an index. The zero value is the default.
type IndexOptions struct {
	Search     bool  // full text of subjects and bodies too
	CacheBytes int64 // memory of the page cache. Default 32 MiB
	Logger     *slog.Logger
}

// Index is the one writer of index.db, a follower of the register that may be
// deleted whenever no bridge runs: it is built again. Offer belongs to the
// goroutine that folds the log, Run to another; Lag and Watermark to any.
type Index struct {
	path     string
	options  IndexOptions
	log      *slog.Logger
	register *sql.DB

	// The follower's own.
	db      *sql.DB
	conn    *sql.Conn
	insert  map[string][2]driver.StmtExecContext // of pairsAtOnce pairs, and of one
	args    []driver.NamedValue
	seen    map[int64]bool // keys that the current block has
	block   int64          // the current block
	taken   []ref          // the queue as it was last taken
	pending []ref          // what of it is not yet written
	pace    pace

	// Shared.
	refs, search, head atomic.Int64 // last row in refs, in words, of the register
	skipped            atomic.Int64
	wake               chan struct{}
	mu                 sync.Mutex // guards queue
	queue              []ref
}

// OpenIndex opens the index at path for the register at registerPath. One that
// is missing, damaged, of another register or format, or ahead of the register
// is made anew, empty. The caller MUST hold the lock of the data directory.
func OpenIndex(ctx context.Context, path, registerPath string, o IndexOptions) (*Index, error) {
	if o.CacheBytes == 0 {
		o.CacheBytes = 32 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	register, err := openReadOnly(ctx, registerPath, false)
	if err != nil {
		return nil, fmt.Errorf("index %s: register %s: %w", path, registerPath, err)
	}
	ix := &Index{path: path, options: o, log: o.Logger, register: register, wake: make(chan struct{}, 1)}
	if err := ix.refuseRegister(ctx); err != nil {
		return nil, errors.Join(err, register.Close())
	}
	if err := ix.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("index %s: %w", path, err), ix.closeFile(), register.Close())
	}
	return ix, nil
}

// refuseRegister keeps a slip in the configuration from deleting a register.
func (ix *Index) refuseRegister(ctx context.Context) error {
	if info, err := os.Stat(ix.path); err != nil || info.Size() == 0 {
		return nil
	}
	db, err := openReadOnly(ctx, ix.path, false)
	if err == nil || errors.Is(err, ErrNewer) {
		if db != nil {
			err = db.Close()
		}
		return errors.Join(fmt.Errorf("index %s: there is a register at this path", ix.path), err)
	}
	return nil
}

// open opens the file, made anew where it is of no use.
func (ix *Index) open(ctx context.Context) error {
	_, err := os.Stat(ix.path)
	if err == nil {
		if err = ix.openFile(ctx); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		ix.log.Warn("the index is built anew", "path", ix.path, "err", err)
	}
	if err := ix.remove(); err != nil {
		return err
	}
	return ix.openFile(ctx)
}

// remove deletes the file, first of all: what is left after a crash in between
// belongs to no file and is deleted before the next one is made.
func (ix *Index) remove() error {
	if err := ix.closeFile(); err != nil {
		ix.log.Debug("closing the old index", "err", err)
	}
	for _, end := range []string{"", "-wal", "-shm", "-journal"} {
		if err := os.Remove(ix.path + end); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (ix *Index) openFile(ctx context.Context) error {
	db, err := sql.Open("sqlite", dsn(ix.path, url.Values{"_pragma": {
		"busy_timeout(5000)", "journal_mode(wal)", "synchronous(full)", "wal_autocheckpoint(10000)",
		cachePragma(ix.options.CacheBytes), "temp_store(memory)", "trusted_schema(off)",
	}}))
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	ix.db = db
	if ix.conn, err = db.Conn(ctx); err != nil {
		return err
	}
	if err := ix.prepareFile(ctx); err != nil {
		return err
	}
	if err := os.Chmod(ix.path, 0o600); err != nil {
		return err
	}
	ix.seen, ix.block, ix.pending = map[int64]bool{}, -1, nil
	var last int64
	if err := ix.register.QueryRowContext(ctx, `SELECT coalesce(max(id), 0) FROM messages`).Scan(&last); err != nil {
		return err
	}
	ix.raise(last)
	return ix.prepareInserts(ctx)
}

func (ix *Index) prepareFile(ctx context.Context) error {
	var tables int
	if err := ix.conn.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema`).Scan(&tables); err != nil {
		return err
	}
	if tables == 0 {
		if err := ix.make(ctx); err != nil {
			return err
		}
	}
	m, err := checkIndex(ctx, ix.conn, ix.register)
	if err != nil {
		return err
	}
	ix.refs.Store(m.refs)
	ix.search.Store(m.search)
	if ix.options.Search {
		if _, err := ix.conn.ExecContext(ctx, strings.Replace(wordsTable, "TABLE", "TABLE IF NOT EXISTS", 1)); err != nil {
			return err
		}
	}
	// From here on the file is not safe against the machine going down, and
	// that it is not is on the disk before anything else is written.
	if _, err := ix.conn.ExecContext(ctx, `UPDATE marks SET clean = 0, boot = ?`, bootID()); err != nil {
		return err
	}
	_, err = ix.conn.ExecContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE); PRAGMA synchronous = OFF`)
	return err
}

// make fills an empty file.
func (ix *Index) make(ctx context.Context) error {
	var id string
	if err := ix.register.QueryRowContext(ctx, `SELECT register_id FROM bridge_state`).Scan(&id); err != nil {
		return err
	}
	if _, err := ix.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for _, s := range indexSchema {
		if _, err := ix.conn.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	if _, err := ix.conn.ExecContext(ctx, `INSERT INTO marks (id, register_id, boot, clean) VALUES (1, ?, ?, 0)`, id, bootID()); err != nil {
		return err
	}
	_, err := ix.conn.ExecContext(ctx, "COMMIT")
	return err
}

// marks are the one row of the table of that name.
type marks struct {
	registerID   string
	boot         string
	clean        bool
	refs, search int64
	leaf         int64
}

func (m *marks) read(ctx context.Context, conn *sql.Conn) error {
	return conn.QueryRowContext(ctx, `SELECT register_id, boot, clean, refs_mark, leaf, search_mark FROM marks`).
		Scan(&m.registerID, &m.boot, &m.clean, &m.refs, &m.leaf, &m.search)
}

// bootID names this run of the machine, "" where the system does not tell.
// What was written without fsync is whole as long as the machine stays up.
var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// raise says that the register has rows up to id.
func (ix *Index) raise(id int64) {
	for head := ix.head.Load(); id > head && !ix.head.CompareAndSwap(head, id); head = ix.head.Load() {
	}
}

// Lag is how many rows of the register are not yet in the index: in its
// look-ups, and in its full text (0 without it).
func (ix *Index) Lag() (refs, search int64) {
	head := ix.head.Load()
	refs = max(0, head-ix.refs.Load())
	if ix.options.Search {
		search = max(0, head-ix.search.Load())
	}
	return refs, search
}

// Watermark is the last row of the register in the look-ups and in the full
// text.
func (ix *Index) Watermark() (refs, search int64) { return ix.refs.Load(), ix.search.Load() }

// Skipped is how many offered rows did not fit into the queue; the follower
// reads them from the register instead.
func (ix *Index) Skipped() int64 { return ix.skipped.Load() }

// Close makes the index safe on the disk and closes it. Run MUST have ended.
func (ix *Index) Close() error {
	ctx := context.Background()
	var err error
	if ix.conn != nil {
		_, err = ix.conn.ExecContext(ctx, `PRAGMA synchronous = FULL; PRAGMA wal_checkpoint(TRUNCATE);
			UPDATE marks SET clean = 1; PRAGMA wal_checkpoint(TRUNCATE)`)
	}
	return errors.Join(err, ix.closeFile(), ix.register.Close())
}

func (ix *Index) closeFile() error {
	var errs []error
	for _, pair := range ix.insert {
		for _, s := range pair {
			if closer, ok := s.(driver.Stmt); ok {
				errs = append(errs, closer.Close())
			}
		}
	}
	ix.insert = nil
	if ix.conn != nil {
		errs = append(errs, ix.conn.Close())
		ix.conn = nil
	}
	if ix.db != nil {
		errs = append(errs, ix.db.Close())
		ix.db = nil
	}
	return errors.Join(errs...)
}
