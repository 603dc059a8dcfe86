package config

import (
	"errors"
	"strconv"
	"strings"
)

// Error is one thing that is wrong with the configuration. Load and Validate
// join all they find; Problems takes them apart again.
type Error struct {
	// File is the configuration file as it was named, the environment variable,
	// or the flag. Empty when the value comes from the program (Validate).
	File string
	// Line is the line of File, from 1; 0 where File is not a file or the
	// problem is the file as a whole.
	Line int
	// Key is the dotted key, with the index of a list entry: bus.taps[0]. Empty
	// where the problem belongs to no key (a syntax error).
	Key string
	// Problem is what is wrong.
	Problem string
	// Hint is what to do about it.
	Hint string

	related []string // other keys that have a part in the problem
	cause   error
}

// Error is "file:line: key: problem (hint)", without the parts that are empty.
func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			b.WriteByte(':')
			b.WriteString(strconv.Itoa(e.Line))
		}
		b.WriteString(": ")
	}
	if e.Key != "" {
		b.WriteString(e.Key)
		b.WriteString(": ")
	}
	b.WriteString(e.Problem)
	if e.Hint != "" {
		b.WriteString(" (" + e.Hint + ")")
	}
	return b.String()
}

// Unwrap is the error of the system behind the problem, if there is one, such
// as fs.ErrNotExist.
func (e *Error) Unwrap() error { return e.cause }

// Problems lists every *Error in what Load or Validate returned, in the order
// flags, environment, lines of the file.
func Problems(err error) []*Error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		joined, ok := e.(interface{ Unwrap() []error })
		if !ok {
			continue
		}
		var list []*Error
		for _, part := range joined.Unwrap() {
			list = append(list, Problems(part)...)
		}
		return list
	}
	var e *Error
	if errors.As(err, &e) {
		return []*Error{e}
	}
	return nil
}

func join(list []*Error) error {
	errs := make([]error, len(list))
	for i, e := range list {
		errs[i] = e
	}
	return errors.Join(errs...)
}

// mistake is what a parser of a value says; the reader adds place and key.
type mistake struct{ problem, hint string }

func (m mistake) Error() string { return m.problem + " (" + m.hint + ")" }

// quote shows a value of the user, cut where it is too long for a line.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return strconv.Quote(s)
}
