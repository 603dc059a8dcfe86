package inbox

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"signalbox/step"
	"signalbox/wire"
)

// Bounds of a look at what is in flight.
const (
	mostDue     = 500 // of one source and priority that are read and sorted
	mostHolders = 8   // earlier holders of a role
)

// source is a part of what is in flight to a recipient: what one agent has
// fetched, of one topic where the fetch names some. Within a source and a
// priority, what is due is a prefix in the order of the fetches, since bus time
// never goes back; what is given out again goes to the end.
type source struct {
	recipient string
	holder    string // who fetched it
	topic     string // "" for all
}

// The head of each priority of a source: the one that was fetched first of
// those whose time to live is not over.
var (
	headsOfAll   = headsOf("deliveries_again", "")
	headsOfTopic = headsOf("deliveries_topic", " AND topic = ?4")
)

func headsOf(index, topic string) string {
	var arms []string
	for p := wire.MaxPriority; p >= wire.MinPriority; p-- {
		arms = append(arms, fmt.Sprintf(`SELECT * FROM (SELECT priority, delivered_at_ms, delivered_id, delivered_to FROM deliveries INDEXED BY %s
			WHERE recipient = ?1 AND delivered_to = ?2 AND expires_at_ms > ?3%s AND priority = %d AND outcome IS NULL AND delivered_at_ms IS NOT NULL
			ORDER BY delivered_id, id LIMIT 1)`, index, topic, p))
	}
	return strings.Join(arms, " UNION ALL ")
}

const (
	dueOfAll = `SELECT ` + needed + ` FROM deliveries INDEXED BY deliveries_again
		WHERE recipient = ?1 AND delivered_to = ?2 AND expires_at_ms > ?3 AND priority = ?4 AND outcome IS NULL AND delivered_at_ms IS NOT NULL
		ORDER BY delivered_id, id LIMIT ?5`
	dueOfTopic = `SELECT ` + needed + ` FROM deliveries INDEXED BY deliveries_topic
		WHERE recipient = ?1 AND delivered_to = ?2 AND expires_at_ms > ?3 AND priority = ?4 AND topic = ?6 AND outcome IS NULL
		AND delivered_at_ms IS NOT NULL ORDER BY delivered_id, id LIMIT ?5`
)

// Who has something of a recipient in flight: each name is one step in the
// index, however much it has.
const (
	holdersOfAll = `WITH RECURSIVE h (who, n) AS (SELECT '', 0 UNION ALL SELECT
			(SELECT delivered_to FROM deliveries INDEXED BY deliveries_again WHERE recipient = ?1 AND delivered_to > who
				AND outcome IS NULL AND delivered_at_ms IS NOT NULL ORDER BY delivered_to LIMIT 1), n + 1
			FROM h WHERE who IS NOT NULL AND n < ?2)
		SELECT who FROM h WHERE who <> ''`
	holdersOfTopic = `WITH RECURSIVE h (who, n) AS (SELECT '', 0 UNION ALL SELECT
			(SELECT delivered_to FROM deliveries INDEXED BY deliveries_topic WHERE recipient = ?1 AND topic = ?3 AND delivered_to > who
				AND outcome IS NULL ORDER BY delivered_to LIMIT 1), n + 1
			FROM h WHERE who IS NOT NULL AND n < ?2)
		SELECT who FROM h WHERE who <> ''`
)

// again are the first deliveries of the recipient that are in flight and due,
// in order, at most so many. A higher priority always comes first. Within one,
// where more than mostDue of a source are due, it is those that were fetched
// first; and of a role with more than mostHolders earlier holders, it is what
// the first of them by name had, until that is given out.
func (l *look) again(db step.DB, recipient string, most int) ([]Delivery, error) {
	sources, err := l.sources(db, recipient)
	if err != nil {
		return nil, err
	}
	var list []Delivery
	for _, s := range sources {
		some, err := l.dueFrom(db, s, most)
		if err != nil {
			return nil, err
		}
		list = first(append(list, some...), most)
	}
	return list, nil
}

