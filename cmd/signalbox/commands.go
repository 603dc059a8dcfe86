package main

import "github.com/spf13/cobra"

// commands are all commands beside serve and version.
func (a *app) commands() []*cobra.Command { return nil }
