package roles

import (
	"slices"
	"strconv"

	"signalbox/step"
	"signalbox/wire"
)

// Disposition is what an ensure came to.
type Disposition string

// The dispositions of ensure.
const (
	Started         Disposition = "started"          // this one began the election
	Joined          Disposition = "joined"           // one is under way, or its time is ahead
	AlreadyActive   Disposition = "already_active"   // somebody holds it
	Disabled        Disposition = "manager_disabled" // elections are off; one begins when they are on
	DispositionGone Disposition = "scope_closed"     // it is closed for good
)

// Why a role is asked for.
const (
	sessionStart    = "session_start"
	publishNoHolder = "publish_no_holder"
)

// ensureTriggers are the reasons that a command may give.
var ensureTriggers = []string{sessionStart, publishNoHolder, "lease_expired", "restart_recovery", "hygiene_changed", "charter_issued", "manual"}

// EnsureReply answers ensure.
type EnsureReply struct {
	Accepted      bool        `json:"accepted"` // the role has a holder or an election
	Disposition   Disposition `json:"disposition"`
	RoleKey       Key         `json:"role_key"`
	RoleKeyWire   string      `json:"role_key_wire"`
	State         State       `json:"state"`
	Epoch         int64       `json:"epoch"`
	ActivationID  string      `json:"activation_id,omitempty"`
	BlockedReason string      `json:"blocked_reason,omitempty"`
}

func (t *turn) ensureCommand(body []byte) (any, error) {
	var c struct {
		keyed
		Trigger string `json:"trigger"`
		CauseID string `json:"cause_id"`
	}
	k, err := t.decode(body, &c, &c.keyed)
	if err != nil {
		return nil, err
	}
	switch {
	case !slices.Contains(ensureTriggers, c.Trigger):
		return nil, wire.Errorf(wire.EnsureRoleRequestInvalid, "trigger %.64q is none of %v", c.Trigger, ensureTriggers)
	case !wire.Visible(c.CauseID):
		return nil, wire.Errorf(wire.EnsureRoleRequestInvalid, "cause_id is not 1 to %d visible characters", wire.MaxID).
			WithHint("say what asks for the role, a message or session id; it stays in the register with this command")
	}
	r, disposition, err := t.ensure(k, c.Trigger)
	if err != nil {
		return nil, err
	}
	return EnsureReply{Accepted: disposition != Disabled && disposition != DispositionGone, Disposition: disposition, RoleKey: k,
		RoleKeyWire: k.Wire(), State: r.State, Epoch: r.Epoch, ActivationID: r.ActivationID, BlockedReason: r.BlockedReason}, nil
}

// decode reads a command's body and the role that it names, which must be of a
// kind that is set.
func (t *turn) decode(body []byte, into any, key *keyed) (Key, error) {
	if err := step.Decode(body, into); err != nil {
		return Key{}, err
	}
	k, refusal := key.key()
	if refusal == nil {
		refusal = k.allowed(t.settings)
	}
	if refusal != nil {
		return Key{}, refusal
	}
	return k, nil
}

// ensure asks for a role: from the first time on it is wanted until it is
// closed. The refusal is ROLE_LIMIT.
func (t *turn) ensure(k Key, why string) (*Role, Disposition, error) {
	r, err := t.store.Role(k.Name())
	if err != nil {
		return nil, "", err
	}
	created := r == nil
	if created {
		if r, err = t.create(k, why); err != nil {
			return nil, "", err
		}
	}
	before := *r
	disposition, err := t.disposition(r, created)
	if err == nil && (created || *r != before) {
		err = t.store.PutRole(r)
	}
	return r, disposition, err
}

func (t *turn) disposition(r *Role, created bool) (Disposition, error) {
	switch {
	case r.State == Closed:
		return DispositionGone, nil
	case !t.enabled(r.Key):
		return Disabled, nil
	case r.State == Active:
		// A lease that is over is for a tick to say: a heartbeat may be on its
		// way. Until then the role is about to be elected, or not.
		holder, err := t.agent(r.HolderAgentID)
		if err == nil && holder.leased(t.now) && r.CharterAckedEpoch == r.Epoch && r.CharterVersion == t.charter(r.Key) {
			return AlreadyActive, nil
		}
		return Joined, err
	case r.State != Electable:
		return Joined, nil
	}
	if err := t.attend(r); err != nil {
		return "", err
	}
	if created || r.State != Electable {
		return Started, nil
	}
	return Joined, nil
}

