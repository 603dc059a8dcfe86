package agents_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"signalbox/step"
	"signalbox/wire"
)

// Small worlds, so that things meet.
var (
	someone = rapid.SampledFrom([]string{"a", "b", "c", "d"})
	topics  = rapid.SampledFrom([][]string{{"t"}, {"t", "u"}, {"u"}, {"t.u", "v"}})
	ttls    = rapid.SampledFrom([]int64{15_000, 30_000, 60_000})
	pauses  = rapid.SampledFrom([]int64{1, 1000, 14_999, 15_000, 30_000, 300_000})
)

// twin is one history told twice: to a machine that keeps agents in memory for
// as long as it can, and to one that writes and forgets after each message, as
// if each were a batch of its own. Where batches end must not matter.
type twin struct {
	kept, eager *bus
	model       *model
	saved       *model // as the kept one's table has it
}

func (w *twin) both(t *rapid.T, do func(b *bus) string) string {
	w.eager.row, w.kept.row = max(w.eager.row, w.kept.row), max(w.eager.row, w.kept.row)
	first := do(w.kept)
	second := do(w.eager)
	w.eager.commit()
	if first != second {
		t.Fatalf("with memory the outcome is %q, without it %q", first, second)
	}
	return first
}

// now moves the time and is the time.
func (w *twin) now(t *rapid.T) int64 {
	if rapid.Bool().Draw(t, "later") {
		w.kept.nowMS += pauses.Draw(t, "by")
	}
	w.eager.nowMS = w.kept.nowMS
	return w.kept.nowMS
}

// say is a command of an agent and what the model makes of it.
func (w *twin) say(t *rapid.T, from, verb, body string, judge func(now int64) string) {
	now := w.now(t)
	w.model.arrive(from, now)
	want := judge(now)
	if want != "STALE_GENERATION" {
		w.model.alive(from, now, now, "message")
	}
	got := w.both(t, func(b *bus) string {
		if verb == "" {
			b.say(from)
			return ""
		}
		_, refusal := b.send(from, verb, body)
		if refusal == nil {
			return ""
		}
		return string(refusal.Code)
	})
	if got != want {
		t.Fatalf("%s %s of %s: %q, want %q", verb, body, from, got, want)
	}
}

// generationOf draws a generation near that of the agent; 0 is none.
func (w *twin) generationOf(t *rapid.T, id string) int64 {
	if rapid.Bool().Draw(t, "current") {
		return w.model.people[id].generation
	}
	return rapid.Int64Range(0, w.model.people[id].generation+1).Draw(t, "generation")
}

func (w *twin) register(t *rapid.T) {
	id := someone.Draw(t, "id")
	r := wanted{topics: topics.Draw(t, "topics"), live: rapid.Bool().Draw(t, "live"), ttl: ttls.Draw(t, "ttl"),
		session: rapid.SampledFrom([]string{"", "s", "s"}).Draw(t, "session")}
	row := max(w.kept.row, w.eager.row) + 1
	w.say(t, id, "register", r.body(), func(now int64) string {
		w.model.register(id, now, row, r)
		return ""
	})
}

func (w *twin) heartbeat(t *rapid.T) {
	id := someone.Draw(t, "id")
	generation := w.generationOf(t, id)
	w.say(t, id, "heartbeat", fmt.Sprintf(`{"generation":%d}`, generation), func(now int64) string {
		return w.model.heartbeat(id, now, generation)
	})
}

func (w *twin) deregister(t *rapid.T) {
	id := someone.Draw(t, "id")
	generation := w.generationOf(t, id)
	w.say(t, id, "deregister", fmt.Sprintf(`{"generation":%d}`, generation), func(now int64) string {
		return w.model.deregister(id, now, generation)
	})
}

func (w *twin) subscribe(t *rapid.T) {
	id, list, replace := someone.Draw(t, "id"), topics.Draw(t, "topics"), rapid.Bool().Draw(t, "replace")
	w.say(t, id, "subscribe", fmt.Sprintf(`{"topics":["%s"],"replace":%v}`, strings.Join(list, `","`), replace), func(int64) string {
		return w.model.subscribe(id, list, replace)
	})
}

