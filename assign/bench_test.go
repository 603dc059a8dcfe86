package assign

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"signalbox/step"
)

// prepared is a step.DB that keeps statements by their text, as the register
// does.
type prepared struct {
	tx    *sql.Tx
	stmts map[string]*sql.Stmt
	calls int
}

func (p *prepared) stmt(query string) *sql.Stmt {
	p.calls++
	s := p.stmts[query]
	if s == nil {
		var err error
		if s, err = p.tx.Prepare(query); err != nil {
			panic(err)
		}
		p.stmts[query] = s
	}
	return s
}

func (p *prepared) Exec(query string, args ...any) (sql.Result, error) {
	return p.stmt(query).Exec(args...)
}

func (p *prepared) Query(query string, args ...any) (*sql.Rows, error) {
	return p.stmt(query).Query(args...)
}

func (p *prepared) QueryRow(query string, args ...any) *sql.Row {
	return p.stmt(query).QueryRow(args...)
}

// benchmarkLife is a job's whole life: created, running, succeeded. Everything
// but the commit, on a table of earlier jobs in a file.
func benchmarkLife(b *testing.B, before int, body string) {
	db, err := sql.Open("sqlite", filepath.Join(b.TempDir(), "jobs.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_pragma=cache_size(-32000)")
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec(ddl(b)); err != nil {
		b.Fatal(err)
	}
	tx, err := db.Begin()
	if err != nil {
		b.Fatal(err)
	}
	defer tx.Rollback()
	p := &prepared{tx: tx, stmts: map[string]*sql.Stmt{}}
	m, n := New(), 0
	life := func() {
		n++
		id := fmt.Sprintf("job-%08d", n*7919%100_000_000)
		in := step.Input{Place: step.Place{Incarnation: 1, Seq: uint64(n)}, ID: int64(n), NowMS: start + int64(n), At: time.UnixMilli(start + int64(n)), From: "sup"}
		for _, c := range [...]struct{ from, verb, body string }{
			{"sup", verbCreate, fmt.Sprintf(`{"job_id":%q,"worker_agent":"w",%s}`, id, body)},
			{"w", verbReport, fmt.Sprintf(`{"job_id":%q,"attempt":1,"status":"running"}`, id)},
			{"w", verbReport, fmt.Sprintf(`{"job_id":%q,"attempt":1,"status":"succeeded","result":{"ok":true}}`, id)},
		} {
			in.From, in.Event = c.from, step.Command{Verb: c.verb, Body: []byte(c.body)}
			if _, err := m.Apply(p, in); err != nil {
				b.Fatal(err)
			}
		}
	}
	for range before {
		life()
	}
	p.calls = 0
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		life()
	}
	b.ReportMetric(float64(p.calls)/float64(b.N), "statements/op")
}

func BenchmarkLifeOfAJob(b *testing.B) { benchmarkLife(b, 0, `"task":"build the thing"`) }
func BenchmarkLifeOfAJobAfter50000(b *testing.B) {
	benchmarkLife(b, 50_000, `"task":"build the thing"`)
}
func BenchmarkLifeOfALargeJob(b *testing.B) {
	benchmarkLife(b, 0, `"payload":"`+strings.Repeat("x", 200<<10)+`"`)
}
