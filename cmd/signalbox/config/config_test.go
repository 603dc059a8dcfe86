package config_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"signalbox/cmd/signalbox/config"
)

const documented = "../../../config.yaml"

func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantProblem asserts that one of the problems has this line and key, and that
// its text shows both as "config.yaml:LINE: KEY: ".
func wantProblem(t *testing.T, err error, line int, key, contains string) {
	t.Helper()
	var seen []string
	for _, e := range config.Problems(err) {
		prefix := fmt.Sprintf("config.yaml:%d: %s: ", line, key)
		if e.Line == line && e.Key == key && strings.Contains(e.Error(), prefix) && strings.Contains(e.Error(), contains) {
			return
		}
		seen = append(seen, e.Error())
	}
	t.Fatalf("want a problem of %s in line %d with %q, got:\n%s", key, line, contains, strings.Join(seen, "\n"))
}

func TestDocumentedFileIsTheDefault(t *testing.T) {
	got, err := config.Load(documented, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := config.Default(); !reflect.DeepEqual(got, want) {
		t.Errorf("config.yaml differs from Default:\n got %+v\nwant %+v", got, want)
	}
}

func TestDocumentedFileMentionsEveryKey(t *testing.T) {
	text, err := os.ReadFile(documented)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	mentioned := flatten(tree)
	for _, k := range config.Keys() {
		if _, ok := mentioned[k.Name]; !ok {
			t.Errorf("config.yaml does not mention %s", k.Name)
		}
	}
	for _, kind := range mentioned["roles.kinds"].([]any) {
		entry := kind.(map[string]any)
		for i := range reflect.TypeFor[config.RoleKind]().NumField() {
			if name := reflect.TypeFor[config.RoleKind]().Field(i).Tag.Get("yaml"); entry[name] == nil {
				t.Errorf("config.yaml: a role kind does not mention %s", name)
			}
		}
	}
}

// flatten turns nested maps into dotted keys.
func flatten(tree map[string]any) map[string]any {
	flat := map[string]any{}
	for name, v := range tree {
		section, ok := v.(map[string]any)
		if !ok {
			flat[name] = v
			continue
		}
		for k, v := range flatten(section) {
			flat[name+"."+k] = v
		}
	}
	return flat
}

func TestNoFileNoVariablesIsTheDefault(t *testing.T) {
	for name, path := range map[string]string{
		"no file": "", "empty": write(t, ""), "comments": write(t, "# nothing\n"),
		"empty sections": write(t, "bus:\nnats:\n  embedded:\n  tls: {}\n"), "document mark": write(t, "---\nbus:\n"),
		"byte order mark": write(t, "\ufeffbus:\n  root: bus\n"), "CRLF": write(t, "bus:\r\n  root: bus\r\n"),
	} {
		got, err := config.Load(path, []string{"HOME=/root", "SIGNALBOXER=1"}, nil)
		if err != nil || !reflect.DeepEqual(got, config.Default()) {
			t.Errorf("%s: %v, %+v", name, err, got)
		}
	}
	if err := config.Default().Validate(); err != nil {
		t.Error(err)
	}
}

func TestWrittenConfigurationReadsBackTheSame(t *testing.T) {
	want := config.Default()
	want.Bus.Taps = []config.Tap{{Subject: "svc.>"}, {Stream: "ORDERS"}}
	want.NATS.Embedded.SyncInterval = config.SyncAlways
	want.Audit.MinFree = 5 * config.GiB
	want.Audit.Search = false
	want.Agents.OfflineAfter = 90*config.Minute + 30*config.Second
	text, err := yaml.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.Load(write(t, string(text)), nil, nil)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v\n got %+v\nwant %+v\n%s", err, got, want, text)
	}
	var decoded config.Config
	if err := yaml.Unmarshal([]byte("bus: {max_age: 1h30m, max_bytes: 3MiB}\naudit: {search: on}\nnats: {embedded: {sync_interval: always}}"), &decoded); err != nil {
		t.Fatal(err)
	}
	if decoded.Bus.MaxAge != 90*config.Minute || decoded.Bus.MaxBytes != 3*config.MiB || !bool(decoded.Audit.Search) {
		t.Errorf("decoded %+v", decoded)
	}
}

func TestKeysDescribeThemselves(t *testing.T) {
	envs := map[string]string{}
	for _, k := range config.Keys() {
		if !strings.HasSuffix(k.Doc, ".") {
			t.Errorf("%s has no sentence of documentation: %q", k.Name, k.Doc)
		}
		if other, taken := envs[k.Env]; taken {
			t.Errorf("%s and %s share the variable %s", k.Name, other, k.Env)
		}
		envs[k.Env] = k.Name
		if k.Kind == "" {
			t.Errorf("%s has no kind", k.Name)
		}
		// The default, written out, is the default.
		got, err := config.Load("", []string{k.Env + "=" + k.Default}, nil)
		if err != nil || !reflect.DeepEqual(got, config.Default()) {
			t.Errorf("%s: its default %q: %v", k.Name, k.Default, err)
		}
	}
	if len(envs) < 50 {
		t.Errorf("only %d keys", len(envs))
	}
}

func TestFileThatCannotBeReadIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "absent.yaml")
	_, err := config.Load(path, nil, nil)
	if !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), path+": cannot be read") {
		t.Errorf("absent file: %v", err)
	}
	dir := t.TempDir()
	if _, err := config.Load(dir, nil, nil); err == nil || !strings.HasPrefix(err.Error(), dir+": ") {
		t.Errorf("directory: %v", err)
	}
	big := write(t, strings.Repeat("# comment\n", 30000))
	if _, err := config.Load(big, nil, nil); err == nil || !strings.Contains(err.Error(), "larger than 64 KiB") {
		t.Errorf("large file: %v", err)
	}
}

func TestRelativeAndDerivedValues(t *testing.T) {
	c := config.Default()
	if got := c.RegisterPath(); got != filepath.Join("data", "signalbox.db") {
		t.Errorf("register at %s", got)
	}
	c.Audit.Path = "/elsewhere/r.db"
	if got := c.RegisterPath(); got != "/elsewhere/r.db" {
		t.Errorf("register at %s", got)
	}
	for _, f := range []struct {
		set         config.Size
		total, want int64
	}{{0, 1 << 30, 1 << 30}, {0, 100 << 30, 5 << 30}, {7 * config.MiB, 100 << 30, 7 << 20}} {
		if got := (config.Audit{MinFree: f.set}).FreeFloor(f.total); got != f.want {
			t.Errorf("floor of %d with min_free %s is %d, want %d", f.total, f.set, got, f.want)
		}
	}
	for level, want := range map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError} {
		if got := (config.Log{Level: level}).Slog(); got != want {
			t.Errorf("%s is %s", level, got)
		}
	}
	c.Bus.Taps = []config.Tap{{Subject: "a.>"}, {Stream: "S"}, {Subject: "b"}}
	if s := c.Bus.TapSubjects(); !reflect.DeepEqual(s, []string{"a.>", "b"}) {
		t.Error(s)
	}
	if s := c.Bus.TapStreams(); !reflect.DeepEqual(s, []string{"S"}) {
		t.Error(s)
	}
}
