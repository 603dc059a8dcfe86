package audit

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"slices"
	"strings"
)

// scanChunk is how many ids one statement looks through, so that none holds
// its snapshot for long and keeps the write-ahead log from starting over.
const scanChunk = 1 << 15

// idChunk is how many hits are fetched at once; countEnough is where counting
// the hits of a value stops.
const (
	idChunk     = 512
	countEnough = 2048
)

// parts are the stretches that hold every row the walk selects, in its order.
func (v *indexView) parts(ctx context.Context, w *walk) iter.Seq2[part, error] {
	search := v.search
	if w.s.text == "" {
		search = 0
	}
	type segment struct {
		lo, hi          int64
		refs, searching bool
	}
	segments := []segment{{1, search, true, true}, {search + 1, v.refs, true, false}, {v.refs + 1, w.hi, false, false}}
	if w.newest {
		slices.Reverse(segments)
	}
	return func(yield func(part, error) bool) {
		for _, s := range segments {
			lo, hi := max(s.lo, w.lo), min(s.hi, w.hi)
			if lo > hi {
				continue
			}
			parts := ranges(lo, hi, w.newest)
			if s.refs {
				parts = v.indexed(ctx, w, lo, hi, s.searching)
			}
			for p := range parts {
				if !yield(p, ctx.Err()) {
					return
				}
			}
		}
	}
}

// ranges cuts lo to hi into chunks.
func ranges(lo, hi int64, newest bool) iter.Seq[part] {
	return func(yield func(part) bool) {
		for lo <= hi {
			p := part{lo: lo, hi: min(lo+scanChunk-1, hi)}
			if newest {
				p = part{lo: max(hi-scanChunk+1, lo), hi: hi}
				hi = p.lo - 1
			} else {
				lo = p.hi + 1
			}
			if !yield(p) {
				return
			}
		}
	}
}

// indexed are the parts of lo to hi that the index points to.
func (v *indexView) indexed(ctx context.Context, w *walk, lo, hi int64, searching bool) iter.Seq[part] {
	blocks, err := v.blocks(ctx, w.s, lo, hi)
	if err != nil {
		return ranges(lo, hi, w.newest)
	}
	if fetch := v.posting(ctx, w.s, searching); fetch != nil {
		return v.hits(ctx, fetch, blocks, w.newest, lo, hi)
	}
	if blocks == nil {
		return ranges(lo, hi, w.newest)
	}
	return blockRanges(blocks, lo, hi, w.newest)
}

// blockRanges are lo to hi within the blocks, neighbours joined.
func blockRanges(blocks []int64, lo, hi int64, newest bool) iter.Seq[part] {
	const chunkBlocks = scanChunk >> blockShift
	return func(yield func(part) bool) {
		for len(blocks) > 0 {
			n := 1
			for n < len(blocks) && n < chunkBlocks {
				if newest && blocks[len(blocks)-n]-blocks[len(blocks)-n-1] != 1 || !newest && blocks[n]-blocks[n-1] != 1 {
					break
				}
				n++
			}
			run := blocks[:n]
			if newest {
				run, blocks = blocks[len(blocks)-n:], blocks[:len(blocks)-n]
			} else {
				blocks = blocks[n:]
			}
			p := part{lo: max(run[0]<<blockShift, lo), hi: min((run[n-1]+1)<<blockShift-1, hi)}
			if !yield(p) {
				return
			}
		}
	}
}

// blocks are the blocks of lo to hi in which every term and the times of the
// selection occur; nil where it has neither.
func (v *indexView) blocks(ctx context.Context, s *selection, lo, hi int64) ([]int64, error) {
	var common []int64
	also := func(query string, args ...any) error {
		list, err := collect(ctx, v.conn, "read the index", scanID, query,
			append([]any{lo >> blockShift, hi >> blockShift}, args...)...)
		switch {
		case err != nil:
			return err
		case common == nil:
			common = list
		default:
			common = slices.DeleteFunc(common, func(block int64) bool {
				_, found := slices.BinarySearch(list, block)
				return !found
			})
		}
		return nil
	}
	for _, keys := range s.terms {
		args := make([]any, len(keys))
		for i, k := range keys {
			args[i] = k
		}
		if err := also(`SELECT DISTINCT block FROM blocks WHERE block BETWEEN ?1 AND ?2 AND key IN (?`+
			strings.Repeat(", ?", len(keys)-1)+`) ORDER BY block`, args...); err != nil {
			return nil, err
		}
	}
	if s.since != minTime || s.until != maxTime {
		err := also(`SELECT block FROM spans WHERE block BETWEEN ?1 AND ?2 AND at_last >= ?3 AND at_first < ?4 ORDER BY block`,
			s.since, s.until)
		if err != nil {
			return nil, err
		}
	}
	return common, nil
}

