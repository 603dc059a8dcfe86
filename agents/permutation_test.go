package agents_test

import (
	"fmt"
	"testing"

	"signalbox/step"
	"signalbox/wire"
)

// A is the older process under the id, B the newer. What each does by name:
const (
	bRegisters   = "B registers"
	aHeartbeats  = "A heartbeats"
	aDeregisters = "A deregisters"
	sweep        = "sweep"
)

// waits are what time may pass before each: none, some, all of a lease, and
// more than an agent takes from online to offline.
var waits = []int64{0, 1000, ttl, ttl + offlineAfter}

// beats are the ways in which A may give a sign of life. generation says that
// it names its own.
var beats = []struct {
	name       string
	generation bool
	give       func(b *bus)
}{
	{"by command", true, func(b *bus) { b.try("a", "heartbeat", `{"generation":1}`) }},
	{"by roll-up", true, func(b *bus) { b.do(wire.Bridge, "seen", `{"agents":[{"id":"a","generation":1,"ago_ms":0}]}`) }},
	{"by command without its generation", false, func(b *bus) { b.try("a", "heartbeat", `{}`) }},
	{"by roll-up without its generation", false, func(b *bus) { b.do(wire.Bridge, "seen", `{"agents":[{"id":"a","ago_ms":0}]}`) }},
	{"by message", false, func(b *bus) { b.say("a") }},
}

// In every order of {B registers, A heartbeats, A deregisters, sweep}, at any
// times, the newer generation stays.
func TestInEveryOrderTheNewerGenerationStays(t *testing.T) {
	b := newBus(t)
	runs := 0
	for _, order := range permutations([]string{bRegisters, aHeartbeats, aDeregisters, sweep}) {
		for _, beat := range beats {
			for code := range len(waits) * len(waits) * len(waits) * len(waits) {
				runs++
				newerStays(t, b, order, beat.name, beat.generation, beat.give, code)
				if t.Failed() {
					return
				}
			}
		}
	}
	if want := 24 * len(beats) * 256; runs != want {
		t.Errorf("%d orders were tried, not %d", runs, want)
	}
}

func newerStays(t *testing.T, b *bus, order []string, how string, generation bool, give func(*bus), code int) {
	if _, err := b.db.Exec(`DELETE FROM agents`); err != nil {
		t.Fatal(err)
	}
	b.m.Forget()
	b.nowMS, b.row = start, 0
	b.do("a", "register", `{"session_id":"A"}`)
	b.moved()

	story := how
	registered := int64(0) // when B did
	alive := int64(0)      // the end of B's lease by what B alone knows, and signs without a generation
	lapsed := false
	for i, what := range order {
		b.nowMS += waits[code>>(2*i)&3]
		story += fmt.Sprintf("; %s at %d", what, b.nowMS-start)
		late := registered != 0 && b.nowMS >= alive
		switch what {
		case bRegisters:
			b.do("a", "register", `{"session_id":"B"}`)
			registered, alive, lapsed = b.nowMS, b.nowMS+ttl, false
		case aHeartbeats:
			give(b)
			if registered != 0 && !generation {
				alive, lapsed = b.nowMS+ttl, false
			} else {
				// A's command says that the lease is over, if it is; it says no more.
				lapsed = lapsed || late && how == "by command"
			}
		case aDeregisters:
			_, refusal := b.send("a", "deregister", `{"generation":1}`)
			if registered != 0 {
				lapsed = lapsed || late
				if refusal == nil || refusal.Code != wire.StaleGeneration {
					t.Errorf("%s: A deregisters B: %v", story, refusal)
				}
			}
		case sweep:
			b.tick()
			lapsed = lapsed || late
		}
	}
	facts, known, err := b.m.Candidate(b.db, "a")
	_, live, row, owedErr := b.m.Owed(b.db, "a")
	if err != nil || owedErr != nil || !known || live || facts.UpdatedAtMS != registered || row == 1 {
		t.Errorf("%s: the generation is not B's: %+v of row %d, %v, %v", story, facts, row, err, owedErr)
	}
	if facts.LeaseExpiresAtMS != alive {
		t.Errorf("%s: the lease ends at %d, not at %d", story, facts.LeaseExpiresAtMS-start, alive-start)
	}
	if facts.Online == lapsed {
		t.Errorf("%s: online is %v", story, facts.Online)
	}
	// Whatever has happened, B's next heartbeat counts.
	b.must("a", step.Notice{Machine: step.Bridge, What: step.Arrived, Key: "a"})
	if _, err := b.apply("a", step.Command{Verb: "heartbeat", Body: []byte(`{"generation":2}`)}); err != nil {
		t.Errorf("%s: B is refused: %v", story, err)
	}
}

// permutations are all orders of a list.
func permutations(list []string) (all [][]string) {
	if len(list) == 0 {
		return [][]string{nil}
	}
	for i := range list {
		rest := append(append([]string(nil), list[:i]...), list[i+1:]...)
		for _, p := range permutations(rest) {
			all = append(all, append([]string{list[i]}, p...))
		}
	}
	return all
}