func (w *twin) message(t *rapid.T) {
	w.say(t, someone.Draw(t, "id"), "", "", func(int64) string { return "" })
}

func (w *twin) nonsense(t *rapid.T) {
	verb := rapid.SampledFrom([]string{"register", "heartbeat", "subscribe", "deregister"}).Draw(t, "verb")
	w.say(t, someone.Draw(t, "id"), verb, `{"topic":"t"}`, func(int64) string { return "BODY_INVALID" })
}

func (w *twin) rollUp(t *rapid.T) {
	now := w.now(t)
	before := map[string]int64{}
	for id, p := range w.model.people {
		before[id] = p.until
	}
	var entries []string
	for range rapid.IntRange(1, 4).Draw(t, "entries") {
		id := someone.Draw(t, "id")
		generation, ago := w.generationOf(t, id), rapid.SampledFrom([]int64{-5, 0, 1, 4999, 15_000, 29_999, 1 << 62}).Draw(t, "ago")
		entries = append(entries, fmt.Sprintf(`{"id":"%s","generation":%d,"ago_ms":%d}`, id, generation, ago))
		if generation == 0 || generation == w.model.people[id].generation {
			w.model.alive(id, now, max(0, now-max(0, ago)), "heartbeat")
		}
	}
	w.both(t, func(b *bus) string {
		b.do(wire.Bridge, "seen", `{"agents":[`+strings.Join(entries, ",")+`]}`)
		return ""
	})
	for id, until := range before {
		facts, _, err := w.kept.m.Candidate(w.kept.db, id)
		if err != nil || facts.LeaseExpiresAtMS < until {
			t.Fatalf("a roll-up moved the lease of %s from %d back to %d, %v", id, until, facts.LeaseExpiresAtMS, err)
		}
	}
}

// tick handles the first of what is due, as if there were more than a tick may
// handle.
func (w *twin) tick(t *rapid.T) {
	now, limit := w.now(t), rapid.IntRange(1, 4).Draw(t, "limit")
	want := w.model.due(now)
	want = want[:min(limit, len(want))]
	w.save() // Due writes what memory has
	w.both(t, func(b *bus) string {
		b.row++
		due, err := b.m.Due(b.db, now, limit)
		if err != nil {
			t.Fatal(err)
		}
		if len(due) != len(want) || !slices.IsSortedFunc(due, func(x, y step.Deadline) int {
			return int(max(-1, min(1, x.AtMS-y.AtMS)))*2 + strings.Compare(x.Key, y.Key)
		}) {
			t.Fatalf("due are %v, want %v", due, want)
		}
		for i, d := range due {
			if d.Key != want[i] || d.AtMS != w.model.people[d.Key].end() {
				t.Fatalf("due are %v, want %v", due, want)
			}
		}
		for _, d := range due {
			b.must(wire.Bridge, d)
		}
		return ""
	})
	w.model.tick(now, want)
}

func (w *twin) restart(t *rapid.T) {
	last := w.kept.nowMS
	now := w.now(t)
	w.both(t, func(b *bus) string {
		b.row++
		b.must(wire.Bridge, step.Notice{Machine: step.Bridge, What: step.Started, Data: step.Start{LastMS: last}})
		return ""
	})
	w.model.start(now, last)
}

// save notes what the table of the kept one has.
func (w *twin) save() {
	w.saved = w.model.clone()
}

func (w *twin) flush(*rapid.T) {
	w.kept.flush()
	w.save()
}

// undo is a batch that was rolled back: what was not written never was.
func (w *twin) undo(t *rapid.T) {
	w.kept.m.Forget()
	w.model = w.saved.clone()
	w.kept.moves = slices.Clone(w.model.moves)
	// The eager one has committed it; it starts again from the same table.
	copyTable(t, w.kept, w.eager)
	w.eager.moves = slices.Clone(w.model.moves)
}

