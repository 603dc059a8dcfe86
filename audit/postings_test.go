package audit_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"signalbox/audit"
	"signalbox/wire"
)

// Rare values at the edges of blocks, which the index leads to and whose
// neighbours it skips.
func TestIndexFindsRareRowsAtTheEdgesOfBlocks(t *testing.T) {
	ctx := context.Background()
	l := newLedger(t)
	rows := make([]*audit.Row, 40_000)
	for i := range rows {
		rows[i] = &audit.Row{Subject: "bus.msg.crowd.agent.crowd", From: "crowd", To: "agent:crowd", AtNS: 1e9}
	}
	row := func(id int) *audit.Row { return rows[id-1] }
	// The first and last rows of blocks, alone and beside others, and of what
	// one statement looks through.
	edges := []int64{1, 511, 512, 1023, 1024, 1025, 5119, 5120, 7232, 7233, 20_479, 30_208, 32_768, 32_769, 40_000}
	for _, id := range edges {
		row(int(id)).From, row(int(id)).AtNS = "zed", 2e9
	}
	event := func(id int, subject string) {
		row(id).Kind, row(id).From, row(id).To, row(id).Subject = wire.Evt, wire.Bridge, "", subject
	}
	event(9000, "bus.evt.notice.yan.refused")
	event(19_000, "bus.evt.agents.yan.online")
	event(24_000, "bus.evt.assign.yan.failed") // about a job of that name
	row(29_000).To = "agent:yan"
	row(34_000).From = "yan"
	l.write(rows)
	ix := l.index(audit.IndexOptions{})
	defer ix.Close()
	r := l.reader()
	zero := int64(0)
	for i, after := range []*int64{nil, &zero, nil, &zero} {
		if i == 2 { // the first two rounds had no index
			if err := ix.CatchUp(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			filter audit.Filter
			want   []int64
		}{
			{audit.Filter{From: "zed"}, edges},
			{audit.Filter{Since: time.Unix(2, 0)}, edges},
			{audit.Filter{Since: time.Unix(2, 0), Until: time.Unix(2, 1), From: "zed"}, edges},
			{audit.Filter{ForAgent: "yan"}, []int64{9000, 19_000, 29_000, 34_000}},
		} {
			c.filter.After = after
			if got := rowIDs(must[audit.Page](t)(r.Log(ctx, c.filter)).Rows); !slices.Equal(got, c.want) {
				t.Errorf("%+v selects rows %v, want %v", c.filter, got, c.want)
			}
		}
	}
}

// A value that many rows share is read in pages without holes.
func TestIndexOfACommonTraceIsReadInPages(t *testing.T) {
	ctx := context.Background()
	l := newLedger(t)
	rows := make([]*audit.Row, 5000)
	for i := range rows {
		rows[i] = &audit.Row{Subject: "s", TraceID: "common", CorrelationID: "c", From: []string{"a", "b"}[i%2]}
	}
	l.write(rows)
	ix := l.index(audit.IndexOptions{})
	defer ix.Close()
	if err := ix.CatchUp(ctx); err != nil {
		t.Fatal(err)
	}
	l.write([]*audit.Row{{Subject: "s", TraceID: "common", From: "a"}})
	r := l.reader()
	for _, c := range []struct {
		from string
		step int64
	}{{"", 1}, {"a", 2}} {
		var want, got []int64
		for id := int64(1); id <= 5001; id += c.step {
			want = append(want, id)
		}
		after := int64(0)
		for more := true; more; {
			page := must[audit.Page](t)(r.Log(ctx, audit.Filter{Trace: "common", From: c.from, After: &after, Limit: 700}))
			got = append(got, rowIDs(page.Rows)...)
			after, more = page.NextAfter, page.More
		}
		if !slices.Equal(got, want) {
			t.Errorf("from %q: %d rows, want %d", c.from, len(got), len(want))
		}
		newest := rowIDs(must[audit.Page](t)(r.Log(ctx, audit.Filter{Trace: "common", From: c.from, Limit: 900})).Rows)
		if !slices.Equal(newest, want[len(want)-900:]) {
			t.Errorf("from %q: the newest 900 rows are %d from %d", c.from, len(newest), newest[0])
		}
	}
}
