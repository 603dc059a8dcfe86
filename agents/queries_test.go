package agents_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"signalbox/agents"
	"signalbox/step"
	"signalbox/wire"
)

// listed are the ids that list gives, and " more" if there are more.
func listed(b *bus, body string) string {
	b.t.Helper()
	page, refusal := b.ask("x", "list", body)
	if refusal != nil {
		b.t.Fatalf("list %s: %v", body, refusal)
	}
	var ids []string
	for _, a := range page["agents"].([]any) {
		ids = append(ids, a.(map[string]any)["agent_id"].(string))
	}
	if page["more"] == true {
		ids = append(ids, "more")
	}
	return strings.Join(ids, " ")
}

func TestListFindsAgentsByWhatTheyAre(t *testing.T) {
	b := newBus(t)
	for id, body := range map[string]string{
		"a": `{"cli":"codex","project_id":"p","topics":["t","t.u"],"capabilities":["go","x\"y\\z<&>"]}`,
		"b": `{"cli":"claude","project_id":"p","topics":["t.u"],"capabilities":["gopher"]}`,
		"c": `{"cli":"codex","project_id":"q"}`,
		"d": `{"heartbeat_ttl_ms":15000}`,
		"e": `{"project_id":"p"}`,
	} {
		b.do(id, "register", body)
	}
	b.do("e", "deregister", `{"generation":1}`)
	b.nowMS += 15_000
	b.tick()
	for body, want := range map[string]string{
		``: "a b c d e", `{"status":"online"}`: "a b c", `{"status":"stale"}`: "d", `{"status":"offline"}`: "e",
		`{"project_id":"p"}`: "a b e", `{"project_id":"p","status":"online","cli":"claude"}`: "b", `{"cli":"codex"}`: "a c",
		`{"topic":"t"}`: "a", `{"topic":"t.u"}`: "a b", `{"topic":"u"}`: "", `{"topic":"%"}`: "", `{"capability":"go"}`: "a",
		`{"capability":"x\"y\\z<&>"}`: "a", `{"capability":"y"}`: "", `{"cli":"' OR 1=1 --"}`: "",
		`{"limit":2}`: "a b more", `{"limit":5}`: "a b c d e", `{"limit":2,"after":"b"}`: "c d more", `{"limit":2,"after":"d"}`: "e",
		`{"after":"e"}`: "", `{"limit":1,"project_id":"p","after":"a"}`: "b more", `{"limit":1000}`: "a b c d e",
	} {
		if got := listed(b, body); got != want {
			t.Errorf("%s lists %q, want %q", body, got, want)
		}
	}
	for body, says := range map[string]string{`{"limit":0}`: "1000", `{"limit":1001}`: "1000", `{"limit":-1}`: "1000", `{"status":"away"}`: "stale",
		`{"state":"online"}`: "state"} {
		if _, refusal := b.ask("x", "list", body); refusal == nil || refusal.Code != wire.BodyInvalid || !strings.Contains(refusal.Message, says) {
			t.Errorf("%s: %v", body, refusal)
		}
	}
}

func TestAListStopsBeforeItsReplyIsTooLarge(t *testing.T) {
	b := newBus(t)
	big := strings.Repeat("x", 16_000)
	for i := range 80 {
		b.do(fmt.Sprintf("a%02d", i), "register", `{"metadata":{"big":"`+big+`"}}`)
	}
	seen, after, pages := 0, "", 0
	for more := true; more; pages++ {
		page, _ := b.ask("x", "list", `{"limit":1000,"after":"`+after+`"}`)
		raw, err := json.Marshal(page)
		if err != nil || len(raw) > 520<<10 {
			t.Fatalf("a page of %d bytes, %v", len(raw), err)
		}
		list := page["agents"].([]any)
		seen += len(list)
		after = list[len(list)-1].(map[string]any)["agent_id"].(string)
		more = page["more"] == true
	}
	if seen != 80 || pages != 3 {
		t.Errorf("%d agents on %d pages", seen, pages)
	}
}

