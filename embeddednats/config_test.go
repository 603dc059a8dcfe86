package embeddednats_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/embeddednats"
)

func config(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nats-server.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// takeStoreAway puts a file where JetStream has its directory, until the
// returned function puts the directory back. The server must have files open in
// it no longer than it runs.
func takeStoreAway(t *testing.T, dir string) (giveBack func()) {
	t.Helper()
	store, aside := filepath.Join(dir, "jetstream"), filepath.Join(dir, "aside")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Rename(store, aside))
	must(os.WriteFile(store, nil, 0o600))
	return func() {
		t.Helper()
		must(os.Remove(store))
		must(os.Rename(aside, store))
	}
}

func TestAnAuthorizationUserInServerConfigIsEnforced(t *testing.T) {
	path := config(t, `
		listen: "127.0.0.1:-1"
		max_payload: 2048
		http: "127.0.0.1:-1"
		authorization { user: signal, password: box }
		pid_file: "`+filepath.Join(t.TempDir(), "pid")+`"
		log_file: "`+filepath.Join(t.TempDir(), "missing", "log")+`"
	`)
	s := start(t, quiet(t, func(o *embeddednats.Options) { o.Listen, o.ServerConfig = "", path }))

	if _, err := nats.Connect(s.ClientURL()); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("without a user over TCP: %v, want %v", err, nats.ErrAuthorization)
	}
	if _, err := s.Conn(); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("without a user by Conn: %v, want %v", err, nats.ErrAuthorization)
	}
	nc := connect(t, s, nats.UserInfo("signal", "box"))
	if nc.MaxPayload() != 2048 {
		t.Errorf("max payload %d, the file says 2048", nc.MaxPayload())
	}
	js, _ := stream(t, nc, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	if _, err := js.Publish(t.Context(), "s", nil); err != nil {
		t.Error(err)
	}
	if strings.HasSuffix(s.ClientURL(), ":4222") || s.MonitorURL() == "" {
		t.Errorf("ports of the file are not honoured: %s, %s", s.ClientURL(), s.MonitorURL())
	}
}

func TestAnOptionGoesBeforeServerConfig(t *testing.T) {
	dir := t.TempDir()
	path := config(t, `
		port: 1
		max_payload: 2048
		jetstream { store_dir: "`+dir+`/." }
	`)
	s := start(t, quiet(t, func(o *embeddednats.Options) {
		o.ServerConfig, o.StoreDir, o.MaxPayload = path, dir, 4096
	}))
	if nc := connect(t, s); nc.MaxPayload() != 4096 {
		t.Errorf("max payload %d, the option says 4096", nc.MaxPayload())
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "jetstream")); err != nil {
		t.Errorf("JetStream keeps its files elsewhere: %v %v", entries, err)
	}
}
