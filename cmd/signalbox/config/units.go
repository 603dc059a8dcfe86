package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a length of time, written as Go writes durations ("72h", "1m30s",
// https://pkg.go.dev/time#ParseDuration).
type Duration time.Duration

// The units of a Duration.
const (
	Second = Duration(time.Second)
	Minute = Duration(time.Minute)
	Hour   = Duration(time.Hour)
)

// Std is d as the standard library has it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String is d without the zero parts that time.Duration prints: 72h, not 72h0m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (d *Duration) parse(text string) error {
	v, err := time.ParseDuration(text)
	if err == nil {
		*d = Duration(v)
		return nil
	}
	if isNumber(text) {
		return mistake{quote(text) + " is a duration without a unit", "write " + text + "s for seconds; the units are ms, s, m, h"}
	}
	if n, ok := strings.CutSuffix(text, "d"); ok && isNumber(n) {
		return mistake{quote(text) + " is not a duration", "there is no unit d; write days as hours, such as 72h"}
	}
	return mistake{quote(text) + " is not a duration", "use Go durations such as 72h"}
}

// MarshalYAML writes d as a string such as 72h.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

// UnmarshalYAML reads a string such as 72h; anything else is an error.
func (d *Duration) UnmarshalYAML(unmarshal func(any) error) error {
	return unmarshalText(unmarshal, d.parse)
}

// SyncInterval is how often something is fsynced: a Go duration, or "always",
// which is the zero value.
type SyncInterval time.Duration

// SyncAlways is fsync before every acknowledgement.
const SyncAlways SyncInterval = 0

// Always reports whether every write is fsynced by itself.
func (s SyncInterval) Always() bool { return s == SyncAlways }

// Std is s as the standard library has it; 0 means always.
func (s SyncInterval) Std() time.Duration { return time.Duration(s) }

// String is s as it stands in the configuration.
func (s SyncInterval) String() string {
	if s.Always() {
		return "always"
	}
	return Duration(s).String()
}

func (s *SyncInterval) parse(text string) error {
	if text == "always" {
		*s = SyncAlways
		return nil
	}
	var d Duration
	if err := d.parse(text); err != nil {
		var m mistake
		if errors.As(err, &m) {
			m.hint += ", or always"
			return m
		}
		return err
	}
	if d == 0 {
		return mistake{quote(text) + " is not an interval", "write always to fsync every message"}
	}
	*s = SyncInterval(d)
	return nil
}

// MarshalYAML writes s as a duration or as always.
func (s SyncInterval) MarshalYAML() (any, error) { return s.String(), nil }

// UnmarshalYAML reads a duration or always; anything else is an error.
func (s *SyncInterval) UnmarshalYAML(unmarshal func(any) error) error {
	return unmarshalText(unmarshal, s.parse)
}

// Size is a number of bytes, written as a whole number with a binary unit
// ("64MiB"; B, KiB, MiB, GiB, TiB; IEC 80000-13).
type Size int64

// The units of a Size.
const (
	Byte Size = 1
	KiB  Size = 1 << 10
	MiB  Size = 1 << 20
	GiB  Size = 1 << 30
	TiB  Size = 1 << 40
)

var sizeUnits = []struct {
	name string
	size Size
}{{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", Byte}}

// String is s in the largest unit that keeps it a whole number.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s != 0 && s%u.size == 0 {
			return strconv.FormatInt(int64(s/u.size), 10) + u.name
		}
	}
	return "0B"
}

func (s *Size) parse(text string) error {
	if text == "0" {
		*s = 0
		return nil
	}
	digits := strings.TrimRight(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
	unit := text[len(digits):]
	n, err := strconv.ParseInt(digits, 10, 64)
	if errors.Is(err, strconv.ErrSyntax) || unit == "" {
		if isNumber(text) {
			return mistake{quote(text) + " is a size without a unit", "write a whole number with B, KiB, MiB, GiB or TiB, such as 64MiB"}
		}
		return mistake{quote(text) + " is not a size", "use a whole number with B, KiB, MiB, GiB or TiB, such as 64MiB"}
	}
	for _, u := range sizeUnits {
		if u.name != unit {
			continue
		}
		if err != nil || n > math.MaxInt64/int64(u.size) || n < math.MinInt64/int64(u.size) {
			return mistake{quote(text) + " is larger than any disk", "use a size below 8388608TiB"}
		}
		*s = Size(n) * u.size
		return nil
	}
	return mistake{quote(text) + " has an unknown unit " + quote(unit), "the units are B, KiB, MiB, GiB and TiB, such as 64MiB"}
}

// MarshalYAML writes s as a string such as 64MiB.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }

// UnmarshalYAML reads a string such as 64MiB; anything else is an error.
func (s *Size) UnmarshalYAML(unmarshal func(any) error) error {
	return unmarshalText(unmarshal, s.parse)
}

// Switch is something that is on or off, written with these words.
type Switch bool

// String is on or off.
func (s Switch) String() string {
	if s {
		return "on"
	}
	return "off"
}

func (s *Switch) parse(text string) error {
	switch text {
	case "on":
		*s = true
	case "off":
		*s = false
	default:
		return mistake{quote(text) + " is neither on nor off", "write on or off"}
	}
	return nil
}

// MarshalYAML writes s as on or off.
func (s Switch) MarshalYAML() (any, error) { return s.String(), nil }

// UnmarshalYAML reads on or off; anything else is an error.
func (s *Switch) UnmarshalYAML(unmarshal func(any) error) error {
	return unmarshalText(unmarshal, s.parse)
}

func unmarshalText(unmarshal func(any) error, parse func(string) error) error {
	var text string
	if err := unmarshal(&text); err != nil {
		return fmt.Errorf("want a string: %w", err)
	}
	return parse(text)
}

// isNumber reports whether text is a plain decimal number. NaN and Inf are not.
func isNumber(text string) bool {
	if strings.Trim(text, "+-.0123456789") != "" {
		return false
	}
	_, err := strconv.ParseFloat(text, 64)
	return err == nil
}
