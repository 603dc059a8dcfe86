package inbox

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"signalbox/step"
)

// fewDue is up to how many deliveries in flight that are due are read and
// sorted; where there are more, they are looked for in the order of priority.
const fewDue = 500

// look is what one agent may be given at an instant.
type look struct {
	agent        string
	recipients   []string // the agent's own first
	registeredID int64    // register row of the agent's current registration
	nowMS        int64
	options      Options
}

// overdue is up to which time of its fetch a delivery is due again.
func (l *look) overdue() int64 { return l.nowMS - l.options.RedeliverAfterMS }

// due reports whether a delivery in flight may be given out again: its time is
// over, it was given to an earlier process of the agent, or to another agent
// that held the role.
func (l *look) due(d *Delivery) bool {
	return *d.DeliveredAtMS <= l.overdue() || *d.DeliveredID < l.registeredID || d.DeliveredTo != l.agent
}

// eligible are the first deliveries that the agent may be given, in order, at
// most so many.
func (l *look) eligible(db step.DB, most int) ([]Delivery, error) {
	var all []Delivery
	for _, recipient := range l.recipients {
		fresh, err := l.fresh(db, recipient, most)
		if err != nil {
			return nil, fmt.Errorf("what is fresh for %q: %w", recipient, err)
		}
		again, err := l.again(db, recipient, most)
		if err != nil {
			return nil, fmt.Errorf("what is in flight to %q: %w", recipient, err)
		}
		all = append(append(all, fresh...), again...)
	}
	slices.SortFunc(all, func(a, b Delivery) int { return inOrder(&a, &b) })
	return all[:min(most, len(all))], nil
}

// needed are the columns that a fetch needs, in the order in which
// scanNeeded takes them.
const needed = `id, priority, queued_at_ms, attempts, delivered_at_ms, delivered_id, coalesce(delivered_to, '')`

func scanNeeded(recipient string) func(*sql.Rows) (Delivery, error) {
	return func(rows *sql.Rows) (Delivery, error) {
		d := Delivery{Recipient: recipient}
		err := rows.Scan(&d.ID, &d.Priority, &d.QueuedAtMS, &d.Attempts, &d.DeliveredAtMS, &d.DeliveredID, &d.DeliveredTo)
		return d, err
	}
}

// The first is found in the index alone: SQLite would look up the row of each
// one that it passes over, and thousands may have expired together.
const (
	freshOfAll = `SELECT ` + needed + ` FROM (SELECT id AS i, recipient AS r FROM deliveries INDEXED BY deliveries_fresh
			WHERE recipient = ? AND outcome IS NULL AND delivered_at_ms IS NULL AND expires_at_ms > ?
			ORDER BY priority DESC, id LIMIT ?)
		JOIN deliveries ON id = i AND recipient = r`
	freshOfTopic = `SELECT ` + needed + ` FROM deliveries INDEXED BY deliveries_topic
		WHERE recipient = ? AND topic = ? AND delivered_to IS NULL AND delivered_id IS NULL AND outcome IS NULL AND expires_at_ms > ?
		ORDER BY priority DESC, id LIMIT ?`
)

// fresh are the first deliveries of the recipient that nobody has fetched.
func (l *look) fresh(db step.DB, recipient string, most int) (list []Delivery, err error) {
	if len(l.options.IncludeTopics) == 0 {
		return collect(db, scanNeeded(recipient), freshOfAll, recipient, l.nowMS, most)
	}
	for _, topic := range l.options.IncludeTopics {
		some, err := collect(db, scanNeeded(recipient), freshOfTopic, recipient, topic, l.nowMS, most)
		if err != nil {
			return nil, err
		}
		list = append(list, some...)
	}
	return list, nil
}

