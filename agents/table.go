package agents

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"signalbox/step"
)

// columns are all columns of the table, in the order in which scan and
// writeAgent take them.
const columns = `agent_id, cli, pid, capabilities, topics, project_id, session_id, host_id, transport_locators, metadata,
	delivery, registration, generation, lease_id, heartbeat_ttl_ms, status, deregistered, registered_id, registered_at_ms,
	last_seen_at_ms, lease_expires_at_ms, status_since_ms, deadline_at_ms`

// scanner is a row, or rows at one.
type scanner interface{ Scan(dest ...any) error }

// scan reads a row. damaged says why it cannot be used, if so; what could be
// read is in the agent. Other errors are of the database.
func scan(row scanner) (a Agent, damaged, err error) {
	var capabilities, topics, locators, metadata string
	var pid, deadline sql.NullInt64
	if err := row.Scan(&a.AgentID, &a.CLI, &pid, &capabilities, &topics, &a.ProjectID, &a.SessionID, &a.HostID, &locators, &metadata,
		&a.Delivery, &a.Registration, &a.Generation, &a.LeaseID, &a.HeartbeatTTLMS, &a.Status, &a.Deregistered, &a.RegisteredID,
		&a.RegisteredAtMS, &a.LastSeenAtMS, &a.LeaseExpiresAtMS, &a.StatusSinceMS, &deadline); err != nil {
		return a, nil, err
	}
	a.PID, a.DeadlineAtMS = pid.Int64, deadline.Int64
	for _, list := range []struct {
		column, text string
		into         *[]string
	}{{"capabilities", capabilities, &a.Capabilities}, {"topics", topics, &a.Topics}, {"transport_locators", locators, &a.TransportLocators}} {
		if err := json.Unmarshal([]byte(list.text), list.into); err != nil || *list.into == nil {
			*list.into = []string{}
			damaged = fmt.Errorf("the row of agent %q is damaged: %s is no JSON array of texts", a.AgentID, list.column)
		}
	}
	if a.Metadata = json.RawMessage(metadata); !json.Valid(a.Metadata) {
		a.Metadata = json.RawMessage("{}")
		damaged = fmt.Errorf("the row of agent %q is damaged: metadata is no JSON", a.AgentID)
	}
	switch {
	case a.Status != Online && a.Status != Stale && a.Status != Offline:
		damaged = fmt.Errorf("the row of agent %q is damaged: it has the status %.60q", a.AgentID, a.Status)
	case a.Delivery != Inbox && a.Delivery != Live:
		damaged = fmt.Errorf("the row of agent %q is damaged: it has the delivery %.60q", a.AgentID, a.Delivery)
	}
	return a, damaged, nil
}

// readDirectory reads all agents.
func readDirectory(db step.DB) (*directory, error) {
	rows, err := db.Query(`SELECT ` + columns + ` FROM agents ORDER BY agent_id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	d := newDirectory()
	for rows.Next() {
		a, damaged, err := scan(rows)
		if err != nil {
			return nil, err
		}
		d.load(a, damaged)
	}
	return d, rows.Err()
}

// readAgent reads one agent from the table; known says whether there is one.
func readAgent(db step.DB, id string) (a Agent, known bool, damaged, err error) {
	a, damaged, err = scan(db.QueryRow(`SELECT `+columns+` FROM agents WHERE agent_id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return a, false, nil, nil
	}
	return a, err == nil, damaged, err
}

// writeAgent writes all of an agent.
func writeAgent(db step.DB, a *Agent) error {
	var texts [3]string
	for i, list := range [...][]string{a.Capabilities, a.Topics, a.TransportLocators} {
		raw, err := json.Marshal(list)
		if err != nil {
			return err
		}
		texts[i] = string(raw)
	}
	_, err := db.Exec(`INSERT OR REPLACE INTO agents (`+columns+`)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		a.AgentID, a.CLI, orNull(a.PID), texts[0], texts[1], a.ProjectID, a.SessionID, a.HostID, texts[2], string(a.Metadata),
		string(a.Delivery), a.Registration, a.Generation, a.LeaseID, a.HeartbeatTTLMS, string(a.Status), a.Deregistered, a.RegisteredID,
		a.RegisteredAtMS, a.LastSeenAtMS, a.LeaseExpiresAtMS, a.StatusSinceMS, orNull(a.DeadlineAtMS))
	return err
}

// writeTimes writes what a sign of life has moved: most rows of a flush are
// that and no more.
func writeTimes(db step.DB, a *Agent) error {
	_, err := db.Exec(`UPDATE agents SET last_seen_at_ms = ?, lease_expires_at_ms = ?, deadline_at_ms = ? WHERE agent_id = ?`,
		a.LastSeenAtMS, a.LeaseExpiresAtMS, orNull(a.DeadlineAtMS), a.AgentID)
	return err
}

func orNull(v int64) any {
	if v == 0 {
		return nil
	}
	return v
}

// due reads the deadlines at or before nowMS by the index agents_deadline.
func due(db step.DB, nowMS int64, limit int) ([]step.Deadline, error) {
	rows, err := db.Query(`SELECT agent_id, deadline_at_ms FROM agents WHERE deadline_at_ms <= ?
		ORDER BY deadline_at_ms, agent_id LIMIT ?`, nowMS, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []step.Deadline
	for rows.Next() {
		var d step.Deadline
		if err := rows.Scan(&d.Key, &d.AtMS); err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, rows.Err()
}
