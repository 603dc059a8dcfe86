package bridge_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"signalbox/step"
	"signalbox/wire"
)

// counterTables are the tables of the test machines; the program's own come
// with the register's migrations.
const counterTables = `
CREATE TABLE IF NOT EXISTS counter (
  key TEXT PRIMARY KEY, value INTEGER NOT NULL, deadline_ms INTEGER, raw BLOB) STRICT;
CREATE TABLE IF NOT EXISTS echo (key TEXT PRIMARY KEY, heard INTEGER NOT NULL, value INTEGER NOT NULL, starts INTEGER NOT NULL) STRICT;`

// counter is a machine that proves the seams: a value, a deadline, a fact, a
// notice.
type counter struct{}

// add is the body of counter.add.
type add struct {
	Key      string `json:"key"`
	N        int64  `json:"n"`
	ExpireMS int64  `json:"expire_ms"`
	Tell     string `json:"tell"` // an agent to send a message to
	Big      int    `json:"big"`  // bytes of an event field
	Fail     string `json:"fail"` // panic, error, refuse
}

func (counter) Name() string                   { return "counter" }
func (counter) Verbs() []string                { return []string{"add"} }
func (counter) Tables() []string               { return []string{"counter"} }
func (counter) Queries() map[string]step.Query { return map[string]step.Query{"get": queryCounter} }

// Value is a fact that other machines read.
func (counter) Value(db step.DB, key string) (int64, error) {
	var v int64
	err := db.QueryRow(`SELECT value FROM counter WHERE key = ?`, key).Scan(&v)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return v, err
}

func queryCounter(db step.DB, _ string, body []byte) (any, error) {
	var q struct {
		Key string `json:"key"`
	}
	if err := step.Decode(body, &q); err != nil {
		return nil, err
	}
	v, err := counter{}.Value(db, q.Key)
	return map[string]int64{"value": v}, err
}

func (c counter) Due(db step.DB, nowMS int64, limit int) ([]step.Deadline, error) {
	switch v, err := c.Value(db, "undue"); {
	case err != nil:
		return nil, err
	case v == 1:
		return nil, errors.New("the counter cannot say")
	case v == 2:
		panic("the counter cannot say")
	}
	rows, err := db.Query(`SELECT key, deadline_ms FROM counter WHERE deadline_ms <= ? ORDER BY deadline_ms, key LIMIT ?`, nowMS, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var due []step.Deadline
	for rows.Next() {
		var d step.Deadline
		if err := rows.Scan(&d.Key, &d.AtMS); err != nil {
			return nil, err
		}
		due = append(due, d)
	}
	return due, rows.Err()
}

func (c counter) Apply(db step.DB, in step.Input) (step.Effects, error) {
	switch e := in.Event.(type) {
	case step.Command:
		var a add
		if err := step.Decode(e.Body, &a); err != nil {
			return step.Effects{}, err
		}
		return c.add(db, in, a)
	case step.Deadline:
		return c.expire(db, e.Key)
	}
	return step.Effects{}, nil
}

func (c counter) add(db step.DB, in step.Input, a add) (step.Effects, error) {
	before, err := c.Value(db, a.Key)
	if err != nil {
		return step.Effects{}, err
	}
	var deadline any
	if a.ExpireMS > 0 {
		deadline = in.NowMS + a.ExpireMS
	}
	if _, err := db.Exec(`INSERT INTO counter (key, value, deadline_ms, raw) VALUES (?, ?, ?, x'00ff') ON CONFLICT (key)
		DO UPDATE SET value = excluded.value, deadline_ms = excluded.deadline_ms`, a.Key, before+a.N, deadline); err != nil {
		return step.Effects{}, err
	}
	var messages []step.Outgoing
	if a.Tell != "" {
		messages = append(messages, step.Outgoing{To: wire.Recipient{Class: wire.ToAgent, Name: a.Tell}, Type: wire.TypeSystem,
			Topic: "counter.told", Body: map[string]int64{"value": before + a.N}})
	}
	switch a.Fail {
	case "panic":
		panic("the counter was told to")
	case "error":
		return step.Effects{}, errors.New("the counter was told to fail")
	case "refuse":
		return step.Effects{Messages: messages}, wire.Errorf(wire.Conflict, "the counter was told to refuse")
	}
	body := map[string]any{"key": a.Key, "value": before + a.N}
	if a.Big > 0 {
		body["big"] = string(make([]byte, a.Big))
	}
	return step.Effects{
		Reply: map[string]int64{"value": before + a.N}, Messages: messages,
		Transitions: []step.Transition{{Key: a.Key, From: strconv.FormatInt(before, 10), To: strconv.FormatInt(before+a.N, 10), Reason: "added", Body: body}},
	}, nil
}

func (c counter) expire(db step.DB, key string) (step.Effects, error) {
	before, err := c.Value(db, key)
	if err != nil {
		return step.Effects{}, err
	}
	if key == "stuck" {
		return step.Effects{}, errors.New("this deadline always fails")
	}
	if _, err := db.Exec(`UPDATE counter SET value = 0, deadline_ms = NULL WHERE key = ?`, key); err != nil {
		return step.Effects{}, err
	}
	return step.Effects{
		Transitions: []step.Transition{{Key: key, From: strconv.FormatInt(before, 10), To: "0", Reason: "expired"}},
		Notices:     []step.Notice{{What: "expired", Key: key}},
	}, nil
}

// values is what echo must know of another machine.
type values interface {
	Value(db step.DB, key string) (int64, error)
}

// echo is a machine that hears of expired counters and reads their fact.
type echo struct{ counters values }

func (echo) Name() string                                     { return "echo" }
func (echo) Verbs() []string                                  { return nil }
func (echo) Tables() []string                                 { return []string{"echo"} }
func (echo) Queries() map[string]step.Query                   { return nil }
func (echo) Due(step.DB, int64, int) ([]step.Deadline, error) { return nil, nil }
func (echo) Hears(machine, what string) bool {
	return machine == "counter" && what == "expired" || machine == "bridge" && what == "started"
}

func (e echo) Apply(db step.DB, in step.Input) (step.Effects, error) {
	n, ok := in.Event.(step.Notice)
	if !ok {
		return step.Effects{}, fmt.Errorf("echo got a %T", in.Event)
	}
	if n.Machine == "bridge" {
		var s struct {
			Greeting string `json:"greeting"`
		}
		if err := in.Settings.Read("echo", &s); err != nil {
			return step.Effects{}, err
		}
		if s.Greeting == "" {
			return step.Effects{}, nil
		}
		_, err := db.Exec(`INSERT INTO echo (key, heard, value, starts) VALUES (?, 0, 0, 1) ON CONFLICT (key) DO UPDATE SET starts = starts + 1`, s.Greeting)
		return step.Effects{}, err
	}
	v, err := e.counters.Value(db, n.Key)
	if err != nil {
		return step.Effects{}, err
	}
	_, err = db.Exec(`INSERT INTO echo (key, heard, value, starts) VALUES (?, 1, ?, 0) ON CONFLICT (key)
		DO UPDATE SET heard = heard + 1, value = excluded.value`, n.Key, v)
	return step.Effects{}, err
}

// body is JSON for a test.
func body(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}
