package roles

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"signalbox/step"
	"signalbox/wire"
)

// Every code that a verb can answer, by the command that earns it.
func TestEveryRefusalHasItsCode(t *testing.T) {
	long := strings.Repeat("x", 1001)
	for _, c := range []struct {
		from, verb, body string
		want             wire.Code
	}{
		{"zoe", verbEnsure, `[]`, wire.BodyInvalid},
		{"zoe", verbEnsure, on(ctoOne, `,"trigger":"manual","cause_id":"c","more":1`), wire.BodyInvalid},
		{"zoe", verbEnsure, on(ctoOne, `,"cause_id":"c"`), wire.EnsureRoleRequestInvalid},
		{"zoe", verbEnsure, on(ctoOne, `,"trigger":"whim","cause_id":"c"`), wire.EnsureRoleRequestInvalid},
		{"zoe", verbEnsure, on(ctoOne, `,"trigger":"manual"`), wire.EnsureRoleRequestInvalid},
		{"zoe", verbEnsure, on(ctoOne, `,"trigger":"manual","cause_id":"a b"`), wire.EnsureRoleRequestInvalid},
		{"ann", verbAck, `{`, wire.BodyInvalid},
		{"ann", verbAck, `{}`, wire.ActivationAckInvalid},
		{"ann", verbAck, `{"epoch":1}`, wire.ActivationAckInvalid},
		{"ann", verbAck, `{"epoch":1,"activation_seq":1}`, wire.ActivationAckInvalid},
		{"ann", verbAck, `{"epoch":1,"activation_seq":1,"activation_id":"a"}`, wire.ActivationAckInvalid},
		{"ann", verbAck, `{"epoch":1,"activation_seq":1,"activation_id":"a","holder_agent_id":"ann"}`, wire.ActivationAckInvalid},
		{"ann", verbAck, ackBody(`"charter_ack":null`), wire.ActivationAckInvalid},
		{"ann", verbAck, ackBody(`"charter_ack":{"epoch":1,"charter_version":""}`), wire.ActivationAckInvalid},
		{"ann", verbAck, ackBody(`"charter_ack":` + on(ctoOne, `,"charter_version":""`)), wire.ActivationAckInvalid},
		{"ann", verbAck, ackBody(`"charter_ack":` + on(ctoOne, `,"epoch":1`)), wire.ActivationAckInvalid},
		{"ann", verbAck, ackBody(`"charter_ack":` + on(ctoOne, `,"epoch":1,"charter_version":""`)), wire.RoleKeyInvalid},
		{"ann", verbAck, ackBody(`"role_key_wire":"x","charter_ack":` + on(ctoOne, `,"epoch":1,"charter_version":""`)), wire.RoleKeyWirePrefix},
		{"ann", verbAck, ackBody(`"role_key":` + string(ctoOne.canonical()) + `,"charter_ack":{"role_key":1,"epoch":1,"charter_version":""}`), wire.RoleKeyInvalid},
		{"ann", verbAck, ackBody(`"role_key":` + string(leadTwo.canonical()) + `,"charter_ack":` + on(leadTwo, `,"epoch":1,"charter_version":""`)), wire.StaleEpoch},
		{"ann", verbResign, on(ctoOne, ``), wire.BodyInvalid},
		{"ann", verbResign, on(leadTwo, `,"epoch":1`), wire.StaleEpoch},
		{"ann", verbResign, on(ctoOne, `,"epoch":9`), wire.StaleEpoch},
		{"bob", verbResign, on(ctoOne, `,"epoch":1`), wire.HolderMismatch},
		{"op", verbRevoke, on(ctoOne, ``), wire.BodyInvalid},
		{"op", verbRevoke, on(ctoOne, `,"epoch":1,"reason":"`+long+`"`), wire.BodyInvalid},
		{"op", verbRevoke, on(ctoOne, `,"epoch":1,"exclude_ms":-1`), wire.BodyInvalid},
		{"op", verbRevoke, on(ctoOne, `,"epoch":1,"exclude_ms":86400001`), wire.BodyInvalid},
		{"op", verbRevoke, on(leadTwo, `,"epoch":1`), wire.NotFound},
		{"op", verbRevoke, on(ctoTwo, `,"epoch":0`), wire.InvalidRoleTransition},
		{"op", verbTakeover, on(ctoOne, ``), wire.IDInvalid},
		{"op", verbTakeover, on(leadTwo, `,"agent_id":"ann"`), wire.NotFound},
		{"op", verbTakeover, on(ctoOne, `,"agent_id":"zoe"`), wire.RoleCandidateUnavailable},
		{"op", verbCandidate, on(ctoOne, `,"agent_id":"nobody"`), wire.AgentNotFound},
		{"op", verbCandidate, on(ctoOne, `,"agent_id":"a.b"`), wire.IDInvalid},
		{"ann", verbCandidate, on(ctoOne, `,"priority":1001`), wire.BodyInvalid},
		{"ann", verbCandidate, on(ctoOne, `,"locators":[""]`), wire.BodyInvalid},
		{"ann", verbCandidate, on(ctoOne, `,"locators":["`+long+`"]`), wire.BodyInvalid},
		{"ann", verbCandidate, on(ctoOne, `,"locators":[`+strings.Repeat(`"nats",`, 16)+`"nats"]`), wire.BodyInvalid},
		{"op", verbWithdraw, on(ctoOne, `,"agent_id":"nobody"`), wire.AgentNotFound},
		{"op", verbWithdraw, on(ctoOne, `,"agent_id":"*"`), wire.IDInvalid},
		{"op", verbCharter, `{"role_kind":"ceo","charter_version":"v"}`, wire.RoleKindUnsupported},
		{"op", verbCharter, `{"role_kind":"cto"}`, wire.BodyInvalid},
		{"op", verbCharter, `{"role_kind":"cto","charter_version":"` + long + `"}`, wire.BodyInvalid},
		{"op", verbCloseScope, `{}`, wire.ScopeRequired},
		{"op", verbCloseScope, `{"project_id":"p","scope_id":"` + scopeOne + `"}`, wire.ProjectIDInvalid},
		{"op", verbCloseScope, `{"project_id":"` + projectOne + `","scope_id":"s"}`, wire.ScopeIDInvalid},
		{"op", verbCloseScope, on(leadTwo, `,"scope_id":"`+scopeOne+`"`), wire.RoleKeyMismatch},
		{"op", verbControl, `{}`, wire.BodyInvalid},
		{"op", verbControl, `{"kinds":{"ceo":false}}`, wire.RoleKindUnsupported},
		{"ann", verbFenceCheck, on(ctoOne, ``), wire.BodyInvalid},
		{"ann", verbFenceCheck, `{"epoch":1}`, wire.RoleKeyInvalid},
		{"ann", verbProbed, `{}`, wire.IdentityMismatch},
		{wire.Bridge, verbProbed, `{"x":1}`, wire.BodyInvalid},
	} {
		w := newWorld()
		w.candidate("ann", projectOne, "cto")
		w.must(t, "zoe", verbEnsure, ensureBody(ctoTwo))
		before := w.mem.clone()
		if got := w.refused(c.from, c.verb, c.body); got != c.want {
			t.Errorf("%s %s of %s: %q, want %s", c.verb, c.body, c.from, got, c.want)
		}
		if !reflect.DeepEqual(before, w.mem) {
			t.Errorf("%s %s changed something", c.verb, c.body)
		}
		if c.want.Status() == 500 {
			t.Errorf("%s has no status", c.want)
		}
	}
}

