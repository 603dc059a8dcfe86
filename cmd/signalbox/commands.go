package main

import "github.com/spf13/cobra"

// commands are all commands beside serve and version.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.logCommand(), a.showCommand(), a.traceCommand(), a.statsCommand(),
		a.sendCommand(), a.agentsCommand(), a.inboxCommand(), a.deadCommand(), a.jobsCommand(), a.whyCommand(), a.doctorCommand(), a.completionCommand(),
		a.benchCommand(), a.benchPublishCommand(),
	}
}
