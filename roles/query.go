package roles

import (
	"errors"
	"slices"

	"signalbox/step"
	"signalbox/wire"
)

// schemaVersion names the form of list, which users of an older hub know.
const schemaVersion = "tfx.roles.v2"

// Bounds of a list.
const (
	listLimit    = 100
	maxListLimit = 500
)

const (
	selectNow  = `SELECT bus_ns / 1000000 FROM bridge_state WHERE id = 1`
	selectList = `SELECT ` + roleColumns + ` FROM roles WHERE (?1 = '' OR project_id = ?1) AND (?2 = '' OR role_kind = ?2)
	AND (?3 = '' OR scope_id = ?3) AND (?4 = '' OR instr(?4, ',' || state || ',') > 0) AND role_key_wire > ?5
	ORDER BY role_key_wire LIMIT ?6`
)

// Queries implements the machine's interface: get, list and candidates. They
// read tables only.
func (m *Machine) Queries() map[string]step.Query {
	return map[string]step.Query{"get": m.get, "list": m.list, "candidates": m.candidates}
}

// Item is a role as get and list show it. Its holder's lease is as it stands.
type Item struct {
	Snapshot
	CandidateCount     int64 `json:"candidate_count"`      // that are not withdrawn
	LiveCandidateCount int64 `json:"live_candidate_count"` // of those, with a lease that has not run out
	PendingCount       int64 `json:"pending_count"`        // messages that wait for the holder
}

// ListReply answers list.
type ListReply struct {
	SchemaVersion string       `json:"schema_version"`
	GeneratedAtMS int64        `json:"generated_at_ms"` // bus time
	Items         []Item       `json:"items"`           // by role_key_wire
	Damaged       []DamagedRow `json:"damaged,omitempty"`
	More          bool         `json:"more"`
	NextAfter     string       `json:"next_after,omitempty"`
}

// DamagedRow is a row that cannot be shown.
type DamagedRow struct {
	Row     string `json:"row"`
	Problem string `json:"problem"`
}

// view reads what queries show; facts are read once.
type view struct {
	db     step.DB
	facts  Facts
	nowMS  int64
	agents map[string]Agent
	grants map[string][]string
}

func (m *Machine) view(db step.DB) (*view, error) {
	v := &view{db: db, facts: m.facts, agents: map[string]Agent{}, grants: map[string][]string{}}
	return v, db.QueryRow(selectNow).Scan(&v.nowMS)
}

func (v *view) agent(id string) (Agent, error) {
	if a, ok := v.agents[id]; ok {
		return a, nil
	}
	a, err := agent(v.facts.Stored(), v.db, id)
	v.agents[id] = a
	return a, err
}

func (v *view) granted(k Key) ([]string, error) {
	key := k.ProjectID + "/" + k.RoleKind
	if ids, ok := v.grants[key]; ok {
		return ids, nil
	}
	ids, err := v.facts.Stored().CandidatesFor(v.db, k.ProjectID, capability(k.RoleKind))
	v.grants[key] = ids
	return ids, err
}

func (v *view) item(r *Role) (Item, error) {
	i := Item{Snapshot: r.Snapshot()}
	if r.HolderAgentID != "" {
		holder, err := v.agent(r.HolderAgentID)
		if err != nil {
			return i, err
		}
		i.HolderLeaseExpiresAtMS = optional(holder.LeaseExpiresAtMS)
	}
	if r.State == Closed { // nobody will be elected, and its messages are dead letters
		return i, nil
	}
	pool, _, err := contenders(tables{v.db}, r.Key, v.agent, v.granted)
	if err != nil {
		return i, err
	}
	for _, c := range pool {
		if c.Withdrawn {
			continue
		}
		i.CandidateCount++
		if c.Agent.leased(v.nowMS) {
			i.LiveCandidateCount++
		}
	}
	i.PendingCount, err = v.facts.Pending(v.db, wire.Recipient{Class: wire.ToRole, Name: r.Name()}.String())
	return i, err
}

// named reads the role that a query's body names; its kind need not be set any
// more.
func (m *Machine) named(db step.DB, body []byte) (*view, Key, *Role, error) {
	var q keyed
	if err := step.Decode(body, &q); err != nil {
		return nil, Key{}, nil, err
	}
	k, refusal := q.key()
	if refusal != nil {
		return nil, Key{}, nil, refusal
	}
	v, err := m.view(db)
	if err != nil {
		return nil, Key{}, nil, err
	}
	r, err := tables{db}.Role(k.Name())
	return v, k, r, err
}

func (m *Machine) get(db step.DB, _ string, body []byte) (any, error) {
	v, k, r, err := m.named(db, body)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, wire.Errorf(wire.NotFound, "nobody has asked for %s yet", k.Name()).WithHint("ask for it (roles.ensure)")
	}
	return v.item(r)
}

