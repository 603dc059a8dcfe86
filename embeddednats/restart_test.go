package embeddednats_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"signalbox/embeddednats"
)

func TestDataAndPortsSurviveRestart(t *testing.T) {
	s := start(t, quiet(t, func(o *embeddednats.Options) { o.HTTP = "127.0.0.1:0" }))
	tcp := connect(t, s)
	own, err := s.Conn()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	memory, err := nats.Connect("", nats.InProcessServer(s), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(memory.Close)
	js, _ := stream(t, tcp, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
	for range 100 {
		if _, err := js.Publish(t.Context(), "s.a", []byte("kept")); err != nil {
			t.Fatal(err)
		}
	}
	clientURL, monitorURL := s.ClientURL(), s.MonitorURL()

	for range 3 {
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.ClientURL() != clientURL || s.MonitorURL() != monitorURL {
			t.Fatalf("moved from %s, %s to %s, %s", clientURL, monitorURL, s.ClientURL(), s.MonitorURL())
		}
	}

	for name, nc := range map[string]*nats.Conn{"tcp": tcp, "conn": own, "in process": memory} {
		untilBack(t, nc)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		st, err := js.Stream(t.Context(), "S")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := count(t, st); got != 100 {
			t.Errorf("%s: %d messages after restarts, want 100", name, got)
		}
	}
}

func TestShutdownReleasesEverything(t *testing.T) {
	opts := quiet(t, func(o *embeddednats.Options) { o.HTTP = "127.0.0.1:0" })
	before := goleak.IgnoreCurrent()
	for life := range uint64(3) {
		s, err := embeddednats.Start(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		nc, err := s.Conn()
		if err != nil {
			t.Fatal(err)
		}
		js, st := stream(t, nc, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
		if got := count(t, st); got != life {
			t.Errorf("life %d begins with %d messages", life, got)
		}
		if _, err := js.Publish(t.Context(), "s.a", nil); err != nil {
			t.Fatal(err)
		}
		nc.Close()
		shutdown(t, s)
		if s.Running() {
			t.Error("says that it runs after Shutdown")
		}
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

func TestAfterShutdownEveryCallSaysSo(t *testing.T) {
	s := start(t, quiet(t, nil))
	shutdown(t, s)
	shutdown(t, s)
	if err := s.Restart(t.Context()); !errors.Is(err, embeddednats.ErrShutdown) {
		t.Errorf("Restart: %v", err)
	}
	if _, err := s.Conn(); !errors.Is(err, embeddednats.ErrShutdown) {
		t.Errorf("Conn: %v", err)
	}
}

func TestShutdownObeysItsContextAndCanBeWaitedForAgain(t *testing.T) {
	s := start(t, quiet(t, nil))
	cause := errors.New("no time")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := s.Shutdown(ctx); err != nil && !errors.Is(err, cause) {
		t.Errorf("error %q does not carry the cause", err)
	}
	shutdown(t, s)
	if s.Running() {
		t.Error("runs after a completed Shutdown")
	}
}

// A start that fails inside Restart must not end the Server for good: the
// operator makes room and it is tried again.
func TestRestartMayFailAndBeTriedAgain(t *testing.T) {
	dir := t.TempDir()
	opts := quiet(t, func(o *embeddednats.Options) { o.StoreDir = dir })
	s := start(t, opts)
	port := s.ClientURL()
	giveBack := takeStoreAway(t, dir)
	if err := s.Restart(t.Context()); err == nil {
		t.Fatal("started on a file")
	}
	if s.Running() {
		t.Error("says that it runs after a failed Restart")
	}
	giveBack()
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !s.Running() || s.ClientURL() != port {
		t.Errorf("running %v at %s, want true at %s", s.Running(), s.ClientURL(), port)
	}
}
