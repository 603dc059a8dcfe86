package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// filter is a flag that becomes a field of the query.
type filter struct {
	flag, field, usage string
	check              func(string) error
	kind               filterKind
}

// filterKind is what a flag's text becomes in JSON.
type filterKind int

// The kinds of flags.
const (
	textFlag filterKind = iota
	listFlag            // with commas: an array of texts
	numberFlag
	boolFlag
	durationFlag // milliseconds
	jsonFlag     // any JSON, or a text
	messageFlag  // names a message: the number of its row, or its message id
)

// flagValues are the texts of a command's flags.
type flagValues struct {
	filters []filter
	texts   map[string]*string
}

func flagsOf(cmd *cobra.Command, filters []filter) flagValues {
	v := flagValues{filters: filters, texts: map[string]*string{}}
	for _, f := range filters {
		text := new(string)
		v.texts[f.flag] = text
		name := map[filterKind]string{textFlag: "text", listFlag: "list", numberFlag: "number", boolFlag: "bool", durationFlag: "duration", jsonFlag: "json", messageFlag: "id"}[f.kind]
		check := f.check
		if check == nil {
			check = anyText
		}
		cmd.Flags().Var(checked{text, name, check}, f.flag, f.usage)
		if f.kind == boolFlag {
			cmd.Flags().Lookup(f.flag).NoOptDefVal = "true"
		}
	}
	return v
}

// body are the fields of the flags that were given.
func (v flagValues) body(cmd *cobra.Command) (map[string]any, error) {
	body := map[string]any{}
	for _, f := range v.filters {
		if !cmd.Flags().Changed(f.flag) {
			continue
		}
		value, err := f.kind.value(*v.texts[f.flag])
		if err != nil {
			return nil, usage(fmt.Errorf("--%s %q: %w", f.flag, *v.texts[f.flag], err))
		}
		body[f.field] = value
	}
	return body, nil
}

func (k filterKind) value(text string) (any, error) {
	switch k {
	case listFlag:
		return strings.Split(text, ","), nil
	case numberFlag:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, errors.New("it is no whole number")
		}
		return n, nil
	case boolFlag:
		return strconv.ParseBool(text)
	case durationFlag:
		d, err := time.ParseDuration(text)
		return d.Milliseconds(), err
	case messageFlag:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n, nil
		}
	case jsonFlag:
		if json.Valid([]byte(text)) {
			return json.RawMessage(text), nil
		}
	}
	return text, nil
}
