package agents

import (
	"encoding/json"
	"fmt"

	"signalbox/step"
	"signalbox/wire"
)

// Bounds of list. A reply stops early, with more, where it would be larger
// than pageBytes.
const (
	defaultPage = 100
	maxPage     = 1000
	pageBytes   = 512 << 10
)

// Queries implements the machine's interface.
func (m *Machine) Queries() map[string]step.Query {
	return map[string]step.Query{"list": queryList, "get": m.queryGet}
}

// detail is an agent with the count of its open deliveries.
type detail struct {
	Agent
	Pending int64 `json:"pending"`
}

func (m *Machine) queryGet(db step.DB, from string, body []byte) (any, error) {
	var q struct {
		AgentID string `json:"agent_id"` // "": the sender
	}
	if err := step.Decode(body, &q); err != nil {
		return nil, err
	}
	if q.AgentID == "" {
		q.AgentID = from
	}
	a, known, damaged, err := readAgent(db, q.AgentID)
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, notFound(q.AgentID)
	case damaged != nil:
		return nil, damaged
	}
	pending, err := m.pending(db, q.AgentID)
	if err != nil {
		return nil, fmt.Errorf("the pending deliveries of %q: %w", q.AgentID, err)
	}
	return detail{a, pending}, nil
}

// ListQuery is the body of list. What is left out does not narrow it.
type ListQuery struct {
	Status     Status `json:"status"`
	ProjectID  string `json:"project_id"`
	Topic      string `json:"topic"`
	CLI        string `json:"cli"`
	Capability string `json:"capability"`
	After      string `json:"after"` // the last agent_id of the page before
	Limit      *int   `json:"limit"` // 1 to 1,000, 100 if left out
}

// Page is a part of a list, ordered by agent_id. An agent whose row cannot be
// read is there as {agent_id, damaged}.
type Page struct {
	Agents []json.RawMessage `json:"agents"`
	More   bool              `json:"more"`
}

func queryList(db step.DB, _ string, body []byte) (any, error) {
	var q ListQuery
	if err := step.Decode(body, &q); err != nil {
		return nil, err
	}
	limit := defaultPage
	if q.Limit != nil {
		limit = *q.Limit
	}
	switch {
	case limit < 1 || limit > maxPage:
		return nil, wire.Errorf(wire.BodyInvalid, "limit is %d, and must be 1 to %d", limit, maxPage)
	case q.Status != "" && q.Status != Online && q.Status != Stale && q.Status != Offline:
		return nil, invalid("status", "online, stale or offline", string(q.Status))
	}
	return q.page(db, limit)
}

// page reads one agent more than it shows, to know whether there are more. The
// lists are JSON, which a damaged row may not be.
func (q ListQuery) page(db step.DB, limit int) (*Page, error) {
	rows, err := db.Query(`SELECT `+columns+` FROM agents WHERE agent_id > ?1
		AND (?2 = '' OR status = ?2) AND (?3 = '' OR project_id = ?3) AND (?4 = '' OR cli = ?4)
		AND (?5 = '' OR CASE WHEN json_valid(topics) THEN EXISTS (SELECT 1 FROM json_each(topics) WHERE value = ?5) END)
		AND (?6 = '' OR CASE WHEN json_valid(capabilities) THEN EXISTS (SELECT 1 FROM json_each(capabilities) WHERE value = ?6) END)
		ORDER BY agent_id LIMIT ?7`,
		q.After, string(q.Status), q.ProjectID, q.CLI, q.Topic, q.Capability, limit+1)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	page := &Page{Agents: []json.RawMessage{}}
	room := pageBytes
	for rows.Next() {
		a, damaged, err := scan(rows)
		if err != nil {
			return nil, err
		}
		var shown any = a
		if damaged != nil {
			shown = map[string]string{"agent_id": a.AgentID, "damaged": damaged.Error()}
		}
		raw, err := json.Marshal(shown)
		if err != nil {
			return nil, err
		}
		if room -= len(raw); len(page.Agents) == limit || room < 0 && len(page.Agents) > 0 {
			page.More = true
			return page, nil
		}
		page.Agents = append(page.Agents, raw)
	}
	return page, rows.Err()
}

// Count counts the agents by status; a status without any is left out.
func (m *Machine) Count(db step.DB) (map[string]int64, error) {
	rows, err := db.Query(`SELECT status, count(*) FROM agents GROUP BY status`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	counts := map[string]int64{}
	for rows.Next() {
		var status string
		var n int64
		if err := rows.Scan(&status, &n); err != nil {
			return nil, err
		}
		counts[status] = n
	}
	return counts, rows.Err()
}
