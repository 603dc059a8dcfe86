package assign

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"signalbox/step"
	"signalbox/wire"
)

func TestEachFieldOfCreateIsChecked(t *testing.T) {
	long := strings.Repeat("x", 129)
	for body, want := range map[string]wire.Code{
		`{}`: wire.BodyInvalid,
		`{"worker_agent":"w","worker_topic":"t"}`:                                  wire.BodyInvalid,
		`{"worker_agent":"w","worker":"w"}`:                                        wire.BodyInvalid,
		`{"worker_agent":"w","status":"running"}`:                                  wire.BodyInvalid,
		`{"worker_agent":"w","supervisor_agent":"other"}`:                          wire.IdentityMismatch,
		`{"worker_agent":"w","supervisor_agent":"sup"}`:                            "",
		`{"worker_agent":"w","deadline_ms":1}`:                                     wire.AssignDeadlineForbidden,
		`{"worker_agent":"w","deadline_ms":null}`:                                  "",
		`{"worker_agent":"w","job_id":"a.b"}`:                                      wire.IDInvalid,
		`{"worker_agent":"w","job_id":"` + long + `"}`:                             wire.IDInvalid,
		`{"worker_agent":"w","job_id":"` + long[1:] + `"}`:                         "",
		`{"worker_agent":"*"}`:                                                     wire.IDInvalid,
		`{"worker_agent":"signalbox"}`:                                             wire.ReservedID,
		`{"worker_agent":"_"}`:                                                     wire.ReservedID,
		`{"worker_topic":"a..b"}`:                                                  wire.IDInvalid,
		`{"worker_topic":"a.b"}`:                                                   "",
		`{"worker_agent":"w","topic":">"}`:                                         wire.IDInvalid,
		`{"worker_agent":"w","max_retries":-1}`:                                    wire.BodyInvalid,
		`{"worker_agent":"w","max_retries":20}`:                                    "",
		`{"worker_agent":"w","max_retries":21}`:                                    wire.BodyInvalid,
		`{"worker_agent":"w","max_retries":1.5}`:                                   wire.BodyInvalid,
		`{"worker_agent":"w","timeout_ms":999}`:                                    wire.BodyInvalid,
		`{"worker_agent":"w","timeout_ms":1000}`:                                   "",
		`{"worker_agent":"w","timeout_ms":0}`:                                      wire.BodyInvalid,
		`{"worker_agent":"w","ttl_ms":86400000}`:                                   "",
		`{"worker_agent":"w","ttl_ms":86400001}`:                                   wire.BodyInvalid,
		`{"worker_agent":"w","ttl_ms":5000,"timeout_ms":5000}`:                     "",
		`{"worker_agent":"w","ttl_ms":5000,"timeout_ms":5001}`:                     wire.BodyInvalid,
		`{"worker_agent":"w","lease_ms":0}`:                                        "",
		`{"worker_agent":"w","lease_ms":999}`:                                      wire.BodyInvalid,
		`{"worker_agent":"w","lease_ms":86400001}`:                                 wire.BodyInvalid,
		`{"worker_agent":"w","run_at_ms":-1}`:                                      wire.BodyInvalid,
		`{"worker_agent":"w","run_at_ms":1}`:                                       "",
		`{"worker_agent":"w","run_at_ms":9223372036854775807}`:                     wire.BodyInvalid,
		fmt.Sprintf(`{"worker_agent":"w","run_at_ms":%d}`, start+366*86_400_000):   "",
		fmt.Sprintf(`{"worker_agent":"w","run_at_ms":%d}`, start+366*86_400_000+1): wire.BodyInvalid,
		`{"worker_agent":"w","dedup_key":"a b"}`:                                   wire.BodyInvalid,
		`{"worker_agent":"w","dedup_key":"ä"}`:                                     wire.BodyInvalid,
		`{"worker_agent":"w","trace_id":"` + long + `"}`:                           wire.BodyInvalid,
		`{"worker_agent":"w","correlation_id":"\u0000"}`:                           wire.BodyInvalid,
		`{"worker_agent":"w","priority":99}`:                                       "",
		`{"worker_agent":"w","task":null,"payload":null}`:                          "",
		`{"worker_agent":"w","task":[1,{"a":"b"}],"payload":"text"}`:               "",
		"{\"worker_agent\":\"w\",\"payload\":\"\xff\"}":                            wire.BodyInvalid,
		`{"worker_agent":"w","payload":` + text256(256<<10) + `}`:                  "",
		`{"worker_agent":"w","payload":` + text256(256<<10+1) + `}`:                wire.BodyTooLarge,
		`{"worker_agent":"w","task":` + text256(64<<10) + `}`:                      "",
		`{"worker_agent":"w","task":` + text256(64<<10+1) + `}`:                    wire.BodyTooLarge,
		`{"worker_agent":"w","payload":"` + strings.Repeat("<", 50_000) + `"}`:     wire.BodyTooLarge,
		`[]`: wire.BodyInvalid,
	} {
		b := newBus(t)
		_, refusal := b.send("sup", verbCreate, body)
		got := wire.Code("")
		if refusal != nil {
			got = refusal.Code
		}
		if got != want {
			t.Errorf("%.100s: %v, want %q", body, refusal, want)
		}
	}
}

// text256 is a JSON text of n bytes.
func text256(n int) string { return `"` + strings.Repeat("x", n-2) + `"` }

