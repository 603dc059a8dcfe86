package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"sync"
)

// indexFile is the readers' side of index.db: connections that are kept for
// as long as the same file is at the path.
type indexFile struct {
	path   string
	mu     sync.Mutex // guards idle and closed
	idle   []*indexConn
	closed bool
}

type indexConn struct {
	db   *sql.DB
	conn *sql.Conn
	info os.FileInfo
}

func (c *indexConn) close() error { return errors.Join(c.conn.Close(), c.db.Close()) }

func (f *indexFile) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	var errs []error
	for _, c := range f.idle {
		errs = append(errs, c.close())
	}
	f.idle = nil
	return errors.Join(errs...)
}

// indexView is one snapshot of the index. The zero view is an empty index.
type indexView struct {
	conn   *sql.Conn
	refs   int64 // rows up to it are in refs, blocks, spans and kinds
	search int64 // rows up to it are in words; never above refs
}

// view begins a snapshot of the index for a reader whose last row is last.
// Whatever is wrong with the index gives an empty view. release MUST be called.
func (f *indexFile) view(ctx context.Context, register *sql.DB, last int64) (v indexView, release func()) {
	c, err := f.take(ctx, register)
	if err != nil {
		return indexView{}, func() {}
	}
	v.conn = c.conn
	if _, err = c.conn.ExecContext(ctx, "BEGIN"); err == nil {
		err = c.conn.QueryRowContext(ctx, `SELECT refs_mark, min(search_mark, refs_mark) FROM marks`).Scan(&v.refs, &v.search)
	}
	if err != nil {
		_ = c.close() // an index that cannot be read is no index
		return indexView{}, func() {}
	}
	v.refs, v.search = min(v.refs, last), min(v.search, last)
	return v, func() {
		_, err := c.conn.ExecContext(context.Background(), "ROLLBACK")
		f.give(c, err)
	}
}

func (f *indexFile) take(ctx context.Context, register *sql.DB) (*indexConn, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.idle) > 0 {
		c := f.idle[len(f.idle)-1]
		f.idle = f.idle[:len(f.idle)-1]
		if os.SameFile(info, c.info) {
			return c, nil
		}
		_ = c.close() // of an index that was deleted
	}
	if f.closed {
		return nil, fs.ErrClosed
	}
	return openIndexConn(ctx, f.path, info, register)
}

func (f *indexFile) give(c *indexConn, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && !f.closed && len(f.idle) < readerConns {
		f.idle = append(f.idle, c)
		return
	}
	_ = c.close() // read-only: nothing can be lost
}

func openIndexConn(ctx context.Context, path string, info os.FileInfo, register *sql.DB) (*indexConn, error) {
	db, err := sql.Open("sqlite", dsn(path, url.Values{"mode": {"ro"}, "_pragma": {
		"busy_timeout(1000)", "query_only(true)", "cache_size(-4096)", "trusted_schema(off)"}}))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	c := &indexConn{db, conn, info}
	_, err = checkIndex(ctx, conn, register)
	if err == nil {
		// Its log was opened by name at the first read; the file and the log
		// belong together only if the file is still the one that was opened.
		var now os.FileInfo
		if now, err = os.Stat(path); err == nil && !os.SameFile(now, info) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// errIndex means that an index is not one of this register that can be used.
var errIndex = errors.New("not a usable index of this register")

// checkIndex tells whether an open index belongs to the register and says
// what the register says. register may be a pool or one connection.
func checkIndex(ctx context.Context, index *sql.Conn, register interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}) (marks, error) {
	var m marks
	var application, version int64
	if err := index.QueryRowContext(ctx, "PRAGMA application_id").Scan(&application); err != nil {
		return m, err
	}
	if err := index.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return m, err
	}
	if application != indexApplication || version != indexVersion {
		return m, fmt.Errorf("%w: another format", errIndex)
	}
	if err := m.read(ctx, index); err != nil {
		return m, err
	}
	var id string
	if err := register.QueryRowContext(ctx, `SELECT register_id FROM bridge_state`).Scan(&id); err != nil {
		return m, err
	}
	switch {
	case id != m.registerID:
		return m, fmt.Errorf("%w: of register %s", errIndex, m.registerID)
	case !m.clean && (m.boot == "" || m.boot != bootID()):
		return m, fmt.Errorf("%w: the machine went down while it was written", errIndex)
	}
	if m.refs > 0 {
		var leaf []byte
		err := register.QueryRowContext(ctx, `SELECT leaf FROM messages WHERE id = ?`, m.refs).Scan(&leaf)
		if errors.Is(err, sql.ErrNoRows) || err == nil && leafMark(leaf) != m.leaf {
			return m, fmt.Errorf("%w: row %d is not the one it knows", errIndex, m.refs)
		}
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// Indexed is the last row in the look-ups and in the full text of the index as
// this reader sees it; 0 where there is none that it can use.
func (r *Reader) Indexed(ctx context.Context) (refs, search int64) {
	v, release := r.index.view(ctx, r.db, maxTime)
	defer release()
	return v.refs, v.search
}
