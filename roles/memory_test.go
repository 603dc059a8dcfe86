package roles

import (
	"cmp"
	"maps"
	"slices"

	"signalbox/step"
)

// memory is a store of maps, for many sequences in little time.
type memory struct {
	roles      map[string]Role
	candidates map[string]map[string]Candidate // by role, then agent
	control    Control
}

func newMemory() *memory {
	return &memory{roles: map[string]Role{}, candidates: map[string]map[string]Candidate{}, control: newControl()}
}

func (m *memory) clone() *memory {
	c := &memory{roles: maps.Clone(m.roles), candidates: map[string]map[string]Candidate{}, control: m.control}
	for role, list := range m.candidates {
		c.candidates[role] = maps.Clone(list)
	}
	return c
}

func (m *memory) Role(name string) (*Role, error) {
	if r, ok := m.roles[name]; ok {
		return &r, nil
	}
	return nil, nil
}

func (m *memory) PutRole(r *Role) error {
	m.roles[r.Name()] = *r
	return nil
}

func (m *memory) names(limit int, keep func(r *Role) bool) []string {
	var names []string
	for name, r := range m.roles {
		if keep(&r) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names[:min(limit, len(names))]
}

func (m *memory) CountOpen() (n int64, err error) {
	for _, r := range m.roles {
		if r.State != Closed {
			n++
		}
	}
	return n, nil
}

func (m *memory) Open(after string, limit int) ([]string, error) {
	return m.names(limit, func(r *Role) bool { return r.State != Closed && r.Name() > after }), nil
}

func (m *memory) Vacant(project, after string, limit int) ([]string, error) {
	return m.names(limit, func(r *Role) bool { return r.vacant() && r.ProjectID == project && r.Name() > after }), nil
}

func (m *memory) HeldBy(agent string) ([]string, error) {
	return m.names(len(m.roles), func(r *Role) bool { return r.HolderAgentID == agent }), nil
}

func (m *memory) Candidate(role, agent string) (*Candidate, error) {
	if c, ok := m.candidates[role][agent]; ok {
		return &c, nil
	}
	return nil, nil
}

func (m *memory) PutCandidate(c *Candidate) error {
	if m.candidates[c.Role] == nil {
		m.candidates[c.Role] = map[string]Candidate{}
	}
	m.candidates[c.Role][c.AgentID] = *c
	return nil
}

func (m *memory) Candidates(role string, limit int) ([]Candidate, []*damagedRow, error) {
	list := slices.SortedFunc(maps.Values(m.candidates[role]), func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.AgentID, b.AgentID))
	})
	return list[:min(limit, len(list))], nil, nil
}

func (m *memory) CountCandidates(role string) (int64, error) {
	return int64(len(m.candidates[role])), nil
}

func (m *memory) Candidacies(agent string) ([]Candidate, error) {
	var list []Candidate
	for _, role := range slices.Sorted(maps.Keys(m.candidates)) {
		if c, ok := m.candidates[role][agent]; ok {
			list = append(list, c)
		}
	}
	return list, nil
}

func (m *memory) DropCandidates(role string) error {
	delete(m.candidates, role)
	return nil
}

func (m *memory) Control() (Control, error) { return m.control, nil }

func (m *memory) PutControl(c Control) error {
	m.control = c
	return nil
}

func (m *memory) due(nowMS int64) []step.Deadline {
	var due []step.Deadline
	for name, r := range m.roles {
		if at := r.dueAtMS(); at != 0 && at <= nowMS {
			due = append(due, step.Deadline{AtMS: at, Key: name})
		}
	}
	return due
}
