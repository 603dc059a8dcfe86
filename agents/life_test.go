package agents_test

import (
	"fmt"
	"testing"

	"signalbox/step"
	"signalbox/wire"
)

// with registers agents of one session each and forgets what it moved.
func with(t testing.TB, ids ...string) *bus {
	t.Helper()
	b := newBus(t)
	for _, id := range ids {
		b.do(id, "register", `{"session_id":"s"}`)
	}
	b.moved()
	return b
}

// expect compares the transitions since the last time.
func (b *bus) expect(want string) {
	b.t.Helper()
	if moved := b.moved(); moved != want {
		b.t.Errorf("it moved %q, want %q", moved, want)
	}
}

// field is a field of an agent after a commit.
func (b *bus) field(id, name string) string {
	b.t.Helper()
	b.commit()
	v := b.get(id)[name]
	if f, ok := v.(float64); ok {
		return fmt.Sprint(int64(f))
	}
	return fmt.Sprint(v)
}

func TestAnAgentWithoutASignOfLifeIsStaleThenOffline(t *testing.T) {
	b := with(t, "a")
	for _, c := range []struct {
		at   int64
		want string
	}{
		{ttl - 1, ""}, {ttl, "a: online>stale lease_expired"}, {ttl + offlineAfter - 1, ""},
		{ttl + offlineAfter, "a: stale>offline offline_after"}, {ttl + 100*offlineAfter, ""},
	} {
		b.nowMS = start + c.at
		b.tick()
		b.expect(c.want)
	}
	if status := b.field("a", "status"); status != "offline" {
		t.Errorf("it is %s", status)
	}
}

func TestTheTimeToBeOfflineCountsFromTheTickThatSaidStale(t *testing.T) {
	b := with(t, "a")
	b.settings = set(`{"offline_after_ms":1000}`)
	b.nowMS += ttl + 10*offlineAfter // everything was down
	b.tick()
	b.expect("a: online>stale lease_expired")
	b.settings = set(`{"offline_after_ms":60000}`) // a deadline that is set does not move
	b.nowMS += 999
	b.tick()
	b.expect("")
	b.nowMS++
	b.tick()
	b.expect("a: stale>offline offline_after")
}

func TestADeadlineThatHasMovedDoesNothing(t *testing.T) {
	b := with(t, "a")
	b.nowMS += ttl
	due, err := b.m.Due(b.db, b.nowMS, 10)
	if err != nil || len(due) != 1 || due[0] != (step.Deadline{AtMS: b.nowMS, Key: "a"}) {
		t.Fatalf("due are %v, %v", due, err)
	}
	b.do(wire.Bridge, "seen", `{"agents":[{"id":"a","ago_ms":1}]}`)
	b.must(wire.Bridge, due[0])
	b.must(wire.Bridge, step.Deadline{AtMS: b.nowMS, Key: "nobody"})
	b.expect("")

	b.nowMS += ttl
	b.tick()
	b.must(wire.Bridge, due[0]) // said twice
	b.expect("a: online>stale lease_expired")
	b.do("a", "deregister", `{"generation":1}`)
	b.moved()
	b.must(wire.Bridge, due[0])
	b.expect("")
}

// R2, as far as agents go.
func TestALateSendersLeaseLapsesBeforeItsMessageIsJudged(t *testing.T) {
	b := with(t, "a", "c")
	b.nowMS += ttl
	b.row++
	b.must("a", step.Notice{Machine: step.Bridge, What: step.Arrived, Key: "a"})
	if online, _, _ := b.m.Candidate(b.db, "a"); online.Online || online.LeaseExpiresAtMS > b.nowMS {
		t.Errorf("while its message is judged it is %+v", online)
	}
	b.expect("a: online>stale lease_expired")
	b.handled("a", wire.Errorf(wire.BodyInvalid, "whatever it was")) // a refused message is a sign of life too
	b.expect("a: stale>online message")
	if lease := b.field("a", "lease_expires_at_ms"); lease != fmt.Sprint(b.nowMS+ttl) {
		t.Errorf("its lease ends at %s", lease)
	}
	b.nowMS += ttl - 1
	b.say("a")
	b.expect("") // in time, and so nothing but times
	if seen := b.field("a", "last_seen_at_ms"); seen != fmt.Sprint(b.nowMS) {
		t.Errorf("it was seen at %s, not %d", seen, b.nowMS)
	}
	b.say("nobody")
	b.say("")
	b.expect("")
	if _, refusal := b.ask("nobody", "get", ``); refusal == nil {
		t.Error("a message registers its sender")
	}
}

