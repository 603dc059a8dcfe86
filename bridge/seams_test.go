package bridge_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/wire"
)

// db opens the register for a look at its tables.
func (r *rig) db(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(r.dir, "signalbox.db")+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// one reads one value.
func one[T any](t *testing.T, db *sql.DB, query string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRow(query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

func withGreeting(c *bridge.Config) {
	c.Settings = map[string]json.RawMessage{"echo": json.RawMessage(`{"greeting":"hello"}`)}
}

func TestACommandChangesStateAndIsAnnouncedWithItsCause(t *testing.T) {
	r := start(t, plan{})
	sub, err := r.nc.SubscribeSync("bus.evt.counter.>")
	if err != nil {
		t.Fatal(err)
	}
	if got := r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 3, Tell: "friend"}), nil)["value"]; got != 3.0 {
		t.Fatalf("the reply says %v, want 3", got)
	}
	if got := r.request(t, "bus.api.me.counter.get", []byte(`{"key":"k"}`), nil)["value"]; got != 3.0 {
		t.Errorf("the query says %v, want 3", got)
	}
	event, err := sub.NextMsg(within)
	if err != nil {
		t.Fatal(err)
	}
	r.settled(t)
	cmd := r.rows(t, audit.Filter{Subject: "bus.cmd.me.>"})[0]
	if want := "bus.evt.counter.k.3"; event.Subject != want {
		t.Errorf("the event came on %s, want %s", event.Subject, want)
	}
	for name, want := range map[string]string{"ce-specversion": "1.0", "ce-type": "signalbox.counter.3.v1", "ce-subject": "k",
		"ce-source": "/signalbox/signalbox", "content-type": "application/json", "Bus-Cause": fmt.Sprintf("1:%d", cmd.Seq)} {
		if got := event.Header.Get(name); got != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	var e struct {
		Value         int64
		Event, Reason string
		From          string `json:"from_state"`
		Cause         struct{ ID int64 }
	}
	if err := json.Unmarshal(event.Data, &e); err != nil {
		t.Fatal(err)
	}
	if e.Value != 3 || e.Event != "3" || e.Reason != "added" || e.From != "0" || e.Cause.ID != cmd.ID {
		t.Errorf("the event says %+v, want value 3 from 0, caused by row %d", e, cmd.ID)
	}
	transitions, err := r.reader.TransitionsBy(t.Context(), cmd.ID)
	if err != nil || len(transitions) != 1 || transitions[0].To != "3" || transitions[0].Key != "k" {
		t.Errorf("transitions caused by the command: %+v, %v", transitions, err)
	}
	told := r.rows(t, audit.Filter{To: "agent:friend"})
	if len(told) != 1 || told[0].From != wire.Bridge || string(told[0].Body) != `{"value":3}` || told[0].Type != wire.TypeSystem {
		t.Errorf("the message of the machine: %+v", told)
	}
	if n := len(r.rows(t, audit.Filter{Subject: "bus.evt.counter.>"})); n != 1 {
		t.Errorf("%d events are registered, want 1", n)
	}
}

func TestAFailingMachineIsUndoneLoudAndHarmsNothingElse(t *testing.T) {
	for _, fail := range []string{"panic", "error"} {
		t.Run(fail, func(t *testing.T) {
			r := start(t, plan{})
			r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1}), nil)
			reply := r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 10, Fail: fail, Tell: "friend"}), nil)
			if code(reply) != "INTERNAL" {
				t.Errorf("the reply is %v, want INTERNAL", reply)
			}
			if err := r.nc.Publish("bus.cmd.me.counter.add", body(add{Key: "k", N: 10, Fail: fail})); err != nil {
				t.Fatal(err)
			}
			if got := r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1}), nil)["value"]; got != 2.0 {
				t.Errorf("the value is %v, want 2: failed steps leave nothing", got)
			}
			r.settled(t)
			if n := len(r.rows(t, audit.Filter{Subject: "bus.cmd.me.>"})); n != 4 {
				t.Errorf("%d commands are registered, want 4", n)
			}
			if n := len(r.rows(t, audit.Filter{To: "agent:friend"})); n != 0 {
				t.Errorf("%d messages of an undone step were sent", n)
			}
			if n := len(r.rows(t, audit.Filter{Subject: "bus.evt.notice.me.refused"})); n != 1 {
				t.Errorf("%d notices of the refused plain command, want 1", n)
			}
			if got := one[string](t, r.db(t), `SELECT reason FROM dead_letters`); got != "refused:INTERNAL" {
				t.Errorf("the dead letter's reason is %q", got)
			}
		})
	}
}

