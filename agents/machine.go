package agents

import (
	"fmt"

	"signalbox/step"
	"signalbox/wire"
)

// Verbs of the machine.
const (
	verbRegister   = "register"
	verbHeartbeat  = "heartbeat"
	verbSubscribe  = "subscribe"
	verbDeregister = "deregister"
	verbSeen       = "seen"
)

// noticeSubscribed is what the machine tells when topics have changed. What it
// tells of a state is named as the state.
const noticeSubscribed = "subscribed"

// Machine is the machine of agents. The loop alone calls it, except Admit,
// Count, the queries and the facts named …OnTable, which read the table only.
type Machine struct {
	pending func(db step.DB, agent string) (int64, error)
	dir     *directory // nil: to be read from the table
}

// New makes the machine. pending counts the open deliveries of an agent on a
// read-only connection, for get; nil counts none.
func New(pending func(db step.DB, agent string) (int64, error)) *Machine {
	if pending == nil {
		pending = func(step.DB, string) (int64, error) { return 0, nil }
	}
	return &Machine{pending: pending}
}

// Name implements the machine's interface.
func (*Machine) Name() string { return "agents" }

// Verbs implements the machine's interface.
func (*Machine) Verbs() []string {
	return []string{verbRegister, verbHeartbeat, verbSubscribe, verbDeregister, verbSeen}
}

// Tables implements the machine's interface.
func (*Machine) Tables() []string { return []string{"agents"} }

// Hears implements the machine's interface.
func (*Machine) Hears(machine, what string) bool {
	return machine == step.Bridge && (what == step.Started || what == step.Arrived || what == step.Handled)
}

// Flush writes what is in memory only. It is called before each commit.
func (m *Machine) Flush(db step.DB) error {
	if m.dir == nil || len(m.dir.dirty) == 0 {
		return nil
	}
	if err := m.dir.flush(db); err != nil {
		return fmt.Errorf("write agents: %w", err)
	}
	return nil
}

// Forget drops what is in memory; the next use reads the table.
func (m *Machine) Forget() { m.dir = nil }

// Due implements the machine's interface: ends of leases, and of the time from
// stale to offline.
func (m *Machine) Due(db step.DB, nowMS int64, limit int) ([]step.Deadline, error) {
	if err := m.Flush(db); err != nil {
		return nil, err
	}
	list, err := due(db, nowMS, limit)
	if err != nil {
		return nil, fmt.Errorf("the deadlines of agents: %w", err)
	}
	return list, nil
}

func (m *Machine) directory(db step.DB) (*directory, error) {
	if m.dir == nil {
		dir, err := readDirectory(db)
		if err != nil {
			return nil, fmt.Errorf("read agents: %w", err)
		}
		m.dir = dir
	}
	return m.dir, nil
}

// Apply decides what happens. A refusal leaves memory and table as they were.
func (m *Machine) Apply(db step.DB, in step.Input) (step.Effects, error) {
	dir, err := m.directory(db)
	if err != nil {
		return step.Effects{}, err
	}
	switch e := in.Event.(type) {
	case step.Notice:
		switch e.What {
		case step.Arrived:
			return arrived(dir, in)
		case step.Handled:
			return handled(dir, in, e)
		case step.Started:
			return started(dir, in, e)
		}
	case step.Deadline:
		return over(dir, in, e.Key)
	case step.Command:
		switch e.Verb {
		case verbRegister:
			return register(dir, in, e.Body)
		case verbHeartbeat:
			return heartbeat(dir, in, e.Body)
		case verbSubscribe:
			return subscribe(dir, in, e.Body)
		case verbDeregister:
			return deregister(dir, in, e.Body)
		case verbSeen:
			return seen(dir, in, e.Body)
		}
	}
	return step.Effects{}, fmt.Errorf("agents got a %T that it does not hear", in.Event)
}

// arrived ends the sender's lease before its message is judged, if it is over:
// the one lease that does not wait for a tick.
func arrived(dir *directory, in step.Input) (step.Effects, error) {
	e := dir.byID[in.From]
	if e == nil || e.damaged != nil || !e.agent.lapsed(in.NowMS) {
		return step.Effects{}, nil
	}
	return expire(dir, in, e)
}

// handled counts a message that was judged as a sign of life of its sender,
// unless another generation has sent it.
func handled(dir *directory, in step.Input, n step.Notice) (step.Effects, error) {
	e := dir.byID[in.From]
	if e == nil || e.damaged != nil {
		return step.Effects{}, nil
	}
	if refusal, ok := n.Data.(*wire.Error); ok && refusal != nil && refusal.Code == wire.StaleGeneration {
		return step.Effects{}, nil
	}
	next, move := Beat(&e.agent, in.NowMS, reasonMessage)
	return dir.live(e, next, move), nil
}

// started gives leases their length again that could not be renewed while the
// bridge was away.
func started(dir *directory, in step.Input, n step.Notice) (step.Effects, error) {
	start, ok := n.Data.(step.Start)
	if !ok {
		return step.Effects{}, fmt.Errorf("the notice started has a %T", n.Data)
	}
	for _, e := range dir.byID { // each by itself, so in any order
		if e.damaged == nil {
			dir.beat(e, Restart(&e.agent, in.NowMS, start.LastMS))
		}
	}
	return step.Effects{}, nil
}

// over handles a deadline; one that has moved since is nothing.
func over(dir *directory, in step.Input, id string) (step.Effects, error) {
	e := dir.byID[id]
	switch {
	case e == nil:
		return step.Effects{}, nil
	case e.damaged != nil:
		return step.Effects{}, e.damaged
	}
	return expire(dir, in, e)
}

func expire(dir *directory, in step.Input, e *entry) (step.Effects, error) {
	s, err := readSettings(in.Settings)
	if err != nil {
		return step.Effects{}, err
	}
	next, move := Expire(&e.agent, in.NowMS, s)
	if move == (Move{}) {
		return step.Effects{}, nil
	}
	return dir.live(e, next, move), nil
}

// live stores what a rule has decided about a life, and says what follows:
// nothing where only times have moved.
func (d *directory) live(e *entry, next Life, m Move) step.Effects {
	if m == (Move{}) {
		d.beat(e, next)
		return step.Effects{}
	}
	a := e.agent
	a.Life = next
	return d.move(e, a, m)
}

// move stores an agent that has changed its state, or begun a generation: a
// transition and its notice. e is nil for one that is new.
func (d *directory) move(e *entry, a Agent, m Move) step.Effects {
	d.change(e, a)
	c := a.change()
	c.NewGeneration = m.NewGeneration
	if a.Status == Online {
		c.Added = a.Topics
	}
	return step.Effects{
		Transitions: []step.Transition{{Key: a.AgentID, From: string(m.From), To: string(a.Status), Reason: m.Reason, Body: a}},
		Notices:     []step.Notice{{What: string(a.Status), Key: a.AgentID, Data: c}},
	}
}
