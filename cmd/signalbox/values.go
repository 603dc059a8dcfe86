package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"signalbox/cmd/signalbox/listing"
	"signalbox/wire"
)

// Values of flags. Each one's Set says what it takes, and the root makes a
// usage error of that.

// choice is one of a few words.
type choice[T ~string] struct {
	value   *T
	allowed []T
}

func (c choice[T]) String() string { return string(*c.value) }
func (choice[T]) Type() string     { return "word" }

func (c choice[T]) Set(s string) error {
	if !slices.Contains(c.allowed, T(s)) {
		return fmt.Errorf("it is one of %s", words(c.allowed))
	}
	*c.value = T(s)
	return nil
}

// choices are some of a few words, with commas or in several flags.
type choices[T ~string] struct {
	value   *[]T
	allowed []T
}

func (c choices[T]) String() string { return words(*c.value) }
func (choices[T]) Type() string     { return "words" }

func (c choices[T]) Set(s string) error {
	for word := range strings.SplitSeq(s, ",") {
		v := T(strings.TrimSpace(word))
		if !slices.Contains(c.allowed, v) {
			return fmt.Errorf("%q is not one of %s", word, words(c.allowed))
		}
		if !slices.Contains(*c.value, v) {
			*c.value = append(*c.value, v)
		}
	}
	return nil
}

func words[T ~string](list []T) string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return strings.Join(out, ",")
}

// checked is a text that a function accepts.
type checked struct {
	value *string
	name  string
	check func(string) error
}

func (c checked) String() string { return *c.value }
func (c checked) Type() string   { return c.name }

func (c checked) Set(s string) error {
	if err := c.check(s); err != nil {
		return err
	}
	*c.value = s
	return nil
}

// number is a whole number within bounds.
type number[T int | int64] struct {
	value    *T
	min, max T
}

func (n number[T]) String() string { return fmt.Sprint(*n.value) }
func (number[T]) Type() string     { return "number" }

func (n number[T]) Set(s string) error {
	v, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil:
		return errors.New("it is no whole number")
	case v < int64(n.min):
		return fmt.Errorf("it is at least %d", n.min)
	case v > int64(n.max):
		return fmt.Errorf("it is at most %d", n.max)
	}
	*n.value = T(v)
	return nil
}

// Checks of texts.
var (
	agentID = checkOf(func(s string) bool { return wire.ValidID(strings.TrimPrefix(s, "agent:")) },
		"an agent's id is 1 to 128 characters of A-Z a-z 0-9 _ -")
	topicName = checkOf(wire.ValidTopic, "a topic is 1 to 8 ids joined by dots")
	visibleID = checkOf(wire.Visible, "an id is 1 to 128 visible characters")
	anyText   = checkOf(func(s string) bool { return strings.TrimSpace(s) != "" }, "it is empty")
)

func checkOf(valid func(string) bool, problem string) func(string) error {
	return func(s string) error {
		if !valid(s) {
			return errors.New(problem)
		}
		return nil
	}
}

func recipient(s string) error {
	_, err := wire.ParseRecipient(s)
	var refusal *wire.Error
	if errors.As(err, &refusal) && refusal.Hint != "" {
		return fmt.Errorf("%s; %s", refusal.Message, refusal.Hint)
	}
	return err
}

// instant is a moment: RFC 3339, a local date with or without a time, or a
// duration, which means so long ago.
type instant struct {
	value *time.Time
	now   func() time.Time
}

func (i instant) String() string {
	if i.value.IsZero() {
		return ""
	}
	return i.value.Format(time.RFC3339Nano)
}

func (instant) Type() string { return "time" }

func (i instant) Set(s string) error {
	if d, err := time.ParseDuration(s); err == nil {
		if d < 0 {
			return errors.New("a duration means so long ago; leave the minus out")
		}
		*i.value = i.now().Add(-d)
		return nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		*i.value = t
		return nil
	}
	for _, layout := range []string{time.DateOnly, "2006-01-02 15:04", time.DateTime, "2006-01-02T15:04:05"} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			*i.value = t
			return nil
		}
	}
	return errors.New("write 2026-11-30, 2026-11-30T08:00:00Z, or a duration such as 15m for so long ago")
}

// Words that flags take.
var (
	kinds   = []wire.Kind{wire.Msg, wire.Cmd, wire.Evt, wire.Tap}
	types   = []wire.Type{wire.TypeRequest, wire.TypeResponse, wire.TypeEvent, wire.TypeHandoff, wire.TypeHumanRequest, wire.TypeHumanResponse, wire.TypeSystem}
	formats = []listing.Format{listing.Table, listing.JSON, listing.JSONL, listing.CSV}
)

// output adds the flag -o, with a completion of its values.
func output(cmd *cobra.Command, value *listing.Format, allowed ...listing.Format) {
	*value = listing.Table
	cmd.Flags().VarP(choice[listing.Format]{value, allowed}, "output", "o", "format: "+strings.ReplaceAll(words(allowed), ",", ", "))
	complete(cmd, "output", allowed)
}

// complete registers the words that a flag takes for the shell's completion.
func complete[T ~string](cmd *cobra.Command, flag string, allowed []T) {
	list := strings.Split(words(allowed), ",")
	// The error would say that the flag does not exist or is registered twice,
	// which the first run of any test shows.
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}

// oneArg takes exactly one argument, named as in the usage line.
func oneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usage(fmt.Errorf("%s takes one argument, %s, not %d", cmd.CommandPath(), name, len(args)))
		}
		return nil
	}
}
