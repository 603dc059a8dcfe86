package inbox

import (
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
	ready, nextMS, err := l.ready(db)
	if err != nil {
		return polled, fmt.Errorf("look what %q may be given: %w", from, err)
	}
	if polled.Ready = ready; nextMS > 0 {
		polled.InMS = max(1, nextMS-nowMS)
	}
	return polled, nil
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