// ackBody is an ack of ann with one more part.
func ackBody(more string) string {
	return `{"epoch":1,"activation_seq":1,"activation_id":"a","holder_agent_id":"ann","reachable":true,` + more + `}`
}

// The holder's lease counts when it acknowledges, even if nobody has said yet
// that it is over.
func TestAHolderWithoutALeaseDoesNotActivate(t *testing.T) {
	w := newWorld()
	w.candidate("ann", projectOne, "cto")
	r := w.role(ctoOne)
	w.now += ttl
	_, err := w.apply("ann", step.Command{Verb: verbAck, Body: marshal(ackOf(activationOf(&r, "")))})
	if codeOf(err) != wire.HolderLeaseExpired || w.role(ctoOne).State != Probing {
		t.Errorf("the ack gets %v and the role is %s", err, w.role(ctoOne).State)
	}
}

// The outcome of a probe decides about its own activation, and once: neither a
// late one of the agent before nor a second one moves the role.
func TestAProbeDecidesOnce(t *testing.T) {
	w := newWorld()
	w.candidate("ann", projectOne, "cto", "probe")
	w.candidate("bob", projectOne, "cto", "probe")
	if err := w.probed(w.probes[0], false); err != nil {
		t.Fatal(err)
	}
	unchanged := func(what string, q step.Request, reachable bool) {
		t.Helper()
		before := w.mem.clone()
		if err := w.probed(q, reachable); err != nil || !reflect.DeepEqual(before, w.mem) {
			t.Errorf("%s: %v, the role is %+v", what, err, w.role(ctoOne))
		}
	}
	unchanged("ann is reachable after all", w.probes[0], true)
	unchanged("ann is unreachable twice", w.probes[0], false)
	if err := w.probed(w.probes[1], true); err != nil || len(w.messages) != 1 {
		t.Fatalf("bob got %d activations, %v", len(w.messages), err)
	}
	unchanged("bob is reachable twice", w.probes[1], true)
	unchanged("bob is unreachable after all", w.probes[1], false)
	w.ack(t, ctoOne)
	unchanged("bob is unreachable when he holds it", w.probes[1], false)
}

