package roles

import (
	"slices"

	"signalbox/wire"
)

// Bounds of a candidacy.
const (
	maxPriority = 1000 // and no less than its negative
	maxLocators = 16
	maxLocator  = 256 // bytes
)

// CandidateReply answers candidate and withdraw.
type CandidateReply struct {
	RoleKey     Key      `json:"role_key"`
	RoleKeyWire string   `json:"role_key_wire"`
	AgentID     string   `json:"agent_id"`
	Source      Source   `json:"source"`
	Priority    int64    `json:"priority"`
	Locators    []string `json:"locators"`
	Eligible    bool     `json:"eligible"`
	Unfit       string   `json:"unfit,omitempty"` // why it may not be elected now
	Idempotent  bool     `json:"idempotent,omitempty"`
}

// candidateCommand makes an agent a candidate, or changes how it is one.
func (t *turn) candidateCommand(body []byte) (any, error) {
	var c struct {
		keyed
		AgentID  string   `json:"agent_id"` // the sender where it is left out
		Priority int64    `json:"priority"`
		Locators []string `json:"locators"` // the agent's own where they are left out
	}
	k, err := t.decode(body, &c, &c.keyed)
	if err != nil {
		return nil, err
	}
	source := ByOperator
	if c.AgentID == "" || c.AgentID == t.in.From {
		c.AgentID, source = t.in.From, StoodUp
	}
	if err := checkCandidate(c.AgentID, c.Priority, c.Locators); err != nil {
		return nil, err
	}
	r, before, known, err := t.mayStand(k, c.AgentID)
	if err != nil {
		return nil, err
	}
	if !known {
		if err := t.roomFor(k, c.AgentID); err != nil {
			return nil, err
		}
	}
	next := before.Candidate
	next.Source, next.Priority, next.Withdrawn, next.Capable = source, c.Priority, false, has(before.Agent.Capabilities, capability(k.RoleKind))
	if c.Locators != nil {
		next.Locators = c.Locators
	} else if !known || before.Withdrawn {
		next.Locators = before.Agent.Locators
	}
	reply := candidateReply(k, Contender{next, before.Agent}, t.now)
	if known && alike(&before.Candidate, &next) {
		reply.Idempotent = true
		return reply, nil
	}
	next.UpdatedAtMS = t.now
	if err := t.store.PutCandidate(&next); err != nil || r == nil {
		return reply, err
	}
	return reply, t.with(k.Name(), func(r *Role) error {
		if r.State == Quarantined && reply.Eligible && t.enabled(k) {
			if err := t.move(r, registered(before.Candidate, next, known), Change{}); err != nil {
				return err
			}
		}
		return t.attend(r)
	})
}

// mayStand is an agent as a candidate of a role that may not be asked for yet.
// The refusals are AGENT_NOT_FOUND and ROLE_CLOSED.
func (t *turn) mayStand(k Key, id string) (r *Role, c Contender, known bool, err error) {
	if r, err = t.store.Role(k.Name()); err != nil {
		return nil, c, false, err
	}
	if r != nil && r.State == Closed {
		return nil, c, false, r.refuse(wire.RoleClosed, "%s is closed", k.Name())
	}
	if c, known, err = t.contender(k, id); err == nil && !c.Agent.Known && !known {
		err = wire.Errorf(wire.AgentNotFound, "%q has not registered", id)
	}
	return r, c, known, err
}

// roomFor refuses one candidacy too many, of the role or of the agent.
func (t *turn) roomFor(k Key, id string) error {
	n, err := t.store.CountCandidates(k.Name())
	if err != nil {
		return err
	}
	if n >= maxCandidates {
		return wire.Errorf(wire.RoleLimit, "%s has %d candidates, as many as may be", k.Name(), n)
	}
	list, err := t.store.Candidacies(id)
	if err == nil && len(list) >= maxCandidates {
		return wire.Errorf(wire.RoleLimit, "%q is a candidate for %d roles, as many as may be", id, len(list))
	}
	return err
}

// alike reports whether two forms of a candidacy say the same.
func alike(a, b *Candidate) bool {
	return a.Source == b.Source && a.Priority == b.Priority && a.Withdrawn == b.Withdrawn && a.Capable == b.Capable &&
		slices.Equal(a.Locators, b.Locators)
}

func checkCandidate(id string, priority int64, locators []string) error {
	switch {
	case !wire.ValidID(id):
		return wire.Errorf(wire.IDInvalid, "agent_id %.200q is not an id", id)
	case priority < -maxPriority || priority > maxPriority:
		return wire.Errorf(wire.BodyInvalid, "priority is %d, it must be %d to %d", priority, -maxPriority, maxPriority)
	case len(locators) > maxLocators:
		return wire.Errorf(wire.BodyInvalid, "there are %d locators, at most %d are allowed", len(locators), maxLocators)
	}
	for _, l := range locators {
		if l == "" || len(l) > maxLocator {
			return wire.Errorf(wire.BodyInvalid, "a locator has %d bytes, it must have 1 to %d", len(l), maxLocator)
		}
	}
	return nil
}

func candidateReply(k Key, c Contender, nowMS int64) CandidateReply {
	unfit := c.Unfit(k, nowMS)
	return CandidateReply{RoleKey: k, RoleKeyWire: k.Wire(), AgentID: c.AgentID, Source: c.Source, Priority: c.Priority,
		Locators: append([]string{}, c.Locators...), Eligible: unfit == "", Unfit: unfit}
}

// withdrawCommand ends a candidacy until candidate begins one again. An agent
// that holds the role keeps it; it may resign.
func (t *turn) withdrawCommand(body []byte) (any, error) {
	var c struct {
		keyed
		AgentID string `json:"agent_id"` // the sender where it is left out
	}
	k, err := t.decode(body, &c, &c.keyed)
	if err != nil {
		return nil, err
	}
	if c.AgentID == "" {
		c.AgentID = t.in.From
	}
	if err := checkCandidate(c.AgentID, 0, nil); err != nil {
		return nil, err
	}
	r, before, known, err := t.mayStand(k, c.AgentID)
	if err != nil {
		return nil, err
	}
	next := before
	next.Withdrawn = true
	reply := candidateReply(k, next, t.now)
	if known && before.Withdrawn {
		reply.Idempotent = true
		return reply, nil
	}
	if !known {
		if err := t.roomFor(k, c.AgentID); err != nil {
			return nil, err
		}
	}
	if err := t.store.PutCandidate(&next.Candidate); err != nil || r == nil {
		return reply, err
	}
	return reply, t.with(k.Name(), t.attend)
}