// What is in flight, oldest fetch first: to the agent itself, and to others
// who had the role before. Those whose time to live is over are among them,
// for the reader to pass over.
const (
	flightOfAgent = `SELECT ` + needed + `, expires_at_ms FROM deliveries INDEXED BY deliveries_age
		WHERE recipient = ? AND delivered_to = ? AND outcome IS NULL AND delivered_at_ms IS NOT NULL
		ORDER BY delivered_id, id LIMIT ?`
	flightOfBefore = `SELECT ` + needed + `, expires_at_ms FROM deliveries INDEXED BY deliveries_age
		WHERE recipient = ? AND delivered_to < ? AND outcome IS NULL AND delivered_at_ms IS NOT NULL LIMIT ?`
	flightOfAfter = `SELECT ` + needed + `, expires_at_ms FROM deliveries INDEXED BY deliveries_age
		WHERE recipient = ? AND delivered_to > ? AND outcome IS NULL AND delivered_at_ms IS NOT NULL LIMIT ?`
	flightOfAgentAndTopic = `SELECT ` + needed + `, expires_at_ms FROM deliveries INDEXED BY deliveries_topic
		WHERE recipient = ? AND delivered_to = ? AND topic = ? AND outcome IS NULL
		ORDER BY delivered_id, priority DESC, id LIMIT ?`
	flightOfBeforeAndTopic = `SELECT ` + needed + `, expires_at_ms FROM deliveries INDEXED BY deliveries_topic
		WHERE recipient = ? AND delivered_to < ? AND topic = ? AND outcome IS NULL LIMIT ?`
	flightOfAfterAndTopic = `SELECT ` + needed + `, expires_at_ms FROM deliveries INDEXED BY deliveries_topic
		WHERE recipient = ? AND delivered_to > ? AND topic = ? AND outcome IS NULL LIMIT ?`
)

// Where many are due they are looked for in the order of a fetch.
const (
	manyDue = `SELECT ` + needed + ` FROM deliveries INDEXED BY deliveries_flight
		WHERE recipient = ? AND outcome IS NULL AND delivered_at_ms IS NOT NULL AND expires_at_ms > ?
		AND (delivered_at_ms <= ? OR delivered_id < ? OR delivered_to <> ?) ORDER BY priority DESC, id LIMIT ?`
	manyDueOfTopics = `SELECT ` + needed + ` FROM deliveries INDEXED BY deliveries_flight
		WHERE recipient = ? AND outcome IS NULL AND delivered_at_ms IS NOT NULL AND expires_at_ms > ?
		AND (delivered_at_ms <= ? OR delivered_id < ? OR delivered_to <> ?)
		AND topic IN (SELECT value FROM json_each(?)) ORDER BY priority DESC, id LIMIT ?`
)

// again are the first deliveries of the recipient that are in flight and due.
// The oldest fetch is looked at first: where it is not due, none is, however
// many there are.
func (l *look) again(db step.DB, recipient string, most int) ([]Delivery, error) {
	var list []Delivery
	read := 0
	for _, q := range l.flights(recipient) {
		some, n, err := l.oldest(db, recipient, q)
		if err != nil {
			return nil, err
		}
		list = append(list, some...)
		if read += n; read >= fewDue {
			return l.many(db, recipient, most)
		}
	}
	return list, nil
}

// flight is a query of what is in flight. Its last argument is the limit.
type flight struct {
	text string
	args []any
}

func (l *look) flights(recipient string) []flight {
	if len(l.options.IncludeTopics) == 0 {
		args := []any{recipient, l.agent, fewDue}
		list := []flight{{flightOfAgent, args}}
		if recipient != l.agent {
			list = append(list, flight{flightOfBefore, args}, flight{flightOfAfter, args})
		}
		return list
	}
	var list []flight
	for _, topic := range l.options.IncludeTopics {
		args := []any{recipient, l.agent, topic, fewDue}
		list = append(list, flight{flightOfAgentAndTopic, args})
		if recipient != l.agent {
			list = append(list, flight{flightOfBeforeAndTopic, args}, flight{flightOfAfterAndTopic, args})
		}
	}
	return list
}

// oldest reads what is in flight until the first that is not due: fetches were
// made in the order of bus time, so none after it is. n says how many were due,
// with those whose time to live is over.
func (l *look) oldest(db step.DB, recipient string, q flight) (list []Delivery, n int, err error) {
	rows, err := db.Query(q.text, q.args...)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		d := Delivery{Recipient: recipient}
		if err := rows.Scan(&d.ID, &d.Priority, &d.QueuedAtMS, &d.Attempts, &d.DeliveredAtMS, &d.DeliveredID, &d.DeliveredTo, &d.ExpiresAtMS); err != nil {
			return nil, 0, err
		}
		if !l.due(&d) {
			break
		}
		if n++; d.ExpiresAtMS > l.nowMS {
			list = append(list, d)
		}
	}
	return list, n, rows.Err()
}

func (l *look) many(db step.DB, recipient string, most int) ([]Delivery, error) {
	args := []any{recipient, l.nowMS, l.overdue(), l.registeredID, l.agent}
	if len(l.options.IncludeTopics) == 0 {
		return collect(db, scanNeeded(recipient), manyDue, append(args, most)...)
	}
	topics, err := json.Marshal(l.options.IncludeTopics)
	if err != nil {
		return nil, err
	}
	return collect(db, scanNeeded(recipient), manyDueOfTopics, append(args, string(topics), most)...)
}
