package roles

// State is what a role is in. How each is entered and left is in the package's
// documentation.
type State string

// The states of a role.
const (
	Electable   State = "electable"
	Probing     State = "elected-probing"
	Active      State = "active"
	Unreachable State = "unreachable"
	Quarantined State = "quarantined"
	Closed      State = "closed"

	anyOpen State = "*" // every state but closed
	same    State = "=" // the state it is in
)

// known reports whether s is a state that a role can be in.
func (s State) known() bool {
	switch s {
	case Electable, Probing, Active, Unreachable, Quarantined, Closed:
		return true
	}
	return false
}

// Trigger is why a role changes.
type Trigger string

// The triggers of the transitions. transport_failed, wake_failed and
// standup_reserved are in the table and nothing causes them yet.
const (
	CandidateSelected         Trigger = "candidate_selected"
	StandupReserved           Trigger = "standup_reserved"
	NoCandidate               Trigger = "no_candidate"
	CandidatesExcluded        Trigger = "candidates_excluded"
	ProbeSucceeded            Trigger = "probe_succeeded"
	ActivationAcked           Trigger = "activation_acked"
	ProbeFailed               Trigger = "probe_failed"
	WakeFailed                Trigger = "wake_failed"
	AckTimeout                Trigger = "ack_timeout"
	HolderLeaseExpired        Trigger = "holder_lease_expired"
	HolderOffline             Trigger = "holder_offline"
	Resigned                  Trigger = "resigned"
	Revoked                   Trigger = "revoked"
	CharterReissued           Trigger = "charter_reissued"
	TransportFailed           Trigger = "transport_failed"
	AlternateAvailable        Trigger = "alternate_candidate_available"
	RetryDue                  Trigger = "retry_due"
	RetriesExhausted          Trigger = "retries_exhausted"
	ExclusionExpired          Trigger = "exclusion_expired"
	CandidateRegistered       Trigger = "candidate_registered"
	LocatorRegistered         Trigger = "locator_registered"
	CapabilityRegistered      Trigger = "capability_registered"
	RestartHolderLeaseExpired Trigger = "restart_holder_lease_expired"
	RestartReprobeRequired    Trigger = "restart_reprobe_required"
	RestartActivationFenced   Trigger = "restart_activation_fenced"
	LogGap                    Trigger = "log_gap"
	ManagerDisabled           Trigger = "manager_disabled"
	StaleAck                  Trigger = "stale_ack"
	ScopeClosed               Trigger = "scope_closed"
)

// Action is what a transition does to the role beside its state.
type Action string

// The actions of the transitions. Those that reserve, revoke or fence raise
// epoch and activation_seq.
const (
	ReserveHolder      Action = "reserve_holder"
	ReserveStandup     Action = "reserve_standup"
	RecordBlocked      Action = "record_blocked_no_candidate"
	ScheduleExclusion  Action = "schedule_exclusion_expiry"
	SendActivation     Action = "send_activation"
	RecordAck          Action = "record_activation_ack"
	ExcludeCandidate   Action = "exclude_failed_candidate"
	RevokeFence        Action = "revoke_holder_epoch_fence"
	RevokeKeepBacklog  Action = "revoke_holder_preserve_backlog"
	ReserveReack       Action = "reserve_reack"
	FenceAuthority     Action = "fence_active_authority"
	Failover           Action = "failover_candidate"
	ReserveRetry       Action = "reserve_retry_epoch"
	ScheduleQuarantine Action = "schedule_quarantine"
	RestoreEligibility Action = "restore_candidate_eligibility"
	ClearQuarantine    Action = "clear_quarantine"
	ReserveReprobe     Action = "reserve_reprobe"
	FenceActivation    Action = "fence_activation"
	FenceAfterGap      Action = "fence_after_gap"
	FenceRelease       Action = "fence_and_release"
	RejectStaleAck     Action = "reject_stale_ack"
	FenceClose         Action = "fence_and_close"
)

// Transition is a line of the table.
type Transition struct {
	From    State // "*" for every state but closed
	Trigger Trigger
	To      State // "=" for the state it is in
	Action  Action
}

// Transitions is the whole table: what is not in it does not happen.
var Transitions = []Transition{
	{Electable, CandidateSelected, Probing, ReserveHolder},
	{Electable, StandupReserved, Probing, ReserveStandup},
	{Electable, NoCandidate, Electable, RecordBlocked},
	{Electable, CandidatesExcluded, Quarantined, ScheduleExclusion},

	{Probing, ProbeSucceeded, Probing, SendActivation},
	{Probing, ActivationAcked, Active, RecordAck},
	{Probing, ProbeFailed, Unreachable, ExcludeCandidate},
	{Probing, WakeFailed, Unreachable, ExcludeCandidate},
	{Probing, AckTimeout, Unreachable, ExcludeCandidate},
	{Probing, HolderLeaseExpired, Electable, RevokeFence},
	{Probing, HolderOffline, Electable, RevokeFence},
	{Probing, Resigned, Electable, RevokeFence},
	{Probing, Revoked, Electable, RevokeFence},
	{Probing, CharterReissued, Probing, ReserveReack},

	{Active, HolderLeaseExpired, Electable, RevokeKeepBacklog},
	{Active, HolderOffline, Electable, RevokeKeepBacklog},
	{Active, Resigned, Electable, RevokeKeepBacklog},
	{Active, Revoked, Electable, RevokeKeepBacklog},
	{Active, TransportFailed, Unreachable, FenceAuthority},
	{Active, CharterReissued, Probing, ReserveReack},

	{Unreachable, AlternateAvailable, Electable, Failover},
	{Unreachable, NoCandidate, Electable, RecordBlocked},
	{Unreachable, RetryDue, Probing, ReserveRetry},
	{Unreachable, RetriesExhausted, Quarantined, ScheduleQuarantine},

	{Quarantined, ExclusionExpired, Electable, RestoreEligibility},
	{Quarantined, CandidateRegistered, Electable, ClearQuarantine},
	{Quarantined, LocatorRegistered, Electable, ClearQuarantine},
	{Quarantined, CapabilityRegistered, Electable, ClearQuarantine},

	{anyOpen, RestartHolderLeaseExpired, Electable, RevokeKeepBacklog},
	{anyOpen, RestartReprobeRequired, Probing, ReserveReprobe},
	{anyOpen, RestartActivationFenced, Electable, FenceActivation},
	{anyOpen, LogGap, Electable, FenceAfterGap},
	{anyOpen, ManagerDisabled, Electable, FenceRelease},
	{anyOpen, StaleAck, same, RejectStaleAck},
	{anyOpen, ScopeClosed, Closed, FenceClose},
}

// edge is where a trigger finds a role.
type edge struct {
	from    State
	trigger Trigger
}

// edges finds a line of the table without reading all of it.
var edges = func() map[edge]Transition {
	m := map[edge]Transition{}
	for _, t := range Transitions {
		m[edge{t.From, t.Trigger}] = t
	}
	return m
}()

// find is the line for a role in the state, with the states filled in.
func find(from State, trigger Trigger) (Transition, bool) {
	t, ok := edges[edge{from, trigger}]
	if !ok && from != Closed {
		t, ok = edges[edge{anyOpen, trigger}]
	}
	t.From = from
	if t.To == same {
		t.To = from
	}
	return t, ok
}
