package roles

import (
	"strconv"

	"signalbox/step"
	"signalbox/wire"
)

func (t *turn) ackCommand(body []byte) (any, error) {
	var a AckCommand
	if err := step.Decode(body, &a); err != nil {
		return nil, err
	}
	if refusal := a.complete(); refusal != nil {
		return nil, refusal
	}
	k, refusal := a.keyed.key()
	if refusal != nil {
		return nil, refusal
	}
	charterKey, refusal := a.CharterAck.keyed.key()
	if refusal != nil {
		return nil, refusal
	}
	from, err := t.agent(t.in.From)
	if err != nil {
		return nil, err
	}
	r, err := t.store.Role(k.Name())
	if err != nil {
		return nil, err
	}
	if r == nil {
		refusal = CheckFence(k, nil, *a.Epoch, from.ID)
	} else {
		refusal = CheckAck(r, &a, charterKey, &from, t.enabled(k), t.now)
	}
	if refusal != nil {
		return nil, t.acted(k, *a.Epoch, refusal)
	}
	reply := AckReply{RoleKey: k, RoleKeyWire: k.Wire(), State: Active, HolderAgentID: r.HolderAgentID, Epoch: r.Epoch,
		ActivationSeq: r.ActivationSeq, ActivationID: r.ActivationID, CharterVersion: r.CharterVersion}
	if r.State == Active {
		reply.Idempotent = true
		return reply, nil
	}
	if err := t.move(r, ActivationAcked, Change{LeaseMS: from.LeaseExpiresAtMS}); err != nil {
		return nil, err
	}
	if err := t.store.PutRole(r); err != nil {
		return nil, err
	}
	c, err := t.store.Candidate(r.Name(), from.ID)
	if err != nil || c == nil {
		return reply, err
	}
	acked := Acked(*c, t.now)
	return reply, t.store.PutCandidate(&acked)
}

// acted tells the sender of a command for a role that it did not count.
func (t *turn) acted(k Key, epoch int64, refusal *wire.Error) error {
	if refusal.Code == wire.StaleEpoch || refusal.Code == wire.HolderMismatch {
		t.tellFenced(t.in.From, k.Name(), strconv.FormatInt(epoch, 10), refusal, map[string]any{"id": t.in.ID}, "", "")
	}
	return refusal
}

func (t *turn) resignCommand(body []byte) (any, error) {
	var c struct {
		keyed
		Epoch *int64 `json:"epoch"`
	}
	k, err := t.decode(body, &c, &c.keyed)
	if err != nil {
		return nil, err
	}
	if c.Epoch == nil {
		return nil, wire.Errorf(wire.BodyInvalid, "epoch is missing")
	}
	return t.release(k, *c.Epoch, t.in.From, Resigned, nil)
}

// maxExclude is the longest that revoke leaves an agent out.
const maxExclude = 24 * 60 * 60 * 1000

func (t *turn) revokeCommand(body []byte) (any, error) {
	var c struct {
		keyed
		Epoch     *int64 `json:"epoch"`
		Reason    string `json:"reason"`
		ExcludeMS *int64 `json:"exclude_ms"`
	}
	k, err := t.decode(body, &c, &c.keyed)
	switch {
	case err != nil:
		return nil, err
	case c.Epoch == nil:
		return nil, wire.Errorf(wire.BodyInvalid, "epoch is missing")
	case len(c.Reason) > maxReason:
		return nil, wire.Errorf(wire.BodyInvalid, "reason has %d bytes, at most %d are allowed", len(c.Reason), maxReason)
	case c.ExcludeMS != nil && (*c.ExcludeMS < 0 || *c.ExcludeMS > maxExclude):
		return nil, wire.Errorf(wire.BodyInvalid, "exclude_ms is %d, it must be 0 to %d", *c.ExcludeMS, maxExclude)
	}
	return t.release(k, *c.Epoch, "", Revoked, c.ExcludeMS)
}

// maxReason bounds the texts that operators give, in bytes.
const maxReason = 1000

// release takes the role from its holder, which asks for it itself (by) or
// hangs. The agent is passed over by the election that follows, or a holder
// that resigns would be reserved again in the same step: for exclude
// milliseconds, nil for one step of the backoff. Resigning before the ack counts
// as a failure.
func (t *turn) release(k Key, epoch int64, by string, why Trigger, exclude *int64) (any, error) {
	r, err := t.store.Role(k.Name())
	if err != nil {
		return nil, err
	}
	done, refusal := CheckRelease(k, r, epoch, by, why)
	if refusal != nil {
		if by != "" {
			return nil, t.acted(k, epoch, refusal)
		}
		return nil, refusal
	}
	reply := ReleaseReply{RoleKey: k, RoleKeyWire: k.Wire(), Released: true, Epoch: epoch}
	if done {
		reply.HolderAgentID, reply.Idempotent = r.ReleasedAgentID, true
		return reply, nil
	}
	reply.HolderAgentID = r.HolderAgentID
	c, _, err := t.contender(k, r.HolderAgentID)
	if err != nil {
		return nil, err
	}
	next := c.Candidate
	switch {
	case why == Resigned && r.State == Probing:
		next = Fail(next, why, r.ActivationID, t.settings, t.now)
	case exclude != nil:
		next = PassOver(next, why, *exclude, t.now)
	default:
		next = PassOver(next, why, t.settings.Backoff.delay(1, r.ActivationID), t.now)
	}
	if err := t.store.PutCandidate(&next); err != nil {
		return nil, err
	}
	if err := t.lose(r, why); err != nil {
		return nil, err
	}
	return reply, t.store.PutRole(r)
}

