package roles

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"signalbox/step"
)

// Settings are the machine's settings as the last bridge.started had them;
// durations are milliseconds.
type Settings struct {
	Kinds            []Kind  `json:"kinds"`
	ProbeTimeoutMS   int64   `json:"probe_timeout_ms"`
	AckTimeoutMS     int64   `json:"ack_timeout_ms"`     // from a reservation to its ack
	MaxProbeFailures int64   `json:"max_probe_failures"` // in a row, then quarantine
	QuarantineMS     int64   `json:"quarantine_ms"`
	Backoff          Backoff `json:"backoff"`
}

// Kind is a kind of role.
type Kind struct {
	Name           string `json:"name"`
	Scoped         bool   `json:"scoped"`          // one a scope of a project, not one a project
	CharterVersion string `json:"charter_version"` // "" for none
	Probe          *bool  `json:"probe"`           // ask candidates that can be probed; true where it is left out
}

// Backoff is how long a candidate that failed is left out: base × factor^(n−1)
// after the n-th failure in a row, at most max, then up to the part jitter more
// or less.
type Backoff struct {
	BaseMS int64   `json:"base_ms"`
	Factor float64 `json:"factor"`
	MaxMS  int64   `json:"max_ms"`
	Jitter float64 `json:"jitter"`
}

// readSettings reads the machine's settings; what they leave out has its
// default.
func readSettings(in step.Settings) (*Settings, error) {
	s := &Settings{ProbeTimeoutMS: 10_000, AckTimeoutMS: 45_000, MaxProbeFailures: 3, QuarantineMS: 120_000,
		Backoff: Backoff{BaseMS: 1000, Factor: 2, MaxMS: 30_000, Jitter: 0.2}}
	if err := in.Read(machineName, s); err != nil {
		return nil, fmt.Errorf("the settings of roles: %w", err)
	}
	if s.Kinds == nil {
		s.Kinds = []Kind{{Name: "cto"}, {Name: "lead", Scoped: true}}
	}
	return s, nil
}

func (s *Settings) kind(name string) (Kind, bool) {
	i := slices.IndexFunc(s.Kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return s.Kinds[i], true
}

func (s *Settings) kindNames() []string {
	names := make([]string, len(s.Kinds))
	for i, k := range s.Kinds {
		names[i] = k.Name
	}
	return names
}

// probes reports whether candidates for the kind are asked.
func (k Kind) probes() bool { return k.Probe == nil || *k.Probe }

// delay is how long the candidate is left out after its n-th failure in a row,
// which ended the activation: the quarantine from the limit on. The jitter is
// derived from the activation's id, so a replay waits as long.
func (s *Settings) delay(failures int64, activation string) int64 {
	if failures >= s.MaxProbeFailures {
		return s.QuarantineMS
	}
	return s.Backoff.delay(failures, activation)
}

func (b Backoff) delay(n int64, seed string) int64 {
	d := float64(b.BaseMS)
	for i := int64(1); i < n && d < float64(b.MaxMS); i++ {
		d = float64(d * b.Factor)
	}
	d = min(d, float64(b.MaxMS))
	sum := sha256.Sum256([]byte(seed))
	const steps = 1 << 20
	part := float64(binary.BigEndian.Uint64(sum[:])%steps) / (steps - 1) // 0 to 1
	// The conversions keep a compiler from fusing the operations, which rounds
	// differently from one kind of processor to another.
	spread := float64(2*part) - 1
	return max(1, int64(d+float64(float64(d*b.Jitter)*spread)))
}
