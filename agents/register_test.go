package agents_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"signalbox/agents"
	"signalbox/wire"
)

const fullRegistration = `{"agent_id":"a","cli":"codex","pid":42,"capabilities":["go","probe","go"],"topics":["build","a.b"],
	"project_id":"prj_1","session_id":"s1","host_id":"h1","transport_locators":["tmux:1","nats"],
	"metadata":{ "z": 1, "a": {"n": 1.50} },"delivery":"inbox","heartbeat_ttl_ms":20000}`

func TestARegistrationAnswersItsLeaseAndIsShownAsGiven(t *testing.T) {
	b := newBus(t)
	reply := object(t, b.do("a", "register", fullRegistration))
	lease, _ := reply["lease_id"].(string)
	delete(reply, "lease_id")
	want := map[string]any{"agent_id": "a", "generation": 1.0, "lease_expires_at_ms": float64(start + 20_000), "heartbeat_ttl_ms": 20_000.0,
		"server_time_ms": float64(start), "status": "online"}
	if fmt.Sprint(reply) != fmt.Sprint(want) || len(lease) != 36 || lease[14] != '7' {
		t.Errorf("the reply is %v with lease %q, want %v with a UUIDv7", reply, lease, want)
	}
	b.m.Forget() // what was not flushed is gone
	if _, refusal := b.ask("a", "get", `{}`); refusal == nil || refusal.Code != wire.AgentNotFound {
		t.Errorf("an agent that was never written is %v", refusal)
	}

	b.do("a", "register", fullRegistration)
	b.commit()
	got := b.get("a")
	for field, want := range map[string]any{"cli": "codex", "pid": 42.0, "capabilities": []any{"go", "probe"}, "topics": []any{"a.b", "build"},
		"project_id": "prj_1", "session_id": "s1", "host_id": "h1", "transport_locators": []any{"tmux:1", "nats"},
		"metadata": map[string]any{"z": 1.0, "a": map[string]any{"n": 1.5}}, "delivery": "inbox", "heartbeat_ttl_ms": 20_000.0,
		"generation": 1.0, "status": "online", "deregistered": false, "registered_id": float64(b.row), "registered_at_ms": float64(start),
		"last_seen_at_ms": float64(start), "lease_expires_at_ms": float64(start + 20_000), "status_since_ms": float64(start), "pending": 0.0} {
		if fmt.Sprint(got[field]) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", field, got[field], want)
		}
	}
	if len(got) != 22 {
		t.Errorf("get shows %d fields: %v", len(got), got)
	}
}

func TestARegistrationWithoutAnythingHasDefaults(t *testing.T) {
	for settings, want := range map[string]float64{
		`{}`: 30_000, `{"heartbeat_ttl_ms":60000}`: 60_000, `{"heartbeat_ttl_ms":0,"rollup_ms":-1}`: 30_000,
		`{"heartbeat_ttl_ms":1000,"rollup_ms":2000}`: 6_000, // never shorter than what it could ask for
		`{"heartbeat_ttl_ms":9000000}`:               3_600_000,
	} {
		b := newBus(t)
		b.settings = set(settings)
		b.do("a", "register", ``)
		b.commit()
		got := b.get("a")
		if got["heartbeat_ttl_ms"] != want || got["lease_expires_at_ms"] != float64(start)+want {
			t.Errorf("%s: the lease is %v, want %v", settings, got["heartbeat_ttl_ms"], want)
		}
		if _, has := got["pid"]; has || got["cli"] != "other" || got["delivery"] != "inbox" || fmt.Sprint(got["transport_locators"]) != "[nats]" ||
			fmt.Sprint(got["topics"], got["capabilities"], got["metadata"]) != "[] [] map[]" {
			t.Errorf("the defaults are %v", got)
		}
	}
}

