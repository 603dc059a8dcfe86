package audit_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"testing"

	"signalbox/audit"
	"signalbox/wire"
)

func TestStatsCountEveryRowWhereverTheIndexIs(t *testing.T) {
	ctx := context.Background()
	random := rand.New(rand.NewPCG(1, 2))
	at := int64(1e18)
	l := newLedger(t)
	var rows []*audit.Row
	var nowMS int64
	r := l.reader()
	if s := must[audit.Stats](t)(r.Stats(ctx)); s.TotalMessages != 0 || s.Urgent != 0 || s.Normal != 0 || !s.FirstAt.IsZero() {
		t.Fatalf("an empty register counts %+v", s)
	}
	check := func(when string) {
		t.Helper()
		kinds := map[wire.Kind]int64{}
		var urgent, normal int64
		for _, row := range rows {
			kinds[row.Kind]++
			if row.Kind == wire.Msg && row.ExpiresAtMS > nowMS {
				if row.Priority >= wire.UrgentPriority {
					urgent++
				} else {
					normal++
				}
			}
		}
		s := must[audit.Stats](t)(r.Stats(ctx))
		if !maps.Equal(s.Kinds, kinds) || s.Urgent != urgent || s.Normal != normal || s.TotalMessages != int64(len(rows)) {
			t.Errorf("%s: %+v, want kinds %v, urgent %d, normal %d", when, s, kinds, urgent, normal)
		}
		if urgent == 0 || normal == 0 {
			t.Fatalf("%s: nothing to count", when)
		}
		if s.FirstID != 1 || !s.FirstAt.Equal(rows[0].At()) || s.LastID != int64(len(rows)) || !s.LastAt.Equal(rows[len(rows)-1].At()) {
			t.Errorf("%s: from %d at %s to %d at %s", when, s.FirstID, s.FirstAt, s.LastID, s.LastAt)
		}
	}
	for i := range 3 {
		more := randomRows(random, 1500, &at)
		nowMS = at / 1e6
		l.write(more, func(b *audit.Batch) error {
			b.State.BusNS = at
			return errors.Join(b.Refuse(b.NextID()-1, wire.Errorf(wire.NotFound, "x")),
				b.Bury(audit.DeadLetter{Recipient: "a", ID: int64(i)}),
				b.Queue(audit.Outgoing{ID: string(rune('a' + i)), Subject: "s", Body: []byte{}}))
		})
		rows = append(rows, more...)
		check("before the index")
		if i < 2 {
			ix := l.index(audit.IndexOptions{})
			if err := errors.Join(ix.CatchUp(ctx), ix.Close()); err != nil {
				t.Fatal(err)
			}
			check("after the index")
		}
	}
	if s := must[audit.Stats](t)(r.Stats(ctx)); s.DLQ != 3 || s.OutboxDepth != 3 || s.Refusals[wire.NotFound] != 3 || s.Gaps != 0 {
		t.Errorf("%+v, want three dead letters, entries of the outbox and refusals", s)
	}
}

func TestStatsCountAMessageWhoseBlockWasIndexedInParts(t *testing.T) {
	ctx := context.Background()
	l := newLedger(t)
	ix := l.index(audit.IndexOptions{})
	defer ix.Close()
	for _, expires := range []int64{0, 9000, 1000, 0} {
		l.write([]*audit.Row{{Subject: "s", Priority: 7, ExpiresAtMS: expires}}, func(b *audit.Batch) error {
			b.State.BusNS = 5e9
			return nil
		})
		if err := ix.CatchUp(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if s := must[audit.Stats](t)(l.reader().Stats(ctx)); s.Urgent != 1 || s.Normal != 0 {
		t.Fatalf("%d urgent and %d normal messages, want 1 and 0", s.Urgent, s.Normal)
	}
}
