package audit

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"signalbox/wire"
)

// errPairs means that headers_raw is not what appendPairs wrote.
var errPairs = errors.New("headers_raw is cut short")

// encodeHeader writes headers as the register keeps them: JSON with sorted
// names and, where a name or value is not UTF-8 and JSON would lose it, the
// exact pairs beside it.
func encodeHeader(h wire.Header, buf []byte) (text []byte, raw []byte) {
	if len(h) == 0 {
		return append(buf[:0], '{', '}'), nil
	}
	b := append(buf[:0], '{')
	var room [16]string
	exact := true
	for i, name := range sortedNames(h, room[:0]) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendJSONString(b, name)
		exact = exact && utf8.ValidString(name)
		b = append(b, ':', '[')
		for j, value := range h[name] {
			if j > 0 {
				b = append(b, ',')
			}
			b = appendJSONString(b, value)
			exact = exact && utf8.ValidString(value)
		}
		b = append(b, ']')
	}
	b = append(b, '}')
	if !exact {
		raw = appendPairs(nil, h)
	}
	return b, raw
}

// appendJSONString appends s as a JSON string; most header values are plain and
// need no encoder.
func appendJSONString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(s) // a string always marshals
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// decodeHeader reads what encodeHeader wrote.
func decodeHeader(text string, raw []byte) (wire.Header, error) {
	if raw != nil {
		return decodePairs(raw)
	}
	if text == "{}" {
		return nil, nil
	}
	var h wire.Header
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	return h, nil
}

func decodePairs(b []byte) (wire.Header, error) {
	if len(b) < 4 {
		return nil, errPairs
	}
	count := binary.BigEndian.Uint32(b)
	b = b[4:]
	h := wire.Header{}
	for range count {
		var pair [2]string
		for i := range pair {
			if len(b) < 4 || uint32(len(b)-4) < binary.BigEndian.Uint32(b) {
				return nil, errPairs
			}
			n := binary.BigEndian.Uint32(b)
			pair[i] = string(b[4 : 4+n])
			b = b[4+n:]
		}
		h[pair[0]] = append(h[pair[0]], pair[1])
	}
	return h, nil
}
