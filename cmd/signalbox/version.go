package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"signalbox/audit"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the versions of the program and of what it is built on", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			fmt.Fprintf(a.stdout, "signalbox %s (schema %d, %s %s/%s)\n", version(), audit.SchemaVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			info, ok := debug.ReadBuildInfo()
			if !ok {
				return nil
			}
			for _, m := range info.Deps {
				switch m.Path {
				case "github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go", "modernc.org/sqlite":
					fmt.Fprintf(a.stdout, "  %s %s\n", m.Path, m.Version)
				}
			}
			return nil
		},
	}
}
