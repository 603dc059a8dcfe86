package bridge

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"signalbox/audit"
	"signalbox/message"
	"signalbox/step"
	"signalbox/wire"
)

// maxDepth bounds notices that cause notices.
const maxDepth = 8

// maxDue is how many deadlines one tick handles.
const maxDue = 500

// stepDB is a machine's view of the transaction.
type stepDB struct {
	batch *audit.Batch
	wrote bool
}

// Exec implements step.DB.
func (d *stepDB) Exec(query string, args ...any) (sql.Result, error) {
	d.wrote = true
	return d.batch.Register().Exec(query, args...)
}

// Query implements step.DB.
func (d *stepDB) Query(query string, args ...any) (*sql.Rows, error) {
	return d.batch.Register().Query(query, args...)
}

// QueryRow implements step.DB.
func (d *stepDB) QueryRow(query string, args ...any) *sql.Row {
	return d.batch.Register().QueryRow(query, args...)
}

// Flush inserts the rows that were appended, for a machine that reads them.
func (d *stepDB) Flush() error { return d.batch.Flush() }

// stepRun is the handling of one message.
type stepRun struct {
	*folder
	batch *audit.Batch
	it    *item
	out   *folded
	db    stepDB
	in    step.Input
	ids   int // ids derived so far

	beforeMS int64 // bus time before the message

	effects step.Effects // of the attempt that is made

	// How many of out.requests and out.woken there were before the part of the
	// step that is done.
	asked, woken int
}

// decide lets the machine that the message is addressed to decide. The error is
// of the register; a refusal is an outcome.
func (s *stepRun) decide() (reply any, refusal *wire.Error, err error) {
	if s.it.row.Kind == wire.Msg {
		return s.receive()
	}
	if s.it.problem != nil {
		return nil, s.it.problem, nil
	}
	addr := s.it.addr
	if addr.Machine == bridgeName || addr.Machine == clockName {
		return s.internal(addr)
	}
	m, ok := s.machines.byName[addr.Machine]
	switch {
	case addr.Machine == messageName || addr.Machine == auditName:
		return nil, wire.Errorf(wire.APIOnly, "%s.%s is a request only", addr.Machine, addr.Verb).
			WithHint(fmt.Sprintf("send it to %s", s.config.Root.Request(addr.From, addr.Machine, addr.Verb))), nil
	case !ok:
		return nil, wire.Errorf(wire.UnknownCommand, "there is no machine %q", addr.Machine), nil
	case !slices.Contains(m.Verbs(), addr.Verb):
		return nil, wire.Errorf(wire.UnknownCommand, "%s has no verb %q", addr.Machine, addr.Verb).
			WithHint(fmt.Sprintf("its verbs are %v", m.Verbs())), nil
	}
	effects, refusal, err := s.attempt(m, step.Command{Verb: addr.Verb, Body: s.it.row.Body})
	if err != nil || refusal != nil {
		return nil, refusal, err
	}
	return effects.Reply, nil, nil
}

func (s *stepRun) message() step.Message {
	row := s.it.row
	return step.Message{ID: row.ID, MessageID: row.MessageID, From: row.From, To: s.it.addr.To, Envelope: s.it.envelope,
		CorrelationID: row.CorrelationID, TraceID: row.TraceID, ExpiresAtMS: row.ExpiresAtMS, Leaf: row.Leaf[:], Problem: s.it.problem}
}

// receive hands a message to every machine that sees messages. The first that
// refuses ends it: what is refused is not delivered.
func (s *stepRun) receive() (reply any, refusal *wire.Error, err error) {
	deliveries := 0
	var event step.Event = s.message()
	for _, m := range s.machines.receivers {
		effects, refused, err := s.attempt(m, event)
		if err != nil || refused != nil {
			return nil, refused, err
		}
		if effects.Reply != nil {
			reply = effects.Reply
		}
		deliveries += effects.Deliveries
	}
	if s.it.problem != nil {
		return nil, s.it.problem, nil
	}
	if accepted, ok := reply.(*message.Accepted); ok {
		accepted.FanoutCount = deliveries
	}
	return reply, nil, nil
}

// attempt applies an event to a machine and carries out what follows within
// the step. What goes wrong in a machine undoes the step and is an INTERNAL
// refusal; what goes wrong in the register is the error. The effects are good
// until the next attempt.
func (s *stepRun) attempt(m Machine, event step.Event) (*step.Effects, *wire.Error, error) {
	s.out.stepped = true
	s.db.wrote = false
	s.asked, s.woken = len(s.out.requests), len(s.out.woken)
	if s.careful {
		if err := s.batch.Savepoint(); err != nil {
			return nil, nil, err
		}
	}
	refusal, err := s.act(m, event)
	if err == nil && s.careful {
		if err = s.machines.flush(&s.db); err == nil {
			err = s.batch.Release()
			return &s.effects, refusal, err
		}
	}
	if err == nil || !s.careful || ofRegister(err) {
		return &s.effects, refusal, s.orCareful(err)
	}
	if err := s.goBack(); err != nil {
		return nil, nil, err
	}
	s.out.faults++
	s.loud(m.Name(), s.it.row, err)
	return &s.effects, wire.Errorf(wire.Internal, "%s failed on this message; its step was undone", m.Name()).
		WithHint("the message is registered; the cause is in the bridge's log under its row id"), nil
}

