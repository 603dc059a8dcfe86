package roles

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"signalbox/step"
	"signalbox/wire"
)

// Names that tests use.
const (
	projectOne = "prj_one0000000000000000000"
	projectTwo = "prj_two0000000000000000000"
	scopeOne   = "scp_one0000000000000000000"
	scopeTwo   = "scp_two0000000000000000000"

	ttl          = 30_000  // of every agent's lease
	offlineAfter = 300_000 // from stale to offline
	startMS      = 1_000_000_000_000
)

var (
	ctoOne  = Key{ProjectID: projectOne, RoleKind: "cto"}
	ctoTwo  = Key{ProjectID: projectTwo, RoleKind: "cto"}
	leadOne = Key{ProjectID: projectOne, RoleKind: "lead", ScopeID: scopeOne}
	leadTwo = Key{ProjectID: projectOne, RoleKind: "lead", ScopeID: scopeTwo}
)

// fakeAgent is an agent as the machine of agents would have it.
type fakeAgent struct {
	Agent
	status       string // online, stale, offline
	sinceMS      int64
	deregistered bool
}

// newly is the Data of the notice online.
type newly bool

func (n newly) NewlyRegistered() bool { return bool(n) }

// world is the machine with agents around it, and a log that drives both.
type world struct {
	m     *Machine
	store store
	mem   *memory // the store, or nil where it is the tables of db
	db    step.DB

	agents   map[string]*fakeAgent
	pending  map[string]int64
	now      int64
	seq      uint64
	settings string
	messages []Activation   // sent so far
	probes   []step.Request // asked so far

	effects  []step.Effects // of the last operation
	takeover bool           // the operation is a takeover
	watch    func(w *world, before *memory, in step.Input, e step.Effects, err error)
}

const plainSettings = `{"kinds":[{"name":"cto","scoped":false,"charter_version":"","probe":true},
	{"name":"lead","scoped":true,"charter_version":"v1","probe":true}]}`

func newWorld() *world {
	mem := newMemory()
	w := &world{store: mem, mem: mem, agents: map[string]*fakeAgent{}, pending: map[string]int64{}, now: startMS, settings: plainSettings}
	w.m = New(w)
	return w
}

// sqlWorld is a world whose machine works on the register's tables.
func sqlWorld(t testing.TB) *world { return tableWorld(openDB(t)) }

func tableWorld(db step.DB) *world {
	w := newWorld()
	w.mem, w.db = nil, db
	w.store = tables{w.db}
	return w
}

// Agent implements Facts.
func (w *world) Agent(_ step.DB, id string) (online bool, lease int64, live bool, project string, capabilities, locators []string,
	updated int64, known bool, err error) {
	a := w.agents[id]
	if a == nil {
		return false, 0, false, "", nil, nil, 0, false, nil
	}
	return a.status == "online", a.LeaseExpiresAtMS, a.Live, a.ProjectID, a.Capabilities, a.Locators, a.UpdatedAtMS, true, nil
}

