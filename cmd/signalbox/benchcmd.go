package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"signalbox/cmd/signalbox/bench"
)

func (a *app) benchCommand() *cobra.Command {
	o := bench.Options{Version: version()}
	var only []string
	var output string
	var check bool
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure this machine and say whether the targets are met", Args: noArgs,
		Long: `Measure a whole Signalbox on this machine: it starts a node of its own and
publishers in processes of their own, in a directory of its own (beside the working
directory, or --data, which must be new or empty), and prints ratios from one run.
It measures the defaults; --set changes settings of the node. Missed targets end in
exit code 0 unless --check is given.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Set = a.set
			for _, p := range only {
				o.Only = append(o.Only, bench.Phase(p))
			}
			if err := a.checkBench(o, output); err != nil {
				return usage(err)
			}
			return a.bench(cmd.Context(), o, output, check)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.Messages, "messages", 300_000, "messages of the capture, and rows of each ceiling")
	flags.IntVar(&o.BurstMessages, "burst-messages", 200_000, "messages of the burst")
	flags.IntVar(&o.MemoryMessages, "memory-messages", 1_000_000, "messages after which memory is read")
	flags.IntVar(&o.Publishers, "publishers", 1, "processes that publish")
	flags.IntVar(&o.Size, "size", 256, "bytes of a body")
	flags.StringSliceVar(&only, "only", nil, "phases to run, of "+phaseNames()+" (default all)")
	flags.StringVarP(&output, "output", "o", "table", "table or json")
	flags.BoolVar(&o.Keep, "keep", false, "leave the directory behind")
	flags.BoolVar(&check, "check", false, "exit with 1 when a target is missed")
	return cmd
}

func phaseNames() string {
	var names []string
	for _, p := range bench.Phases() {
		names = append(names, string(p))
	}
	return strings.Join(names, ",")
}

// checkBench refuses what would measure, or fill, something else.
func (a *app) checkBench(o bench.Options, output string) error {
	if a.configPath != "" {
		return errors.New("bench takes no --config: it measures the defaults, with changes by --set")
	}
	for _, kv := range a.set {
		key, _, ok := cutKey(kv)
		if !ok {
			return fmt.Errorf("--set %q is not key=value", kv)
		}
		switch key {
		case "data_dir", "audit.path", "bus.root", "nats.url", "nats.context", "nats.embedded.listen", "http.listen":
			return fmt.Errorf("bench sets %s itself", key)
		}
	}
	if output != "table" && output != "json" {
		return fmt.Errorf("-o %s: bench prints table or json", output)
	}
	return o.Validate()
}

func (a *app) bench(ctx context.Context, o bench.Options, output string, check bool) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.Program, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if o.Dir = a.data; o.Dir == "" {
		if o.Dir, err = os.MkdirTemp(".", "signalbox-bench-"); err != nil {
			return err
		}
	}
	if f, ok := a.stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		o.Progress = f
	}
	result, err := bench.Run(ctx, o)
	if o.Keep {
		fmt.Fprintln(a.stderr, "signalbox: what the bench made is in", o.Dir)
	}
	if err != nil {
		return err
	}
	if err := a.printBench(result, output); err != nil {
		return err
	}
	if missed := result.Missed(); check && len(missed) > 0 {
		var names []string
		for _, f := range missed {
			names = append(names, fmt.Sprintf("%s is %s, target %s", f.Name, f.Measured, f.Target))
		}
		return errors.New("missed: " + strings.Join(names, "; "))
	}
	return nil
}

func (a *app) printBench(r *bench.Result, output string) error {
	if output == "json" {
		e := json.NewEncoder(a.stdout)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return r.Table(a.stdout)
}

// benchPublishCommand is what bench runs in other processes.
func (a *app) benchPublishCommand() *cobra.Command {
	return &cobra.Command{
		Use: bench.PublishCommand + " URL", Short: "Publish what bench orders on stdin", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return bench.Publish(cmd.Context(), args[0], cmd.InOrStdin(), a.stdout)
		},
	}
}
