package assign

import (
	"errors"
	"time"

	"signalbox/step"
	"signalbox/wire"
)

// decode reads the body of a command or a query, strictly.
func decode(body []byte, v any) error {
	err := step.Decode(body, v)
	var refusal *wire.Error
	if errors.As(err, &refusal) && refusal.Hint == "" {
		return refusal.WithHint("the body is one JSON object with the fields of the command")
	}
	return err
}

// refuse makes a refusal that carries the job as it is.
func refuse(j *Job, code wire.Code, hint, format string, args ...any) *wire.Error {
	e := wire.Errorf(code, format, args...).WithHint(hint)
	e.Current = j.current()
	return e
}

func notFound(id string) *wire.Error {
	return wire.Errorf(wire.AssignNotFound, "there is no job %q", id).WithHint("assign.list shows the jobs; create answers the id of a new one")
}

func exists(j *Job) *wire.Error {
	return refuse(j, wire.AssignExists, "use another job_id, or leave it out",
		"job %q exists already, with another content or from another supervisor", j.JobID)
}

func terminal(j *Job) *wire.Error {
	hint := "nothing more can become of it"
	if j.Status != Succeeded {
		hint = "only the command retry begins another attempt"
	}
	return refuse(j, wire.AssignTerminal, hint, "job %q has ended: %s", j.JobID, j.Status)
}

func attemptMismatch(j *Job, attempt int64) *wire.Error {
	if attempt == 0 {
		return refuse(j, wire.AssignAttemptMismatch, "say which attempt it is about, as the handoff or the claim gave it",
			"attempt is missing; job %q is at attempt %d", j.JobID, j.Attempt)
	}
	return refuse(j, wire.AssignAttemptMismatch, "what was done for another attempt does not count; stop it",
		"it is about attempt %d, but job %q is at attempt %d", attempt, j.JobID, j.Attempt)
}

func workerMismatch(j *Job, from string) *wire.Error {
	switch {
	case j.WorkerAgent != "":
		return refuse(j, wire.AssignWorkerMismatch, "only its worker may speak for an attempt",
			"%q is not the worker of job %q, which is %q", from, j.JobID, j.WorkerAgent)
	case j.Status.Live():
		return refuse(j, wire.AssignWorkerMismatch, "claim it first", "%q has not claimed job %q; nobody has", from, j.JobID)
	}
	return refuse(j, wire.AssignWorkerMismatch, "only its worker may speak for an attempt", "nobody had claimed job %q", j.JobID)
}

func identityMismatch(field, value, from string) *wire.Error {
	return wire.Errorf(wire.IdentityMismatch, "%s is %q, but the subject says %q", field, clip(value), from).
		WithHint("leave the field out: the sender in the subject is who it is")
}

func invalidID(field, id string) *wire.Error {
	if id == "" {
		return wire.Errorf(wire.BodyInvalid, "%s is missing", field).WithHint("say which job")
	}
	return wire.Errorf(wire.IDInvalid, "%s %q is not an id", field, clip(id)).
		WithHint("ids are 1 to 128 characters of A-Z a-z 0-9 _ -; a topic is 1 to 8 of them joined by dots")
}

func outOfRange(name string, v, least, most int64) *wire.Error {
	return wire.Errorf(wire.BodyInvalid, "%s is %d, and must be %d to %d", name, v, least, most).
		WithHint("durations and instants are whole milliseconds")
}

// clip keeps a foreign value that goes into a text short.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// millis is a duration as texts show it.
func millis(ms int64) string { return (time.Duration(ms) * time.Millisecond).String() }
