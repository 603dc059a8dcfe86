package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) completionCommand() *cobra.Command {
	shells := map[string]func(*cobra.Command) error{
		"bash":       func(root *cobra.Command) error { return root.GenBashCompletionV2(a.stdout, true) },
		"zsh":        func(root *cobra.Command) error { return root.GenZshCompletion(a.stdout) },
		"fish":       func(root *cobra.Command) error { return root.GenFishCompletion(a.stdout, true) },
		"powershell": func(root *cobra.Command) error { return root.GenPowerShellCompletionWithDesc(a.stdout) },
	}
	return &cobra.Command{
		Use: "completion bash|zsh|fish|powershell", Short: "Print the completion script of a shell",
		Long: `Print the script that completes commands, flags and their values in a shell.

  bash        source <(signalbox completion bash)
  zsh         signalbox completion zsh > "${fpath[1]}/_signalbox"
  fish        signalbox completion fish > ~/.config/fish/completions/signalbox.fish
  powershell  signalbox completion powershell | Out-String | Invoke-Expression`,
		Args: oneArg("the shell"), ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			script, ok := shells[args[0]]
			if !ok {
				return usage(fmt.Errorf("%q is none of bash, zsh, fish, powershell", args[0]))
			}
			return script(cmd.Root())
		},
	}
}