// create makes the role of a key that nobody has asked for before.
func (t *turn) create(k Key, why string) (*Role, error) {
	n, err := t.store.CountOpen()
	if err != nil {
		return nil, err
	}
	if n >= maxRoles {
		return nil, wire.Errorf(wire.RoleLimit, "there are %d roles, as many as may be", n).WithHint("close scopes that are done (roles.close_scope)")
	}
	return t.begin(k, why), nil
}

// begin makes the first row of a role and announces it. Its epoch starts where
// no epoch can be that a gap of the log has hidden.
func (t *turn) begin(k Key, why string) *Role {
	r := &Role{Key: k, State: Electable, Epoch: t.control.Raised, ActivationSeq: t.control.Raised, CharterVersion: t.charter(k),
		LastTransitionAtMS: t.now, LastReason: Trigger(why)}
	if !t.enabled(k) {
		r.BlockedReason = blockedDisabled
	}
	snapshot := r.Snapshot()
	t.effects.Transitions = append(t.effects.Transitions,
		step.Transition{Key: k.Subject(), To: string(Electable), Reason: why, Body: &snapshot})
	return r
}

// concerns reports whether a message is the machine's business. Most are not,
// and cost nothing.
func concerns(m *step.Message) bool {
	return m.Problem == nil && (m.To.Class == wire.ToRole || m.Envelope.Role != "" || m.Envelope.RoleEpoch != "")
}

// message fences a message that acts for a role, and asks for the holder of a
// role that a message is for.
func (t *turn) message(m *step.Message) error {
	if m.Envelope.Role != "" || m.Envelope.RoleEpoch != "" {
		if refusal, err := t.fenced(m); err != nil || refusal != nil {
			return orRefusal(refusal, err)
		}
	}
	if m.To.Class != wire.ToRole {
		return nil
	}
	k, refusal := ParseName(m.To.Name)
	if refusal == nil {
		refusal = k.allowed(t.settings)
	}
	if refusal != nil {
		return refusal
	}
	r, err := t.store.Role(k.Name())
	if err != nil {
		return err
	}
	if r != nil && r.State == Closed {
		return r.refuse(wire.RoleClosed, "%s is closed: nobody will ever read this", k.Name())
	}
	if r != nil && r.State != Electable {
		return nil // somebody holds it, or it is on its way
	}
	_, _, err = t.ensure(k, publishNoHolder)
	return err
}

// fenced says whether a message that acts for a role counts. If not its sender
// is told.
func (t *turn) fenced(m *step.Message) (*wire.Error, error) {
	name, text := m.Envelope.Role, m.Envelope.RoleEpoch
	if name == "" {
		return wire.Errorf(wire.HeaderInvalid, "there is a %s without a %s", wire.HeaderRoleEpoch, wire.HeaderRole), nil
	}
	k, refusal := ParseName(name)
	if refusal == nil {
		var r *Role
		var err error
		if r, err = t.store.Role(k.Name()); err != nil {
			return nil, err
		}
		epoch, bad := strconv.ParseInt(text, 10, 64)
		switch {
		case bad == nil:
			refusal = CheckFence(k, r, epoch, m.From)
		case r == nil:
			refusal = CheckFence(k, nil, 0, m.From)
		default:
			refusal = r.refuse(wire.StaleEpoch, "%s %.40q is no epoch; %d is the current one", wire.HeaderRoleEpoch, text, r.Epoch)
		}
	}
	if refusal != nil {
		t.tellFenced(m.From, name, text, refusal, map[string]any{"id": m.ID, "message_id": m.MessageID}, m.CorrelationID, m.Envelope.TraceID)
	}
	return refusal, nil
}

// tellFenced tells a sender that its act for a role did not count.
func (t *turn) tellFenced(from, role, epoch string, refusal *wire.Error, body map[string]any, correlation, trace string) {
	body["role"], body["epoch"], body["code"], body["message"] = role, epoch, refusal.Code, refusal.Message
	if refusal.Current != nil {
		body["current"] = refusal.Current
	}
	t.effects.Told = append(t.effects.Told, step.Happened{Key: from, What: "fenced", Body: body, CorrelationID: correlation, TraceID: trace})
}

// orRefusal is the error of a step: a refusal that is nil is none.
func orRefusal(refusal *wire.Error, err error) error {
	if err == nil && refusal != nil {
		return refusal
	}
	return err
}
