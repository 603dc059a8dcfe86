package roles

import (
	"fmt"
	"strconv"

	"pgregory.net/rapid"

	"signalbox/step"
	"signalbox/wire"
)

// operation is one thing that happens in a random sequence. Its numbers choose
// among what there is when it happens, so any sequence can be run again, on
// another store, with the same result.
type operation struct {
	kind       string
	a, b, c, d int
}

var (
	someAgents = []string{"ann", "bob", "cyd", "dan", "stranger"}
	someRoles  = []Key{ctoOne, leadOne, leadTwo, ctoTwo}
	someTimes  = []int64{0, 1, 700, 1300, 5000, 14_000, 31_000, 46_000, 130_000, 400_000}

	// Kinds, the frequent ones several times.
	someKinds = []string{"register", "register", "register", "beat", "beat", "rollup", "deregister", "advance", "tick", "tick",
		"wait", "wait", "wait", "wait", "wait", "wait", "ensure", "ensure", "ensure", "probed", "probed", "probed", "probed", "ack", "ack", "ack", "ack",
		"wrong ack", "wrong ack", "resign", "resign", "revoke", "takeover", "candidate", "candidate", "withdraw", "charter", "control", "close",
		"publish", "publish", "act", "act", "fence", "restart", "gap", "reload"}
)

// drawOperations draws a sequence. It begins with what nearly every interesting
// one needs.
func drawOperations(t *rapid.T) []operation {
	n := rapid.IntRange(12, 38).Draw(t, "n")
	v := rapid.IntRange(0, 3).Draw(t, "first")
	ops := []operation{{kind: "register", a: 0, b: v}, {kind: "ensure", a: 1, b: v}}
	for i := range n {
		// One number for all choices: drawing is most of what a sequence costs.
		// Small numbers are drawn more often than large ones, so it is mixed.
		x := mix(rapid.Uint64().Draw(t, "op") + uint64(i)<<32)
		pick := func(of uint64) int { v := x % of; x /= of; return int(v) }
		ops = append(ops, operation{kind: someKinds[pick(uint64(len(someKinds)))], a: pick(20), b: pick(36), c: pick(36), d: pick(12)})
	}
	return ops
}

// mix spreads a number evenly (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// variants are registrations; the first is the usual one.
var variants = []struct {
	project      string
	live         bool
	locator      string
	capabilities []string
}{
	{projectOne, false, "nats", []string{"role:cto:candidate", "role:lead:candidate"}},
	{projectOne, false, "nats", []string{"probe", "role:cto:candidate", "role:lead:candidate"}},
	{projectOne, false, "nats", []string{"role:cto:candidate", "role:lead:candidate"}},
	{projectOne, false, "nats", []string{"probe", "role:lead:candidate"}},
	{projectTwo, false, "nats:x", []string{"role:cto:candidate"}},
	{projectOne, false, "nats", nil},
	{projectOne, true, "nats", []string{"role:cto:candidate", "role:lead:candidate"}},
	{projectOne, false, "tmux:1", []string{"role:cto:candidate", "role:lead:candidate"}},
	{"", false, "nats", []string{"role:cto:candidate"}},
}

