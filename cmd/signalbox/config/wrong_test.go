package config_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"signalbox/cmd/signalbox/config"
)

// wrong lists, for every key, values that must be refused, as they would stand
// in the file. {value, part of the error}.
var wrong = map[string][][2]string{
	"data_dir": {{`7`, "put it in quotes"}, {`""`, "is empty"}, {`[a]`, "a list instead of text"}, {``, "has no value"}, {`"a\0b"`, "NUL"}},
	"instance": {{`7`, "put it in quotes"}, {`""`, "not a valid name"}, {`a/b`, "not a valid name"}, {`true`, "a boolean"}, {strings.Repeat("i", 65), "1 to 64"}},

	"nats.url": {
		{`4222`, "put it in quotes"}, {`"http://h"`, `scheme "http"`}, {`"nats://"`, "no valid host"}, {`"nats://h:99999"`, "port"},
		{`"nats://a,,nats://b"`, "empty entry"}, {`"nats://a,ws://b"`, "mixes"}, {`"nats://h h"`, "not a URL"},
	},
	"nats.creds":    {{`7`, "put it in quotes"}, {`[a]`, "a list instead of text"}, {`a.creds`, "asks for no login"}, {`"a\0"`, "NUL"}},
	"nats.nkey":     {{`7`, "put it in quotes"}, {`{a: b}`, "instead of text"}, {`a.nk`, "asks for no login"}},
	"nats.tls.ca":   {{`7`, "put it in quotes"}, {`ca.pem`, "asks for no login"}},
	"nats.tls.cert": {{`yes: no`, "YAML"}, {`cert.pem`, "without nats.tls.key"}, {`1.5`, "put it in quotes"}},
	"nats.tls.key":  {{`7`, "put it in quotes"}, {`key.pem`, "without nats.tls.cert"}},
	"nats.context":  {{`7`, "put it in quotes"}, {`../x`, "not the name of a context"}, {`..`, "not the name of a context"}},

	"nats.embedded.listen": {
		{`4222`, "put it in quotes"}, {`""`, "not an address"}, {`localhost`, "not an address"}, {`127.0.0.1:port`, "0 to 65535"},
		{`127.0.0.1:65536`, "0 to 65535"}, {`127.0.0.256:4222`, "host"}, {`127.0.0.1:-1`, "0 to 65535"}, {`a b:4222`, "host"},
	},
	"nats.embedded.server_config": {{`7`, "put it in quotes"}, {`[a]`, "a list instead of text"}},
	"nats.embedded.http":          {{`8222`, "put it in quotes"}, {`"8222"`, "not an address"}, {`127.0.0.1:4222`, "both listen on port 4222"}, {`0.0.0.0:4222`, "both listen"}},
	"nats.embedded.max_payload":   {{`1048576`, "without a unit"}, {`1MB`, `unknown unit "MB"`}, {`64KiB`, "is less than 128KiB"}, {`65MiB`, "is more than 64MiB"}, {`big`, "not a size"}},
	"nats.embedded.sync_interval": {{`1`, "without a unit"}, {`never`, "or always"}, {`1ms`, "is less than 10ms"}, {`1h`, "is more than 10m"}, {`0s`, "write always"}, {`true`, "not a duration"}},
	"nats.embedded.max_buffered_msgs": {
		{`many`, "not a whole number"}, {`10`, "is less than 1000"}, {`100000001`, "is more than"}, {`2M`, "not a whole number"},
		{`99999999999999999999`, "not a whole number"}, {`"2000"`, "without quotes"}, {`0x7d0`, "decimal digits"}, {`02000`, "decimal digits"},
	},
	"nats.embedded.max_buffered_bytes": {{`1073741824`, "without a unit"}, {`1GB`, "unknown unit"}, {`1KiB`, "is less than 1MiB"}, {`2TiB`, "is more than 1TiB"}, {`1MiB`, "does not hold one message"}},

	"bus.root":          {{`7`, "put it in quotes"}, {`""`, "single subject token"}, {`a.b`, "single subject token"}, {`">"`, "single subject token"}, {`_INBOX`, "single subject token"}, {`$SYS`, "single subject token"}},
	"bus.stream":        {{`7`, "put it in quotes"}, {`""`, "stream name"}, {`A.B`, "stream name"}, {`A B`, "stream name"}},
	"bus.max_age":       {{`72x`, `"72x" is not a duration (use Go durations such as 72h)`}, {`72`, "write 72s for seconds"}, {`3d`, "no unit d"}, {`0s`, "is less than 1s"}, {`-1h`, "is less than 1s"}, {`100000h`, "is more than"}, {`10s`, "longer than bus.max_age"}, {`[72h]`, "a list instead of a duration"}},
	"bus.max_bytes":     {{`8`, "without a unit"}, {`8GB`, "unknown unit"}, {`1KiB`, "is less than 1MiB"}, {`1025TiB`, "is more than"}, {`99999999999TiB`, "larger than any disk"}, {`1.5GiB`, "whole number"}, {`-8GiB`, "is less than"}, {`1MiB`, "does not hold one message"}},
	"bus.replicas":      {{`one`, "not a whole number"}, {`0`, "is less than 1"}, {`6`, "is more than 5"}, {`1.5`, "not a whole number"}, {`3`, "single one"}},
	"bus.duplicates":    {{`30`, "without a unit"}, {`1ms`, "is less than 100ms"}, {`25h`, "is more than 24h"}, {`half a minute`, "not a duration"}},
	"bus.taps":          {{`svc.>`, "is a list, but holds text"}, {`{stream: A}`, "is a list"}, {`5`, "is a list"}, {``, "is a list, but holds nothing"}},
	"bus.tap_max_age":   {{`24`, "without a unit"}, {`1d`, "no unit d"}, {`1ms`, "is less than 1s"}, {`true`, "not a duration"}},
	"bus.tap_max_bytes": {{`2`, "without a unit"}, {`2gib`, "unknown unit"}, {`1B`, "is less than"}, {`1MiB`, "does not hold one message"}},

	"audit.path":      {{`7`, "put it in quotes"}, {`[a]`, "a list instead of text"}},
	"audit.cache":     {{`64`, "without a unit"}, {`64MB`, "unknown unit"}, {`1KiB`, "is less than 1MiB"}, {`65GiB`, "is more than 64GiB"}},
	"audit.batch_max": {{`x`, "not a whole number"}, {`0`, "is less than 1"}, {`1001`, "is more than 1000"}, {`1e3`, "not a whole number"}, {`-5`, "is less than 1"}},
	"audit.search":    {{`true`, "write on or off"}, {`yes`, "write on or off"}, {`1`, "write on or off"}, {``, "has no value"}},
	"audit.min_free":  {{`5%`, "not a size"}, {`1`, "without a unit"}, {`-1GiB`, "is less than 0B"}, {``, `write "" for empty`}, {`1Gi`, "unknown unit"}},

	"agents.heartbeat_ttl": {{`30`, "without a unit"}, {`500ms`, "is less than 1s"}, {`2h`, "is more than 1h"}, {`14s`, "less than three times agents.rollup"}, {`x`, "not a duration"}},
	"agents.rollup":        {{`5`, "without a unit"}, {`1ms`, "is less than 100ms"}, {`21m`, "is more than 20m"}, {`{}`, "instead of a duration"}},
	"agents.offline_after": {{`5`, "without a unit"}, {`1ms`, "is less than 1s"}, {`721h`, "is more than"}, {`5 m`, "not a duration"}},

	"assign.timeout":        {{`600000`, "without a unit"}, {`0s`, "is less than 1s"}, {`721h`, "is more than"}, {`10min`, "not a duration"}},
	"assign.max_retries":    {{`none`, "not a whole number"}, {`-1`, "is less than 0"}, {`21`, "is more than 20"}},
	"assign.backoff.base":   {{`1`, "without a unit"}, {`0s`, "is less than 1ms"}, {`25h`, "is more than 24h"}},
	"assign.backoff.factor": {{`two`, "not a number"}, {`0.5`, "is less than 1"}, {`101`, "is more than 100"}, {`.inf`, "not a number"}, {`.nan`, "not a number"}, {`"2"`, "text, not a number"}},
	"assign.backoff.max":    {{`5`, "without a unit"}, {`500ms`, "less than assign.backoff.base"}, {`721h`, "is more than"}},
	"assign.backoff.jitter": {{`20%`, "not a number"}, {`-0.1`, "is less than 0"}, {`1.1`, "is more than 1"}},

	"roles.kinds":              {}, // the entries follow on their own lines: see TestEveryEntryOfAListWrong
	"roles.probe_timeout":      {{`10`, "without a unit"}, {`1ms`, "is less than 100ms"}, {`45s`, "not less than roles.ack_timeout"}, {`soon`, "not a duration"}},
	"roles.ack_timeout":        {{`45`, "without a unit"}, {`500ms`, "is less than 1s"}, {`25h`, "is more than 24h"}},
	"roles.max_probe_failures": {{`x`, "not a whole number"}, {`0`, "is less than 1"}, {`101`, "is more than 100"}},
	"roles.backoff.base":       {{`1`, "without a unit"}, {`0s`, "is less than 1ms"}, {`25h`, "is more than"}},
	"roles.backoff.factor":     {{`two`, "not a number"}, {`0`, "is less than 1"}, {`101`, "is more than"}},
	"roles.backoff.max":        {{`30`, "without a unit"}, {`500ms`, "less than roles.backoff.base"}, {`721h`, "is more than"}},
	"roles.backoff.jitter":     {{`true`, "a boolean, not a number"}, {`-1`, "is less than 0"}, {`2`, "is more than 1"}},
	"roles.quarantine":         {{`2`, "without a unit"}, {`0s`, "is less than 1s"}, {`721h`, "is more than"}},

	"http.listen": {{`8223`, "put it in quotes"}, {`"8223"`, "not an address"}, {`127.0.0.1:99999`, "0 to 65535"}, {`localhost:4222`, "both listen on port 4222"}, {`:4222`, "both listen on port 4222"}},
	"log.level":   {{`loud`, "debug, info, warn, error"}, {`3`, "put it in quotes"}, {`""`, "use one of"}, {`INFO`, "use one of"}},
	"log.format":  {{`xml`, "auto, text, json"}, {`false`, "a boolean"}, {``, "has no value"}},
}

