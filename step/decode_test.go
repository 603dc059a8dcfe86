package step_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"signalbox/step"
	"signalbox/wire"
)

type command struct {
	Name  string          `json:"name"`
	N     int64           `json:"n"`
	Value json.RawMessage `json:"value"`
}

func TestABodyIsReadStrictly(t *testing.T) {
	for body, want := range map[string]string{
		`{"name":"a","n":1}`: "", ``: "", ` `: "", `{}`: "", `{"schema_version":3,"name":"a"}`: "", `{"schema_version":"x"}`: "",
		`{"nam":"a"}`: "nam", `{"name":1}`: "name", `{"n":1.5}`: "n", `{"n":"1"}`: "n", `[]`: "object", `1`: "object", `null`: "object", `"x"`: "object",
		`{"name":"a"} {}`: "after", `{"name":"a"} x`: "after", `{"name":`: "early", `{name}`: "byte", `{"schema_version":1,"nam":1}`: "nam",
	} {
		var c command
		err := step.Decode([]byte(body), &c)
		var refusal *wire.Error
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", body, err)
		case want != "" && (!errors.As(err, &refusal) || refusal.Code != wire.BodyInvalid || !strings.Contains(refusal.Message, want)):
			t.Errorf("%s: %v, want BODY_INVALID that says %q", body, err, want)
		}
	}
}

func TestValuesInABodyAreKeptByteForByte(t *testing.T) {
	const value = `{ "a" : "<&>" , "b":1e0 }`
	for _, body := range []string{`{"value":` + value + `}`, `{"schema_version":1,"value":` + value + `}`} {
		var c command
		if err := step.Decode([]byte(body), &c); err != nil || string(c.Value) != value {
			t.Errorf("%s has the value %s, %v", body, c.Value, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"name":"a","n":1,"value":[null]}`))
	f.Add([]byte(`{"schema_version":{},"schema_version":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var c command
		err := step.Decode(body, &c)
		var refusal *wire.Error
		if err != nil && (!errors.As(err, &refusal) || refusal.Code != wire.BodyInvalid) {
			t.Fatalf("%q: the error is %v", body, err)
		}
		if err == nil && len(strings.TrimSpace(string(body))) > 0 && !json.Valid(body) {
			t.Fatalf("%q is no JSON and was read", body)
		}
	})
}
