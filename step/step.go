// Package step is the vocabulary between the bridge and its machines: what
// happens to a machine, and what it wants done about it.
//
// A machine is a function from its state and an Input to Effects, or to a
// refusal (a *wire.Error). Inputs and effects are plain values: the rules have
// no clock, no randomness, no I/O and no log, so folding the same inputs again
// gives the same state, row by row. The bridge carries the effects out.
package step

import (
	"database/sql"
	"encoding/json"
	"strconv"
	"time"

	"signalbox/wire"
)

// DB is the part of a transaction that a machine's tables need. Statements are
// cached by their text, so a machine MUST use constant texts with parameters.
type DB interface {
	Exec(query string, args ...any) (sql.Result, error)
	Query(query string, args ...any) (*sql.Rows, error)
	QueryRow(query string, args ...any) *sql.Row
}

// Place is where a message stands in a log.
type Place struct {
	Incarnation int64
	Seq         uint64
}

// String is the place as the header Bus-Cause writes it.
func (p Place) String() string {
	return strconv.FormatInt(p.Incarnation, 10) + ":" + strconv.FormatUint(p.Seq, 10)
}

// Input is one thing that happens to a machine, and all that it may know about
// the world while it decides.
type Input struct {
	Place    Place
	ID       int64     // the register row of the cause
	At       time.Time // the log's time of the cause
	NowMS    int64     // bus time, which never goes back
	From     string    // the sender of the cause
	Settings Settings
	Event    Event
}

// DeriveID makes the id of something that this input causes; the purpose tells
// several of them apart.
func (in Input) DeriveID(purpose string) string {
	return wire.DeriveID(in.At, in.Place.Incarnation, in.Place.Seq, purpose)
}

// Event is a Command, a Message, a Deadline or a Notice.
type Event interface{ event() }

// Command is a verb addressed to the machine.
type Command struct {
	Verb string
	Body []byte
}

// Message is a message on the bus, as its row in the register has it.
type Message struct {
	ID            int64
	MessageID     string
	From          string
	To            wire.Recipient
	Envelope      wire.Envelope
	CorrelationID string // as registered, derived where the sender left it out
	ExpiresAtMS   int64
	Leaf          []byte
	Problem       *wire.Error // what is wrong with its subject or headers, if anything
}

// Deadline is a time of a machine that is over: now ≥ AtMS.
type Deadline struct {
	AtMS int64 // bus time, milliseconds
	Key  string
}

// Notice is what one machine tells another within a step. It is neither
// stored nor announced.
type Notice struct {
	Machine string // who tells
	What    string // in the past tense
	Key     string
	Data    any
}

func (Command) event()  {}
func (Message) event()  {}
func (Deadline) event() {}
func (Notice) event()   {}

// Effects are what a machine wants done. The zero Effects is nothing.
type Effects struct {
	Reply       any // for the requester; marshalled to a JSON object
	Transitions []Transition
	Messages    []Outgoing
	Notices     []Notice
}

// Transition is a change of a state column. Each becomes one row that names
// its cause, and one event bus.evt.<machine>.<key>.<to>.
type Transition struct {
	Key    string
	From   string // "" when it is new
	To     string
	Reason string
	Body   any // the snapshot after the change; a JSON object
}

// Outgoing is a message that a machine sends, from the bridge.
type Outgoing struct {
	To            wire.Recipient
	Type          wire.Type
	Topic         string
	Priority      int
	TTL           time.Duration
	CorrelationID string
	TraceID       string
	Body          any // marshalled to JSON
}

// Settings are the settings that rules use, as the last bridge.started had
// them; machines read none from anywhere else.
type Settings map[string]json.RawMessage

// Read decodes the machine's settings into v; without any, v stays as it is.
func (s Settings) Read(machine string, v any) error {
	if raw, ok := s[machine]; ok {
		return json.Unmarshal(raw, v)
	}
	return nil
}

// Query answers a question from the tables; it appends nothing.
type Query func(db DB, from string, body []byte) (any, error)
