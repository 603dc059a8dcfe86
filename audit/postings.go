package audit

import (
	"context"
	"fmt"
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
	if query, args := v.posting(ctx, w.s, searching); query != "" {
		return v.hits(ctx, query, args, blocks, w.newest, lo, hi)
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

// posting is the query for the hits of the value of the selection that has the
// fewest, "" where it has no such value. The query takes the bounds as its
// last two arguments.
func (v *indexView) posting(ctx context.Context, s *selection, searching bool) (string, []any) {
	best, fewest := -1, countEnough+1
	for i, keys := range s.ids {
		n := 0
		if len(s.ids) > 1 || searching {
			for _, key := range keys {
				var count int
				if err := v.conn.QueryRowContext(ctx, `SELECT count(*) FROM (SELECT 1 FROM refs WHERE key = ? LIMIT ?)`,
					key, countEnough).Scan(&count); err != nil {
					count = countEnough
				}
				n = min(n+count, countEnough)
			}
		}
		if n < fewest {
			best, fewest = i, n
		}
	}
	if searching && (best < 0 || fewest == countEnough) {
		return `SELECT rowid AS id FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid`, []any{s.text}
	}
	if best < 0 {
		return "", nil
	}
	// The keys are numbers made here; each part of the union is read in the
	// order of its key, so a page stops early however many hits there are.
	var parts []string
	for _, key := range s.ids[best] {
		parts = append(parts, fmt.Sprintf(`SELECT id FROM refs WHERE key = %d AND id BETWEEN ?1 AND ?2`, key))
	}
	return strings.Join(parts, " UNION ") + " ORDER BY id", nil
}

// hits are the ids that a posting has between lo and hi, as far as they are in
// the blocks. Where the index fails, the rest is looked through.
func (v *indexView) hits(ctx context.Context, query string, args []any, blocks []int64, newest bool, lo, hi int64) iter.Seq[part] {
	if newest {
		query += " DESC"
	}
	query += fmt.Sprintf(" LIMIT %d", idChunk)
	return func(yield func(part) bool) {
		for lo <= hi {
			ids, err := collect(ctx, v.conn, "read the index", scanID, query, append(slices.Clone(args), lo, hi)...)
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
