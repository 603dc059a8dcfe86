package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"signalbox/audit"
	"signalbox/wire"
)

// Every filter, alone and combined, gives what a look at every row gives, with
// the index nowhere, half way, complete, or deleted in between.
func TestLogAnswersLikeALookAtEveryRow(t *testing.T) {
	ctx := context.Background()
	rapid.Check(t, func(rt *rapid.T) {
		l := newLedger(t)
		defer l.stop()
		seed := rapid.Uint64().Draw(rt, "seed")
		random := rand.New(rand.NewPCG(seed, 1))
		at := int64(1e18)
		var rows []*audit.Row
		indexed := rapid.SampledFrom([]string{"none", "half", "look-ups only", "all", "deleted"}).Draw(rt, "index")
		for _, n := range []int{rapid.IntRange(1, 900).Draw(rt, "rows"), rapid.IntRange(1, 900).Draw(rt, "more")} {
			more := randomRows(random, n, &at)
			l.write(more)
			rows = append(rows, more...)
			if indexed == "none" || indexed == "half" && len(rows) > n {
				continue
			}
			ix, err := audit.OpenIndex(ctx, l.indexPath(), l.path, audit.IndexOptions{Search: indexed != "look-ups only"})
			if err != nil {
				rt.Fatal(err)
			}
			if err := errors.Join(ix.CatchUp(ctx), ix.Close()); err != nil {
				rt.Fatal(err)
			}
		}
		r, err := audit.OpenReader(ctx, l.path, audit.ReaderOptions{})
		if err != nil {
			rt.Fatal(err)
		}
		defer r.Close()
		for i := range 12 {
			if indexed == "deleted" && i == 6 {
				if err := os.Remove(l.indexPath()); err != nil {
					rt.Fatal(err)
				}
			}
			f := drawFilter(rt, rows)
			page, err := r.Log(ctx, f)
			if err != nil {
				rt.Fatal(err)
			}
			if got, want := rowIDs(page.Rows), wantPage(f, rows); !slices.Equal(got, want) {
				text, _ := json.Marshal(f)
				rt.Fatalf("index %s, %d rows, filter %s:\n got %v\nwant %v", indexed, len(rows), text, got, want)
			}
			checkNext(rt, f, page, int64(len(rows)))
		}
	})
}

// checkNext: the next page starts behind what this one has looked at.
func checkNext(t *rapid.T, f audit.Filter, p audit.Page, last int64) {
	if f.After == nil {
		if p.NextAfter != last {
			t.Fatalf("the newest page goes on after %d, want %d", p.NextAfter, last)
		}
		return
	}
	want := max(last, *f.After)
	limit := f.Limit
	if limit == 0 {
		limit = audit.DefaultLimit
	}
	if len(p.Rows) == limit {
		want = p.Rows[limit-1].ID
	}
	if p.NextAfter != want || p.More != (want < last) {
		t.Fatalf("the page goes on after %d (more %v), want %d of %d", p.NextAfter, p.More, want, last)
	}
}

func TestConsumerFollowsWhileRowsAreAdded(t *testing.T) {
	const total = 6000
	l := newLedger(t)
	ctx := context.Background()
	r := l.reader()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; n < total; {
			var rows []*audit.Row
			for range 37 {
				n++
				rows = append(rows, &audit.Row{Subject: "s", From: []string{"odd", "even"}[n%2]})
			}
			l.write(rows)
		}
	}()
	defer func() { <-done }()
	after, want := int64(0), int64(1)
	for want < total {
		page := must[audit.Page](t)(r.Log(ctx, audit.Filter{From: "even", After: &after, Limit: 50}))
		for _, row := range page.Rows {
			if row.ID != want {
				t.Fatalf("after %d came row %d, want %d", after, row.ID, want)
			}
			want += 2
		}
		after = page.NextAfter
	}
}

func TestPagesWithinABoundCoverEverything(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	rows := make([]*audit.Row, 2000)
	for i := range rows {
		rows[i] = &audit.Row{Subject: "s", From: "x"}
	}
	rows[1234].From = "y"
	l.write(rows)
	r := l.reader()
	after, pages, found := int64(0), 0, []int64{}
	for more := true; more; pages++ {
		page := must[audit.Page](t)(r.Log(ctx, audit.Filter{From: "y", After: &after, Within: 300}))
		found = append(found, rowIDs(page.Rows)...)
		if page.NextAfter != min(after+300, 2000) {
			t.Fatalf("after %d the page ends at %d", after, page.NextAfter)
		}
		after, more = page.NextAfter, page.More
	}
	if pages != 7 || !slices.Equal(found, []int64{1235}) {
		t.Fatalf("%d pages found %v, want row 1235 in 7", pages, found)
	}
	newest := must[audit.Page](t)(r.Log(ctx, audit.Filter{From: "y", Within: 300}))
	if len(newest.Rows) != 0 || !newest.More {
		t.Fatalf("the newest 300 rows: %v, more %v", rowIDs(newest.Rows), newest.More)
	}
}

