package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"signalbox/audit"
	"signalbox/cmd/signalbox/listing"
	"signalbox/step"
	"signalbox/wire"
)

// machineList is a list of what a machine keeps. It is read from the register,
// so it works whether the bridge runs or not.
type machineList struct {
	use, short, long string
	args             cobra.PositionalArgs
	query            step.Query
	argument         string  // the query's field that the argument is for; "" for none
	records          string  // the field of the answer that has them
	fields           []field // of a record, in the order of the CSV
	filters          []filter
	limit            int // the default
	most             int // the highest; 0 for 1000
}

// field is a value of a record, and its column; without a title it is in the
// CSV only.
type field struct {
	name   string
	title  string
	show   func(json.RawMessage, time.Time) string // nil: the value as text
	min    int
	number bool
	whole  bool
}

// list makes the command of a list.
func (a *app) list(l machineList) *cobra.Command {
	var format listing.Format
	limit, most := l.limit, l.most
	if most == 0 {
		most = audit.MaxLimit
	}
	cmd := &cobra.Command{Use: l.use, Short: l.short, Long: l.long, Args: l.args}
	values := flagsOf(cmd, l.filters)
	cmd.Flags().Var(number[int]{&limit, 1, most}, "limit", fmt.Sprintf("how many at most, 1 to %d", most))
	output(cmd, &format, formats...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		body, err := values.body(cmd)
		if err != nil {
			return err
		}
		body["limit"] = limit
		if l.argument != "" && len(args) > 0 {
			body[l.argument] = args[0]
		}
		return a.printList(l, body, format)
	}
	return cmd
}

func (a *app) printList(l machineList, body map[string]any, format listing.Format) error {
	defer a.spin("reading the register")()
	answer, err := a.askRegister(l.query, body)
	if err != nil {
		return err
	}
	var page map[string]json.RawMessage
	var records []map[string]json.RawMessage
	var raws []json.RawMessage
	if err = json.Unmarshal(answer, &page); err == nil {
		err = errors.Join(json.Unmarshal(page[l.records], &records), json.Unmarshal(page[l.records], &raws))
	}
	if err != nil {
		return fmt.Errorf("read the list: %w", err)
	}
	var columns []listing.Column
	var header []string
	for _, f := range l.fields {
		header = append(header, f.name)
		if f.title != "" {
			columns = append(columns, listing.Column{Title: f.title, Min: f.min, Right: f.number, Whole: f.whole})
		}
	}
	now := time.Now()
	list := make([]listing.Record, len(records))
	for i, r := range records {
		list[i].JSON = raws[i]
		for _, f := range l.fields {
			value := textOf(r[f.name])
			list[i].CSV = append(list[i].CSV, value)
			if f.title == "" {
				continue
			}
			if f.show != nil {
				value = f.show(r[f.name], now)
			}
			list[i].Cells = append(list[i].Cells, value)
		}
	}
	out := listing.New(a.stdout, format, columns, header, false)
	if err := out.Write(list...); err != nil {
		return err
	}
	if string(page["more"]) == "true" {
		hint := "--limit shows more, filters fewer"
		if next := textOf(page["next_after"]); next != "" {
			hint = "go on with --after " + next
		}
		fmt.Fprintln(a.stderr, "signalbox: there are more;", hint)
	}
	return out.Close()
}

// askRegister asks a machine's query of one commit of the register.
func (a *app) askRegister(q step.Query, body any) (answer []byte, err error) {
	ctx := context.Background()
	r, err := a.register(ctx)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if version, err := r.SchemaVersion(ctx); err != nil || version < audit.SchemaVersion() {
		if err == nil {
			err = fmt.Errorf("the register's schema is version %d, and this list needs %d: \"signalbox serve\" brings it there", version, audit.SchemaVersion())
		}
		return nil, err
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	err = r.View(ctx, func(tx *sql.Tx) error {
		result, err := q(tx, a.as, raw)
		if err != nil {
			return err
		}
		answer, err = json.Marshal(result)
		return err
	})
	var refusal *wire.Error
	if errors.As(err, &refusal) {
		err = codedRefusal(&refusedError{refusal})
	}
	return answer, err
}
