package audit

import (
	"cmp"
	"context"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"signalbox/wire"
)

// refKind says which value of a row a key of the index stands for.
type refKind uint64

const (
	refMessage refKind = iota + 1
	refTrace
	refCorrelation
	refFrom
	refTo
	refTopic
	refAbout // the agent that an event is about or that it notifies
	refTime  // the milliseconds that a UUIDv7 begins with
	refCause // the place of the row that caused it
)

// blockShift makes a row's block: values that many rows share are indexed once
// for 512 rows, which a query then looks through.
const blockShift = 9

// runShift makes a row's run, within which keys are sorted: entries with random
// keys spread over a run's pages, not over those of the whole table.
const runShift = 16

// ref is what the index keeps of a row. It holds no pointers, so a queue of
// them costs the garbage collector nothing and keeps no body alive.
type ref struct {
	id      int64
	at      int64
	expires int64    // ms; 0 for what does not expire
	ids     [4]int64 // keys for refs, 0 for none
	terms   [8]int64 // keys for blocks, 0 for none
	leaf    int64    // the leaf's first bytes
	kind    uint8    // place in countedKinds
}

// countedKinds are the kinds whose rows the index counts; the last place
// stands for any other.
var countedKinds = [...]wire.Kind{wire.Msg, wire.Cmd, wire.Evt, wire.Tap, ""}

func refOf(r *Row) ref {
	e := ref{id: r.ID, at: r.AtNS, expires: r.ExpiresAtMS, leaf: leafMark(r.Leaf[:]), kind: uint8(len(countedKinds) - 1)}
	for i, k := range countedKinds {
		if k == r.Kind {
			e.kind = uint8(i)
			break
		}
	}
	e.put(0, refMessage, r.MessageID)
	e.put(1, refTrace, r.TraceID)
	e.put(2, refCorrelation, r.CorrelationID)
	if r.From == wire.Bridge {
		e.put(3, refCause, r.Header.First(wire.HeaderCause))
	}
	if r.From != "" {
		e.terms[0] = termKey(refFrom, r.From)
	}
	if r.To != "" {
		e.terms[1] = termKey(refTo, r.To)
	}
	if r.Topic != "" {
		e.terms[2] = termKey(refTopic, r.Topic)
	}
	if r.Kind == wire.Evt {
		if agent := aboutAgent(r.Subject); agent != "" {
			e.terms[3] = termKey(refAbout, agent)
		}
	}
	return e
}

// put puts an id under the key that idKey gives.
func (e *ref) put(i int, kind refKind, value string) {
	switch key, shared := idKey(kind, value); {
	case value == "":
	case shared:
		e.terms[4+i] = key
	default:
		e.ids[i] = key
	}
}

// leafMark are the first bytes of a leaf as an integer, by which the index and
// the register are known to speak of the same row.
func leafMark(leaf []byte) int64 {
	if len(leaf) < 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(leaf))
}

// aboutAgent is <agent> of an event's subject ending in notice.<agent>.<what>
// or agents.<agent>.<what>, or "". It may take an event for one that it is
// not: the row decides.
func aboutAgent(subject string) string {
	rest, _, ok := cutLast(subject)
	if !ok {
		return ""
	}
	rest, agent, ok := cutLast(rest)
	if !ok {
		return ""
	}
	if _, machine, _ := cutLast(rest); machine != "notice" && machine != "agents" {
		return ""
	}
	return agent
}

// cutLast cuts a subject before its last token.
func cutLast(s string) (before, last string, found bool) {
	i := strings.LastIndexByte(s, '.')
	if i < 0 {
		return "", s, false
	}
	return s[:i], s[i+1:], true
}

// idKey is the key of an id. Most ids are spread over the table, one entry a
// row. A UUIDv7 (RFC 9562) begins with its time, and those that the bridge
// derives have the time of their row: they are indexed by block like any other
// value that rows share, under their millisecond.
func idKey(kind refKind, value string) (key int64, shared bool) {
	if ms, ok := uuid7(value); ok {
		return termKey(refTime, ms), true
	}
	return termKey(kind, value), false
}

// termKey is the key of any other value, never 0.
func termKey(kind refKind, value string) int64 {
	// The odd factor spreads the kinds, so that equal values of two of them
	// have unrelated keys.
	key := int64(xxhash.Sum64String(value) ^ uint64(kind)*0x9E3779B97F4A7C15)
	if key == 0 {
		return 1
	}
	return key
}

// uuid7 is the time of a UUIDv7 in its usual form, as it is written there.
func uuid7(s string) (ms string, ok bool) {
	if len(s) != 36 || s[14] != '7' || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return "", false
	}
	return s[:13], true
}

type pair struct{ key, other int64 }

