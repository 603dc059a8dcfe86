package agents

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"signalbox/step"
)

// Owed is what must be known to deliver to an agent: whether it has ever
// registered, whether its delivery is live, and the register row of its current
// generation's registration. It is for machines in the fold; a reader beside it
// uses OwedOnTable.
func (m *Machine) Owed(db step.DB, agent string) (known, live bool, registeredID int64, err error) {
	dir, err := m.directory(db)
	if err != nil {
		return false, false, 0, err
	}
	e := dir.byID[agent]
	if e == nil {
		return false, false, 0, nil
	}
	return true, e.agent.Delivery == Live, e.agent.RegisteredID, nil
}

// OwedOnTable is Owed as of the last commit, for a read-only connection.
func (m *Machine) OwedOnTable(db step.DB, agent string) (known, live bool, registeredID int64, err error) {
	var delivery Delivery
	err = db.QueryRow(`SELECT delivery, registered_id FROM agents WHERE agent_id = ?`, agent).Scan(&delivery, &registeredID)
	if errors.Is(err, sql.ErrNoRows) {
		return false, false, 0, nil
	}
	return err == nil, delivery == Live, registeredID, err
}

// Subscribers are the agents with exactly that topic that are not offline: the
// ids of those with delivery inbox, sorted, and how many live ones. The slice
// MUST NOT be changed. It is for machines in the fold.
func (m *Machine) Subscribers(db step.DB, topic string) (inbox []string, live int, err error) {
	dir, err := m.directory(db)
	if err != nil {
		return nil, 0, err
	}
	who := dir.topics[topic]
	if who == nil {
		return nil, 0, nil
	}
	return who.inbox, who.live, nil
}

// Facts are what an election must know of an agent. Its slices MUST NOT be
// changed.
type Facts struct {
	Online            bool
	LeaseExpiresAtMS  int64
	Live              bool // delivery is live
	ProjectID         string
	Capabilities      []string // sorted
	TransportLocators []string // the best first
	UpdatedAtMS       int64    // when its generation registered
}

// Candidate are the facts of an agent. It is for machines in the fold; a reader
// beside it uses CandidateOnTable.
func (m *Machine) Candidate(db step.DB, agent string) (c Facts, known bool, err error) {
	dir, err := m.directory(db)
	if err != nil {
		return Facts{}, false, err
	}
	e := dir.byID[agent]
	if e == nil {
		return Facts{}, false, nil
	}
	return e.agent.facts(e.damaged), true, nil
}

// CandidateOnTable is Candidate as of the last commit, for a read-only
// connection.
func (m *Machine) CandidateOnTable(db step.DB, agent string) (c Facts, known bool, err error) {
	a, known, damaged, err := readAgent(db, agent)
	if err != nil || !known {
		return Facts{}, false, err
	}
	return a.facts(damaged), true, nil
}

// CandidatesFor are the agents of the project that are online and have the
// capability, sorted by id. It looks at every agent once. It is for machines in
// the fold.
func (m *Machine) CandidatesFor(db step.DB, projectID, capability string) ([]string, error) {
	dir, err := m.directory(db)
	if err != nil {
		return nil, err
	}
	var ids []string
	for id, e := range dir.byID {
		if e.damaged != nil || e.agent.Status != Online || e.agent.ProjectID != projectID {
			continue
		}
		if _, can := slices.BinarySearch(e.agent.Capabilities, capability); can {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

func (a *Agent) facts(damaged error) Facts {
	return Facts{Online: damaged == nil && a.Status == Online, LeaseExpiresAtMS: a.LeaseExpiresAtMS, Live: a.Delivery == Live,
		ProjectID: a.ProjectID, Capabilities: a.Capabilities, TransportLocators: a.TransportLocators, UpdatedAtMS: a.RegisteredAtMS}
}

// Admit says whether a heartbeat of the agent with the body may count, and the
// generation that it names, 0 for none. The body may be anything; a numeric
// "generation" of a JSON object is what it names. It reads the table only, as
// of the last commit. The refusal is AGENT_NOT_FOUND, AGENT_DEREGISTERED or
// STALE_GENERATION.
func (m *Machine) Admit(db step.DB, from string, body []byte) (generation int64, err error) {
	a := Agent{AgentID: from}
	err = db.QueryRow(`SELECT generation, deregistered FROM agents WHERE agent_id = ?`, from).Scan(&a.Generation, &a.Deregistered)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, notFound(from)
	case err != nil:
		return 0, fmt.Errorf("admit a heartbeat of %q: %w", from, err)
	}
	generation = statedGeneration(body)
	if refusal := Admissible(&a, generation); refusal != nil {
		return 0, refusal
	}
	return generation, nil
}

// noGeneration is a number that no generation has.
const noGeneration = -1

// Stated is the generation that the body of a heartbeat names, 0 for none; a
// number that no generation has for one that cannot be any.
func (*Machine) Stated(body []byte) int64 { return statedGeneration(body) }

func statedGeneration(body []byte) int64 {
	const field = "generation"
	if !bytes.Contains(body, []byte(field)) { // most bodies are empty or short
		return 0
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return 0
	}
	raw := fields[field]
	if len(raw) == 0 || raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
		return 0
	}
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return n
	}
	// A client without whole numbers may write 3 as 3.0 or 3e0.
	const exact = 1 << 53 // up to here a float holds every whole number
	f, err := strconv.ParseFloat(string(raw), 64)
	if err == nil && f == math.Trunc(f) && math.Abs(f) < exact {
		return int64(f)
	}
	return noGeneration
}
