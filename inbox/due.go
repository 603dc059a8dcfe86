package inbox

import (
	"cmp"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"signalbox/step"
)

// Due implements the machine's interface: ends of times to live, with keys
// "<row>/<recipient>" in which the row has 19 digits, so that they sort as
// numbers; and moves that go on, with keys "move/<source>/<agent>/<after>".
func (m *Machine) Due(db step.DB, nowMS int64, limit int) ([]step.Deadline, error) {
	if err := m.Flush(db); err != nil {
		return nil, err
	}
	list, err := collect(db, scanDue, `SELECT expires_at_ms, printf('%019d/%s', id, recipient)
		FROM deliveries INDEXED BY deliveries_expiry WHERE outcome IS NULL AND expires_at_ms <= ?
		ORDER BY expires_at_ms, id, recipient LIMIT ?`, nowMS, limit)
	if err != nil {
		return nil, fmt.Errorf("the deadlines of deliveries: %w", err)
	}
	moves, err := collect(db, scanDue, `SELECT at_ms, printf('move/%s/%s/%019d', source, agent, after_id) AS key FROM inbox_moves
		WHERE at_ms <= ? ORDER BY at_ms, key LIMIT ?`, nowMS, limit)
	if err != nil {
		return nil, fmt.Errorf("the moves that go on: %w", err)
	}
	if len(moves) > 0 {
		list = append(list, moves...)
		slices.SortFunc(list, func(a, b step.Deadline) int {
			return cmp.Or(cmp.Compare(a.AtMS, b.AtMS), strings.Compare(a.Key, b.Key))
		})
	}
	return list[:min(limit, len(list))], nil
}

func scanDue(rows *sql.Rows) (d step.Deadline, err error) {
	err = rows.Scan(&d.AtMS, &d.Key)
	return d, err
}

// over handles a deadline; one that has moved since is nothing.
func (m *Machine) over(db step.DB, in step.Input, due step.Deadline) (step.Effects, error) {
	if err := m.Flush(db); err != nil {
		return step.Effects{}, err
	}
	first, rest, _ := strings.Cut(due.Key, "/")
	if first == moveKey {
		return m.goOn(db, in, rest)
	}
	id, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return step.Effects{}, fmt.Errorf("the deadline %q is not of the inbox", due.Key)
	}
	return m.expire(db, in, id, rest)
}

// expire gives up a delivery whose time to live is over.
func (m *Machine) expire(db step.DB, in step.Input, id int64, recipient string) (step.Effects, error) {
	d, found, err := read(db, id, recipient)
	if err != nil || !found || !d.open() || d.ExpiresAtMS > in.NowMS {
		return step.Effects{}, err
	}
	msg, err := m.facts.Rows.Message(db, id)
	if err != nil {
		return step.Effects{}, fmt.Errorf("row %d: %w", id, err)
	}
	told, err := m.bury(db, in, d, msg, outcomeExpired, reasonTTLExpired, d.expiry())
	return step.Effects{Told: []step.Happened{told}, Messages: undeliverable(msg, &d, reasonTTLExpired)}, err
}
