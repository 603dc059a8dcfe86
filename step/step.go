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
	"strings"
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

// ParsePlace reads what String writes; ok is false for anything else.
func ParsePlace(s string) (p Place, ok bool) {
	incarnation, seq, _ := strings.Cut(s, ":")
	var errs [2]error
	p.Incarnation, errs[0] = strconv.ParseInt(incarnation, 10, 64)
	p.Seq, errs[1] = strconv.ParseUint(seq, 10, 64)
	return p, errs == [2]error{}
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
	TraceID       string // likewise
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

// What the bridge tells its machines by notices of the machine Bridge.
const (
	Bridge = "bridge"

	// Started: the bridge, or the server in its process, has started. Data is
	// a Started.
	Started = "started"
	// Arrived: a message or command of the input's sender is about to be judged.
	Arrived = "arrived"
	// Handled: it has been judged. Data is the *wire.Error of a refusal, or nil.
	Handled = "handled"
	// LogGap: the log has a gap just before this message, so commands may be
	// missing. Data is a LogGap.
	LogGap = "log_gap"
)

// Start is the Data of the notice Started.
type Start struct {
	LastMS   int64 // bus time of the message before
	Embedded bool  // the server runs in this process, so every connection was dropped
}

// Gap is the Data of the notice LogGap.
type Gap struct {
	Missing int64 // how many messages; 0 for unknown
}

// Effects are what a machine wants done. The zero Effects is nothing.
type Effects struct {
	Reply       any // for the requester; marshalled to a JSON object
	Transitions []Transition
	Events      []Happened // of this machine, without a transition
	Told        []Happened // Key is a sender who must hear of it: bus.evt.notice.<key>.<what>
	Messages    []Outgoing
	Requests    []Request
	Notices     []Notice
	Deliveries  int      // made for the message that was judged
	Woken       []string // keys of whose polls may have something now
}

// Happened is an event bus.evt.<machine>.<key>.<what> that is no transition.
type Happened struct {
	Key  string // its tokens joined by dots
	What string // in the past tense
	Body any    // a JSON object

	// The chain that the event belongs to; "" for the event's own.
	CorrelationID string
	TraceID       string
}

// Request is a question that the bridge asks an agent for a machine, on
// bus.rpc.<agent>.<verb>. Its outcome comes back as the machine's command
// Outcome, from the bridge, with a body of {…Context, "reachable", "error"}.
// A request that a crash loses has no outcome.
type Request struct {
	Agent   string
	Verb    string
	Body    any // a JSON object
	Timeout time.Duration
	Outcome string         // a verb of the machine
	Context map[string]any // copied into the outcome
}

// Transition is a change of a state column. Each becomes one row that names
// its cause, and one event bus.evt.<machine>.<key>.<to>.
type Transition struct {
	Key    string
	From   string // "" when it is new
	To     string
	Reason string
	Body   any // the snapshot after the change; a JSON object

	// The chain that the event belongs to; "" for the event's own.
	CorrelationID string
	TraceID       string
}

// Outgoing is a message that a machine sends, from the bridge.
type Outgoing struct {
	ID            string // its message id, derived by the machine; "" for any
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

// Poll looks from the tables whether a command would find something. It
// appends nothing.
type Poll func(db DB, from string, body []byte) (Polled, error)

// Polled is what a Poll found.
type Polled struct {
	Ready  bool     // the command finds something now
	Keys   []string // otherwise one of them in Effects.Woken says when to look again
	InMS   int64    // or so many milliseconds from now, if it is not 0
	WaitMS int64    // how long the caller wants to wait, milliseconds
	Empty  any      // the answer as long as there is nothing
}
