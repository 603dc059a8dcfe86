//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ballast writes a file until so many bytes are free; 0 until nothing more fits.
func ballast(t *testing.T, disk string, free uint64) string {
	t.Helper()
	f, err := os.CreateTemp(disk, "ballast")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for {
		var s syscall.Statfs_t
		if err := syscall.Statfs(disk, &s); err != nil {
			t.Fatal(err)
		}
		left := s.Bavail * uint64(s.Bsize)
		if left <= free {
			return f.Name()
		}
		if _, err := f.Write(block[:min(uint64(len(block)), left-free)]); errors.Is(err, syscall.ENOSPC) {
			return f.Name()
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestM12DiskFull: before the disk is full, requests are refused and plain
// messages captured; when it is full, health is red and what is not acknowledged
// is lost; with space back the process recovers by itself, has everything that
// was acknowledged, and says for which time it was not there.
func TestM12DiskFull(t *testing.T) {
	if !isolated(t, 0) {
		return
	}
	disk := smallDisk(t, "200m")
	b := serve(t, filepath.Join(disk, "data"), "", "audit.min_free=60MiB")
	nc := client(t, b.ready.NATS)
	acked, fill := 0, strings.Repeat("x", 20_000)
	send := func() error {
		err := tryPublish(nc, "bus.msg.a.agent.b", fmt.Sprintf("acked %d %s", acked+1, fill))
		if err == nil {
			acked++
		}
		return err
	}
	for range 50 {
		if err := send(); err != nil {
			t.Fatal(err)
		}
	}
	if _, code, err := request(nc, "message.send", `{"to":"b","payload":1}`, 5*time.Second); err != nil || code != "" {
		t.Fatalf("with space, a request is answered %s %v", code, err)
	}

	first := ballast(t, disk, 40<<20)
	until(t, 15*time.Second, "health says that space is low", func() error { return b.isRed("disk") })
	if _, code, err := request(nc, "message.send", `{"to":"b","payload":1}`, 5*time.Second); err != nil || code != "DISK_LOW" {
		t.Errorf("with little space, a request is answered %q %v", code, err)
	}
	for range 50 {
		if err := send(); err != nil {
			t.Fatalf("with little space, a message is not captured: %v", err)
		}
	}
	until(t, 10*time.Second, "what was captured with little space is registered",
		counts(b.register(), `SELECT count(*) FROM messages WHERE body GLOB 'acked *'`, acked))

	second := ballast(t, disk, 0)
	// Small ones: the last page of the stream's file has room for some that the
	// register has not.
	fill = ""
	fitted := acked
	until(t, 60*time.Second, "the full disk is met", func() error {
		if err := send(); err == nil {
			return fmt.Errorf("message %d fits still", acked)
		}
		return nil
	})
	t.Logf("%d messages fitted on the full disk", acked-fitted)
	until(t, 20*time.Second, "health says that the stream is frozen", func() error { return b.isRed("frozen") })
	if acked > fitted {
		until(t, 20*time.Second, "health says that the register takes no rows", func() error { return b.isRed("register") })
	}
	lasts(t, 3*time.Second, "the disk is full", b.running)
	pid := b.cmd.Process.Pid
	for _, f := range []string{first, second} {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	until(t, 60*time.Second, "messages are captured again", func() error {
		if err := b.running(); err != nil {
			t.Fatal(err)
		}
		return send()
	})
	until(t, 60*time.Second, "health is green again", b.green)
	if _, code, err := request(nc, "message.send", `{"to":"b","payload":1}`, 5*time.Second); err != nil || code != "" {
		t.Errorf("with space again, a request is answered %q %v", code, err)
	}
	settled(t, b)
	t.Logf("%d acknowledged", acked)
	for n := 1; n <= acked; n++ {
		if rows := number(t, b.register(), fmt.Sprintf(`SELECT count(*) FROM messages WHERE body GLOB 'acked %d *'`, n)); rows != 1 {
			t.Errorf("acknowledged message %d has %d rows", n, rows)
		}
	}
	// What was observed is told until the log has it, which is after the first
	// message is captured again.
	until(t, 10*time.Second, "an event says for which time the stream took nothing", func() error {
		if n := number(t, b.register(), `SELECT count(*) FROM messages WHERE subject='bus.evt.bridge.overflow' AND json_extract(body, '$.from') < json_extract(body, '$.until')`); n < 1 {
			return errors.New("there is none")
		}
		return nil
	})
	until(t, 10*time.Second, "two events about the disk: when it was low, and when it was not", func() error {
		if n := number(t, b.register(), `SELECT count(*) FROM messages WHERE subject='bus.evt.bridge.disk'`); n < 2 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
	until(t, 20*time.Second, "look-ups are indexed again", func() error {
		lag, err := b.metric("signalbox_index_lag_rows")
		if err == nil && lag != 0 {
			err = fmt.Errorf("%v rows behind", lag)
		}
		return err
	})
	if err := b.running(); err != nil || b.cmd.Process.Pid != pid {
		t.Errorf("it did not recover by itself: %v", err)
	}
	b.stop()
}

// TestM12ReadOnly: a data directory that cannot be written is one clear line,
// and what is in it stays as it is and can be read.
func TestM12ReadOnly(t *testing.T) {
	if !isolated(t, 0) {
		return
	}
	disk := smallDisk(t, "100m")
	data := filepath.Join(disk, "data")
	b := serve(t, data, "")
	publish(t, client(t, b.ready.NATS), "bus.msg.a.agent.b", "kept")
	settled(t, b)
	b.stop()
	before := digest(t, b.register())
	if err := syscall.Mount("", disk, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatalf("remount: %v", err)
	}
	complains(t, launch(t, data, ""), data, "read-only")
	if digest(t, b.register()) != before {
		t.Error("the register has changed")
	}
	if rows := logRows(t, data, "--kind", "msg"); len(rows) != 1 || *rows[0].Body != "kept" {
		t.Errorf("signalbox log lists %+v", rows)
	}
	if err := syscall.Mount("", disk, "", syscall.MS_REMOUNT, ""); err != nil {
		t.Fatalf("remount: %v", err)
	}
	serve(t, data, "").stop()
}

// TestM12RegisterDeleted: the register's file is deleted under the process. It
// stops and says so, and no later start makes an empty one in its place unless
// it is told to.
func TestM12RegisterDeleted(t *testing.T) {
	b := serve(t, path(t, "data"), "")
	nc := client(t, b.ready.NATS)
	for n := range 20 {
		publish(t, nc, "bus.msg.a.agent.b", fmt.Sprint(n))
	}
	settled(t, b)
	if err := os.Remove(b.register()); err != nil {
		t.Fatal(err)
	}
	if err := tryPublish(nc, "bus.msg.a.agent.b", "into nowhere"); err != nil {
		t.Logf("the message after the deletion was not acknowledged: %v", err)
	}
	if code := b.exit(20 * time.Second); code != 1 {
		t.Errorf("the exit code is %d", code)
	}
	if said := strings.Join(b.said(), "\n"); !strings.Contains(said, "deleted") || strings.Contains(said, "panic") {
		t.Errorf("it does not say that the file was deleted: %s", said)
	}
	for range 2 {
		complains(t, launch(t, b.data, ""), b.register(), "--new-register")
		if _, err := os.Stat(b.register()); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("a start that refuses made a register (%v)", err)
		}
	}
	anew := serve(t, b.data, "", "--new-register")
	settled(t, anew)
	if n := number(t, anew.register(), `SELECT count(*) FROM messages WHERE body GLOB '[0-9]*'`); n != 20 {
		t.Errorf("the new register has %d of the 20 messages that the log still holds", n)
	}
	anew.stop()
	serve(t, b.data, "").stop()
}