func TestTheSameRegistrationOfASessionIsARenewalAndAnyOtherANewGeneration(t *testing.T) {
	with := func(old, new string) string {
		if !strings.Contains(fullRegistration, old) {
			t.Fatalf("the registration has no %s", old)
		}
		return strings.Replace(fullRegistration, old, new, 1)
	}
	for name, c := range map[string]struct {
		first, second string
		between       func(b *bus)
		renewed       bool
		moved         string
	}{
		"the same":              {second: fullRegistration, renewed: true},
		"lists in other order":  {second: with(`["go","probe","go"]`, `["probe","go"]`), renewed: true},
		"topics in other order": {second: with(`["build","a.b"]`, `["a.b","build","build"]`), renewed: true},
		"metadata in order":     {second: with(`{ "z": 1, "a": {"n": 1.50} }`, `{"a":{"n":1.50},"z":1}`), renewed: true},
		"without agent_id":      {second: with(`"agent_id":"a",`, ``), renewed: true},
		"after more topics": {second: fullRegistration, renewed: true,
			between: func(b *bus) { b.do("a", "subscribe", `{"topics":["more"]}`); b.moved() }},
		"when stale": {second: fullRegistration, renewed: true, moved: "a: stale>online renewed",
			between: func(b *bus) { b.nowMS += 20_000; b.tick(); b.moved() }},
		"when offline": {second: fullRegistration, renewed: true, moved: "a: offline>online renewed",
			between: func(b *bus) { b.nowMS += 20_000; b.tick(); b.nowMS += offlineAfter; b.tick(); b.moved() }},
		"at the end of its lease": {second: fullRegistration, renewed: true, moved: "a: online>stale lease_expired; a: stale>online renewed",
			between: func(b *bus) { b.nowMS += 20_000 }},
		"when deregistered": {second: fullRegistration, moved: "a: offline>online registered",
			between: func(b *bus) { b.do("a", "deregister", `{"generation":1}`); b.moved() }},
		"other cli":        {second: with(`codex`, `claude`), moved: "a: online>online registered"},
		"other pid":        {second: with(`42`, `43`), moved: "a: online>online registered"},
		"other capability": {second: with(`"probe"`, `"prob"`), moved: "a: online>online registered"},
		"other topics":     {second: with(`"a.b"`, `"a.c"`), moved: "a: online>online registered"},
		"other project":    {second: with(`prj_1`, `prj_2`), moved: "a: online>online registered"},
		"other session":    {second: with(`s1`, `s2`), moved: "a: online>online registered"},
		"other host":       {second: with(`h1`, `h2`), moved: "a: online>online registered"},
		"other locators":   {second: with(`["tmux:1","nats"]`, `["nats","tmux:1"]`), moved: "a: online>online registered"},
		"other metadata":   {second: with(`1.50`, `1.5`), moved: "a: online>online registered"},
		"other delivery":   {second: with(`inbox`, `live`), moved: "a: online>online registered"},
		"other ttl":        {second: with(`20000`, `20001`), moved: "a: online>online registered"},
		"no session": {first: with(`"s1"`, `""`), second: with(`"s1"`, `""`), moved: "a: online>online registered",
			between: func(*bus) {}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBus(t)
			if c.first == "" {
				c.first = fullRegistration
			}
			first := object(t, b.do("a", "register", c.first))
			b.moved()
			b.nowMS += 1000
			if c.between != nil {
				c.between(b)
			}
			b.commit()
			before := b.get("a")
			second := object(t, b.do("a", "register", c.second))
			if moved := b.moved(); moved != c.moved {
				t.Errorf("it moved %q, want %q", moved, c.moved)
			}
			b.commit()
			after := b.get("a")
			if c.renewed {
				if second["renewed"] != true || second["generation"] != 1.0 || second["lease_id"] != first["lease_id"] ||
					fmt.Sprint(after["topics"]) != fmt.Sprint(before["topics"]) || after["registered_id"] != before["registered_id"] {
					t.Errorf("the renewal answers %v, and left %v", second, after)
				}
			} else if _, renewed := second["renewed"]; renewed || second["generation"] != 2.0 || second["lease_id"] == first["lease_id"] ||
				after["registered_id"] != float64(b.row) {
				t.Errorf("the registration answers %v, and left %v", second, after)
			}
			if second["lease_expires_at_ms"] != float64(b.nowMS)+second["heartbeat_ttl_ms"].(float64) || second["status"] != "online" {
				t.Errorf("the lease is %v", second)
			}
		})
	}
}

