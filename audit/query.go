package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrNotFound means that the register has no such row.
var ErrNotFound = errors.New("not found")

func notFound(err error, format string, args ...any) error {
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// Page are the rows of one read, oldest first.
type Page struct {
	Rows []*Row `json:"rows"`
	// NextAfter is the After with which the next page goes on: no row is
	// skipped or comes twice, whatever is added meanwhile.
	NextAfter int64 `json:"next_after"`
	// Gaps are the gaps between the rows, each just before the row that is its
	// cause, whether the filter selects that row or not.
	Gaps []Gap `json:"gaps"`
	// More says that the page ended before all rows were looked at: with After,
	// rows behind NextAfter; without, rows older than the page's first.
	More bool `json:"more"`
}

// Row is the row with an id; ErrNotFound where there is none.
func (r *Reader) Row(ctx context.Context, id int64) (*Row, error) {
	row, err := scanRow(r.db.QueryRowContext(ctx, `SELECT `+rowColumns+` FROM messages WHERE id = ?`, id).Scan)
	if err != nil {
		return nil, notFound(err, "row %d", id)
	}
	return row, nil
}

// RowAtPlace is the row of a message's place in its log; ErrNotFound where
// there is none.
func (r *Reader) RowAtPlace(ctx context.Context, incarnation int64, seq uint64) (*Row, error) {
	row, err := rowAt(func(query string, args ...any) *sql.Row {
		return r.db.QueryRowContext(ctx, query, args...)
	}, incarnation, seq)
	if err == nil && row.Seq != seq {
		err = ErrNotFound
	}
	if err != nil {
		return nil, notFound(err, "row at %d:%d", incarnation, seq)
	}
	return row, nil
}

// ByMessageID are the rows with a message id, oldest first. A sender may have
// used an id more than once; no row gives an empty slice.
func (r *Reader) ByMessageID(ctx context.Context, id string) ([]*Row, error) {
	return r.all(ctx, Filter{MessageID: id}, id)
}

// Trace are all rows whose trace id, correlation id or message id is the given
// one, oldest first. The result is as long as the chain; Log with Filter.Chain
// gives it in pages.
func (r *Reader) Trace(ctx context.Context, id string) ([]*Row, error) {
	return r.all(ctx, Filter{Chain: id}, id)
}

func (r *Reader) all(ctx context.Context, f Filter, id string) ([]*Row, error) {
	rows := []*Row{}
	if id == "" {
		return rows, nil
	}
	f.Limit, f.After = MaxLimit, new(int64)
	for {
		page, err := r.Log(ctx, f)
		if err != nil {
			return nil, err
		}
		rows = append(rows, page.Rows...)
		if !page.More {
			return rows, nil
		}
		*f.After = page.NextAfter
	}
}

// Log reads one page of the rows that a filter selects. A page ends early,
// with More set, when its bodies pass 32 MiB. Errors: ErrFilter, that of the
// context, or the true cause from SQLite.
func (r *Reader) Log(ctx context.Context, f Filter) (Page, error) {
	s, err := f.selection(r.root)
	if err != nil {
		return Page{}, err
	}
	last, err := r.LastID(ctx)
	if err != nil {
		return Page{}, err
	}
	// Rows never change and ids have no holes, so everything up to last is one
	// consistent view without a transaction.
	w := walk{r: r, s: s, lo: 1, hi: last, newest: f.After == nil}
	if f.After != nil {
		w.lo = max(*f.After, 0) + 1
		if f.Within > 0 {
			w.hi = min(last, w.lo-1+f.Within)
		}
	} else if f.Within > 0 {
		w.lo = max(1, last-f.Within+1)
	}
	g := gathering{limit: clampLimit(f.Limit), rows: []*Row{}}
	if s.text != "" {
		if g.matcher, err = newMatcher(ctx, s.text); err != nil {
			return Page{}, err
		}
		defer g.matcher.close()
	}
	if err := w.run(ctx, &g); err != nil {
		return Page{}, fmt.Errorf("read the log: %w", err)
	}
	return r.page(ctx, w, g, last)
}

func (r *Reader) page(ctx context.Context, w walk, g gathering, last int64) (Page, error) {
	p := Page{Rows: g.rows, NextAfter: max(w.hi, w.lo-1)}
	from := w.lo // the first row looked at
	switch {
	case !w.newest:
		if g.full {
			p.NextAfter = g.rows[len(g.rows)-1].ID
		}
		p.More = p.NextAfter < last
	case g.full:
		slices.Reverse(p.Rows)
		from = p.Rows[0].ID
		p.More = from > 1
	default:
		slices.Reverse(p.Rows)
		p.More = from > 1
	}
	var err error
	p.Gaps, err = r.Gaps(ctx, from, p.NextAfter)
	return p, err
}

// gathering are the rows that a walk has selected so far.
type gathering struct {
	limit   int
	matcher *matcher // nil without a search
	rows    []*Row
	bytes   int
	waiting []*Row // not yet searched
	weight  int    // bytes of waiting
	full    bool
}

// Bounds of what is searched at once.
const (
	searchRows  = 256
	searchBytes = 4 << 20
)

func (g *gathering) add(ctx context.Context, row *Row) error {
	if g.matcher == nil {
		g.keep(row)
		return nil
	}
	g.waiting = append(g.waiting, row)
	if g.weight += len(row.Body); len(g.waiting) == searchRows || g.weight >= searchBytes {
		return g.search(ctx)
	}
	return nil
}

func (g *gathering) search(ctx context.Context) error {
	if len(g.waiting) == 0 {
		return nil
	}
	hits, err := g.matcher.match(ctx, g.waiting)
	if err != nil {
		return err
	}
	for _, row := range hits {
		if g.full {
			break
		}
		g.keep(row)
	}
	g.waiting, g.weight = g.waiting[:0], 0
	return nil
}

func (g *gathering) keep(row *Row) {
	g.rows = append(g.rows, row)
	g.bytes += len(row.Body)
	g.full = len(g.rows) == g.limit || g.bytes >= pageBytes
}

// walk looks at the rows lo to hi in the order of their ids, or against it.
type walk struct {
	r      *Reader
	s      *selection
	lo, hi int64
	newest bool // from hi down to lo
}

// part is a stretch of rows to look at: those with ids, or lo to hi.
type part struct {
	lo, hi int64
	ids    []int64
}

func (w *walk) run(ctx context.Context, g *gathering) error {
	view, release := w.r.index.view(ctx, w.r.db, w.hi)
	defer release()
	for p, err := range view.parts(ctx, w) {
		if err == nil {
			err = w.look(ctx, p, g)
		}
		if err != nil {
			return err
		}
		if g.full {
			return nil
		}
	}
	return g.search(ctx)
}

// look reads the selected rows of a part.
func (w *walk) look(ctx context.Context, p part, g *gathering) error {
	var query strings.Builder
	query.WriteString(`SELECT ` + rowColumns + ` FROM messages WHERE id `)
	args := w.s.args
	if p.ids != nil {
		query.WriteString("IN (")
		for i, id := range p.ids {
			if i > 0 {
				query.WriteByte(',')
			}
			query.WriteString(strconv.FormatInt(id, 10))
		}
		query.WriteByte(')')
	} else {
		query.WriteString("BETWEEN ? AND ?")
		args = append([]any{p.lo, p.hi}, args...)
	}
	query.WriteString(" AND " + w.s.where + " ORDER BY id")
	if w.newest {
		query.WriteString(" DESC")
	}
	rows, err := w.r.db.QueryContext(ctx, query.String(), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for !g.full && rows.Next() {
		row, err := scanRow(rows.Scan)
		if err != nil {
			return err
		}
		if w.s.match(row) {
			if err := g.add(ctx, row); err != nil {
				return err
			}
		}
	}
	return rows.Err()
}
