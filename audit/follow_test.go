package audit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/audit"
	"signalbox/wire"
)

// follow runs the index until the test ends or the result is called.
func follow(t testing.TB, ix *audit.Index) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- ix.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := ix.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func TestOfferThatDoesNotFitIsReadFromTheRegister(t *testing.T) {
	l := newLedger(t)
	ix := l.index(audit.IndexOptions{})
	const commits, each = 140, 1000
	for i := range commits { // nobody takes from the queue
		rows := numbered(i*each+1, each)
		l.write(rows)
		ix.Offer(rows)
	}
	if ix.Skipped() == 0 {
		t.Fatal("140,000 rows fit into the queue")
	}
	if refs, search := ix.Lag(); refs != commits*each || search != 0 {
		t.Fatalf("lag %d, and %d without full text", refs, search)
	}
	follow(t, ix)
	until(t, "the index has caught up", func() bool { refs, _ := ix.Lag(); return refs == 0 })
	r := l.reader()
	for _, n := range []int64{1, 65_000, 66_000, commits * each} {
		rows := must[[]*audit.Row](t)(r.Trace(context.Background(), fmt.Sprint("trace-", n)))
		if got := rowIDs(rows); !slices.Equal(got, []int64{n}) {
			t.Errorf("trace %d has rows %v", n, got)
		}
	}
}

func TestOfferAfterRowsThatWereNotOfferedLeavesNoHole(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	ix := l.index(audit.IndexOptions{})
	defer ix.Close()
	l.write(numbered(1, 10))
	rows := numbered(11, 10)
	l.write(rows)
	ix.Offer(rows)
	ix.Offer(rows) // again, as after a batch of unknown outcome
	if err := ix.CatchUp(ctx); err != nil {
		t.Fatal(err)
	}
	if refs, _ := ix.Watermark(); refs != 20 {
		t.Fatalf("the index is at %d, want 20", refs)
	}
	for n := int64(1); n <= 20; n++ {
		if got := rowIDs(must[[]*audit.Row](t)(l.reader().Trace(ctx, fmt.Sprint("trace-", n)))); !slices.Equal(got, []int64{n}) {
			t.Errorf("trace %d has rows %v", n, got)
		}
	}
}

// BenchmarkOfferAndFollow is the index alone: rows with random ids, offered in
// commits of 1,000, until the index has them.
func BenchmarkOfferAndFollow(b *testing.B) {
	for _, ids := range []string{"random", "uuid7"} {
		b.Run(ids, func(b *testing.B) {
			l := newLedger(b)
			ix := l.index(audit.IndexOptions{})
			follow(b, ix)
			agents := make([]string, 100)
			for i := range agents {
				agents[i] = fmt.Sprint("agent-", i)
			}
			id := func() string {
				if ids == "uuid7" {
					return must[uuid.UUID](b)(uuid.NewV7()).String()
				}
				return uuid.NewString()
			}
			rows := make([]*audit.Row, b.N)
			for i := range rows {
				a := agents[rand.IntN(len(agents))]
				rows[i] = &audit.Row{ID: int64(i + 1), AtNS: int64(i), Kind: wire.Msg, Subject: "bus.msg." + a + ".agent.x", MessageID: id(),
					From: a, To: "agent:" + agents[rand.IntN(len(agents))], TraceID: id(), CorrelationID: id()}
			}
			b.ResetTimer()
			var offering time.Duration
			for chunk := range slices.Chunk(rows, 1000) {
				until(b, "there is room", func() bool { refs, _ := ix.Lag(); return refs < 40_000 })
				began := time.Now()
				ix.Offer(chunk)
				offering += time.Since(began)
			}
			until(b, "the index has caught up", func() bool { refs, _ := ix.Lag(); return refs == 0 })
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
			b.ReportMetric(float64(offering.Nanoseconds())/float64(b.N), "offer-ns/row")
			if ix.Skipped() > 0 {
				b.Fatalf("%d rows were skipped", ix.Skipped())
			}
			if info, err := os.Stat(filepath.Join(filepath.Dir(l.path), "index.db")); err == nil {
				b.ReportMetric(float64(info.Size())/float64(b.N), "bytes/row")
			}
		})
	}
}
