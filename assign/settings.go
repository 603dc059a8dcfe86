package assign

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"signalbox/step"
)

// Bounds of what a job may ask for.
const (
	MinTimeout = time.Second
	// MaxTimeout is also the longest that a message lives: a handoff must not
	// end before its job.
	MaxTimeout = 24 * time.Hour
	MaxRetries = 20
	// MaxAhead is how far in the future run_at_ms may be.
	MaxAhead = 366 * 24 * time.Hour
	// MaxDelay is the longest retry_after_ms.
	MaxDelay = 24 * time.Hour
)

// minRelease is the least time for which a job that was given back rests, so
// that a worker that cannot do it does not take it again at once.
const minRelease = time.Second

// Settings are what holds for a job that does not say otherwise, as the last
// bridge.started had it.
type Settings struct {
	TimeoutMS  int64   `json:"timeout_ms"`  // of an attempt; clamped to MinTimeout … MaxTimeout
	MaxRetries int64   `json:"max_retries"` // clamped to 0 … MaxRetries
	Backoff    Backoff `json:"backoff"`
}

// Backoff is how long a job rests before its n-th retry: base × factor^(n−1),
// at most max, and then up to the part jitter more or less.
type Backoff struct {
	BaseMS int64   `json:"base_ms"`
	Factor float64 `json:"factor"` // at least 1
	MaxMS  int64   `json:"max_ms"`
	Jitter float64 `json:"jitter"` // 0 to 1
}

// Defaults are the settings where a start has said nothing else.
func Defaults() Settings {
	return Settings{TimeoutMS: (10 * time.Minute).Milliseconds(),
		Backoff: Backoff{BaseMS: time.Second.Milliseconds(), Factor: 2, MaxMS: (5 * time.Minute).Milliseconds(), Jitter: 0.2}}
}

// readSettings reads the settings of the last start. What is missing has its
// default, and so has a time or a factor that makes no sense.
func readSettings(in step.Settings) (Settings, error) {
	s, d := Defaults(), Defaults()
	if err := in.Read(machineName, &s); err != nil {
		return s, fmt.Errorf("the settings of assign: %w", err)
	}
	for _, v := range []struct{ value, otherwise *int64 }{
		{&s.TimeoutMS, &d.TimeoutMS}, {&s.Backoff.BaseMS, &d.Backoff.BaseMS}, {&s.Backoff.MaxMS, &d.Backoff.MaxMS},
	} {
		if *v.value <= 0 {
			*v.value = *v.otherwise
		}
	}
	if s.Backoff.Factor < 1 {
		s.Backoff.Factor = d.Backoff.Factor
	}
	s.Backoff.Jitter = min(max(s.Backoff.Jitter, 0), 1)
	s.TimeoutMS = min(max(s.TimeoutMS, MinTimeout.Milliseconds()), MaxTimeout.Milliseconds())
	s.MaxRetries = min(max(s.MaxRetries, 0), MaxRetries)
	return s, nil
}

// Delay is the rest before the n-th retry of a job, which begins the attempt;
// milliseconds, at least 1. The jitter is derived from job and attempt, so that
// a replay waits as long and two jobs that failed together do not come back
// together.
func (b Backoff) Delay(n int64, jobID string, attempt int64) int64 {
	d, most := float64(b.BaseMS), float64(b.MaxMS)
	for i := int64(1); i < n && d < most; i++ {
		d = float64(d * b.Factor)
	}
	d = min(d, most)
	sum := sha256.Sum256([]byte(jobID + ":" + strconv.FormatInt(attempt, 10)))
	const steps = 1 << 20
	part := float64(binary.BigEndian.Uint64(sum[:])%steps) / (steps - 1) // 0 to 1
	// The conversions keep a compiler from fusing the operations, which rounds
	// differently from one kind of processor to another.
	spread := float64(2*part) - 1
	return max(1, int64(d+float64(float64(d*b.Jitter)*spread)))
}
