package roles

import (
	"fmt"
	"math"

	"signalbox/step"
)

func (t *turn) notice(n step.Notice) error {
	if n.Machine == step.Bridge {
		switch data := n.Data.(type) {
		case step.Start:
			return t.started(data)
		case step.Gap:
			return t.gap(data)
		}
		return fmt.Errorf("the notice %s of the bridge has a %T", n.What, n.Data)
	}
	switch n.What {
	case "stale":
		return t.gone(n.Key, HolderLeaseExpired)
	case "offline":
		return t.gone(n.Key, HolderOffline)
	}
	r, ok := n.Data.(registration)
	return t.here(n.Key, ok && r.NewlyRegistered())
}

// gone takes every role from an agent that is not there any more.
func (t *turn) gone(id string, why Trigger) error {
	names, err := t.store.HeldBy(id)
	if err != nil {
		return err
	}
	return t.all(names, func(r *Role) error {
		if !r.held() {
			return nil
		}
		return t.lose(r, why)
	})
}

// here looks at every role that may now have a candidate: the agent is there,
// newly registered or back.
func (t *turn) here(id string, newly bool) error {
	a, err := t.agent(id)
	if err != nil {
		return err
	}
	before := map[string]Candidate{}
	if newly {
		if before, err = t.registeredAnew(&a); err != nil {
			return err
		}
	}
	project := Key{ProjectID: a.ProjectID, RoleKind: "any"}
	if project.shape() != nil {
		return nil // without a project it is nobody's candidate
	}
	list := func(after string, limit int) ([]string, error) { return t.store.Vacant(a.ProjectID, after, limit) }
	if err := t.each(list, func(r *Role) error { return t.candidateHere(r, &a, before) }); err != nil || !newly {
		return err
	}
	for _, kind := range t.settings.Kinds {
		if kind.Scoped || !has(a.Capabilities, capability(kind.Name)) {
			continue
		}
		k := Key{ProjectID: a.ProjectID, RoleKind: kind.Name}
		if err := t.ensureQuietly(k); err != nil {
			return err
		}
	}
	return nil
}

// registeredAnew forgets the failures of an agent, and revokes what it holds and
// is no candidate for any more. It returns its candidacies as they were.
func (t *turn) registeredAnew(a *Agent) (map[string]Candidate, error) {
	before := map[string]Candidate{}
	rows, err := t.store.Candidacies(a.ID)
	if err != nil {
		return nil, err
	}
	for _, c := range rows {
		before[c.Role] = c
		k, refusal := ParseName(c.Role)
		if refusal != nil {
			continue // damaged, and so is its role
		}
		next := Register(c, a, k.RoleKind, t.now)
		if err := t.store.PutCandidate(&next); err != nil {
			return nil, err
		}
	}
	names, err := t.store.HeldBy(a.ID)
	if err != nil {
		return nil, err
	}
	return before, t.all(names, func(r *Role) error {
		if !r.held() || !disqualified(a, r.Key) {
			return nil
		}
		return t.lose(r, Revoked)
	})
}

// candidateHere looks at a role without a holder that the agent may be elected
// to.
func (t *turn) candidateHere(r *Role, a *Agent, before map[string]Candidate) error {
	if !t.enabled(r.Key) || !has(a.Capabilities, capability(r.RoleKind)) {
		return nil
	}
	if r.State == Quarantined {
		c, _, err := t.contender(r.Key, a.ID)
		if err != nil || c.Unfit(r.Key, t.now) != "" {
			return err
		}
		old, known := before[r.Name()]
		if err := t.move(r, registered(old, c.Candidate, known), Change{}); err != nil {
			return err
		}
	}
	return t.attend(r)
}

// ensureQuietly asks for a role for an agent that has registered. What refuses
// it is no fault of the agent's registration, which has happened.
func (t *turn) ensureQuietly(k Key) error {
	n, err := t.store.CountOpen()
	if err != nil {
		return err
	}
	r, err := t.store.Role(k.Name())
	if d := asDamage(err); d != nil {
		t.report(d)
		return nil
	}
	if err != nil || r == nil && n >= maxRoles {
		return err
	}
	_, _, err = t.ensure(k, sessionStart)
	return err
}

// started brings every role to where it must be after a start: what the settings
// no longer allow is released, what they changed must be acknowledged again, and
// where every connection was dropped each holder must show that it is there.
func (t *turn) started(s step.Start) error {
	control, changed := t.control.Settle(t.settings)
	if changed {
		t.control = control
		if err := t.store.PutControl(control); err != nil {
			return err
		}
	}
	return t.each(t.store.Open, func(r *Role) error {
		holder, err := t.agent(r.HolderAgentID)
		if err != nil {
			return err
		}
		switch trigger := Recover(r, s.Embedded, t.enabled(r.Key), holder.leased(t.now), t.charter(r.Key)); trigger {
		case "":
		case RestartReprobeRequired, CharterReissued:
			return t.reserve(r, trigger, &holder)
		default:
			if err := t.move(r, trigger, Change{Blocked: blocks(trigger)}); err != nil {
				return err
			}
		}
		return t.attend(r)
	})
}

// gap fences every role, since commands may be missing: somebody may have been
// told an epoch that the register never had.
func (t *turn) gap(g step.Gap) error {
	raise := gapRaise(g.Missing)
	t.control.Raised = min(t.control.Raised, math.MaxInt64/2) + raise
	if err := t.store.PutControl(t.control); err != nil {
		return err
	}
	return t.each(t.store.Open, func(r *Role) error {
		if err := t.move(r, LogGap, Change{Raise: raise, Blocked: t.blockedStill(r)}); err != nil {
			return err
		}
		return t.attend(r)
	})
}

// blockedStill is what blocks a role that loses its holder while elections are
// off.
func (t *turn) blockedStill(r *Role) string {
	if t.enabled(r.Key) {
		return ""
	}
	return blockedDisabled
}

// overdue looks at a role whose time has come. A deadline that has moved since
// is nothing. A damaged row is a fault: passed over it would be due for ever.
func (t *turn) overdue(name string) error {
	r, err := t.store.Role(name)
	if err != nil || r == nil || r.dueAtMS() == 0 || t.now < r.dueAtMS() {
		return err
	}
	if err := t.lookAgain(r); err != nil {
		return err
	}
	return t.store.PutRole(r)
}

func (t *turn) lookAgain(r *Role) error {
	if r.State == Probing {
		return t.fail(r, AckTimeout)
	}
	r.NextProbeAtMS = 0
	choice, err := t.choose(r.Key)
	if err != nil {
		return err
	}
	if trigger := Overdue(r, choice); trigger != "" {
		if err := t.take(r, trigger, choice); err != nil {
			return err
		}
	} else if r.State == Quarantined {
		r.NextProbeAtMS = choice.AgainMS
	}
	return t.attend(r)
}
