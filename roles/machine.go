package roles

import (
	"bytes"
	"errors"
	"fmt"

	"signalbox/step"
	"signalbox/wire"
)

// Names of the machine and its tables.
const (
	machineName     = "roles"
	rolesTable      = "roles"
	candidatesTable = "roles_candidates"
	controlTable    = "roles_control"
)

// Verbs of the machine. probed is the outcome of a probe and the bridge's own.
const (
	verbEnsure     = "ensure"
	verbAck        = "ack"
	verbResign     = "resign"
	verbRevoke     = "revoke"
	verbTakeover   = "takeover"
	verbCandidate  = "candidate"
	verbWithdraw   = "withdraw"
	verbCharter    = "charter"
	verbCloseScope = "close_scope"
	verbControl    = "control"
	verbFenceCheck = "fence_check"
	verbProbed     = "probed"
)

// Machine is the machine of roles. It keeps nothing in memory but what its
// settings say. The loop alone calls it, except Held, Count and the queries,
// which read tables only.
type Machine struct {
	facts Facts

	// The settings as last read, and the text that they were.
	text     []byte
	settings *Settings
}

// New makes the machine; facts are how it sees agents and inboxes.
func New(facts Facts) *Machine { return &Machine{facts: facts} }

// Name implements the machine's interface.
func (*Machine) Name() string { return machineName }

// Verbs implements the machine's interface.
func (*Machine) Verbs() []string {
	return []string{verbEnsure, verbAck, verbResign, verbRevoke, verbTakeover, verbCandidate, verbWithdraw, verbCharter, verbCloseScope,
		verbControl, verbFenceCheck, verbProbed}
}

// Tables implements the machine's interface.
func (*Machine) Tables() []string { return []string{rolesTable, candidatesTable, controlTable} }

// Receives marks the machine as one that sees every message: those that act for
// a role are fenced, those to a role ask for its holder.
func (*Machine) Receives() {}

// Hears implements the machine's interface.
func (*Machine) Hears(machine, what string) bool {
	switch machine {
	case "agents":
		return what == "online" || what == "subscribed" || what == "stale" || what == "offline"
	case step.Bridge:
		return what == step.Started || what == step.LogGap
	}
	return false
}

// Due implements the machine's interface: activations that nobody acknowledged,
// and times to look at candidates again. Keys are names of roles.
func (*Machine) Due(db step.DB, nowMS int64, limit int) ([]step.Deadline, error) {
	due, err := tables{db}.due(nowMS, limit)
	if err != nil {
		return nil, fmt.Errorf("the deadlines of roles: %w", err)
	}
	return due, nil
}

// Held are the names of the roles that the agent holds, sorted: those that are
// active. It reads the table only.
func (*Machine) Held(db step.DB, agent string) ([]string, error) {
	return tables{db}.names(selectActive, agent)
}

// Count counts the roles in each state that has any. It reads the table only.
func (*Machine) Count(db step.DB) (map[string]int64, error) { return tables{db}.states() }

// Apply decides what happens. Every refusal comes before the first write.
func (m *Machine) Apply(db step.DB, in step.Input) (step.Effects, error) {
	if message, ok := in.Event.(step.Message); ok && !concerns(&message) {
		return step.Effects{}, nil
	}
	return m.step(db, tables{db}, in)
}

// step does a step with a store.
func (m *Machine) step(db step.DB, s store, in step.Input) (step.Effects, error) {
	settings, err := m.read(in.Settings)
	if err != nil {
		return step.Effects{}, err
	}
	t := &turn{db: db, store: s, facts: m.facts, in: in, now: in.NowMS, settings: settings,
		agents: map[string]Agent{}, grants: map[string][]string{}}
	if t.control, err = s.Control(); err != nil {
		return step.Effects{}, fmt.Errorf("read %s: %w", controlTable, err)
	}
	reply, err := t.apply()
	t.effects.Reply = reply
	var refusal *wire.Error
	if errors.As(err, &refusal) {
		return step.Effects{Told: t.effects.Told}, err
	}
	return t.effects, err
}

// read reads the settings; they change with a start only, and reading their
// text for every step costs more than most steps.
func (m *Machine) read(in step.Settings) (*Settings, error) {
	if m.settings == nil || !bytes.Equal(in[machineName], m.text) {
		s, err := readSettings(in)
		if err != nil {
			return nil, err
		}
		m.text, m.settings = bytes.Clone(in[machineName]), s
	}
	return m.settings, nil
}

func (t *turn) apply() (reply any, err error) {
	switch e := t.in.Event.(type) {
	case step.Message:
		return nil, t.message(&e)
	case step.Deadline:
		return nil, t.overdue(e.Key)
	case step.Notice:
		return nil, t.notice(e)
	case step.Command:
		return t.command(e)
	}
	return nil, fmt.Errorf("roles got a %T that it does not hear", t.in.Event)
}

// command answers a verb with its reply. A nil *wire.Error must not become an
// error, so each verb returns a plain error.
func (t *turn) command(c step.Command) (any, error) {
	if err := authority(c.Verb, t.in.From); err != nil {
		return nil, err
	}
	switch c.Verb {
	case verbEnsure:
		return t.ensureCommand(c.Body)
	case verbAck:
		return t.ackCommand(c.Body)
	case verbResign:
		return t.resignCommand(c.Body)
	case verbRevoke:
		return t.revokeCommand(c.Body)
	case verbTakeover:
		return t.takeoverCommand(c.Body)
	case verbCandidate:
		return t.candidateCommand(c.Body)
	case verbWithdraw:
		return t.withdrawCommand(c.Body)
	case verbCharter:
		return t.charterCommand(c.Body)
	case verbCloseScope:
		return t.closeScopeCommand(c.Body)
	case verbControl:
		return t.controlCommand(c.Body)
	case verbFenceCheck:
		return t.fenceCheckCommand(c.Body)
	case verbProbed:
		return t.probedCommand(c.Body)
	}
	return nil, fmt.Errorf("roles has no verb %q", c.Verb)
}

// authority says whether the sender may use the verb. Charter, control,
// close_scope, revoke and takeover are for operators, and candidate and withdraw
// where they are for another agent, once senders are verified; until then only
// the bridge's own verb is anybody's in particular.
func authority(verb, from string) error {
	if verb == verbProbed && from != wire.Bridge {
		return wire.Errorf(wire.IdentityMismatch, "%s.%s is a command of the bridge itself", machineName, verb)
	}
	return nil
}
