package assign

import (
	"fmt"

	"signalbox/step"
	"signalbox/wire"
)

// Each command is decoded and checked, finds the job that it is about, and lets
// the rule decide.

func create(s shelf, in step.Input, body []byte) (step.Effects, error) {
	var c CreateCommand
	if err := decode(body, &c); err != nil {
		return step.Effects{}, err
	}
	if refusal := c.normalize(in.From); refusal != nil {
		return step.Effects{}, refusal
	}
	digest, err := c.digest()
	if err != nil {
		return step.Effects{}, err
	}
	settings, err := readSettings(in.Settings)
	if err != nil {
		return step.Effects{}, err
	}
	if known, err := standing(s, c, digest); known.Effects.Reply != nil || err != nil {
		return known.Effects, err
	}
	d, refusal := Create(c, digest, settings, in)
	return carryOut(s, d, refusal)
}

// standing looks whether the job of a create is there already: under its id, or
// as a live one with its dedup_key.
func standing(s shelf, c CreateCommand, digest string) (Decision, error) {
	if c.JobID != "" {
		known, err := s.known(c.JobID)
		if err != nil {
			return Decision{}, fmt.Errorf("look for job %q: %w", c.JobID, err)
		}
		if known {
			return sameID(s, c.JobID, digest)
		}
	}
	if c.DedupKey != "" {
		old, err := s.liveWith(c.SupervisorAgent, c.DedupKey)
		switch {
		case err != nil:
			return Decision{}, err
		case old != nil:
			return again(*old, map[string]any{"deduplicated": true}), nil
		}
	}
	return Decision{}, nil
}

// sameID answers a create whose job_id is taken.
func sameID(s shelf, id, digest string) (Decision, error) {
	old, err := s.job(id)
	switch {
	case err != nil:
		return Decision{}, err
	case old.Digest != digest:
		return Decision{}, exists(old)
	}
	return again(*old, nil), nil
}

// found is the job that a command of a worker is about. who is how it names
// itself, "" where it does not.
func found(s shelf, in step.Input, id, who string) (*Job, error) {
	if who != "" && who != in.From {
		return nil, identityMismatch("worker_agent", who, in.From)
	}
	if !wire.ValidID(id) {
		return nil, invalidID("job_id", id)
	}
	j, err := s.job(id)
	if err == nil && j == nil {
		return nil, notFound(id)
	}
	return j, err
}

func claim(s shelf, in step.Input, body []byte) (step.Effects, error) {
	var c ClaimCommand
	if err := decode(body, &c); err != nil {
		return step.Effects{}, err
	}
	j, err := found(s, in, c.JobID, c.WorkerAgent)
	if err != nil {
		return step.Effects{}, err
	}
	d, refusal := Claim(*j, c, in)
	return carryOut(s, d, refusal)
}

func heartbeat(s shelf, in step.Input, body []byte) (step.Effects, error) {
	var c HeartbeatCommand
	if err := decode(body, &c); err != nil {
		return step.Effects{}, err
	}
	j, err := found(s, in, c.JobID, c.WorkerAgent)
	if err != nil {
		return step.Effects{}, err
	}
	d, refusal := Heartbeat(*j, c, in)
	return carryOut(s, d, refusal)
}

func report(s shelf, in step.Input, body []byte) (step.Effects, error) {
	var c ReportCommand
	if err := decode(body, &c); err != nil {
		return step.Effects{}, err
	}
	r, refusal := c.normalize()
	if refusal != nil {
		return step.Effects{}, refusal
	}
	settings, err := readSettings(in.Settings)
	if err != nil {
		return step.Effects{}, err
	}
	j, err := found(s, in, c.JobID, c.WorkerAgent)
	if err != nil {
		return step.Effects{}, err
	}
	var past *Attempt
	if r.Attempt > 0 && (r.Attempt < j.Attempt || r.Attempt == j.Attempt && !j.Status.Live()) {
		if past, err = s.attempt(j, r.Attempt); err != nil {
			return step.Effects{}, err
		}
	}
	d, refusal := Judge(*j, past, r, settings, in)
	return carryOut(s, d, refusal)
}

func retry(s shelf, in step.Input, body []byte) (step.Effects, error) {
	var c RetryCommand
	if err := decode(body, &c); err != nil {
		return step.Effects{}, err
	}
	if refusal := shortReason(c.Reason); refusal != nil {
		return step.Effects{}, refusal
	}
	j, err := found(s, in, c.JobID, "")
	if err != nil {
		return step.Effects{}, err
	}
	var rival *Job
	if j.DedupKey != "" && !j.Status.Live() {
		if rival, err = s.liveWith(j.SupervisorAgent, j.DedupKey); err != nil {
			return step.Effects{}, err
		}
	}
	d, refusal := Retry(*j, c, rival, in)
	return carryOut(s, d, refusal)
}

func cancel(s shelf, in step.Input, body []byte) (step.Effects, error) {
	var c CancelCommand
	if err := decode(body, &c); err != nil {
		return step.Effects{}, err
	}
	if refusal := shortReason(c.Reason); refusal != nil {
		return step.Effects{}, refusal
	}
	j, err := found(s, in, c.JobID, "")
	if err != nil {
		return step.Effects{}, err
	}
	d, refusal := Cancel(*j, c, in)
	return carryOut(s, d, refusal)
}

func shortReason(reason string) *wire.Error {
	if len(reason) > maxReason {
		return wire.Errorf(wire.BodyInvalid, "reason has %d bytes, and may have %d at most", len(reason), maxReason).
			WithHint("say it shorter")
	}
	return nil
}
