package agents_test

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"

	"signalbox/agents"
	"signalbox/step"
	"signalbox/wire"
)

// inputs are the two notices about a message of an agent.
func inputs(b *bus, from string) (arrived, handled step.Input) {
	return b.input(from, step.Notice{Machine: step.Bridge, What: step.Arrived, Key: from}),
		b.input(from, step.Notice{Machine: step.Bridge, What: step.Handled, Key: from})
}

func TestAMessageCostsNoSQLAndNoMemory(t *testing.T) {
	b := with(t, "a")
	b.flush()
	for _, from := range []string{"a", "nobody"} {
		arrived, handled := inputs(b, from)
		message := func() {
			b.nowMS++
			arrived.NowMS, handled.NowMS = b.nowMS, b.nowMS
			for _, in := range []step.Input{arrived, handled} {
				if _, err := b.m.Apply(b.db, in); err != nil {
					t.Fatal(err)
				}
			}
		}
		message() // the first since the flush is noted
		before := b.db.calls
		if n := testing.AllocsPerRun(1000, message); n != 0 {
			t.Errorf("a message of %s allocates %v times", from, n)
		}
		if n := b.db.calls - before; n != 0 {
			t.Errorf("2,000 notices about %s cost %d calls of the database", from, n)
		}
	}
	for _, fact := range []func() error{
		func() error { _, _, _, err := b.m.Owed(b.db, "a"); return err },
		func() error { _, _, err := b.m.Subscribers(b.db, "t"); return err },
	} {
		before := b.db.calls
		if n := testing.AllocsPerRun(100, func() {
			if err := fact(); err != nil {
				t.Fatal(err)
			}
		}); n != 0 || b.db.calls != before {
			t.Errorf("a fact allocates %v times and costs %d calls of the database", n, b.db.calls-before)
		}
	}
}

func TestAFlushWritesEachAgentThatHasChangedOnceAndInOrder(t *testing.T) {
	b := with(t, "c", "a", "b", "quiet")
	b.flush()
	recorded := &recorder{database: b.db}
	for range 100 {
		b.nowMS++
		b.say("b")
		b.say("c")
		b.say("a")
	}
	b.do("b", "subscribe", `{"topics":["t"]}`)
	if err := b.m.Flush(recorded); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(recorded.wrote, " "); got != "UPDATE:a INSERT:b UPDATE:c" {
		t.Errorf("it wrote %s", got)
	}
	recorded.wrote = nil
	if err := b.m.Flush(recorded); err != nil || recorded.wrote != nil {
		t.Errorf("a second flush wrote %v, %v", recorded.wrote, err)
	}
	b.do("quiet", "deregister", `{"generation":1}`)
	b.flush()
	b.nowMS++
	b.say("quiet") // which is nothing any more
	if err := b.m.Flush(recorded); err != nil || recorded.wrote != nil {
		t.Errorf("a message of a deregistered agent wrote %v, %v", recorded.wrote, err)
	}
	fresh := agents.New(nil)
	if err := fresh.Flush(recorded); err != nil || recorded.wrote != nil {
		t.Errorf("a machine that knows nothing wrote %v, %v", recorded.wrote, err)
	}
}

// recorder notes what is written about whom.
type recorder struct {
	*database
	wrote []string
}

func (r *recorder) Exec(query string, args ...any) (sql.Result, error) {
	id := args[0]
	if strings.HasPrefix(query, "UPDATE") {
		id = args[len(args)-1]
	}
	verb, _, _ := strings.Cut(query, " ")
	r.wrote = append(r.wrote, fmt.Sprintf("%s:%v", verb, id))
	return r.database.Exec(query, args...)
}

func TestAFlushThatFailsIsDoneAgainInFull(t *testing.T) {
	b := with(t, "a", "b")
	b.flush()
	b.nowMS++
	b.say("a")
	b.say("b")
	if _, err := b.db.Exec(`CREATE TRIGGER full BEFORE UPDATE ON agents WHEN old.agent_id = 'b' BEGIN SELECT raise(ABORT, 'full'); END`); err != nil {
		t.Fatal(err)
	}
	if err := b.m.Flush(b.db); err == nil {
		t.Fatal("the flush did not fail")
	}
	if _, err := b.db.Exec(`DROP TRIGGER full`); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		if seen := b.field(id, "last_seen_at_ms"); seen != fmt.Sprint(start+1) {
			t.Errorf("%s was seen at %s", id, seen)
		}
	}
}

func TestDeadlinesAreReadByTheirIndexInOrderAndNoMoreThanAskedFor(t *testing.T) {
	b := newBus(t)
	var want []step.Deadline
	for i := range 50 {
		id := fmt.Sprintf("agent-%02d", (i*7)%50)
		at := int64(20_000 + (i*13)%5)
		b.do(id, "register", fmt.Sprintf(`{"heartbeat_ttl_ms":%d}`, at))
		want = append(want, step.Deadline{AtMS: start + at, Key: id})
	}
	slices.SortFunc(want, func(x, y step.Deadline) int {
		if x.AtMS != y.AtMS {
			return int(x.AtMS - y.AtMS)
		}
		return strings.Compare(x.Key, y.Key)
	})
	for _, limit := range []int{1, 13, 50, 500} {
		if due, err := b.m.Due(b.db, 1<<62, limit); err != nil || !slices.Equal(due, want[:min(limit, 50)]) {
			t.Errorf("the first %d are %v, %v", limit, due, err)
		}
	}
	if due, err := b.m.Due(b.db, start+20_000, 500); err != nil || len(due) != 10 {
		t.Errorf("%d are due, %v", len(due), err)
	}
	if due, err := b.m.Due(b.db, start+19_999, 500); err != nil || len(due) != 0 {
		t.Errorf("%v are due too early, %v", due, err)
	}
	var id, parent, unused int
	var plan string
	if err := b.db.QueryRow(`EXPLAIN QUERY PLAN SELECT agent_id, deadline_at_ms FROM agents WHERE deadline_at_ms <= ?
		ORDER BY deadline_at_ms, agent_id LIMIT ?`, 1, 1).Scan(&id, &parent, &unused, &plan); err != nil ||
		!strings.Contains(plan, "COVERING INDEX agents_deadline") {
		t.Errorf("the plan is %q, %v", plan, err)
	}
}