// do makes the operation happen.
func (w *world) do(o operation) {
	agent, role := someAgents[o.a%len(someAgents)], someRoles[o.b%len(someRoles)]
	current := w.role(role)
	switch o.kind {
	case "register":
		if v := variants[o.b%len(variants)]; agent != "stranger" {
			w.register(agent, v.project, v.live, []string{v.locator}, v.capabilities...)
		}
	case "beat":
		w.next()
		w.lapse(agent)
		w.beat(agent)
	case "rollup":
		w.next()
		for i, id := range someAgents {
			if i != o.b%len(someAgents) {
				w.seen(id, someTimes[o.c%4])
			}
		}
	case "deregister":
		w.deregister(agent)
	case "advance":
		w.now += someTimes[o.c%len(someTimes)]
	case "tick":
		if at := w.nextDue(); at > w.now && o.a%2 == 0 {
			w.now = at
		}
		if err := w.tick(); err != nil {
			panic(err)
		}
	case "wait": // everybody beats until the next role is due
		at := int64(0)
		for _, d := range w.due(1 << 60) {
			if at == 0 || d.AtMS < at {
				at = d.AtMS
			}
		}
		w.now = max(w.now, at)
		for _, id := range someAgents {
			if a := w.agents[id]; a != nil && a.status == "online" && o.a%8 != 0 {
				w.seen(id, 0)
			}
		}
		if err := w.tick(); err != nil {
			panic(err)
		}
	case "ensure":
		_, _ = w.command(agent, verbEnsure, ensureBody(role))
	case "probed":
		if n := len(w.probes); n > 0 {
			q := w.probes[max(0, n-1-o.b%3)] // mostly the last
			if err := w.probed(q, o.a%2 != 0); err != nil {
				panic(err)
			}
		}
	case "ack", "wrong ack":
		w.doAck(o, current)
	case "resign":
		if o.c%3 > 0 {
			agent = holderOr(current, agent)
		}
		_, _ = w.command(agent, verbResign, on(role, `,"epoch":`+strconv.FormatInt(nearly(current.Epoch, o.d), 10)))
	case "revoke":
		more := `,"epoch":` + strconv.FormatInt(nearly(current.Epoch, o.d), 10)
		if o.c%2 == 0 {
			more += `,"exclude_ms":` + strconv.FormatInt(someTimes[o.c%len(someTimes)], 10)
		}
		_, _ = w.command("operator", verbRevoke, on(role, more))
	case "takeover":
		w.takeover = true
		defer func() { w.takeover = false }()
		_, _ = w.command("operator", verbTakeover, on(role, `,"agent_id":"`+agent+`"`))
	case "candidate":
		_, _ = w.command(someAgents[o.c%len(someAgents)], verbCandidate, on(role, fmt.Sprintf(`,"agent_id":%q,"priority":%d`, agent, o.d%3)))
	case "withdraw":
		_, _ = w.command(agent, verbWithdraw, on(role, `,"agent_id":"`+agent+`"`))
	case "charter":
		_, _ = w.command("operator", verbCharter, fmt.Sprintf(`{"role_kind":%q,"charter_version":"v%d"}`, role.RoleKind, o.c%3))
	case "control":
		w.doControl(o, role)
	case "close":
		if o.c%4 == 0 { // closed is for good: seldom
			_, _ = w.command("operator", verbCloseScope, fmt.Sprintf(`{"project_id":%q,"scope_id":%q}`, projectOne, scopeTwo))
		}
	case "publish":
		_, _ = w.sent(agent, w.messageTo(role))
	case "act":
		if o.c%3 > 0 {
			agent = holderOr(current, agent)
		}
		m := w.messageTo(Key{})
		m.From, m.Envelope.Role, m.Envelope.RoleEpoch = agent, role.Name(), strconv.FormatInt(nearly(current.Epoch, o.d), 10)
		_, _ = w.sent(agent, m)
	case "fence":
		_, _ = w.command(agent, verbFenceCheck, on(role, `,"epoch":`+strconv.FormatInt(nearly(current.Epoch, o.d), 10)))
	case "restart":
		if o.a%3 == 0 {
			w.settings = []string{plainSettings, otherSettings, scopelessSettings}[o.b%3]
		}
		if err := w.restart(o.c%2 == 0); err != nil {
			panic(err)
		}
	case "gap":
		if err := w.gap([]int64{0, 1, 7}[o.a%3]); err != nil {
			panic(err)
		}
	case "reload": // the process is another one: what was only in memory is gone
		w.m = New(w)
	}
}

const (
	otherSettings = `{"kinds":[{"name":"cto","scoped":false,"charter_version":"v2","probe":false},
		{"name":"lead","scoped":true,"charter_version":"v2","probe":true}],"max_probe_failures":2}`
	scopelessSettings = `{"kinds":[{"name":"cto","scoped":false,"charter_version":"","probe":true}]}`
)

// nearly is the epoch itself most of the time, else one that is not it.
func nearly(epoch int64, choice int) int64 {
	return max(0, epoch+[]int64{0, 0, 0, -1, 1, -2}[choice%6])
}

func holderOr(r Role, agent string) string {
	if r.HolderAgentID != "" {
		return r.HolderAgentID
	}
	return agent
}

func (w *world) messageTo(k Key) step.Message {
	m := step.Message{ID: int64(w.seq + 1), MessageID: "m" + strconv.FormatUint(w.seq+1, 10), From: "ann",
		To: wire.Recipient{Class: wire.ToRole, Name: k.Name()}}
	if k == (Key{}) {
		m.To = wire.Recipient{Class: wire.ToAgent, Name: "zoe"}
	}
	return m
}

func (w *world) doControl(o operation, role Key) {
	on := o.c%3 != 0
	if o.d%2 == 0 {
		_, _ = w.command("operator", verbControl, fmt.Sprintf(`{"master_enabled":%v}`, on))
		return
	}
	_, _ = w.command("operator", verbControl, fmt.Sprintf(`{"kinds":{%q:%v}}`, role.RoleKind, on))
}

// doAck acknowledges the current activation of a role as its holder would, or
// an old one, or one that is wrong in a part.
func (w *world) doAck(o operation, current Role) {
	if len(w.messages) == 0 {
		return
	}
	a := w.messages[len(w.messages)-1]
	if current.ActivationID != "" && o.d%4 != 0 {
		a = activationOf(&current, "")
	}
	from := a.HolderAgentID
	body := ackOf(a)
	if o.kind == "wrong ack" {
		switch o.c % 9 {
		case 0:
			from = someAgents[o.a%len(someAgents)]
		case 1:
			body["epoch"] = a.Epoch - 1
		case 2:
			body["activation_seq"] = a.ActivationSeq + 1
		case 3:
			body["activation_id"] = w.messages[o.a%len(w.messages)].ActivationID
		case 4:
			body["charter_ack"].(map[string]any)["charter_version"] = "other"
		case 5:
			body["charter_ack"].(map[string]any)["epoch"] = a.Epoch - 1
		case 6:
			body["charter_ack"].(map[string]any)["role_key"] = ctoTwo
		case 7:
			body["holder_agent_id"] = someAgents[o.a%len(someAgents)]
		case 8:
			old := w.messages[o.a%len(w.messages)]
			from, body = old.HolderAgentID, ackOf(old)
		}
	}
	_, _ = w.command(from, verbAck, string(marshal(body)))
}
