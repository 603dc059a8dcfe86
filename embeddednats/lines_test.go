package embeddednats

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// The lines are as nats-server 2.15.2 wrote them, on a full tmpfs among others.
func TestEveryLineThatTellsOfALossIsRecognised(t *testing.T) {
	const full = "write /d/jetstream/$G/streams/S/msgs/1.blk: no space left on device"
	for _, c := range []struct {
		line            string
		kind            DropKind // "": not a loss
		account, stream string
	}{
		{"Dropping messages due to excessive stream ingest rate on '$G' > 'BUS': IPQ len limit reached", IngestOverflow, "$G", "BUS"},
		{"Dropping messages due to excessive stream ingest rate on 'A B' > 'BUS_TAP': IPQ size limit reached", IngestOverflow, "A B", "BUS_TAP"},
		{"Filestore [S] Critical write error: " + full, OutOfSpace, "", "S"},
		{"JetStream failed to store a msg on stream '$G > S': " + full, OutOfSpace, "$G", "S"},
		{"JetStream stream '$G > S' critical write error: " + full, OutOfSpace, "$G", "S"},
		{"JetStream stream '$G > S' critical write error: write /d/1.blk: disk quota exceeded", OutOfSpace, "$G", "S"},
		{"JetStream out of space, will be DISABLED", OutOfSpace, "", ""},
		{"JetStream out of File resources, will be DISABLED", OutOfSpace, "", ""},
		{"JetStream out of resources, will be DISABLED", OutOfSpace, "", ""},
		{"JetStream stream '$G > S' critical write error: write /d/1.blk: input/output error", WriteError, "$G", "S"},
		{"Filesystem permission denied while writing msg, disabling JetStream: open /d/2.blk: permission denied", WriteError, "", ""},
		{"Filestore [S] File system permission denied when flushing stream state, disabling JetStream: permission denied", WriteError, "", "S"},
		{`JetStream file resource limits exceeded for account: "$G"`, LimitsExceeded, "", ""},
		{"JetStream memory resource limits exceeded for server", LimitsExceeded, "", ""},
		{"JetStream account limits exceeded for 'ORDERS': resource limits exceeded for account", LimitsExceeded, "", ""},
		{"JetStream message size exceeds limits for '$G > S'", "", "", ""},
		{"Filestore [S] Stream state outdated, last block has additional entries, will rebuild", "", "", ""},
		{"127.0.0.1:1 - cid:5 - Slow Consumer Detected: WriteDeadline of 10s exceeded", "", "", ""},
		{"", "", "", ""},
	} {
		got, ok := recogniseDrop(c.line)
		if ok != (c.kind != "") || got.Kind != c.kind || got.Account != c.account || got.Stream != c.stream {
			t.Errorf("%q is %v %+v, want %q of %q > %q", c.line, ok, got, c.kind, c.account, c.stream)
		}
		if ok && got.Text != c.line {
			t.Errorf("%q is reported as %q", c.line, got.Text)
		}
	}
}

func TestASlowCallbackLosesReportsAndIsToldHowMany(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	var got []DropReport
	r := newDropReporter(func(report DropReport) {
		if len(got) == 0 {
			close(entered)
			<-release
		}
		got = append(got, report)
	})
	r.offer(DropReport{Text: "first"})
	<-entered
	for i := range dropQueue + 3 {
		r.offer(DropReport{Text: fmt.Sprint(i)})
	}
	close(release)
	r.close()
	if len(got) != 1+dropQueue {
		t.Fatalf("%d reports delivered, want %d", len(got), 1+dropQueue)
	}
	if got[0].Missed != 0 || got[1].Missed != 3 || got[2].Missed != 0 {
		t.Errorf("missed %d, %d, %d, want 0, 3, 0", got[0].Missed, got[1].Missed, got[2].Missed)
	}
}

func TestOptionsReachTheServer(t *testing.T) {
	check := func(name string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	so, err := Options{StoreDir: "d"}.serverOptions(ports{})
	if err != nil {
		t.Fatal(err)
	}
	check("NoSigs", so.NoSigs, true)
	check("JetStream", so.JetStream, true)
	check("StoreDir", so.StoreDir, "d")
	check("Host", so.Host, "127.0.0.1")
	check("Port", so.Port, 4222)
	check("HTTPPort", so.HTTPPort, 0)
	check("SyncAlways", so.SyncAlways, false)
	check("SyncInterval", so.SyncInterval, DefaultSyncInterval)
	check("StreamMaxBufferedMsgs", so.StreamMaxBufferedMsgs, 2_000_000)
	check("StreamMaxBufferedSize", so.StreamMaxBufferedSize, int64(1<<30))
	check("MaxPayload", so.MaxPayload, int32(1<<20))
	check("JetStreamMaxStore", so.JetStreamMaxStore, int64(11<<30))
	check("JetStreamMaxMemory", so.JetStreamMaxMemory, int64(256<<20))

	so, err = Options{
		StoreDir: "d", Listen: "127.0.0.9:0", HTTP: "127.0.0.8:0", SyncAlways: true, SyncInterval: 7,
		MaxBufferedMsgs: 1, MaxBufferedBytes: 2, MaxPayload: 3, MaxStore: 4, MaxMemory: 5, ServerName: "n",
	}.serverOptions(ports{})
	if err != nil {
		t.Fatal(err)
	}
	check("Host", so.Host, "127.0.0.9")
	check("Port", so.Port, server.RANDOM_PORT)
	check("HTTPHost", so.HTTPHost, "127.0.0.8")
	check("HTTPPort", so.HTTPPort, server.RANDOM_PORT)
	check("SyncAlways", so.SyncAlways, true)
	check("SyncInterval", int(so.SyncInterval), 7)
	check("StreamMaxBufferedMsgs", so.StreamMaxBufferedMsgs, 1)
	check("StreamMaxBufferedSize", so.StreamMaxBufferedSize, int64(2))
	check("MaxPayload", so.MaxPayload, int32(3))
	check("JetStreamMaxStore", so.JetStreamMaxStore, int64(4))
	check("JetStreamMaxMemory", so.JetStreamMaxMemory, int64(5))
	check("ServerName", so.ServerName, "n")
}

func TestTheFilesSettingsGoBeforeDefaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nats-server.conf")
	text := "jetstream { sync_interval: always, max_file_store: 1GB, max_buffered_msgs: 5 }\nport: 4333\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	so, err := Options{StoreDir: "d", ServerConfig: path}.serverOptions(ports{})
	if err != nil {
		t.Fatal(err)
	}
	if !so.SyncAlways || so.JetStreamMaxStore != 1<<30 || so.StreamMaxBufferedMsgs != 5 || so.Port != 4333 {
		t.Errorf("sync always %v, store %d, buffered %d, port %d", so.SyncAlways, so.JetStreamMaxStore, so.StreamMaxBufferedMsgs, so.Port)
	}
	if so.Host != "127.0.0.1" {
		t.Errorf("a file that names only a port moves the server off loopback to %s", so.Host)
	}
}

func TestAnAddressForEveryInterfaceIsShownAsLoopback(t *testing.T) {
	for _, c := range []struct{ host, want string }{
		{"0.0.0.0", "nats://127.0.0.1:1"}, {"::", "nats://[::1]:1"}, {"::1", "nats://[::1]:1"},
		{"bus.example", "nats://bus.example:1"}, {"127.0.0.9", "nats://127.0.0.9:1"},
	} {
		if got := addressURL("nats", c.host, 1); got != c.want {
			t.Errorf("%s is shown as %s, want %s", c.host, got, c.want)
		}
	}
}