// lineOf finds a key of config.yaml by its indentation; the first line is 1.
func lineOf(t *testing.T, lines []string, key string) int {
	t.Helper()
	keyLine := regexp.MustCompile(`^( *)([a-z_]+):`)
	var path []string
	for i, line := range lines {
		m := keyLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		path = append(path[:min(len(path), len(m[1])/2)], m[2])
		if strings.Join(path, ".") == key {
			return i + 1
		}
	}
	t.Fatalf("config.yaml has no line for %s", key)
	return 0
}

func documentedLines(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(documented)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}

func TestEveryKeyWrongInTurnNamesLineAndKey(t *testing.T) {
	for _, k := range config.Keys() {
		rows, ok := wrong[k.Name]
		if !ok {
			t.Errorf("no wrong value for %s", k.Name)
		}
		for _, row := range rows {
			t.Run(k.Name+"="+row[0], func(t *testing.T) {
				lines := documentedLines(t)
				n := lineOf(t, lines, k.Name)
				name, _, _ := strings.Cut(lines[n-1], ":")
				lines[n-1] = strings.TrimRight(name+": "+row[0], " ")
				_, err := config.Load(write(t, strings.Join(lines, "\n")), nil, nil)
				if k.Name == "bus.max_age" && row[0] == "10s" { // the other key of the pair is named
					wantProblem(t, err, lineOf(t, lines, "bus.duplicates"), "bus.duplicates", row[1])
					return
				}
				wantProblem(t, err, n, k.Name, row[1])
			})
		}
	}
}

