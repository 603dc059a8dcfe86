package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"signalbox/cmd/signalbox/listing"
)

// textOf is a JSON value as a cell: a text without quotes, null as nothing, a
// list of texts with commas.
func textOf(raw json.RawMessage) string {
	var text string
	var texts []string
	switch {
	case len(raw) == 0, string(raw) == "null":
		return ""
	case json.Unmarshal(raw, &text) == nil:
		return text
	case json.Unmarshal(raw, &texts) == nil:
		return strings.Join(texts, ",")
	}
	return string(raw)
}

// localTime shows milliseconds as a local time.
func localTime(raw json.RawMessage, _ time.Time) string {
	ms, err := strconv.ParseInt(textOf(raw), 10, 64)
	if err != nil || ms == 0 {
		return ""
	}
	return time.UnixMilli(ms).Local().Format(logTime)
}

// timeLeft shows milliseconds as how far they are from now: 12s, -3m.
func timeLeft(raw json.RawMessage, now time.Time) string {
	ms, err := strconv.ParseInt(textOf(raw), 10, 64)
	if err != nil || ms == 0 {
		return ""
	}
	d := time.UnixMilli(ms).Sub(now)
	unit := time.Second
	if d.Abs() >= time.Hour {
		unit = time.Minute
	}
	text := d.Round(unit).String()
	if unit == time.Minute {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}

// sorted writes an answer for people: a line a field, but for some, in the order
// of the answer; what is no plain value as JSON.
func sorted(answer []byte, without ...string) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(answer, &fields) != nil {
		return string(answer) + "\n"
	}
	for _, name := range without {
		delete(fields, name)
	}
	width := 0
	for name := range fields {
		width = max(width, len(name))
	}
	var b strings.Builder
	dec := json.NewDecoder(bytes.NewReader(answer))
	for _, name := range order(dec, fields) {
		value := textOf(fields[name])
		if ms, err := strconv.ParseInt(value, 10, 64); err == nil && (strings.HasSuffix(name, "_at_ms") || name == "deadline_ms") && ms > 0 {
			value = time.UnixMilli(ms).Local().Format(logYear)
		}
		fmt.Fprintf(&b, "%-*s  %s\n", width, name, listing.Escape(value))
	}
	return b.String()
}

// order are the names of an object's fields as they stand in it.
func order(dec *json.Decoder, fields map[string]json.RawMessage) (names []string) {
	if _, err := dec.Token(); err != nil { // the bracket
		return names
	}
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			break
		}
		var skipped json.RawMessage
		if dec.Decode(&skipped) != nil {
			break
		}
		if _, known := fields[name]; known {
			names = append(names, name)
		}
	}
	if len(names) != len(fields) {
		for name := range maps.Keys(fields) {
			names = append(names, name)
		}
	}
	return names
}