func TestGetShowsAnAgentWithItsPendingDeliveries(t *testing.T) {
	b := newBus(t)
	b.m = agents.New(func(_ step.DB, agent string) (int64, error) {
		if agent == "broken" {
			return 0, errors.New("no inbox")
		}
		return int64(len(agent)), nil
	})
	b.do("bob", "register", ``)
	b.do("broken", "register", ``)
	for from, body := range map[string]string{"bob": `{}`, "x": `{"agent_id":"bob"}`} {
		if got, refusal := b.ask(from, "get", body); refusal != nil || got["agent_id"] != "bob" || got["pending"] != 3.0 {
			t.Errorf("get %s of %s: %v, %v", body, from, got, refusal)
		}
	}
	for from, body := range map[string]string{"x": `{}`, "bob": `{"agent_id":"x"}`} {
		if got, refusal := b.ask(from, "get", body); refusal == nil || refusal.Code != wire.AgentNotFound || !strings.Contains(refusal.Message, `"x"`) {
			t.Errorf("get %s of %s: %v, %v", body, from, got, refusal)
		}
	}
	if _, refusal := b.ask("bob", "get", `{"id":"bob"}`); refusal == nil || refusal.Code != wire.BodyInvalid {
		t.Errorf("an unknown field is %v", refusal)
	}
	if _, err := b.m.Queries()["get"](b.db, "broken", nil); err == nil || !strings.Contains(err.Error(), "no inbox") {
		t.Errorf("pending that cannot be counted is %v", err)
	}
}

func TestAHeartbeatIsAdmittedByTheTableAlone(t *testing.T) {
	b := with(t, "a", "gone")
	b.do("a", "register", `{}`)
	b.do("gone", "deregister", `{"generation":1}`)
	if _, err := b.m.Admit(b.db, "a", nil); code(err) != wire.AgentNotFound {
		t.Errorf("before the commit: %v", err)
	}
	b.flush()
	for _, c := range []struct {
		from, body string
		generation int64
		code       wire.Code
	}{
		{"a", "", 0, ""}, {"a", "\xff\x00", 0, ""}, {"a", "generation", 0, ""}, {"a", "[2]", 0, ""}, {"a", `"generation"`, 0, ""},
		{"a", `{}`, 0, ""}, {"a", `{"generation":2}`, 2, ""}, {"a", ` {"x":[],"generation" : 2} `, 2, ""}, {"a", `{"generation":2.0}`, 2, ""},
		{"a", `{"generation":20e-1}`, 2, ""}, {"a", `{"generation":0}`, 0, ""}, {"a", `{"generation":"1"}`, 0, ""}, {"a", `{"generation":null}`, 0, ""},
		{"a", `{"generation":[1]}`, 0, ""}, {"a", `{"x":{"generation":1}}`, 0, ""}, {"a", `{"Generation":1}`, 0, ""}, {"a", `{"generation":1`, 0, ""},
		{"a", `{"generation":1}`, 0, wire.StaleGeneration}, {"a", `{"generation":3}`, 0, wire.StaleGeneration},
		{"a", `{"generation":-2}`, 0, wire.StaleGeneration}, {"a", `{"generation":2.5}`, 0, wire.StaleGeneration},
		{"a", `{"generation":1e300}`, 0, wire.StaleGeneration}, {"a", `{"generation":18446744073709551618}`, 0, wire.StaleGeneration},
		{"gone", ``, 0, wire.AgentDeregistered}, {"gone", `{"generation":1}`, 0, wire.AgentDeregistered}, {"A", ``, 0, wire.AgentNotFound},
	} {
		generation, err := b.m.Admit(b.db, c.from, []byte(c.body))
		if code(err) != c.code || generation != c.generation {
			t.Errorf("%s %q: %d, %v, want %d, %q", c.from, c.body, generation, err, c.generation, c.code)
		}
	}
	var refusal *wire.Error
	if _, err := b.m.Admit(b.db, "a", []byte(`{"generation":1}`)); !errors.As(err, &refusal) || string(refusal.Current) != `{"generation":2}` {
		t.Errorf("the refusal says %v, %s", err, refusal.Current)
	}
	b.db.Close()
	if _, err := b.m.Admit(b.db, "a", nil); err == nil || code(err) != "" {
		t.Errorf("without a database it is %v", err)
	}
}

// code is the code of a refusal, "" for anything else.
func code(err error) wire.Code {
	var refusal *wire.Error
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return ""
}