func TestARefusalChangesNoStateButItsMessagesAreSent(t *testing.T) {
	r := start(t, plan{})
	reply := r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 10, Fail: "refuse", Tell: "friend"}), nil)
	if code(reply) != "CONFLICT" {
		t.Errorf("the reply is %v, want CONFLICT", reply)
	}
	r.settled(t)
	if n := one[int](t, r.db(t), `SELECT count(*) FROM counter`); n != 0 {
		t.Errorf("%d counters exist after a refusal, want 0", n)
	}
	if n := len(r.rows(t, audit.Filter{To: "agent:friend"})); n != 1 {
		t.Errorf("%d messages followed the refusal, want 1", n)
	}
}

func TestADeadlineIsOverOnceAndAnotherMachineHearsOfIt(t *testing.T) {
	r := start(t, plan{})
	r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 5, ExpireMS: 50}), nil)
	db := r.db(t)
	eventually(t, "the counter expires", func() bool { return one[int](t, db, `SELECT count(*) FROM echo WHERE heard = 1 AND value = 0`) == 1 })
	r.settled(t)
	ticks := r.rows(t, audit.Filter{Subject: "bus.cmd.signalbox.clock.tick"})
	var reason string
	var cause int64
	if err := db.QueryRow(`SELECT reason, cause FROM transitions ORDER BY id DESC LIMIT 1`).Scan(&reason, &cause); err != nil {
		t.Fatal(err)
	}
	if reason != "expired" || len(ticks) == 0 || cause != ticks[len(ticks)-1].ID {
		t.Errorf("the last transition is %q caused by %d, want expired by one of %d ticks", reason, cause, len(ticks))
	}
	if n := len(ticks); n > 3 {
		t.Errorf("%d ticks for one deadline", n)
	}
}

func TestAThousandDeadlinesAreHandledInBoundedSteps(t *testing.T) {
	r := start(t, plan{})
	for i := range 1200 {
		if err := r.nc.Publish("bus.cmd.me.counter.add", body(add{Key: fmt.Sprintf("k%04d", i), N: 1, ExpireMS: 300})); err != nil {
			t.Fatal(err)
		}
	}
	db := r.db(t)
	eventually(t, "all counters expire", func() bool { return one[int](t, db, `SELECT count(*) FROM echo WHERE heard = 1`) == 1200 })
	r.settled(t)
	if most := one[int](t, db, `SELECT max(n) FROM (SELECT count(*) n FROM transitions WHERE reason = 'expired' GROUP BY cause)`); most > 500 {
		t.Errorf("one tick handled %d deadlines, at most 500 are allowed", most)
	}
	if n := one[int](t, db, `SELECT count(*) FROM transitions WHERE reason = 'expired'`); n != 1200 {
		t.Errorf("%d expiries, want 1200", n)
	}
}

func TestADeadlineThatAlwaysFailsKeepsNoOtherFromBeingHandled(t *testing.T) {
	r := start(t, plan{})
	r.request(t, "bus.api.me.counter.add", body(add{Key: "stuck", N: 1, ExpireMS: 20}), nil)
	r.request(t, "bus.api.me.counter.add", body(add{Key: "well", N: 1, ExpireMS: 20}), nil)
	db := r.db(t)
	eventually(t, "the other expires", func() bool { return one[int](t, db, `SELECT count(*) FROM echo WHERE key = 'well' AND heard = 1`) == 1 })
	r.settled(t)
	if n := len(r.rows(t, audit.Filter{Subject: "bus.cmd.signalbox.clock.tick"})); n > 5 {
		t.Errorf("%d ticks: a deadline that fails must not spin", n)
	}
}

func TestAnOutdatedRuleSetIsSnapshotBeforeTheNextRow(t *testing.T) {
	r := start(t, plan{})
	r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 7}), nil)
	r.settled(t)
	last := r.reg.LastID()
	r = r.restart(t, func() {
		db, err := sql.Open("sqlite", filepath.Join(r.dir, "signalbox.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(`UPDATE bridge_state SET rules_version = 'older'`); err != nil {
			t.Fatal(err)
		}
	})
	db := r.db(t)
	var next int64
	var row string
	if err := db.QueryRow(`SELECT next_id, row FROM snapshots JOIN snapshot_rows ON snapshot = id
		WHERE rules_version = ? AND table_name = 'counter'`, bridge.RulesVersion).Scan(&next, &row); err != nil {
		t.Fatal(err)
	}
	if next != last+1 {
		t.Errorf("the snapshot is before row %d, want %d", next, last+1)
	}
	if want := `{"key":"k","value":7,"deadline_ms":null,"raw":{"hex":"00FF"}}`; row != want {
		t.Errorf("the snapshot has %s, want %s", row, want)
	}
}