func TestEveryBoundOfARegistrationIsItsLastValueThatIsTaken(t *testing.T) {
	list := func(n int, format string) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("%q", fmt.Sprintf(format, i)))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	text := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	for field, c := range map[string]struct{ good, bad []string }{
		"cli":                   {good: []string{`"codex"`, `"gemini"`, `"claude"`, `"other"`, `""`}, bad: []string{`"Codex"`, `"vim"`, `1`}},
		"pid":                   {good: []string{`0`, `9223372036854775807`, `null`}, bad: []string{`-1`, `1.5`, `"1"`, `9223372036854775808`}},
		"capabilities":          {good: []string{`[]`, `null`, list(64, "c%d"), `["role:cto:candidate"]`}, bad: []string{list(65, "c%d"), `"go"`}},
		"capabilities[0]":       {good: []string{"[" + text(128) + "]"}, bad: []string{"[" + text(129) + "]", `[""]`, `["a b"]`, `["é"]`, `["\u0000"]`}},
		"topics":                {good: []string{`[]`, list(64, "t%d"), `["1.2.3.4.5.6.7.8"]`}, bad: []string{list(65, "t%d"), `{}`}},
		"topics[1]":             {bad: []string{`["a","a..b"]`, `["a","*"]`, `["a",">"]`, `["a","1.2.3.4.5.6.7.8.9"]`, `["a",""]`, `["a"," b"]`}},
		"project_id":            {good: []string{`""`, text(128)}, bad: []string{text(129), `"a b"`, `5`}},
		"session_id":            {good: []string{text(128)}, bad: []string{text(129), `"a\nb"`}},
		"host_id":               {good: []string{text(128)}, bad: []string{text(129), `"ä"`}},
		"transport_locators":    {good: []string{`[]`, list(16, "l%d")}, bad: []string{list(17, "l%d"), `"nats"`}},
		"transport_locators[0]": {good: []string{"[" + text(256) + "]", `["/tmp/a b.sock"]`}, bad: []string{"[" + text(257) + "]", `[""]`, `["a\u0000b"]`}},
		"metadata": {good: []string{`null`, `{}`, `{"k":` + text(16<<10-8) + `}`, `{ "k" : ` + text(16<<10-8) + `   }`},
			bad: []string{`[]`, `"x"`, `1`, `{"k":` + text(16<<10-7) + `}`, "{\"k\":\"\xff\"}"}},
		"delivery":         {good: []string{`"inbox"`, `"live"`, `""`}, bad: []string{`"push"`, `true`}},
		"heartbeat_ttl_ms": {good: []string{`0`, `15000`, `3600000`}},
	} {
		name, _, _ := strings.Cut(field, "[")
		for _, value := range append(slices.Clone(c.good), c.bad...) {
			b := newBus(t)
			before := b.dump()
			_, refusal := b.send("a", "register", `{"`+name+`":`+value+`}`)
			switch bad := slices.Contains(c.bad, value); {
			case !bad && refusal != nil:
				t.Errorf("%s %.100s: %v", field, value, refusal)
			case bad && (refusal == nil || refusal.Code != wire.BodyInvalid || !strings.Contains(refusal.Message, field)):
				t.Errorf("%s %.100s: %v, want BODY_INVALID that names it", field, value, refusal)
			case bad && b.dump() != before:
				t.Errorf("%s %.100s: refused, and kept all the same", field, value)
			}
		}
	}
}

func TestALeaseIsAtLeastThreeRollUps(t *testing.T) {
	for _, c := range []struct {
		settings string
		ttl      int64
		ok       bool
	}{
		{`{}`, 14_999, false}, {`{}`, 15_000, true}, {`{}`, 3_600_000, true}, {`{}`, 3_600_001, false}, {`{}`, -1, false},
		{`{"rollup_ms":100}`, 999, false}, {`{"rollup_ms":100}`, 1000, true},
		{`{"rollup_ms":60000}`, 179_999, false}, {`{"rollup_ms":60000}`, 180_000, true},
		{`{"rollup_ms":9000000000000000000}`, 3_600_000, true}, // a setting without sense leaves one ttl, not none
	} {
		b := newBus(t)
		b.settings = set(c.settings)
		_, refusal := b.send("a", "register", fmt.Sprintf(`{"heartbeat_ttl_ms":%d}`, c.ttl))
		if c.ok != (refusal == nil) {
			t.Errorf("%s, %d ms: %v", c.settings, c.ttl, refusal)
		}
		if refusal != nil && (refusal.Code != wire.TTLInvalid || !strings.Contains(refusal.Hint, "3 roll-ups") || !strings.Contains(refusal.Hint, "left out it is")) {
			t.Errorf("%s, %d ms: %v, hint %q", c.settings, c.ttl, refusal, refusal.Hint)
		}
	}
}

func FuzzRegister(f *testing.F) {
	f.Add([]byte(fullRegistration))
	f.Add([]byte(`{"metadata":{"a":1e400,"a":[[]]},"session_id":"s","capabilities":["<&>\"\\"]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		b := newBus(t)
		before := b.dump()
		reply, refusal := b.send("a", "register", string(body))
		if refusal != nil {
			if after := b.dump(); after != before || refusal.Code.Status() >= 500 {
				t.Fatalf("%q is refused with %v and left %s", body, refusal, after)
			}
			return
		}
		written := b.dump()
		b.m.Forget()
		again := b.do("a", "register", string(body)).(agents.Registered)
		if first := reply.(agents.Registered); again.Renewed && b.dump() != written || again.Renewed == (again.Generation != first.Generation) {
			t.Fatalf("%q: registered again it is %+v and left %s, before %s", body, again, b.dump(), written)
		}
		b.flush()
		shown, err := b.m.Queries()["get"](b.db, "a", nil)
		if err != nil {
			t.Fatalf("%q is not shown: %v", body, err)
		}
		if _, err := json.Marshal(shown); err != nil {
			t.Fatalf("%q is shown as no JSON: %v", body, err)
		}
	})
}
