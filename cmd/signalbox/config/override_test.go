package config_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"signalbox/cmd/signalbox/config"
)

// samples holds, for every key, a right value that is not the default, and
// what else must be set for it to make sense.
var samples = map[string]struct {
	value string
	with  []string
}{
	"data_dir": {"/var/lib/signalbox", nil}, "instance": {"box-2", nil},
	"nats.url":      {"nats://a:4222,nats://b", nil},
	"nats.creds":    {"a.creds", []string{"SIGNALBOX_NATS_URL=tls://a"}},
	"nats.nkey":     {"a.nk", []string{"SIGNALBOX_NATS_EMBEDDED_SERVER_CONFIG=s.conf"}},
	"nats.tls.ca":   {"ca.pem", []string{"SIGNALBOX_NATS_URL=tls://a"}},
	"nats.tls.cert": {"c.pem", []string{"SIGNALBOX_NATS_URL=tls://a", "SIGNALBOX_NATS_TLS_KEY=k.pem"}},
	"nats.tls.key":  {"k.pem", []string{"SIGNALBOX_NATS_URL=tls://a", "SIGNALBOX_NATS_TLS_CERT=c.pem"}},
	"nats.context":  {"prod", nil}, "nats.embedded.listen": {"[::1]:0", nil},
	"nats.embedded.server_config": {"s.conf", nil}, "nats.embedded.http": {"localhost:8222", nil},
	"nats.embedded.max_payload": {"8MiB", nil}, "nats.embedded.sync_interval": {"always", nil},
	"nats.embedded.max_buffered_msgs": {"10000", nil}, "nats.embedded.max_buffered_bytes": {"128MiB", nil},
	"bus.root": {"rail", nil}, "bus.stream": {"RAIL", nil}, "bus.max_age": {"1h30m", nil}, "bus.max_bytes": {"3GiB", nil},
	"bus.replicas": {"3", []string{"SIGNALBOX_NATS_URL=nats://a"}}, "bus.duplicates": {"2m", nil},
	"bus.taps":        {`["svc.>", "_INBOX_svc.>", {stream: ORDERS}]`, nil},
	"bus.tap_max_age": {"36h", nil}, "bus.tap_max_bytes": {"1536MiB", nil},
	"audit.path": {"r.db", nil}, "audit.cache": {"128MiB", nil}, "audit.batch_max": {"1", nil}, "audit.search": {"off", nil},
	"audit.min_free":       {"512MiB", nil},
	"agents.heartbeat_ttl": {"15s", nil}, "agents.rollup": {"10s", nil}, "agents.offline_after": {"1h", nil},
	"assign.timeout": {"1h", nil}, "assign.max_retries": {"20", nil}, "assign.backoff.base": {"2s", nil},
	"assign.backoff.factor": {"1.5", nil}, "assign.backoff.max": {"10m", nil}, "assign.backoff.jitter": {"0", nil},
	"roles.kinds":         {`[{name: pilot, scoped: true, charter_version: "3", probe: false}]`, nil},
	"roles.probe_timeout": {"5s", nil}, "roles.ack_timeout": {"1m", nil}, "roles.max_probe_failures": {"5", nil},
	"roles.backoff.base": {"500ms", nil}, "roles.backoff.factor": {"3", nil}, "roles.backoff.max": {"1m", nil},
	"roles.backoff.jitter": {"1", nil}, "roles.quarantine": {"10m", nil},
	"http.listen": {"", nil}, "log.level": {"debug", nil}, "log.format": {"json", nil},
}

// written is the value of a key as the configuration writes it out.
func written(t *testing.T, c config.Config, key string) any {
	t.Helper()
	text, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	return flatten(tree)[key]
}

func TestEveryKeyIsOverriddenByVariableAndFlag(t *testing.T) {
	for _, k := range config.Keys() {
		t.Run(k.Name, func(t *testing.T) {
			s, ok := samples[k.Name]
			if !ok {
				t.Fatal("no sample value")
			}
			byEnv, err := config.Load(documented, append(s.with, k.Env+"="+s.value), nil)
			if err != nil {
				t.Fatal(err)
			}
			byFlag, err := config.Load(documented, s.with, map[string]string{k.Name: s.value})
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(byEnv, byFlag) {
				t.Errorf("variable and flag differ:\n%+v\n%+v", byEnv, byFlag)
			}
			got := written(t, byEnv, k.Name)
			if k.Kind == "list" {
				var want any
				if err := yaml.Unmarshal([]byte(s.value), &want); err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("is %v, want %v", got, want)
				}
			} else if fmt.Sprint(got) != s.value {
				t.Errorf("is %v, want %s", got, s.value)
			}
			// Nothing else moved.
			without, err := config.Load(documented, append(s.with, k.Env+"="+k.Default), nil)
			if err == nil && reflect.DeepEqual(byEnv, without) {
				t.Error("the sample changes nothing")
			}
		})
	}
}

