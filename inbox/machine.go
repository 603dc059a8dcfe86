package inbox

import (
	"encoding/json"
	"fmt"

	"signalbox/step"
	"signalbox/wire"
)

// Verbs of the machine.
const (
	verbFetch   = "fetch"
	verbAck     = "ack"
	verbReject  = "reject"
	verbRedrive = "redrive"
)

// Agents is what the machine must know of agents.
type Agents interface {
	// Owed says whether the agent has ever registered, whether its delivery is
	// live, and the register row of its current registration. The loop calls it.
	Owed(db step.DB, agent string) (known, live bool, registeredID int64, err error)

	// OwedOnTable is Owed as of the last commit. It is called beside the loop on
	// a read-only connection, so it MUST NOT read what is in memory only.
	OwedOnTable(db step.DB, agent string) (known, live bool, registeredID int64, err error)

	// Subscribers are the agents with exactly that topic that are not offline:
	// the ids of those with delivery inbox, sorted, and how many live ones. The
	// slice stays as it is. The loop calls it.
	Subscribers(db step.DB, topic string) (inbox []string, live int, err error)
}

// Roles is what the machine must know of roles.
type Roles interface {
	// Held are the names (project/kind or project/kind/scope) of the roles that
	// the agent holds and is active in. It is also called beside the loop on a
	// read-only connection, so it MUST answer from the tables.
	Held(db step.DB, agent string) ([]string, error)
}

// Rows is what the machine must know of the register.
type Rows interface {
	// Message is a row as machines see messages.
	Message(db step.DB, id int64) (step.Message, error)

	// MessageID is the message id of a row: cheaper than Message.
	MessageID(db step.DB, id int64) (string, error)

	// JSON is a row as the API prints it, with {id, bytes} in place of a body
	// that would make it larger than most bytes.
	JSON(db step.DB, id int64, most int) (json.RawMessage, error)
}

// Clock is a step.DB that knows bus time between messages. A poll that is given
// one sees at once that a redelivery has become due on a silent bus; with any
// other DB, time stands where the last commit left it. NowMS MUST NOT be ahead
// of the bus time that a message appended now will have, or a poll is Ready for
// what the fetch does not find.
type Clock interface {
	step.DB
	NowMS() int64
}

// Facts are what the machine reads of others. Queries need none of them; with
// Roles, an agent's listing has what its roles are owed.
type Facts struct {
	Agents Agents
	Roles  Roles // nil: nobody holds a role
	Rows   Rows
}

// Machine is the machine of deliveries. The loop alone calls it, except the
// queries and the polls, which read the tables only.
type Machine struct {
	facts Facts
	buffer
}

// New makes the machine.
func New(f Facts) *Machine { return &Machine{facts: f} }

// Name implements the machine's interface.
func (*Machine) Name() string { return "inbox" }

// Verbs implements the machine's interface.
func (*Machine) Verbs() []string { return []string{verbFetch, verbAck, verbReject, verbRedrive} }

// Tables implements the machine's interface. Rows of dead_letters, which
// belongs to the bridge, come and go with deliveries too.
func (*Machine) Tables() []string { return []string{"deliveries", "inbox_moves", "inbox_totals"} }

// Queries implements the machine's interface.
func (m *Machine) Queries() map[string]step.Query {
	return map[string]step.Query{"dead": queryDead, "pending": m.queryPending}
}

// Polls are the commands that are appended only when they would find something.
func (m *Machine) Polls() map[string]step.Poll {
	return map[string]step.Poll{verbFetch: m.pollFetch}
}

// Receives marks the machine as one that sees every message.
func (*Machine) Receives() {}

// Hears implements the machine's interface.
func (*Machine) Hears(machine, what string) bool {
	return machine == agentsName && (what == noticeOnline || what == noticeSubscribed) ||
		machine == rolesName && (what == noticeActive || what == noticeClosed)
}

// Apply decides what happens. A refusal comes before anything is changed.
func (m *Machine) Apply(db step.DB, in step.Input) (step.Effects, error) {
	switch e := in.Event.(type) {
	case step.Message:
		return m.receive(db, in, e)
	case step.Command:
		switch e.Verb {
		case verbFetch:
			return m.fetch(db, in, e.Body)
		case verbAck:
			return m.ack(db, in, e.Body)
		case verbReject:
			return m.reject(db, in, e.Body)
		case verbRedrive:
			return m.redrive(db, in, e.Body)
		}
	case step.Deadline:
		return m.over(db, in, e)
	case step.Notice:
		switch e.Machine {
		case agentsName:
			return m.subscribed(db, in, e)
		case rolesName:
			if e.What == noticeActive {
				return held(e)
			}
			return m.closed(db, in, e.Key)
		}
	}
	return step.Effects{}, fmt.Errorf("inbox got a %T that it does not hear", in.Event)
}

// recipients are whose deliveries an agent may fetch and settle: its own, and
// those of the roles that it holds.
func (m *Machine) recipients(db step.DB, agent string) ([]string, error) {
	list := []string{agent}
	if m.facts.Roles == nil {
		return list, nil
	}
	held, err := m.facts.Roles.Held(db, agent)
	if err != nil {
		return nil, fmt.Errorf("the roles of %q: %w", agent, err)
	}
	for _, name := range held {
		list = append(list, roleRecipient(name))
	}
	return list, nil
}

// roleRecipient and topicRecipient are the recipients of what is for no agent
// by name. No agent id has a colon.
func roleRecipient(name string) string   { return string(wire.ToRole) + ":" + name }
func topicRecipient(topic string) string { return string(wire.ToTopic) + ":" + topic }
