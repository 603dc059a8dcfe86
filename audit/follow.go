package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	lib "modernc.org/sqlite/lib"

	"signalbox/wire"
)

// Bounds of the follower.
const (
	queueRows   = 1 << 17   // rows offered and not yet taken
	batchRows   = 32_768    // rows of one transaction
	eagerRows   = batchRows // so many do not wait for linger
	linger      = 500 * time.Millisecond
	pairsAtOnce = 64 // pairs of one INSERT
	wordRows    = 500
	wordBytes   = 1 << 20
)

// Offer hands the rows of a commit, in the order of their ids, to the
// follower. It never blocks and copies what it needs. Rows that do not fit, or
// do not follow those in the queue, are left to be read from the register.
func (ix *Index) Offer(rows []*Row) {
	if len(rows) == 0 {
		return
	}
	ix.mu.Lock()
	n := len(ix.queue)
	if n+len(rows) > queueRows || n > 0 && ix.queue[n-1].id+1 != rows[0].ID {
		ix.skipped.Add(int64(len(rows)))
	} else {
		for _, r := range rows {
			ix.queue = append(ix.queue, refOf(r))
		}
	}
	ix.mu.Unlock()
	ix.raise(rows[len(rows)-1].ID)
	select {
	case ix.wake <- struct{}{}:
	default:
	}
}

// Run follows the register until ctx ends, which is its only way to return;
// the error is then nil. A failure is logged and tried again, with a damaged
// index built anew.
func (ix *Index) Run(ctx context.Context) error {
	wait := backoff.NewExponentialBackOff(backoff.WithMaxElapsedTime(0), backoff.WithMaxInterval(30*time.Second))
	for ctx.Err() == nil {
		before := ix.refs.Load() + ix.search.Load()
		err := ix.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		if ix.refs.Load()+ix.search.Load() > before {
			wait.Reset()
		}
		ix.log.Warn("the index fell behind", "path", ix.path, "err", err)
		if damaged(err) {
			if err := ix.rebuild(ctx); err != nil {
				ix.log.Warn("the index cannot be built anew", "path", ix.path, "err", err)
			}
		} else if err := ix.reload(ctx); err != nil {
			ix.log.Warn("the index cannot be read", "path", ix.path, "err", err)
		}
		pause(ctx, wait.NextBackOff())
	}
	return nil
}

// sourceError is a failure of the register, for which the index cannot help.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "read the register: " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// damaged reports whether the index must be built anew.
func damaged(err error) bool {
	var source *sourceError
	if errors.As(err, &source) {
		return false
	}
	switch primary(err) {
	case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB, lib.SQLITE_ERROR:
		return true
	}
	return errors.Is(err, errIndex) || errors.Is(err, errNoFile)
}

// errNoFile means that an attempt to build the index anew has failed.
var errNoFile = errors.New("the index has no file")

// reload takes the marks from the file: a commit that failed may have happened
// all the same, and its rows must not be counted twice.
func (ix *Index) reload(ctx context.Context) error {
	if ix.conn == nil {
		return errNoFile
	}
	var m marks
	if err := m.read(ctx, ix.conn); err != nil {
		return err
	}
	ix.refs.Store(m.refs)
	ix.search.Store(m.search)
	return nil
}