// CandidatesFor implements Facts.
func (w *world) CandidatesFor(_ step.DB, project, capability string) ([]string, error) {
	var ids []string
	for id, a := range w.agents {
		if a.status == "online" && a.ProjectID == project && slices.Contains(a.Capabilities, capability) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Stored implements Facts.
func (w *world) Stored() Agents { return w }

// Pending implements Facts.
func (w *world) Pending(_ step.DB, recipient string) (int64, error) { return w.pending[recipient], nil }

// apply lets the machine decide on an event of the current log position.
func (w *world) apply(from string, event step.Event) (step.Effects, error) {
	in := step.Input{Place: step.Place{Incarnation: 1, Seq: w.seq}, ID: int64(w.seq), At: time.UnixMilli(w.now), NowMS: w.now, From: from,
		Settings: step.Settings{machineName: json.RawMessage(w.settings)}, Event: event}
	var before *memory
	if w.watch != nil && w.mem != nil {
		before = w.mem.clone()
	}
	var e step.Effects
	var err error
	if w.mem == nil {
		e, err = w.m.Apply(w.db, in)
	} else if m, ok := event.(step.Message); !ok || concerns(&m) {
		e, err = w.m.step(nil, w.mem, in)
	}
	for _, o := range e.Messages {
		w.messages = append(w.messages, o.Body.(Activation))
	}
	w.probes = append(w.probes, e.Requests...)
	w.effects = append(w.effects, e)
	if w.watch != nil {
		w.watch(w, before, in, e, err)
	}
	return e, err
}

// next begins the next message of the log.
func (w *world) next() {
	w.seq++
	w.effects = nil
}

// notice tells the machine of an agent.
func (w *world) notice(what, id string, data any) {
	if _, err := w.apply("", step.Notice{Machine: "agents", What: what, Key: id, Data: data}); err != nil {
		panic(fmt.Sprintf("the notice %s of %s: %v", what, id, err))
	}
}

// command is a command of a sender: its own lapse first, a sign of life after.
func (w *world) command(from, verb, body string) (step.Effects, error) {
	return w.sent(from, step.Command{Verb: verb, Body: []byte(body)})
}

func (w *world) sent(from string, event step.Event) (step.Effects, error) {
	w.next()
	w.lapse(from)
	e, err := w.apply(from, event)
	w.beat(from)
	return e, err
}

// must is a command that is accepted.
func (w *world) must(t testing.TB, from, verb, body string) step.Effects {
	t.Helper()
	e, err := w.command(from, verb, body)
	if err != nil {
		t.Fatalf("%s %s of %s: %v", verb, body, from, err)
	}
	return e
}

// refused is the code of a command that is refused, "" if it is not.
func (w *world) refused(from, verb, body string) wire.Code {
	_, err := w.command(from, verb, body)
	return codeOf(err)
}

func codeOf(err error) wire.Code {
	var refusal *wire.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &refusal):
		return refusal.Code
	}
	return wire.Code(err.Error())
}

// register registers an agent anew.
func (w *world) register(id, project string, live bool, locators []string, capabilities ...string) {
	w.next()
	w.agents[id] = &fakeAgent{status: "online", sinceMS: w.now, Agent: Agent{ID: id, Known: true, Online: true, LeaseExpiresAtMS: w.now + ttl,
		Live: live, ProjectID: project, Capabilities: capabilities, Locators: locators, UpdatedAtMS: w.now}}
	w.notice("online", id, newly(true))
}

// candidate registers an agent that may be elected to the kinds.
func (w *world) candidate(id, project string, kinds ...string) {
	var capabilities []string
	for _, k := range kinds {
		if k == capabilityProbe {
			capabilities = append(capabilities, k)
		} else {
			capabilities = append(capabilities, capability(k))
		}
	}
	w.register(id, project, false, []string{"nats"}, capabilities...)
}

// lapse ends the sender's own lease if it is over, before its message.
func (w *world) lapse(id string) {
	if a := w.agents[id]; a != nil && a.status == "online" && w.now >= a.LeaseExpiresAtMS {
		a.status, a.sinceMS = "stale", w.now
		w.notice("stale", id, newly(false))
	}
}

// beat is a sign of life of an agent.
func (w *world) beat(id string) { w.seen(id, 0) }

// seen is a sign of life some time ago, as a roll-up of heartbeats has it.
func (w *world) seen(id string, agoMS int64) {
	a := w.agents[id]
	if a == nil || a.deregistered {
		return
	}
	a.LeaseExpiresAtMS = max(a.LeaseExpiresAtMS, w.now-agoMS+ttl)
	if a.status != "online" && a.LeaseExpiresAtMS > w.now {
		a.status, a.sinceMS = "online", w.now
		w.notice("online", id, newly(false))
	}
}

func (w *world) deregister(id string) {
	w.next()
	if a := w.agents[id]; a != nil && !a.deregistered {
		a.deregistered = true
		if a.status != "offline" {
			a.status, a.sinceMS = "offline", w.now
			w.notice("offline", id, newly(false))
		}
	}
}

