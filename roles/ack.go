package roles

import "signalbox/wire"

// AckCommand is the body of ack: a reserved holder takes the role.
type AckCommand struct {
	keyed
	Epoch         *int64      `json:"epoch"`
	ActivationSeq *int64      `json:"activation_seq"`
	ActivationID  string      `json:"activation_id"`
	HolderAgentID string      `json:"holder_agent_id"`
	Reachable     bool        `json:"reachable"`
	CharterAck    *CharterAck `json:"charter_ack"`
}

// CharterAck is the part of an ack that takes the charter.
type CharterAck struct {
	keyed
	Epoch          *int64  `json:"epoch"`
	CharterVersion *string `json:"charter_version"`
}

// complete refuses an ack that lacks a part.
func (a *AckCommand) complete() *wire.Error {
	invalid := func(what string) *wire.Error {
		return wire.Errorf(wire.ActivationAckInvalid, "%s", what).
			WithHint("an ack repeats epoch, activation_seq and activation_id of the activation, says holder_agent_id, reachable: true " +
				"and charter_ack {role_key, epoch, charter_version}")
	}
	switch {
	case a.Epoch == nil:
		return invalid("epoch is missing")
	case a.ActivationSeq == nil:
		return invalid("activation_seq is missing")
	case a.ActivationID == "":
		return invalid("activation_id is missing")
	case a.HolderAgentID == "":
		return invalid("holder_agent_id is missing")
	case !a.Reachable:
		return invalid("reachable is not true")
	case a.CharterAck == nil:
		return invalid("charter_ack is missing")
	case !a.CharterAck.given():
		return invalid("charter_ack.role_key is missing")
	case a.CharterAck.Epoch == nil:
		return invalid("charter_ack.epoch is missing")
	case a.CharterAck.CharterVersion == nil:
		return invalid("charter_ack.charter_version is missing")
	}
	return nil
}

// CheckAck says whether a complete ack from the agent takes the role, in the
// order STALE_EPOCH, HOLDER_MISMATCH, CHARTER_VERSION_MISMATCH,
// HOLDER_LEASE_EXPIRED. charterKey is the role that its charter_ack names;
// enabled is whether elections for the role are on.
func CheckAck(r *Role, a *AckCommand, charterKey Key, from *Agent, enabled bool, nowMS int64) *wire.Error {
	switch {
	case !enabled:
		return r.refuse(wire.StaleEpoch, "elections for %s are switched off", r.Name())
	case !r.held():
		return r.refuse(wire.StaleEpoch, "%s is %s: it waits for no ack", r.Name(), r.State)
	case *a.Epoch != r.Epoch:
		return r.refuse(wire.StaleEpoch, "epoch %d of %s is over, %d is the current one", *a.Epoch, r.Name(), r.Epoch)
	case *a.ActivationSeq != r.ActivationSeq:
		return r.refuse(wire.StaleEpoch, "activation_seq %d of %s is not the current one, %d", *a.ActivationSeq, r.Name(), r.ActivationSeq)
	case a.ActivationID != r.ActivationID:
		return r.refuse(wire.StaleEpoch, "activation_id %.64q is not that of the current activation of %s", a.ActivationID, r.Name())
	case charterKey != r.Key:
		return r.refuse(wire.StaleEpoch, "charter_ack is for %s, not for %s", charterKey.Name(), r.Name())
	case *a.CharterAck.Epoch != r.Epoch:
		return r.refuse(wire.StaleEpoch, "charter_ack has the epoch %d, %d is the current one", *a.CharterAck.Epoch, r.Epoch)
	case from.ID != r.HolderAgentID:
		return r.refuse(wire.HolderMismatch, "%s is reserved for %q, not for %q", r.Name(), r.HolderAgentID, from.ID)
	case a.HolderAgentID != r.HolderAgentID:
		return r.refuse(wire.HolderMismatch, "holder_agent_id is %.128q, the holder is %q", a.HolderAgentID, r.HolderAgentID)
	case *a.CharterAck.CharterVersion != r.CharterVersion:
		return r.refuse(wire.CharterVersionMismatch, "the charter of %s is version %.128q", r.Name(), r.CharterVersion).
			WithHint("read the charter of that version and acknowledge it")
	case !from.leased(nowMS):
		return r.refuse(wire.HolderLeaseExpired, "the lease of %q is over", from.ID).WithHint("send a heartbeat first")
	}
	return nil
}

