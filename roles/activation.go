package roles

import (
	"strconv"
	"time"

	"signalbox/step"
	"signalbox/wire"
)

// reserve gives the role to the agent until it acknowledges, and finds out
// whether it can be reached.
func (t *turn) reserve(r *Role, trigger Trigger, a *Agent) error {
	if err := t.move(r, trigger, Change{
		Holder: a.ID, LeaseMS: a.LeaseExpiresAtMS,
		ActivationID: t.in.DeriveID("activation/" + r.Name() + "/" + strconv.FormatInt(r.Epoch+1, 10)),
		DeadlineMS:   t.now + t.settings.AckTimeoutMS, Charter: t.charter(r.Key),
	}); err != nil {
		return err
	}
	kind, _ := t.settings.kind(r.RoleKind)
	if !kind.probes() || !has(a.Capabilities, capabilityProbe) {
		return t.activate(r) // its lease has answered
	}
	t.effects.Requests = append(t.effects.Requests, step.Request{Agent: a.ID, Verb: capabilityProbe, Body: activationOf(r, "role.probe"),
		Timeout: time.Duration(t.settings.ProbeTimeoutMS) * time.Millisecond, Outcome: verbProbed,
		Context: map[string]any{"role": r.Name(), "epoch": r.Epoch, "activation_id": r.ActivationID, "generation": t.control.Generation}})
	return nil
}

// activate asks the reserved holder, which can be reached, to take the role.
func (t *turn) activate(r *Role) error {
	if err := t.move(r, ProbeSucceeded, Change{}); err != nil {
		return err
	}
	t.effects.Messages = append(t.effects.Messages, step.Outgoing{
		To: wire.Recipient{Class: wire.ToAgent, Name: r.HolderAgentID}, Type: wire.TypeSystem, Topic: "role.activation",
		Priority: wire.MaxPriority, TTL: wire.ClampTTL(r.ActivationDeadlineMS - t.now), CorrelationID: r.ActivationID,
		Body: activationOf(r, "role.activation")})
	return nil
}

// Activation is what a reserved holder is told, as a probe and as a message. It
// repeats it in its ack.
type Activation struct {
	Kind                 string `json:"kind"` // role.probe, role.activation
	Role                 string `json:"role"` // its name
	RoleKey              Key    `json:"role_key"`
	RoleKeyWire          string `json:"role_key_wire"`
	HolderAgentID        string `json:"holder_agent_id"`
	Epoch                int64  `json:"epoch"`
	ActivationSeq        int64  `json:"activation_seq"`
	ActivationID         string `json:"activation_id"`
	ActivationDeadlineMS int64  `json:"activation_deadline_ms"`
	CharterVersion       string `json:"charter_version"`
}

func activationOf(r *Role, kind string) Activation {
	return Activation{Kind: kind, Role: r.Name(), RoleKey: r.Key, RoleKeyWire: r.Wire(), HolderAgentID: r.HolderAgentID, Epoch: r.Epoch,
		ActivationSeq: r.ActivationSeq, ActivationID: r.ActivationID, ActivationDeadlineMS: r.ActivationDeadlineMS, CharterVersion: r.CharterVersion}
}

// probedCommand is the outcome of a probe. One of an activation that is over
// changes nothing; the switch is looked at again, since it may have been moved
// while the probe was on its way.
func (t *turn) probedCommand(body []byte) (any, error) {
	var c struct {
		Role         string `json:"role"`
		Epoch        int64  `json:"epoch"`
		ActivationID string `json:"activation_id"`
		Generation   int64  `json:"generation"`
		Reachable    bool   `json:"reachable"`
		Error        string `json:"error"`
	}
	if err := step.Decode(body, &c); err != nil {
		return nil, err
	}
	reply := map[string]any{"role": c.Role, "activation_id": c.ActivationID}
	r, err := t.store.Role(c.Role)
	if err != nil {
		return nil, err
	}
	if r == nil || r.State != Probing || r.ActivationID != c.ActivationID || r.ActivatedAtMS != 0 || !t.enabled(r.Key) {
		reply["idempotent"] = true
		return reply, nil
	}
	if !c.Reachable {
		if err := t.fail(r, ProbeFailed); err != nil {
			return nil, err
		}
		return reply, t.store.PutRole(r)
	}
	row, _, err := t.contender(r.Key, r.HolderAgentID)
	if err != nil {
		return nil, err
	}
	row.LastProbeAtMS, row.LastProbeCode = t.now, "reachable"
	if err := t.store.PutCandidate(&row.Candidate); err != nil {
		return nil, err
	}
	if err := t.activate(r); err != nil {
		return nil, err
	}
	return reply, t.store.PutRole(r)
}
