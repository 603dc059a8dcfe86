package bridge_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/wire"
)

// exactly is a body that fills a message with header "A: b" up to size.
func exactly(size int64) []byte {
	return bytes.Repeat([]byte("m"), int(size)-len("NATS/1.0\r\nA: b\r\n\r\n"))
}

func TestM9BodiesAndHeadersAreKeptByteForByte(t *testing.T) {
	r := start(t, plan{})
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "BUS")
	if err != nil {
		t.Fatal(err)
	}
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	many := nats.Header{}
	for i := range 200 {
		many.Set(fmt.Sprintf("Header-%03d", i), fmt.Sprint("value ", i))
	}
	cases := map[string]*nats.Msg{
		"no body":                 {},
		"no body, a header":       {Header: nats.Header{"A": {"b"}}},
		"900 KB":                  {Data: bytes.Repeat([]byte("0123456789"), 90_000)},
		"max_payload":             {Data: exactly(r.nc.MaxPayload()), Header: nats.Header{"A": {"b"}}},
		"every byte":              {Data: every},
		"invalid UTF-8":           {Data: []byte("a\xff\xfeb\xc3")},
		"JSON with a NUL":         {Data: []byte("{\"a\":\"\x00\"}")},
		"JSON with an escape":     {Data: []byte(`{"a":"\u0000\ud800"}`)},
		"200 headers":             {Header: many, Data: []byte("x")},
		"repeated names":          {Header: nats.Header{"A": {"2", "1", "", "2"}, "a": {"other case"}}},
		"bytes in values":         {Header: nats.Header{"A": {"\x00\x01\xff\xfe", "ü", "\t", `"\`}}},
		"bytes in names":          {Header: nats.Header{"ü-\xff": {"1"}, "a b": {"2"}}},
		"spaces around a value":   {Header: nats.Header{"A": {"  b  "}}},
		"a line break in a value": {Header: nats.Header{"A": {"b\r\nC: d"}}},
		"an empty name":           {Header: nats.Header{"": {"b"}, "B": {"c"}}},
		"our own header names":    {Header: nats.Header{"Bus-Cause": {"1:1"}, "ce-id": {"x"}, "Bus-Outbox-Id": {"x"}}},
	}
	sub, err := r.nc.SubscribeSync("bus.msg.me.agent.you")
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range cases {
		t.Run(name, func(t *testing.T) {
			m.Subject = "bus.msg.me.agent.you"
			ack, err := js.PublishMsg(t.Context(), m)
			if err != nil {
				t.Logf("the sender is told: %v", err)
				return
			}
			r.settled(t)
			heard, err := sub.NextMsg(within)
			if err != nil {
				t.Fatal(err)
			}
			rows := r.rows(t, audit.Filter{Kinds: []wire.Kind{wire.Msg}})
			row := rows[len(rows)-1]
			if row.Seq != ack.Sequence || !bytes.Equal(row.Body, m.Data) {
				t.Fatalf("number %d has %d bytes, want %d with %d", row.Seq, len(row.Body), ack.Sequence, len(m.Data))
			}
			if (len(row.Header) > 0 || len(heard.Header) > 0) && !reflect.DeepEqual(row.Header, wire.Header(heard.Header)) {
				t.Errorf("the headers are %q, a subscriber got %q", row.Header, heard.Header)
			}
			stored, err := stream.GetMsg(t.Context(), ack.Sequence)
			if err != nil {
				t.Fatal(err)
			}
			leaf, _ := audit.Leaf(audit.LeafInput{Stream: "BUS", Incarnation: 1, Seq: ack.Sequence, AtNS: stored.Time.UnixNano(),
				Subject: m.Subject, Header: wire.Header(heard.Header), Body: m.Data}, nil)
			if row.Leaf != leaf {
				t.Errorf("the leaf is %x, want %x of what was sent", row.Leaf, leaf)
			}
		})
	}
	over := &nats.Msg{Subject: "bus.msg.me.agent.you", Data: append(exactly(r.nc.MaxPayload()), 'x'), Header: nats.Header{"A": {"b"}}}
	if _, err := js.PublishMsg(t.Context(), over); !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("one byte over max_payload: %v, want %v", err, nats.ErrMaxPayload)
	}
	complete(t, r, "BUS")
	r = r.restart(t, nil)
	r.settled(t)
	complete(t, r, "BUS")
}

// Anyone may send a message that looks like what a server tells a consumer.
func TestM9AMessageThatLooksLikeAStatusIsAMessage(t *testing.T) {
	for _, status := range []string{"100", "400", "404", "408", "409", "423", "503"} {
		t.Run(status, func(t *testing.T) {
			r := start(t, plan{})
			js, err := jetstream.New(r.nc)
			if err != nil {
				t.Fatal(err)
			}
			ack, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "bus.msg.me.agent.you", Header: nats.Header{"Status": {status}}})
			if err != nil {
				t.Fatal(err)
			}
			say(t, r.nc, "bus.msg.me.agent.you", 1, 0)
			for end := time.After(15 * time.Second); r.bridge.Position() <= ack.Sequence; {
				select {
				case <-end:
					t.Fatalf("the fold is at %d and does not get past message %d", r.bridge.Position(), ack.Sequence)
				case <-time.After(5 * time.Millisecond):
				}
			}
			r.settled(t)
			complete(t, r, "BUS")
		})
	}
}

func TestM9ARequestThatIsTooLargeIsToldSo(t *testing.T) {
	r := start(t, plan{})
	limit := int(r.nc.MaxPayload()) - 64<<10
	large := body(add{Key: "k", N: 1, Tell: ""})
	large = append(large, bytes.Repeat([]byte(" "), limit-len(large))...)
	if got := r.request(t, "bus.api.me.counter.add", large, nil); got["value"] != 1.0 {
		t.Errorf("a body at the limit: %v", got)
	}
	for _, subject := range []string{"bus.api.me.counter.add", "bus.api.me.message.send"} {
		if got := code(r.request(t, subject, append(large, ' '), nil)); got != "BODY_TOO_LARGE" {
			t.Errorf("%s with one byte over the limit has the code %q, want BODY_TOO_LARGE", subject, got)
		}
	}
}

// raw says bytes to the server as no client library would.
func raw(t *testing.T, r *rig, protocol string) {
	t.Helper()
	u, err := url.Parse(r.server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(c, "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\n%sPING\r\n", protocol); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(c); lines.Scan(); {
		if line := lines.Text(); line == "PONG" {
			return
		} else if strings.HasPrefix(line, "-ERR") {
			t.Fatalf("the server says %s", line)
		}
	}
	t.Fatal("the server hung up")
}

// A header block that no client can read is no reason to stop: neither while
// the bridge runs, nor for the start that compares the last row with the log.
func TestM9AMalformedHeaderBlockIsRegisteredAndStopsNothing(t *testing.T) {
	r := start(t, plan{})
	r.settled(t)
	for i, block := range []string{"NATS/1.0\r\nno colon here\r\n\r\n", "NATS/1.0\r\n: no name\r\n\r\n", "NATS/1.0\r\nA: b", "rubbish\r\n\r\n"} {
		r.settled(t)
		rows := len(r.rows(t, audit.Filter{Kinds: []wire.Kind{wire.Msg}}))
		raw(t, r, fmt.Sprintf("HPUB bus.msg.me.agent.you %d %d\r\n%sbody\r\n", len(block), len(block)+4, block))
		eventually(t, fmt.Sprintf("block %d is registered", i), func() bool {
			return len(r.rows(t, audit.Filter{Kinds: []wire.Kind{wire.Msg}})) == rows+1
		})
		p := r.plan
		r.stop(t)
		next, err := build(p)
		if err != nil {
			t.Fatal(err)
		}
		started := make(chan error, 1)
		go func() { started <- next.run() }()
		select {
		case err := <-started:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("with %q as the last message the bridge does not start", block)
			next.hard()
			<-started
			_ = next.close(true)
			return
		}
		t.Cleanup(func() {
			if next.bridge != nil {
				next.stop(t)
			}
		})
		r = next
	}
}

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

func TestATapDisturbsNoRequestAndRegistersIt(t *testing.T) {
	r := start(t, plan{config: func(c *bridge.Config) { c.Taps = []bridge.Tap{{Subject: "svc.>"}} }})
	sub, err := r.nc.Subscribe("svc.echo", func(m *nats.Msg) { _ = m.Respond(append([]byte("echo "), m.Data...)) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	inbox := r.nc.NewInbox()
	replies, err := r.nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := r.nc.PublishRequest("svc.echo", inbox, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		m, err := replies.NextMsg(within)
		if err != nil || string(m.Data) != fmt.Sprint("echo ", i) {
			t.Fatalf("reply %d is %+v, %v", i, m, err)
		}
	}
	tapped(t, r, "BUS_TAP", 10)
	if m, err := replies.NextMsg(200 * time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
		t.Errorf("one reply too many: %+v, %v", m, err)
	}
	rows := r.rows(t, audit.Filter{Kinds: []wire.Kind{wire.Tap}})
	if len(rows) != 10 || rows[3].Subject != "svc.echo" || string(rows[3].Body) != "3" || rows[3].From != "" {
		t.Errorf("the taps: %d rows", len(rows))
	}
	complete(t, r, "BUS_TAP")
}

// refused runs a bridge that must not start.
func refused(t *testing.T, p plan, want error) {
	t.Helper()
	r, err := build(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.run(); !errors.Is(err, want) {
		t.Errorf("the start says %v, want %v", err, want)
	}
	_ = r.close(true)
}

// configOf is a stream's configuration and state.
func configOf(t *testing.T, dir, stream string) (c jetstream.StreamConfig, last uint64) {
	t.Helper()
	offline(t, dir, func(b *broker) {
		s, err := b.js.Stream(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		c, last = s.CachedInfo().Config, s.CachedInfo().State.LastSeq
	})
	return c, last
}

func TestAStreamThatCannotBeReadIsRefusedAndUntouched(t *testing.T) {
	t.Run("work queue", func(t *testing.T) {
		dir := t.TempDir()
		orders(t, dir, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy })
		before, last := configOf(t, dir, "ORDERS")
		refused(t, plan{dir: dir, config: tapOrders}, bridge.ErrRetention)
		after, lastAfter := configOf(t, dir, "ORDERS")
		if !reflect.DeepEqual(before, after) || last != lastAfter {
			t.Errorf("the stream was %+v and is %+v", before, after)
		}
	})
	t.Run("not ours", func(t *testing.T) {
		dir := t.TempDir()
		offline(t, dir, func(b *broker) {
			if _, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "BUS", Subjects: []string{"bus.>"}}); err != nil {
				t.Fatal(err)
			}
			say(t, b.nc, "bus.x", 3, 0)
		})
		before, last := configOf(t, dir, "BUS")
		refused(t, plan{dir: dir}, bridge.ErrForeignStream)
		after, lastAfter := configOf(t, dir, "BUS")
		if !reflect.DeepEqual(before, after) || last != lastAfter {
			t.Errorf("the stream was %+v and is %+v", before, after)
		}
	})
	t.Run("of another register", func(t *testing.T) {
		r := start(t, plan{})
		for i := range 5 {
			r.request(t, "bus.api.me.counter.add", body(add{Key: fmt.Sprint("k", i), N: 1}), withID(fmt.Sprint(i)))
		}
		r.settled(t)
		r.stop(t)
		for _, name := range []string{"signalbox.db", "index.db"} {
			files, err := filepath.Glob(filepath.Join(r.dir, name+"*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				if err := os.Remove(f); err != nil {
					t.Fatal(err)
				}
			}
		}
		before, last := configOf(t, r.dir, "BUS")
		refused(t, r.plan, bridge.ErrOtherRegister)
		after, lastAfter := configOf(t, r.dir, "BUS")
		if !reflect.DeepEqual(before, after) || last != lastAfter {
			t.Errorf("the stream was %+v and is %+v", before, after)
		}
		p := r.plan
		p.config = func(c *bridge.Config) { c.NewRegister = true }
		r = start(t, p)
		r.settled(t)
		complete(t, r, "BUS")
		if n := one[int](t, r.db(t), `SELECT count(*) FROM counter WHERE value = 1`); n != 5 {
			t.Errorf("%d counters are back, want 5", n)
		}
		if n := len(r.rows(t, audit.Filter{Subject: "bus.evt.counter.>"})); n != 5 {
			t.Errorf("%d events, want the same 5", n)
		}
		// From now on it is the register of the stream.
		p.config = nil
		r.stop(t)
		r = start(t, p)
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		js, err := bridge.JetStream(r.nc)
		if err != nil {
			t.Fatal(err)
		}
		if owner, err := bridge.Claimed(ctx, js, "BUS"); err != nil || owner != one[string](t, r.db(t), `SELECT register_id FROM bridge_state`) {
			t.Errorf("the stream is claimed by %s, %v", owner, err)
		}
	})
}
