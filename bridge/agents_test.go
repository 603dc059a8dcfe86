package bridge_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"signalbox/audit"
	"signalbox/bridge"
)

// shortLease are settings with the shortest leases there are.
func shortLease(ttl, rollup time.Duration) func(*bridge.Config) {
	return func(c *bridge.Config) {
		c.Rollup = rollup
		c.Settings = map[string]json.RawMessage{"agents": body(map[string]int64{"heartbeat_ttl_ms": ttl.Milliseconds(),
			"rollup_ms": rollup.Milliseconds(), "offline_after_ms": ttl.Milliseconds()})}
	}
}

// register registers an agent and gives its generation.
func (r *rig) register(t *testing.T, id string, more map[string]any) int64 {
	t.Helper()
	if more == nil {
		more = map[string]any{}
	}
	reply := r.request(t, "bus.api."+id+".agents.register", body(more), nil)
	if reply["status"] != "online" {
		t.Fatalf("registering %s: %v", id, reply)
	}
	return int64(reply["generation"].(float64))
}

// agent is an agent as agents.get shows it.
func (r *rig) agent(t *testing.T, id string) map[string]any {
	t.Helper()
	return r.request(t, "bus.api.me.agents.get", body(map[string]string{"agent_id": id}), nil)
}

func (r *rig) awaitStatus(t *testing.T, id, status string) {
	t.Helper()
	eventually(t, id+" is "+status, func() bool { return r.agent(t, id)["status"] == status })
}

// Heartbeats hold a lease; without them the agent goes stale, then offline, and
// each change is announced once. Heartbeats themselves leave no row.
func TestHeartbeatsHoldALeaseAndAreRolledUp(t *testing.T) {
	r := start(t, plan{config: shortLease(time.Second, 200*time.Millisecond)})
	r.register(t, "a", nil)
	until := time.Now().Add(3 * time.Second)
	beats := 0
	for time.Now().Before(until) {
		if err := r.nc.Publish("bus.hb.a", []byte("any body")); err != nil {
			t.Fatal(err)
		}
		beats++
		if got := r.agent(t, "a")["status"]; got != "online" {
			t.Fatalf("an agent that beats is %v", got)
		}
	}
	r.awaitStatus(t, "a", "stale")
	r.awaitStatus(t, "a", "offline")
	if err := r.nc.Publish("bus.hb.a", nil); err != nil {
		t.Fatal(err)
	}
	r.awaitStatus(t, "a", "online")
	r.settled(t)
	db := r.db(t)
	if got := one[int](t, db, `SELECT count(*) FROM messages WHERE subject LIKE 'bus.hb.%'`); got != 0 {
		t.Errorf("%d heartbeats are registered", got)
	}
	ups := one[int](t, db, `SELECT count(*) FROM messages WHERE subject = 'bus.cmd.signalbox.agents.seen'`)
	if ups < 3 || ups > 30 || beats < 2*ups {
		t.Errorf("%d heartbeats made %d roll-ups", beats, ups)
	}
	const want = "online stale offline online"
	if got := one[string](t, db, `SELECT group_concat(to_state, ' ') FROM (SELECT to_state FROM transitions WHERE machine = 'agents' AND key = 'a' ORDER BY id LIMIT 4)`); got != want {
		t.Errorf("the transitions are %s, want %s", got, want)
	}
	if a, b := one[int](t, db, `SELECT count(*) FROM transitions`), len(r.rows(t, audit.Filter{Subject: "bus.evt.agents.a.*"})); a != b {
		t.Errorf("%d transitions, but %d events", a, b)
	}
}

func TestAHeartbeatSentAsARequestIsAnswered(t *testing.T) {
	r := start(t, plan{})
	beat := func(id, text string) map[string]any { return r.request(t, "bus.hb."+id, []byte(text), nil) }
	if got := code(beat("nobody", "{}")); got != "AGENT_NOT_FOUND" {
		t.Errorf("a heartbeat of nobody: %q", got)
	}
	r.register(t, "a", nil)
	second := r.register(t, "a", nil)
	if got := code(beat("a", "")); got != "" {
		t.Errorf("a heartbeat without a generation: %q", got)
	}
	if got := code(beat("a", fmt.Sprintf(`{"generation":%d}`, second))); got != "" {
		t.Errorf("a heartbeat of the current generation: %q", got)
	}
	if got := code(beat("a", fmt.Sprintf(`{"generation":%d}`, second-1))); got != "STALE_GENERATION" {
		t.Errorf("a heartbeat of an older generation: %q", got)
	}
	r.request(t, "bus.api.a.agents.deregister", body(map[string]int64{"generation": second}), nil)
	if got := code(beat("a", "again")); got != "AGENT_DEREGISTERED" {
		t.Errorf("a heartbeat of a deregistered agent: %q", got)
	}
}

