package bridge_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
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
			if err := <-started; err != nil {
				t.Log(err)
			}
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
