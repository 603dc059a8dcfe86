package roles

import "signalbox/step"

// Agents are the facts about agents that elections need.
type Agents interface {
	// Agent tells of one agent. updatedAtMS is when it registered; the slices
	// are not changed. An agent that never registered MUST be known = false
	// without an error.
	Agent(db step.DB, agent string) (online bool, leaseExpiresAtMS int64, live bool, projectID string,
		capabilities, locators []string, updatedAtMS int64, known bool, err error)

	// CandidatesFor are the agents of the project with the capability. It MUST
	// have all that are online, in the order of their ids; of others it may.
	CandidatesFor(db step.DB, projectID, capability string) ([]string, error)
}

// Facts are all that the machine must know of others.
type Facts interface {
	// Agents are as the step stands: a change earlier in the step MUST show.
	Agents

	// Stored are the same as the tables of db have them. Queries use them on a
	// read-only connection beside the fold, so they MUST touch nothing else.
	Stored() Agents

	// Pending counts the open deliveries of a recipient, "role:<name>" here. It
	// MUST read the tables of db only, as queries use it.
	Pending(db step.DB, recipient string) (int64, error)
}

// agent reads the facts of one agent.
func agent(facts Agents, db step.DB, id string) (Agent, error) {
	a := Agent{ID: id}
	var err error
	a.Online, a.LeaseExpiresAtMS, a.Live, a.ProjectID, a.Capabilities, a.Locators, a.UpdatedAtMS, a.Known, err = facts.Agent(db, id)
	return a, err
}

// registration is the part of the Data of the notice agents.online that says
// whether a new generation has begun.
type registration interface{ NewlyRegistered() bool }
