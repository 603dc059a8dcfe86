package bridge_test

import (
	"strings"
	"testing"
	"time"

	"signalbox/bridge"
)

// A repeat of a refused heartbeat of an older generation is no more a sign of
// life than the first one.
func TestARepeatedRefusalOfAnOlderGenerationIsNoSignOfLife(t *testing.T) {
	r := start(t, plan{config: shortLease(time.Second, 300*time.Millisecond)})
	first := r.register(t, "a", nil)
	r.register(t, "a", nil)
	r.awaitStatus(t, "a", "stale")
	for range 2 {
		reply := r.request(t, "bus.api.a.agents.heartbeat", body(map[string]int64{"generation": first}), withID("x"))
		if code(reply) != "STALE_GENERATION" {
			t.Errorf("the heartbeat: %v", reply)
		}
		if got := r.agent(t, "a")["status"]; got == "online" {
			t.Error("the agent is online by a heartbeat of an older generation")
		}
	}
}

// However long a heartbeat's body is, the generation in it counts.
func TestALongHeartbeatIsReadToItsGeneration(t *testing.T) {
	r := start(t, plan{})
	first := r.register(t, "a", nil)
	r.register(t, "a", nil)
	long := body(map[string]any{"a": strings.Repeat("x", 5000), "generation": first})
	if got := code(r.request(t, "bus.hb.a", long, nil)); got != "STALE_GENERATION" {
		t.Errorf("the heartbeat: %q", got)
	}
}

// After a long silence a waiting fetch that is woken sees a message whose time
// to live is shorter than the silence was.
func TestAFetchThatIsWokenAfterASilenceKnowsWhatTimeItIs(t *testing.T) {
	r := start(t, plan{config: func(c *bridge.Config) { c.Rollup = time.Hour }})
	r.register(t, "a", map[string]any{"heartbeat_ttl_ms": 3_600_000})
	r.settled(t)
	quiet := time.Now().Add(1500 * time.Millisecond)
	eventually(t, "it was quiet", func() bool { return time.Now().After(quiet) })
	got := make(chan []map[string]any, 1)
	go func() { got <- r.fetch(t, "a", map[string]any{"wait_ms": 10_000}) }()
	eventually(t, "it waits", func() bool { return r.bridge.Waiting() == 1 })
	r.send(t, "bus.msg.me.agent.a", "short", ttl(time.Second))
	if list := <-got; len(list) != 1 {
		t.Errorf("the fetch gave %v", bodiesOf(list))
	}
}
