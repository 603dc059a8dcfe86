package assign

import (
	"cmp"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"signalbox/step"
	"signalbox/wire"
)

const start = 1_700_000_000_000

// database is a step.DB over SQLite that counts what is written.
type database struct {
	*sql.DB
	writes int
}

func (d *database) Exec(query string, args ...any) (sql.Result, error) {
	d.writes++
	return d.DB.Exec(query, args...)
}

func newDatabase(t testing.TB) *database {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { db.Close() })
	if _, err := db.Exec(ddl(t)); err != nil {
		t.Fatal(err)
	}
	return &database{DB: db}
}

// ddl makes the register's tables and the machine's.
func ddl(t testing.TB) string {
	t.Helper()
	var all strings.Builder
	for _, file := range []string{"00001_register.sql", "00003_assign.sql"} {
		raw, err := os.ReadFile("../audit/migrations/" + file)
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ := strings.Cut(string(raw), "-- +goose Up")
		all.WriteString(strings.NewReplacer("-- +goose StatementBegin", "", "-- +goose StatementEnd", "").Replace(text))
	}
	return all.String()
}

// memory is a shelf without SQL, for histories by the thousand.
type memory struct {
	jobs     map[string]*Job
	attempts map[string]map[int64]Attempt
	writes   int
}

func newMemory() *memory {
	return &memory{jobs: map[string]*Job{}, attempts: map[string]map[int64]Attempt{}}
}

func (m *memory) job(id string) (*Job, error) {
	j, ok := m.jobs[id]
	if !ok {
		return nil, nil
	}
	copied := *j
	return &copied, nil
}

func (m *memory) known(id string) (bool, error) { return m.jobs[id] != nil, nil }

func (m *memory) attempt(j *Job, n int64) (*Attempt, error) {
	a, ok := m.attempts[j.JobID][n]
	if !ok {
		return nil, nil
	}
	return &a, nil
}

func (m *memory) liveWith(supervisor, key string) (*Job, error) {
	for _, j := range m.jobs {
		if j.SupervisorAgent == supervisor && j.DedupKey == key && j.Status.Live() {
			return m.job(j.JobID)
		}
	}
	return nil, nil
}

func (m *memory) keep(d *Decision) error {
	m.writes++
	copied := d.Job
	if d.New {
		copied.row = int64(len(m.jobs)) + 1
		m.attempts[copied.JobID] = map[int64]Attempt{}
	}
	m.jobs[copied.JobID] = &copied
	if d.Ended != nil {
		m.attempts[copied.JobID][d.Ended.Attempt] = *d.Ended
	}
	return nil
}

func (m *memory) restart(nowMS, lastMS int64) error {
	for id, j := range m.jobs {
		next := Restart(*j, nowMS, lastMS)
		m.jobs[id] = &next
	}
	return nil
}

func (m *memory) due(nowMS int64, limit int) []step.Deadline {
	var list []step.Deadline
	for _, id := range slices.Sorted(maps.Keys(m.jobs)) {
		if at := m.jobs[id].DueAtMS(); at != 0 && at <= nowMS {
			list = append(list, step.Deadline{Key: id, AtMS: at})
		}
	}
	slices.SortStableFunc(list, func(a, b step.Deadline) int { return cmp.Compare(a.AtMS, b.AtMS) })
	return list[:min(limit, len(list))]
}

// bus does to the machine what the bridge does, on tables or in memory.
type bus struct {
	t        testing.TB
	db       *database // nil: in memory
	mem      *memory
	m        *Machine
	nowMS    int64
	row      int64
	settings step.Settings
}

// newBus is a bus on tables.
func newBus(t testing.TB) *bus {
	t.Helper()
	return &bus{t: t, db: newDatabase(t), m: New(), nowMS: start}
}

func (b *bus) apply(from string, event step.Event) (step.Effects, error) {
	in := step.Input{Place: step.Place{Incarnation: 1, Seq: uint64(b.row)}, ID: b.row, At: time.UnixMilli(b.nowMS), NowMS: b.nowMS,
		From: from, Settings: b.settings, Event: event}
	if b.db == nil {
		return apply(b.mem, in)
	}
	return b.m.Apply(b.db, in)
}