func TestWhatCountsAsASignOfLifeBringsBackAndWhatDoesNot(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(b *bus)
		want string // the last transition; "" for none
	}{
		"heartbeat":                    {func(b *bus) { b.do("a", "heartbeat", `{}`) }, "online heartbeat"},
		"heartbeat of its generation":  {func(b *bus) { b.do("a", "heartbeat", `{"generation":2}`) }, "online heartbeat"},
		"heartbeat of an old one":      {func(b *bus) { b.try("a", "heartbeat", `{"generation":1}`) }, ""},
		"heartbeat of a future one":    {func(b *bus) { b.try("a", "heartbeat", `{"generation":3}`) }, ""},
		"heartbeat that is no command": {func(b *bus) { b.try("a", "heartbeat", `{"generation":"2"}`) }, "online message"},
		"message":                      {func(b *bus) { b.say("a") }, "online message"},
		"subscribe":                    {func(b *bus) { b.do("a", "subscribe", `{"topics":["t"]}`) }, "online message"},
		"deregister of an old one":     {func(b *bus) { b.try("a", "deregister", `{"generation":1}`) }, ""},
		"refused registration":         {func(b *bus) { b.try("a", "register", `{"cli":"vim"}`) }, "online message"},
		"roll-up":                      {func(b *bus) { b.do(wire.Bridge, "seen", `{"agents":[{"id":"a","ago_ms":29999}]}`) }, "online heartbeat"},
		"roll-up of its generation":    {func(b *bus) { b.do(wire.Bridge, "seen", `{"agents":[{"id":"a","generation":2,"ago_ms":0}]}`) }, "online heartbeat"},
		"roll-up of an old one":        {func(b *bus) { b.do(wire.Bridge, "seen", `{"agents":[{"id":"a","generation":1,"ago_ms":0}]}`) }, ""},
		"roll-up that is too old":      {func(b *bus) { b.do(wire.Bridge, "seen", `{"agents":[{"id":"a","ago_ms":30000}]}`) }, ""},
		"roll-up of another":           {func(b *bus) { b.do(wire.Bridge, "seen", `{"agents":[{"id":"A","ago_ms":0}]}`) }, ""},
		"roll-up by another":           {func(b *bus) { b.try("x", "seen", `{"agents":[{"id":"a","ago_ms":0}]}`) }, ""},
	} {
		for _, from := range []string{"stale", "offline"} {
			t.Run(name+" when "+from, func(t *testing.T) {
				b := with(t, "a")
				b.do("a", "register", `{"session_id":"second"}`)
				b.nowMS += ttl
				b.tick()
				if from == "offline" {
					b.nowMS += offlineAfter
					b.tick()
				}
				b.moved()
				c.do(b)
				if want := "a: " + from + ">" + c.want; c.want == "" {
					b.expect("")
				} else {
					b.expect(want)
				}
			})
		}
	}
}

// What is judged while a heartbeat or a renewal is being answered must see the
// lease that was answered, not the one before.
func TestARenewalAndAHeartbeatMoveTheLeaseInTheirOwnStep(t *testing.T) {
	for verb, body := range map[string]string{"register": `{"session_id":"s"}`, "heartbeat": `{}`} {
		b := with(t, "a")
		b.nowMS += 1000
		effects, err := b.apply("a", step.Command{Verb: verb, Body: []byte(body)})
		facts, _, factsErr := b.m.Candidate(b.db, "a")
		if err != nil || factsErr != nil || facts.LeaseExpiresAtMS != b.nowMS+ttl ||
			object(t, effects.Reply)["lease_expires_at_ms"] != float64(facts.LeaseExpiresAtMS) {
			t.Errorf("%s answers %v, %v, and the lease ends at %d", verb, effects.Reply, err, facts.LeaseExpiresAtMS)
		}
	}
}

