package inbox

import (
	"database/sql"
	"fmt"
	"slices"

	"signalbox/step"
)

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
	return first(all, most), nil
}

// first sorts a list as a fetch gives out, and keeps at most so many.
func first(list []Delivery, most int) []Delivery {
	slices.SortFunc(list, func(a, b Delivery) int { return inOrder(&a, &b) })
	return list[:min(most, len(list))]
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
		WHERE recipient = ? AND topic = ? AND delivered_to IS NULL AND outcome IS NULL AND expires_at_ms > ?
		ORDER BY priority DESC, delivered_id, id LIMIT ?`
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
