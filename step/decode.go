package step

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"signalbox/wire"
)

// Decode reads the body of a command strictly: one JSON object, no unknown
// field but schema_version, nothing after it. An empty body is an empty
// object. The error is a *wire.Error with code BodyInvalid that names what was
// wrong.
func Decode(body []byte, v any) error {
	trimmed := bytes.TrimSpace(body)
	if len(trimmed) == 0 {
		return nil
	}
	if trimmed[0] != '{' && json.Valid(trimmed) {
		return wire.Errorf(wire.BodyInvalid, "the body must be a JSON object")
	}
	if bytes.Contains(body, []byte(`"schema_version"`)) {
		body = withoutSchemaVersion(body)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return badBody(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return wire.Errorf(wire.BodyInvalid, "there is something after the JSON object")
	}
	return nil
}

// withoutSchemaVersion drops the one field that every command may have; the
// other values stay as they are, byte for byte. What is no object stays as it
// is, for the decoder to refuse.
func withoutSchemaVersion(body []byte) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return body
	}
	delete(fields, "schema_version")
	out := []byte{'{'}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		quoted, err := json.Marshal(name)
		if err != nil {
			return body
		}
		out = append(append(append(out, quoted...), ':'), fields[name]...)
	}
	return append(out, '}')
}

func badBody(err error) *wire.Error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		field := kind.Field
		if field == "" {
			field = "the body"
		}
		return wire.Errorf(wire.BodyInvalid, "%s must be %s, not %s", field, jsonName(kind.Type.Kind().String()), kind.Value)
	case errors.As(err, &syntax):
		return wire.Errorf(wire.BodyInvalid, "not JSON at byte %d: %s", syntax.Offset, strings.TrimPrefix(syntax.Error(), "json: "))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return wire.Errorf(wire.BodyInvalid, "the JSON ends too early")
	}
	return wire.Errorf(wire.BodyInvalid, "%s", strings.TrimPrefix(err.Error(), "json: ")).
		WithHint("the fields of each command are in the reference; an unknown one is refused so that a slip is not lost")
}

// jsonName is what JSON calls a Go kind.
func jsonName(kind string) string {
	switch kind {
	case "struct", "map":
		return "an object"
	case "slice", "array":
		return "an array"
	case "bool":
		return "true or false"
	case "string":
		return "a string"
	}
	return "a number"
}