// send is a command. The refusal is nil if there is none; it must have changed
// nothing, and must say what to do.
func (b *bus) send(from, verb, body string) (step.Effects, *wire.Error) {
	b.t.Helper()
	b.row++
	before := b.writes()
	effects, err := b.apply(from, step.Command{Verb: verb, Body: []byte(body)})
	var refusal *wire.Error
	if err != nil && !errors.As(err, &refusal) {
		b.t.Fatalf("%s %s of %s: %v", verb, body, from, err)
	}
	if refusal != nil {
		if b.writes() != before {
			b.t.Fatalf("%s %s of %s was refused with %v, and wrote", verb, body, from, refusal)
		}
		if refusal.Code.Status() == 500 || refusal.Message == "" || refusal.Hint == "" {
			b.t.Fatalf("%s %s of %s: the refusal %+v lacks something", verb, body, from, refusal)
		}
	}
	return effects, refusal
}

func (b *bus) writes() int {
	if b.db == nil {
		return b.mem.writes
	}
	return b.db.writes
}

// do is a command that must be taken; it is the reply.
func (b *bus) do(from, verb, body string) map[string]any {
	b.t.Helper()
	effects, refusal := b.send(from, verb, body)
	if refusal != nil {
		b.t.Fatalf("%s %s of %s: %v", verb, body, from, refusal)
	}
	return object(b.t, effects.Reply)
}

// refused is a command that must be refused with the code.
func (b *bus) refused(code wire.Code, from, verb, body string) *wire.Error {
	b.t.Helper()
	_, refusal := b.send(from, verb, body)
	if refusal == nil || refusal.Code != code {
		b.t.Fatalf("%s %s of %s: %v, want %s", verb, body, from, refusal, code)
	}
	return refusal
}

// restart is a start of the bridge after so long.
func (b *bus) restart(ms int64) {
	b.t.Helper()
	last := b.nowMS
	b.nowMS += ms
	b.row++
	effects, err := b.apply(wire.Bridge, step.Notice{Machine: step.Bridge, What: step.Started, Data: step.Start{LastMS: last}})
	if err != nil || len(said(effects)) > 0 {
		b.t.Fatalf("a start: %v, %v", said(effects), err)
	}
}

func (b *bus) due(limit int) []step.Deadline {
	b.t.Helper()
	if b.db == nil {
		return b.mem.due(b.nowMS, limit)
	}
	list, err := b.m.Due(b.db, b.nowMS, limit)
	if err != nil {
		b.t.Fatal(err)
	}
	return list
}

// tick handles what is due, at most limit.
func (b *bus) tick(limit int) []step.Effects {
	b.t.Helper()
	b.row++
	var all []step.Effects
	for _, d := range b.due(limit) {
		effects, err := b.apply(wire.Bridge, d)
		if err != nil {
			b.t.Fatalf("the deadline of %s: %v", d.Key, err)
		}
		all = append(all, effects)
	}
	return all
}

// ask is a query.
func (b *bus) ask(verb, body string) (map[string]any, *wire.Error) {
	b.t.Helper()
	result, err := b.m.Queries()[verb](b.db, "anybody", []byte(body))
	var refusal *wire.Error
	switch {
	case errors.As(err, &refusal):
		return nil, refusal
	case err != nil:
		b.t.Fatalf("%s %s: %v", verb, body, err)
	}
	return object(b.t, result), nil
}

// get is a job as get shows it.
func (b *bus) get(id string) map[string]any {
	b.t.Helper()
	got, refusal := b.ask("get", fmt.Sprintf(`{"job_id":%q}`, id))
	if refusal != nil {
		b.t.Fatalf("get %s: %v", id, refusal)
	}
	return got
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

// said is what a step announces, a line each: what a subscriber would see.
func said(e step.Effects) []string {
	var lines []string
	for _, tr := range e.Transitions {
		lines = append(lines, fmt.Sprintf("event %s %s>%s %s", tr.Key, tr.From, tr.To, tr.Reason))
	}
	for _, h := range e.Events {
		lines = append(lines, fmt.Sprintf("event %s %s", h.Key, h.What))
	}
	for _, m := range e.Messages {
		body := m.Body.(map[string]any)
		what, job, attempt := body["kind"], body["assign_job_id"], body["attempt"]
		if event, ok := body["event"]; ok {
			what, job = event, body["job_id"]
			if stale, ok := body["stale_attempt"]; ok {
				attempt = stale
			}
		}
		lines = append(lines, fmt.Sprintf("message to %s: %v %v attempt %v", m.To, what, job, attempt))
	}
	return lines
}