// A resign that was done is done for its own agent only.
func TestNobodyRepeatsTheResignOfAnother(t *testing.T) {
	w := newWorld()
	w.candidate("ann", projectOne, "cto")
	w.candidate("bob", projectOne, "cto")
	w.ack(t, ctoOne)
	w.must(t, "ann", verbResign, on(ctoOne, `,"epoch":1`))
	if got := w.refused("bob", verbResign, on(ctoOne, `,"epoch":1`)); got != wire.StaleEpoch {
		t.Errorf("bob's resign for ann gets %q", got)
	}
	if got := w.refused("op", verbRevoke, on(ctoOne, `,"epoch":1`)); got != wire.StaleEpoch {
		t.Errorf("the revoke of what was resigned gets %q", got)
	}
}

// What is asked or told of a message: it is fenced by its headers, or refused
// where nobody can ever read it.
func TestMessagesAreFencedAndAddressed(t *testing.T) {
	for _, c := range []struct {
		what, from, to, role, epoch string
		want                        wire.Code
		told                        bool
	}{
		{"to an agent", "zoe", "", "", "", "", false},
		{"to an active role", "zoe", ctoOne.Name(), "", "", "", false},
		{"to a vacant role", "zoe", leadTwo.Name(), "", "", "", false},
		{"to no role", "zoe", "p/cto", "", "", wire.ProjectIDInvalid, false},
		{"to an unknown kind", "zoe", projectOne + "/ceo", "", "", wire.RoleKindUnsupported, false},
		{"to a kind without its scope", "zoe", projectOne + "/lead", "", "", wire.ScopeRequired, false},
		{"to a closed role", "zoe", leadOne.Name(), "", "", wire.RoleClosed, false},
		{"by the holder", "ann", "", ctoOne.Name(), "1", "", false},
		{"by the holder to a role", "ann", leadTwo.Name(), ctoOne.Name(), "1", "", false},
		{"at another epoch", "ann", "", ctoOne.Name(), "2", wire.StaleEpoch, true},
		{"at no epoch", "ann", "", ctoOne.Name(), "", wire.StaleEpoch, true},
		{"at a word", "ann", "", ctoOne.Name(), "one", wire.StaleEpoch, true},
		{"by another", "zoe", "", ctoOne.Name(), "1", wire.HolderMismatch, true},
		{"for an unknown role", "ann", "", leadTwo.Name(), "1", wire.StaleEpoch, true},
		{"for an unknown role at a word", "ann", "", leadTwo.Name(), "x", wire.StaleEpoch, true},
		{"for a closed role", "ann", "", leadOne.Name(), "1", wire.StaleEpoch, true},
		{"for no role", "ann", "", "cto", "1", wire.RoleKeyInvalid, true},
		{"with an epoch alone", "ann", "", "", "1", wire.HeaderInvalid, false},
	} {
		w := newWorld()
		w.candidate("ann", projectOne, "cto")
		w.ack(t, ctoOne)
		w.must(t, "op", verbCloseScope, on(leadOne, ``))
		m := w.messageTo(Key{})
		if c.to != "" {
			m.To = wire.Recipient{Class: wire.ToRole, Name: c.to}
		}
		m.From, m.Envelope.Role, m.Envelope.RoleEpoch = c.from, c.role, c.epoch
		e, err := w.sent(c.from, m)
		if codeOf(err) != c.want {
			t.Errorf("%s: %v, want %s", c.what, err, c.want)
		}
		if told := len(e.Told) == 1 && e.Told[0].Key == c.from && e.Told[0].What == "fenced" &&
			e.Told[0].Body.(map[string]any)["code"] == c.want; told != c.told {
			t.Errorf("%s: told is %+v", c.what, e.Told)
		}
	}
}