func TestGapStandsInItsPlace(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	l.write([]*audit.Row{{Subject: "s"}, {Subject: "s"}})
	l.write(nil, func(b *audit.Batch) error {
		if err := b.Gap(audit.Gap{Stream: "BUS", Incarnation: 1, From: 3, To: 9, Reason: audit.Overtaken}); err != nil {
			return err
		}
		return b.Append(&audit.Row{Incarnation: 1, Seq: 10, Kind: wire.Msg, Subject: "s"})
	})
	l.write([]*audit.Row{{Subject: "s"}})
	r := l.reader()
	after := int64(0)
	for id := int64(1); id <= 4; id++ {
		page := must[audit.Page](t)(r.Log(ctx, audit.Filter{After: &after, Limit: 1}))
		if has := len(page.Gaps) == 1 && page.Gaps[0].Cause == 3; has != (id == 3) {
			t.Errorf("page of row %d has gaps %+v", id, page.Gaps)
		}
		after = page.NextAfter
	}
	for limit, want := range map[int]int{1: 0, 2: 1, 4: 1} {
		if page := must[audit.Page](t)(r.Log(ctx, audit.Filter{Limit: limit})); len(page.Gaps) != want {
			t.Errorf("the newest %d rows have gaps %+v, want %d", limit, page.Gaps, want)
		}
	}
}

func TestTraceIsWholeAndByMessageIDExact(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	var rows []*audit.Row
	for i := range 2500 { // more than one page
		row := &audit.Row{Subject: "s", MessageID: fmt.Sprint("m", i), TraceID: "other", CorrelationID: "c"}
		switch i % 3 {
		case 0:
			row.TraceID = "chain"
		case 1:
			row.CorrelationID = "chain"
		}
		rows = append(rows, row)
	}
	rows[2].MessageID = "chain"
	l.write(rows)
	r := l.reader()
	got := rowIDs(must[[]*audit.Row](t)(r.Trace(ctx, "chain")))
	if len(got) != 1668 || !slices.IsSorted(got) || !slices.Contains(got, 3) {
		t.Errorf("the chain has %d rows", len(got))
	}
	if got := rowIDs(must[[]*audit.Row](t)(r.ByMessageID(ctx, "m7"))); !slices.Equal(got, []int64{8}) {
		t.Errorf("message m7 is in rows %v", got)
	}
	if got := must[[]*audit.Row](t)(r.ByMessageID(ctx, "absent")); len(got) != 0 {
		t.Errorf("an absent message is in rows %v", rowIDs(got))
	}
}

func TestSubjectPatternIsThatOfNATS(t *testing.T) {
	subjects := []string{1: "a", 2: "a.b", 3: "a.b.c", 4: "a.x.c", 5: "b", 6: "a.[x].c", 7: "a.f?o.c", 8: "a.fo*.c", 9: "a.fooo.c", 10: "A.b", 11: "a.ü.c",
		12: "a.\x00.c", 13: "a.\xc3.c", 14: "ab.c"}
	var rows []*audit.Row
	for _, s := range subjects[1:] {
		rows = append(rows, &audit.Row{Subject: s})
	}
	l := newLedger(t)
	l.write(rows)
	r := l.reader()
	for pattern, want := range map[string][]int64{
		">":       {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14},
		"*":       {1, 5},
		"a.>":     {2, 3, 4, 6, 7, 8, 9, 11, 12, 13},
		"a.*":     {2},
		"*.b":     {2, 10},
		"a.*.c":   {3, 4, 6, 7, 8, 9, 11, 12, 13},
		"a.[x].*": {6},
		"a.f?o.*": {7},
		"a.fo*.*": {8}, // a * within a token is itself
		"a.fo*.c": {8},
		"a.ü.*":   {11},
		"*.*.c.>": {},
		"a.b":     {2},
	} {
		page := must[audit.Page](t)(r.Log(context.Background(), audit.Filter{Subject: pattern}))
		if got := rowIDs(page.Rows); !slices.Equal(got, want) {
			t.Errorf("%q selects rows %v, want %v", pattern, got, want)
		}
	}
}

func TestFilterThatMeansNothingIsRefused(t *testing.T) {
	l := newLedger(t)
	for _, f := range []audit.Filter{{Subject: "a..b"}, {Subject: "a.>.b"}, {Subject: "."}, {Search: strings.Repeat("word ", 65)}} {
		if _, err := l.reader().Log(context.Background(), f); !errors.Is(err, audit.ErrFilter) {
			t.Errorf("%+v: got %v, want ErrFilter", f, err)
		}
	}
	far := audit.Filter{Since: time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), Until: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	l.write([]*audit.Row{{Subject: "s"}})
	if page := must[audit.Page](t)(l.reader().Log(context.Background(), far)); len(page.Rows) != 1 {
		t.Errorf("between the years 1 and 9999 there are %d rows, want 1", len(page.Rows))
	}
}