// AckReply answers an ack.
type AckReply struct {
	RoleKey        Key    `json:"role_key"`
	RoleKeyWire    string `json:"role_key_wire"`
	State          State  `json:"state"`
	HolderAgentID  string `json:"holder_agent_id"`
	Epoch          int64  `json:"epoch"`
	ActivationSeq  int64  `json:"activation_seq"`
	ActivationID   string `json:"activation_id"`
	CharterVersion string `json:"charter_version"`
	Idempotent     bool   `json:"idempotent,omitempty"`
}

// CheckFence says whether an act of the agent for the role at the epoch counts:
// the role is active, at that epoch, and the agent holds it. r is nil for a role
// that nobody has asked for.
func CheckFence(k Key, r *Role, epoch int64, agent string) *wire.Error {
	switch {
	case r == nil:
		return wire.Errorf(wire.StaleEpoch, "nobody holds %s", k.Name())
	case epoch != r.Epoch:
		return r.refuse(wire.StaleEpoch, "epoch %d of %s is over, %d is the current one", epoch, k.Name(), r.Epoch)
	case r.State != Active:
		return r.refuse(wire.StaleEpoch, "%s is %s: nobody acts for it", k.Name(), r.State)
	case agent != r.HolderAgentID:
		return r.refuse(wire.HolderMismatch, "%q holds %s, not %q", r.HolderAgentID, k.Name(), agent)
	}
	return nil
}

// CheckRelease says whether the holder may be released at the epoch: by itself,
// or by an operator where by is "". done is true where that has been done
// already, and nobody has been active since.
func CheckRelease(k Key, r *Role, epoch int64, by string, why Trigger) (done bool, refusal *wire.Error) {
	switch {
	case r == nil && by == "":
		return false, wire.Errorf(wire.NotFound, "there is no role %s", k.Name())
	case r == nil:
		return false, wire.Errorf(wire.StaleEpoch, "nobody holds %s", k.Name())
	case r.ReleasedReason == why && r.ReleasedEpoch == epoch && (by == "" || by == r.ReleasedAgentID):
		return true, nil
	case epoch != r.Epoch:
		return false, r.refuse(wire.StaleEpoch, "epoch %d of %s is over, %d is the current one", epoch, k.Name(), r.Epoch)
	case !r.held() && by != "":
		return false, r.refuse(wire.StaleEpoch, "%s is %s: nobody holds it", k.Name(), r.State)
	case !r.held():
		_, refusal = Step(*r, why, Change{})
		return false, refusal
	case by != "" && by != r.HolderAgentID:
		return false, r.refuse(wire.HolderMismatch, "%q holds %s, not %q", r.HolderAgentID, k.Name(), by)
	}
	return false, nil
}

// ReleaseReply answers resign and revoke.
type ReleaseReply struct {
	RoleKey       Key    `json:"role_key"`
	RoleKeyWire   string `json:"role_key_wire"`
	Released      bool   `json:"released"`
	HolderAgentID string `json:"holder_agent_id"` // who was released
	Epoch         int64  `json:"epoch"`           // that is over
	Idempotent    bool   `json:"idempotent,omitempty"`
}

// FenceReply answers fence_check.
type FenceReply struct {
	RoleKey       Key       `json:"role_key"`
	RoleKeyWire   string    `json:"role_key_wire"`
	Valid         bool      `json:"valid"`
	Code          wire.Code `json:"code,omitempty"` // why not
	State         *State    `json:"state"`          // null for a role that nobody has asked for
	Epoch         *int64    `json:"epoch"`          // the current one
	HolderAgentID *string   `json:"holder_agent_id"`
}
