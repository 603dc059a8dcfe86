package inbox_test

import (
	"fmt"
	"testing"
	"time"

	"signalbox/audit"
	"signalbox/inbox"
	"signalbox/step"
)

func BenchmarkMessageToAnAgent(b *testing.B) {
	r := newRig(b)
	r.register("a")
	_, in := r.message(draft{to: "a"})
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		r.apply(in)
		if n++; n%1000 == 0 {
			r.m.Forget() // as the flush of a batch would
		}
	}
}

// One operation is a batch of 1,000 messages.
func BenchmarkFlush(b *testing.B) {
	for _, topic := range []string{"", "build.done"} {
		b.Run("topic="+topic, func(b *testing.B) {
			r := newRig(b)
			r.register("a")
			msg, in := r.message(draft{to: "a", topic: topic})
			b.ReportAllocs()
			rows := 0
			for b.Loop() {
				b.StopTimer()
				for range 1000 {
					msg.ID++
					msg.Envelope.Priority = 1 + int(msg.ID%9)
					in.Event = msg
					r.apply(in)
					rows++
				}
				b.StartTimer()
				if err := r.m.Flush(r.db); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows), "ns/row")
		})
	}
}

// stock makes an inbox of so many messages with rows in the register, of all
// priorities.
func stock(b *testing.B, n int) *rig {
	b.Helper()
	r := newRig(b)
	r.m = inbox.New(inbox.Facts{Agents: r.world, Roles: r.world, Rows: audit.Rows{}})
	r.register("a")
	r.register("b")
	if _, err := r.db.Exec(`INSERT INTO messages (id, incarnation, seq, at, kind, subject, message_id, type, "from", "to", identity, topic, priority,
		expires_at_ms, correlation_id, trace_id, headers, body, leaf)
		WITH RECURSIVE n (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < ?)
		SELECT id, 1, id, id, 'msg', 'bus.msg.me.agent.a', printf('0193b7a1-7c00-7000-8000-%012d', id), 'event', 'me', 'agent:a', 'claimed', 'x', 1 + id % 9, 1,
			printf('c%036d', id), printf('t%036d', id), '{"Bus-Priority":["5"],"Bus-Topic":["x"]}', printf('{"text":"%0200d"}', id), zeroblob(32) FROM n`, n+10); err != nil {
		b.Fatal(err)
	}
	for i := range n {
		r.send(draft{to: "a", topic: "x", priority: 1 + i%9, ttl: 24 * time.Hour})
	}
	r.flush()
	return r
}

const hoard = 100_000

// inFlight has all of the hoard fetched, a hundred at a time, as one process
// would.
func inFlight(b *testing.B) *rig {
	b.Helper()
	r := stock(b, hoard)
	for range hoard / 100 {
		r.give(b, "a", `{"max_messages":100}`, 100)
	}
	return r
}

// give fetches without the test's own reading of the reply.
func (r *rig) give(b *testing.B, agent, options string, want int) {
	b.Helper()
	e, refusal := r.try(agent, "fetch", options)
	if refusal != nil {
		b.Fatal(refusal)
	}
	if got := len(e.Reply.(inbox.Fetched).Messages); got != want {
		b.Fatalf("a fetch gave %d, want %d", got, want)
	}
}

func BenchmarkFetchOfAHundred(b *testing.B) {
	// undo runs a fetch and takes it back, so that each finds the same.
	fetch := func(b *testing.B, r *rig, options string, want int) {
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			if _, err := r.db.Exec(`SAVEPOINT s`); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			r.give(b, "a", options, want)
			b.StopTimer()
			if _, err := r.db.Exec(`ROLLBACK TO s`); err != nil {
				b.Fatal(err)
			}
			if _, err := r.db.Exec(`RELEASE s`); err != nil {
				b.Fatal(err)
			}
			r.m.Forget()
			b.StartTimer()
		}
	}
	b.Run("fresh", func(b *testing.B) {
		r := stock(b, hoard)
		fetch(b, r, `{"max_messages":100}`, 100)
	})
	b.Run("fresh of a topic", func(b *testing.B) {
		r := stock(b, hoard)
		fetch(b, r, `{"max_messages":100,"include_topics":["w","x"]}`, 100)
	})
	b.Run("fresh with auto_ack", func(b *testing.B) {
		r := stock(b, hoard)
		fetch(b, r, `{"max_messages":100,"auto_ack":true}`, 100)
	})
	b.Run("fresh behind 10000 that have expired", func(b *testing.B) {
		r := newRig(b)
		r.register("a")
		r.sendMany(10_000, draft{to: "a", priority: 9, ttl: time.Second})
		r.sendMany(100, draft{to: "a"})
		r.nowMS += 1000
		r.flush()
		fetch(b, r, `{"max_messages":100}`, 100)
	})
	r := inFlight(b)
	b.Run("in flight none due", func(b *testing.B) { fetch(b, r, `{"max_messages":100}`, 0) })
	b.Run("in flight none due of a topic", func(b *testing.B) { fetch(b, r, `{"max_messages":100,"include_topics":["w","x"]}`, 0) })
	b.Run("in flight all due", func(b *testing.B) { fetch(b, r, `{"max_messages":100,"redeliver_after_ms":0}`, 100) })
	b.Run("in flight all due of a topic", func(b *testing.B) {
		fetch(b, r, `{"max_messages":100,"redeliver_after_ms":0,"include_topics":["w","x"]}`, 100)
	})
	// The process starts anew and fetches half of all again without an ack: the
	// other half is behind it.
	r.register("a")
	for range hoard / 200 {
		r.give(b, "a", `{"max_messages":100}`, 100)
	}
	b.Run("in flight half due", func(b *testing.B) { fetch(b, r, `{"max_messages":100}`, 100) })
}

func BenchmarkPoll(b *testing.B) {
	r := inFlight(b)
	r.flush()
	for name, options := range map[string]string{"none due": `{}`, "none due of a topic": `{"include_topics":["w","x"]}`, "all due": `{"redeliver_after_ms":0}`} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, refusal := r.poll("a", options); refusal != nil {
					b.Fatal(refusal)
				}
			}
		})
	}
}

// One operation is a tick with 500 deliveries that expire.
func BenchmarkExpiry(b *testing.B) {
	r := stock(b, hoard)
	r.nowMS += 25 * time.Hour.Milliseconds()
	n := 0
	for b.Loop() {
		if n += len(r.tick()); n > hoard-500 {
			b.StopTimer()
			r = stock(b, hoard)
			r.nowMS += 25 * time.Hour.Milliseconds()
			n = 0
			b.StartTimer()
		}
	}
}

func BenchmarkAck(b *testing.B) {
	b.Run("in flight by message id", func(b *testing.B) {
		r := inFlight(b)
		id := 0
		for b.Loop() {
			id++
			body := fmt.Sprintf(`{"ids":["0193b7a1-7c00-7000-8000-%012d"]}`, 2+id%hoard)
			if _, err := r.m.Apply(r.db, r.input("a", step.Command{Verb: "ack", Body: []byte(body)})); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("unknown with 1000 fresh", func(b *testing.B) {
		r := stock(b, 1000)
		for b.Loop() {
			r.do("a", "ack", `{"ids":["unknown"]}`)
		}
	})
}
