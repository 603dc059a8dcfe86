//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// playClient is an ordinary nats.go program: it publishes each file of a
// directory to the subject that is its name, and prints the sequence number of
// its PubAck.
func playClient(args []string) error {
	nc, err := nats.Connect(args[0])
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	files, err := os.ReadDir(args[1])
	if err != nil {
		return err
	}
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(args[1], f.Name()))
		if err != nil {
			return err
		}
		h := nats.Header{"Bus-Priority": {"8"}, "X-Seen-By": {"one", "two"}}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		ack, err := js.PublishMsg(ctx, &nats.Msg{Subject: f.Name(), Header: h, Data: content})
		cancel()
		if err != nil {
			return err
		}
		fmt.Println("acked", f.Name(), ack.Sequence)
	}
	return nil
}

// binary are bytes that are no text, every value among them.
func binary(t *testing.T) []byte {
	t.Helper()
	b := make([]byte, 4096)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	for i := range 256 {
		b = append(b, byte(i))
	}
	return b
}

// TestOrdinaryClientsAreRegistered: what the stock nats command line and a plain
// nats.go program publish is in the register byte for byte, as both the stock
// sqlite3 shell and signalbox log say, and a tapped conversation is undisturbed.
func TestOrdinaryClientsAreRegistered(t *testing.T) {
	b := serve(t, path(t, "data"), "", "bus.taps=[svc.>]")
	url := b.ready.NATS
	if said, err := os.ReadFile(filepath.Join(b.data, "nats.url")); err != nil || strings.TrimSpace(string(said)) != url {
		t.Fatalf("nats.url says %q (%v) and not %q", said, err, url)
	}
	raw := binary(t)
	want := map[string][]byte{
		"bus.msg.cli.agent.text":   []byte("ärger, „quotes“ and a\ttab"),
		"bus.msg.cli.agent.json":   []byte(`{"task": "review", "files": [1, 2.50, null], "text": "a\u0000b"}`),
		"bus.msg.cli.agent.binary": raw,
		"bus.msg.cli.agent.empty":  {},
		"bus.msg.go.agent.text":    []byte("plain text\r\nof two lines"),
		"bus.msg.go.agent.json":    []byte(`[{"a": 1}]` + "\n"),
		"bus.msg.go.agent.binary":  append([]byte{0, 0xff}, raw...),
		"bus.msg.go.topic.build.x": []byte("to a topic"),
	}

	natsCLI(t, url, nil, "pub", "--no-templates", "bus.msg.cli.agent.text", string(want["bus.msg.cli.agent.text"]))
	natsCLI(t, url, nil, "pub", "--no-templates", "-H", "Bus-Type:request", "bus.msg.cli.agent.json", string(want["bus.msg.cli.agent.json"]))
	natsCLI(t, url, raw, "pub", "--no-templates", "--force-stdin", "bus.msg.cli.agent.binary")
	natsCLI(t, url, nil, "pub", "--no-templates", "bus.msg.cli.agent.empty", "")
	files := t.TempDir()
	for subject, content := range want {
		if strings.HasPrefix(subject, "bus.msg.go.") {
			if err := os.WriteFile(filepath.Join(files, subject), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	plain := begin(t, "client", actor("client", url, files), nil)
	if code := plain.exit(20 * time.Second); code != 0 || len(plain.said()) != 4 {
		t.Fatalf("the nats.go client ended with %d: %v", code, plain.said())
	}

	t.Run("a request to a captured subject gets its PubAck", func(t *testing.T) {
		out := natsCLI(t, url, nil, "req", "--raw", "bus.msg.cli.agent.acked", "is it kept?")
		var ack struct {
			Stream string
			Seq    int
		}
		if err := json.Unmarshal([]byte(out), &ack); err != nil || ack.Stream != "BUS" || ack.Seq == 0 {
			t.Fatalf("the answer is %q (%v) and no PubAck of BUS", out, err)
		}
		until(t, 10*time.Second, "the acknowledged message is a row",
			counts(b.register(), fmt.Sprintf(`SELECT count(*) FROM messages WHERE seq=%d AND body='is it kept?'`, ack.Seq), 1))
	})
	t.Run("an answer of the API means that the row is there", func(t *testing.T) {
		out := natsCLI(t, url, nil, "request", "--raw", "bus.api.cli.message.send", `{"to":"reviewer","payload":{"n":1}}`)
		var reply struct{ ID int }
		if err := json.Unmarshal([]byte(out), &reply); err != nil || reply.ID == 0 {
			t.Fatalf("the answer is %q (%v)", out, err)
		}
		got := sqlite(t, b.register(), fmt.Sprintf(`SELECT kind, subject, "to" FROM messages WHERE id=%d`, reply.ID))
		if len(got) != 1 || got[0] != "msg|bus.msg.cli.agent.reviewer|agent:reviewer" {
			t.Fatalf("row %d is %q", reply.ID, got)
		}
		info := natsCLI(t, url, nil, "micro", "info", "signalbox")
		if !strings.Contains(info, "message_send") {
			t.Fatalf("nats micro info does not show message_send: %s", info)
		}
	})
	t.Run("a tapped conversation is undisturbed and registered", func(t *testing.T) { tapped(t, b) })

	last := len(want)
	until(t, 10*time.Second, "everything is registered", counts(b.register(),
		`SELECT count(*) FROM messages WHERE subject LIKE 'bus.msg.cli.%' OR subject LIKE 'bus.msg.go.%'`, last+2))
	t.Run("sqlite3", func(t *testing.T) {
		for subject, content := range want {
			for _, query := range []string{`SELECT hex(coalesce(body, body_raw)) FROM messages WHERE subject='%s'`,
				`SELECT hex(body) FROM messages_iso WHERE subject='%s' AND at LIKE '20__-__-__T__:__:__.%%Z'`} {
				got := strings.Join(sqlite(t, b.register(), fmt.Sprintf(query, subject)), "\n")
				if got != strings.ToUpper(hex.EncodeToString(content)) {
					t.Errorf("%s: %s gives %.80s…", subject, query, got)
				}
			}
		}
	})
	t.Run("signalbox log", func(t *testing.T) { logged(t, b.data, want) })
	b.stop()
	t.Run("signalbox log when nothing runs", func(t *testing.T) { logged(t, b.data, want) })
}

// logged compares what signalbox log lists with what was published.
func logged(t *testing.T, data string, want map[string][]byte) {
	t.Helper()
	found := map[string]int{}
	for _, r := range logRows(t, data, "--kind", "msg", "--after", "0", "--limit", "1000") {
		content, ok := want[r.Subject]
		if !ok {
			continue
		}
		found[r.Subject]++
		if got := r.bytes(t); !bytes.Equal(got, content) {
			t.Errorf("%s: the body is %.80q and not %.80q", r.Subject, got, content)
		}
		if r.From == "go" && strings.Join(r.Headers["X-Seen-By"], ",") != "one,two" {
			t.Errorf("%s: the headers are %v", r.Subject, r.Headers)
		}
	}
	for subject := range want {
		if found[subject] != 1 {
			t.Errorf("%s has %d rows", subject, found[subject])
		}
	}
}

// tapped has two stock programs talk over a tapped subject.
func tapped(t *testing.T, b *box) {
	url := b.ready.NATS
	responder := begin(t, "nats reply", exec.Command(tool.nats, "--server", url, "reply", "svc.time", "it is noon", "--count", "1"), nil)
	until(t, 10*time.Second, "the responder answers nats", func() error {
		if err := responder.running(); err != nil {
			return err
		}
		for _, line := range responder.said() {
			if strings.Contains(line, "Listening on") {
				return nil
			}
		}
		return errors.New("it does not listen yet")
	})
	out := natsCLI(t, url, nil, "req", "--raw", "--replies", "1", "svc.time", "what time is it?")
	if strings.TrimSpace(out) != "it is noon" {
		t.Fatalf("the tapped request was answered with %q", out)
	}
	responder.exit(10 * time.Second) // with 1, which is how nats reply ends after --count
	until(t, 10*time.Second, "the tapped request is a row", counts(b.register(),
		`SELECT count(*) FROM messages WHERE kind='tap' AND subject='svc.time' AND body='what time is it?'`, 1))
	rows := logRows(t, b.data, "--kind", "tap")
	if len(rows) != 1 || rows[0].Subject != "svc.time" {
		t.Fatalf("signalbox log --kind tap lists %+v", rows)
	}
}