func TestWhatCreateLeavesOutHasItsDefault(t *testing.T) {
	b := newBus(t)
	got := b.do("sup", verbCreate, `{"worker_agent":"w","priority":99}`)
	for name, want := range map[string]any{"topic": "assign.job", "status": "queued", "attempt": 1.0, "retry_count": 0.0, "max_retries": 0.0,
		"priority": 9.0, "ttl_ms": 600_000.0, "timeout_ms": 600_000.0, "run_at_ms": float64(start), "deadline_ms": float64(start + 600_000),
		"dispatched_at_ms": float64(start), "created_at_ms": float64(start), "supervisor_agent": "sup"} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	// The ids are those that the command's own row derives: one chain.
	in := step.Input{Place: step.Place{Incarnation: 1, Seq: 1}, At: asTime(start)}
	for name, purpose := range map[string]string{"job_id": "job", "trace_id": "trace", "correlation_id": "correlation"} {
		if got[name] != in.DeriveID(purpose) {
			t.Errorf("%s is %v, want %s", name, got[name], in.DeriveID(purpose))
		}
	}
	b.settings = step.Settings{machineName: json.RawMessage(`{"timeout_ms":5000,"max_retries":3}`)}
	got = b.do("sup", verbCreate, `{"worker_agent":"w","priority":-4}`)
	if got["timeout_ms"] != 5000.0 || got["max_retries"] != 3.0 || got["priority"] != 1.0 {
		t.Errorf("with settings it is %v", got)
	}
	b.settings = step.Settings{machineName: json.RawMessage(`{"timeout_ms":"soon"}`)}
	if _, err := b.apply("sup", step.Command{Verb: verbCreate, Body: []byte(`{"worker_agent":"w"}`)}); err == nil {
		t.Error("settings that cannot be read are taken")
	}
}

// M1 for jobs: the same create again, however it is written, is the same job,
// also after a restart with other settings; anything else is not.
func TestACreateThatMeansTheSameIsTheSameJob(t *testing.T) {
	b := newBus(t)
	first := b.do("sup", verbCreate, `{"job_id":"j","worker_agent":"w","ttl_ms":5000,"payload":{"a":[1,2]},"priority":12}`)
	b.settings = step.Settings{machineName: json.RawMessage(`{"timeout_ms":7000,"max_retries":3}`)}
	for _, body := range []string{
		`{"job_id":"j","worker_agent":"w","timeout_ms":5000,"payload":{"a":[1,2]},"priority":9}`,
		`{"priority":9,"payload": { "a" : [ 1, 2 ] },"worker_agent":"w","job_id":"j","ttl_ms":5000,"timeout_ms":5000}`,
		`{"job_id":"j","worker_agent":"w","ttl_ms":5000,"payload":{"a":[1,2]},"priority":12,"topic":"assign.job","lease_ms":0,"task":null,"supervisor_agent":"sup"}`,
	} {
		effects, refusal := b.send("sup", verbCreate, body)
		if refusal != nil {
			t.Errorf("%s: %v", body, refusal)
			continue
		}
		again := object(t, effects.Reply)
		if again["idempotent"] != true || len(said(effects)) > 0 {
			t.Errorf("%s: %v, and says %v", body, again, said(effects))
		}
		delete(again, "idempotent")
		if fmt.Sprint(again) != fmt.Sprint(first) {
			t.Errorf("%s answers %v, the first %v", body, again, first)
		}
	}
	for _, body := range []string{
		`{"job_id":"j","worker_agent":"w","ttl_ms":5000,"payload":{"a":[1,3]},"priority":9}`,
		`{"job_id":"j","worker_agent":"w","ttl_ms":5000,"priority":9}`,
		`{"job_id":"j","worker_agent":"v","ttl_ms":5000,"payload":{"a":[1,2]},"priority":9}`,
		`{"job_id":"j","worker_agent":"w","ttl_ms":5000,"payload":{"a":[1,2]},"priority":9,"max_retries":0}`,
		`{"job_id":"j","worker_agent":"w","ttl_ms":5000,"payload":{"a":[1,2]},"priority":9,"dedup_key":"k"}`,
	} {
		refusal := b.refused(wire.AssignExists, "sup", verbCreate, body)
		if current := object(t, refusal.Current); current["job_id"] != "j" || current["status"] != "queued" {
			t.Errorf("the refusal of %s has %s", body, refusal.Current)
		}
	}
	if n, err := b.m.Count(b.db); err != nil || n["queued"] != 1 {
		t.Errorf("there are %v, %v", n, err)
	}
}

func TestSettingsWithoutSenseHaveTheirDefaults(t *testing.T) {
	for raw, want := range map[string]Settings{
		``:   Defaults(),
		`{}`: Defaults(),
		`{"timeout_ms":-1,"max_retries":-1,"backoff":{"base_ms":0,"factor":0.5,"max_ms":-2,"jitter":-1}}`: {
			TimeoutMS: 600_000, Backoff: Backoff{BaseMS: 1000, Factor: 2, MaxMS: 300_000}},
		`{"timeout_ms":999999999,"max_retries":99,"backoff":{"jitter":7}}`: {
			TimeoutMS: 86_400_000, MaxRetries: 20, Backoff: Backoff{BaseMS: 1000, Factor: 2, MaxMS: 300_000, Jitter: 1}},
		`{"timeout_ms":1,"backoff":{"jitter":0}}`: {
			TimeoutMS: 1000, Backoff: Backoff{BaseMS: 1000, Factor: 2, MaxMS: 300_000}},
	} {
		in := step.Settings{}
		if raw != "" {
			in[machineName] = json.RawMessage(raw)
		}
		if got, err := readSettings(in); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", raw, got, err, want)
		}
	}
}
