package audit_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"signalbox/audit"
)

func (l *ledger) index(o audit.IndexOptions) *audit.Index {
	l.t.Helper()
	ix, err := audit.OpenIndex(context.Background(), l.indexPath(), l.path, o)
	if err != nil {
		l.t.Fatal(err)
	}
	return ix
}

// until polls, up to 30 s.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		case <-tick.C:
		}
	}
}

func numbered(from, n int) []*audit.Row {
	rows := make([]*audit.Row, n)
	for i := range rows {
		rows[i] = &audit.Row{Subject: "s", From: "a", TraceID: fmt.Sprint("trace-", from+i), Body: []byte(fmt.Sprint("word", from+i))}
	}
	return rows
}

func TestIndexCatchesUpWithWhatItWasNotOffered(t *testing.T) {
	l := newLedger(t)
	l.write(numbered(1, 700))
	ix := l.index(audit.IndexOptions{Search: true})
	if refs, search := ix.Lag(); refs != 700 || search != 700 {
		t.Fatalf("a new index lags by %d and %d rows, want 700", refs, search)
	}
	stop := follow(t, ix)
	r := l.reader()
	until(t, "the index has caught up", func() bool { refs, search := ix.Lag(); return refs == 0 && search == 0 })
	rows := numbered(701, 50)
	l.write(rows)
	ix.Offer(rows)
	l.write(numbered(751, 10)) // committed and never offered
	rows = numbered(761, 5)
	l.write(rows)
	ix.Offer(rows)
	until(t, "row 765 is in the index", func() bool { refs, search := ix.Watermark(); return refs == 765 && search == 765 })
	if refs, search := r.Indexed(context.Background()); refs != 765 || search != 765 {
		t.Fatalf("the reader sees the index at %d and %d, want 765", refs, search)
	}
	for _, n := range []int{1, 700, 730, 755, 765} {
		for _, f := range []audit.Filter{{Trace: fmt.Sprint("trace-", n)}, {Search: fmt.Sprint("word", n)}} {
			if got := rowIDs(must[audit.Page](t)(r.Log(context.Background(), f)).Rows); !slices.Equal(got, []int64{int64(n)}) {
				t.Errorf("%+v found rows %v, want %d", f, got, n)
			}
		}
	}
	stop()
	again := l.index(audit.IndexOptions{})
	defer again.Close()
	if refs, _ := again.Watermark(); refs != 765 {
		t.Fatalf("opened again the index is at %d, want 765", refs)
	}
}