func TestEveryEntryOfAListWrongNamesLineAndKey(t *testing.T) {
	for _, c := range []struct {
		text, key string
		line      int
		contains  string
	}{
		{"bus:\n  taps:\n    - svc.>\n    - 5\n", "bus.taps[1]", 4, "holds a whole number"},
		{"bus:\n  taps: [svc.>, '']\n", "bus.taps[1]", 2, "is empty"},
		{"bus:\n  taps:\n    - {stream: A, subject: b}\n", "bus.taps[0]", 3, "holds keys of its own"},
		{"bus:\n  taps:\n    - subject: b\n", "bus.taps[0]", 3, "{stream: ORDERS}"},
		{"bus:\n  taps:\n    - [a]\n", "bus.taps[0]", 3, "holds a list"},
		{"bus:\n  taps:\n    - stream: 5\n", "bus.taps[0].stream", 3, "put it in quotes"},
		{"bus:\n  taps:\n    - stream: ''\n", "bus.taps[0].stream", 3, "is empty"},
		{"bus:\n  taps:\n    - stream: A.B\n", "bus.taps[0].stream", 3, "not a stream name"},
		{"bus:\n  taps:\n    - stream: BUS\n", "bus.taps[0].stream", 3, "own stream"},
		{"bus:\n  taps:\n    - stream: BUS_TAP\n", "bus.taps[0].stream", 3, "own stream"},
		{"bus:\n  taps:\n    - stream: A\n    - stream: A\n", "bus.taps[1].stream", 4, "tapped by bus.taps[0].stream already"},
		{"bus:\n  taps:\n    - bus.>\n", "bus.taps[0]", 3, "overlaps the root"},
		{"bus:\n  taps:\n    - bus\n", "bus.taps[0]", 3, "overlaps the root"},
		{"bus:\n  root: mybus\n  taps:\n    - mybus.x\n", "bus.taps[0]", 4, "overlaps the root"},
		{"bus:\n  taps:\n    - '>'\n", "bus.taps[0]", 3, "begins with a wildcard"},
		{"bus:\n  taps:\n    - '*.orders'\n", "bus.taps[0]", 3, "begins with a wildcard"},
		{"bus:\n  taps:\n    - $JS.API.>\n", "bus.taps[0]", 3, "$-subject"},
		{"bus:\n  taps:\n    - _INBOX.>\n", "bus.taps[0]", 3, "_INBOX_svc.>"},
		{"bus:\n  taps:\n    - _INBOX.a.b\n", "bus.taps[0]", 3, "overlaps _INBOX.>"},
		{"bus:\n  taps:\n    - _R_.>\n", "bus.taps[0]", 3, "routing"},
		{"bus:\n  taps:\n    - a..b\n", "bus.taps[0]", 3, "empty token"},
		{"bus:\n  taps:\n    - .a\n", "bus.taps[0]", 3, "empty token"},
		{"bus:\n  taps:\n    - a.\n", "bus.taps[0]", 3, "empty token"},
		{"bus:\n  taps:\n    - a.>.b\n", "bus.taps[0]", 3, "only be the last token"},
		{"bus:\n  taps:\n    - a.b*\n", "bus.taps[0]", 3, "token by itself"},
		{"bus:\n  taps:\n    - a.b>\n", "bus.taps[0]", 3, "token by itself"},
		{"bus:\n  taps:\n    - a b.>\n", "bus.taps[0]", 3, "space"},
		{"bus:\n  taps:\n    - a.>\n    - a.b\n", "bus.taps[1]", 4, `overlaps "a.>" of bus.taps[0]`},
		{"bus:\n  taps:\n    - a.*.c\n    - a.b.*\n", "bus.taps[1]", 4, "overlaps"},
		{"bus:\n  taps:\n    - a.b\n    - a.b\n", "bus.taps[1]", 4, "overlaps"},
		{"bus:\n  taps: [" + strings.Repeat("a,", 257) + "]\n", "bus.taps", 2, "at most 256"},

		{"roles:\n  kinds: cto\n", "roles.kinds", 2, "is a list, but holds text"},
		{"roles:\n  kinds:\n    - cto\n", "roles.kinds[0]", 3, "holds text"},
		{"roles:\n  kinds:\n    - name: 5\n", "roles.kinds[0].name", 3, "put it in quotes"},
		{"roles:\n  kinds:\n    - name: a.b\n", "roles.kinds[0].name", 3, "not a valid name"},
		{"roles:\n  kinds:\n    - scoped: true\n", "roles.kinds[0].name", 3, "has no name"},
		{"roles:\n  kinds:\n    - name: a\n      scoped: on\n", "roles.kinds[0].scoped", 4, "true or false"},
		{"roles:\n  kinds:\n    - name: a\n      probe: 'true'\n", "roles.kinds[0].probe", 4, "true or false"},
		{"roles:\n  kinds:\n    - name: a\n      charter_version: 3\n", "roles.kinds[0].charter_version", 4, "put it in quotes"},
		{"roles:\n  kinds:\n    - name: a\n      charter_version: " + strings.Repeat("x", 129) + "\n", "roles.kinds[0].charter_version", 4, "128"},
		{"roles:\n  kinds:\n    - name: a\n      scope: true\n", "roles.kinds[0].scope", 4, "did you mean scoped?"},
		{"roles:\n  kinds:\n    - name: a\n      zzzzzzzz: true\n", "roles.kinds[0].zzzzzzzz", 4, "name, scoped, charter_version and probe"},
		{"roles:\n  kinds:\n    - name: a\n    - name: b\n    - name: a\n", "roles.kinds[2].name", 5, "name of roles.kinds[0] already"},
	} {
		t.Run(c.key+" "+c.contains, func(t *testing.T) {
			_, err := config.Load(write(t, c.text), nil, nil)
			wantProblem(t, err, c.line, c.key, c.contains)
		})
	}
}

