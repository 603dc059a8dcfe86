package roles

import (
	"encoding/json"
	"fmt"

	"signalbox/wire"
)

// Role is the row of a role. Instants are milliseconds of bus time; 0 and ""
// stand for none.
type Role struct {
	Key
	State State

	HolderAgentID          string // reserved (elected-probing) or active
	PreviousHolderAgentID  string // the last other one
	Epoch                  int64
	ActivationSeq          int64
	ActivationID           string // of the holder's activation
	ActivationDeadlineMS   int64  // until when it must be acknowledged
	ActivatedAtMS          int64  // when the activation was sent to the holder
	HolderLeaseExpiresAtMS int64  // as it was when the holder was reserved, or acknowledged
	CharterVersion         string // that the holder must acknowledge
	CharterAckedEpoch      int64  // at which it has
	RetryCount             int64  // failures since the role was last active
	NextProbeAtMS          int64  // when the role is looked at again by itself
	BlockedReason          string
	ReleasedEpoch          int64  // the last that a resign or revoke ended since the role was last active
	ReleasedAgentID        string // who held it then
	ReleasedReason         Trigger
	LastTransitionAtMS     int64
	LastReason             Trigger
	Version                int64
}

// What blocks a role that has no holder.
const (
	blockedNoCandidate = string(NoCandidate)
	blockedExcluded    = string(CandidatesExcluded)
	blockedExhausted   = string(RetriesExhausted)
	blockedDisabled    = string(ManagerDisabled)
)

// held reports whether somebody is reserved for the role or holds it.
func (r *Role) held() bool { return r.State == Probing || r.State == Active }

// vacant reports whether the role waits for a candidate.
func (r *Role) vacant() bool {
	return r.State == Electable || r.State == Unreachable || r.State == Quarantined
}

// dueAtMS is when a tick must look at the role; 0 for never.
func (r *Role) dueAtMS() int64 {
	if r.State == Probing {
		return r.ActivationDeadlineMS
	}
	return r.NextProbeAtMS
}

// damage says what is wrong with a row that no rule can have made.
func (r *Role) damage() error {
	switch {
	case r.shape() != nil:
		return fmt.Errorf("its key is no role key: %w", r.shape())
	case !r.State.known():
		return fmt.Errorf("its state is %.40q", string(r.State))
	case r.Epoch < 0 || r.Epoch != r.ActivationSeq:
		return fmt.Errorf("its epoch is %d and its activation_seq %d", r.Epoch, r.ActivationSeq)
	case r.Version < 0:
		return fmt.Errorf("its version is %d", r.Version)
	}
	return nil
}

// Change is what a transition puts into the role, as far as its action takes
// it: who is reserved, for the actions that reserve; how far a gap of the log
// raises the epoch; what blocks the role and when to look again.
type Change struct {
	NowMS int64

	Holder       string
	LeaseMS      int64 // when the holder's lease ends
	ActivationID string
	DeadlineMS   int64
	Charter      string

	Raise       int64 // fence_after_gap
	NextProbeMS int64
	Blocked     string
}

// Step makes the transition that the trigger causes. A trigger that the table
// does not have for the role's state is INVALID_ROLE_TRANSITION and changes
// nothing. stale_ack changes nothing either.
func Step(r Role, trigger Trigger, c Change) (Role, *wire.Error) {
	t, ok := find(r.State, trigger)
	if !ok {
		return r, r.refuse(wire.InvalidRoleTransition, "a role that is %s does not change by %s", r.State, trigger)
	}
	if t.Action == RejectStaleAck {
		return r, nil
	}
	next := r
	next.State, next.LastReason, next.LastTransitionAtMS = t.To, trigger, c.NowMS
	next.Version++
	next.Epoch += raise(t.Action, c)
	next.ActivationSeq = next.Epoch
	next.BlockedReason, next.NextProbeAtMS = c.Blocked, c.NextProbeMS
	switch t.Action {
	case ReserveHolder, ReserveStandup, ReserveReack, ReserveRetry, ReserveReprobe:
		next.leave(c.Holder)
		next.HolderAgentID, next.HolderLeaseExpiresAtMS = c.Holder, c.LeaseMS
		next.ActivationID, next.ActivationDeadlineMS = c.ActivationID, c.DeadlineMS
		next.CharterVersion = c.Charter
	case SendActivation:
		next.ActivatedAtMS = c.NowMS
	case RecordAck:
		next.CharterAckedEpoch, next.ActivationDeadlineMS, next.HolderLeaseExpiresAtMS = next.Epoch, 0, c.LeaseMS
		next.RetryCount = 0
		next.ReleasedEpoch, next.ReleasedAgentID, next.ReleasedReason = 0, "", ""
	case ExcludeCandidate:
		next.RetryCount++
		next.leave("")
	case RevokeFence, RevokeKeepBacklog:
		if trigger == Resigned || trigger == Revoked {
			next.ReleasedEpoch, next.ReleasedAgentID, next.ReleasedReason = r.Epoch, r.HolderAgentID, trigger
		}
		next.leave("")
	case FenceAuthority, FenceActivation, FenceAfterGap, FenceRelease, FenceClose:
		next.leave("")
	}
	return next, nil
}

