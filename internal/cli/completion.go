package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func (a *app) newCompletion() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a completion script for a shell",
		Long: `Completes commands, flags, policies, formats, profiles, metrics and what can be
swept. For one session of bash: source <(kvroute completion bash); bash needs
its package bash-completion for it. The shells' manuals say where a script has
to lie to be read at every start.`,
		Example:   `  kvroute completion bash > kvroute.bash`,
		ValidArgs: shells,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("no shell given", "kvroute completion", "want exactly one", "one of bash, zsh, fish, powershell")
			}
			if _, err := oneOf(shells...)(args[0]); err != nil {
				return badValue(args[0], "kvroute completion", err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			return a.emit(func(w io.Writer) error {
				switch args[0] {
				case "bash":
					return root.GenBashCompletionV2(w, true)
				case "zsh":
					return root.GenZshCompletion(w)
				case "fish":
					return root.GenFishCompletion(w, true)
				case "powershell":
					return root.GenPowerShellCompletionWithDesc(w)
				}
				return fmt.Errorf("shell %s passed the check but has no script", args[0])
			})
		},
	}
}