func TestSettingsReachRulesOnlyThroughTheLog(t *testing.T) {
	r := start(t, plan{config: withGreeting})
	r.settled(t)
	if n := one[int](t, r.db(t), `SELECT starts FROM echo WHERE key = 'hello'`); n != 1 {
		t.Errorf("the machine heard of %d starts, want 1", n)
	}
	r = r.restart(t, nil)
	r.settled(t)
	started := r.rows(t, audit.Filter{Subject: "bus.cmd.signalbox.bridge.started"})
	if len(started) != 2 || !strings.Contains(string(started[1].Body), `"greeting":"hello"`) {
		t.Errorf("bridge.started rows: %d", len(started))
	}
	if n := one[int](t, r.db(t), `SELECT starts FROM echo WHERE key = 'hello'`); n != 2 {
		t.Errorf("the machine heard of %d starts, want 2", n)
	}
}

func TestOnlyTheBridgeItselfMayTick(t *testing.T) {
	r := start(t, plan{})
	for _, subject := range []string{"bus.cmd.me.clock.tick", "bus.cmd.me.bridge.started"} {
		if err := r.nc.PublishMsg(&nats.Msg{Subject: subject, Data: []byte(`{}`)}); err != nil {
			t.Fatal(err)
		}
	}
	db := r.db(t)
	eventually(t, "both are refused", func() bool {
		return one[int](t, db, `SELECT count(*) FROM refusals WHERE code = 'IDENTITY_MISMATCH'`) == 2
	})
}

func TestALargeEventValueIsReplacedByItsSize(t *testing.T) {
	r := start(t, plan{})
	sub, err := r.nc.SubscribeSync("bus.evt.counter.>")
	if err != nil {
		t.Fatal(err)
	}
	r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1, Big: 40000}), nil)
	m, err := sub.NextMsg(within)
	if err != nil {
		t.Fatal(err)
	}
	var e struct {
		Big struct {
			Omitted bool
			Bytes   int
			ID      string
		}
	}
	if err := json.Unmarshal(m.Data, &e); err != nil {
		t.Fatal(err)
	}
	if !e.Big.Omitted || e.Big.Bytes < 40000 || e.Big.ID != m.Header.Get("ce-id") {
		t.Errorf("the large value became %+v", e.Big)
	}
}

// A log is read through one consumer for as long as nothing is wrong with it,
// however many pull requests that takes.
func TestManyMessagesAreReadThroughOneConsumer(t *testing.T) {
	r := start(t, plan{})
	js, err := bridge.JetStream(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "BUS")
	if err != nil {
		t.Fatal(err)
	}
	consumers := func() (names []string) {
		for name := range stream.ConsumerNames(t.Context()).Name() {
			names = append(names, name)
		}
		return names
	}
	before := consumers()
	const n = 50_000
	for range n {
		if err := r.nc.Publish("bus.msg.a.agent.b", make([]byte, 300)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all are registered", func() bool {
		id, err := r.reader.LastID(t.Context())
		return err == nil && id > n // notices to the sender are among them
	})
	if after := consumers(); len(before) != 1 || len(after) != 1 || after[0] != before[0] {
		t.Errorf("the log was read through %v, then %v", before, after)
	}
}

func TestAMachineThatCannotSayWhatIsDueStopsNothing(t *testing.T) {
	r := start(t, plan{})
	r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1, ExpireMS: 50}), nil)
	for n := range int64(2) { // 1: an error, 2: a panic
		if got := r.request(t, "bus.api.me.counter.add", body(add{Key: "undue", N: 1}), nil)["value"]; got != float64(n+1) {
			t.Fatalf("the counter is %v, want %d", got, n+1)
		}
		if err := r.nc.Publish("bus.cmd.signalbox.clock.tick", []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
		r.settled(t)
	}
	r.request(t, "bus.api.me.counter.add", body(add{Key: "undue", N: 1}), nil) // 3: it can again
	db := r.db(t)
	eventually(t, "the deadline is handled", func() bool { return one[int](t, db, `SELECT count(*) FROM echo WHERE key = 'k' AND heard = 1`) == 1 })
}

// Run joins every goroutine that it started, whether it stops in good order or
// at once.
func TestAStoppedBridgeLeavesNoGoroutine(t *testing.T) {
	for _, hard := range []bool{false, true} {
		before := goleak.IgnoreCurrent()
		r := start(t, plan{dir: t.TempDir()})
		r.request(t, "bus.api.me.counter.add", body(add{Key: "k", N: 1, Tell: "you"}), nil)
		if err := r.close(hard); err != nil {
			t.Fatal(err)
		}
		r.bridge = nil
		goleak.VerifyNone(t, before)
	}
}
