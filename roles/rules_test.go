package roles

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"signalbox/wire"
)

// Candidates are elected by priority, then the latest update, then agent id.
func TestTheOrderOfCandidates(t *testing.T) {
	var pool []Contender
	for _, c := range []struct {
		id                string
		priority, updated int64
	}{{"d", 0, 5}, {"c", 0, 9}, {"b", 0, 9}, {"a", -1, 99}, {"e", 1, 1}} {
		pool = append(pool, Contender{Candidate: Candidate{AgentID: c.id, Priority: c.priority, UpdatedAtMS: c.updated}})
	}
	slices.SortFunc(pool, func(a, b Contender) int { return a.compare(&b) })
	got := ""
	for _, c := range pool {
		got += c.AgentID
	}
	if got != "ebcda" {
		t.Errorf("they are elected in the order %s", got)
	}
}

// The wait doubles from one second, is cut at the most, then moved by a fifth at
// most: so it can be over the most, and never runs away.
func TestTheBackoffOfAFailedCandidate(t *testing.T) {
	s, err := readSettings(nil)
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int64]int64{1: 1000, 2: 2000, 5: 16_000, 6: 30_000, 40: 30_000, 1 << 40: 30_000} {
		seen := map[int64]bool{}
		for i := range 200 {
			d := s.Backoff.delay(n, fmt.Sprint(i))
			if d < want*8/10-1 || d > want*12/10 {
				t.Errorf("after %d failures it waits %dms, want %d and a fifth", n, d, want)
			}
			if d != s.Backoff.delay(n, fmt.Sprint(i)) {
				t.Errorf("the same activation waits another time")
			}
			seen[d] = true
		}
		if len(seen) < 100 {
			t.Errorf("after %d failures there are only %d waits", n, len(seen))
		}
	}
	// At the limit of failures it is the quarantine, without a jitter.
	if d := s.delay(3, "a"); d != 120_000 {
		t.Errorf("the quarantine is %dms", d)
	}
	if b := (Backoff{BaseMS: 1000, Factor: 2, MaxMS: 30_000}); b.delay(3, "a") != 4000 {
		t.Errorf("without a jitter it waits %dms", b.delay(3, "a"))
	}
}

// The checks of an ack, in the order of the design: with several things wrong
// the first is said.
func TestAnAckIsCheckedInOrder(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	version := func(s string) *string { return &s }
	role := Role{Key: ctoOne, State: Probing, HolderAgentID: "ann", Epoch: 4, ActivationSeq: 4, ActivationID: "a", CharterVersion: "v"}
	right := AckCommand{Epoch: number(4), ActivationSeq: number(4), ActivationID: "a", HolderAgentID: "ann", Reachable: true,
		CharterAck: &CharterAck{Epoch: number(4), CharterVersion: version("v")}}
	fresh := Agent{ID: "ann", Online: true, LeaseExpiresAtMS: 101}
	if refusal := CheckAck(&role, &right, ctoOne, &fresh, true, 100); refusal != nil {
		t.Fatalf("the right ack is refused: %v", refusal)
	}
	over, stranger := fresh, fresh
	over.LeaseExpiresAtMS = 100 // over at the very instant
	stranger.ID = "bob"
	charter := func(epoch int64, v string) *CharterAck { return &CharterAck{Epoch: &epoch, CharterVersion: &v} }
	for _, c := range []struct {
		what   string
		change func(r *Role, a *AckCommand) (Key, Agent, bool)
		want   wire.Code
	}{
		{"off", func(*Role, *AckCommand) (Key, Agent, bool) { return ctoOne, stranger, false }, wire.StaleEpoch},
		{"electable", func(r *Role, _ *AckCommand) (Key, Agent, bool) { r.State = Electable; return ctoOne, stranger, true }, wire.StaleEpoch},
		{"closed", func(r *Role, _ *AckCommand) (Key, Agent, bool) { r.State = Closed; return ctoOne, stranger, true }, wire.StaleEpoch},
		{"epoch", func(_ *Role, a *AckCommand) (Key, Agent, bool) { a.Epoch = number(3); return ctoOne, stranger, true }, wire.StaleEpoch},
		{"seq", func(_ *Role, a *AckCommand) (Key, Agent, bool) {
			a.ActivationSeq = number(5)
			return ctoOne, stranger, true
		}, wire.StaleEpoch},
		{"id", func(_ *Role, a *AckCommand) (Key, Agent, bool) { a.ActivationID = "b"; return ctoOne, stranger, true }, wire.StaleEpoch},
		{"charter key", func(*Role, *AckCommand) (Key, Agent, bool) { return ctoTwo, stranger, true }, wire.StaleEpoch},
		{"charter epoch", func(_ *Role, a *AckCommand) (Key, Agent, bool) {
			a.CharterAck = charter(3, "w")
			return ctoOne, stranger, true
		}, wire.StaleEpoch},
		{"sender", func(_ *Role, a *AckCommand) (Key, Agent, bool) {
			a.CharterAck = charter(4, "w")
			return ctoOne, stranger, true
		}, wire.HolderMismatch},
		{"holder", func(_ *Role, a *AckCommand) (Key, Agent, bool) { a.HolderAgentID = "bob"; return ctoOne, over, true }, wire.HolderMismatch},
		{"charter", func(_ *Role, a *AckCommand) (Key, Agent, bool) {
			a.CharterAck = charter(4, "w")
			return ctoOne, over, true
		}, wire.CharterVersionMismatch},
		{"lease", func(*Role, *AckCommand) (Key, Agent, bool) { return ctoOne, over, true }, wire.HolderLeaseExpired},
	} {
		r, a := role, right
		key, from, on := c.change(&r, &a)
		refusal := CheckAck(&r, &a, key, &from, on, 100)
		if refusal == nil || refusal.Code != c.want || refusal.Current == nil {
			t.Errorf("%s: %v, want %s with the current state", c.what, refusal, c.want)
		}
	}
}

