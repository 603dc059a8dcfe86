package bridge

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"signalbox/audit"
	"signalbox/step"
	"signalbox/wire"
)

// maxDepth bounds notices that cause notices.
const maxDepth = 8

// maxDue is how many deadlines one tick handles.
const maxDue = 500

// stepDB is a machine's view of the transaction. The savepoint is set with the
// first write, so a step that writes nothing costs nothing.
type stepDB struct {
	batch  *audit.Batch
	marked bool
}

func (d *stepDB) mark() error {
	if d.marked {
		return nil
	}
	d.marked = true
	return d.batch.Savepoint()
}

func (d *stepDB) Exec(query string, args ...any) (sql.Result, error) {
	if err := d.mark(); err != nil {
		return nil, err
	}
	return d.batch.Register().Exec(query, args...)
}

func (d *stepDB) Query(query string, args ...any) (*sql.Rows, error) {
	return d.batch.Register().Query(query, args...)
}

func (d *stepDB) QueryRow(query string, args ...any) *sql.Row {
	return d.batch.Register().QueryRow(query, args...)
}

// stepRun is the handling of one message.
type stepRun struct {
	*folder
	batch *audit.Batch
	it    *item
	out   *folded
	db    stepDB
	in    step.Input
	ids   int // ids derived so far
}

// decide lets the machine that the message is addressed to decide. The error is
// of the register; a refusal is an outcome.
func (s *stepRun) decide() (reply any, refusal *wire.Error, err error) {
	if s.it.row.Kind == wire.Msg {
		for _, m := range s.machines.all {
			if r, ok := m.(Receiver); ok {
				one, refused, err := s.attempt(r, s.message())
				if err != nil || refused != nil {
					return nil, refused, err
				}
				if one != nil {
					reply = one
				}
			}
		}
		if s.it.problem != nil {
			return nil, s.it.problem, nil
		}
		return reply, nil, nil
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
	return s.attempt(m, step.Command{Verb: addr.Verb, Body: s.it.row.Body})
}

func (s *stepRun) message() step.Message {
	row := s.it.row
	return step.Message{ID: row.ID, MessageID: row.MessageID, From: row.From, To: s.it.addr.To, Envelope: s.it.envelope,
		CorrelationID: row.CorrelationID, ExpiresAtMS: row.ExpiresAtMS, Leaf: row.Leaf[:], Problem: s.it.problem}
}

// attempt applies an event to a machine and carries out what follows within
// the step. What goes wrong in a machine undoes the step and is an INTERNAL
// refusal; what goes wrong in the register is the error.
func (s *stepRun) attempt(m Machine, event step.Event) (any, *wire.Error, error) {
	s.out.stepped = true
	s.db.marked = false
	effects, err := s.apply(m, event)
	refusal, refused := asRefusal(err)
	switch {
	case err == nil:
		err = s.carryOut(m, effects, 0)
	case refused:
		// A refusal changes no state of the machine that refuses; messages may
		// follow.
		if err := s.undo(); err != nil {
			return nil, nil, err
		}
		if err := s.carryOut(m, step.Effects{Messages: effects.Messages}, 0); err != nil {
			return nil, nil, err
		}
		return nil, refusal, s.keep()
	}
	if err == nil {
		return effects.Reply, nil, s.keep()
	}
	if audit.Retryable(err) || errors.Is(err, audit.ErrFatal) {
		return nil, nil, err
	}
	if err := s.undo(); err != nil {
		return nil, nil, err
	}
	s.out.faults++
	s.loud(m.Name(), s.it.row, err)
	return nil, wire.Errorf(wire.Internal, "%s failed on this message; its step was undone", m.Name()).
		WithHint("the message is registered; the cause is in the bridge's log under its row id"), nil
}

func (s *stepRun) keep() error {
	if !s.db.marked {
		return nil
	}
	s.db.marked = false
	return s.batch.Release()
}

func (s *stepRun) undo() error {
	if !s.db.marked {
		return nil
	}
	s.db.marked = false
	return s.batch.RollbackTo()
}

// apply calls the machine; a panic is an error like any other.
func (s *stepRun) apply(m Machine, event step.Event) (effects step.Effects, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	in := s.in
	in.Event = event
	return m.Apply(&s.db, in)
}

// carryOut records transitions, queues events and messages, and hands notices
// on. A refusal by a machine that only listens is a fault of that machine.
func (s *stepRun) carryOut(m Machine, e step.Effects, depth int) error {
	if len(e.Transitions)+len(e.Messages) > 0 {
		if err := s.db.mark(); err != nil {
			return err
		}
	}
	for _, t := range e.Transitions {
		if err := s.transit(m.Name(), t); err != nil {
			return err
		}
	}
	for _, o := range e.Messages {
		if err := s.send(o); err != nil {
			return err
		}
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
		effects, err := s.apply(m, n)
		if err != nil {
			return fmt.Errorf("%s on the notice %s.%s: %w", m.Name(), n.Machine, n.What, plain(err))
		}
		if err := s.carryOut(m, effects, depth); err != nil {
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
	body := map[string]any{}
	if t.Body != nil {
		raw, err := json.Marshal(t.Body)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(raw, &body); err != nil {
			return fmt.Errorf("the snapshot of %s %s is no JSON object: %w", machine, t.Key, err)
		}
	}
	body["from_state"], body["reason"] = t.From, t.Reason
	return s.event(machine, t.Key, t.To, body)
}
