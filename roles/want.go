package roles

// Want is the next transition of a role that is wanted and has nobody: what its
// candidates allow now, "" for nothing. A quarantined role waits for the end of
// its time, or for something new of a candidate.
func Want(r *Role, c Choice) Trigger {
	switch r.State {
	case Electable:
		switch {
		case c.Best != nil:
			return CandidateSelected
		case c.Excluded:
			return CandidatesExcluded
		case r.BlockedReason != blockedNoCandidate:
			return NoCandidate
		}
	case Unreachable:
		if c.Best != nil {
			return AlternateAvailable
		}
		return unreached(c)
	}
	return ""
}

// unreached is what becomes of an unreachable role that has nobody to try now.
func unreached(c Choice) Trigger {
	switch {
	case !c.Excluded:
		return NoCandidate
	case c.Exhausted:
		return RetriesExhausted
	}
	return ""
}

// Overdue is the transition of a role without a holder whose time to be looked
// at has come; "" leaves it as it is until c.AgainMS.
func Overdue(r *Role, c Choice) Trigger {
	switch r.State {
	case Unreachable:
		if c.Best != nil {
			return RetryDue
		}
		return unreached(c)
	case Quarantined:
		if c.Best != nil || !c.Excluded {
			return ExclusionExpired
		}
	}
	return ""
}

// Recover is the transition of a role after a start; "" leaves it. embedded
// says that every connection was dropped, enabled that elections for the role
// are on, leased that its holder's lease has not run out, charter what its
// holder must acknowledge now.
func Recover(r *Role, embedded, enabled, leased bool, charter string) Trigger {
	held := r.HolderAgentID != ""
	switch {
	case !enabled && r.BlockedReason == blockedDisabled:
		return ""
	case !enabled:
		return ManagerDisabled
	case !held && (r.ActivationID != "" || r.held()):
		return RestartActivationFenced
	case held && embedded && !leased:
		return RestartHolderLeaseExpired
	case held && embedded:
		return RestartReprobeRequired
	case r.held() && r.CharterVersion != charter:
		return CharterReissued
	}
	return ""
}

// blocks is what a transition to a state without a holder says that it waits
// for.
func blocks(trigger Trigger) string {
	switch trigger {
	case NoCandidate:
		return blockedNoCandidate
	case CandidatesExcluded:
		return blockedExcluded
	case RetriesExhausted:
		return blockedExhausted
	case ManagerDisabled:
		return blockedDisabled
	}
	return ""
}
