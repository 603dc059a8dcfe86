package audit

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	lib "modernc.org/sqlite/lib"
)

// rowsAtOnce is how many rows one INSERT takes; more gain nothing.
const rowsAtOnce = 8

// placeEvery is how many sequence numbers share one entry of places.
const placeEvery = 256

const rowColumns = `id, incarnation, seq, at, kind, subject, message_id, type, "from", "to", identity, topic,
	priority, expires_at_ms, correlation_id, trace_id, headers, headers_raw, body, body_raw, leaf`

const rowWidth = 21

// Batch is one transaction of the writer: rows, with everything they caused,
// and the cursors that cover them.
type Batch struct {
	r       *Register
	State   State // written with the batch
	lastID  int64
	waiting []*Row     // appended, not yet inserted
	queued  []Outgoing // by Queue
	ahead   int64      // entries of the outbox above its watermark that came back
	marked  mark       // at the savepoint
	scratch []byte
}

// mark is what a rollback to the savepoint gives back.
type mark struct {
	state  State
	queued int
	ahead  int64
}

// Begin starts the one transaction that the writer may have open.
func (r *Register) Begin() (*Batch, error) {
	if err := r.on(BeforeBegin); err != nil {
		return nil, err
	}
	if _, err := r.Exec("BEGIN IMMEDIATE"); err != nil {
		return nil, judge("beginning a transaction", err)
	}
	if !r.loaded {
		if err := r.load(); err != nil {
			_, undo := r.Exec("ROLLBACK")
			return nil, errors.Join(err, undo)
		}
	}
	return &Batch{r: r, State: r.state, lastID: r.lastID, ahead: r.ahead, waiting: make([]*Row, 0, rowsAtOnce)}, nil
}

func (r *Register) on(s Step) error {
	if r.options.OnStep == nil {
		return nil
	}
	return r.options.OnStep(s)
}

// NextID is the id that the next row will have.
func (b *Batch) NextID() int64 { return b.lastID + 1 }

// Append gives the row its id and adds it. The row MUST NOT change until the
// batch has ended.
func (b *Batch) Append(row *Row) error {
	b.lastID++
	row.ID = b.lastID
	b.waiting = append(b.waiting, row)
	if len(b.waiting) == rowsAtOnce {
		if err := b.Flush(); err != nil {
			return err
		}
	}
	if row.Seq%placeEvery == 0 {
		return b.place(row)
	}
	return nil
}

func (b *Batch) place(row *Row) error {
	_, err := b.r.Exec(`INSERT INTO places (incarnation, seq, id) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`,
		row.Incarnation, int64(row.Seq), row.ID)
	return err
}

