package config_test

import (
	"os"
	"strings"
	"testing"

	"signalbox/cmd/signalbox/config"
)

// FuzzLoad feeds anything as a file, a variable and a flag: an error or a valid
// configuration, never a panic.
func FuzzLoad(f *testing.F) {
	text, err := os.ReadFile(documented)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text), "SIGNALBOX_BUS_TAPS=[a, {stream: B}]", "bus.taps", "[svc.>]")
	for _, seed := range []string{"", "bus:\n  taps: [a, {stream: B}]", "? a\n: b", "<<: *x", "a: &a [*a]", "log: |\n  x", "nats: {tls: {ca: !!binary x}}", "\t", "---\n---", "bus: {max_age: '\x00'}", "{a: b: c}"} {
		f.Add(seed, "SIGNALBOX_ROLES_KINDS="+seed, "roles.kinds", seed)
		f.Add(seed, "SIGNALBOX_NATS_URL="+seed, "audit.cache", seed)
	}
	path := write(f, "")
	f.Fuzz(func(t *testing.T, text, env, key, value string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(path, []string{env}, map[string]string{key: value})
		if err == nil {
			if err := c.Validate(); err != nil {
				t.Fatalf("loaded, but not valid: %v", err)
			}
			return
		}
		if len(config.Problems(err)) == 0 {
			t.Fatalf("an error that names no place: %v", err)
		}
		for _, e := range config.Problems(err) {
			if e.File == "" || e.Problem == "" {
				t.Fatalf("a problem without a place or a text: %+v", e)
			}
		}
	})
}

// The parser alone would take gigabytes for some of these.
func TestDeepNestingIsRefusedBeforeItIsParsed(t *testing.T) {
	const most = 64 << 10
	for _, unit := range []string{"[", "{a: ", "- ", "? ", "{", "[{", "&a ", "!a ", "*a ", "[[]", "a: ", ": ", "&a\n", "- &a\n  ", "%\n", "'", "\"", "|\n", "---\n", "<<: "} {
		if _, err := config.Load(write(t, strings.Repeat(unit, most/len(unit))), nil, nil); err == nil && unit != "---\n" {
			t.Errorf("%q repeated was loaded", unit)
		}
	}
	steps := ""
	for i := range 300 {
		steps += strings.Repeat(" ", i) + "a:\n"
	}
	if _, err := config.Load(write(t, steps), nil, nil); err == nil || !strings.Contains(err.Error(), "config.yaml:100: ") {
		t.Errorf("stairs: %v", err)
	}
	if _, err := config.Load("", []string{"SIGNALBOX_BUS_TAPS=" + strings.Repeat("[", most)}, nil); err == nil || !strings.Contains(err.Error(), "nested too deeply") {
		t.Error(err)
	}
}
