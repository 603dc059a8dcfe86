package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/cmd/signalbox/listing"
)

func (a *app) statsCommand() *cobra.Command {
	var format listing.Format
	cmd := &cobra.Command{
		Use: "stats", Short: "Count what the register holds", Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return a.stats(format) },
	}
	output(cmd, &format, listing.Table, listing.JSON, listing.JSONL)
	return cmd
}

func (a *app) stats(format listing.Format) error {
	ctx := context.Background()
	r, err := a.register(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	stop := a.spin("counting")
	defer stop()
	s, err := bridge.ReadStats(ctx, r)
	if err != nil {
		return err
	}
	stop()
	if format != listing.Table {
		return listing.Object(a.stdout, format, s)
	}
	_, err = io.WriteString(a.stdout, statsText(s))
	return err
}

func statsText(s audit.Stats) string {
	var b strings.Builder
	line := func(name string, value any) { fmt.Fprintf(&b, "%-26s %v\n", name, value) }
	line("messages", s.TotalMessages)
	for _, kind := range slices.Sorted(maps.Keys(s.Kinds)) {
		name := string(kind)
		if name == "" {
			name = "other"
		}
		line("  "+name, s.Kinds[kind])
	}
	if s.TotalMessages > 0 {
		line("rows", fmt.Sprintf("%d to %d", s.FirstID, s.LastID))
		line("first", local(s.FirstAt))
		line("last", local(s.LastAt))
	}
	line("not expired", fmt.Sprintf("%d urgent, %d normal", s.Urgent, s.Normal))
	line("deliveries", fmt.Sprintf("%d, %.0f ms on average", s.TotalDeliveries, s.AvgDeliveryMS))
	line("dead letters", s.DLQ)
	line("online agents", s.OnlineAgents)
	line("active jobs", s.ActiveAssignJobs)
	line("  queued", s.AssignQueued)
	line("  running", s.AssignRunning)
	line("failed jobs", s.AssignFailed)
	line("timed out jobs", s.AssignTimedOut)
	line("gaps", s.Gaps)
	line("incarnations", s.Incarnations)
	line("outbox", s.OutboxDepth)
	var refused int64
	for _, n := range s.Refusals {
		refused += n
	}
	line("refusals", refused)
	for _, code := range slices.Sorted(maps.Keys(s.Refusals)) {
		line("  "+string(code), s.Refusals[code])
	}
	return b.String()
}

func local(t time.Time) string { return t.Local().Format(logYear) }