// write puts a batch of consecutive rows into the index in one transaction.
func (ix *Index) write(ctx context.Context, batch []ref) error {
	refs := make([]pair, 0, len(batch)*len(ref{}.ids))
	var blocks []pair
	var kinds [len(countedKinds)]int64
	for i := range batch {
		e := &batch[i]
		for _, key := range e.ids {
			if key != 0 {
				refs = append(refs, pair{key, e.id})
			}
		}
		if b := e.id >> blockShift; b != ix.block {
			ix.block = b
			clear(ix.seen)
		}
		for _, key := range e.terms {
			if key != 0 && !ix.seen[key] {
				ix.seen[key] = true
				blocks = append(blocks, pair{key, ix.block})
			}
		}
		kinds[e.kind]++
	}
	last := batch[len(batch)-1]
	err := ix.transact(ctx, func() error {
		if err := errors.Join(ix.insertPairs("refs", refs, runShift), ix.insertPairs("blocks", blocks, 63), ix.insertSpans(ctx, batch)); err != nil {
			return err
		}
		for i, n := range kinds {
			if _, err := ix.conn.ExecContext(ctx, `INSERT INTO kinds (kind, n) VALUES (?, ?)
				ON CONFLICT DO UPDATE SET n = n + excluded.n`, string(countedKinds[i]), n); err != nil {
				return err
			}
		}
		_, err := ix.conn.ExecContext(ctx, `UPDATE marks SET refs_mark = ?, leaf = ?`, last.id, last.leaf)
		return err
	})
	if err != nil {
		ix.block = -1 // what the block has is not known any more
		return err
	}
	ix.refs.Store(last.id)
	return nil
}

// transact runs f in a transaction.
func (ix *Index) transact(ctx context.Context, f func() error) error {
	_, err := ix.conn.ExecContext(ctx, "BEGIN IMMEDIATE")
	if err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	if err = f(); err == nil {
		if _, err = ix.conn.ExecContext(ctx, "COMMIT"); err == nil {
			return nil
		}
	}
	// SQLite may have rolled back by itself, so a failure here says nothing.
	_, _ = ix.conn.ExecContext(context.Background(), "ROLLBACK")
	return fmt.Errorf("write the index: %w", err)
}

// insertSpans widens the spans of the blocks of a batch.
func (ix *Index) insertSpans(ctx context.Context, batch []ref) error {
	for len(batch) > 0 {
		block := batch[0].id >> blockShift
		first, last, expires, n := batch[0].at, batch[0].at, int64(0), 0
		for ; n < len(batch) && batch[n].id>>blockShift == block; n++ {
			first, last, expires = min(first, batch[n].at), max(last, batch[n].at), max(expires, batch[n].expires)
		}
		if _, err := ix.conn.ExecContext(ctx, `INSERT INTO spans (block, at_first, at_last, expires_last) VALUES (?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET at_first = min(at_first, excluded.at_first), at_last = max(at_last, excluded.at_last),
			expires_last = max(expires_last, excluded.expires_last)`, block, first, last, expires); err != nil {
			return err
		}
		batch = batch[n:]
	}
	return nil
}

// insertPairs inserts in the order of the table, which touches each page once:
// by runs of 1<<shift, then keys.
func (ix *Index) insertPairs(table string, pairs []pair, shift uint) error {
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.other>>shift, b.other>>shift), cmp.Compare(a.key, b.key), cmp.Compare(a.other, b.other))
	})
	stmts := ix.insert[table]
	return ix.conn.Raw(func(any) error {
		for len(pairs) > 0 {
			n, stmt := 1, stmts[1]
			if len(pairs) >= pairsAtOnce {
				n, stmt = pairsAtOnce, stmts[0]
			}
			for i, p := range pairs[:n] {
				ix.args[2*i].Value, ix.args[2*i+1].Value = p.key, p.other
			}
			if _, err := stmt.ExecContext(context.Background(), ix.args[:2*n]); err != nil {
				return err
			}
			pairs = pairs[n:]
		}
		return nil
	})
}

// prepareInserts prepares the INSERTs of pairs at the driver's level:
// database/sql would copy and check every argument again.
func (ix *Index) prepareInserts(ctx context.Context) error {
	ix.args = make([]driver.NamedValue, 2*pairsAtOnce)
	for i := range ix.args {
		ix.args[i].Ordinal = i + 1
	}
	ix.insert = map[string][2]driver.StmtExecContext{}
	return ix.conn.Raw(func(dc any) error {
		for table, values := range map[string]string{
			"refs": fmt.Sprintf("(?%%[2]d >> %d, ?%%[1]d, ?%%[2]d)", runShift), "blocks": "(?%[1]d, ?%[2]d)",
		} {
			var pair [2]driver.StmtExecContext
			for i, n := range []int{pairsAtOnce, 1} {
				var rows []string
				for j := range n {
					rows = append(rows, fmt.Sprintf(values, 2*j+1, 2*j+2))
				}
				// A replay of the same rows, or a value in two places of one row, is no error.
				s, err := dc.(driver.ConnPrepareContext).PrepareContext(ctx,
					"INSERT OR IGNORE INTO "+table+" VALUES "+strings.Join(rows, ", "))
				if err != nil {
					return err
				}
				pair[i] = s.(driver.StmtExecContext)
			}
			ix.insert[table] = pair
		}
		return nil
	})
}
