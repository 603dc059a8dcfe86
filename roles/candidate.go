package roles

import (
	"cmp"
	"slices"
	"strings"
)

// Source is how an agent has become a candidate.
type Source string

// The sources of candidates.
const (
	Granted    Source = "grant"    // by the capability role:<kind>:candidate
	StoodUp    Source = "standup"  // by its own command
	ByOperator Source = "operator" // by somebody else's command
)

// Capabilities that agents declare.
const capabilityProbe = "probe" // it answers requests on bus.rpc.<agent>.probe

// capability is what an agent declares to be a candidate for a kind.
func capability(kind string) string { return "role:" + kind + ":candidate" }

// locatorNATS is the one way to reach an agent that is built in.
const locatorNATS = "nats"

// usable reports whether one of the locators is a way that is built in.
func usable(locators []string) bool {
	return slices.ContainsFunc(locators, func(l string) bool {
		return l == locatorNATS || strings.HasPrefix(l, locatorNATS+":")
	})
}

// Agent is what an election must know of an agent, as of now.
type Agent struct {
	ID               string
	Known            bool
	Online           bool
	LeaseExpiresAtMS int64
	Live             bool // delivery is live: nothing is kept for it
	ProjectID        string
	Capabilities     []string
	Locators         []string
	UpdatedAtMS      int64 // when it registered
}

// leased reports whether the agent's lease has not run out.
func (a *Agent) leased(nowMS int64) bool { return a.Online && nowMS < a.LeaseExpiresAtMS }

// Candidate is the row of an agent that may be elected to a role. An agent that
// is one by its capability alone has no row until something must be remembered
// of it.
type Candidate struct {
	Role            string // its name
	AgentID         string
	Source          Source
	Priority        int64
	Locators        []string // of the candidacy, or of the agent's last registration since
	Failures        int64    // of probe or ack in a row
	ExcludedUntilMS int64    // 0: not excluded
	ExcludedReason  Trigger  // "" or why: probe_failed, ack_timeout, resigned, revoked
	LastProbeAtMS   int64
	LastProbeCode   string // reachable, acked, probe_failed, ack_timeout, resigned
	Capable         bool   // it had the capability when it was last looked at
	Withdrawn       bool
	UpdatedAtMS     int64
}

// candidacy is that of an agent that is a candidate by its capability alone.
func candidacy(k Key, a *Agent) Candidate {
	return Candidate{Role: k.Name(), AgentID: a.ID, Source: Granted, Locators: a.Locators,
		Capable: has(a.Capabilities, capability(k.RoleKind)), UpdatedAtMS: a.UpdatedAtMS}
}

func has(list []string, what string) bool { return slices.Contains(list, what) }

// Contender is a candidate with what is known of its agent.
type Contender struct {
	Candidate
	Agent Agent
}

// Why a candidate may not be elected now.
const (
	whyUnknown    = "not_registered"
	whyOffline    = "not_online"
	whyLease      = "lease_expired"
	whyLive       = "delivery_live"
	whyProject    = "other_project"
	whyCapability = "no_capability"
	whyWithdrawn  = "withdrawn"
	whyLocator    = "no_usable_locator"
	whyExcluded   = "excluded"
)

// Unfit is why the candidate may not be elected to the role now, "" if it may.
// excluded is the last that is looked at, so it says that nothing else is in
// the way.
func (c *Contender) Unfit(k Key, nowMS int64) string {
	switch {
	case !c.Agent.Known:
		return whyUnknown
	case c.Agent.ProjectID != k.ProjectID: // the key's is never empty
		return whyProject
	case !has(c.Agent.Capabilities, capability(k.RoleKind)):
		return whyCapability
	case c.Withdrawn:
		return whyWithdrawn
	case c.Agent.Live:
		return whyLive
	case !usable(c.Locators):
		return whyLocator
	case !c.Agent.Online:
		return whyOffline
	case !c.Agent.leased(nowMS):
		return whyLease
	case nowMS < c.ExcludedUntilMS:
		return whyExcluded
	}
	return ""
}