// leave takes the activation from its holder, if there is one.
func (r *Role) leave(to string) {
	if r.HolderAgentID != "" && r.HolderAgentID != to {
		r.PreviousHolderAgentID = r.HolderAgentID
	}
	r.HolderAgentID, r.HolderLeaseExpiresAtMS = "", 0
	r.ActivationID, r.ActivationDeadlineMS, r.ActivatedAtMS = "", 0, 0
	r.CharterAckedEpoch = 0
}

// raise is by how much an action raises epoch and activation_seq.
func raise(a Action, c Change) int64 {
	switch a {
	case FenceAfterGap:
		return c.Raise
	case ReserveHolder, ReserveStandup, ReserveReack, ReserveRetry, ReserveReprobe,
		RevokeFence, RevokeKeepBacklog,
		FenceAuthority, FenceActivation, FenceRelease, FenceClose:
		return 1
	}
	return 0
}

// refuse makes a refusal that shows how the role stands.
func (r *Role) refuse(code wire.Code, format string, args ...any) *wire.Error {
	e := wire.Errorf(code, format, args...)
	e.Current, _ = json.Marshal(standing{r.State, r.Epoch, r.ActivationSeq, optional(r.HolderAgentID), r.CharterVersion}) // always marshals
	return e
}

// standing is how a role stands, in a refusal.
type standing struct {
	State          State   `json:"state"`
	Epoch          int64   `json:"epoch"`
	ActivationSeq  int64   `json:"activation_seq"`
	HolderAgentID  *string `json:"holder_agent_id"`
	CharterVersion string  `json:"charter_version"`
}

// Snapshot is a role as replies and events show it; null stands for none.
type Snapshot struct {
	RoleKey                Key     `json:"role_key"`
	RoleKeyWire            string  `json:"role_key_wire"`
	State                  State   `json:"state"`
	HolderAgentID          *string `json:"holder_agent_id"`
	PreviousHolderAgentID  *string `json:"previous_holder_agent_id"`
	Epoch                  int64   `json:"epoch"`
	ActivationSeq          int64   `json:"activation_seq"`
	ActivationID           *string `json:"activation_id"`
	ActivationDeadlineMS   *int64  `json:"activation_deadline_ms"`
	HolderLeaseExpiresAtMS *int64  `json:"holder_lease_expires_at_ms"`
	CharterVersion         string  `json:"charter_version"`
	CharterAckedEpoch      *int64  `json:"charter_acked_epoch"`
	RetryCount             int64   `json:"retry_count"`
	NextProbeAtMS          *int64  `json:"next_probe_at_ms"`
	BlockedReason          *string `json:"blocked_reason"`
	LastTransitionAtMS     int64   `json:"last_transition_at_ms"`
	LastReason             Trigger `json:"last_reason"`
	Version                int64   `json:"version"`
}

// Snapshot is the role as replies and events show it.
func (r *Role) Snapshot() Snapshot {
	return Snapshot{RoleKey: r.Key, RoleKeyWire: r.Wire(), State: r.State, HolderAgentID: optional(r.HolderAgentID),
		PreviousHolderAgentID: optional(r.PreviousHolderAgentID), Epoch: r.Epoch, ActivationSeq: r.ActivationSeq,
		ActivationID: optional(r.ActivationID), ActivationDeadlineMS: optional(r.ActivationDeadlineMS),
		HolderLeaseExpiresAtMS: optional(r.HolderLeaseExpiresAtMS), CharterVersion: r.CharterVersion,
		CharterAckedEpoch: optional(r.CharterAckedEpoch), RetryCount: r.RetryCount, NextProbeAtMS: optional(r.NextProbeAtMS),
		BlockedReason: optional(r.BlockedReason), LastTransitionAtMS: r.LastTransitionAtMS, LastReason: r.LastReason, Version: r.Version}
}

// optional is nil for the zero value, which stands for none.
func optional[T comparable](v T) *T {
	var none T
	if v == none {
		return nil
	}
	return &v
}
