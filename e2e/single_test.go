//go:build e2e

package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// complains waits for the end of a start that cannot work: exit code 1 and one
// line for people, with all the words in it.
func complains(t *testing.T, b *box, words ...string) string {
	t.Helper()
	if code := b.exit(readyWithin); code != 1 {
		t.Fatalf("the exit code is %d and not 1: %v", code, b.said())
	}
	var complaints []string
	for _, line := range b.said() {
		if strings.HasPrefix(line, "signalbox:") {
			complaints = append(complaints, line)
		}
		if strings.Contains(line, "panic") || strings.Contains(line, "goroutine ") {
			t.Errorf("it panics: %s", line)
		}
	}
	if lines := b.said(); len(complaints) != 1 || lines[len(lines)-1] != complaints[0] {
		t.Fatalf("not one line at the end that says what is wrong:\n%s", strings.Join(b.said(), "\n"))
	}
	for _, word := range words {
		if !strings.Contains(complaints[0], word) {
			t.Errorf("%q does not mention %q", complaints[0], word)
		}
	}
	return complaints[0]
}

// digest is the SHA-256 of a file.
func digest(t *testing.T, file string) [sha256.Size]byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(content)
}

// TestM13OneProcessPerDirectory: a second process on the data directory refuses
// at once and names the first, which goes on; the lock of a dead one is none.
func TestM13OneProcessPerDirectory(t *testing.T) {
	data := path(t, "data")
	first := serve(t, data, "")
	began := time.Now()
	complains(t, launch(t, data, ""), fmt.Sprint(first.cmd.Process.Pid), data)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the refusal took %s", took)
	}
	publish(t, client(t, first.ready.NATS), "bus.msg.a.agent.b", "still there?")
	if said, err := os.ReadFile(filepath.Join(data, "nats.url")); err != nil || strings.TrimSpace(string(said)) != first.ready.NATS {
		t.Errorf("after the second start nats.url says %q (%v)", said, err)
	}
	first.kill()
	serve(t, data, "").stop()
}

// TestM14NewerRegisterIsLeftAlone: a register of a newer program is refused by
// those that write and those that read, and not a byte of it changes.
func TestM14NewerRegisterIsLeftAlone(t *testing.T) {
	b := serve(t, path(t, "data"), "")
	publish(t, client(t, b.ready.NATS), "bus.msg.a.agent.b", "kept")
	settled(t, b)
	b.stop()
	file := b.register()
	change(t, file, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)`)
	before := digest(t, file)
	complains(t, launch(t, b.data, ""), file, "newer", "999")
	if said := signalbox(t, 1, "log", "--data", b.data); !strings.Contains(said, "newer") {
		t.Errorf("signalbox log says %q", said)
	}
	if digest(t, file) != before {
		t.Error("the file of a newer version was changed")
	}

	// A reading command does not migrate an older one either, and with it gone
	// the register is as it was.
	change(t, file, `DELETE FROM goose_db_version WHERE version_id = 999`)
	before = digest(t, file)
	if rows := logRows(t, b.data, "--kind", "msg"); len(rows) != 1 {
		t.Errorf("signalbox log lists %d messages", len(rows))
	}
	if digest(t, file) != before {
		t.Error("a reading command changed the file")
	}
	serve(t, b.data, "").stop()
}

// TestM15StopUnderLoad: SIGTERM while everybody publishes ends the process in
// order and in time; everything acknowledged is there afterwards.
func TestM15StopUnderLoad(t *testing.T) {
	b := serve(t, path(t, "data"), "")
	p := startLoad(t, load{URL: b.ready.NATS, Attempts: 6, Commands: 1, Requests: 4, Size: 200})
	until(t, 20*time.Second, "there is load", func() error {
		if n := p.latest.Load(); n < 3000 {
			return fmt.Errorf("%d acknowledged", n)
		}
		return nil
	})
	began := time.Now()
	b.signal(syscall.SIGTERM)
	if code := b.exit(30 * time.Second); code != 0 {
		t.Fatalf("the exit code is %d: %v", code, b.said())
	}
	t.Logf("stopped within %s", time.Since(began).Round(time.Millisecond))
	if _, err := os.Stat(filepath.Join(b.data, "nats.url")); err == nil {
		t.Error("nats.url still names the server that is gone")
	}
	p.finish()
	after := serve(t, b.data, "")
	settled(t, after)
	account(t, after.register(), p)
	after.stop()
}

// TestM16StartThatCannotWork: a port in use and a store that is no directory
// are one clear line and exit code 1.
func TestM16StartThatCannotWork(t *testing.T) {
	t.Run("the port is taken", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		complains(t, launch(t, path(t, "data"), l.Addr().String()), "address already in use", l.Addr().String())
	})
	t.Run("the health port is taken", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		complains(t, launch(t, path(t, "data"), "", "http.listen="+l.Addr().String()), "address already in use", "http.listen")
	})
	t.Run("the store of JetStream is a file", func(t *testing.T) {
		data := path(t, "data")
		if err := os.Mkdir(data, 0o700); err != nil {
			t.Fatal(err)
		}
		store, content := filepath.Join(data, "jetstream"), []byte("mine")
		if err := os.WriteFile(store, content, 0o600); err != nil {
			t.Fatal(err)
		}
		complains(t, launch(t, data, ""), data, "not a directory")
		if got, err := os.ReadFile(store); err != nil || !bytes.Equal(got, content) {
			t.Errorf("the file is %q afterwards (%v)", got, err)
		}
	})
	t.Run("the data directory is a file", func(t *testing.T) {
		data := path(t, "data")
		if err := os.WriteFile(data, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		complains(t, launch(t, data, ""), data)
	})
	t.Run("the external server is not there", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		l.Close()
		complains(t, launch(t, path(t, "data"), "", "nats.url=nats://"+addr), addr)
	})
}
