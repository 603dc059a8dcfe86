package inbox

import (
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"signalbox/step"
)

// handOver moves at most so many deliveries to the agent; left says that there
// are more.
func handOver(db step.DB, v move, nowMS int64, most int) (moved int, left bool, err error) {
	ids, err := waiting(db, v, nowMS, most+1)
	if err != nil {
		return 0, false, err
	}
	for i, id := range ids {
		if i == most {
			return i, true, nil
		}
		if _, err := db.Exec(`UPDATE deliveries SET recipient = ? WHERE id = ? AND recipient = ?`, v.agent, id, v.source); err != nil {
			return i, false, fmt.Errorf("hand row %d of %q over to %q: %w", id, v.source, v.agent, err)
		}
	}
	return len(ids), false, nil
}

// waiting are the rows that v hands over, most urgent first, at most so many.
// What has expired is not among them, nor what the agent has a delivery of
// already.
func waiting(db step.DB, v move, nowMS int64, most int) ([]int64, error) {
	ids, err := collect(db, func(rows *sql.Rows) (id int64, err error) { return id, rows.Scan(&id) },
		`SELECT id FROM deliveries AS w INDEXED BY deliveries_fresh
		WHERE recipient = ? AND outcome IS NULL AND delivered_at_ms IS NULL AND id > ? AND id <= ? AND expires_at_ms > ?
		AND NOT EXISTS (SELECT 1 FROM deliveries AS d WHERE d.id = w.id AND d.recipient = ?)
		ORDER BY priority DESC, id LIMIT ?`,
		v.source, v.afterID, v.lastID, nowMS, v.agent, most)
	if err != nil {
		return nil, fmt.Errorf("read what waits at %q: %w", v.source, err)
	}
	return ids, nil
}

// giveUp makes at most maxStep deliveries of a closed role dead letters; left
// says that there are more.
func (m *Machine) giveUp(db step.DB, in step.Input, v move) (effects step.Effects, left bool, err error) {
	list, err := collect(db, scanRows, `SELECT `+columns+` FROM deliveries INDEXED BY deliveries_fresh
		WHERE recipient = ? AND outcome IS NULL AND delivered_at_ms IS NULL AND id <= ? LIMIT ?`, v.source, v.lastID, maxStep+1)
	if err == nil && len(list) <= maxStep {
		var fetched []Delivery
		fetched, err = collect(db, scanRows, `SELECT `+columns+` FROM deliveries INDEXED BY deliveries_flight
			WHERE recipient = ? AND outcome IS NULL AND delivered_at_ms IS NOT NULL AND id <= ? LIMIT ?`, v.source, v.lastID, maxStep+1-len(list))
		list = append(list, fetched...)
	}
	if err != nil {
		return effects, false, fmt.Errorf("read what %q is owed: %w", v.source, err)
	}
	for i, d := range list {
		if i == maxStep {
			return effects, true, nil
		}
		msg, err := m.facts.Rows.Message(db, d.ID)
		if err != nil {
			return effects, false, fmt.Errorf("row %d: %w", d.ID, err)
		}
		told, err := m.bury(db, in, d, msg, outcomeDeadLetter, reasonScopeClosed, "the scope of the role was closed")
		if err != nil {
			return effects, false, err
		}
		effects.Told = append(effects.Told, told)
	}
	return effects, false, nil
}

// promised is up to which row what waits at a source goes to agents that came
// before.
func promised(db step.DB, source string) (id int64, err error) {
	err = db.QueryRow(`SELECT coalesce(max(last_id), 0) FROM inbox_moves WHERE source = ?`, source).Scan(&id)
	if err != nil {
		return 0, fmt.Errorf("read the moves of %q: %w", source, err)
	}
	return id, nil
}

// readMove reads the move of a deadline's key, <source>/<agent>/<after>. A
// role's source has slashes of its own.
func readMove(db step.DB, key string) (v move, found bool, err error) {
	rest, after, _ := cutLast(key)
	v.source, v.agent, found = cutLast(rest)
	if v.afterID, err = strconv.ParseInt(after, 10, 64); err != nil || !found {
		return v, false, fmt.Errorf("the deadline of the move %q is not of the inbox", key)
	}
	err = db.QueryRow(`SELECT agent, last_id, at_ms FROM inbox_moves WHERE source = ? AND after_id = ?`, v.source, v.afterID).
		Scan(&v.agent, &v.lastID, &v.atMS)
	if errors.Is(err, sql.ErrNoRows) {
		return v, false, nil
	}
	if err != nil {
		return v, false, fmt.Errorf("read the move %q: %w", key, err)
	}
	return v, true, nil
}

func cutLast(s string) (before, after string, found bool) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// keepMove leaves the rest of a move to the deadlines. A role that is closed
// again before the first time is done has one move for both.
func keepMove(db step.DB, v move) error {
	_, err := db.Exec(`INSERT INTO inbox_moves (source, after_id, last_id, agent, at_ms) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (source, after_id) DO UPDATE SET last_id = excluded.last_id`, v.source, v.afterID, v.lastID, v.agent, v.atMS)
	if err != nil {
		return fmt.Errorf("keep the move of %q: %w", v.source, err)
	}
	return nil
}

func dropMove(db step.DB, v move) error {
	if _, err := db.Exec(`DELETE FROM inbox_moves WHERE source = ? AND after_id = ?`, v.source, v.afterID); err != nil {
		return fmt.Errorf("end the move of %q: %w", v.source, err)
	}
	return nil
}
