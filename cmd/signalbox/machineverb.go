package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"signalbox/cmd/signalbox/listing"
	"signalbox/wire"
)

// machineVerb is a command that asks the bridge to do something, as the agent
// that --as names.
type machineVerb struct {
	use, short, long string
	machine, verb    string
	args             []argument
	flags            []filter
}

// argument is a positional argument that becomes a field of the body.
type argument struct {
	name, field string
	kind        filterKind
	check       func(string) error
	many        bool // one or more, as an array; the last argument only
	optional    bool
}

// verb makes the command.
func (a *app) verb(v machineVerb) *cobra.Command {
	var format listing.Format
	var remote remote
	id := ""
	cmd := &cobra.Command{Use: v.use, Short: v.short, Long: v.long, Args: v.counted}
	values := flagsOf(cmd, v.flags)
	cmd.Flags().Var(checked{&a.as, "agent", agentID}, "as", "the agent who asks")
	cmd.Flags().Var(checked{&id, "id", requestID}, "id", "request id: sent again with the same one, it is done once")
	remote.flags(cmd)
	output(cmd, &format, listing.Table, listing.JSON, listing.JSONL)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		body, err := values.body(cmd)
		if err != nil {
			return err
		}
		if err := v.read(args, body); err != nil {
			return usage(err)
		}
		return a.do(remote, v, id, body, format)
	}
	return cmd
}

// counted says whether there are as many arguments as there should be.
func (v machineVerb) counted(cmd *cobra.Command, args []string) error {
	least, most := 0, len(v.args)
	for _, arg := range v.args {
		if !arg.optional {
			least++
		}
		if arg.many {
			most = 1000
		}
	}
	if len(args) < least || len(args) > most {
		return usage(fmt.Errorf("it is %s", cmd.UseLine()))
	}
	return nil
}

// read puts the arguments into the body.
func (v machineVerb) read(args []string, body map[string]any) error {
	for i, arg := range v.args {
		if i >= len(args) {
			return nil
		}
		rest := args[i : i+1]
		if arg.many {
			rest = args[i:]
		}
		list := make([]any, len(rest))
		for j, text := range rest {
			if arg.check != nil {
				if err := arg.check(text); err != nil {
					return fmt.Errorf("%s %q: %w", arg.name, text, err)
				}
			}
			value, err := arg.kind.value(text)
			if err != nil {
				return fmt.Errorf("%s %q: %w", arg.name, text, err)
			}
			list[j] = value
		}
		if body[arg.field] = list[0]; arg.many {
			body[arg.field] = list
		}
	}
	return nil
}

// do sends the request and prints the answer.
func (a *app) do(r remote, v machineVerb, id string, body map[string]any, format listing.Format) error {
	if err := r.check(); err != nil {
		return err
	}
	c, err := a.load(nil)
	if err != nil {
		return err
	}
	msg := nats.NewMsg(wire.Root(c.Bus.Root).Request(a.as, v.machine, v.verb))
	if msg.Data, err = json.Marshal(body); err != nil {
		return err
	}
	if id != "" {
		msg.Header.Set(wire.HeaderMsgID, id)
	}
	stop := a.spin("waiting for the answer")
	defer stop()
	reply, err := r.request(c, msg)
	if err != nil {
		return err
	}
	stop()
	if format != listing.Table {
		return listing.Object(a.stdout, format, json.RawMessage(reply))
	}
	_, err = io.WriteString(a.stdout, sorted(reply))
	return err
}
