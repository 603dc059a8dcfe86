package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"signalbox/audit"
	"signalbox/cmd/signalbox/listing"
)

var traceColumns = []listing.Column{
	{Title: "ID", Right: true, Whole: true}, {Title: "AFTER", Right: true, Whole: true}, {Title: "FROM → TO", Min: 12},
	{Title: "TYPE", Min: 5}, {Title: "SUBJECT", Min: 10}, {Title: "BODY", Min: 10},
}

func (a *app) traceCommand() *cobra.Command {
	var format listing.Format
	cmd := &cobra.Command{
		Use: "trace ID", Short: "List a chain of messages", Args: oneArg("a trace, correlation or message id"),
		Long: `List all messages whose trace id, correlation id or message id is ID, oldest first,
with the time since the first one.`,
		RunE: func(_ *cobra.Command, args []string) error { return a.trace(args[0], format) },
	}
	output(cmd, &format, formats...)
	return cmd
}

func (a *app) trace(id string, format listing.Format) error {
	if err := visibleID(id); err != nil {
		return usage(fmt.Errorf("%q: %w", id, err))
	}
	ctx := context.Background()
	r, err := a.register(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	stop := a.spin("looking for the chain")
	defer stop()
	list := listing.New(a.stdout, format, traceColumns, rowHeader, false)
	var c chain
	f := audit.Filter{Chain: id, After: new(int64), Limit: audit.MaxLimit}
	for {
		page, err := r.Log(ctx, f)
		if err != nil {
			return asked(err)
		}
		if records := c.records(page); len(records) > 0 {
			stop()
			if err := list.Write(records...); err != nil {
				return err
			}
		}
		if !page.More {
			break
		}
		*f.After = page.NextAfter
	}
	if c.first.IsZero() {
		return fmt.Errorf("trace, correlation or message id %q: %w", id, audit.ErrNotFound)
	}
	return list.Close()
}

// chain is how far a chain has been printed.
type chain struct {
	first time.Time   // of its first row
	gaps  []audit.Gap // since its last row
}

// records are the rows of a page. Gaps count between the chain's first row and
// its last one: what is missing there may belong to it.
func (c *chain) records(page audit.Page) []listing.Record {
	page.Gaps = append(c.gaps, page.Gaps...)
	c.gaps = nil
	if len(page.Rows) == 0 {
		if !c.first.IsZero() {
			c.gaps = page.Gaps
		}
		return nil
	}
	from, to := page.Rows[0].ID, page.Rows[len(page.Rows)-1].ID
	var within []audit.Gap
	for _, g := range page.Gaps {
		switch {
		case g.Cause > to:
			c.gaps = append(c.gaps, g)
		case g.Cause > from || !c.first.IsZero():
			within = append(within, g)
		}
	}
	page.Gaps = within
	if c.first.IsZero() {
		c.first = page.Rows[0].At()
	}
	return merged(page, c.record)
}

func (c *chain) record(r *audit.Row) listing.Record {
	record := logRecord(r)
	who := r.From
	if r.To != "" {
		who += " → " + r.To
	}
	record.Cells = []string{strconv.FormatInt(r.ID, 10), offset(r.At().Sub(c.first)), who, string(r.Type), r.Subject, bodyText(r.Body)}
	return record
}

// offset is a time since the first row, in milliseconds where it is short.
func offset(d time.Duration) string {
	if d < time.Minute && d > -time.Minute {
		return fmt.Sprintf("%+.3fs", d.Seconds())
	}
	return "+" + d.Round(time.Second).String()
}
