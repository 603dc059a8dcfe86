package assign

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"signalbox/step"
	"signalbox/wire"
)

// DefaultTopic is the topic of a job's handoff where create names none.
const DefaultTopic = "assign.job"

// CreateCommand is the body of create. Exactly one of worker_agent and
// worker_topic is given; everything else may be left out.
type CreateCommand struct {
	JobID           string          `json:"job_id,omitempty"`           // an id; derived if left out
	SupervisorAgent string          `json:"supervisor_agent,omitempty"` // must be the sender
	WorkerAgent     string          `json:"worker_agent,omitempty"`     // who is to do it
	WorkerTopic     string          `json:"worker_topic,omitempty"`     // to whom it is offered
	Topic           string          `json:"topic,omitempty"`            // of the handoff
	Task            json.RawMessage `json:"task,omitempty"`             // any JSON, at most MaxTask
	Payload         json.RawMessage `json:"payload,omitempty"`          // any JSON, at most MaxPayload
	MaxRetries      *int64          `json:"max_retries,omitempty"`      // 0 to MaxRetries; the setting's
	Priority        *int64          `json:"priority,omitempty"`         // 1 to 9, clamped; 5
	TTLMS           *int64          `json:"ttl_ms,omitempty"`           // the same as timeout_ms
	TimeoutMS       *int64          `json:"timeout_ms,omitempty"`       // MinTimeout to MaxTimeout; the setting's
	LeaseMS         *int64          `json:"lease_ms,omitempty"`         // MinTimeout to MaxTimeout; 0 for none
	RunAtMS         *int64          `json:"run_at_ms,omitempty"`        // an instant, at most MaxAhead from now; now
	DedupKey        string          `json:"dedup_key,omitempty"`        // 1 to 128 visible characters
	TraceID         string          `json:"trace_id,omitempty"`         // likewise
	CorrelationID   string          `json:"correlation_id,omitempty"`   // likewise

	// DeadlineMS is refused: a deadline follows from the timeout.
	DeadlineMS json.RawMessage `json:"deadline_ms,omitempty"`
}

// normalize checks the command of a sender and brings it into the one form
// that its digest is made from: nothing in it depends on time or settings.
func (c *CreateCommand) normalize(from string) *wire.Error {
	if c.SupervisorAgent != "" && c.SupervisorAgent != from {
		return identityMismatch("supervisor_agent", c.SupervisorAgent, from)
	}
	c.SupervisorAgent = from
	if c.DeadlineMS != nil && string(c.DeadlineMS) != "null" {
		return wire.Errorf(wire.AssignDeadlineForbidden, "a job's deadline cannot be given").
			WithHint("give timeout_ms: the deadline follows from it, anew for each attempt")
	}
	c.DeadlineMS = nil
	for _, check := range [...]func() *wire.Error{c.names, c.values, c.times} {
		if refusal := check(); refusal != nil {
			return refusal
		}
	}
	return nil
}

func (c *CreateCommand) names() *wire.Error {
	if c.JobID != "" && !wire.ValidID(c.JobID) {
		return invalidID("job_id", c.JobID)
	}
	if (c.WorkerAgent == "") == (c.WorkerTopic == "") {
		return wire.Errorf(wire.BodyInvalid, "give either worker_agent or worker_topic").
			WithHint("worker_agent hands the job to one agent; worker_topic offers it to all who listen, and the first claim wins")
	}
	switch {
	case c.WorkerAgent == wire.Bridge, c.WorkerAgent == wire.NoScope:
		return wire.Errorf(wire.ReservedID, "worker_agent %q is an id of the bus itself", c.WorkerAgent).WithHint("name an agent")
	case c.WorkerAgent != "" && !wire.ValidID(c.WorkerAgent):
		return invalidID("worker_agent", c.WorkerAgent)
	case c.WorkerTopic != "" && !wire.ValidTopic(c.WorkerTopic):
		return invalidID("worker_topic", c.WorkerTopic)
	}
	if c.Topic == "" {
		c.Topic = DefaultTopic
	}
	if !wire.ValidTopic(c.Topic) {
		return invalidID("topic", c.Topic)
	}
	for _, f := range [...]struct{ name, value string }{{"dedup_key", c.DedupKey}, {"trace_id", c.TraceID}, {"correlation_id", c.CorrelationID}} {
		if f.value != "" && !wire.Visible(f.value) {
			return wire.Errorf(wire.BodyInvalid, "%s is not 1 to 128 visible ASCII characters", f.name).
				WithHint("leave it out, or use a digest of what it was")
		}
	}
	return nil
}

