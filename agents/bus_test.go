package agents_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"signalbox/agents"
	"signalbox/step"
	"signalbox/wire"
)

const (
	ttl          = 30_000
	offlineAfter = 300_000
	start        = 1_700_000_000_000
)

// database is a step.DB over SQLite that counts its calls.
type database struct {
	*sql.DB
	calls int
}

func (d *database) Exec(query string, args ...any) (sql.Result, error) {
	d.calls++
	return d.DB.Exec(query, args...)
}

func (d *database) Query(query string, args ...any) (*sql.Rows, error) {
	d.calls++
	return d.DB.Query(query, args...)
}

func (d *database) QueryRow(query string, args ...any) *sql.Row {
	d.calls++
	return d.DB.QueryRow(query, args...)
}

func newDatabase(t testing.TB) *database {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { db.Close() })
	for _, file := range []string{"00001_register.sql", "00002_agents_inbox.sql"} {
		raw, err := os.ReadFile("../audit/migrations/" + file)
		if err != nil {
			t.Fatal(err)
		}
		_, ddl, _ := strings.Cut(string(raw), "-- +goose Up")
		ddl = strings.NewReplacer("-- +goose StatementBegin", "", "-- +goose StatementEnd", "").Replace(ddl)
		if _, err := db.Exec(ddl); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return &database{DB: db}
}

// bus does to the machine what the bridge does: each message of an agent is
// announced, judged, and counted as a sign of life.
type bus struct {
	t        testing.TB
	db       *database
	m        *agents.Machine
	nowMS    int64
	row      int64
	settings step.Settings

	moves   []string // "a: online>stale lease_expired", since it was last read
	notices []step.Notice
	bodies  []any // of the transitions
}

func newBus(t testing.TB) *bus {
	t.Helper()
	return newBusOn(t, newDatabase(t))
}

func newBusOn(t testing.TB, db *database) *bus {
	return &bus{t: t, db: db, m: agents.New(nil), nowMS: start}
}

func (b *bus) input(from string, event step.Event) step.Input {
	return step.Input{Place: step.Place{Incarnation: 1, Seq: uint64(b.row)}, ID: b.row, At: time.UnixMilli(b.nowMS), NowMS: b.nowMS,
		From: from, Settings: b.settings, Event: event}
}

// apply applies one event and keeps what follows.
func (b *bus) apply(from string, event step.Event) (step.Effects, error) {
	b.t.Helper()
	effects, err := b.m.Apply(b.db, b.input(from, event))
	if err != nil {
		return effects, err
	}
	for _, tr := range effects.Transitions {
		b.moves = append(b.moves, fmt.Sprintf("%s: %s>%s %s", tr.Key, tr.From, tr.To, tr.Reason))
		b.bodies = append(b.bodies, tr.Body)
	}
	b.notices = append(b.notices, effects.Notices...)
	return effects, nil
}

// must applies an event that cannot be refused.
func (b *bus) must(from string, event step.Event) {
	b.t.Helper()
	if _, err := b.apply(from, event); err != nil {
		b.t.Fatalf("%+v: %v", event, err)
	}
}

// send is a command of an agent. The refusal is nil if there is none.
func (b *bus) send(from, verb, body string) (reply any, refusal *wire.Error) {
	b.t.Helper()
	b.row++
	if from != wire.Bridge {
		b.must(from, step.Notice{Machine: step.Bridge, What: step.Arrived, Key: from})
	}
	effects, err := b.apply(from, step.Command{Verb: verb, Body: []byte(body)})
	if err != nil && !errors.As(err, &refusal) {
		b.t.Fatalf("%s %s of %s: %v", verb, body, from, err)
	}
	if from != wire.Bridge {
		b.handled(from, refusal)
	}
	return effects.Reply, refusal
}

func (b *bus) handled(from string, refusal *wire.Error) {
	b.t.Helper()
	n := step.Notice{Machine: step.Bridge, What: step.Handled, Key: from}
	if refusal != nil {
		n.Data = refusal
	}
	b.must(from, n)
}

// say is any other message of an agent.
func (b *bus) say(from string) {
	b.t.Helper()
	b.row++
	b.must(from, step.Notice{Machine: step.Bridge, What: step.Arrived, Key: from})
	b.handled(from, nil)
}

// do is a command that must be taken.
func (b *bus) do(from, verb, body string) any {
	b.t.Helper()
	reply, refusal := b.send(from, verb, body)
	if refusal != nil {
		b.t.Fatalf("%s %s of %s: %v", verb, body, from, refusal)
	}
	return reply
}

// try is a command whatever comes of it.
func (b *bus) try(from, verb, body string) {
	b.t.Helper()
	_, _ = b.send(from, verb, body)
}

// tick handles what is due.
func (b *bus) tick() {
	b.t.Helper()
	b.row++
	due, err := b.m.Due(b.db, b.nowMS, 500)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, d := range due {
		b.must(wire.Bridge, d)
	}
}

func (b *bus) flush() {
	b.t.Helper()
	if err := b.m.Flush(b.db); err != nil {
		b.t.Fatal(err)
	}
}

// commit is a flush after which memory is read anew, so that every look at the
// machine is one at its table.
func (b *bus) commit() {
	b.t.Helper()
	b.flush()
	b.m.Forget()
}

// ask is a query of an agent after a commit.
func (b *bus) ask(from, verb, body string) (map[string]any, *wire.Error) {
	b.t.Helper()
	b.flush()
	result, err := b.m.Queries()[verb](b.db, from, []byte(body))
	var refusal *wire.Error
	switch {
	case errors.As(err, &refusal):
		return nil, refusal
	case err != nil:
		b.t.Fatal(err)
	}
	return object(b.t, result), nil
}

// get is the agent as get shows it.
func (b *bus) get(id string) map[string]any {
	b.t.Helper()
	got, refusal := b.ask(id, "get", `{}`)
	if refusal != nil {
		b.t.Fatalf("get %s: %v", id, refusal)
	}
	return got
}

// moved are the transitions since it was last called.
func (b *bus) moved() string {
	moves := strings.Join(b.moves, "; ")
	b.moves, b.notices, b.bodies = nil, nil, nil
	return moves
}

// dump is the table, row by row.
func (b *bus) dump() string {
	b.t.Helper()
	b.flush()
	rows, err := b.db.Query(`SELECT json_array(agent_id, cli, pid, capabilities, topics, project_id, session_id, host_id, transport_locators,
		metadata, delivery, registration, generation, lease_id, heartbeat_ttl_ms, status, deregistered, registered_id, registered_at_ms,
		last_seen_at_ms, lease_expires_at_ms, status_since_ms, deadline_at_ms) FROM agents ORDER BY agent_id`)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	var all strings.Builder
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			b.t.Fatal(err)
		}
		all.WriteString(line + "\n")
	}
	if err := rows.Err(); err != nil {
		b.t.Fatal(err)
	}
	return all.String()
}

// object is a value as JSON shows it.
func object(t testing.TB, v any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return out
}

// set makes settings of the machine.
func set(text string) step.Settings {
	return step.Settings{"agents": json.RawMessage(text)}
}