func TestIndexThatCannotBeUsedIsBuiltAnew(t *testing.T) {
	ctx := context.Background()
	damage := map[string]func(t *testing.T, l *ledger){
		"deleted": func(t *testing.T, l *ledger) {
			if err := os.Remove(l.indexPath()); err != nil {
				t.Fatal(err)
			}
		},
		"deleted but for its log": func(t *testing.T, l *ledger) {
			if err := os.Rename(l.indexPath(), l.indexPath()+"-wal"); err != nil {
				t.Fatal(err)
			}
		},
		"no database": func(t *testing.T, l *ledger) {
			if err := os.WriteFile(l.indexPath(), bytes.Repeat([]byte("text "), 5000), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"damaged": func(t *testing.T, l *ledger) {
			f := must[*os.File](t)(os.OpenFile(l.indexPath(), os.O_WRONLY, 0))
			defer f.Close()
			if _, err := f.WriteAt(bytes.Repeat([]byte{0xa5}, 2000), 100); err != nil {
				t.Fatal(err)
			}
		},
		"of something else": func(t *testing.T, l *ledger) {
			if err := os.Remove(l.indexPath()); err != nil {
				t.Fatal(err)
			}
			execSQL(t, l.indexPath(), `CREATE TABLE marks (id)`)
		},
		"of another format":       func(t *testing.T, l *ledger) { execSQL(t, l.indexPath(), `PRAGMA user_version = 99`) },
		"of another register":     func(t *testing.T, l *ledger) { execSQL(t, l.indexPath(), `UPDATE marks SET register_id = 'other'`) },
		"ahead of the register":   func(t *testing.T, l *ledger) { execSQL(t, l.indexPath(), `UPDATE marks SET refs_mark = 9999`) },
		"of other rows":           func(t *testing.T, l *ledger) { execSQL(t, l.indexPath(), `UPDATE marks SET leaf = leaf + 1`) },
		"from before a power cut": func(t *testing.T, l *ledger) { execSQL(t, l.indexPath(), `UPDATE marks SET clean = 0, boot = 'x'`) },
	}
	for name, spoil := range damage {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			l.write(numbered(1, 300))
			ix := l.index(audit.IndexOptions{})
			if err := ix.CatchUp(ctx); err != nil {
				t.Fatal(err)
			}
			if err := ix.Close(); err != nil {
				t.Fatal(err)
			}
			r := l.reader()
			if refs, _ := r.Indexed(ctx); refs != 300 {
				t.Fatalf("the reader sees the whole index at %d, want 300", refs)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			spoil(t, l)
			find := func(r *audit.Reader) {
				t.Helper()
				if got := rowIDs(must[[]*audit.Row](t)(r.Trace(ctx, "trace-77"))); !slices.Equal(got, []int64{77}) {
					t.Fatalf("found rows %v, want 77", got)
				}
			}
			r = l.reader()
			find(r)
			if refs, _ := r.Indexed(ctx); refs != 0 {
				t.Fatalf("the reader uses the spoilt index up to %d", refs)
			}
			ix = l.index(audit.IndexOptions{})
			defer ix.Close()
			if refs, _ := ix.Watermark(); refs != 0 {
				t.Fatalf("the spoilt index is still in use, at %d", refs)
			}
			if err := ix.CatchUp(ctx); err != nil {
				t.Fatal(err)
			}
			if refs, _ := r.Indexed(ctx); refs != 300 {
				t.Fatalf("the reader that was open sees the new index at %d, want 300", refs)
			}
			find(r)
		})
	}
}

func TestIndexDamagedWhileItRunsIsBuiltAnew(t *testing.T) {
	l := newLedger(t)
	l.write(numbered(1, 300))
	ix := l.index(audit.IndexOptions{})
	follow(t, ix)
	until(t, "the index has caught up", func() bool { refs, _ := ix.Lag(); return refs == 0 })
	execSQL(t, l.indexPath(), `DROP TABLE refs`)
	rows := numbered(301, 5)
	l.write(rows)
	ix.Offer(rows)
	until(t, "the index has caught up again", func() bool { refs, _ := ix.Lag(); return refs == 0 })
	if got := rowIDs(must[[]*audit.Row](t)(l.reader().Trace(context.Background(), "trace-77"))); !slices.Equal(got, []int64{77}) {
		t.Fatalf("found rows %v, want 77", got)
	}
	if refs, _ := l.reader().Indexed(context.Background()); refs != 305 {
		t.Fatalf("the reader sees the index at %d, want 305", refs)
	}
}

func TestIndexIsNeverMadeInPlaceOfARegister(t *testing.T) {
	l, other := newLedger(t), newLedger(t)
	other.write(numbered(1, 3))
	other.stop()
	before := must[[]byte](t)(os.ReadFile(other.path))
	_, err := audit.OpenIndex(context.Background(), other.path, l.path, audit.IndexOptions{})
	if err == nil || !strings.Contains(err.Error(), other.path) {
		t.Fatalf("got %v, want an error with the path", err)
	}
	if !bytes.Equal(before, must[[]byte](t)(os.ReadFile(other.path))) {
		t.Fatal("the register at the index's path was changed")
	}
}

func TestIndexOfAnOldRegisterPutBackIsBuiltAnew(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	l.write(numbered(1, 10))
	l.stop()
	old := must[[]byte](t)(os.ReadFile(l.path))
	l.openWriter()
	l.write(numbered(11, 10))
	ix := l.index(audit.IndexOptions{})
	if err := ix.CatchUp(ctx); err != nil {
		t.Fatal(err)
	}
	if err := ix.Close(); err != nil {
		t.Fatal(err)
	}
	l.stop()
	if err := os.WriteFile(l.path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	l.openWriter()
	l.write(numbered(1001, 20)) // it has grown past the index again, with other rows
	r := l.reader()
	find := func() {
		t.Helper()
		if got := rowIDs(must[[]*audit.Row](t)(r.Trace(ctx, "trace-1003"))); !slices.Equal(got, []int64{13}) {
			t.Fatalf("found rows %v, want 13", got)
		}
	}
	find()
	ix = l.index(audit.IndexOptions{})
	defer ix.Close()
	if refs, _ := ix.Watermark(); refs != 0 {
		t.Fatalf("the index of other rows is still in use, at %d", refs)
	}
	if err := ix.CatchUp(ctx); err != nil {
		t.Fatal(err)
	}
	find()
}

func TestIndexIsPrivate(t *testing.T) {
	l := newLedger(t)
	ix := l.index(audit.IndexOptions{})
	defer ix.Close()
	if mode := must[os.FileInfo](t)(os.Stat(l.indexPath())).Mode().Perm(); mode != 0o600 {
		t.Fatalf("mode %o", mode)
	}
}