// tick handles what is due by now, agents before roles at the same time.
func (w *world) tick() error {
	w.next()
	type item struct {
		step.Deadline
		agent bool
	}
	var due []item
	for id, a := range w.agents {
		switch {
		case a.status == "online" && a.LeaseExpiresAtMS <= w.now:
			due = append(due, item{step.Deadline{AtMS: a.LeaseExpiresAtMS, Key: id}, true})
		case a.status == "stale" && a.sinceMS+offlineAfter <= w.now:
			due = append(due, item{step.Deadline{AtMS: a.sinceMS + offlineAfter, Key: id}, true})
		}
	}
	for _, d := range w.due(w.now) {
		due = append(due, item{d, false})
	}
	slices.SortFunc(due, func(a, b item) int {
		if a.AtMS == b.AtMS && a.agent != b.agent {
			if a.agent {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.AtMS, b.AtMS), cmp.Compare(a.Key, b.Key))
	})
	for _, d := range due {
		if !d.agent {
			if _, err := w.apply(wire.Bridge, d.Deadline); err != nil {
				return err
			}
			continue
		}
		if a := w.agents[d.Key]; a.status == "online" {
			w.lapse(d.Key)
		} else {
			a.status, a.sinceMS = "offline", w.now
			w.notice("offline", d.Key, newly(false))
		}
	}
	return nil
}

func (w *world) due(nowMS int64) []step.Deadline {
	if w.mem != nil {
		return w.mem.due(nowMS)
	}
	due, err := w.m.Due(w.db, nowMS, 500)
	if err != nil {
		panic(err)
	}
	return due
}

// nextDue is the earliest time of bus time at which a tick has work, 0 for none.
func (w *world) nextDue() int64 {
	const never = 1 << 60
	at := int64(never)
	for _, a := range w.agents {
		switch a.status {
		case "online":
			at = min(at, a.LeaseExpiresAtMS)
		case "stale":
			at = min(at, a.sinceMS+offlineAfter)
		}
	}
	for _, d := range w.due(never) {
		at = min(at, d.AtMS)
	}
	if at == never {
		return 0
	}
	return at
}

// restart is a start; agents whose lease had not run out have it afresh.
func (w *world) restart(embedded bool) error {
	w.next()
	last := w.now
	for _, id := range slices.Sorted(maps.Keys(w.agents)) {
		if a := w.agents[id]; a.status == "online" && a.LeaseExpiresAtMS > last {
			a.LeaseExpiresAtMS = w.now + ttl
		}
	}
	_, err := w.apply(wire.Bridge, step.Notice{Machine: step.Bridge, What: step.Started, Data: step.Start{LastMS: last, Embedded: embedded}})
	return err
}

func (w *world) gap(missing int64) error {
	w.next()
	_, err := w.apply(wire.Bridge, step.Notice{Machine: step.Bridge, What: step.LogGap, Data: step.Gap{Missing: missing}})
	return err
}

// role is the row of a role as it stands; a zero Role for none.
func (w *world) role(k Key) Role {
	r, err := w.store.Role(k.Name())
	if err != nil {
		panic(err)
	}
	if r == nil {
		return Role{}
	}
	return *r
}

// probed is the outcome of a probe that was asked.
func (w *world) probed(q step.Request, reachable bool) error {
	body := maps.Clone(q.Context)
	if body["reachable"] = reachable; !reachable {
		body["error"] = "nobody listens"
	}
	_, err := w.sent(wire.Bridge, step.Command{Verb: verbProbed, Body: marshal(body)})
	return err
}

// ackOf is the right ack of an activation.
func ackOf(a Activation) map[string]any {
	return map[string]any{"role_key": a.RoleKey, "epoch": a.Epoch, "activation_seq": a.ActivationSeq, "activation_id": a.ActivationID,
		"holder_agent_id": a.HolderAgentID, "reachable": true,
		"charter_ack": map[string]any{"role_key": a.RoleKey, "epoch": a.Epoch, "charter_version": a.CharterVersion}}
}

// ack acknowledges the current activation of a role as its holder would.
func (w *world) ack(t testing.TB, k Key) step.Effects {
	t.Helper()
	r := w.role(k)
	return w.must(t, r.HolderAgentID, verbAck, string(marshal(ackOf(activationOf(&r, "")))))
}

func marshal(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

// on is the body of a command that names a role, with more fields.
func on(k Key, more string) string { return `{"role_key":` + string(k.canonical()) + more + `}` }

// ensureBody is the body of a plain ensure.
func ensureBody(k Key) string { return on(k, `,"trigger":"manual","cause_id":"c"`) }