// TakeoverReply answers takeover.
type TakeoverReply struct {
	RoleKey       Key    `json:"role_key"`
	RoleKeyWire   string `json:"role_key_wire"`
	HolderAgentID string `json:"holder_agent_id"`
	State         State  `json:"state"`
	Epoch         int64  `json:"epoch"`
	ActivationID  string `json:"activation_id"`
	Idempotent    bool   `json:"idempotent,omitempty"`
}

func (t *turn) takeoverCommand(body []byte) (any, error) {
	var c struct {
		keyed
		AgentID string `json:"agent_id"`
	}
	k, err := t.decode(body, &c, &c.keyed)
	if err != nil {
		return nil, err
	}
	if !wire.ValidID(c.AgentID) {
		return nil, wire.Errorf(wire.IDInvalid, "agent_id %.200q is not an id", c.AgentID)
	}
	r, err := t.store.Role(k.Name())
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, wire.Errorf(wire.NotFound, "there is no role %s", k.Name()).WithHint("ask for it first (roles.ensure)")
	}
	reply := func(idempotent bool) TakeoverReply {
		return TakeoverReply{RoleKey: k, RoleKeyWire: k.Wire(), HolderAgentID: c.AgentID, State: r.State, Epoch: r.Epoch,
			ActivationID: r.ActivationID, Idempotent: idempotent}
	}
	if r.held() && r.HolderAgentID == c.AgentID {
		return reply(true), nil
	}
	a, way, err := t.mayTakeOver(r, c.AgentID)
	if err != nil {
		return nil, err
	}
	if way != "" {
		if err := t.move(r, way, Change{}); err != nil {
			return nil, err
		}
	}
	if err := t.reserve(r, CandidateSelected, &a); err != nil {
		return nil, err
	}
	return reply(false), t.store.PutRole(r)
}

// mayTakeOver refuses a takeover, or says by which transition the role becomes
// electable for it, "" for none.
func (t *turn) mayTakeOver(r *Role, id string) (Agent, Trigger, error) {
	way := map[State]Trigger{Probing: Revoked, Active: Revoked, Unreachable: AlternateAvailable, Quarantined: CandidateRegistered}[r.State]
	if r.State == Closed {
		_, refusal := Step(*r, Revoked, Change{})
		return Agent{}, "", refusal
	}
	if !t.enabled(r.Key) {
		return Agent{}, "", r.refuse(wire.RoleManagerDisabled, "elections for %s are switched off", r.Name()).
			WithHint("switch them on (roles.control)")
	}
	c, _, err := t.contender(r.Key, id)
	if err != nil {
		return Agent{}, "", err
	}
	if why := c.Unfit(r.Key, t.now); why != "" {
		return Agent{}, "", r.refuse(wire.RoleCandidateUnavailable, "%q cannot hold %s now: %s", id, r.Name(), why)
	}
	return c.Agent, way, nil
}

func (t *turn) fenceCheckCommand(body []byte) (any, error) {
	var c struct {
		keyed
		Epoch         *int64 `json:"epoch"`
		HolderAgentID string `json:"holder_agent_id"` // whose act it is; the sender's where it is left out
	}
	if err := step.Decode(body, &c); err != nil {
		return nil, err
	}
	k, refusal := c.keyed.key()
	if refusal != nil {
		return nil, refusal
	}
	if c.Epoch == nil {
		return nil, wire.Errorf(wire.BodyInvalid, "epoch is missing")
	}
	if c.HolderAgentID == "" {
		c.HolderAgentID = t.in.From
	}
	r, err := t.store.Role(k.Name())
	if err != nil {
		return nil, err
	}
	reply := FenceReply{RoleKey: k, RoleKeyWire: k.Wire(), Valid: true}
	if refusal := CheckFence(k, r, *c.Epoch, c.HolderAgentID); refusal != nil {
		reply.Valid, reply.Code = false, refusal.Code
	}
	if r != nil {
		reply.State, reply.Epoch, reply.HolderAgentID = &r.State, &r.Epoch, optional(r.HolderAgentID)
	}
	return reply, nil
}
