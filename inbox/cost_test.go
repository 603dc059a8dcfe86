package inbox_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"signalbox/inbox"
	"signalbox/step"
	"signalbox/wire"
)

func TestAMessageToAnAgentCostsNoSQLUntilTheCommit(t *testing.T) {
	r := newRig(t)
	r.register("a", "x")
	before := r.db.executed
	for range 40 {
		r.send(draft{to: "a", topic: "y"})
		r.send(draft{to: "role:p/lead"})
		r.send(draft{to: "topic:x"})
		r.send(draft{to: "nobody"})
	}
	equal(t, "statements", r.db.executed-before, 0)
	if err := r.m.Flush(r.db); err != nil {
		t.Fatal(err)
	}
	equal(t, "statements of the flush", r.db.executed-before, 160/16+1)
	equal(t, "deliveries", r.count(`SELECT count(*) FROM deliveries`), 160)
	before = r.db.executed
	if err := r.m.Flush(r.db); err != nil {
		t.Fatal(err)
	}
	equal(t, "statements of a flush of nothing", r.db.executed-before, 0)
	r.send(draft{to: "a"})
	r.m.Forget()
	r.flush()
	equal(t, "deliveries after one was forgotten", r.count(`SELECT count(*) FROM deliveries`), 160)
	equal(t, "and the totals", r.count(`SELECT deliveries FROM inbox_totals`), 160)
}

func TestAMessageToManyDoesNotGrowMemoryWithoutBound(t *testing.T) {
	r := newRig(t)
	for i := range 300 {
		r.agents[fmt.Sprintf("a%03d", i)] = &agent{topics: []string{"x"}}
	}
	for range 20 {
		r.send(draft{to: "topic:x"})
	}
	if n := r.count(`SELECT count(*) FROM deliveries`); n < 1000 {
		t.Errorf("only %d of 6000 deliveries are written", n)
	}
	r.flush()
	equal(t, "deliveries", r.count(`SELECT count(*) FROM deliveries`), 6000)
	equal(t, "the totals", r.count(`SELECT deliveries FROM inbox_totals`), 6000)
}

// What is asked all the time must be found through an index, in its order: a
// scan or a sort would be paid for every delivery that is open.
func TestStatementsFindDeliveriesThroughIndexes(t *testing.T) {
	r := newRig(t)
	r.register("a", "x")
	r.held["p/lead"] = "a"
	for _, topic := range []string{"", "x"} {
		for range 700 {
			r.send(draft{to: "role:p/lead", topic: topic, ttl: time.Minute})
		}
		for _, options := range []string{`{"max_messages":100}`, `{"max_messages":100,"include_topics":["x"]}`, `{"redeliver_after_ms":0,"include_topics":["x"]}`} {
			for range 7 {
				r.fetch("a", options)
			}
			r.flush()
			if _, refusal := r.poll("a", options); refusal != nil {
				t.Fatal(refusal)
			}
		}
	}
	r.fetch("a", `{"redeliver_after_ms":0,"auto_ack":true}`)
	r.do("a", "ack", `{"ids":[3,"m4","nobody"]}`)
	r.do("a", "reject", `{"id":"m40"}`)
	r.do("a", "reject", `{"id":"m40"}`)
	r.send(draft{to: "topic:y"})
	r.register("b", "y")
	r.nowMS += 60_000
	r.tick()
	r.do("a", "redrive", `{"message_id":"m40"}`)
	r.do("a", "redrive", `{"message_id":"m40"}`)
	r.apply(r.input("op", step.Notice{Machine: "roles", What: "closed", Key: "p/lead"}))
	r.query("pending", `{"agent":"role:p/lead"}`)
	if _, err := inbox.Pending(r.db, "a"); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for text := range r.db.stmts {
		if !strings.Contains(text, "deliveries") || strings.HasPrefix(text, "INSERT") || strings.HasPrefix(text, "SELECT count(*)") {
			continue
		}
		seen++
		plan := r.plan(text)
		if strings.Contains(plan, "SCAN deliveries") || strings.Contains(plan, "SCAN d\n") || strings.Contains(plan, "SCAN w") {
			t.Errorf("%s\n%s", text, plan)
		}
		// A listing merges two sorted halves, and an ack sorts the few deliveries
		// of one message.
		if few := strings.Contains(text, "UNION ALL") || strings.Contains(text, "message_id = ?") || strings.Contains(text, "json_each(?) AND outcome IS NULL ORDER BY recipient"); !few && strings.Contains(plan, "TEMP B-TREE") {
			t.Errorf("%s\n%s", text, plan)
		}
	}
	if seen < 20 {
		t.Errorf("only %d statements were looked at", seen)
	}
}

