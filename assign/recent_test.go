package assign

import (
	"fmt"
	"strings"
	"testing"
)

// dump is all that the machine's tables hold, row by row.
func (b *bus) dump() string {
	b.t.Helper()
	var all strings.Builder
	for _, table := range b.m.Tables() {
		b.dumpTable(&all, table)
	}
	return all.String()
}

func (b *bus) dumpTable(into *strings.Builder, table string) {
	b.t.Helper()
	rows, err := b.db.DB.Query(`SELECT * FROM ` + table)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		b.t.Fatal(err)
	}
	values, pointers := make([]any, len(names)), make([]any, len(names))
	for i := range values {
		pointers[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(pointers...); err != nil {
			b.t.Fatal(err)
		}
		fmt.Fprintln(into, table, values)
	}
	if err := rows.Err(); err != nil {
		b.t.Fatal(err)
	}
}

// lives are some jobs' lives, with every kind of end.
func (b *bus) lives(after func()) {
	say := func(from, verb, body string) {
		_, _ = b.send(from, verb, body) // some of it is refused
		after()
	}
	for i := range 6 {
		id := fmt.Sprintf("j%d", i)
		say("sup", verbCreate, fmt.Sprintf(`{"job_id":%q,"worker_topic":"t","max_retries":%d,"lease_ms":2000,"timeout_ms":9000,"dedup_key":"k%d","payload":[1]}`, id, i%3, i%4))
		say("w", verbClaim, fmt.Sprintf(`{"job_id":%q}`, id))
		b.nowMS += 900
		say("w", verbReport, fmt.Sprintf(`{"job_id":%q,"attempt":1,"status":%q}`, id, []string{"progress", "failed", "released"}[i%3]))
		for range 4 {
			b.nowMS += 800
			b.tick(3)
			after()
		}
		say("v", verbClaim, fmt.Sprintf(`{"job_id":%q}`, id))
		say("sup", verbCancel, fmt.Sprintf(`{"job_id":%q}`, fmt.Sprintf("j%d", i/2)))
		say("sup", verbRetry, fmt.Sprintf(`{"job_id":%q,"force":true}`, fmt.Sprintf("j%d", i/3)))
		say("sup", verbCreate, `{"worker_agent":"w"}`)
	}
}

// Promise 2: folding the same log again gives the same tables, row by row, and
// whatever is remembered between two steps does not matter.
func TestFoldingTheSameLogAgainGivesTheSameTables(t *testing.T) {
	first, again, forgetful := newBus(t), newBus(t), newBus(t)
	first.lives(func() {})
	again.lives(func() {})
	forgetful.lives(forgetful.m.Forget)
	want := first.dump()
	if strings.Count(want, "\n") < 20 {
		t.Fatalf("too little has happened:\n%s", want)
	}
	if got := again.dump(); got != want {
		t.Errorf("folded again the tables are\n%s\nand were\n%s", got, want)
	}
	if got := forgetful.dump(); got != want {
		t.Errorf("without memory the tables are\n%s\nand with it\n%s", got, want)
	}
}

// What a rolled-back batch had written is forgotten with it.
func TestAfterARollBackTheTablesCount(t *testing.T) {
	b := newBus(t)
	b.do("sup", verbCreate, `{"job_id":"j","worker_topic":"t"}`)
	for _, text := range []string{`SAVEPOINT batch`, `ROLLBACK TO batch`} {
		if _, err := b.db.DB.Exec(text); err != nil {
			t.Fatal(err)
		}
		if text == `SAVEPOINT batch` {
			b.do("w1", verbClaim, `{"job_id":"j"}`)
		}
	}
	b.m.Forget()
	if reply := b.do("w2", verbClaim, `{"job_id":"j"}`); reply["worker_agent"] != "w2" {
		t.Errorf("the claim after the roll-back is %v", reply)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	r := recent{}
	for i := range 3 * maxRecent {
		r.note(&Job{JobID: fmt.Sprint(i), Status: Queued})
		if len(r) > maxRecent {
			t.Fatalf("it remembers %d jobs", len(r))
		}
	}
	clear(r)
	r.note(&Job{JobID: "large", Status: Queued, Payload: make([]byte, maxRecentBytes+1)})
	r.note(&Job{JobID: "j", Status: Running})
	r.note(&Job{JobID: "j", Status: Failed})
	if len(r) != 0 {
		t.Errorf("it remembers %v", r)
	}
}

// The rule and the statement that does it to all jobs at once are the same.
func TestAStartRenewsTheLeasesThatTheRuleSays(t *testing.T) {
	for _, c := range []struct {
		down  int64 // from the last message to the start
		last  int64 // from the beginning of the lease to the last message
		lease int64 // left after the start
	}{{0, 0, 5000}, {10_000, 4999, 5000}, {10_000, 5000, -10_000}, {0, 5000, 0}, {1, 6000, -1001}} {
		b := newBus(t)
		b.do("sup", verbCreate, `{"job_id":"j","worker_agent":"w","lease_ms":5000,"timeout_ms":18000}`)
		b.do("w", verbReport, `{"job_id":"j","attempt":1,"status":"running"}`)
		before, err := tables{b.db}.job("j")
		if err != nil {
			t.Fatal(err)
		}
		b.nowMS += c.last
		b.restart(c.down)
		after, err := tables{b.db}.job("j")
		if err != nil {
			t.Fatal(err)
		}
		rule := Restart(*before, b.nowMS, b.nowMS-c.down)
		var due int64
		if err := b.db.QueryRow(`SELECT due_at_ms FROM jobs`).Scan(&due); err != nil {
			t.Fatal(err)
		}
		if after.LeaseExpires-b.nowMS != c.lease || rule.LeaseExpires != after.LeaseExpires || due != rule.DueAtMS() {
			t.Errorf("%+v: the lease has %d ms left, by the rule %d, and is due at %d", c, after.LeaseExpires-b.nowMS, rule.LeaseExpires-b.nowMS, due-start)
		}
	}
}
