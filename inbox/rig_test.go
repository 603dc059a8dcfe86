package inbox_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the database of the tests

	"signalbox/inbox"
	"signalbox/step"
	"signalbox/wire"
)

// testDB is a step.DB that caches statements by text, as the register does.
type testDB struct {
	db       *sql.DB
	stmts    map[string]*sql.Stmt
	executed int // statements so far
}

func (d *testDB) stmt(query string) *sql.Stmt {
	d.executed++
	s := d.stmts[query]
	if s == nil {
		var err error
		if s, err = d.db.Prepare(query); err != nil {
			panic(fmt.Sprintf("%v in\n%s", err, query))
		}
		d.stmts[query] = s
	}
	return s
}

func (d *testDB) Exec(query string, args ...any) (sql.Result, error) {
	return d.stmt(query).Exec(args...)
}
func (d *testDB) Query(query string, args ...any) (*sql.Rows, error) {
	return d.stmt(query).Query(args...)
}
func (d *testDB) QueryRow(query string, args ...any) *sql.Row {
	return d.stmt(query).QueryRow(args...)
}

// openDB makes the tables of the register's migrations in memory.
func openDB(t testing.TB) *testDB {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { db.Close() })
	for _, name := range []string{"00001_register.sql", "00002_agents_inbox.sql"} {
		raw, err := os.ReadFile(filepath.Join("..", "audit", "migrations", name))
		if err != nil {
			t.Fatal(err)
		}
		_, ddl, _ := strings.Cut(string(raw), "-- +goose Up")
		ddl = strings.NewReplacer("-- +goose StatementBegin", "", "-- +goose StatementEnd", "").Replace(ddl)
		if _, err := db.Exec(ddl); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if _, err := db.Exec(`INSERT INTO bridge_state (id, register_id) VALUES (1, 'test')`); err != nil {
		t.Fatal(err)
	}
	return &testDB{db: db, stmts: map[string]*sql.Stmt{}}
}

// agent is what the fake agents know of one.
type agent struct {
	live, offline bool
	registeredID  int64
	topics        []string
}

// world is what the machine reads of others.
type world struct {
	agents map[string]*agent
	held   map[string]string // role → holder
	rows   map[int64]step.Message
	bodies map[int64]string
}

func newWorld() *world {
	return &world{agents: map[string]*agent{}, held: map[string]string{}, rows: map[int64]step.Message{}, bodies: map[int64]string{}}
}

func (w *world) Owed(_ step.DB, id string) (known, live bool, registeredID int64, err error) {
	a := w.agents[id]
	if a == nil {
		return false, false, 0, nil
	}
	return true, a.live, a.registeredID, nil
}

func (w *world) OwedOnTable(db step.DB, id string) (known, live bool, registeredID int64, err error) {
	return w.Owed(db, id)
}

func (w *world) Subscribers(_ step.DB, topic string) (inbox []string, live int, err error) {
	for _, id := range slices.Sorted(maps.Keys(w.agents)) {
		switch a := w.agents[id]; {
		case a.offline || !slices.Contains(a.topics, topic):
		case a.live:
			live++
		default:
			inbox = append(inbox, id)
		}
	}
	return inbox, live, nil
}

func (w *world) Held(_ step.DB, id string) (roles []string, err error) {
	for _, role := range slices.Sorted(maps.Keys(w.held)) {
		if w.held[role] == id {
			roles = append(roles, role)
		}
	}
	return roles, nil
}

func (w *world) Message(_ step.DB, id int64) (step.Message, error) {
	m, ok := w.rows[id]
	if !ok {
		return m, fmt.Errorf("there is no row %d", id)
	}
	return m, nil
}

func (w *world) MessageID(db step.DB, id int64) (string, error) {
	m, err := w.Message(db, id)
	return m.MessageID, err
}

func (w *world) JSON(_ step.DB, id int64, most int) (json.RawMessage, error) {
	m := w.rows[id]
	row := map[string]any{"id": id, "message_id": m.MessageID, "priority": m.Envelope.Priority, "body": w.bodies[id]}
	raw, err := json.Marshal(row)
	if err == nil && len(raw) > most {
		row["body"] = map[string]any{"id": id, "bytes": len(w.bodies[id])}
		raw, err = json.Marshal(row)
	}
	return raw, err
}

// change is the Data of the notices of agents.
type change struct {
	topics []string
	live   bool
}

func (c change) SubscribedTopics() []string { return c.topics }
func (c change) LiveOnly() bool             { return c.live }

// rig is the machine in a world, with a log that only counts.
type rig struct {
	testing.TB
	*world
	db     *testDB
	m      *inbox.Machine
	nowMS  int64
	lastID int64
}

func newRig(t testing.TB) *rig {
	t.Helper()
	w := newWorld()
	return &rig{TB: t, world: w, db: openDB(t), m: inbox.New(inbox.Facts{Agents: w, Roles: w, Rows: w}), nowMS: 1_000_000}
}

// input is the next message of the log.
func (r *rig) input(from string, event step.Event) step.Input {
	r.lastID++
	return step.Input{Place: step.Place{Incarnation: 1, Seq: uint64(r.lastID)}, ID: r.lastID, At: time.UnixMilli(r.nowMS), NowMS: r.nowMS,
		From: from, Event: event}
}

func (r *rig) apply(in step.Input) step.Effects {
	r.Helper()
	e, err := r.m.Apply(r.db, in)
	if err != nil {
		r.Fatalf("%+v: %v", in.Event, err)
	}
	return e
}

// try applies a command and says what it was refused with, if it was.
func (r *rig) try(from, verb, body string) (step.Effects, *wire.Error) {
	r.Helper()
	e, err := r.m.Apply(r.db, r.input(from, step.Command{Verb: verb, Body: []byte(body)}))
	var refusal *wire.Error
	if err != nil && !errors.As(err, &refusal) {
		r.Fatalf("%s of %s: %v", verb, from, err)
	}
	return e, refusal
}