func (c *CreateCommand) values() *wire.Error {
	for _, f := range [...]struct {
		name string
		raw  *json.RawMessage
		most int
	}{{"task", &c.Task, MaxTask}, {"payload", &c.Payload, MaxPayload}} {
		v, refusal := value(f.name, *f.raw, f.most)
		if refusal != nil {
			return refusal
		}
		*f.raw = v
	}
	p := int64(wire.DefaultPriority)
	if c.Priority != nil {
		p = min(max(*c.Priority, wire.MinPriority), wire.MaxPriority)
	}
	c.Priority = &p
	return c.bounded("max_retries", c.MaxRetries, 0, MaxRetries)
}

func (c *CreateCommand) times() *wire.Error {
	if c.TTLMS != nil && c.TimeoutMS != nil && *c.TTLMS != *c.TimeoutMS {
		return wire.Errorf(wire.BodyInvalid, "ttl_ms is %d and timeout_ms %d, but they mean the same", *c.TTLMS, *c.TimeoutMS).
			WithHint("give one of them")
	}
	if c.TimeoutMS == nil {
		c.TimeoutMS = c.TTLMS
	}
	c.TTLMS = nil
	if c.LeaseMS != nil && *c.LeaseMS == 0 {
		c.LeaseMS = nil
	}
	least, most := MinTimeout.Milliseconds(), MaxTimeout.Milliseconds()
	if refusal := c.bounded("timeout_ms", c.TimeoutMS, least, most); refusal != nil {
		return refusal
	}
	return c.bounded("lease_ms", c.LeaseMS, least, most)
}

func (*CreateCommand) bounded(name string, v *int64, least, most int64) *wire.Error {
	if v == nil || *v >= least && *v <= most {
		return nil
	}
	return outOfRange(name, *v, least, most)
}

// ahead refuses a run_at_ms that is no instant the job may wait for.
func (c *CreateCommand) ahead(nowMS int64) *wire.Error {
	if c.RunAtMS == nil {
		return nil
	}
	return c.bounded("run_at_ms", c.RunAtMS, 0, nowMS+MaxAhead.Milliseconds())
}

// digest tells whether two normalized commands ask for the same job.
func (c *CreateCommand) digest() (string, error) {
	small := *c
	small.Payload = nil // compact already; it would be copied twice
	raw, err := json.Marshal(small)
	if err != nil {
		return "", fmt.Errorf("the digest of a job: %w", err)
	}
	h := sha256.New()
	h.Write(raw)
	h.Write(c.Payload) // nothing else ends after the object
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Create makes the job of a normalized command with its digest. It is queued,
// and dispatched in the same step when run_at_ms is due.
func Create(c CreateCommand, digest string, s Settings, in step.Input) (Decision, *wire.Error) {
	if refusal := c.ahead(in.NowMS); refusal != nil {
		return Decision{}, refusal
	}
	j := Job{JobID: c.JobID, SupervisorAgent: c.SupervisorAgent, WorkerAgent: c.WorkerAgent, WorkerTopic: c.WorkerTopic,
		Topic: c.Topic, Task: c.Task, Payload: c.Payload, Status: Queued, Attempt: 1, MaxRetries: s.MaxRetries, Priority: *c.Priority,
		TimeoutMS: s.TimeoutMS, RunAtMS: in.NowMS, DedupKey: c.DedupKey, TraceID: c.TraceID, CorrelationID: c.CorrelationID,
		CreatedAtMS: in.NowMS, UpdatedAtMS: in.NowMS, BegunBy: ByCreate, BegunAtMS: in.NowMS, BegunID: in.ID, Digest: digest}
	for _, f := range [...]struct{ from, into *int64 }{
		{c.MaxRetries, &j.MaxRetries}, {c.TimeoutMS, &j.TimeoutMS}, {c.LeaseMS, &j.LeaseMS}, {c.RunAtMS, &j.RunAtMS},
	} {
		if f.from != nil {
			*f.into = *f.from
		}
	}
	// A derived id is the one that the command's own row derives, so that both
	// are in one chain.
	for _, f := range [...]struct {
		id      *string
		purpose string
	}{{&j.JobID, "job"}, {&j.TraceID, "trace"}, {&j.CorrelationID, "correlation"}} {
		if *f.id == "" {
			*f.id = in.DeriveID(f.purpose)
		}
	}
	j.DeadlineMS = max(in.NowMS, j.RunAtMS) + j.TimeoutMS
	d := Decision{Job: j, New: true, Changed: true}
	d.dispatch(in)
	d.moved("", ByCreate, nil)
	d.Effects.Reply = d.Job.Snapshot(inReplies)
	return d, nil
}
