package agents_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"signalbox/agents"
	"signalbox/step"
	"signalbox/wire"
)

func TestSubscribeAddsOrReplacesAndSaysWhatIsNew(t *testing.T) {
	b := with(t, "a")
	for _, c := range []struct {
		body       string
		topics     string
		added      string
		idempotent bool
	}{
		{`{"topics":["b","a","b"]}`, "[a b]", "[a b]", false},
		{`{"topics":["a"]}`, "[a b]", "", true},
		{`{"topics":[]}`, "[a b]", "", true},
		{`{"topics":["c"]}`, "[a b c]", "[c]", false},
		{`{"topics":["d","c"],"replace":true}`, "[c d]", "[d]", false},
		{`{"topics":["d"],"replace":true}`, "[d]", "[]", false},
		{`{"topics":["d"],"replace":true}`, "[d]", "", true},
		{`{"topics":[],"replace":true}`, "[]", "[]", false},
	} {
		reply := object(t, b.do("a", "subscribe", c.body))
		_, idempotent := reply["idempotent"]
		if fmt.Sprint(reply["topics"]) != c.topics || idempotent != c.idempotent {
			t.Errorf("%s answers %v", c.body, reply)
		}
		if c.idempotent != (len(b.notices) == 0) {
			t.Errorf("%s tells %v", c.body, b.notices)
		}
		for _, n := range b.notices {
			change := n.Data.(agents.Change)
			if n.What != "subscribed" || n.Key != "a" || fmt.Sprint(change.SubscribedTopics()) != c.added || fmt.Sprint(change.Topics) != c.topics {
				t.Errorf("%s tells %+v", c.body, n)
			}
		}
		b.expect("") // topics are no state
		b.commit()
		if topics := b.field("a", "topics"); topics != c.topics {
			t.Errorf("%s left %s", c.body, topics)
		}
	}
}

func TestOtherMachinesHearOfEveryChangeOfState(t *testing.T) {
	b := newBus(t)
	tell := func(want string) {
		t.Helper()
		var told []string
		for i, n := range b.notices {
			c := n.Data.(agents.Change)
			told = append(told, fmt.Sprintf("%s %s g%d new=%v live=%v %v %s %v", n.What, n.Key, c.Generation, c.NewlyRegistered(), c.LiveOnly(),
				c.SubscribedTopics(), c.ProjectID, c.Capabilities))
			if n.Key != c.ID || !slices.Equal(c.Topics, []string{"t"}) {
				t.Errorf("the notice is %+v", n)
			}
			body := object(t, b.bodies[i])
			if body["status"] != n.What || body["agent_id"] != n.Key || body["generation"] != float64(c.Generation) {
				t.Errorf("the snapshot is %v", body)
			}
		}
		if got := strings.Join(told, "; "); got != want {
			t.Errorf("told is %s\nwant    %s", got, want)
		}
		b.moved()
	}
	const body = `{"topics":["t"],"project_id":"p","capabilities":["c"],"session_id":"s","delivery":"live"}`
	b.do("a", "register", body)
	tell("online a g1 new=true live=true [t] p [c]")
	b.do("a", "register", body)
	tell("")
	b.nowMS += ttl
	b.tick()
	tell("stale a g1 new=false live=true [] p [c]")
	b.do("a", "heartbeat", ``)
	tell("online a g1 new=false live=true [t] p [c]")
	b.nowMS += ttl
	b.tick()
	b.nowMS += offlineAfter
	b.tick()
	tell("stale a g1 new=false live=true [] p [c]; offline a g1 new=false live=true [] p [c]")
	b.do("a", "register", strings.Replace(body, `"live"`, `"inbox"`, 1))
	tell("online a g2 new=true live=false [t] p [c]")
	b.do("a", "deregister", `{"generation":2}`)
	tell("offline a g2 new=false live=false [] p [c]")
}