func (ix *Index) rebuild(ctx context.Context) error {
	if err := ix.remove(); err != nil {
		return err
	}
	ix.refs.Store(0)
	ix.search.Store(0)
	return ix.openFile(ctx)
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// follow works off what there is and waits for more. Look-ups come first; full
// text takes its turn when they are done, and only as much of the machine as
// the loop leaves.
func (ix *Index) follow(ctx context.Context) error {
	for {
		worked, err := ix.refsStep(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		var rest time.Duration
		if !worked && ix.options.Search && ix.search.Load() < ix.refs.Load() {
			if ix.pace.busy(ix.head.Load()) {
				rest = linger
			} else {
				began := time.Now()
				if err := ix.searchStep(ctx); err != nil {
					return err
				}
				if worked = true; ix.pace.moving {
					rest, worked = time.Since(began), false
				}
			}
		}
		switch {
		case worked:
			continue
		case rest > 0:
			pause(ctx, rest)
		default:
			select {
			case <-ctx.Done():
				return nil
			case <-ix.wake:
			}
			ix.gather(ctx)
		}
	}
}

// gather waits a moment for more rows: larger batches cost less a row.
func (ix *Index) gather(ctx context.Context) {
	until := time.NewTimer(linger)
	defer until.Stop()
	for {
		ix.mu.Lock()
		n := len(ix.queue)
		ix.mu.Unlock()
		if n >= eagerRows {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-until.C:
			return
		case <-ix.wake:
		}
	}
}

// pace notices how fast the register grows.
type pace struct {
	at     time.Time
	head   int64
	fast   bool // full text would take what the loop needs
	moving bool // rows come
}

// fastRows is from how many rows a second on full text waits.
const fastRows = 4_000

func (p *pace) busy(head int64) bool {
	if passed := time.Since(p.at); passed >= linger {
		rows := float64(head - p.head)
		p.fast = !p.at.IsZero() && rows/passed.Seconds() > fastRows
		p.moving = rows > 0
		p.at, p.head = time.Now(), head
	}
	return p.fast
}

// CatchUp brings the index to the register's last row. It MUST NOT be called
// while Run runs.
func (ix *Index) CatchUp(ctx context.Context) error {
	var last int64
	if err := ix.register.QueryRowContext(ctx, `SELECT coalesce(max(id), 0) FROM messages`).Scan(&last); err != nil {
		return fmt.Errorf("index %s: %w", ix.path, err)
	}
	ix.raise(last)
	for {
		worked, err := ix.refsStep(ctx)
		if err == nil && !worked {
			if !ix.options.Search || ix.search.Load() >= ix.refs.Load() {
				return nil
			}
			err = ix.searchStep(ctx)
		}
		if err != nil {
			return fmt.Errorf("index %s: %w", ix.path, err)
		}
	}
}

// refsStep writes one batch of look-ups and says whether there was any.
func (ix *Index) refsStep(ctx context.Context) (bool, error) {
	if ix.conn == nil {
		return false, errNoFile
	}
	mark := ix.refs.Load()
	if len(ix.pending) == 0 {
		ix.mu.Lock()
		ix.queue, ix.taken = ix.taken[:0], ix.queue
		ix.mu.Unlock()
		ix.pending = ix.taken
	}
	for len(ix.pending) > 0 && ix.pending[0].id <= mark {
		ix.pending = ix.pending[1:]
	}
	target := min(ix.head.Load(), mark+batchRows)
	if len(ix.pending) > 0 {
		if ix.pending[0].id == mark+1 {
			n := min(len(ix.pending), batchRows)
			if err := ix.write(ctx, ix.pending[:n]); err != nil {
				ix.pending = nil
				return false, err
			}
			ix.pending = ix.pending[n:]
			return true, nil
		}
		target = min(target, ix.pending[0].id-1)
	}
	if mark >= target {
		return false, nil
	}
	batch, err := collect(ctx, ix.register, "read rows to index", scanRef, `SELECT id, at, kind, subject, message_id, "from", "to", topic,
		expires_at_ms, correlation_id, trace_id, leaf, CASE WHEN "from" = 'signalbox' THEN json_extract(headers, '$."Bus-Cause"[0]') END
		FROM messages WHERE id > ? AND id <= ? ORDER BY id`, mark, target)
	if err != nil {
		return false, &sourceError{err}
	}
	if int64(len(batch)) != target-mark {
		return false, fmt.Errorf("%w: rows %d to %d are not all there", errIndex, mark+1, target)
	}
	return true, ix.write(ctx, batch)
}

func scanRef(scan func(...any) error) (ref, error) {
	var (
		r               Row
		kind            string
		from, to, topic sql.NullString
		cause           sql.NullString
		expires         sql.NullInt64
		leaf            sql.RawBytes
	)
	err := scan(&r.ID, &r.AtNS, &kind, &r.Subject, &r.MessageID, &from, &to, &topic, &expires, &r.CorrelationID, &r.TraceID, &leaf, &cause)
	r.Header = wire.Header{wire.HeaderCause: {cause.String}}
	r.Kind, r.From, r.To, r.Topic, r.ExpiresAtMS = wire.Kind(kind), from.String, to.String, topic.String, expires.Int64
	copy(r.Leaf[:], leaf)
	return refOf(&r), err
}
