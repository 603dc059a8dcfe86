package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/cmd/signalbox/listing"
	"signalbox/wire"
)

func (a *app) whyCommand() *cobra.Command {
	var format listing.Format
	var after int64
	cmd := &cobra.Command{
		Use: "why KEY", Short: "Explain how something came to be as it is", Args: oneArg("job:ID, agent:ID, role:PROJECT/KIND[/SCOPE] or human:ID"),
		Long: `Show the chain of what happened to a job, an agent, a role or a question to a human:
each change of its state with the message that caused it, who sent that, and what it
led to. KEY is job:ID, agent:ID, role:PROJECT/KIND[/SCOPE] or human:ID.`,
		RunE: func(_ *cobra.Command, args []string) error { return a.why(args[0], after, format) },
	}
	cmd.Flags().Var(number[int64]{&after, 0, 1<<62 - 1}, "after", "only what came after this row")
	output(cmd, &format, listing.Table, listing.JSON, listing.JSONL)
	return cmd
}

func (a *app) why(key string, after int64, format listing.Format) error {
	ctx := context.Background()
	r, err := a.register(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	stop := a.spin("following the chain")
	defer stop()
	w, err := bridge.ReadWhy(ctx, r, key, after)
	var refusal *wire.Error
	if errors.As(err, &refusal) && !errors.Is(err, audit.ErrNotFound) {
		return usage(&refusedError{refusal})
	}
	if err != nil {
		return err
	}
	stop()
	if format != listing.Table {
		return listing.Object(a.stdout, format, w)
	}
	if _, err := io.WriteString(a.stdout, whyText(w)); err != nil {
		return err
	}
	if w.More {
		fmt.Fprintf(a.stderr, "signalbox: there is more; go on with --after %d\n", w.Steps[len(w.Steps)-1].ID)
	}
	return nil
}

// whyText is a chain for people: a line a message, its changes and what it led
// to below it.
func whyText(w bridge.Why) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s is %s\n", listing.Escape(w.Key), listing.Escape(w.State))
	for _, s := range w.Steps {
		fmt.Fprintf(&b, "\n%d  %s  %s  %s\n", s.ID, s.At.Local().Format(logTime), listing.Escape(s.From), listing.Escape(s.Subject))
		if s.Refusal != nil {
			fmt.Fprintf(&b, "    refused: %s\n", listing.Escape(s.Refusal.Error()))
		}
		for _, c := range s.Changes {
			from := c.From
			if from == "" {
				from = "(new)"
			}
			fmt.Fprintf(&b, "    %s → %s, %s\n", listing.Escape(from), listing.Escape(c.To), listing.Escape(c.Reason))
		}
		for _, e := range s.LedTo {
			what := "event " + e.Subject
			if e.Kind != wire.Evt {
				what = fmt.Sprintf("%s to %s", e.Type, e.To)
				if e.Topic != "" {
					what += ", " + e.Topic
				}
			}
			fmt.Fprintf(&b, "    └ %d %s\n", e.ID, listing.Escape(what))
		}
	}
	return b.String()
}