func TestFactsOnTheTableAreThoseOfTheLastCommit(t *testing.T) {
	b := newBus(t)
	b.do("a", "register", `{"delivery":"live","project_id":"p","capabilities":["c"],"transport_locators":["z","nats"]}`)
	b.do("b", "register", `{"project_id":"p","capabilities":["c","d"]}`)
	b.do("c", "register", `{"project_id":"q","capabilities":["c"]}`)
	if _, known, err := b.m.CandidateOnTable(b.db, "a"); known || err != nil {
		t.Errorf("before the commit: %v, %v", known, err)
	}
	if known, _, _, err := b.m.OwedOnTable(b.db, "a"); known || err != nil {
		t.Errorf("before the commit: %v, %v", known, err)
	}
	b.flush()
	for _, id := range []string{"a", "b", "x"} {
		known, live, row, err := b.m.Owed(b.db, id)
		known2, live2, row2, err2 := b.m.OwedOnTable(b.db, id)
		if err != nil || err2 != nil || known != known2 || live != live2 || row != row2 || known != (id != "x") || live != (id == "a") {
			t.Errorf("%s is owed %v %v %d %v, on the table %v %v %d %v", id, known, live, row, err, known2, live2, row2, err2)
		}
		facts, known, err := b.m.Candidate(b.db, id)
		facts2, known2, err2 := b.m.CandidateOnTable(b.db, id)
		if err != nil || err2 != nil || known != known2 || fmt.Sprintf("%+v", facts) != fmt.Sprintf("%+v", facts2) {
			t.Errorf("%s is %+v %v, on the table %+v %v", id, facts, err, facts2, err2)
		}
	}
	facts, _, err := b.m.Candidate(b.db, "a")
	if want := fmt.Sprintf("{Online:true LeaseExpiresAtMS:%d Live:true ProjectID:p Capabilities:[c] TransportLocators:[z nats] UpdatedAtMS:%d}",
		start+ttl, start); err != nil || fmt.Sprintf("%+v", facts) != want {
		t.Errorf("the facts are %+v, %v, want %s", facts, err, want)
	}
	for _, c := range []struct{ project, capability, want string }{{"p", "c", "[a b]"}, {"p", "d", "[b]"}, {"q", "c", "[c]"}, {"q", "d", "[]"}, {"", "c", "[]"}} {
		if ids, err := b.m.CandidatesFor(b.db, c.project, c.capability); err != nil || fmt.Sprint(ids) != c.want {
			t.Errorf("for %s in %s are %v, %v", c.capability, c.project, ids, err)
		}
	}
	b.nowMS += ttl
	b.tick()
	b.do("a", "heartbeat", ``)
	if ids, err := b.m.CandidatesFor(b.db, "p", "c"); err != nil || fmt.Sprint(ids) != "[a]" {
		t.Errorf("while b is stale there are %v, %v", ids, err)
	}
	b.do("c", "deregister", `{"generation":1}`)
	b.flush()
	counts, err := b.m.Count(b.db)
	if err != nil || !maps.Equal(counts, map[string]int64{"online": 1, "stale": 1, "offline": 1}) {
		t.Errorf("they count %v, %v", counts, err)
	}
}

func TestTheMachineSaysWhatItTakes(t *testing.T) {
	m := agents.New(nil)
	if m.Name() != "agents" || fmt.Sprint(m.Tables(), m.Verbs()) != "[agents] [register heartbeat subscribe deregister seen]" || len(m.Queries()) != 2 {
		t.Errorf("%s, %v, %v, %v", m.Name(), m.Tables(), m.Verbs(), m.Queries())
	}
	for _, c := range []struct {
		machine, what string
		hears         bool
	}{{"bridge", "started", true}, {"bridge", "arrived", true}, {"bridge", "handled", true}, {"bridge", "log_gap", false}, {"roles", "started", false}} {
		if m.Hears(c.machine, c.what) != c.hears {
			t.Errorf("%s.%s is heard: %v", c.machine, c.what, !c.hears)
		}
	}
	b := newBus(t)
	for _, event := range []step.Event{step.Message{}, step.Command{Verb: "dance"}, step.Notice{What: "fell"}, step.Notice{What: step.Started}} {
		if _, err := b.apply("a", event); err == nil {
			t.Errorf("%+v is taken", event)
		}
	}
	b.settings = set(`[]`)
	if _, err := b.apply("a", step.Command{Verb: "register"}); err == nil || code(err) != "" {
		t.Errorf("settings that cannot be read are %v", err)
	}
}
