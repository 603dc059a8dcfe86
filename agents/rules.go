package agents

import (
	"encoding/json"
	"slices"

	"signalbox/wire"
)

// Origin is what a new generation takes from the message that began it.
type Origin struct {
	AgentID string
	RowID   int64  // of the register
	LeaseID string // UUIDv7
}

// The rules read an agent and never change it; what they give back takes its
// place.

// Register decides a normalized registration with its digest. The same as the
// current generation's, with the same session, is a renewal; anything else
// begins a new generation, and so does anything after a deregistration. old is
// nil for an agent that is not known yet.
func Register(old *Agent, p Profile, digest string, from Origin, nowMS int64) (Agent, Move) {
	if old != nil && !old.Deregistered && p.SessionID != "" && old.Registration == digest {
		renewed := *old
		life, m := Beat(old, nowMS, reasonRenewed)
		renewed.Life = life
		return renewed, m
	}
	a := Agent{AgentID: from.AgentID, Profile: p, Generation: 1, LeaseID: from.LeaseID, RegisteredID: from.RowID, RegisteredAtMS: nowMS,
		Registration: digest}
	a.Life = Life{Status: Online, LastSeenAtMS: nowMS, LeaseExpiresAtMS: nowMS + p.HeartbeatTTLMS, StatusSinceMS: nowMS,
		DeadlineAtMS: nowMS + p.HeartbeatTTLMS}
	m := Move{Reason: reasonRegistered, NewGeneration: true}
	if old != nil {
		a.Generation = old.Generation + 1
		m.From = old.Status
	}
	return a, m
}

// Beat is a sign of life at nowMS: the lease is the agent's ttl from now, and
// one that is stale or offline comes back. After a deregistration it is
// nothing.
func Beat(a *Agent, nowMS int64, reason string) (Life, Move) { return Seen(a, nowMS, 0, reason) }

// Seen is a sign of life agoMS before nowMS, clamped to 0 and the beginning of
// time. It never shortens a lease, and brings nobody back whose lease it leaves
// over.
func Seen(a *Agent, nowMS, agoMS int64, reason string) (Life, Move) {
	l, m := a.Life, Move{}
	if l.Deregistered {
		return l, m
	}
	seen := nowMS - min(max(agoMS, 0), nowMS)
	l.LastSeenAtMS = max(l.LastSeenAtMS, seen)
	l.LeaseExpiresAtMS = max(l.LeaseExpiresAtMS, seen+a.HeartbeatTTLMS)
	if l.Status != Online {
		if nowMS >= l.LeaseExpiresAtMS {
			return l, m
		}
		m = Move{From: l.Status, Reason: reason}
		l.Status, l.StatusSinceMS = Online, nowMS
	}
	l.DeadlineAtMS = l.LeaseExpiresAtMS
	return l, m
}

// Expire makes an agent stale whose lease is over, and offline one that has
// been stale long enough. Otherwise it is nothing: the deadline has moved.
func Expire(a *Agent, nowMS int64, s Settings) (Life, Move) {
	l, m := a.Life, Move{}
	switch {
	case a.lapsed(nowMS):
		m = Move{From: Online, Reason: reasonLeaseExpired}
		l.Status, l.StatusSinceMS, l.DeadlineAtMS = Stale, nowMS, nowMS+s.OfflineAfterMS
	case a.Status == Stale && nowMS >= a.DeadlineAtMS:
		m = Move{From: Stale, Reason: reasonOfflineAfter}
		l.Status, l.StatusSinceMS, l.DeadlineAtMS = Offline, nowMS, 0
	}
	return l, m
}

// Restart gives a lease that had not run out by the last message before a
// start its whole length again: while the bridge was away it could not be
// renewed.
func Restart(a *Agent, nowMS, lastMS int64) Life {
	l := a.Life
	if l.Status == Online && lastMS < l.LeaseExpiresAtMS {
		l.LeaseExpiresAtMS = max(l.LeaseExpiresAtMS, nowMS+a.HeartbeatTTLMS)
		l.DeadlineAtMS = l.LeaseExpiresAtMS
	}
	return l
}

// Deregister ends the generation: offline at once, and its lease over. Where it
// has ended already there is no move. The refusal is STALE_GENERATION.
func Deregister(a *Agent, generation, nowMS int64) (Life, Move, *wire.Error) {
	if generation != a.Generation {
		return a.Life, Move{}, staleGeneration(a, generation)
	}
	if a.Deregistered {
		return a.Life, Move{}, nil
	}
	return Life{Status: Offline, Deregistered: true, LastSeenAtMS: a.LastSeenAtMS, LeaseExpiresAtMS: min(a.LeaseExpiresAtMS, nowMS),
		StatusSinceMS: nowMS}, Move{From: a.Status, Reason: reasonDeregistered}, nil
}

// Subscribe is what the agent's topics are when some are added, or all
// replaced, sorted, and which of them are new. The refusal is BODY_INVALID.
func Subscribe(a *Agent, more []string, replace bool) (topics, added []string, refusal *wire.Error) {
	if !replace {
		more = append(slices.Clone(more), a.Topics...)
	}
	if topics, refusal = normalizeTopics(more); refusal != nil {
		return nil, nil, refusal
	}
	for _, t := range topics {
		if _, had := slices.BinarySearch(a.Topics, t); !had {
			added = append(added, t)
		}
	}
	return topics, added, nil
}

// Admissible says whether what names the generation, 0 for none, may count for
// the agent. The refusal is AGENT_DEREGISTERED or STALE_GENERATION.
func Admissible(a *Agent, generation int64) *wire.Error {
	switch {
	case a.Deregistered:
		return wire.Errorf(wire.AgentDeregistered, "agent %q has deregistered", a.AgentID).
			WithHint("register to come back")
	case generation != 0 && generation != a.Generation:
		return staleGeneration(a, generation)
	}
	return nil
}

func notFound(agent string) *wire.Error {
	return wire.Errorf(wire.AgentNotFound, "no agent %.200q has registered", agent).WithHint("register with agents.register first")
}

func staleGeneration(a *Agent, generation int64) *wire.Error {
	err := wire.Errorf(wire.StaleGeneration, "generation %d of agent %q is not the current one, %d", generation, a.AgentID, a.Generation).
		WithHint("another process has registered under this id: stop, or register under an id of your own")
	err.Current, _ = json.Marshal(map[string]int64{"generation": a.Generation}) // numbers always marshal
	return err
}