// What was handed out is not changed by what comes later.
func TestASliceOfSubscribersStaysAsItIs(t *testing.T) {
	b := newBus(t)
	for i := range 9 {
		b.do(fmt.Sprintf("a%d", i), "register", `{"topics":["t"]}`)
	}
	held, _, err := b.m.Subscribers(b.db, "t")
	if err != nil {
		t.Fatal(err)
	}
	was := slices.Clone(held)
	b.do("a33", "register", `{"topics":["t"]}`)
	b.do("a3", "deregister", `{"generation":1}`)
	b.do("b", "register", `{"topics":["t"]}`)
	b.do("a1", "subscribe", `{"topics":[],"replace":true}`)
	b.do("a8", "register", `{"topics":["t"],"delivery":"live"}`)
	if !slices.Equal(held, was) {
		t.Errorf("it was %v and is %v", was, held)
	}
	inbox, live, err := b.m.Subscribers(b.db, "t")
	if got := strings.Join(inbox, " "); err != nil || live != 1 || got != "a0 a2 a33 a4 a5 a6 a7 b" {
		t.Errorf("subscribers are %s and %d live, %v", got, live, err)
	}
	if inbox, live, err := b.m.Subscribers(b.db, "T"); err != nil || len(inbox) != 0 || live != 0 {
		t.Errorf("a topic in other letters is heard by %v and %d", inbox, live)
	}
}

// J12, for agents.
func TestADamagedRowHurtsNobodyElseAndARegistrationRepairsIt(t *testing.T) {
	for column, value := range map[string]string{"topics": "no list", "capabilities": "null", "transport_locators": `{"a":1}`, "metadata": "{",
		"status": "asleep", "delivery": "pigeon"} {
		b := with(t, "a", "b")
		for _, id := range []string{"a", "b"} {
			b.do(id, "subscribe", `{"topics":["t"]}`)
		}
		b.commit()
		if _, err := b.db.Exec(`UPDATE agents SET `+column+` = ? WHERE agent_id = 'a'`, value); err != nil {
			t.Fatal(err)
		}
		b.nowMS += ttl
		b.say("a") // which is no sign of life, and no fault at each message either
		b.say("b")
		b.expect("b: online>stale lease_expired; b: stale>online message")
		if inbox, _, err := b.m.Subscribers(b.db, "t"); err != nil || !slices.Equal(inbox, []string{"b"}) {
			t.Errorf("%s: subscribers are %v, %v", column, inbox, err)
		}
		if facts, known, err := b.m.Candidate(b.db, "a"); err != nil || !known || facts.Online {
			t.Errorf("%s: the facts are %+v, %v", column, facts, err)
		}
		b.must(wire.Bridge, step.Notice{Machine: step.Bridge, What: step.Started, Data: step.Start{LastMS: start}})
		b.do(wire.Bridge, "seen", `{"agents":[{"id":"a","ago_ms":0},{"id":"b","ago_ms":0}]}`)
		for _, event := range []step.Event{step.Deadline{Key: "a"}, step.Command{Verb: "heartbeat"}, step.Command{Verb: "subscribe", Body: []byte(`{"topics":["t"]}`)},
			step.Command{Verb: "deregister", Body: []byte(`{"generation":1}`)}} {
			if _, err := b.apply("a", event); err == nil || !strings.Contains(err.Error(), `"a" is damaged`) {
				t.Errorf("%s: %+v: %v", column, event, err)
			}
		}
		b.commit()
		if _, err := b.m.Queries()["get"](b.db, "a", nil); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%s: get says %v", column, err)
		}
		page, refusal := b.ask("b", "list", `{}`)
		list := page["agents"].([]any)
		if refusal != nil || len(list) != 2 || !strings.Contains(fmt.Sprint(list[0]), "damaged:") || list[1].(map[string]any)["agent_id"] != "b" {
			t.Errorf("%s: list says %v, %v", column, page, refusal)
		}
		if _, refusal := b.ask("b", "list", `{"topic":"t","capability":"c"}`); refusal != nil {
			t.Errorf("%s: a narrow list says %v", column, refusal)
		}
		b.moved()
		if reply := object(t, b.do("a", "register", `{"session_id":"s"}`)); reply["generation"] != 2.0 || reply["renewed"] != nil {
			t.Errorf("%s: it registers as %v", column, reply)
		}
		b.do("a", "heartbeat", `{"generation":2}`)
		b.commit()
		if status := b.field("a", "status"); status != "online" {
			t.Errorf("%s: repaired it is %s", column, status)
		}
	}
}