func TestLaterLayersWin(t *testing.T) {
	file := write(t, "instance: file\nbus: {root: file, taps: [file.>]}\nlog: {level: debug}\n")
	env := []string{"SIGNALBOX_INSTANCE=env", "SIGNALBOX_BUS_ROOT=env", "SIGNALBOX_BUS_TAPS=[a, b]"}
	c, err := config.Load(file, env, map[string]string{"instance": "flag"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Instance != "flag" || c.Bus.Root != "env" || c.Log.Level != "debug" || len(c.Bus.Taps) != 2 {
		t.Errorf("%+v", c)
	}
}

func TestWrongOverridesNameTheVariableOrFlag(t *testing.T) {
	for _, c := range []struct {
		env   string
		flag  [2]string
		wants []string
	}{
		{env: "SIGNALBOX_BUS_MAX_AGE=72x", wants: []string{`SIGNALBOX_BUS_MAX_AGE: bus.max_age: "72x" is not a duration (use Go durations such as 72h)`}},
		{env: "SIGNALBOX_BUS_REPLICAS=9", wants: []string{"SIGNALBOX_BUS_REPLICAS: bus.replicas: 9 is more than 5"}},
		{env: "SIGNALBOX_BUS_REPLICAS=", wants: []string{"SIGNALBOX_BUS_REPLICAS: bus.replicas: "}},
		{env: "SIGNALBOX_BUS_MAXAGE=1h", wants: []string{"SIGNALBOX_BUS_MAXAGE: ", "did you mean SIGNALBOX_BUS_MAX_AGE?"}},
		{env: "SIGNALBOX_BUS=x", wants: []string{"SIGNALBOX_BUS: ", "it is a section"}},
		{env: "SIGNALBOX_=x", wants: []string{"SIGNALBOX_: ", "no key"}},
		{env: "SIGNALBOX_QQQQQQQQQQQQQQQQQQQQ=x", wants: []string{"SIGNALBOX_QQQQQQQQQQQQQQQQQQQQ: ", "unset it"}},
		{env: "SIGNALBOX_SERVICE_HOST=10.0.0.1", wants: []string{"SIGNALBOX_SERVICE_HOST: ", "enableServiceLinks: false"}},
		{env: "SIGNALBOX_PORT_4222_TCP=tcp://10.0.0.1:4222", wants: []string{"enableServiceLinks: false"}},
		{env: "SIGNALBOX_BUS_TAPS=svc.>", wants: []string{"SIGNALBOX_BUS_TAPS: bus.taps: is a list, but holds text"}},
		{env: "SIGNALBOX_BUS_TAPS=[", wants: []string{"SIGNALBOX_BUS_TAPS: bus.taps: ", "not valid YAML"}},
		{env: "SIGNALBOX_BUS_TAPS=", wants: []string{"SIGNALBOX_BUS_TAPS: bus.taps: ", "not a list"}},
		{env: "SIGNALBOX_BUS_TAPS=[svc.>, bus.x]", wants: []string{"SIGNALBOX_BUS_TAPS: bus.taps[1]: ", "overlaps the root"}},
		{env: "SIGNALBOX_ROLES_KINDS=[{name: a, scope: true}]", wants: []string{"SIGNALBOX_ROLES_KINDS: roles.kinds[0].scope: unknown key"}},
		{env: "SIGNALBOX_ROLES_KINDS=[{name: a}, {name: a}]", wants: []string{"SIGNALBOX_ROLES_KINDS: roles.kinds[1].name: "}},
		{flag: [2]string{"nats.embedded.listen", "x"}, wants: []string{"--listen: nats.embedded.listen: "}},
		{flag: [2]string{"data_dir", ""}, wants: []string{"--data: data_dir: is empty"}},
		{flag: [2]string{"bus.max_age", "1"}, wants: []string{"--set bus.max_age: bus.max_age: "}},
		{flag: [2]string{"bus.max-age", "1h"}, wants: []string{"--set bus.max-age: ", "did you mean bus.max_age?"}},
		{flag: [2]string{"bus", "1h"}, wants: []string{"--set bus: bus: is a section, not a key"}},
	} {
		t.Run(c.env+c.flag[0], func(t *testing.T) {
			overrides := map[string]string{}
			if c.flag[0] != "" {
				overrides[c.flag[0]] = c.flag[1]
			}
			_, err := config.Load("", []string{c.env}, overrides)
			if problems := config.Problems(err); len(problems) != 1 {
				t.Fatalf("want one problem, got %v", err)
			}
			for _, want := range c.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nwant %s", err, want)
				}
			}
		})
	}
}