func TestUnknownAndRepeatedKeysAtEachLevel(t *testing.T) {
	for _, c := range []struct {
		text, key string
		line      int
		contains  string
	}{
		{"data: x\n", "data", 1, "unknown key"},
		{"# c\n\ndatadir: x\n", "datadir", 3, "did you mean data_dir?"},
		{"bus:\n  maxage: 1h\n", "bus.maxage", 2, "did you mean bus.max_age?"},
		{"agents:\n  sync_interval: 1s\n", "agents.sync_interval", 2, "did you mean nats.embedded.sync_interval?"},
		{"nats:\n  embedded:\n    lisen: x\n", "nats.embedded.lisen", 3, "did you mean nats.embedded.listen?"},
		{"nats:\n  tls:\n    insecure: true\n", "nats.tls.insecure", 3, "unknown key"},
		{"assign:\n  backoff:\n    qqqqqqqqqqqqqq: 1\n", "assign.backoff.qqqqqqqqqqqqqq", 3, "config.yaml lists every key"},
		{"bus.max_age: 1h\n", "bus.max_age", 1, "one level a line"},
		{"bus:\n  root: a\n  stream: B\n  root: c\n", "bus.root", 4, "is given twice, first in line 2"},
		{"bus: {}\nlog: {}\nbus: {}\n", "bus", 3, "is given twice, first in line 1"},
		{"roles:\n  kinds:\n    - name: a\n      name: b\n", "roles.kinds[0].name", 4, "is given twice"},
		{"bus: 5\n", "bus", 1, "is a section, but holds a whole number"},
		{"nats:\n  tls: [a]\n", "nats.tls", 2, "is a section, but holds a list"},
		{"<<: {bus: 1}\n", "<<", 1, "unknown key"},
		{"log:\n  level: &x info\n", "log.level", 2, "an anchor (&) is not supported"},
		{"log:\n  level: *x\n", "log.level", 2, "an alias (*) is not supported"},
		{"log:\n  level: !!str info\n", "log.level", 2, "a tag (!) is not supported"},
		{"log:\n  level: \"info\n", "log.level", 2, "is not valid YAML"},
		{"bus:\n  root: bus\n  taps: [a\n", "bus.taps", 3, "is not valid YAML"},
	} {
		t.Run(c.key+" "+c.contains, func(t *testing.T) {
			_, err := config.Load(write(t, c.text), nil, nil)
			wantProblem(t, err, c.line, c.key, c.contains)
		})
	}
	for text, want := range map[string]string{
		"- a\n":                     "config.yaml:1: holds a list instead of keys",
		"just text\n":               "config.yaml:1: holds text instead of keys",
		"bus: {}\n---\nlog: {}\n":   "config.yaml:3: a second document begins",
		"%YAML 1.2\n---\nbus: {}\n": "config.yaml:1: holds a directive (%) instead of keys",
	} {
		if _, err := config.Load(write(t, text), nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestAllProblemsAreReportedInOrder(t *testing.T) {
	_, err := config.Load(write(t, "bus:\n  max_age: 72x\n  replicas: 9\n  colour: red\nlog:\n  level: loud\n"),
		[]string{"SIGNALBOX_AUDIT_CACHE=1MB"}, map[string]string{"http.listen": "x"})
	var got []string
	for _, e := range config.Problems(fmt.Errorf("config: %w", err)) {
		got = append(got, fmt.Sprint(e.Line, " ", e.Key))
	}
	want := "0 http.listen,0 audit.cache,2 bus.max_age,3 bus.replicas,4 bus.colour,6 log.level"
	if strings.Join(got, ",") != want {
		t.Errorf("got  %s\nwant %s\n%v", strings.Join(got, ","), want, err)
	}
}
