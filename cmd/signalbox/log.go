package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"signalbox/audit"
	"signalbox/cmd/signalbox/listing"
	"signalbox/wire"
)

// followEvery is how often a log that is followed is asked for new rows.
const followEvery = 200 * time.Millisecond

// logQuery is what the log command is asked.
type logQuery struct {
	filter audit.Filter
	after  int64
	limit  int
	follow bool
	format listing.Format
}

func (a *app) logCommand() *cobra.Command {
	var q logQuery
	cmd := &cobra.Command{
		Use: "log", Short: "List messages of the register, oldest first", Args: noArgs,
		Long: `List the newest messages of the register that all the flags select, or with --after
those behind a row. What the log had and the register has not stands in its place
as a gap. It works with the bridge running, stopped or crashed.`,
		Example: `  signalbox log --to agent:reviewer --since 15m
  signalbox log --subject 'bus.evt.bridge.>' --kind evt
  signalbox log --search 'timeout "connection refused"' -o jsonl
  signalbox log --follow`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("after") {
				q.filter.After = &q.after
			} else if q.limit > audit.MaxLimit {
				return usage(fmt.Errorf("--limit is at most %d without --after; --after 0 lists from the first row", audit.MaxLimit))
			}
			return a.log(q)
		},
	}
	q.flags(cmd)
	return cmd
}

func (q *logQuery) flags(cmd *cobra.Command) {
	f, flags := &q.filter, cmd.Flags()
	text := func(value *string, name, kind string, check func(string) error, help string) {
		flags.Var(checked{value, kind, check}, name, help)
	}
	text(&f.Trace, "trace", "id", visibleID, "trace id")
	text(&f.Correlation, "correlation", "id", visibleID, "correlation id")
	text(&f.From, "from", "agent", agentID, "sender")
	text(&f.To, "to", "recipient", recipient, "recipient: agent:x or x, topic:a.b, role:project/kind[/scope]")
	text(&f.Topic, "topic", "topic", topicName, "topic")
	text(&f.Subject, "subject", "pattern", anyText, "subject; * is one token, a last > is one or more")
	text(&f.ForAgent, "for-agent", "agent", agentID, "sent by the agent, addressed to it, or an event about it")
	text(&f.Search, "search", "text", anyText, `words in the subject or body; "words in quotes" stand together, a last * is any ending`)
	flags.Var(choice[wire.Type]{&f.Type, types}, "type", "type of message")
	complete(cmd, "type", types)
	flags.Var(choices[wire.Kind]{&f.Kinds, kinds}, "kind", "kinds, with commas: msg, cmd, evt, tap")
	complete(cmd, "kind", kinds)
	flags.Var(instant{&f.Since, time.Now}, "since", "from this time on: a date, RFC 3339, or a duration for so long ago")
	flags.Var(instant{&f.Until, time.Now}, "until", "before this time")
	flags.Var(number[int64]{&q.after, 0, math.MaxInt64}, "after", "rows behind this id, oldest first, instead of the newest")
	q.limit = audit.DefaultLimit
	flags.Var(number[int]{&q.limit, 1, math.MaxInt}, "limit", "the most rows; with --follow, of those that are there already")
	flags.BoolVarP(&q.follow, "follow", "f", false, "go on with new rows until interrupted")
	output(cmd, &q.format, formats...)
}

func (a *app) log(q logQuery) error {
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer release()
	r, err := a.register(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	stop := a.spin("reading the register")
	defer stop()
	list := listing.New(a.stdout, q.format, logColumns, rowHeader, q.follow)
	next, err := a.firstRows(ctx, r, q, list, stop)
	if err == nil && q.follow {
		err = follow(ctx, r, q.filter, next, list)
	}
	if q.follow && ctx.Err() != nil {
		err = nil // that is how following ends
	}
	if err != nil {
		return asked(err)
	}
	return list.Close()
}

// firstRows prints the rows that are there already, up to the limit, and says
// after which row to go on.
func (a *app) firstRows(ctx context.Context, r *audit.Reader, q logQuery, list *listing.List, stop func()) (int64, error) {
	f := q.filter
	for left := q.limit; ; {
		f.Limit = min(left, audit.MaxLimit)
		page, err := r.Log(ctx, f)
		if err != nil {
			return 0, err
		}
		stop()
		if err := list.Write(merged(page, logRecord)...); err != nil {
			return 0, err
		}
		left -= len(page.Rows)
		if f.After == nil && page.More && left > 0 {
			fmt.Fprintln(a.stderr, "signalbox: older rows are left out, their bodies are large; ask for fewer with --limit, or use --after")
		}
		if f.After == nil || !page.More || left <= 0 {
			return page.NextAfter, nil
		}
		f.After = &page.NextAfter
	}
}

// errReplaced means that what is followed has come to an end.
var errReplaced = errors.New("the register's file was deleted or replaced; start again to follow the one that is there now")

// follow prints rows as they come, from the one behind after on, until ctx ends.
func follow(ctx context.Context, r *audit.Reader, f audit.Filter, after int64, list *listing.List) error {
	f.Limit, f.After = audit.MaxLimit, &after
	file, err := os.Stat(r.Path())
	if err != nil {
		return errReplaced
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		page, err := r.Log(ctx, f)
		if err != nil {
			return err
		}
		if records := merged(page, logRecord); len(records) > 0 {
			if err := list.Write(records...); err != nil {
				return err
			}
		}
		after = page.NextAfter
		if page.More && ctx.Err() == nil {
			continue
		}
		if now, err := os.Stat(r.Path()); err != nil || !os.SameFile(now, file) {
			return errReplaced
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
