package wire

import (
	"strings"
)

// Kind is the second token of a subject: what sort of message it is. It is
// also the kind of a register row.
type Kind string

// The kinds. Msg, Cmd and Evt are captured under the root; Tap is what the
// register calls a captured message of another application.
const (
	Msg Kind = "msg"
	Cmd Kind = "cmd"
	Evt Kind = "evt"
	API Kind = "api"
	HB  Kind = "hb"
	RPC Kind = "rpc"
	Tap Kind = "tap"
)

// Root is the first token of every subject of the bus, "bus" by default. It
// builds subjects; it does not check ids, Parse does.
type Root string

// Agent is the subject of a message to one agent.
func (r Root) Agent(from, to string) string { return r.msg(from, "agent", to) }

// Topic is the subject of a message to everyone registered for a topic.
func (r Root) Topic(from, topic string) string { return r.msg(from, "topic", topic) }

// Role is the subject of a message to the holder of a role, named
// project/kind or project/kind/scope.
func (r Root) Role(from, role string) string {
	return r.msg(from, "role", strings.ReplaceAll(role, "/", "."))
}

func (r Root) msg(from, class, to string) string {
	return string(r) + ".msg." + from + "." + class + "." + to
}

// To is the subject of a message to the recipient.
func (r Root) To(from string, to Recipient) string {
	if to.Class == ToRole {
		return r.Role(from, to.Name)
	}
	return r.msg(from, string(to.Class), to.Name)
}

// Command is the subject of a command that nobody waits for.
func (r Root) Command(from, machine, verb string) string {
	return string(r) + ".cmd." + from + "." + machine + "." + verb
}

// Request is the subject of the same command as a request.
func (r Root) Request(from, machine, verb string) string {
	return string(r) + ".api." + from + "." + machine + "." + verb
}

// Event is the subject of an event; key may have several tokens, or none.
func (r Root) Event(machine, key, what string) string {
	if key == "" {
		return string(r) + ".evt." + machine + "." + what
	}
	return string(r) + ".evt." + machine + "." + key + "." + what
}

// Heartbeat is the subject of an agent's heartbeats.
func (r Root) Heartbeat(agent string) string { return string(r) + ".hb." + agent }

// RPC is the subject on which the bridge asks an agent.
func (r Root) RPC(agent, verb string) string { return string(r) + ".rpc." + agent + "." + verb }

// Captured are the subjects of the stream that is the log.
func (r Root) Captured() []string {
	return []string{string(r) + ".msg.>", string(r) + ".cmd.>", string(r) + ".evt.>"}
}

// Address is what a subject of the bus says.
type Address struct {
	Kind    Kind
	From    string    // the sender; Bridge for events
	To      Recipient // messages only
	Machine string    // commands, requests and events
	Verb    string    // commands and requests; for events what happened
	Key     string    // events only, its tokens joined by dots
}

// Parse reads a subject of the bus. The error is always an *Error: SubjectInvalid
// where the shape is wrong, IDInvalid where an id is. What could be read up to
// there is in the address, so that a sender can be told.
func (r Root) Parse(subject string) (Address, error) {
	rest, ok := strings.CutPrefix(subject, string(r)+".")
	if !ok {
		return Address{}, Errorf(SubjectInvalid, "subject %q is not under %q", subject, r)
	}
	kind, rest, _ := strings.Cut(rest, ".")
	a := Address{Kind: Kind(kind)}
	switch a.Kind {
	case Evt:
		a.From = Bridge
		return a.parseEvent(rest)
	case Msg, Cmd, API, HB:
	default:
		return a, Errorf(SubjectInvalid, "%q is no kind of message", kind).
			WithHint("use " + string(r) + ".msg, .cmd, .api or .hb")
	}
	from, rest, _ := strings.Cut(rest, ".")
	if !ValidID(from) {
		return a, invalidID("sender", from)
	}
	a.From = from
	switch a.Kind {
	case Msg:
		return a.parseMessage(rest)
	case HB:
		if rest != "" {
			return a, Errorf(SubjectInvalid, "a heartbeat's subject ends after the agent id")
		}
		return a, nil
	default:
		a.Machine, a.Verb, _ = strings.Cut(rest, ".")
		if !ValidID(a.Machine) || !ValidID(a.Verb) {
			return a, Errorf(SubjectInvalid, "a command's subject ends in <machine>.<verb>, not in %q", clip(rest))
		}
		return a, nil
	}
}

func (a Address) parseMessage(rest string) (Address, error) {
	class, name, _ := strings.Cut(rest, ".")
	a.To = Recipient{Class: Class(class), Name: name}
	switch a.To.Class {
	case ToAgent:
		if !ValidID(name) {
			return a, invalidID("recipient", name)
		}
	case ToTopic:
		if !ValidTopic(name) {
			return a, invalidID("topic", name)
		}
	case ToRole:
		if strings.Contains(name, "/") { // which would pass for the end of a token
			return a, invalidID("role", name)
		}
		a.To.Name = strings.ReplaceAll(name, ".", "/")
		return a, validRole(a.To.Name)
	default:
		return a, Errorf(SubjectInvalid, "%q is no kind of recipient", clip(class)).
			WithHint("a message goes to agent.<id>, topic.<tokens> or role.<project>.<kind>[.<scope>]")
	}
	return a, nil
}

func (a Address) parseEvent(rest string) (Address, error) {
	i := strings.IndexByte(rest, '.')
	j := strings.LastIndexByte(rest, '.')
	if i <= 0 || j == len(rest)-1 || strings.Contains(rest, "..") {
		return a, Errorf(SubjectInvalid, "an event's subject is <machine>.<key>.<what>, not %q", clip(rest))
	}
	a.Machine, a.Verb = rest[:i], rest[j+1:]
	if j > i {
		a.Key = rest[i+1 : j]
	}
	return a, nil
}

// clip keeps a foreign value that goes into a text short.
func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

func invalidID(what, id string) *Error {
	return Errorf(IDInvalid, "%s %q is not an id", what, clip(id)).
		WithHint("ids are 1 to 128 characters of A-Z a-z 0-9 _ -; a topic is 1 to 8 of them joined by dots")
}