func TestPasswordsInURLsAreNotRepeated(t *testing.T) {
	for _, url := range []string{"http://bob:s3cret@h", "nats://bob:s3cret@h:99999", "bob:s3cret@h h", "nats://a,nats://bob:s3c@s3cret@ws:x", "nats://bob:s3c,s3cret@h", "nats://s3cret@[", "nats://bob:%zzs3cret@h"} {
		_, err := config.Load("", []string{"SIGNALBOX_NATS_URL=" + url}, nil)
		if err == nil || strings.Contains(err.Error(), "s3c") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestImpossibleCombinationsNameTheMoreRecentKey(t *testing.T) {
	for _, c := range []struct {
		name, file string
		env        []string
		want       string // "" for possible
	}{
		{"url and embedded", "nats:\n  url: nats://h\n  embedded:\n    server_config: s.conf\n", nil, "config.yaml:4: nats.embedded.server_config: "},
		{"url by variable and embedded", "nats:\n  embedded:\n    max_payload: 2MiB\n", []string{"SIGNALBOX_NATS_URL=h"}, "SIGNALBOX_NATS_URL: nats.url: nats.embedded.max_payload is set, but nats.url names another server"},
		{"context and embedded", "nats:\n  context: prod\n  embedded:\n    http: 127.0.0.1:1\n", nil, "config.yaml:4: nats.embedded.http: "},
		{"url and embedded defaults", "nats:\n  url: nats://h\n  embedded:\n    listen: 127.0.0.1:4222\n", nil, ""},
		{"url and http on 4222", "nats: {url: h}\nhttp: {listen: '127.0.0.1:4222'}\n", nil, ""},
		{"creds and nkey", "nats:\n  url: h\n  creds: a\n  nkey: b\n", nil, "config.yaml:4: nats.nkey: nats.creds and nats.nkey are both set"},
		{"context and url", "nats:\n  url: h\n  context: c\n", nil, "config.yaml:3: nats.context: "},
		{"context and creds", "nats:\n  context: c\n  creds: a\n", nil, "config.yaml:3: nats.creds: "},
		{"creds for a server_config", "nats:\n  creds: a\n  embedded: {server_config: s.conf}\n", nil, ""},
		{"replicas in a cluster of server_config", "nats:\n  embedded: {server_config: s.conf}\nbus: {replicas: 3}\n", nil, ""},
		{"heartbeat against default roll-up", "agents:\n  heartbeat_ttl: 14s\n", nil, "config.yaml:2: agents.heartbeat_ttl: "},
		{"roll-up against default heartbeat", "agents:\n  rollup: 11s\n", nil, "config.yaml:2: agents.rollup: agents.heartbeat_ttl (30s) is less than three times agents.rollup (11s)"},
		{"exactly three roll-ups", "agents:\n  rollup: 10s\n", nil, ""},
		{"roll-up by variable", "agents:\n  heartbeat_ttl: 20s\n", []string{"SIGNALBOX_AGENTS_ROLLUP=9s"}, "SIGNALBOX_AGENTS_ROLLUP: agents.rollup: "},
		{"backoff base over max", "roles:\n  backoff:\n    base: 31s\n", nil, "config.yaml:3: roles.backoff.base: "},
		{"backoff base equal to max", "roles:\n  backoff:\n    base: 30s\n", nil, ""},
		{"duplicates over max_age", "bus:\n  duplicates: 2h\n  max_age: 1h\n", nil, "config.yaml:2: bus.duplicates: "},
		{"duplicates equal to max_age", "bus:\n  duplicates: 1h\n  max_age: 1h\n", nil, ""},
		{"own port twice", "http:\n  listen: localhost:4222\n", nil, "config.yaml:2: http.listen: "},
		{"own port twice on another interface", "http:\n  listen: 127.0.0.2:4222\n", nil, ""},
		{"port 0 twice", "http: {listen: ':0'}\nnats: {embedded: {listen: ':0'}}\n", nil, ""},
		{"private inbox", "bus: {taps: [_INBOX_svc.>, _INBOXES.a]}\n", nil, ""},
		{"disjoint taps", "bus: {taps: [a, a.>, b.*.c, b.*.d.>, busy.>]}\n", nil, ""},
		{"root moves onto a tap", "bus:\n  taps: [svc.>]\n", []string{"SIGNALBOX_BUS_ROOT=svc"}, "SIGNALBOX_BUS_ROOT: bus.root: "},
		{"no kinds", "roles: {kinds: []}\n", nil, ""},
		{"payload over buffer", "nats:\n  embedded:\n    max_payload: 64MiB\n    max_buffered_bytes: 64MiB\n", nil, "config.yaml:4: nats.embedded.max_buffered_bytes: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := config.Load(write(t, c.file), c.env, nil)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestRoleKindDefaults(t *testing.T) {
	c, err := config.Load("", []string{"SIGNALBOX_ROLES_KINDS=[{name: a}]"}, nil)
	if err != nil || !reflect.DeepEqual(c.Roles.Kinds, []config.RoleKind{{Name: "a", Probe: true}}) {
		t.Errorf("%v, %+v", err, c.Roles.Kinds)
	}
}

func TestValidateNeedsNoFile(t *testing.T) {
	c := config.Default()
	c.Bus.Replicas = 0
	c.Bus.Taps = []config.Tap{{}, {Subject: "a", Stream: "b"}}
	c.Log.Level = "loud"
	var keys []string
	for _, e := range config.Problems(c.Validate()) {
		if e.File != "" || e.Line != 0 {
			t.Errorf("%v has a place", e)
		}
		keys = append(keys, e.Key)
	}
	if got := strings.Join(keys, " "); got != "bus.replicas bus.taps[0] bus.taps[1] log.level" {
		t.Error(got)
	}
	if problems := config.Problems(config.Config{}.Validate()); len(problems) < 10 {
		t.Errorf("the zero Config has %d problems", len(problems))
	}
}