func TestARollUpNeverShortensALeaseAndCountsFromWhenItWasSeen(t *testing.T) {
	b := with(t, "a", "c")
	b.nowMS += 10_000
	for _, c := range []struct {
		ago         int64
		seen, lease int64 // since the start
	}{
		{20_000, 0, ttl}, {10_000, 0, ttl}, {4000, 6000, 6000 + ttl}, {5000, 6000, 6000 + ttl}, {0, 10_000, 10_000 + ttl},
		{9_000_000_000_000_000_000, 10_000, 10_000 + ttl},
		{-9_000_000_000_000_000_000, 10_000, 10_000 + ttl}, // the future is now
	} {
		reply := b.do(wire.Bridge, "seen", fmt.Sprintf(`{"agents":[{"id":"a","ago_ms":%d}]}`, c.ago))
		if len(object(t, reply)) != 0 {
			t.Errorf("the reply is %v", reply)
		}
		b.commit()
		a := b.get("a")
		if a["last_seen_at_ms"] != float64(start+c.seen) || a["lease_expires_at_ms"] != float64(start+c.lease) {
			t.Errorf("%d ms ago: seen %v, lease %v, want %d and %d", c.ago, a["last_seen_at_ms"], a["lease_expires_at_ms"], start+c.seen, start+c.lease)
		}
	}
	if lease := b.field("c", "lease_expires_at_ms"); lease != fmt.Sprint(start+ttl) {
		t.Errorf("the lease of another ends at %s", lease)
	}
	b.expect("")
}

func TestADeregisteredAgentComesBackByARegistrationOnly(t *testing.T) {
	for _, from := range []string{"online", "stale", "offline"} {
		b := with(t, "a")
		if from != "online" {
			b.nowMS += ttl
			b.tick()
		}
		b.moved()
		if from == "offline" {
			b.nowMS += offlineAfter
			b.tick()
			b.moved()
			b.must(wire.Bridge, step.Deadline{AtMS: b.nowMS, Key: "a"})
			// Its own message would bring it back first; a repeat from an old
			// connection is judged before it counts.
			if _, err := b.apply("a", step.Command{Verb: "deregister", Body: []byte(`{"generation":1}`)}); err != nil {
				t.Fatal(err)
			}
			b.expect("a: offline>offline deregistered")
		} else {
			reply := object(t, b.do("a", "deregister", `{"generation":1}`))
			if fmt.Sprint(reply) != "map[agent_id:a generation:1 status:offline]" {
				t.Errorf("the reply is %v", reply)
			}
			b.expect("a: " + from + ">offline deregistered")
		}
		b.commit()
		gone := b.dump()
		for _, c := range []struct{ verb, body string }{
			{"heartbeat", `{}`}, {"heartbeat", `{"generation":1}`}, {"subscribe", `{"topics":["t"]}`}, {"deregister", `{"generation":1}`},
		} {
			reply, refusal := b.send("a", c.verb, c.body)
			if c.verb == "deregister" {
				if refusal != nil || object(t, reply)["idempotent"] != true {
					t.Errorf("deregistered again: %v, %v", reply, refusal)
				}
			} else if refusal == nil || refusal.Code != wire.AgentDeregistered {
				t.Errorf("%s: %v", c.verb, refusal)
			}
		}
		b.say("a")
		b.do(wire.Bridge, "seen", `{"agents":[{"id":"a","ago_ms":0}]}`)
		b.must(wire.Bridge, step.Notice{Machine: step.Bridge, What: step.Started, Data: step.Start{LastMS: 0}})
		b.nowMS += 10 * offlineAfter
		b.tick()
		b.expect("")
		if after := b.dump(); after != gone {
			t.Errorf("from %s: it was %s and is %s", from, gone, after)
		}
		b.do("a", "register", `{"session_id":"s"}`)
		b.expect("a: offline>online registered")
		if generation := b.field("a", "generation"); generation != "2" {
			t.Errorf("it came back as generation %s", generation)
		}
	}
}

func TestAStartGivesLeasesBackThatHadNotRunOut(t *testing.T) {
	b := newBus(t)
	for id, ttl := range map[string]int{"over": 20_000, "ahead": 20_001, "long": 3_600_000, "stale": 15_000} {
		b.do(id, "register", fmt.Sprintf(`{"heartbeat_ttl_ms":%d}`, ttl))
	}
	b.moved()
	b.nowMS += 15_000
	b.tick()
	b.expect("stale: online>stale lease_expired")

	last := int64(start + 20_000) // exactly the end of one of the leases
	b.nowMS = last + 600_000
	b.must(wire.Bridge, step.Notice{Machine: step.Bridge, What: step.Started, Key: "x", Data: step.Start{LastMS: last, Embedded: true}})
	b.expect("")
	for id, want := range map[string]int64{"over": last, "ahead": b.nowMS + 20_001, "long": b.nowMS + 3_600_000, "stale": start + 15_000} {
		if lease := b.field(id, "lease_expires_at_ms"); lease != fmt.Sprint(want) {
			t.Errorf("the lease of %q ends at %s, want %d", id, lease, want)
		}
	}
	b.tick()
	b.expect("over: online>stale lease_expired; stale: stale>offline offline_after")
}