func scanID(scan func(...any) error) (id int64, err error) {
	err = scan(&id)
	return id, err
}

// fetch reads the first ids of a posting between lo and hi, or the last ones
// where the newest come first, in that order; at most idChunk.
type fetch func(ctx context.Context, lo, hi int64, newest bool) ([]int64, error)

// posting reads the hits of the value of the selection that has the fewest; nil
// where it has no such value.
func (v *indexView) posting(ctx context.Context, s *selection, searching bool) fetch {
	best, fewest := -1, countEnough+1
	for i, keys := range s.ids {
		n := 0
		if len(s.ids) > 1 || searching {
			for _, key := range keys {
				n = min(n+v.count(ctx, key), countEnough)
			}
		}
		if n < fewest {
			best, fewest = i, n
		}
	}
	if searching && (best < 0 || fewest == countEnough) {
		return func(ctx context.Context, lo, hi int64, newest bool) ([]int64, error) {
			return collect(ctx, v.conn, "read the index", scanID, `SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ?
				ORDER BY rowid `+direction(newest)+` LIMIT ?`, s.text, lo, hi, idChunk)
		}
	}
	if best < 0 {
		return nil
	}
	return v.fetchRefs(s.ids[best])
}

// count is how many entries a key has, up to countEnough.
func (v *indexView) count(ctx context.Context, key int64) int {
	var n int
	if err := v.conn.QueryRowContext(ctx, `WITH RECURSIVE runs (run) AS (SELECT 0 UNION ALL SELECT run + 1 FROM runs WHERE run < ?)
		SELECT count(*) FROM (SELECT 1 FROM runs CROSS JOIN refs ON refs.run = runs.run WHERE key = ? LIMIT ?)`,
		v.refs>>runShift, key, countEnough).Scan(&n); err != nil {
		return countEnough
	}
	return n
}

// fetchRefs reads the entries of any of the keys, run by run, so that a page
// stops early however many hits there are.
func (v *indexView) fetchRefs(keys []int64) fetch {
	return func(ctx context.Context, lo, hi int64, newest bool) (ids []int64, err error) {
		stmt, err := v.conn.PrepareContext(ctx, `SELECT DISTINCT id FROM refs WHERE run = ? AND key IN (?`+strings.Repeat(", ?", len(keys)-1)+
			`) AND id BETWEEN ? AND ? ORDER BY id `+direction(newest)+` LIMIT ?`)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, stmt.Close()) }()
		args := make([]any, len(keys)+4)
		for i, k := range keys {
			args[i+1] = k
		}
		args[len(keys)+1], args[len(keys)+2] = lo, hi
		first, last, step := lo>>runShift, hi>>runShift, int64(1)
		if newest {
			first, last, step = last, first, -1
		}
		for run := first; run != last+step && len(ids) < idChunk; run += step {
			args[0], args[len(keys)+3] = run, idChunk-len(ids)
			more, err := collect(ctx, prepared{stmt}, "read the index", scanID, "", args...)
			if err != nil {
				return nil, err
			}
			ids = append(ids, more...)
		}
		return ids, nil
	}
}

// prepared is a statement as collect asks it.
type prepared struct{ *sql.Stmt }

func (p prepared) QueryContext(ctx context.Context, _ string, args ...any) (*sql.Rows, error) {
	return p.Stmt.QueryContext(ctx, args...)
}

func direction(newest bool) string {
	if newest {
		return "DESC"
	}
	return "ASC"
}

// hits are the ids that a posting has between lo and hi, as far as they are in
// the blocks. Where the index fails, the rest is looked through.
func (v *indexView) hits(ctx context.Context, read fetch, blocks []int64, newest bool, lo, hi int64) iter.Seq[part] {
	return func(yield func(part) bool) {
		for lo <= hi {
			ids, err := read(ctx, lo, hi, newest)
			if err != nil {
				ranges(lo, hi, newest)(yield)
				return
			}
			n := len(ids)
			if n == 0 {
				return
			}
			if newest {
				hi = ids[n-1] - 1
			} else {
				lo = ids[n-1] + 1
			}
			if blocks != nil {
				ids = slices.DeleteFunc(ids, func(id int64) bool {
					_, found := slices.BinarySearch(blocks, id>>blockShift)
					return !found
				})
			}
			if len(ids) > 0 && !yield(part{ids: ids}) {
				return
			}
			if n < idChunk {
				return
			}
		}
	}
}
