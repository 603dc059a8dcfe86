package roles

// agent are the facts of one agent.
func (t *turn) agent(id string) (Agent, error) {
	if a, ok := t.agents[id]; ok {
		return a, nil
	}
	a, err := agent(t.facts, t.db, id)
	if err == nil {
		t.agents[id] = a
	}
	return a, err
}

// granted are the agents that are candidates by their capability alone.
func (t *turn) granted(k Key) ([]string, error) {
	grant := capability(k.RoleKind)
	key := k.ProjectID + "/" + grant
	if ids, ok := t.grants[key]; ok {
		return ids, nil
	}
	ids, err := t.facts.CandidatesFor(t.db, k.ProjectID, grant)
	if err == nil {
		t.grants[key] = ids
	}
	return ids, err
}

// pool are the candidates of a role: those with a row, and those whose
// capability makes them one.
func (t *turn) pool(k Key) ([]Contender, error) {
	pool, damage, err := contenders(t.store, k, t.agent, t.granted)
	for _, d := range damage {
		t.report(d)
	}
	return pool, err
}

func contenders(s store, k Key, agent func(string) (Agent, error), granted func(Key) ([]string, error)) ([]Contender, []*damagedRow, error) {
	rows, damage, err := s.Candidates(k.Name(), maxCandidates)
	if err != nil {
		return nil, nil, err
	}
	ids, err := granted(k)
	if err != nil {
		return nil, nil, err
	}
	pool := make([]Contender, 0, len(rows)+len(ids))
	seen := make(map[string]bool, len(rows))
	for _, c := range rows {
		a, err := agent(c.AgentID)
		if err != nil {
			return nil, nil, err
		}
		seen[c.AgentID] = true
		pool = append(pool, Contender{Candidate: c, Agent: a})
	}
	for _, id := range ids {
		if seen[id] {
			continue
		}
		a, err := agent(id)
		if err != nil {
			return nil, nil, err
		}
		c := candidacy(k, &a)
		if len(rows) == maxCandidates { // its row may be one that was not read
			row, err := s.Candidate(c.Role, id)
			if err != nil {
				return nil, nil, err
			}
			if row != nil {
				c = *row
			}
		}
		pool = append(pool, Contender{Candidate: c, Agent: a})
	}
	return pool, damage, nil
}

// contender is one agent as a candidate of the role, and whether it has a row.
func (t *turn) contender(k Key, id string) (c Contender, known bool, err error) {
	if c.Agent, err = t.agent(id); err != nil {
		return c, false, err
	}
	row, err := t.store.Candidate(k.Name(), id)
	if err != nil {
		return c, false, err
	}
	if row != nil {
		c.Candidate = *row
		return c, true, nil
	}
	c.Candidate = candidacy(k, &c.Agent)
	return c, false, nil
}

func (t *turn) choose(k Key) (Choice, error) {
	pool, err := t.pool(k)
	if err != nil {
		return Choice{}, err
	}
	return Choose(k, pool, t.settings, t.now), nil
}