// A message that has nothing to do with a role costs nothing, and one that is
// refused for another reason asks for nobody.
func TestOtherMessagesCostNothing(t *testing.T) {
	w := newWorld()
	in := step.Input{Event: w.messageTo(Key{})}
	if n := testing.AllocsPerRun(100, func() { _, _ = w.m.Apply(nil, in) }); n != 0 {
		t.Errorf("a message costs %v allocations", n)
	}
	m := w.messageTo(ctoOne)
	m.Problem = wire.Errorf(wire.HeaderInvalid, "no")
	if _, err := w.sent("zoe", m); err != nil || len(w.mem.roles) > 0 {
		t.Errorf("a refused message made %v, %v", w.mem.roles, err)
	}
}

// What is sent to a reserved holder holds all that its ack must repeat, and is
// urgent.
func TestAnActivationSaysWhatItsAckRepeats(t *testing.T) {
	w := newWorld()
	w.candidate("ann", projectOne, "cto", "probe")
	w.must(t, "op", verbCharter, `{"role_kind":"cto","charter_version":"v2"}`)
	q := w.probes[len(w.probes)-1]
	if err := w.probed(q, true); err != nil {
		t.Fatal(err)
	}
	r := w.role(ctoOne)
	o := w.effects[len(w.effects)-1].Messages[0]
	want := Activation{Kind: "role.activation", Role: ctoOne.Name(), RoleKey: ctoOne, RoleKeyWire: ctoOne.Wire(), HolderAgentID: "ann", Epoch: 2,
		ActivationSeq: 2, ActivationID: r.ActivationID, ActivationDeadlineMS: r.ActivationDeadlineMS, CharterVersion: "v2"}
	if o.Body != want || o.To.String() != "agent:ann" || o.Topic != "role.activation" || o.Priority != 9 || o.Type != wire.TypeSystem ||
		o.TTL.Milliseconds() != 45_000 || o.CorrelationID != r.ActivationID {
		t.Errorf("the message is %+v", o)
	}
	want.Kind = "role.probe"
	if q.Body != want || q.Agent != "ann" || q.Verb != "probe" || q.Outcome != verbProbed || q.Timeout.Milliseconds() != 10_000 {
		t.Errorf("the probe is %+v", q)
	}
	if !slices.Contains(w.m.Verbs(), q.Outcome) {
		t.Errorf("the outcome %s is no verb", q.Outcome)
	}
}
