package audit

import (
	"context"
	"fmt"
)

// Counts are the numbers that are watched all the time.
type Counts struct {
	Gaps, DeadLetters int64
}

// Counts counts gap records and dead letters.
func (r *Reader) Counts(ctx context.Context) (Counts, error) {
	var c Counts
	err := r.db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM gaps), (SELECT count(*) FROM dead_letters)`).
		Scan(&c.Gaps, &c.DeadLetters)
	if err != nil {
		return c, fmt.Errorf("read the register: %w", err)
	}
	return c, nil
}