func TestEveryCodeIsAnsweredWhereItIsDue(t *testing.T) {
	for _, c := range []struct {
		from, verb, body string
		code             wire.Code
		says             string
	}{
		{"x", "heartbeat", `{}`, wire.AgentNotFound, `"x"`},
		{"x", "heartbeat", `{"generation":1}`, wire.AgentNotFound, `"x"`},
		{"x", "subscribe", `{"topics":["t"]}`, wire.AgentNotFound, `"x"`},
		{"x", "deregister", `{"generation":1}`, wire.AgentNotFound, `"x"`},
		{"a", "heartbeat", `{"generation":1}`, wire.StaleGeneration, "generation 1"},
		{"a", "heartbeat", `{"generation":3}`, wire.StaleGeneration, "generation 3"},
		{"a", "heartbeat", `{"generation":-1}`, wire.StaleGeneration, "generation -1"},
		{"a", "deregister", `{"generation":1}`, wire.StaleGeneration, "generation 1"},
		{"gone", "deregister", `{"generation":2}`, wire.StaleGeneration, "generation 2"},
		{"gone", "heartbeat", `{}`, wire.AgentDeregistered, `"gone"`},
		{"gone", "heartbeat", `{"generation":9}`, wire.AgentDeregistered, `"gone"`},
		{"gone", "subscribe", `{"topics":["t"]}`, wire.AgentDeregistered, `"gone"`},
		{"a", "register", `{"agent_id":"b"}`, wire.IdentityMismatch, "agent_id"},
		{"a", "register", `{"agent_id":"signalbox"}`, wire.IdentityMismatch, "agent_id"},
		{"a", "seen", `{"agents":[]}`, wire.IdentityMismatch, "seen"},
		{"signalbox", "register", `{}`, wire.ReservedID, "signalbox"},
		{"_", "register", `{"agent_id":"_"}`, wire.ReservedID, `"_"`},
		{"a", "register", `{"heartbeat_ttl_ms":1}`, wire.TTLInvalid, "15000"},
		{"a", "register", `{"lease":1}`, wire.BodyInvalid, "lease"},
		{"a", "register", `[]`, wire.BodyInvalid, "object"},
		{"a", "heartbeat", `{"gen":1}`, wire.BodyInvalid, "gen"},
		{"a", "heartbeat", `{"generation":"1"}`, wire.BodyInvalid, "generation"},
		{"a", "deregister", `{}`, wire.BodyInvalid, "generation"},
		{"a", "deregister", `{"generation":0}`, wire.BodyInvalid, "generation"},
		{"a", "deregister", `x`, wire.BodyInvalid, "JSON"},
		{"a", "subscribe", `{}`, wire.BodyInvalid, "topics"},
		{"a", "subscribe", `{"topics":["a b"]}`, wire.BodyInvalid, "topics[0]"},
		{"a", "subscribe", `{"topics":["` + strings.Join(manyTopics(64), `","`) + `"]}`, wire.BodyInvalid, "65"},
		{"a", "subscribe", `{"topics":"t"}`, wire.BodyInvalid, "topics"},
		{"signalbox", "seen", `{"agents":[{"id":1}]}`, wire.BodyInvalid, "id"},
		{"signalbox", "seen", `{"agents":[` + strings.Repeat(`{"id":"a"},`, agents.MaxSeen) + `{"id":"a"}]}`, wire.BodyInvalid, "1001"},
	} {
		b := with(t, "a", "gone")
		b.do("a", "register", `{"topics":["had"]}`)
		b.do("gone", "deregister", `{"generation":1}`)
		b.moved()
		before := b.dump()
		b.nowMS++
		_, err := b.apply(c.from, step.Command{Verb: c.verb, Body: []byte(c.body)})
		var refusal *wire.Error
		if !errors.As(err, &refusal) || refusal.Code != c.code || !strings.Contains(refusal.Message, c.says) {
			t.Errorf("%s %.80s of %s: %v, want %s that says %q", c.verb, c.body, c.from, err, c.code, c.says)
			continue
		}
		if after := b.dump(); after != before || b.moved() != "" {
			t.Errorf("%s %.80s of %s is refused and changed %s to %s", c.verb, c.body, c.from, before, after)
		}
		if refusal.Code != wire.BodyInvalid && refusal.Hint == "" {
			t.Errorf("%s has no hint", refusal.Code)
		}
		if current := string(refusal.Current); refusal.Code == wire.StaleGeneration && current != map[string]string{"a": `{"generation":2}`, "gone": `{"generation":1}`}[c.from] {
			t.Errorf("the current state is %s", current)
		}
	}
	for code, status := range map[wire.Code]int{wire.AgentNotFound: 404, wire.AgentDeregistered: 409, wire.StaleGeneration: 409, wire.ReservedID: 400,
		wire.TTLInvalid: 400} {
		if code.Status() != status {
			t.Errorf("%s is %d, want %d", code, code.Status(), status)
		}
	}
}

func manyTopics(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("t%d", i)
	}
	return list
}
