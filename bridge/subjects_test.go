package bridge_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
)

func TestM10OddSubjectsAreRegisteredAndRefusedWithACode(t *testing.T) {
	r := start(t, plan{})
	long := strings.Repeat("x", 129)
	for _, c := range []struct{ subject, code string }{
		{"bus.msg.me.topic.a.b.c.d.e.f.g.h", ""},
		{"bus.msg.me.topic.a.b.c.d.e.f.g.h.i.j.k.l", "ID_INVALID"}, // 16 tokens
		{"bus.msg.me.fax.you", "SUBJECT_INVALID"},
		{"bus.msg.me", "SUBJECT_INVALID"},
		{"bus.msg.me.agent", "ID_INVALID"},
		{"bus.msg.me.agent." + long, "ID_INVALID"},
		{"bus.msg." + long + ".agent.you", "ID_INVALID"},
		{"bus.msg.me.agent.ü", "ID_INVALID"},
		{"bus.msg.me.agent.a:b", "ID_INVALID"},
		{"bus.msg.me.agent.signalbox", "RESERVED_RECIPIENT"},
		{"bus.msg.me.role.p", "ID_INVALID"},
		{"bus.msg.me.role.p.k.s.t", "ID_INVALID"},
		{"bus.msg.me.role.p/k", "ID_INVALID"},
		{"bus.cmd.me.counter", "SUBJECT_INVALID"},
		{"bus.cmd.me.counter.add.more", "SUBJECT_INVALID"},
		{"bus.cmd.me.counter.fly", "UNKNOWN_COMMAND"},
		{"bus.cmd.me.nobody.add", "UNKNOWN_COMMAND"},
		{"bus.cmd.me.message.send", "API_ONLY"},
		{"bus.cmd.me.audit.log", "API_ONLY"},
	} {
		t.Run(c.subject[:min(40, len(c.subject))], func(t *testing.T) {
			js, err := jetstream.New(r.nc)
			if err != nil {
				t.Fatal(err)
			}
			ack, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: c.subject, Data: []byte(`{}`)})
			if err != nil {
				t.Fatal(err)
			}
			r.settled(t)
			var row *audit.Row
			for _, one := range r.rows(t, audit.Filter{}) {
				if one.Seq == ack.Sequence {
					row = one
				}
			}
			if row == nil || row.Subject != c.subject {
				t.Fatalf("the message is not registered: %+v", row)
			}
			refusal, err := r.reader.Refusal(t.Context(), row.ID)
			if string(refusal.Code) != c.code || (err == nil) != (c.code != "") {
				t.Fatalf("the code is %q (%v), want %q", refusal.Code, err, c.code)
			}
			db := r.db(t)
			letters := one[int](t, db, `SELECT count(*) FROM dead_letters WHERE id = ? AND reason = ?`, row.ID, "refused:"+c.code)
			notices := 0
			for _, e := range r.rows(t, audit.Filter{Subject: "bus.evt.notice.*.refused"}) {
				if strings.Contains(string(e.Body), fmt.Sprintf(`"id":%d,`, row.ID)) && strings.Contains(string(e.Body), c.code) {
					notices++
				}
			}
			if want := min(1, len(c.code)); letters != want || notices != want {
				t.Errorf("%d dead letters and %d notices, want %d of each", letters, notices, want)
			}
		})
	}
	for subject, want := range map[string]string{"bus.api." + long + ".counter.add": "ID_INVALID", "bus.api.ü.message.send": "ID_INVALID"} {
		if got := code(r.request(t, subject, []byte(`{}`), nil)); got != want {
			t.Errorf("%.40s has the code %q, want %s", subject, got, want)
		}
	}
	for to, want := range map[string]string{long: "ID_INVALID", "a*b": "ID_INVALID", ">": "ID_INVALID", "fax:1": "ID_INVALID", "": "BODY_INVALID",
		"signalbox": "RESERVED_RECIPIENT", "topic:a..b": "ID_INVALID", "role:p": "ID_INVALID"} {
		if got := code(r.request(t, "bus.api.me.message.send", body(map[string]string{"to": to}), nil)); got != want {
			t.Errorf("to %.40q has the code %q, want %s", to, got, want)
		}
	}
	if _, err := r.nc.Request("bus.api.me.counter.fly", nil, within); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a request with an unknown verb: %v, want no responders", err)
	}
	complete(t, r, "BUS")
}

func TestM19OwnEventsFeedNoLoop(t *testing.T) {
	r := start(t, plan{})
	r.settled(t)
	before := len(r.rows(t, audit.Filter{}))
	const n = 50
	for i := range n {
		r.request(t, "bus.api.me.counter.add", body(add{Key: fmt.Sprint("k", i), N: 1}), nil)
	}
	// Refused, by a plain sender and under the bridge's own name.
	for _, subject := range []string{"bus.msg.me.fax.you", "bus.msg.signalbox.agent.signalbox", "bus.cmd.signalbox.nobody.add", "bus.msg.*.agent.x"} {
		if err := r.nc.Publish(subject, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	// Events that somebody else makes up.
	for _, subject := range []string{"bus.evt.notice.me.refused", "bus.evt.bridge.gap", "bus.evt.rubbish"} {
		if err := r.nc.Publish(subject, []byte(`rubbish`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	r.settled(t)
	rows := r.rows(t, audit.Filter{})
	asked := 0
	for _, row := range rows {
		if row.Subject == "bus.msg.*.agent.x" {
			asked++ // a server may take a wildcard for a name, or not
		}
	}
	if got, want := len(rows)-before, 2*n+2*3+3+2*asked; got != want {
		t.Errorf("%d rows more, want %d", got, want)
	}
	sub, err := r.nc.SubscribeSync("bus.>")
	if err != nil {
		t.Fatal(err)
	}
	if m, err := sub.NextMsg(1500 * time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
		t.Errorf("an idle bridge says %+v (%v)", m, err)
	}
	if now := len(r.rows(t, audit.Filter{})); now != len(rows) {
		t.Errorf("an idle bridge has %d rows more", now-len(rows))
	}
}

func TestM2OtherReadersHaveNoInfluence(t *testing.T) {
	r := start(t, plan{})
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := r.nc.SubscribeSync("bus.>"); err != nil {
			t.Fatal(err)
		}
		c, err := js.OrderedConsumer(t.Context(), "BUS", jetstream.OrderedConsumerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		consuming, err := c.Consume(func(jetstream.Msg) {})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(consuming.Stop)
	}
	// The bridge's own consumer is removed under it: it must start over where
	// it was.
	stream, err := js.Stream(t.Context(), "BUS")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		say(t, r.nc, "bus.msg.me.agent.you", 20, 0)
		for name := range stream.ConsumerNames(t.Context()).Name() {
			if err := stream.DeleteConsumer(t.Context(), name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
				t.Fatal(err)
			}
		}
		say(t, r.nc, "bus.msg.me.agent.you", 20, 0)
	}
	r.settled(t)
	complete(t, r, "BUS")
	if n := len(r.rows(t, audit.Filter{Subject: "bus.msg.me.>"})); n != 120 {
		t.Errorf("%d rows, want 120", n)
	}
	if n := len(r.gaps(t)); n != 0 {
		t.Errorf("%d gaps", n)
	}
}