func (m *Machine) list(db step.DB, _ string, body []byte) (any, error) {
	q := struct {
		ProjectID string  `json:"project_id"`
		RoleKind  string  `json:"role_kind"`
		ScopeID   string  `json:"scope_id"`
		States    []State `json:"states"`
		After     string  `json:"after"` // the role_key_wire of the last one seen
		Limit     int64   `json:"limit"`
	}{Limit: listLimit}
	if err := step.Decode(body, &q); err != nil {
		return nil, err
	}
	switch {
	case q.ProjectID != "" && !prefixed(q.ProjectID, projectPrefix):
		return nil, wire.Errorf(wire.ProjectIDInvalid, "project_id %.64q is not the id of a project", q.ProjectID)
	case q.ScopeID != "" && !prefixed(q.ScopeID, scopePrefix):
		return nil, wire.Errorf(wire.ScopeIDInvalid, "scope_id %.64q is not the id of a scope", q.ScopeID)
	case q.Limit < 1 || q.Limit > maxListLimit:
		return nil, wire.Errorf(wire.BodyInvalid, "limit is %d, it must be 1 to %d", q.Limit, maxListLimit)
	}
	states := ""
	for _, s := range q.States {
		if !s.known() {
			return nil, wire.Errorf(wire.BodyInvalid, "there is no state %.40q", string(s))
		}
		states += "," + string(s)
	}
	if states != "" {
		states += ","
	}
	v, err := m.view(db)
	if err != nil {
		return nil, err
	}
	roles, reply, err := page(db, q.Limit, q.ProjectID, q.RoleKind, q.ScopeID, states, q.After, q.Limit+1)
	if err != nil {
		return nil, err
	}
	reply.SchemaVersion, reply.GeneratedAtMS, reply.Items = schemaVersion, v.nowMS, make([]Item, len(roles))
	for i, r := range roles {
		if reply.Items[i], err = v.item(r); err != nil {
			return nil, err
		}
	}
	return reply, nil
}

// page reads the rows of a list; a damaged one is told beside the others.
func page(db step.DB, limit int64, args ...any) (roles []*Role, reply ListReply, err error) {
	rows, err := db.Query(selectList, args...)
	if err != nil {
		return nil, reply, err
	}
	defer rows.Close()
	for n := int64(0); rows.Next(); n++ {
		if n == limit {
			reply.More = true
			break
		}
		r, err := scanRole(rows)
		var d *damagedRow
		switch {
		case errors.As(err, &d):
			reply.Damaged = append(reply.Damaged, DamagedRow{d.key, d.err.Error()})
			reply.NextAfter = d.wire
			continue
		case err != nil:
			return nil, reply, err
		}
		roles = append(roles, r)
		reply.NextAfter = r.Wire()
	}
	if !reply.More {
		reply.NextAfter = ""
	}
	return roles, reply, rows.Err()
}

// CandidateItem is a candidate as the query candidates shows it.
type CandidateItem struct {
	AgentID                  string   `json:"agent_id"`
	Source                   Source   `json:"source"`
	Priority                 int64    `json:"priority"`
	Locators                 []string `json:"locators"`
	ConsecutiveProbeFailures int64    `json:"consecutive_probe_failures"`
	ExcludedUntilMS          *int64   `json:"excluded_until_ms"`
	LastProbeAtMS            *int64   `json:"last_probe_at_ms"`
	LastProbeCode            *string  `json:"last_probe_code"`
	UpdatedAtMS              int64    `json:"updated_at_ms"`
	Eligible                 bool     `json:"eligible"`
	Unfit                    string   `json:"unfit,omitempty"` // why it may not be elected now
}

// CandidatesReply answers candidates.
type CandidatesReply struct {
	RoleKey     Key             `json:"role_key"`
	RoleKeyWire string          `json:"role_key_wire"`
	Candidates  []CandidateItem `json:"candidates"` // those that may be elected first, in the order of election
	More        bool            `json:"more"`
}

func (m *Machine) candidates(db step.DB, _ string, body []byte) (any, error) {
	v, k, _, err := m.named(db, body)
	if err != nil {
		return nil, err
	}
	pool, _, err := contenders(tables{db}, k, v.agent, v.granted)
	if err != nil {
		return nil, err
	}
	fit := func(c *Contender) bool { return c.Unfit(k, v.nowMS) == "" }
	slices.SortFunc(pool, func(a, b Contender) int {
		switch fitA, fitB := fit(&a), fit(&b); {
		case fitA != fitB && fitA:
			return -1
		case fitA != fitB:
			return 1
		}
		return a.compare(&b)
	})
	reply := CandidatesReply{RoleKey: k, RoleKeyWire: k.Wire(), Candidates: []CandidateItem{}, More: len(pool) > maxListLimit}
	for _, c := range pool[:min(len(pool), maxListLimit)] {
		unfit := c.Unfit(k, v.nowMS)
		reply.Candidates = append(reply.Candidates, CandidateItem{AgentID: c.AgentID, Source: c.Source, Priority: c.Priority,
			Locators: append([]string{}, c.Locators...), ConsecutiveProbeFailures: c.Failures, ExcludedUntilMS: optional(c.ExcludedUntilMS),
			LastProbeAtMS: optional(c.LastProbeAtMS), LastProbeCode: optional(c.LastProbeCode), UpdatedAtMS: c.UpdatedAtMS,
			Eligible: unfit == "", Unfit: unfit})
	}
	return reply, nil
}
