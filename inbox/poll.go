package inbox

import (
	"database/sql"
	"errors"
	"fmt"

	"signalbox/step"
)

// pollFetch looks whether a fetch would find something. Refusals are those of
// the fetch. It reads tables only and may run beside the loop.
func (m *Machine) pollFetch(db step.DB, from string, body []byte) (step.Polled, error) {
	options, err := ReadOptions(body)
	if err != nil {
		return step.Polled{}, err
	}
	known, _, registeredID, err := m.facts.Agents.OwedOnTable(db, from)
	if err != nil {
		return step.Polled{}, err
	}
	if !known {
		return step.Polled{}, notRegistered(from)
	}
	recipients, err := m.recipients(db, from)
	if err != nil {
		return step.Polled{}, err
	}
	nowMS, err := busTime(db)
	if err != nil {
		return step.Polled{}, err
	}
	l := look{agent: from, recipients: recipients, registeredID: registeredID, nowMS: nowMS, options: options}
	polled := step.Polled{Keys: recipients, WaitMS: options.WaitMS, Empty: nothing()}
	list, err := l.eligible(db, 1)
	if err != nil || len(list) > 0 {
		polled.Ready = len(list) > 0
		return polled, err
	}
	nextMS, err := l.next(db)
	if nextMS > 0 {
		polled.InMS = max(1, nextMS-nowMS)
	}
	return polled, err
}

// busTime is bus time as of the last commit, or now where db knows.
func busTime(db step.DB) (ms int64, err error) {
	if c, ok := db.(Clock); ok {
		return c.NowMS(), nil
	}
	err = db.QueryRow(`SELECT bus_ns / 1000000 FROM bridge_state`).Scan(&ms)
	if err != nil {
		return 0, fmt.Errorf("read bus time: %w", err)
	}
	return ms, nil
}

// The time of the oldest fetch whose messages are in flight to the agent.
const (
	oldestFlight = `SELECT delivered_at_ms FROM deliveries INDEXED BY deliveries_age
		WHERE recipient = ? AND delivered_to = ? AND outcome IS NULL AND delivered_at_ms IS NOT NULL AND expires_at_ms > ?
		ORDER BY delivered_id, id LIMIT 1`
	oldestFlightOfTopic = `SELECT delivered_at_ms FROM deliveries INDEXED BY deliveries_topic
		WHERE recipient = ? AND delivered_to = ? AND topic = ? AND outcome IS NULL AND expires_at_ms > ?
		ORDER BY delivered_id, priority DESC, id LIMIT 1`
)

// next is when something that is in flight becomes due, where nothing is now;
// 0 for never.
func (l *look) next(db step.DB) (nextMS int64, err error) {
	earliest := func(query string, args ...any) error {
		var at int64
		switch err := db.QueryRow(query, args...).Scan(&at); {
		case errors.Is(err, sql.ErrNoRows):
			return nil
		case err != nil:
			return fmt.Errorf("read what is in flight to %q: %w", l.agent, err)
		}
		if at += l.options.RedeliverAfterMS; nextMS == 0 || at < nextMS {
			nextMS = at
		}
		return nil
	}
	for _, recipient := range l.recipients {
		if len(l.options.IncludeTopics) == 0 {
			if err := earliest(oldestFlight, recipient, l.agent, l.nowMS); err != nil {
				return 0, err
			}
		}
		for _, topic := range l.options.IncludeTopics {
			if err := earliest(oldestFlightOfTopic, recipient, l.agent, topic, l.nowMS); err != nil {
				return 0, err
			}
		}
	}
	return nextMS, nil
}
