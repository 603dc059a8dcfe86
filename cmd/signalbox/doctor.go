package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"signalbox/cmd/signalbox/doctor"
	"signalbox/cmd/signalbox/listing"
)

func (a *app) doctorCommand() *cobra.Command {
	var format listing.Format
	var r remote
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check what the bus stands on, and say what to do", Args: noArgs,
		Long: `Check versions, data directory, disk, lock, register, index, streams, clocks and
health, and say what to do about what is not well. It only reads, and works with the
bridge running, stopped or crashed. It exits with 1 if a check fails.`,
		RunE: func(*cobra.Command, []string) error { return a.doctor(r, format) },
	}
	r.flags(cmd)
	output(cmd, &format, listing.Table, listing.JSON, listing.JSONL)
	return cmd
}

func (a *app) doctor(r remote, format listing.Format) error {
	if err := r.check(); err != nil {
		return err
	}
	c, err := a.load(nil)
	if err != nil {
		return err
	}
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer release()
	stop := a.spin("examining")
	report := doctor.Examine(ctx, doctor.Options{Config: c, Version: version(),
		Connect: func() (*nats.Conn, error) { return r.dial(c) },
		Named:   r.server != "" || os.Getenv("NATS_URL") != "" || c.NATS.External()})
	stop()
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if format == listing.Table {
		_, err = io.WriteString(a.stdout, reportText(report))
	} else {
		err = listing.Object(a.stdout, format, report)
	}
	if err != nil {
		return err
	}
	if report.Level == doctor.Fail {
		return errors.New("a check failed")
	}
	return nil
}

// reportText is a report for people: a line a finding, and what to do below it.
func reportText(r doctor.Report) string {
	var b strings.Builder
	wide := 0
	for _, f := range r.Findings {
		wide = max(wide, len(f.Check))
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", f.Level, wide, f.Check, listing.Escape(f.Message))
		if f.Todo != "" {
			fmt.Fprintf(&b, "      %-*s  → %s\n", wide, "", listing.Escape(f.Todo))
		}
	}
	return b.String()
}
