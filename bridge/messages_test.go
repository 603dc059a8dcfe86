package bridge_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/wire"
)

// fields are the names in a reply.
func fields(v map[string]any) string {
	return strings.Join(slices.Sorted(maps.Keys(v)), " ")
}

func TestMessageRepliesHaveTheFieldsOfTheContract(t *testing.T) {
	r := start(t, plan{})
	for _, c := range []struct{ verb, body, want string }{
		{"send", `{"to":"you"}`, "expires_at_ms fanout_count id leaf message_id seq"},
		{"send", `{"to":"topic:a.b","payload":[1]}`, "expires_at_ms fanout_count id leaf message_id seq"},
		{"send", `{"to":"role:p/k/s","priority":9}`, "expires_at_ms fanout_count id leaf message_id role seq"},
		{"ask", `{"to":"you","question":"how?"}`, "correlation_id request_message_id state"},
		{"handoff", `{"to":"you","task":"do"}`, "assigned_to handoff_message_id state"},
	} {
		reply := r.request(t, "bus.api.me.message."+c.verb, []byte(c.body), nil)
		if got := fields(reply); got != c.want {
			t.Errorf("message.%s %s has the fields %q, want %q: %v", c.verb, c.body, got, c.want, reply)
		}
	}
	reply := r.request(t, "bus.api.me.message.send", []byte(`{"to":"role:p/k/s","payload":{"a": "<b>"},"ttl_ms":1,"correlation_id":"c"}`), nil)
	row, err := r.reader.Row(t.Context(), int64(reply["id"].(float64)))
	if err != nil {
		t.Fatal(err)
	}
	if row.Subject != "bus.msg.me.role.p.k.s" || row.To != "role:p/k/s" || string(row.Body) != `{"a": "<b>"}` || row.CorrelationID != "c" ||
		row.MessageID != reply["message_id"] || float64(row.Seq) != reply["seq"] || fmt.Sprintf("%x", row.Leaf) != reply["leaf"] ||
		float64(row.ExpiresAtMS) != reply["expires_at_ms"] || row.ExpiresAtMS != row.At().UnixMilli()+1000 || reply["role"] != "p/k/s" {
		t.Errorf("the row is %+v\nthe reply %v", row, reply)
	}
}

func TestAPayloadIsSentByteForByte(t *testing.T) {
	r := start(t, plan{})
	for _, body := range []string{
		`{"to":"you","payload":{ "a" : "<b>" }}`,
		`{"schema_version":1,"to":"you","payload":{ "a" : "<b>" }}`,
		`{"to":"you","payload":{ "a" : "<b>" },"schema_version":"1"}`,
	} {
		reply := r.request(t, "bus.api.me.message.send", []byte(body), nil)
		row, err := r.reader.Row(t.Context(), int64(reply["id"].(float64)))
		if err != nil {
			t.Fatal(err)
		}
		if want := `{ "a" : "<b>" }`; string(row.Body) != want {
			t.Errorf("%s was sent as %s, want %s", body, row.Body, want)
		}
	}
}

func TestI5AnAskIsAnsweredByAResponseBeforeOrDuringItsWait(t *testing.T) {
	r := start(t, plan{})
	respond := func(correlation, text string) {
		t.Helper()
		if err := r.nc.PublishMsg(&nats.Msg{Subject: "bus.msg.you.agent.me", Data: []byte(text),
			Header: nats.Header{wire.HeaderCorrelationID: {correlation}}}); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(correlation string, wait int, id string) map[string]any {
		var h nats.Header
		if id != "" {
			h = withID(id)
		}
		return r.request(t, "bus.api.me.message.ask", body(map[string]any{"to": "you", "question": "how?", "correlation_id": correlation,
			"await_response_ms": wait}), h)
	}
	answered := func(what string, reply map[string]any, text string) {
		t.Helper()
		response, _ := reply["response"].(map[string]any)
		if reply["state"] != "answered" || response["body"] != text || response["from"] != "you" {
			t.Errorf("%s: %v", what, reply)
		}
	}

	respond("before", "early")
	r.settled(t)
	answered("a response before the wait", ask("before", 0, ""), "early")
	answered("a response before the wait, waiting", ask("before", 20_000, ""), "early")

	sub, err := r.nc.SubscribeSync("bus.msg.me.agent.you")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	go func() {
		if _, err := sub.NextMsg(within); err == nil {
			_ = r.nc.PublishMsg(&nats.Msg{Subject: "bus.msg.you.agent.me", Data: []byte("at once"),
				Header: nats.Header{wire.HeaderCorrelationID: {"during"}}})
		}
	}()
	answered("a response during the wait", ask("during", 25_000, ""), "at once")

	begin := time.Now()
	if got := ask("none", 200, "again"); got["state"] != "queued" || got["correlation_id"] != "none" || got["response"] != nil {
		t.Errorf("no response: %v", got)
	}
	if d := time.Since(begin); d < 200*time.Millisecond || d > 5*time.Second {
		t.Errorf("the wait of 200 ms took %s", d)
	}
	respond("none", "late")
	r.settled(t)
	answered("the same ask repeated after the response", ask("none", 200, "again"), "late")

	// What is no response to it must not answer it.
	for _, subject := range []string{"bus.msg.you.agent.other", "bus.msg.you.topic.me"} {
		if err := r.nc.PublishMsg(&nats.Msg{Subject: subject, Header: nats.Header{wire.HeaderCorrelationID: {"stray"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := ask("stray", 100, ""); got["state"] != "queued" {
		t.Errorf("an ask was answered by a message to somebody else: %v", got)
	}
}

func TestLowDiskRefusesRequestsAndKeepsCapturing(t *testing.T) {
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk")
	if err := os.Symlink("/proc", disk); err != nil { // a file system without any free space
		t.Fatal(err)
	}
	r := start(t, plan{dir: dir, config: func(c *bridge.Config) { c.DataDir, c.MinFree = disk, 1 }})
	eventually(t, "the disk is red", func() bool { return r.bridge.Health().Red()[bridge.PartDisk] != "" })
	if got := code(r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1}), nil)); got != "DISK_LOW" {
		t.Errorf("a request has the code %q, want DISK_LOW", got)
	}
	if got := value(t, r, "k"); got != 0.0 {
		t.Errorf("a query answers %v", got)
	}
	say(t, r.nc, "bus.msg.me.agent.you", 3, 0)
	r.settled(t)
	if n := len(r.rows(t, audit.Filter{Subject: "bus.msg.me.>"})); n != 3 {
		t.Errorf("%d plain messages are registered, want 3", n)
	}
	if n := r.events(t, "disk"); n != 1 {
		t.Errorf("%d events of the disk, want 1", n)
	}
	if err := errors.Join(os.Remove(disk), os.Symlink(dir, disk)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the disk is green", func() bool { return r.bridge.Health().Red()[bridge.PartDisk] == "" })
	if got := r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1}), nil)["value"]; got != 1.0 {
		t.Errorf("with space again a request answers %v", got)
	}
	r.settled(t)
	if n := r.events(t, "disk"); n != 2 {
		t.Errorf("%d events of the disk, want 2", n)
	}
}
