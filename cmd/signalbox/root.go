package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"signalbox/audit"
	"signalbox/cmd/signalbox/config"
	"signalbox/cmd/signalbox/listing"
)

// Exit codes.
const (
	exitDone     = 0
	exitFailed   = 1
	exitUsage    = 2
	exitNotFound = 3
)

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usage marks an error of the command line or the configuration.
func usage(err error) error { return &exitError{exitUsage, err} }

// app is what all commands share.
type app struct {
	stdout, stderr io.Writer
	configPath     string
	data           string
	as             string
	set            []string // overrides, key=value
	started        bool     // the command line was understood
}

// run is the whole program: it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	a := &app{stdout: stdout, stderr: stderr}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.PersistentPreRun = func(*cobra.Command, []string) { a.started = true }
	err := root.Execute()
	if err == nil {
		return exitDone
	}
	if !a.started { // an unknown command, say, which cobra finds
		err = usage(err)
	}
	fmt.Fprintln(stderr, "signalbox:", listing.EscapeText(err.Error()))
	var coded *exitError
	switch {
	case errors.As(err, &coded):
		return coded.code
	case errors.Is(err, audit.ErrNotFound):
		return exitNotFound
	}
	return exitFailed
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "signalbox", Short: "A bus for fleets of agents that forgets nothing",
		SilenceUsage: true, SilenceErrors: true,
		Long: `Signalbox hears every message on a NATS bus, writes each one to a SQLite register
exactly once, and announces what changed. Start it with "signalbox serve", publish
with any NATS client, and ask the register with "signalbox log".`,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	flags := root.PersistentFlags()
	flags.StringVar(&a.configPath, "config", "", "configuration file (default: none, every key has a default)")
	flags.StringVar(&a.data, "data", "", "data directory (default ./data)")
	flags.StringArrayVar(&a.set, "set", nil, "override a key of the configuration, as in --set bus.max_age=24h (repeatable)")
	root.AddCommand(a.serveCommand(), a.versionCommand())
	root.AddCommand(a.commands()...)
	return root
}

// load reads the configuration: defaults, file, environment, flags.
func (a *app) load(more map[string]string) (config.Config, error) {
	overrides := map[string]string{}
	for _, kv := range a.set {
		key, value, ok := cutKey(kv)
		if !ok {
			return config.Config{}, usage(fmt.Errorf("--set %q is not key=value", kv))
		}
		overrides[key] = value
	}
	if a.data != "" {
		overrides["data_dir"] = a.data
	}
	for key, value := range more {
		overrides[key] = value
	}
	c, err := config.Load(a.configPath, os.Environ(), overrides)
	if err != nil {
		return c, usage(err)
	}
	return c, nil
}

func cutKey(kv string) (key, value string, ok bool) {
	for i := range len(kv) {
		if kv[i] == '=' {
			return kv[:i], kv[i+1:], i > 0
		}
	}
	return "", "", false
}

// version is the program's version, from the build.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