// disqualified reports whether the agent's registration is not that of a holder
// of the role, whatever its lease says.
func disqualified(a *Agent, k Key) bool {
	return a.ProjectID != k.ProjectID || a.Live || !has(a.Capabilities, capability(k.RoleKind)) || !usable(a.Locators)
}

// compare orders candidates: priority descending, updated descending, agent id.
func (c *Contender) compare(o *Contender) int {
	return cmp.Or(cmp.Compare(o.Priority, c.Priority), cmp.Compare(o.UpdatedAtMS, c.UpdatedAtMS), strings.Compare(c.AgentID, o.AgentID))
}

// Choice is what a role's candidates come to.
type Choice struct {
	Best *Contender // nil: nobody may be elected now

	// Where there is no best: when to look again by itself, 0 for never, and
	// whether there are candidates that nothing but their exclusion is against,
	// all of them at the limit of failures.
	AgainMS   int64
	Excluded  bool
	Exhausted bool
}

// lookAgainMS is when a role looks again at a candidate whose lease is over
// though no tick has said so: a heartbeat on its way may still renew it, which
// nobody would tell.
const lookAgainMS = 1000

// Choose finds the best of the candidates for the role.
func Choose(k Key, pool []Contender, s *Settings, nowMS int64) Choice {
	c := Choice{Exhausted: true}
	for i := range pool {
		p := &pool[i]
		switch p.Unfit(k, nowMS) {
		case "":
			if c.Best == nil || p.compare(c.Best) < 0 {
				c.Best = p
			}
		case whyExcluded:
			c.Excluded = true
			c.Exhausted = c.Exhausted && p.Failures >= s.MaxProbeFailures
			c.again(p.ExcludedUntilMS)
		case whyLease:
			c.again(nowMS + lookAgainMS)
		}
	}
	c.Exhausted = c.Exhausted && c.Excluded
	if c.Best != nil {
		return Choice{Best: c.Best}
	}
	return c
}

func (c *Choice) again(ms int64) {
	if c.AgainMS == 0 || ms < c.AgainMS {
		c.AgainMS = ms
	}
}

// Fail is the candidate after its activation ended by a failure: left out for
// as long as the number of its failures says.
func Fail(c Candidate, why Trigger, activation string, s *Settings, nowMS int64) Candidate {
	c.Failures++
	c.ExcludedUntilMS, c.ExcludedReason = nowMS+s.delay(c.Failures, activation), why
	c.LastProbeAtMS, c.LastProbeCode = nowMS, string(why)
	return c
}

// PassOver is the candidate after it gave up the role or lost it to an operator:
// left out for ms, so that the election that follows is not for it.
func PassOver(c Candidate, why Trigger, ms, nowMS int64) Candidate {
	if until := nowMS + ms; ms > 0 && until > c.ExcludedUntilMS {
		c.ExcludedUntilMS, c.ExcludedReason = until, why
	}
	return c
}

// Acked is the candidate after its ack was accepted: its failures are forgotten.
func Acked(c Candidate, nowMS int64) Candidate {
	c.Failures, c.ExcludedUntilMS, c.ExcludedReason = 0, 0, ""
	c.LastProbeAtMS, c.LastProbeCode = nowMS, "acked"
	return c
}

// Register is the candidate after its agent registered anew: its failures are
// forgotten, but not that an operator left it out.
func Register(c Candidate, a *Agent, kind string, nowMS int64) Candidate {
	c.Failures = 0
	if c.ExcludedReason != Revoked {
		c.ExcludedUntilMS, c.ExcludedReason = 0, ""
	}
	c.Locators, c.Capable = a.Locators, has(a.Capabilities, capability(kind))
	c.UpdatedAtMS = nowMS
	return c
}

// registered is the trigger by which a registration brings a quarantined role
// back: what is new of the candidate.
func registered(before, after Candidate, known bool) Trigger {
	switch {
	case known && !before.Capable && after.Capable:
		return CapabilityRegistered
	case known && !slices.Equal(before.Locators, after.Locators):
		return LocatorRegistered
	}
	return CandidateRegistered
}
