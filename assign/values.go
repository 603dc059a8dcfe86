package assign

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"signalbox/wire"
)

// Limits of the JSON values of a job, in bytes as messages carry them: compact,
// with <, > and & as \u003c, \u003e and \u0026. Together they keep a handoff, a
// result message and the reply of get below the smallest usual max_payload.
const (
	MaxPayload  = 256 << 10
	MaxResult   = 256 << 10
	MaxTask     = 64 << 10
	MaxError    = 32 << 10
	MaxMetadata = 32 << 10
)

// value is a JSON value of a command as it is kept: compact, and nil for null.
// The refusal names the field.
func value(name string, raw json.RawMessage, most int) (json.RawMessage, *wire.Error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	if !utf8.Valid(raw) {
		return nil, wire.Errorf(wire.BodyInvalid, "%s is not UTF-8", name).WithHint("send bytes as base64 in a text")
	}
	var compact bytes.Buffer
	compact.Grow(len(raw))
	if err := json.Compact(&compact, raw); err != nil {
		return nil, wire.Errorf(wire.BodyInvalid, "%s is no JSON: %v", name, err)
	}
	if n := carried(compact.Bytes()); n > most {
		return nil, wire.Errorf(wire.BodyTooLarge, "%s has %d bytes, and may have %d at most", name, n, most).
			WithHint("keep it elsewhere and name the place")
	}
	return compact.Bytes(), nil
}

// carried is the length of compact JSON after encoding/json has escaped what
// HTML would read.
func carried(raw []byte) int {
	const escaped = len(`\u003c`)
	n := len(raw)
	for _, c := range [...]string{"<", ">", "&", "\u2028", "\u2029"} {
		n += bytes.Count(raw, []byte(c)) * (escaped - len(c))
	}
	return n
}

// setValue puts a JSON value into a snapshot, or its size where it has more
// than most bytes.
func setValue(m map[string]any, name string, raw json.RawMessage, most int) {
	switch {
	case raw == nil:
	case len(raw) > most || most < whole && carried(raw) > most:
		m[name] = omitted(raw)
	default:
		m[name] = raw
	}
}

func omitted(raw json.RawMessage) any {
	return map[string]any{"omitted": true, "bytes": len(raw)}
}
