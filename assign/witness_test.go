package assign

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"signalbox/step"
	"signalbox/wire"
)

// witness sees only what is announced, as a subscriber would, and knows what
// must never be seen.
type witness struct {
	states   map[string]string
	attempts map[string]int64
	ends     map[string]int // by job and attempt
	handoffs map[string]int
	claims   map[string]string // the one winner, by job and attempt
	moves    map[string]bool   // "from to reason"; shared by all histories
}

func newWitness() *witness {
	return &witness{states: map[string]string{}, attempts: map[string]int64{}, ends: map[string]int{}, handoffs: map[string]int{},
		claims: map[string]string{}, moves: map[string]bool{}}
}

func (w *witness) clone() *witness {
	return &witness{states: maps.Clone(w.states), attempts: maps.Clone(w.attempts), ends: maps.Clone(w.ends),
		handoffs: maps.Clone(w.handoffs), claims: maps.Clone(w.claims), moves: w.moves}
}

// documented are the moves in the table of the package's doc.
func documented(t *testing.T) []string {
	t.Helper()
	raw, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(raw), "// what happens:\n//\n")
	table, _, _ = strings.Cut(table, "\n//\n")
	var moves []string
	for line := range strings.SplitSeq(table, "\n") {
		f := strings.Fields(strings.ReplaceAll(strings.TrimPrefix(line, "//"), ",", " "))
		if len(f) < 3 {
			t.Fatalf("doc.go: %q is no line of the table", line)
		}
		for _, reason := range f[2:] {
			moves = append(moves, strings.TrimPrefix(f[0], "new")+" "+f[1]+" "+reason)
		}
	}
	slices.Sort(moves)
	return moves
}

// see is the first thing that is wrong with a step, "" if nothing is.
func (w *witness) see(e step.Effects, nowMS int64) string {
	for _, tr := range e.Transitions {
		if wrong := w.transition(tr); wrong != "" {
			return fmt.Sprintf("%s, at %s>%s (%s) of %s", wrong, tr.From, tr.To, tr.Reason, tr.Key)
		}
	}
	for _, m := range e.Messages {
		if wrong := w.message(m, nowMS); wrong != "" {
			return fmt.Sprintf("%s, in the message to %s: %v", wrong, m.To, m.Body)
		}
	}
	return ""
}

func (w *witness) transition(tr step.Transition) string {
	body := tr.Body.(map[string]any)
	attempt := body["attempt"].(int64)
	before, known := w.attempts[tr.Key]
	key := fmt.Sprint(tr.Key, " ", attempt)
	switch {
	case tr.From != w.states[tr.Key]:
		return "it was " + w.states[tr.Key]
	case string(body["status"].(Status)) != tr.To:
		return fmt.Sprintf("its snapshot says %v", body["status"])
	case known && tr.To == "queued" && attempt != before+1:
		return fmt.Sprintf("queued again, it went from attempt %d to %d", before, attempt)
	case known && tr.To != "queued" && attempt != before:
		return fmt.Sprintf("it went from attempt %d to %d", before, attempt)
	case known && !Status(tr.From).Live() && tr.Reason != ByRequest:
		return "what was terminal has changed"
	case tr.From == "succeeded":
		return "what had succeeded has changed"
	case tr.To == "running" && (body["worker_agent"] == nil || body["started_at_ms"] == nil || body["deadline_ms"] == nil):
		return "it runs without a worker, a start or a deadline"
	case tr.CorrelationID == "" || tr.TraceID == "":
		return "it is in no chain"
	}
	w.states[tr.Key], w.attempts[tr.Key] = tr.To, attempt
	w.moves[tr.From+" "+tr.To+" "+tr.Reason] = true
	if tr.To == "running" {
		if other := w.claims[key]; other != "" {
			return fmt.Sprintf("attempt %d had begun already, by %s", attempt, other)
		}
		w.claims[key] = body["worker_agent"].(string)
	}
	if !Status(tr.To).Live() {
		if w.ends[key]++; w.ends[key] > 1 {
			return "the attempt has ended twice"
		}
	}
	return ""
}

func (w *witness) message(m step.Outgoing, nowMS int64) string {
	body := m.Body.(map[string]any)
	switch {
	case m.ID == "" || m.CorrelationID == "" || m.TraceID == "" || m.Topic == "":
		return "it lacks an id, a chain or a topic"
	case m.TTL < wire.MinTTL || m.TTL > wire.MaxTTL || m.Priority < wire.MinPriority || m.Priority > wire.MaxPriority:
		return "its time to live or its priority is no message's"
	case body["kind"] != KindJob:
		return ""
	}
	id := body["assign_job_id"].(string)
	if w.states[id] != "queued" && w.states[id] != "" {
		return "a handoff of what is " + w.states[id]
	}
	key := fmt.Sprint(id, " ", body["attempt"])
	if w.handoffs[key]++; w.handoffs[key] > 1 {
		return "an attempt was handed out twice"
	}
	if body["attempt"].(int64) != w.attempts[id] {
		return "a handoff of another attempt"
	}
	if left := body["deadline_ms"].(int64) - nowMS; m.TTL != wire.ClampTTL(left) {
		return fmt.Sprintf("it lives %s, but the attempt may wait %d ms", m.TTL, left)
	}
	return ""
}
