package bench

import (
	"testing"
	"time"
)

// TestABodyCarriesItsNumber is what the count of lost messages relies on.
func TestABodyCarriesItsNumber(t *testing.T) {
	l := newLoad(7, 3, 256)
	ids := map[string]bool{}
	for _, n := range []int{0, 1, 999_999_999} {
		letter := l.letter(n, nil)
		if len(letter.body) != 256 {
			t.Errorf("message %d has %d bytes", n, len(letter.body))
		}
		phase, publisher, got, ok := parseNumber(string(letter.body))
		if !ok || phase != 7 || publisher != 3 || got != n {
			t.Errorf("message %d reads as %d.%d.%d (%v)", n, phase, publisher, got, ok)
		}
		ids[letter.correlation], ids[letter.trace] = true, true
	}
	if len(ids) != 6 {
		t.Errorf("six ids, %d of them different", len(ids))
	}
}

func TestWhatIsMissingOrDoubledIsCounted(t *testing.T) {
	count := newTally(2, []int{2, 2})
	for _, body := range []string{"02.00.000000000", "02.00.000000001", "02.00.000000001 again", "02.01.000000000"} {
		if !count.note(body) {
			t.Errorf("%q does not count", body)
		}
	}
	for _, body := range []string{"", "a body of somebody else", "01.00.000000000", "02.02.000000000", "02.00.000000002"} {
		if count.note(body) {
			t.Errorf("%q counts", body)
		}
	}
	if count.lost() != 1 || count.doubled != 1 {
		t.Errorf("lost %d, doubled %d; want 1 and 1", count.lost(), count.doubled)
	}
}

func TestARowIsSeenWithTheFirstSampleThatCoversIt(t *testing.T) {
	at := time.Unix(1000, 0)
	p := &passage{samples: []sample{{at, 10}, {at.Add(1), 20}, {at.Add(2), 21}}}
	for id, want := range map[int64]time.Duration{1: 0, 10: 0, 11: 1, 20: 1, 21: 2} {
		if got := p.seen(id).Sub(at); got != want {
			t.Errorf("row %d was seen in sample %d, want %d", id, got, want)
		}
	}
}

func TestQuantilesAreOfTheNearestRank(t *testing.T) {
	var values []time.Duration
	for i := range 100 {
		values = append(values, time.Duration(i))
	}
	if p50, p99 := quantile(values, 0.5), quantile(values, 0.99); p50 != 49 || p99 != 98 {
		t.Errorf("p50 %d, p99 %d", p50, p99)
	}
	if only := quantile(values[:1], 0.99); only != 0 {
		t.Errorf("p99 of one value is %d", only)
	}
}
