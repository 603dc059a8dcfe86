package embeddednats_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"signalbox/embeddednats"
)

// bound is the longest that a test waits for anything. It is never reached when
// all is well.
const bound = 60 * time.Second

func quiet(t *testing.T, change func(*embeddednats.Options)) embeddednats.Options {
	t.Helper()
	opts := embeddednats.Options{
		Listen:   "127.0.0.1:0",
		StoreDir: t.TempDir(),
		Logger:   slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&opts)
	}
	return opts
}

func start(t *testing.T, opts embeddednats.Options) *embeddednats.Server {
	t.Helper()
	s, err := embeddednats.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	// A test's own context has ended when its cleanups run.
	t.Cleanup(func() { shutdown(t, s) })
	return s
}

func shutdown(t *testing.T, s *embeddednats.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

func connect(t *testing.T, s *embeddednats.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func stream(t *testing.T, nc *nats.Conn, cfg jetstream.StreamConfig) (jetstream.JetStream, jetstream.Stream) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.CreateOrUpdateStream(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return js, st
}

func count(t *testing.T, st jetstream.Stream) uint64 {
	t.Helper()
	info, err := st.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Msgs
}

// until looks at a condition every 20 ms and fails the test after bound.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(bound)
	defer end.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not within %s: %s", bound, what)
		}
	}
}

// untilBack waits until a client has an answer from the restarted server. Right
// after a restart a client may not have noticed that its connection is gone.
func untilBack(t *testing.T, nc *nats.Conn) {
	t.Helper()
	until(t, "client is back", func() bool { return nc.FlushTimeout(time.Second) == nil })
}

func TestAPlainClientPublishesAndJetStreamStores(t *testing.T) {
	s := start(t, quiet(t, nil))
	if !s.Running() {
		t.Error("a started server does not say that it runs")
	}
	if !strings.HasPrefix(s.ClientURL(), "nats://127.0.0.1:") || strings.HasSuffix(s.ClientURL(), ":0") {
		t.Errorf("client URL %s, want loopback with the picked port", s.ClientURL())
	}
	if s.MonitorURL() != "" {
		t.Errorf("monitoring is on at %s though nobody asked for it", s.MonitorURL())
	}

	for name, open := range map[string]func() *nats.Conn{
		"tcp": func() *nats.Conn { return connect(t, s) },
		"conn": func() *nats.Conn {
			nc, err := s.Conn()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			return nc
		},
	} {
		nc := open()
		js, st := stream(t, nc, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
		before := count(t, st)
		if _, err := js.Publish(t.Context(), "s.a", []byte(name)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := count(t, st); got != before+1 {
			t.Errorf("%s: stream has %d messages, want %d", name, got, before+1)
		}
		if nc.MaxPayload() != embeddednats.DefaultMaxPayload {
			t.Errorf("%s: max payload %d", name, nc.MaxPayload())
		}
		if nc.ConnectedServerVersion() != s.Version() {
			t.Errorf("version %s, server says %s", s.Version(), nc.ConnectedServerVersion())
		}
	}
}

func TestMonitoringAnswersWhereMonitorURLSays(t *testing.T) {
	s := start(t, quiet(t, func(o *embeddednats.Options) { o.HTTP = "127.0.0.1:0" }))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(s.MonitorURL() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("healthz: %s %s %v", resp.Status, body, err)
	}
}

// A start that cannot succeed says why, at once, and leaves nothing behind.
func TestAFailedStartNamesItsCause(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	busy := taken.Addr().String()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	inner := filepath.Join(dir, "inner")
	broken := filepath.Join(dir, "broken.conf")
	elsewhere := filepath.Join(dir, "elsewhere.conf")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(file, "")
	if err := os.Mkdir(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(inner, "jetstream"), "a file where the server wants a directory")
	write(broken, "port: 1\nno_such_key: 2\n")
	write(elsewhere, "jetstream { store_dir: /somewhere/else }\n")

	for name, c := range map[string]struct {
		change func(*embeddednats.Options)
		want   []string
	}{
		"client port taken": {
			func(o *embeddednats.Options) { o.Listen = busy },
			[]string{busy, "address already in use"},
		},
		"monitoring port taken": {
			func(o *embeddednats.Options) { o.HTTP = busy },
			[]string{busy, "address already in use"},
		},
		"store directory is a file": {
			func(o *embeddednats.Options) { o.StoreDir = file },
			[]string{file, "not a directory"},
		},
		"jetstream directory is a file": {
			func(o *embeddednats.Options) { o.StoreDir = inner },
			[]string{inner, "Can't start JetStream", "not a directory"},
		},
		"no store directory": {
			func(o *embeddednats.Options) { o.StoreDir = "" },
			[]string{"StoreDir is empty"},
		},
		"no such configuration": {
			func(o *embeddednats.Options) { o.ServerConfig = filepath.Join(dir, "none.conf") },
			[]string{"none.conf", "no such file"},
		},
		"bad configuration": {
			func(o *embeddednats.Options) { o.ServerConfig = broken },
			[]string{"broken.conf:2", "no_such_key"},
		},
		"other store_dir": {
			func(o *embeddednats.Options) { o.ServerConfig = elsewhere },
			[]string{"elsewhere.conf", "/somewhere/else", "store_dir"},
		},
		"bad address": {
			func(o *embeddednats.Options) { o.Listen = "127.0.0.1" },
			[]string{"Listen", "missing port"},
		},
		"address without a host": {
			func(o *embeddednats.Options) { o.HTTP = ":8222" },
			[]string{"HTTP", "host is missing"},
		},
		"negative size": {
			func(o *embeddednats.Options) { o.MaxStore = -1 },
			[]string{"MaxStore -1 is negative"},
		},
		"payload over the server's pending limit": {
			func(o *embeddednats.Options) { o.MaxPayload = 1 << 30 },
			[]string{"max_payload"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			begin := time.Now()
			s, err := embeddednats.Start(t.Context(), quiet(t, c.change))
			if err == nil {
				shutdown(t, s)
				t.Fatal("it started")
			}
			if took := time.Since(begin); took > embeddednats.DefaultStartTimeout/3 {
				t.Errorf("took %s to fail", took)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q is more than one line", err)
			}
			if err := goleak.Find(before); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAStartThatIsCancelledLeavesTheStoreFree(t *testing.T) {
	opts := quiet(t, nil)
	before := goleak.IgnoreCurrent()
	cause := errors.New("the operator changed his mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := embeddednats.Start(ctx, opts); err != nil && !errors.Is(err, cause) {
		t.Errorf("error %q does not carry the cause", err)
	} else if err == nil {
		t.Error("it started under a context that was done")
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
	start(t, opts)
}

func TestTheServerLogsIntoSlog(t *testing.T) {
	var text bytes.Buffer // slog handlers serialise their writes
	opts := quiet(t, func(o *embeddednats.Options) { o.Logger = slog.New(slog.NewTextHandler(&text, nil)) })
	s, err := embeddednats.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	shutdown(t, s)
	for _, want := range []string{"level=INFO", "source=nats-server", "Listening for client connections", "Server Exiting"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("log does not say %q:\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "level=DEBUG") {
		t.Error("debug lines in a log at level info")
	}
}