// sources are what is in flight to a recipient: to the agent itself, and to
// others who held the role before.
func (l *look) sources(db step.DB, recipient string) (list []source, err error) {
	topics := l.options.IncludeTopics
	if len(topics) == 0 {
		topics = []string{""}
	}
	for _, topic := range topics {
		list = append(list, source{recipient, l.agent, topic})
		if recipient == l.agent {
			continue
		}
		query, args := holdersOfAll, []any{recipient, mostHolders + 1} // the agent may be one
		if topic != "" {
			query, args = holdersOfTopic, append(args, topic)
		}
		holders, err := collect(db, func(rows *sql.Rows) (who string, err error) { return who, rows.Scan(&who) }, query, args...)
		if err != nil {
			return nil, err
		}
		for _, who := range holders {
			if who != l.agent {
				list = append(list, source{recipient, who, topic})
			}
		}
	}
	return list, nil
}

// heads are the first deliveries of a source, one for each priority that has
// any, the highest first. Where a head is not due, nothing of its priority is.
func (l *look) heads(db step.DB, s source) ([]Delivery, error) {
	query, args := headsOfAll, []any{s.recipient, s.holder, l.nowMS}
	if s.topic != "" {
		query, args = headsOfTopic, append(args, s.topic)
	}
	list, err := collect(db, func(rows *sql.Rows) (d Delivery, err error) {
		return d, rows.Scan(&d.Priority, &d.DeliveredAtMS, &d.DeliveredID, &d.DeliveredTo)
	}, query, args...)
	slices.SortFunc(list, func(a, b Delivery) int { return inOrder(&a, &b) })
	return list, err
}

// dueFrom are the first deliveries of a source that are due; of the last
// priority there may be more than most.
func (l *look) dueFrom(db step.DB, s source, most int) ([]Delivery, error) {
	heads, err := l.heads(db, s)
	if err != nil {
		return nil, err
	}
	var list []Delivery
	for i := range heads {
		if len(list) >= most {
			break
		}
		if !l.due(&heads[i]) {
			continue
		}
		some, err := l.duePrefix(db, s, heads[i].Priority)
		if err != nil {
			return nil, err
		}
		list = append(list, some...)
	}
	return list, nil
}

// duePrefix reads what a source has of a priority until the first that is not
// due.
func (l *look) duePrefix(db step.DB, s source, priority int64) (list []Delivery, err error) {
	query, args := dueOfAll, []any{s.recipient, s.holder, l.nowMS, priority, mostDue}
	if s.topic != "" {
		query, args = dueOfTopic, append(args, s.topic)
	}
	rows, err := db.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	scan := scanNeeded(s.recipient)
	for rows.Next() {
		d, err := scan(rows)
		if err != nil {
			return nil, err
		}
		if !l.due(&d) {
			break
		}
		list = append(list, d)
	}
	return list, rows.Err()
}

// ready says whether the agent may be given anything; where not, nextMS is when
// something that is in flight becomes due, 0 for never.
func (l *look) ready(db step.DB) (ready bool, nextMS int64, err error) {
	for _, recipient := range l.recipients {
		fresh, err := l.fresh(db, recipient, 1)
		if err != nil || len(fresh) > 0 {
			return len(fresh) > 0, 0, err
		}
		sources, err := l.sources(db, recipient)
		if err != nil {
			return false, 0, err
		}
		for _, s := range sources {
			heads, err := l.heads(db, s)
			if err != nil {
				return false, 0, err
			}
			for i := range heads {
				if l.due(&heads[i]) {
					return true, 0, nil
				}
				if at := *heads[i].DeliveredAtMS + l.options.RedeliverAfterMS; nextMS == 0 || at < nextMS {
					nextMS = at
				}
			}
		}
	}
	return false, nextMS, nil
}
