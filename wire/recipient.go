package wire

import "strings"

// Class says what a message is addressed to.
type Class string

// The classes of recipients.
const (
	ToAgent Class = "agent"
	ToTopic Class = "topic"
	ToRole  Class = "role"
)

// Recipient is an agent, a topic or a role. The zero Recipient is none.
type Recipient struct {
	Class Class
	Name  string // a role's name is project/kind or project/kind/scope
}

// String is the recipient as the register and the API write it, "agent:x".
func (r Recipient) String() string {
	if r.Class == "" {
		return ""
	}
	return string(r.Class) + ":" + r.Name
}

// ParseRecipient reads "agent:x", a bare "x", "topic:a.b" or
// "role:project/kind[/scope]". The error is an *Error with code IDInvalid.
func ParseRecipient(s string) (Recipient, error) {
	class, name, found := strings.Cut(s, ":")
	if !found {
		class, name = string(ToAgent), s
	}
	r := Recipient{Class: Class(class), Name: name}
	switch {
	case r.Class == ToAgent && ValidID(name), r.Class == ToTopic && ValidTopic(name):
		return r, nil
	case r.Class == ToRole:
		return r, validRole(name)
	case r.Class == ToAgent, r.Class == ToTopic:
		return r, invalidID(class, name)
	}
	return r, Errorf(IDInvalid, "%q is no recipient", clip(s)).
		WithHint(`use "agent:<id>", "<id>", "topic:<tokens>" or "role:<project>/<kind>[/<scope>]"`)
}

func validRole(name string) error {
	n := 0
	for token := range strings.SplitSeq(name, "/") {
		if n++; !ValidID(token) {
			return invalidID("role token", token)
		}
	}
	if n < 2 || n > 3 {
		return Errorf(IDInvalid, "role %q is not <project>/<kind>[/<scope>]", clip(name))
	}
	return nil
}
