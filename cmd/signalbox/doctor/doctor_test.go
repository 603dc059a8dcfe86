package doctor_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
	"signalbox/cmd/signalbox/config"
	"signalbox/cmd/signalbox/doctor"
	"signalbox/embeddednats"
)

// home is a data directory with a register, and its configuration.
func home(t *testing.T) config.Config {
	t.Helper()
	c := config.Default()
	c.DataDir, c.HTTP.Listen, c.Audit.MinFree = t.TempDir(), "", config.MiB
	if err := os.Chmod(c.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := audit.Open(t.Context(), c.RegisterPath(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return c
}

// occupied is the same while a bridge seems to run.
func occupied(t *testing.T) config.Config {
	t.Helper()
	c := home(t)
	lock, err := audit.LockDir(c.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Release() })
	return c
}

func examine(t *testing.T, c config.Config, connect func() (*nats.Conn, error)) doctor.Report {
	t.Helper()
	if connect == nil {
		connect = func() (*nats.Conn, error) { return nil, errors.New("there is no server") }
	}
	r := doctor.Examine(t.Context(), doctor.Options{Config: c, Version: "test", Connect: connect})
	for _, f := range r.Findings {
		if (f.Level == doctor.OK) != (f.Todo == "") {
			t.Errorf("%s is %s and says to do %q", f.Check, f.Level, f.Todo)
		}
	}
	return r
}

// expect says that the report has a finding with the level and the text.
func expect(t *testing.T, r doctor.Report, check string, level doctor.Level, text string) {
	t.Helper()
	for _, f := range r.Findings {
		if f.Check == check && f.Level == level && strings.Contains(f.Message, text) {
			return
		}
	}
	t.Errorf("no finding %s %s %q in %+v", level, check, text, r.Findings)
}

func TestWhatTheHealthEndpointSaysIsTold(t *testing.T) {
	answer, status := "", http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	}))
	defer s.Close()
	c := occupied(t)
	c.HTTP.Listen = strings.TrimPrefix(s.URL, "http://")

	answer = `{"status":"ok","red":{}}`
	expect(t, examine(t, c, nil), "health", doctor.OK, "says ok")
	answer, status = `{"status":"red","red":{"wal":"too long","disk":"too full"}}`, http.StatusServiceUnavailable
	r := examine(t, c, nil)
	expect(t, r, "health", doctor.Fail, "disk: too full; wal: too long")
	if r.Level != doctor.Fail {
		t.Errorf("the report is %s", r.Level)
	}
	answer, status = "<html>", http.StatusOK
	expect(t, examine(t, c, nil), "health", doctor.Warn, "no signalbox")
	s.Close()
	expect(t, examine(t, c, nil), "health", doctor.Warn, "does not answer")
}

func TestADamagedRegisterIsAFailure(t *testing.T) {
	c := home(t)
	expect(t, examine(t, c, nil), "integrity", doctor.OK, "sound")
	raw, err := os.ReadFile(c.RegisterPath())
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw[8192:] { // what is behind the first pages
		raw[8192+i] ^= 0x5a
	}
	if err := os.WriteFile(c.RegisterPath(), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := examine(t, c, nil); r.Level != doctor.Fail {
		t.Errorf("the report is %s: %+v", r.Level, r.Findings)
	}
}

func TestAnEmptyOrForeignFileIsNoRegister(t *testing.T) {
	c := home(t)
	if err := os.WriteFile(c.RegisterPath(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, c, nil), "register", doctor.Fail, "no register")
	c.DataDir = filepath.Join(c.DataDir, "signalbox.db")
	expect(t, examine(t, c, nil), "data", doctor.Fail, "no directory")
}

func TestTheStreamIsComparedWithTheRegister(t *testing.T) {
	s, err := embeddednats.Start(t.Context(), embeddednats.Options{Listen: "127.0.0.1:0", StoreDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Shutdown(context.Background()) }()
	connect := func() (*nats.Conn, error) { return nats.Connect(s.ClientURL()) }
	nc, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	c := occupied(t)
	expect(t, examine(t, c, connect), "stream BUS", doctor.Fail, "not found")

	stream := jetstream.StreamConfig{Name: "BUS", Subjects: []string{"bus.msg.>"}}
	if _, err := js.CreateStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, c, connect), "stream BUS", doctor.Fail, "not made by signalbox")

	stream.Metadata = map[string]string{"signalbox.stream_id": "one"}
	if _, err := js.UpdateStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, c, connect), "stream BUS", doctor.OK, "not registered yet")

	read := func(streamID string, seq int) {
		t.Helper()
		db, err := sql.Open("sqlite", c.RegisterPath())
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		_, err = db.Exec(`INSERT OR IGNORE INTO incarnations (id, stream, stream_id, first_seq, first_id, reason) VALUES (?1, 'BUS', ?2, 1, 1, 'created');
			INSERT OR REPLACE INTO cursors (stream, incarnation, seq) VALUES ('BUS', ?1, ?3)`, len(streamID), streamID, seq)
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 9 {
		if _, err := js.Publish(t.Context(), "bus.msg.a.agent.b", nil); err != nil {
			t.Fatal(err)
		}
	}
	read("one", 7)
	expect(t, examine(t, c, connect), "stream BUS", doctor.OK, "registered up to 7, 2 behind")
	read("one", 12)
	expect(t, examine(t, c, connect), "stream BUS", doctor.Warn, "the log went back")
	read("another", 7)
	expect(t, examine(t, c, connect), "stream BUS", doctor.Warn, "another stream")
	read("one", 2)
	bus, err := js.Stream(t.Context(), "BUS")
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Purge(t.Context(), jetstream.WithPurgeSequence(5)); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, c, connect), "stream BUS", doctor.Warn, "before they were registered")

	work := jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work"}, Retention: jetstream.WorkQueuePolicy}
	if _, err := js.CreateStream(t.Context(), work); err != nil {
		t.Fatal(err)
	}
	c.Bus.Taps = []config.Tap{{Stream: "WORK"}, {Subject: "svc.>"}}
	r := examine(t, c, connect)
	expect(t, r, "stream WORK", doctor.Fail, "retention")
	expect(t, r, "stream BUS_TAP", doctor.Fail, "not found")
}
