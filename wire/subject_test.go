package wire_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"signalbox/wire"
)

const root = wire.Root("bus")

// again is the subject that an address came from.
func again(a wire.Address) string {
	switch a.Kind {
	case wire.Msg:
		return root.To(a.From, a.To)
	case wire.Cmd:
		return root.Command(a.From, a.Machine, a.Verb)
	case wire.API:
		return root.Request(a.From, a.Machine, a.Verb)
	case wire.Evt:
		return root.Event(a.Machine, a.Key, a.Verb)
	}
	return "bus.hb." + a.From
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"bus.msg.a.agent.b", "bus.msg.a.topic.t.u", "bus.msg.a.role.p.k.s", "bus.cmd.a.m.v", "bus.api.a.m.v", "bus.evt.m.k.l.w",
		"bus.evt.m.w", "bus.hb.a", "bus", "bus.", "bus.msg", "bus.msg.a.role.p/k", "bus.evt.m..w", "bus.evt..w"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, subject string) {
		a, err := root.Parse(subject)
		if err != nil {
			var refusal *wire.Error
			if !errors.As(err, &refusal) || refusal.Code.Status() != 400 {
				t.Fatalf("%q: the error is %v", subject, err)
			}
			return
		}
		if got := again(a); got != subject {
			t.Fatalf("%q is read as %+v, which is %q", subject, a, got)
		}
		if !wire.ValidID(a.From) {
			t.Fatalf("%q has the sender %q", subject, a.From)
		}
		if a.Kind == wire.Msg {
			if to, err := wire.ParseRecipient(a.To.String()); err != nil || to != a.To {
				t.Fatalf("%q goes to %+v, which reads as %+v, %v", subject, a.To, to, err)
			}
		}
	})
}

func FuzzParseRecipient(f *testing.F) {
	for _, s := range []string{"x", "agent:x", "topic:a.b", "role:p/k", "role:p/k/s", "role:p.k/s", "fax:1", "", ":", "agent:", "a:b:c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		to, err := wire.ParseRecipient(s)
		if err != nil {
			return
		}
		if to.String() != s && to.String() != "agent:"+s {
			t.Fatalf("%q is read as %q", s, to)
		}
		a, err := root.Parse(root.To("me", to))
		if err != nil || a.To != to {
			t.Fatalf("%q has the subject %q, which reads as %+v, %v", s, root.To("me", to), a, err)
		}
	})
}

func FuzzReadEnvelope(f *testing.F) {
	f.Add("request", "5", "1000", "c", "t", "", "a.b", "m")
	f.Add("x", "-", "99999999999999999999", " ", "ü", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a..b", "")
	f.Fuzz(func(t *testing.T, kind, priority, ttl, correlation, trace, parent, topic, id string) {
		h := wire.Header{wire.HeaderType: {kind}, wire.HeaderPriority: {priority}, wire.HeaderTTL: {ttl}, wire.HeaderCorrelationID: {correlation},
			wire.HeaderTraceID: {trace}, wire.HeaderTraceparent: {parent}, wire.HeaderTopic: {topic}, wire.HeaderMsgID: {id}}
		e, err := wire.ReadEnvelope(h)
		var refusal *wire.Error
		if err != nil && (!errors.As(err, &refusal) || refusal.Code != wire.HeaderInvalid) {
			t.Fatalf("the error is %v", err)
		}
		types := []wire.Type{wire.TypeRequest, wire.TypeResponse, wire.TypeEvent, wire.TypeHandoff, wire.TypeHumanRequest, wire.TypeHumanResponse, wire.TypeSystem}
		if !slices.Contains(types, e.Type) || e.Priority < wire.MinPriority || e.Priority > wire.MaxPriority || e.TTL < wire.MinTTL || e.TTL > wire.MaxTTL {
			t.Fatalf("%+v is out of bounds", e)
		}
		for _, id := range []string{e.MessageID, e.CorrelationID, e.TraceID} {
			if id != "" && !wire.Visible(id) {
				t.Fatalf("%q is no id", id)
			}
		}
		if e.Topic != "" && !wire.ValidTopic(e.Topic) {
			t.Fatalf("%q is no topic", e.Topic)
		}
		if err == nil && (e.MessageID != id || e.CorrelationID != correlation || e.Topic != topic || kind != "" && e.Type != wire.Type(kind)) {
			t.Fatalf("%v is read as %+v", h, e)
		}
	})
}

func TestTheLimitsOfIDs(t *testing.T) {
	for s, want := range map[string]bool{"": false, "a": true, "A-z_9": true, "a.b": false, "a:b": false, "*": false, ">": false, "ü": false,
		strings.Repeat("x", 128): true, strings.Repeat("x", 129): false} {
		if got := wire.ValidID(s); got != want {
			t.Errorf("ValidID(%.20q) is %v", s, got)
		}
	}
	for s, want := range map[string]bool{"": false, "a": true, "a.b.c.d.e.f.g.h": true, "a.b.c.d.e.f.g.h.i": false, "a..b": false, ".a": false} {
		if got := wire.ValidTopic(s); got != want {
			t.Errorf("ValidTopic(%q) is %v", s, got)
		}
	}
}
