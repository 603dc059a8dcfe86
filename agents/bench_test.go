package agents_test

import (
	"fmt"
	"strings"
	"testing"

	"signalbox/agents"
	"signalbox/step"
	"signalbox/wire"
)

// crowd registers n agents a0000, a0001 … for a topic.
func crowd(b *testing.B, n int) *bus {
	b.Helper()
	w := newBus(b)
	for i := range n {
		w.do(fmt.Sprintf("a%04d", i), "register", `{"topics":["t"],"capabilities":["go"]}`)
	}
	w.flush()
	w.moved()
	return w
}

func benchmarkMessage(b *testing.B, from string) {
	w := crowd(b, 1000)
	arrived, handled := inputs(w, from)
	b.ReportAllocs()
	for b.Loop() {
		arrived.NowMS++
		handled.NowMS++
		if _, err := w.m.Apply(w.db, arrived); err != nil {
			b.Fatal(err)
		}
		if _, err := w.m.Apply(w.db, handled); err != nil {
			b.Fatal(err)
		}
	}
}

// Both notices about one message.
func BenchmarkMessageOfARegisteredAgent(b *testing.B) { benchmarkMessage(b, "a0500") }

func BenchmarkMessageOfAStranger(b *testing.B) { benchmarkMessage(b, "stranger") }

// An entry of a roll-up of 500.
func BenchmarkRollUpEntry(b *testing.B) {
	const n = 500
	w := crowd(b, n)
	var entries []string
	for i := range n {
		entries = append(entries, fmt.Sprintf(`{"id":"a%04d","generation":1,"ago_ms":%d}`, i, i))
	}
	in := w.input(wire.Bridge, step.Command{Verb: "seen", Body: []byte(`{"agents":[` + strings.Join(entries, ",") + `]}`)})
	b.ReportAllocs()
	for b.Loop() {
		in.NowMS++
		if _, err := w.m.Apply(w.db, in); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/entry")
}

// One agent of a flush of 100, in one transaction, as a batch is.
func BenchmarkFlushAgent(b *testing.B) {
	const n = 100
	w := crowd(b, n)
	for b.Loop() {
		w.nowMS++
		for i := range n {
			w.say(fmt.Sprintf("a%04d", i))
		}
		if _, err := w.db.Exec("BEGIN"); err != nil {
			b.Fatal(err)
		}
		w.flush()
		if _, err := w.db.Exec("COMMIT"); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/agent")
}

func BenchmarkSubscribersOf1000(b *testing.B) {
	w := crowd(b, 1000)
	b.ReportAllocs()
	for b.Loop() {
		if inbox, _, err := w.m.Subscribers(w.db, "t"); err != nil || len(inbox) != 1000 {
			b.Fatal(len(inbox), err)
		}
	}
}

// The first use after a start or an undone batch.
func BenchmarkLoad1000(b *testing.B) {
	w := crowd(b, 1000)
	for b.Loop() {
		m := agents.New(nil)
		if known, _, _, err := m.Owed(w.db, "a0000"); err != nil || !known {
			b.Fatal(known, err)
		}
	}
}
