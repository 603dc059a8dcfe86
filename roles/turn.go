package roles

import (
	"cmp"
	"fmt"

	"signalbox/step"
	"signalbox/wire"
)

// What the machine tells other machines; Key is the role's name.
const (
	noticeActive  = "active"
	noticeVacated = "vacated"
	noticeClosed  = "closed"
)

// turn is the work of one step: it loads what the rules need, stores what they
// decide and goes on while a role is wanted.
type turn struct {
	db       step.DB
	store    store
	facts    Agents
	in       step.Input
	now      int64
	settings *Settings
	control  Control
	effects  step.Effects

	agents map[string]Agent    // facts do not change within a turn
	grants map[string][]string // by project and capability
}

func (t *turn) enabled(k Key) bool { return t.control.enabled(k, t.settings) }

// charter is what a holder of the role must acknowledge now.
func (t *turn) charter(k Key) string {
	kind, _ := t.settings.kind(k.RoleKind)
	return t.control.charter(kind)
}

// move makes a transition and announces it. It does not store the role.
func (t *turn) move(r *Role, trigger Trigger, c Change) error {
	c.NowMS = t.now
	next, refusal := Step(*r, trigger, c)
	if refusal != nil {
		return refusal
	}
	snapshot := next.Snapshot()
	t.effects.Transitions = append(t.effects.Transitions, step.Transition{Key: r.Subject(), From: string(r.State), To: string(next.State),
		Reason: string(trigger), Body: &snapshot, CorrelationID: cmp.Or(next.ActivationID, r.ActivationID)})
	if trigger == NoCandidate {
		t.effects.Events = append(t.effects.Events, step.Happened{Key: r.Subject(), What: "blocked", Body: &snapshot})
	}
	if r.State == Active {
		t.tell(noticeVacated, r)
	}
	switch next.State {
	case Active:
		t.tell(noticeActive, r)
	case Closed:
		t.tell(noticeClosed, r)
	}
	*r = next
	return nil
}

func (t *turn) tell(what string, r *Role) {
	n := step.Notice{What: what, Key: r.Name()}
	if what == noticeActive {
		n.Data = r.HolderAgentID // whom a message to the role now is for
	}
	t.effects.Notices = append(t.effects.Notices, n)
}

// attend goes on with a role that is wanted until it has somebody, or nothing
// more can be done now.
func (t *turn) attend(r *Role) error {
	for (r.State == Electable || r.State == Unreachable) && t.enabled(r.Key) {
		choice, err := t.choose(r.Key)
		if err != nil {
			return err
		}
		trigger := Want(r, choice)
		if trigger == "" {
			r.NextProbeAtMS = choice.AgainMS
			return nil
		}
		if err := t.take(r, trigger, choice); err != nil {
			return err
		}
	}
	return nil
}

// take makes a transition that a choice allows.
func (t *turn) take(r *Role, trigger Trigger, choice Choice) error {
	if trigger == CandidateSelected || trigger == RetryDue {
		return t.reserve(r, trigger, &choice.Best.Agent)
	}
	return t.move(r, trigger, Change{NextProbeMS: choice.AgainMS, Blocked: blocks(trigger)})
}

// fail ends an activation that did not come about, leaves its agent out for a
// while and goes on with the next.
func (t *turn) fail(r *Role, why Trigger) error {
	if r.HolderAgentID != "" {
		c, _, err := t.contender(r.Key, r.HolderAgentID)
		if err != nil {
			return err
		}
		failed := Fail(c.Candidate, why, r.ActivationID, t.settings, t.now)
		if err := t.store.PutCandidate(&failed); err != nil {
			return err
		}
	}
	choice, err := t.choose(r.Key)
	if err != nil {
		return err
	}
	if err := t.move(r, why, Change{NextProbeMS: choice.AgainMS}); err != nil {
		return err
	}
	return t.attend(r)
}

// lose takes the role from its holder and goes on with the next.
func (t *turn) lose(r *Role, why Trigger) error {
	if err := t.move(r, why, Change{}); err != nil {
		return err
	}
	return t.attend(r)
}

// with does something to a role and stores what became of it. A damaged row is
// reported and left alone.
func (t *turn) with(name string, do func(*Role) error) error {
	r, err := t.store.Role(name)
	if d := asDamage(err); d != nil {
		t.report(d)
		return nil
	}
	if err != nil || r == nil {
		return err
	}
	before := *r
	if err := do(r); err != nil {
		return fmt.Errorf("role %s: %w", name, err)
	}
	if *r == before {
		return nil
	}
	return t.store.PutRole(r)
}

// each does something to every role of a list that is read by pages.
func (t *turn) each(list func(after string, limit int) ([]string, error), do func(*Role) error) error {
	for after := ""; ; {
		names, err := list(after, pageSize)
		if err != nil {
			return err
		}
		if err := t.all(names, do); err != nil {
			return err
		}
		if len(names) < pageSize {
			return nil
		}
		after = names[len(names)-1]
	}
}

func (t *turn) all(names []string, do func(*Role) error) error {
	for _, name := range names {
		if err := t.with(name, do); err != nil {
			return err
		}
	}
	return nil
}

// report announces a row that was passed over.
func (t *turn) report(d *damagedRow) {
	key := wire.NoScope
	if k, refusal := ParseName(d.key); refusal == nil {
		key = k.Subject()
	}
	t.effects.Events = append(t.effects.Events, step.Happened{Key: key, What: "damaged",
		Body: map[string]any{"table": d.table, "row": d.key, "problem": d.err.Error()}})
}
