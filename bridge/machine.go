package bridge

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"signalbox/audit"
	"signalbox/step"
)

// Machine is what the bridge knows of a machine. Its methods are called by the
// loop only, inside the transaction of the message that is folded, except the
// queries, which get a read-only connection.
type Machine interface {
	// Name is the token of the machine in subjects and the first part of its
	// tables' names.
	Name() string

	// Verbs are the commands that it takes.
	Verbs() []string

	// Apply decides what happens on in.Event: a step.Command with one of its
	// verbs, a step.Deadline that Due gave, a step.Notice of another machine or
	// of the bridge, or a step.Message. It stores the new state through db and
	// returns what else is to be done. A refusal is a *wire.Error and changes
	// no state: it MUST come before the first write. Messages and what senders
	// are told among its effects are still sent. Any other error, and a panic,
	// undoes the step and is recorded as INTERNAL.
	Apply(db step.DB, in step.Input) (step.Effects, error)

	// Due are its deadlines at or before nowMS of bus time, at most limit,
	// sorted by time, then key.
	Due(db step.DB, nowMS int64, limit int) ([]step.Deadline, error)

	// Queries are the verbs that only read.
	Queries() map[string]step.Query

	// Tables are its state tables, which a replay makes again.
	Tables() []string
}

// Receiver is a Machine that must see every message on the bus.
type Receiver interface {
	Machine
	// Receives marks it; Apply gets a step.Message.
	Receives()
}

// Listener is a Machine that reacts to notices.
type Listener interface {
	Machine
	// Hears says whether it reacts to what a machine tells; Apply then gets
	// the step.Notice.
	Hears(machine, what string) bool
}

// Keeper is a Machine that holds a part of its state in memory during a batch.
type Keeper interface {
	Machine

	// Flush writes what memory has and the tables have not. It is called
	// before each commit, so that what a commit holds is a function of the log
	// alone.
	Flush(db step.DB) error

	// Forget drops everything in memory, because the tables have gone back: the
	// next use reads them again.
	Forget()
}

// Poller is a Machine with commands that are appended only when they would
// find something.
type Poller interface {
	Machine
	// Polls are the looks by verb; each MUST be one of Verbs too.
	Polls() map[string]step.Poll
}

// Beater is the Machine that heartbeats are for.
type Beater interface {
	Machine
	// Stated is the generation that a heartbeat's body names, 0 for none.
	Stated(body []byte) int64

	// Admit says whether a heartbeat of the agent with the body may count, and
	// the generation that it names, 0 for none. It reads the tables only; a
	// refusal is a *wire.Error. What it admits comes back as the command seen.
	Admit(db step.DB, from string, body []byte) (generation int64, err error)
}

// machines are the bridge's machines in the fixed order in which they act.
type machines struct {
	all     []Machine
	byName  map[string]Machine
	keepers []Keeper
	beater  Beater // nil: heartbeats mean nothing

	// Who hears of each message, looked up once.
	receivers        []Machine
	arrived, handled []Machine
}

func newMachines(all []Machine) (machines, error) {
	m := machines{all: all, byName: map[string]Machine{}}
	for _, machine := range all {
		name := machine.Name()
		if m.byName[name] != nil || name == bridgeName || name == clockName || name == auditName {
			return m, fmt.Errorf("there are two machines named %q", name)
		}
		m.byName[name] = machine
		if k, ok := machine.(Keeper); ok {
			m.keepers = append(m.keepers, k)
		}
		if b, ok := machine.(Beater); ok {
			m.beater = b
		}
		if _, ok := machine.(Receiver); ok {
			m.receivers = append(m.receivers, machine)
		}
		if hears(machine, step.Bridge, step.Arrived) {
			m.arrived = append(m.arrived, machine)
		}
		if hears(machine, step.Bridge, step.Handled) {
			m.handled = append(m.handled, machine)
		}
	}
	return m, nil
}

func hears(m Machine, from, what string) bool {
	l, ok := m.(Listener)
	return ok && l.Hears(from, what)
}

// flush writes what the machines have in memory.
func (m machines) flush(db step.DB) (err error) {
	name := ""
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		if err != nil {
			err = fmt.Errorf("write the state of %s: %w", name, err)
		}
	}()
	for _, k := range m.keepers {
		name = k.Name()
		if err := k.Flush(db); err != nil {
			return err
		}
	}
	return nil
}

// forget makes the machines read their tables again.
func (m machines) forget() {
	for _, k := range m.keepers {
		k.Forget()
	}
}

func (m machines) tables() []string {
	var tables []string
	for _, machine := range m.all {
		tables = append(tables, machine.Tables()...)
	}
	return tables
}

// due are the deadlines at or before nowMS over all machines, in the order in
// which they are handled: by time, machine, key. A machine that cannot say is
// left out and reported as a fault; the error is of the register.
func (m machines) due(db step.DB, nowMS int64, limit int, fault func(Machine, error)) ([]dueItem, error) {
	var items []dueItem
	for i, machine := range m.all {
		deadlines, err := askDue(machine, db, nowMS, limit)
		switch {
		case err == nil:
		case audit.Retryable(err) || errors.Is(err, audit.ErrFatal):
			return nil, fmt.Errorf("deadlines of %s: %w", machine.Name(), err)
		default:
			fault(machine, err)
		}
		for _, d := range deadlines {
			items = append(items, dueItem{order: i, machine: machine, deadline: d})
		}
	}
	slices.SortFunc(items, func(a, b dueItem) int {
		if a.deadline.AtMS != b.deadline.AtMS {
			return int(max(-1, min(1, a.deadline.AtMS-b.deadline.AtMS)))
		}
		if a.order != b.order {
			return a.order - b.order
		}
		return strings.Compare(a.deadline.Key, b.deadline.Key)
	})
	return items[:min(limit, len(items))], nil
}

// askDue asks a machine; a panic is an error like any other.
func askDue(m Machine, db step.DB, nowMS int64, limit int) (due []step.Deadline, err error) {
	defer func() {
		if p := recover(); p != nil {
			due, err = nil, fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return m.Due(db, nowMS, limit)
}

type dueItem struct {
	order    int
	machine  Machine
	deadline step.Deadline
}

// dueKey names a deadline's owner.
type dueKey struct{ machine, key string }

func (d dueItem) dueKey() dueKey { return dueKey{d.machine.Name(), d.deadline.Key} }
