package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"signalbox/cmd/signalbox/config"
	"signalbox/cmd/signalbox/node"
)

// memoryLimit is what the Go runtime tries to stay under, beside SQLite's page
// caches, which it does not see.
const (
	memoryLimit = 165 << 20
	gcPercent   = 200 // the limit holds the heap, so the collector may take its time
)

func (a *app) serveCommand() *cobra.Command {
	var listen string
	var newRegister bool
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the bus and its register", Args: noArgs,
		Long: `Run the bus: an embedded NATS server (or the one that nats.url names), and the
bridge that registers every message. It stops on SIGTERM or SIGINT after it has
finished what it began; a second signal stops it at once, and the next start
recovers.`,
		RunE: func(*cobra.Command, []string) error {
			more := map[string]string{}
			if listen != "" {
				more["nats.embedded.listen"] = listen
			}
			c, err := a.load(more)
			if err != nil {
				return err
			}
			return a.serve(c, newRegister)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "client address of the embedded server (default 127.0.0.1:4222; port 0 picks a free one)")
	cmd.Flags().BoolVar(&newRegister, "new-register", false, "register anew what the stream still holds, though another register has read it")
	return cmd
}

func (a *app) serve(c config.Config, newRegister bool) error {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	log := a.logger(c.Log)
	ctx, hard, release := signals(log)
	defer release()
	return node.Run(ctx, hard, c, node.Options{Version: version(), NewRegister: newRegister, Log: log, Ready: func(s node.Status) {
		data, err := filepath.Abs(s.DataDir)
		if err != nil {
			data = s.DataDir
		}
		log.Info("signalbox is ready", "nats", s.ClientURL, "http", s.HTTP, "data", data, "rows", s.LastID)
	}})
}

// signals gives a context that the first signal ends, and one that the second
// does.
func signals(log *slog.Logger) (soft, hard context.Context, release func()) {
	soft, stopSoft := context.WithCancel(context.Background())
	hard, stopHard := context.WithCancel(context.Background())
	c := make(chan os.Signal, 2)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, ok := <-c
		if !ok {
			return
		}
		log.Info("stopping; a second signal stops at once", "signal", s.String())
		stopSoft()
		if _, ok := <-c; ok {
			stopHard()
		}
	}()
	return soft, hard, func() {
		signal.Stop(c)
		close(c)
		<-done
		stopSoft()
		stopHard()
	}
}

// logger logs to stderr: text on a terminal, JSON otherwise.
func (a *app) logger(c config.Log) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.Slog()}
	text := c.Format == "text"
	if f, ok := a.stderr.(*os.File); ok && c.Format == "auto" {
		text = term.IsTerminal(int(f.Fd()))
	}
	if text {
		return slog.New(slog.NewTextHandler(a.stderr, options))
	}
	return slog.New(slog.NewJSONHandler(a.stderr, options))
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Errorf("%s takes no argument, not %q", cmd.CommandPath(), args[0]))
	}
	return nil
}
