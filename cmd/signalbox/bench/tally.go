package bench

import (
	"context"
	"database/sql"
	"fmt"
)

// count reads the rows of a passage and notes which messages are there.
func (n *node) count(ctx context.Context, p *passage, t *tally) error {
	return n.reader.View(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, `SELECT id, substr(body, 1, ?) FROM messages WHERE id > ? AND kind = 'msg' ORDER BY id`, numberWidth, p.base)
		if err != nil {
			return fmt.Errorf("count rows: %w", err)
		}
		defer rows.Close()
		for rows.Next() {
			var id int64
			var text sql.RawBytes
			if err := rows.Scan(&id, &text); err != nil {
				return fmt.Errorf("count rows: %w", err)
			}
			if t.note(string(text)) {
				p.last = id
			}
		}
		return rows.Err()
	})
}

// tally notes which of the numbers of a phase were met, and how often.
type tally struct {
	phase   int
	met     [][]bool // by publisher, by number
	doubled int
}

func newTally(phase int, counts []int) *tally {
	t := &tally{phase: phase % (maxPhases + 1)}
	for _, n := range counts {
		t.met = append(t.met, make([]bool, n))
	}
	return t
}

// note says whether a body is one of the phase.
func (t *tally) note(body string) bool {
	phase, publisher, n, ok := parseNumber(body)
	if !ok || phase != t.phase || publisher >= len(t.met) || n >= len(t.met[publisher]) {
		return false
	}
	if t.met[publisher][n] {
		t.doubled++
	}
	t.met[publisher][n] = true
	return true
}

func (t *tally) lost() int {
	lost := 0
	for _, met := range t.met {
		for _, m := range met {
			if !m {
				lost++
			}
		}
	}
	return lost
}