func copyTable(t *rapid.T, from, to *bus) {
	to.m.Forget()
	if _, err := to.db.Exec(`DELETE FROM agents`); err != nil {
		t.Fatal(err)
	}
	rows, err := from.db.Query(`SELECT * FROM agents`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		values, pointers := make([]any, len(names)), make([]any, len(names))
		for i := range values {
			pointers[i] = &values[i]
		}
		if err := rows.Scan(pointers...); err != nil {
			t.Fatal(err)
		}
		if _, err := to.db.Exec(`INSERT INTO agents VALUES (?`+strings.Repeat(", ?", len(names)-1)+`)`, values...); err != nil {
			t.Fatal(err)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

// check compares memory with the model, and the table of the eager one.
func (w *twin) check(t *rapid.T) {
	for _, b := range []*bus{w.kept, w.eager} {
		if !slices.Equal(b.moves, w.model.moves) {
			t.Fatalf("it moved %q, want %q", b.moves, w.model.moves)
		}
	}
	for id, p := range w.model.people {
		known, live, row, err := w.kept.m.Owed(w.kept.db, id)
		facts, _, factsErr := w.kept.m.Candidate(w.kept.db, id)
		if err != nil || factsErr != nil || !known || live != p.live || row != p.row || facts.Online != (p.state == "online") ||
			facts.LeaseExpiresAtMS != p.until || facts.UpdatedAtMS != p.registered {
			t.Fatalf("in memory %s is %v, %v, row %d, %+v, want %+v", id, known, live, row, facts, p)
		}
	}
	for _, topic := range []string{"t", "u", "t.u", "v", "w"} {
		inbox, live, err := w.kept.m.Subscribers(w.kept.db, topic)
		if wantInbox, wantLive := w.model.hear(topic); err != nil || !slices.Equal(inbox, wantInbox) || live != wantLive {
			t.Fatalf("%s is heard by %v and %d live, %v, want %v and %d", topic, inbox, live, err, wantInbox, wantLive)
		}
	}
	w.checkTable(t)
}

func (w *twin) checkTable(t *rapid.T) {
	got := map[string]string{}
	rows, err := w.eager.db.Query(`SELECT agent_id, generation, status, deregistered, last_seen_at_ms, lease_expires_at_ms, status_since_ms,
		coalesce(deadline_at_ms, -1), topics FROM agents`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, state, topics string
		var generation, left, seen, until, since, deadline int64
		if err := rows.Scan(&id, &generation, &state, &left, &seen, &until, &since, &deadline, &topics); err != nil {
			t.Fatal(err)
		}
		got[id] = fmt.Sprint(generation, state, left, seen, until, since, deadline, topics)
	}
	want := map[string]string{}
	for id, p := range w.model.people {
		left, end := 0, int64(-1) // NULL
		if p.left {
			left = 1
		}
		if p.end() != 0 {
			end = p.end()
		}
		want[id] = fmt.Sprint(p.generation, p.state, left, p.seen, p.until, p.since, end, `["`+strings.Join(slices.Sorted(maps.Keys(p.topics)), `","`)+`"]`)
	}
	if err := rows.Err(); err != nil || !maps.Equal(got, want) {
		t.Fatalf("the table has %v, %v, want %v", got, err, want)
	}
}

// Random histories, against the model; a crash and a reload at any point; and
// the same rows wherever batches end.
func TestAnyHistoryComesOutAsTheModelSaysWhereverBatchesEnd(t *testing.T) {
	kept, eager := newDatabase(t), newDatabase(t)
	rapid.Check(t, func(rt *rapid.T) {
		for _, db := range []*database{kept, eager} {
			if _, err := db.Exec(`DELETE FROM agents`); err != nil {
				rt.Fatal(err)
			}
		}
		w := &twin{kept: newBusOn(t, kept), eager: newBusOn(t, eager), model: newModel(), saved: newModel()}
		rt.Repeat(map[string]func(*rapid.T){
			"register": w.register, "register too": w.register, "heartbeat": w.heartbeat, "deregister": w.deregister, "subscribe": w.subscribe,
			"message": w.message, "nonsense": w.nonsense, "roll-up": w.rollUp, "tick": w.tick, "tick too": w.tick, "restart": w.restart,
			"flush": w.flush, "undo": w.undo, "": w.check,
		})
		if a, b := w.kept.dump(), w.eager.dump(); a != b {
			rt.Fatalf("written late the table is\n%s\nwritten at once\n%s", a, b)
		}
	})
}