// Flush inserts the appended rows, so that a machine can read them and a
// savepoint does not take them back.
func (b *Batch) Flush() error {
	if len(b.waiting) == 0 {
		return nil
	}
	if err := b.r.on(BeforeAppend); err != nil {
		return err
	}
	err := b.r.conn.Raw(func(any) error {
		if len(b.waiting) == rowsAtOnce {
			return b.insert(b.r.insert[0], b.waiting)
		}
		for i := range b.waiting {
			if err := b.insert(b.r.insert[1], b.waiting[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return judge("appending rows", err)
	}
	b.waiting = b.waiting[:0]
	return b.r.on(AfterAppend)
}

func (b *Batch) insert(stmt driver.StmtExecContext, rows []*Row) error {
	args := b.r.args[:len(rows)*rowWidth]
	for i, row := range rows {
		b.bind(args[i*rowWidth:], row)
	}
	_, err := stmt.ExecContext(context.Background(), args)
	return err
}

func (b *Batch) bind(a []driver.NamedValue, r *Row) {
	text, raw := encodeHeader(r.Header, b.scratch)
	b.scratch = text
	var expires, body, bodyRaw, headersRaw any
	if r.ExpiresAtMS != 0 {
		expires = r.ExpiresAtMS
	}
	if raw != nil {
		headersRaw = raw
	}
	if asText(r.Body) {
		body = string(r.Body)
	} else {
		bodyRaw = r.Body
	}
	for i, v := range [rowWidth]any{
		r.ID, r.Incarnation, int64(r.Seq), r.AtNS, string(r.Kind), r.Subject, r.MessageID, string(r.Type),
		textOrNull(r.From), textOrNull(r.To), r.Identity(), textOrNull(r.Topic), int64(r.Priority), expires,
		r.CorrelationID, r.TraceID, string(text), headersRaw, body, bodyRaw, r.Leaf[:],
	} {
		a[i].Value = v
	}
}

func textOrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// prepareInserts prepares the INSERTs of the hot path at the driver's level:
// database/sql would copy and check every argument again.
func (r *Register) prepareInserts() error {
	r.args = make([]driver.NamedValue, rowsAtOnce*rowWidth)
	for i := range r.args {
		r.args[i].Ordinal = i + 1
	}
	one := "(" + strings.Repeat("?, ", rowWidth-1) + "?)"
	return r.conn.Raw(func(dc any) error {
		for i, n := range []int{rowsAtOnce, 1} {
			query := "INSERT INTO messages (" + rowColumns + ") VALUES " + strings.Repeat(one+", ", n-1) + one
			s, err := dc.(driver.ConnPrepareContext).PrepareContext(context.Background(), query)
			if err != nil {
				return err
			}
			r.insert[i] = s.(driver.StmtExecContext)
		}
		return nil
	})
}

// Savepoint marks where RollbackTo goes back to.
func (b *Batch) Savepoint() error {
	if err := b.Flush(); err != nil {
		return err
	}
	b.marked = mark{b.State, len(b.queued), b.ahead}
	_, err := b.r.Exec("SAVEPOINT step")
	return err
}

// Release keeps what was done since the savepoint.
func (b *Batch) Release() error {
	_, err := b.r.Exec("RELEASE step")
	return err
}

// RollbackTo undoes everything since the savepoint.
func (b *Batch) RollbackTo() error {
	b.State, b.queued, b.ahead = b.marked.state, b.queued[:b.marked.queued], b.marked.ahead
	if _, err := b.r.Exec("ROLLBACK TO step"); err != nil {
		return err
	}
	return b.Release()
}

// Commit makes the batch durable (fsync). Where the error is Retryable nothing
// was kept and the same batch may be tried again; ErrFatal MUST stop the loop.
func (b *Batch) Commit() error {
	if err := b.Flush(); err != nil {
		return err
	}
	if err := b.r.on(BeforeCursor); err != nil {
		return err
	}
	s := b.State
	if _, err := b.r.Exec(`UPDATE bridge_state SET bus_ns = ?, log_ns = ?, rules_version = ?, settings = ?,
		outbox_last = ?, outbox_seen = ?`, s.BusNS, s.LogNS, s.RulesVersion, s.Settings, s.OutboxLast, s.OutboxSeen); err != nil {
		return judge("writing its state", err)
	}
	if err := b.r.on(BeforeCommit); err != nil {
		return err
	}
	if _, err := b.r.Exec("COMMIT"); err != nil {
		switch primary(err) {
		case lib.SQLITE_FULL, lib.SQLITE_BUSY, lib.SQLITE_NOMEM, lib.SQLITE_READONLY, lib.SQLITE_CANTOPEN:
			return err
		}
		// After a failed write or fsync of the commit itself nobody knows what
		// the disk holds; only a new start, which reads it, may tell.
		return &fatalError{"it is unknown whether a commit happened", err}
	}
	if err := b.r.on(AfterCommit); err != nil {
		return &fatalError{"it is unknown whether a commit happened", err}
	}
	if err := b.r.present(); err != nil {
		return err
	}
	b.r.state, b.r.lastID, b.r.ahead = b.State, b.lastID, b.ahead
	return nil
}

// Rollback undoes the batch and forgets what was cached of the file; the next
// Begin reads it again.
func (b *Batch) Rollback() error {
	b.r.loaded = false
	b.waiting = nil
	// SQLITE_ERROR says that no transaction is active: SQLite has rolled back
	// by itself, as it does when the disk is full.
	if _, err := b.r.Exec("ROLLBACK"); err != nil && primary(err) != lib.SQLITE_ERROR {
		return judge("rolling back", fmt.Errorf("roll back: %w", err))
	}
	return nil
}

// Register returns the writer, as the step.DB of this transaction.
func (b *Batch) Register() *Register { return b.r }
