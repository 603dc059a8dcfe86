package roles

import (
	"database/sql"
	"encoding/json"
	"errors"
)

const candidateColumns = `role, agent_id, source, priority, locators, consecutive_probe_failures, coalesce(excluded_until_ms, 0),
	excluded_reason, coalesce(last_probe_at_ms, 0), last_probe_code, capable, withdrawn, updated_at_ms`

const (
	selectCandidate   = `SELECT ` + candidateColumns + ` FROM roles_candidates WHERE role = ? AND agent_id = ?`
	selectCandidates  = `SELECT ` + candidateColumns + ` FROM roles_candidates WHERE role = ? ORDER BY priority DESC, agent_id LIMIT ?`
	selectCandidacies = `SELECT ` + candidateColumns + ` FROM roles_candidates WHERE agent_id = ? ORDER BY role`
	countCandidates   = `SELECT count(*) FROM roles_candidates WHERE role = ?`
	dropCandidates    = `DELETE FROM roles_candidates WHERE role = ?`
	putCandidate      = `INSERT OR REPLACE INTO roles_candidates (role, agent_id, source, priority, locators,
	consecutive_probe_failures, excluded_until_ms, excluded_reason, last_probe_at_ms, last_probe_code, capable, withdrawn, updated_at_ms)
	VALUES (?, ?, ?, ?, ?, ?, nullif(?, 0), ?, nullif(?, 0), ?, ?, ?, ?)`

	selectControl = `SELECT master_enabled, generation, kinds, charters, raised FROM roles_control WHERE n = 1`
	putControl    = `INSERT OR REPLACE INTO roles_control (n, master_enabled, generation, kinds, charters, raised) VALUES (1, ?, ?, ?, ?, ?)`
)

func scanCandidate(from row) (Candidate, error) {
	var c Candidate
	var locators string
	if err := from.Scan(&c.Role, &c.AgentID, &c.Source, &c.Priority, &locators, &c.Failures, &c.ExcludedUntilMS, &c.ExcludedReason,
		&c.LastProbeAtMS, &c.LastProbeCode, &c.Capable, &c.Withdrawn, &c.UpdatedAtMS); err != nil {
		return c, err
	}
	if err := json.Unmarshal([]byte(locators), &c.Locators); err != nil {
		return c, &damagedRow{table: candidatesTable, key: c.Role + " " + c.AgentID, err: err}
	}
	return c, nil
}

// Candidate implements store. A damaged row is none: the next write repairs it.
func (t tables) Candidate(role, agent string) (*Candidate, error) {
	c, err := scanCandidate(t.db.QueryRow(selectCandidate, role, agent))
	var damaged *damagedRow
	if errors.Is(err, sql.ErrNoRows) || errors.As(err, &damaged) {
		return nil, nil
	}
	return &c, err
}

// PutCandidate implements store.
func (t tables) PutCandidate(c *Candidate) error {
	locators, err := json.Marshal(append([]string{}, c.Locators...))
	if err != nil {
		return err
	}
	_, err = t.db.Exec(putCandidate, c.Role, c.AgentID, string(c.Source), c.Priority, string(locators), c.Failures, c.ExcludedUntilMS,
		string(c.ExcludedReason), c.LastProbeAtMS, c.LastProbeCode, c.Capable, c.Withdrawn, c.UpdatedAtMS)
	return err
}

// Candidates implements store.
func (t tables) Candidates(role string, limit int) ([]Candidate, []*damagedRow, error) {
	return t.candidates(selectCandidates, role, limit)
}

// Candidacies implements store. Damaged ones are left out; where they matter,
// the election says so.
func (t tables) Candidacies(agent string) ([]Candidate, error) {
	list, _, err := t.candidates(selectCandidacies, agent)
	return list, err
}

func (t tables) candidates(query string, args ...any) (list []Candidate, damage []*damagedRow, err error) {
	rows, err := t.db.Query(query, args...)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		c, err := scanCandidate(rows)
		var damaged *damagedRow
		switch {
		case errors.As(err, &damaged):
			damage = append(damage, damaged)
		case err != nil:
			return nil, nil, err
		default:
			list = append(list, c)
		}
	}
	return list, damage, rows.Err()
}

// CountCandidates implements store.
func (t tables) CountCandidates(role string) (n int64, err error) {
	err = t.db.QueryRow(countCandidates, role).Scan(&n)
	return n, err
}

// DropCandidates implements store.
func (t tables) DropCandidates(role string) error {
	_, err := t.db.Exec(dropCandidates, role)
	return err
}

// Control implements store: without a row it is how it starts.
func (t tables) Control() (Control, error) {
	var c Control
	var kinds, charters string
	err := t.db.QueryRow(selectControl).Scan(&c.MasterEnabled, &c.Generation, &kinds, &charters, &c.Raised)
	if errors.Is(err, sql.ErrNoRows) {
		return newControl(), nil
	}
	if err == nil {
		err = errors.Join(json.Unmarshal([]byte(kinds), &c.Kinds), json.Unmarshal([]byte(charters), &c.Charters))
	}
	return c, err
}

// PutControl implements store.
func (t tables) PutControl(c Control) error {
	kinds, err := json.Marshal(c.Kinds)
	if err != nil {
		return err
	}
	charters, err := json.Marshal(c.Charters)
	if err != nil {
		return err
	}
	_, err = t.db.Exec(putControl, c.MasterEnabled, c.Generation, string(kinds), string(charters), c.Raised)
	return err
}
