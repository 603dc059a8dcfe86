package bench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"signalbox/cmd/signalbox/bench"
)

// program builds the command, which the bench starts in other processes.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "signalbox")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "signalbox/cmd/signalbox").CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

func options(t *testing.T) bench.Options {
	return bench.Options{Version: "test", Dir: filepath.Join(t.TempDir(), "bench"), Messages: 3_000, BurstMessages: 4_000,
		MemoryMessages: 12_000, Publishers: 2, Size: 256}
}

// TestEveryFigureIsMeasuredAndNothingIsLost runs all phases, small. It asserts
// no speed.
func TestEveryFigureIsMeasuredAndNothingIsLost(t *testing.T) {
	o := options(t)
	o.Program, o.Keep = program(t), true
	r, err := bench.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"messages", "lost", "capture_per_s", "ceiling_per_s", "ratio", "index_lag_s", "lag_p50_ms", "lag_p99_ms",
		"api_p50_ms", "jobs_per_s", "db_bytes_per_msg", "rss_mib", "machine"} {
		if fields[name] == nil {
			t.Errorf("%s is missing: %s", name, raw)
		}
	}
	machine, _ := fields["machine"].(map[string]any)
	for _, name := range []string{"cores", "go", "signalbox", "nats_server", "sqlite"} {
		if machine[name] == nil || machine[name] == "" {
			t.Errorf("machine.%s is missing: %s", name, raw)
		}
	}
	if *r.Lost != 0 || *r.Doubled != 0 || *r.BurstLost != 0 {
		t.Errorf("lost %d, doubled %d, lost of the burst %d", *r.Lost, *r.Doubled, *r.BurstLost)
	}
	for name, v := range map[string]float64{"capture": *r.CapturePerS, "ceiling": *r.CeilingPerS, "ratio": *r.Ratio,
		"lag": *r.LagP50MS, "api": *r.APIP50MS, "memory": *r.RSSMiB, "register": *r.DBBytesPerMsg} {
		if v <= 0 {
			t.Errorf("%s is %v", name, v)
		}
	}
	if *r.RSSMessages < int64(o.MemoryMessages) {
		t.Errorf("memory was read after %d messages, not %d", *r.RSSMessages, o.MemoryMessages)
	}
	if _, err := os.Stat(filepath.Join(o.Dir, "node", "nats.url")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the node was not stopped in order: %v", err)
	}
	var table bytes.Buffer
	if err := r.Table(&table); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"capture / ceiling", "≥ 0.50 ×", "≤ 2 s", "< 100 ms", "< 5 ms", "< 300 MiB"} {
		if !strings.Contains(table.String(), text) {
			t.Errorf("the table says nothing of %q:\n%s", text, table.String())
		}
	}
}

func TestOnlyWhatIsWantedIsMeasured(t *testing.T) {
	o := options(t)
	o.Program, o.Only = program(t), []bench.Phase{bench.Capture}
	r, err := bench.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.CapturePerS == nil || r.CeilingPerS != nil || r.Ratio != nil || r.LagP50MS != nil || r.BurstLost != nil || r.APIP50MS != nil || r.RSSMiB != nil {
		t.Errorf("measured: %+v", r)
	}
	if _, err := os.Stat(o.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was left behind: %v", err)
	}
}

func TestADirectoryThatHoldsSomethingIsLeftAlone(t *testing.T) {
	o := options(t)
	o.Dir = t.TempDir()
	kept := filepath.Join(o.Dir, "signalbox.db")
	if err := os.WriteFile(kept, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bench.Run(t.Context(), o); !errors.Is(err, bench.ErrNotEmpty) {
		t.Fatalf("error %v, want ErrNotEmpty", err)
	}
	if raw, err := os.ReadFile(kept); err != nil || string(raw) != "precious" {
		t.Fatalf("the file now holds %q (%v)", raw, err)
	}
}

// TestANodeThatFailsSaysWhy gives the node a setting that it refuses.
func TestANodeThatFailsSaysWhy(t *testing.T) {
	o := options(t)
	o.Program, o.Only, o.Set = program(t), []bench.Phase{bench.Capture}, []string{"audit.batch_max=none"}
	_, err := bench.Run(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "audit.batch_max") {
		t.Fatalf("error %v does not name the setting", err)
	}
}

// TestAnInterruptedBenchEndsItsProcesses ends a bench while it publishes.
func TestAnInterruptedBenchEndsItsProcesses(t *testing.T) {
	o := options(t)
	o.Program, o.Messages, o.Only = program(t), 50_000_000, []bench.Phase{bench.Capture}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Progress = writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }) // the first row was seen
	began := time.Now()
	if _, err := bench.Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want context.Canceled", err)
	}
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("it took %s", took)
	}
	if _, err := os.Stat(o.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was left behind: %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestOptionsOutsideTheirLimitsAreNamed(t *testing.T) {
	for name, change := range map[string]func(*bench.Options){
		"messages":        func(o *bench.Options) { o.Messages = 0 },
		"burst-messages":  func(o *bench.Options) { o.BurstMessages = -1 },
		"memory-messages": func(o *bench.Options) { o.MemoryMessages = 0 },
		"publishers":      func(o *bench.Options) { o.Publishers = 17 },
		"size":            func(o *bench.Options) { o.Size = 8 },
		"speed":           func(o *bench.Options) { o.Only = []bench.Phase{"speed"} },
	} {
		o := options(t)
		change(&o)
		if _, err := bench.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
