package config

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// taps checks bus.taps. The stream of the taps must not capture the bus itself
// (each message would be registered twice), NATS' own traffic, or a subject
// twice (JetStream refuses overlapping subjects in one stream).
func (k *check) taps() {
	const most = 256
	b := k.config.Bus
	if len(b.Taps) > most {
		k.fail("bus.taps", fmt.Sprintf("has %d entries", len(b.Taps)), fmt.Sprintf("use at most %d", most))
		return
	}
	type tap struct {
		key string
		Tap
	}
	var earlier []tap
	for i, t := range b.Taps {
		key := fmt.Sprintf("bus.taps[%d]", i)
		var problem, hint string
		var related []string
		switch {
		case t.Stream != "" && t.Subject != "" || t.Stream == "" && t.Subject == "":
			problem, hint = "is not one subject or one stream", `write "svc.>" or {stream: ORDERS}`
		case t.Stream != "":
			key += ".stream"
			problem, hint, related = tapStreamProblem(t.Stream, b)
		default:
			problem, hint, related = tapSubjectProblem(t.Subject, b.Root)
		}
		if problem != "" {
			k.fail(key, problem, hint, related...)
			continue
		}
		for _, e := range earlier {
			if t.Stream != "" && t.Stream == e.Stream {
				k.fail(key, quote(t.Stream)+" is tapped by "+e.key+" already", "keep one of them", e.key)
				break
			}
			if t.Subject != "" && e.Subject != "" && overlap(t.Subject, e.Subject) {
				k.fail(key, fmt.Sprintf("%s overlaps %s of %s", quote(t.Subject), quote(e.Subject), e.key),
					"a subject can be captured once; keep the wider one or make them disjoint", e.key)
				break
			}
		}
		earlier = append(earlier, tap{key, t})
	}
}

// tapStreamProblem is what is wrong with a tapped stream, what to do, and the
// other keys that have a part in it.
func tapStreamProblem(stream string, b Bus) (problem, hint string, related []string) {
	switch {
	case len(stream) > 255 || !utf8.ValidString(stream) || strings.ContainsFunc(stream, notInStreamName):
		return quote(stream) + " is not a stream name", "stream names have no spaces and none of . * > / \\", nil
	case stream == b.Stream || stream == b.TapStream():
		return quote(stream) + " is Signalbox's own stream (bus.stream)", "it is registered anyway; remove the tap", []string{"bus.stream"}
	}
	return "", "", nil
}

func notInStreamName(r rune) bool {
	return unicode.IsSpace(r) || !unicode.IsPrint(r) || strings.ContainsRune(`.*>/\`, r)
}

func tapSubjectProblem(subject, root string) (problem, hint string, related []string) {
	if problem := subjectProblem(subject); problem != "" {
		return quote(subject) + " is not a NATS subject: " + problem, "write tokens with dots between them, such as svc.> or svc.*.reply", nil
	}
	first, _, _ := strings.Cut(subject, ".")
	switch {
	case first == "*" || first == ">":
		return quote(subject) + " begins with a wildcard, so it overlaps bus.root, $-subjects and _INBOX",
			"begin with a literal token, such as svc.>", nil
	case strings.HasPrefix(first, "$"):
		return quote(subject) + " is a $-subject, which belongs to NATS itself", "tap the subjects of applications, such as svc.>", nil
	case first == "_INBOX":
		return quote(subject) + " overlaps _INBOX.>, where every client gets its replies",
			"give the application a private inbox prefix such as _INBOX_svc and tap _INBOX_svc.>", nil
	case first == "_R_" || first == "_GR_":
		return quote(subject) + " belongs to NATS' routing of replies", "tap the subjects of applications, such as svc.>", nil
	case first == root:
		return quote(subject) + " overlaps the root (bus.root), which is captured anyway", "remove the tap, or choose another root", []string{"bus.root"}
	}
	return "", "", nil
}

// subjectProblem is what is wrong with a subject, or "". Stricter than a NATS
// server, which takes "a*" as a literal token: nobody means that.
func subjectProblem(subject string) string {
	const most = 1024
	if len(subject) > most {
		return fmt.Sprintf("it is longer than %d bytes", most)
	}
	if !utf8.ValidString(subject) {
		return "it is not UTF-8"
	}
	tokens := strings.Split(subject, ".")
	for i, token := range tokens {
		switch {
		case token == "":
			return "it has an empty token"
		case strings.ContainsFunc(token, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
			return "it has a space or a control character"
		case token == ">" && i < len(tokens)-1:
			return "the wildcard > can only be the last token"
		case len(token) > 1 && strings.ContainsAny(token, "*>"):
			return "a wildcard must be a token by itself"
		}
	}
	return ""
}

// overlap reports whether some subject matches both a and b.
func overlap(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; ; i++ {
		switch {
		case i == len(x) || i == len(y):
			return len(x) == len(y)
		case x[i] == ">" || y[i] == ">":
			return true
		case x[i] != y[i] && x[i] != "*" && y[i] != "*":
			return false
		}
	}
}