// plan is how SQLite runs a statement.
func (r *rig) plan(text string) string {
	r.Helper()
	args := []any{}
	for {
		rows, err := r.db.db.Query("EXPLAIN QUERY PLAN "+text, args...)
		if err != nil && len(args) < 20 {
			args = append(args, nil)
			continue
		}
		if err != nil {
			r.Fatal(err)
		}
		defer rows.Close()
		plan := ""
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				r.Fatal(err)
			}
			plan += detail + "\n"
		}
		if err := rows.Err(); err != nil {
			r.Fatal(err)
		}
		return plan
	}
}

func TestTheMachineHearsOnlyWhatItActsOn(t *testing.T) {
	m := inbox.New(inbox.Facts{})
	var heard []string
	for _, machine := range []string{"agents", "roles", "bridge", "assign"} {
		for _, what := range []string{"online", "subscribed", "stale", "offline", "active", "vacated", "closed", step.Started, step.Arrived, step.Handled} {
			if m.Hears(machine, what) {
				heard = append(heard, machine+"."+what)
			}
		}
	}
	equal(t, "heard", heard, []string{"agents.online", "agents.subscribed", "roles.active", "roles.closed"})
	equal(t, "name", m.Name(), "inbox")
	equal(t, "verbs", m.Verbs(), []string{"fetch", "ack", "reject", "redrive"})
	for verb := range m.Polls() {
		equal(t, "a poll is a verb", slices.Contains(m.Verbs(), verb), true)
	}
	r := newRig(t)
	for _, table := range m.Tables() {
		equal(t, "the table "+table, r.count(`SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?`, table), 1)
	}
	for _, event := range []step.Event{step.Command{Verb: "give"}, step.Notice{Machine: "bridge", What: step.Handled}} {
		if _, err := r.m.Apply(r.db, r.input("a", event)); err == nil {
			t.Errorf("%+v is no fault", event)
		}
	}
}

// What goes wrong in the database undoes the step and is tried again; a refusal
// would be the last word.
func TestAFaultOfTheDatabaseIsNoRefusal(t *testing.T) {
	for _, event := range []step.Event{
		step.Command{Verb: "fetch"}, step.Command{Verb: "ack", Body: []byte(`{"ids":[1]}`)}, step.Command{Verb: "ack", Body: []byte(`{"ids":["m1"]}`)},
		step.Command{Verb: "reject", Body: []byte(`{"id":1}`)}, step.Command{Verb: "reject", Body: []byte(`{"id":"m1"}`)},
		step.Command{Verb: "redrive", Body: []byte(`{"id":1}`)}, step.Command{Verb: "redrive", Body: []byte(`{"message_id":"m1"}`)},
		step.Deadline{Key: "1/a"}, step.Deadline{Key: "move/topic:x/a/0"},
		step.Notice{Machine: "agents", What: "online", Key: "a", Data: change{topics: []string{"x"}}}, step.Notice{Machine: "roles", What: "closed", Key: "p/lead"},
	} {
		for _, unwritten := range []bool{true, false} {
			r := newRig(t)
			r.register("a")
			if r.send(draft{to: "b"}); !unwritten {
				r.flush()
			}
			in := r.input("a", event)
			r.db.db.Close()
			_, err := r.m.Apply(r.db.db, in)
			var refusal *wire.Error
			if err == nil || errors.As(err, &refusal) {
				t.Errorf("%+v: %v", event, err)
			}
			_, due := r.m.Due(r.db.db, 1, 1)
			_, poll := r.m.Polls()["fetch"](r.db.db, "a", nil)
			_, dead := r.m.Queries()["dead"](r.db.db, "a", nil)
			_, pending := r.m.Queries()["pending"](r.db.db, "a", nil)
			_, list := inbox.Deliveries(r.db.db, 1)
			_, totals := inbox.ReadTotals(r.db.db)
			if due == nil || poll == nil || dead == nil || pending == nil || list == nil || totals == nil {
				t.Errorf("%v, %v, %v, %v, %v, %v", due, poll, dead, pending, list, totals)
			}
		}
	}
}
