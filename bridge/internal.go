package bridge

import (
	"encoding/json"
	"fmt"

	"signalbox/audit"
	"signalbox/step"
	"signalbox/wire"
)

// Verbs of the bridge's own commands. They go through the log like any other,
// so that a replay knows what the bridge knew.
const (
	verbTick          = "tick"
	verbStarted       = "started"
	verbOverflow      = "overflow"
	verbDisk          = "disk"
	verbClockStep     = "clock_step"
	verbStalled       = "stalled"
	verbOutboxRefused = "outbox_refused"
)

// Started is the body of the first command after a start: all that rules may
// know of the outside.
type Started struct {
	Instance     string                     `json:"instance"`
	Version      string                     `json:"version"`
	RulesVersion string                     `json:"rules_version"`
	Settings     map[string]json.RawMessage `json:"settings"`
	Embedded     bool                       `json:"embedded"` // every connection was dropped
}

// outboxRefused is the body of the command that gives an entry up.
type outboxRefused struct {
	ID    string `json:"id"`
	Error string `json:"error"`
}

// internal handles the bridge's own commands, which count only from it.
func (s *stepRun) internal(addr wire.Address) (any, *wire.Error, error) {
	if addr.From != wire.Bridge {
		return nil, wire.Errorf(wire.IdentityMismatch, "%s.%s is a command of the bridge itself", addr.Machine, addr.Verb), nil
	}
	s.out.stepped = true
	body := s.it.row.Body
	if addr.Machine == clockName && addr.Verb == verbTick {
		s.out.ticked = true
		return nil, nil, s.tick()
	}
	switch {
	case addr.Machine != bridgeName:
	case addr.Verb == verbStarted:
		return s.started(body)
	case addr.Verb == verbOutboxRefused:
		return s.outboxRefused(body)
	case addr.Verb == verbOverflow, addr.Verb == verbDisk, addr.Verb == verbClockStep, addr.Verb == verbStalled:
		fields := map[string]any{}
		if err := step.Decode(body, &fields); err != nil {
			refusal, _ := asRefusal(err)
			return nil, refusal, nil
		}
		return nil, nil, s.announce(addr.Verb, fields)
	}
	return nil, wire.Errorf(wire.UnknownCommand, "%s has no verb %q", addr.Machine, addr.Verb), nil
}

func (s *stepRun) started(body []byte) (any, *wire.Error, error) {
	var started Started
	if err := step.Decode(body, &started); err != nil {
		refusal, _ := asRefusal(err)
		return nil, refusal, nil
	}
	settings, err := json.Marshal(started.Settings)
	if err != nil {
		return nil, nil, err
	}
	s.batch.State.Settings = string(settings)
	s.in.Settings = started.Settings
	return nil, nil, s.hear(step.Notice{What: step.Started, Key: started.Instance,
		Data: step.Start{LastMS: s.beforeMS, Embedded: started.Embedded}})
}

// hear tells the machines of something of the bridge, each on its own.
func (s *stepRun) hear(n step.Notice) error {
	n.Machine = bridgeName
	for _, m := range s.machines.all {
		if !hears(m, n.Machine, n.What) {
			continue
		}
		if _, _, err := s.attempt(m, n); err != nil {
			return err
		}
	}
	return nil
}

// outboxRefused gives up an entry that the server will never accept.
func (s *stepRun) outboxRefused(body []byte) (any, *wire.Error, error) {
	var refused outboxRefused
	if err := step.Decode(body, &refused); err != nil {
		refusal, _ := asRefusal(err)
		return nil, refusal, nil
	}
	o, found, err := s.batch.GiveUp(refused.ID)
	if err != nil || !found {
		return nil, nil, err
	}
	recipient := o.Subject
	if addr, err := s.config.Root.Parse(o.Subject); err == nil && addr.Kind == wire.Msg {
		recipient = addr.To.Name
	}
	s.out.refusals = append(s.out.refusals, wire.OutboxRefused)
	if err := s.batch.Bury(audit.DeadLetter{Recipient: recipient, ID: s.it.row.ID, Reason: string(wire.OutboxRefused),
		MessageID: o.ID, FailedAtMS: s.in.NowMS, LastError: refused.Error, Cause: o.Cause}); err != nil {
		return nil, nil, err
	}
	return nil, nil, s.happened(noticeName, step.Happened{Key: wire.Bridge, What: "dead", Body: map[string]any{"subject": o.Subject,
		"message_id": o.ID, "bytes": len(o.Body), "reason": wire.OutboxRefused, "error": refused.Error, "caused_by": o.Cause}})
}

// tick handles what is due, each deadline in a step of its own: one that fails
// is loud and keeps no other from being handled.
func (s *stepRun) tick() error {
	if err := s.machines.flush(&s.db); err != nil {
		return s.orCareful(err)
	}
	due, err := s.machines.due(&s.db, s.in.NowMS, maxDue, func(m Machine, err error) {
		s.out.faults++
		s.loud(m.Name(), s.it.row, fmt.Errorf("its deadlines cannot be read: %w", err))
	})
	if err != nil {
		return err
	}
	for _, d := range due {
		_, refusal, err := s.attempt(d.machine, d.deadline)
		if err != nil {
			return err
		}
		if refusal != nil {
			s.out.stuck = append(s.out.stuck, d.dueKey())
			if refusal.Code != wire.Internal {
				s.loud(d.machine.Name(), s.it.row, fmt.Errorf("the deadline of %s was refused: %w", d.deadline.Key, refusal))
			}
		}
	}
	_, err = s.batch.ForgetOutcomes(s.in.NowMS-keepOutcomes.Milliseconds(), maxDue-len(due))
	return err
}