// A gap raises by more than the missing messages can have caused, and by much
// where their number is unknown.
func TestAGapRaisesTheEpoch(t *testing.T) {
	for missing, want := range map[int64]int64{0: 1_000_000, -1: 1_000_000, 1: 1016, 500: 9000, 1 << 62: 1000 + 16<<40} {
		if got := gapRaise(missing); got != want {
			t.Errorf("%d missing messages raise by %d, want %d", missing, got, want)
		}
	}
}

// An issued charter holds until the configured one is another.
func TestAnIssuedCharterHoldsUntilTheConfiguredOneChanges(t *testing.T) {
	kind := Kind{Name: "cto", CharterVersion: "v1"}
	c := newControl().Issue(kind, "v2")
	if got := c.charter(kind); got != "v2" {
		t.Errorf("it is %q after it was issued", got)
	}
	changed := Kind{Name: "cto", CharterVersion: "v3"}
	if got := c.charter(changed); got != "v3" {
		t.Errorf("it is %q after another was configured", got)
	}
	settled, dropped := c.Settle(&Settings{Kinds: []Kind{changed}})
	if got := settled.charter(kind); !dropped || got != "v1" {
		t.Errorf("it is %q after the configuration went back", got)
	}
	if _, dropped := c.Settle(&Settings{Kinds: []Kind{kind}}); dropped {
		t.Error("it is dropped by a start that changed nothing")
	}
}

// Choose takes an eligible one if there is one, and otherwise says when to look
// again: at the first exclusion that ends, never in the past.
func TestAChoiceSaysWhenToLookAgain(t *testing.T) {
	s, err := readSettings(nil)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		const now = 1000
		var pool []Contender
		first, exhausted, fit := int64(0), true, 0
		for i := range rapid.IntRange(0, 5).Draw(rt, "n") {
			c := Contender{Candidate: Candidate{AgentID: fmt.Sprint(i), Locators: []string{"nats"}}, Agent: Agent{Known: true, Online: true, LeaseExpiresAtMS: 2000,
				ProjectID: projectOne, Capabilities: []string{"role:cto:candidate"}}}
			c.ExcludedUntilMS = rapid.Int64Range(900, 1100).Draw(rt, "excluded")
			c.Failures = rapid.Int64Range(0, 4).Draw(rt, "failures")
			c.Agent.Online = rapid.Bool().Draw(rt, "online")
			switch {
			case !c.Agent.Online:
			case c.ExcludedUntilMS <= now:
				fit++
			default:
				if first == 0 || c.ExcludedUntilMS < first {
					first = c.ExcludedUntilMS
				}
				exhausted = exhausted && c.Failures >= 3
			}
			pool = append(pool, c)
		}
		got := Choose(ctoOne, pool, s, now)
		want := Choice{AgainMS: first, Excluded: first != 0, Exhausted: first != 0 && exhausted}
		if fit > 0 {
			want = Choice{Best: got.Best}
		}
		if (fit > 0) != (got.Best != nil) || got != want {
			rt.Fatalf("of %+v it is %+v, want %+v", pool, got, want)
		}
	})
}