// act is the part of an attempt that may fail by itself.
func (s *stepRun) act(m Machine, event step.Event) (refusal *wire.Error, err error) {
	if err = s.apply(m, event, &s.effects); err == nil {
		if err = s.writeReply(&s.effects); err != nil {
			return nil, err
		}
		return nil, s.carryOut(m, &s.effects, 0)
	}
	refusal, ok := asRefusal(err)
	if !ok {
		return nil, err
	}
	// A refusal changes no state of the machine that refuses; messages may
	// follow.
	if s.db.wrote {
		if err := s.takeBack(); err != nil {
			return nil, err
		}
	}
	return refusal, s.carryOut(m, &step.Effects{Messages: s.effects.Messages, Told: s.effects.Told}, 0)
}

// writeReply writes the reply where somebody waits for it: one that cannot be
// written is a fault of its machine.
func (s *stepRun) writeReply(e *step.Effects) error {
	if _, message := e.Reply.(*message.Accepted); message || e.Reply == nil || s.it.requestID == "" {
		return nil
	}
	raw, err := json.Marshal(e.Reply)
	e.Reply = json.RawMessage(raw)
	return err
}

// errCareful says that a batch must be folded again, with a savepoint around
// every step. Steps fail so rarely that a savepoint around each, always, costs
// more than to do a batch twice.
var errCareful = errors.New("a step of the batch failed")

// ofRegister reports whether an error is of the register, not of a machine.
func ofRegister(err error) bool { return audit.Retryable(err) || errors.Is(err, audit.ErrFatal) }

// orCareful is err, where it is of a machine as errCareful as long as that helps.
func (f *folder) orCareful(err error) error {
	if err == nil || f.careful || ofRegister(err) || errors.Is(err, errCareful) {
		return err
	}
	return fmt.Errorf("%w: %w", errCareful, err)
}

// takeBack undoes what a machine wrote before it refused.
func (s *stepRun) takeBack() error {
	if !s.careful {
		return errCareful
	}
	if err := s.goBack(); err != nil {
		return err
	}
	return s.batch.Savepoint()
}

// goBack goes back to the savepoint, in the tables, in memory, and in what is
// owed to the world.
func (s *stepRun) goBack() error {
	s.machines.forget()
	s.out.requests, s.out.woken = s.out.requests[:s.asked], s.out.woken[:s.woken]
	return s.batch.RollbackTo()
}

// apply calls the machine; a panic is an error like any other.
func (s *stepRun) apply(m Machine, event step.Event, effects *step.Effects) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	in := s.in
	in.Event = event
	*effects, err = m.Apply(&s.db, in)
	return err
}

// carryOut records transitions, queues events and messages, and hands notices
// on. A refusal by a machine that only listens is a fault of that machine.
func (s *stepRun) carryOut(m Machine, e *step.Effects, depth int) error {
	for _, t := range e.Transitions {
		if err := s.transit(m.Name(), t); err != nil {
			return err
		}
	}
	for _, h := range e.Events {
		if err := s.happened(m.Name(), h); err != nil {
			return err
		}
	}
	for _, h := range e.Told {
		if err := s.happened(noticeName, h); err != nil {
			return err
		}
	}
	for _, o := range e.Messages {
		if err := s.send(o); err != nil {
			return err
		}
	}
	for _, r := range e.Requests {
		s.out.requests = append(s.out.requests, outRequest{machine: m.Name(), Request: r})
	}
	for _, key := range e.Woken {
		s.out.woken = append(s.out.woken, pollKey{m.Name(), key})
	}
	for _, n := range e.Notices {
		if depth == maxDepth {
			return fmt.Errorf("notices of %s are more than %d deep", m.Name(), maxDepth)
		}
		n.Machine = m.Name()
		if err := s.tell(n, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// tell hands a notice to every machine that listens, in the fixed order.
func (s *stepRun) tell(n step.Notice, depth int) error {
	for _, m := range s.machines.all {
		l, ok := m.(Listener)
		if !ok || !l.Hears(n.Machine, n.What) {
			continue
		}
		var effects step.Effects
		if err := s.apply(m, n, &effects); err != nil {
			return fmt.Errorf("%s on the notice %s.%s: %w", m.Name(), n.Machine, n.What, plain(err))
		}
		if err := s.carryOut(m, &effects, depth); err != nil {
			return err
		}
	}
	return nil
}

// plain takes the refusal out of an error that must not pass for one.
func plain(err error) error {
	if _, ok := asRefusal(err); ok {
		return errors.New(err.Error())
	}
	return err
}

func (s *stepRun) transit(machine string, t step.Transition) error {
	err := s.batch.Transit(audit.Transition{Machine: machine, Key: t.Key, From: t.From, To: t.To, Reason: t.Reason,
		Cause: s.it.row.ID, AtMS: s.in.NowMS})
	if err != nil {
		return err
	}
	body, err := fields(t.Body)
	if err != nil {
		return fmt.Errorf("the snapshot of %s %s: %w", machine, t.Key, err)
	}
	body["from_state"], body["reason"] = t.From, t.Reason
	return s.event(machine, step.Happened{Key: t.Key, What: t.To, CorrelationID: t.CorrelationID, TraceID: t.TraceID}, body)
}

// happened queues an event that is no transition.
func (s *stepRun) happened(machine string, h step.Happened) error {
	if h.Key == "" && machine == noticeName {
		h.Key = wire.NoScope // the subject names no valid sender
	}
	body, err := fields(h.Body)
	if err != nil {
		return fmt.Errorf("the event %s %s %s: %w", machine, h.Key, h.What, err)
	}
	return s.event(machine, h, body)
}

// fields are the fields of a value that is a JSON object.
func fields(v any) (map[string]any, error) {
	body, ok := v.(map[string]any)
	if ok {
		return body, nil
	}
	if v == nil {
		return map[string]any{}, nil
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&body); err != nil || body == nil {
		return nil, fmt.Errorf("is no JSON object: %w", err)
	}
	return body, nil
}