// In every order of {B registers, A heartbeats, A deregisters, sweep}, where A
// is an older generation of the same id, the newer generation stays. All orders
// go side by side; between two steps more than a lease passes, so that a sweep
// always has something to sweep, and B beats all the while.
func TestTheNewerGenerationStaysInEveryOrder(t *testing.T) {
	const lease = 1200 * time.Millisecond
	r := start(t, plan{config: shortLease(lease, 300*time.Millisecond)})
	type history struct {
		id            string
		steps         []string
		first, second int64
	}
	var all []*history
	var permute func(done, left []string)
	permute = func(done, left []string) {
		if len(left) == 0 {
			all = append(all, &history{id: "agent-" + strconv.Itoa(len(all)), steps: done})
			return
		}
		for i, step := range left {
			permute(append(slices.Clone(done), step), slices.Delete(slices.Clone(left), i, i+1))
		}
	}
	permute(nil, []string{"register", "heartbeat", "deregister", "sweep"})
	for _, h := range all {
		h.first = r.register(t, h.id, map[string]any{"session_id": "A"})
	}
	generation := func(n int64) []byte { return body(map[string]int64{"generation": n}) }
	for n := range 4 {
		for _, h := range all {
			switch h.steps[n] {
			case "register":
				h.second = r.register(t, h.id, map[string]any{"session_id": "B"})
			case "heartbeat":
				r.request(t, "bus.api."+h.id+".agents.heartbeat", generation(h.first), nil)
				r.send(t, "bus.hb."+h.id, string(generation(h.first)), nil)
			case "deregister":
				r.request(t, "bus.api."+h.id+".agents.deregister", generation(h.first), nil)
			case "sweep":
				r.send(t, "bus.cmd.signalbox.clock.tick", "{}", nil)
			}
		}
		for over := time.Now().Add(lease + lease/4); time.Now().Before(over); {
			for _, h := range all {
				if h.second != 0 {
					r.send(t, "bus.hb."+h.id, string(generation(h.second)), nil)
				}
			}
			time.Sleep(50 * time.Millisecond) //nolint:forbidigo // a client that beats at its own pace
		}
	}
	for _, h := range all {
		if got := r.agent(t, h.id); got["status"] != "online" || got["generation"] != float64(h.second) {
			t.Errorf("after %v: %v %v, want generation %d online", h.steps, got["status"], got["generation"], h.second)
		}
	}
	if n := one[int](t, r.db(t), `SELECT count(*) FROM transitions WHERE to_state = 'stale'`); n < len(all)/2 {
		t.Errorf("the sweeps made %d agents stale", n)
	}
}

// A message is a sign of life, and of an agent whose lease ran out the lapse
// comes first.
func TestAMessageOfALapsedAgentFirstLapsesAndThenRevivesIt(t *testing.T) {
	// No tick comes, so that only the message can say it.
	r := start(t, plan{config: func(c *bridge.Config) {
		shortLease(time.Second, 300*time.Millisecond)(c)
		c.FirstTick = time.Hour
	}})
	r.register(t, "a", nil)
	lease := time.UnixMilli(int64(r.agent(t, "a")["lease_expires_at_ms"].(float64)))
	eventually(t, "the lease is over", func() bool { return time.Now().After(lease.Add(50 * time.Millisecond)) })
	if got := r.agent(t, "a")["status"]; got != "online" {
		t.Fatalf("without a tick the agent is %v", got)
	}
	r.request(t, "bus.api.a.message.send", []byte(`{"to":"b"}`), nil)
	const want = "online stale online"
	if got := one[string](t, r.db(t), `SELECT group_concat(to_state, ' ') FROM (SELECT to_state FROM transitions WHERE machine = 'agents' ORDER BY id)`); got != want {
		t.Errorf("the transitions are %s, want %s", got, want)
	}
}

// Leases that had not run out when the bridge stopped start afresh.
func TestLeasesStartAfreshAfterARestart(t *testing.T) {
	dir := t.TempDir()
	config := shortLease(2*time.Second, 500*time.Millisecond)
	r := start(t, plan{dir: dir, config: func(c *bridge.Config) { config(c); c.FirstTick = 500 * time.Millisecond }})
	r.register(t, "a", nil)
	r = r.restart(t, func() {
		deadline := time.Now().Add(2500 * time.Millisecond)
		eventually(t, "the lease would be over", func() bool { return time.Now().After(deadline) })
	})
	if got := r.agent(t, "a")["status"]; got != "online" {
		t.Errorf("after the restart the agent is %v", got)
	}
	r.awaitStatus(t, "a", "stale")
	if got := one[string](t, r.db(t), `SELECT group_concat(to_state, ' ') FROM (SELECT to_state FROM transitions WHERE machine = 'agents' ORDER BY id)`); got != "online stale" && got != "online stale offline" {
		t.Errorf("the transitions are %s", got)
	}
}

// What a failed step and a rolled back batch leave of memory is nothing.
func TestAgentsAreTheSameAfterAFailedBatch(t *testing.T) {
	r := start(t, plan{})
	r.register(t, "a", map[string]any{"topics": []string{"x"}})
	for i := range 20 {
		fail := "panic"
		if i%2 == 0 {
			fail = "refuse"
		}
		for _, m := range []*nats.Msg{
			{Subject: "bus.cmd.a.agents.subscribe", Data: body(map[string]any{"topics": []string{"t" + strconv.Itoa(i)}})},
			{Subject: "bus.cmd.a.counter.add", Data: body(add{Key: "k", N: 1, Fail: fail})},
			{Subject: "bus.msg.b.topic.t" + strconv.Itoa(i), Data: []byte("to it")},
		} {
			if err := r.nc.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	r.settled(t)
	if got := len(r.agent(t, "a")["topics"].([]any)); got != 21 {
		t.Errorf("the agent has %d topics, want 21", got)
	}
	if got := one[int](t, r.db(t), `SELECT count(*) FROM deliveries WHERE recipient = 'a'`); got != 20 {
		t.Errorf("%d deliveries, want 20", got)
	}
	if got := one[int](t, r.db(t), `SELECT count(*) FROM refusals WHERE code IN ('INTERNAL', 'CONFLICT')`); got != 20 {
		t.Errorf("%d refusals, want 20", got)
	}
}
