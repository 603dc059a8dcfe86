package assign

import (
	"testing"

	"pgregory.net/rapid"
)

// 1 s × 2ⁿ⁻¹ ≤ 5 min.
func TestBackoffWithoutJitterDoublesUpToItsMaximum(t *testing.T) {
	b := Defaults().Backoff
	b.Jitter = 0
	for i, want := range []int64{1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000} {
		if got := b.Delay(int64(i)+1, "j", int64(i)+2); got != want {
			t.Errorf("retry %d rests %d ms, want %d", i+1, got, want)
		}
	}
	if got := b.Delay(1<<40, "j", 2); got != 300_000 {
		t.Errorf("a far retry rests %d ms", got)
	}
	b.Factor = 1.5
	for i, want := range []int64{1000, 1500, 2250, 3375, 5062} {
		if got := b.Delay(int64(i)+1, "j", 2); got != want {
			t.Errorf("with factor 1.5 retry %d rests %d ms, want %d", i+1, got, want)
		}
	}
}

// The figures are part of the rules: a replay must find the same.
func TestBackoffIsTheSameOnEveryRun(t *testing.T) {
	b := Defaults().Backoff
	for _, c := range []struct {
		n       int64
		job     string
		attempt int64
		want    int64
	}{{1, "j", 2, 820}, {2, "j", 3, 2145}, {1, "k", 2, 823}, {1, "gone", 2, 947}, {1, "beats", 2, 1169}, {10, "j", 11, 247_653}} {
		if got := b.Delay(c.n, c.job, c.attempt); got != c.want {
			t.Errorf("retry %d of %s at attempt %d rests %d ms, want %d", c.n, c.job, c.attempt, got, c.want)
		}
	}
}

// The cap comes first, then the jitter: so even at the cap two jobs differ.
func TestBackoffStaysWithinItsJitter(t *testing.T) {
	seen := map[int64]bool{}
	rapid.Check(t, func(t *rapid.T) {
		b := Backoff{BaseMS: rapid.Int64Range(1, 10_000).Draw(t, "base"), Factor: rapid.Float64Range(1, 10).Draw(t, "factor"),
			MaxMS: rapid.Int64Range(1, 1_000_000).Draw(t, "max"), Jitter: rapid.Float64Range(0, 1).Draw(t, "jitter")}
		n, job, attempt := rapid.Int64Range(1, 30).Draw(t, "n"), rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "job"), rapid.Int64Range(2, 40).Draw(t, "attempt")
		still := b
		still.Jitter = 0
		whole, got := float64(still.Delay(n, job, attempt)), float64(b.Delay(n, job, attempt))
		if whole > float64(max(b.MaxMS, 1)) || got < max(1, whole*(1-b.Jitter)-1) || got > max(1, (whole+1)*(1+b.Jitter)) {
			t.Fatalf("%+v rests %v ms, without jitter %v", b, got, whole)
		}
		seen[Defaults().Backoff.Delay(20, job, attempt)] = true
	})
	if len(seen) < 10 {
		t.Errorf("at the cap jobs rest only %v", seen)
	}
}