// do applies a command that must not be refused and gives its reply.
func (r *rig) do(from, verb, body string) map[string]any {
	r.Helper()
	e, refusal := r.try(from, verb, body)
	if refusal != nil {
		r.Fatalf("%s %s of %s: %v", verb, body, from, refusal)
	}
	return asMap(r, e.Reply)
}

func asMap(t testing.TB, v any) (m map[string]any) {
	t.Helper()
	raw, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// draft is a message to be sent; what is zero has its default.
type draft struct {
	from, to, topic, body, messageID string
	kind                             wire.Type
	priority                         int
	ttl                              time.Duration
}

// message puts a message into the register and gives its event.
func (r *rig) message(d draft) (step.Message, step.Input) {
	r.Helper()
	to, err := wire.ParseRecipient(d.to)
	if err != nil {
		r.Fatal(err)
	}
	in := r.input(d.from, nil)
	msg := step.Message{ID: in.ID, MessageID: d.messageID, From: d.from, To: to, CorrelationID: fmt.Sprintf("c%d", in.ID), TraceID: fmt.Sprintf("t%d", in.ID),
		Envelope: wire.Envelope{Type: d.kind, Priority: d.priority, TTL: d.ttl, Topic: d.topic}}
	if msg.From == "" {
		msg.From, in.From = "me", "me"
	}
	if msg.MessageID == "" {
		msg.MessageID = fmt.Sprintf("m%d", in.ID)
	}
	if d.priority == 0 {
		msg.Envelope.Priority = wire.DefaultPriority
	}
	if d.ttl == 0 {
		msg.Envelope.TTL = wire.DefaultTTL
	}
	if d.kind == "" {
		msg.Envelope.Type = wire.TypeEvent
	}
	if to.Class == wire.ToTopic {
		msg.Envelope.Topic = to.Name
	}
	msg.ExpiresAtMS = r.nowMS + msg.Envelope.TTL.Milliseconds()
	r.rows[msg.ID], r.bodies[msg.ID] = msg, d.body
	in.Event = msg
	return msg, in
}

// send has a message received.
func (r *rig) send(d draft) (int64, step.Effects) {
	r.Helper()
	msg, in := r.message(d)
	return msg.ID, r.apply(in)
}

// register makes a new generation of an agent and tells the machine.
func (r *rig) register(id string, topics ...string) step.Effects {
	r.Helper()
	return r.enrol(id, agent{topics: topics})
}

func (r *rig) enrol(id string, a agent) step.Effects {
	r.Helper()
	in := r.input(id, nil)
	a.registeredID = in.ID
	r.agents[id] = &a
	in.Event = step.Notice{Machine: "agents", What: "online", Key: id, Data: change{a.topics, a.live}}
	return r.apply(in)
}

// subscribe adds topics.
func (r *rig) subscribe(id string, topics ...string) step.Effects {
	r.Helper()
	r.agents[id].topics = append(r.agents[id].topics, topics...)
	return r.apply(r.input(id, step.Notice{Machine: "agents", What: "subscribed", Key: id, Data: change{topics, r.agents[id].live}}))
}

// tick handles what is due, as the bridge does, and says how much it was.
func (r *rig) tick() (effects []step.Effects) {
	r.Helper()
	in := r.input(wire.Bridge, nil)
	due, err := r.m.Due(r.db, r.nowMS, 500)
	if err != nil {
		r.Fatal(err)
	}
	for _, d := range due {
		if d.AtMS > r.nowMS {
			r.Fatalf("%+v is not due at %d", d, r.nowMS)
		}
		in.Event = d
		effects = append(effects, r.apply(in))
	}
	return effects
}

// fetch gives the ids of what an agent gets.
func (r *rig) fetch(id, options string) (ids []int64) {
	r.Helper()
	for _, m := range r.do(id, "fetch", options)["messages"].([]any) {
		ids = append(ids, int64(m.(map[string]any)["id"].(float64)))
	}
	return ids
}

// flush commits: what is in memory is written, and bus time with it.
func (r *rig) flush() {
	r.Helper()
	if err := r.m.Flush(r.db); err != nil {
		r.Fatal(err)
	}
	if _, err := r.db.Exec(`UPDATE bridge_state SET bus_ns = ? * 1000000`, r.nowMS); err != nil {
		r.Fatal(err)
	}
}

// poll looks at what is committed.
func (r *rig) poll(id, options string) (step.Polled, *wire.Error) {
	r.Helper()
	polled, err := r.m.Polls()["fetch"](r.db, id, []byte(options))
	var refusal *wire.Error
	if err != nil && !errors.As(err, &refusal) {
		r.Fatal(err)
	}
	return polled, refusal
}

func (r *rig) query(verb, body string) map[string]any {
	r.Helper()
	answer, err := r.m.Queries()[verb](r.db, "me", []byte(body))
	if err != nil {
		r.Fatal(err)
	}
	return asMap(r, answer)
}

// count is the number that a query answers.
func (r *rig) count(query string, args ...any) (n int64) {
	r.Helper()
	if err := r.db.QueryRow(query, args...).Scan(&n); err != nil {
		r.Fatal(err)
	}
	return n
}

// deliveries are those of a message, as recipient:status.
func (r *rig) deliveries(id int64) (list []string) {
	r.Helper()
	r.flush()
	ds, err := inbox.Deliveries(r.db, id)
	if err != nil {
		r.Fatal(err)
	}
	for _, d := range ds {
		list = append(list, d.Recipient+":"+d.Status)
	}
	return list
}
