package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// generalFlags are understood by every command.
type generalFlags struct {
	config     string
	noColor    bool
	noProgress bool
}

// newRoot builds the whole tree of commands.
func (a *app) newRoot() *cobra.Command {
	var showVersion bool
	root := &cobra.Command{
		Use:   "kvroute",
		Short: "Route LLM requests to the workers that already hold their prompt's KV cache",
		Long: `A router for live traffic ("kvroute serve"), and the scorer it places requests
with on recorded traffic: look at traces, replay them, simulate a fleet on them,
sweep the settings, explain single decisions.

Settings come from flags, then the environment (KVROUTE_<FLAG>), then the file
named by --config (YAML, keys are flag names), then defaults; "kvroute config
show --origin" says which. Data goes to stdout, talk to stderr.

Exit codes:
  0    good
  1    failed
  2    wrong usage or configuration
  3    a --fail-if condition holds, or a check came out negative
  4    a peer cannot be reached
  130  interrupted`,
		Example: `  # four workers on a recorded trace, three policies side by side
  kvroute sim --trace traces/golden/sessions80-serial.jsonl.gz --workers 4 --sweep router-policy=least-work,kv-aware,round-robin
  # why one worker and not the other
  kvroute explain --request-blocks 10 --candidate W0:hits=8,active=6 --candidate W1:hits=0,active=1 --router-policy kv-aware`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if contains([]string{"help", "man", "completion"}, cmd.Name()) {
				return nil // these help even where the settings are wrong
			}
			return a.layer(cmd)
		},
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if showVersion {
				return a.printVersion("table")
			}
			return cmd.Help()
		},
	}
	bindSwitch(root, root.Flags(), spec{name: "version", usage: "print the version", group: groupGeneral, local: true}, &showVersion)
	pf := root.PersistentFlags()
	bind(root, pf, spec{
		name: "config", arg: "FILE", group: groupGeneral, local: true,
		usage: "read settings from this YAML file; keys are flag names (env KVROUTE_CONFIG)",
	}, &a.general.config, parseText)
	bindSwitch(root, pf, spec{name: "no-color", usage: "no colour, also on a terminal (also: NO_COLOR, TERM=dumb)", group: groupGeneral}, &a.general.noColor)
	bindSwitch(root, pf, spec{name: "no-progress", usage: "no progress on stderr", group: groupGeneral}, &a.general.noProgress)
	root.PersistentFlags().BoolP("help", "h", false, "show this help")
	root.PersistentFlags().Lookup("help").Annotations = map[string][]string{noteGroup: {groupGeneral}, noteLocal: {"true"}}
	root.SetFlagErrorFunc(flagFault)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		// cobra has no way to pass an error of its help on.
		a.helpErr = a.emit(func(w io.Writer) error { return writeHelp(w, cmd) })
	})
	// The help command with cobra's own wording is replaced by --help and `kvroute help COMMAND`.
	root.SetHelpCommand(a.newHelp())
	root.AddCommand(
		a.newServe(), a.newTrace(), a.newReplay(), a.newSim(), a.newFit(), a.newProfiles(), a.newExplain(), a.newTokenize(), a.newEngine(), a.newDemo(), a.newWatch(),
		a.newModel(), a.newConfig(),
		a.newVersion(), a.newCompletion(), a.newMan(),
	)
	return root
}

func (a *app) newTrace() *cobra.Command {
	return group("trace", "Look at traces, convert, cut and merge them", "",
		`  kvroute trace stats traces/golden/sessions80-serial.jsonl.gz`,
		a.newTraceStats(), a.newTraceConvert(), a.newTraceCut(), a.newTraceMerge())
}

// group makes a command that only holds others.
func group(use, short, long, example string, subs ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	g.AddCommand(subs...)
	return g
}

// noSuchCommand is the Args of commands that take none but have subcommands.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return usage(fmt.Sprintf("unknown command %q", args[0]), cmd.CommandPath(), "no command has this name", didYouMean(args[0], names))
}

// noArgs is the Args of commands that take flags only.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usage(fmt.Sprintf("unexpected argument %q", args[0]), cmd.CommandPath(), "this command takes flags only", "see "+cmd.CommandPath()+" --help")
}

// flagFault words the parser's errors our way.
func flagFault(cmd *cobra.Command, err error) error {
	var (
		unknown *pflag.NotExistError
		missing *pflag.ValueRequiredError
		invalid *pflag.InvalidValueError
		syntax  *pflag.InvalidSyntaxError
	)
	see := "see " + cmd.CommandPath() + " --help"
	if args := cmd.Flags().Args(); len(cmd.Commands()) > 0 && len(args) > 0 {
		return noSuchCommand(cmd, args) // the flag is unknown because the command is
	}
	switch {
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			return usage("unknown flag -"+name, cmd.CommandPath(), "no flag has this name", see)
		}
		var names []string
		for _, f := range flagsOf(cmd) {
			names = append(names, "--"+f.Name)
		}
		hint := see
		if near := didYouMean("--"+name, names); strings.HasPrefix(near, "did you mean") {
			hint = near
			if i := strings.Index(hint, " (one of"); i > 0 {
				hint = hint[:i]
			}
		}
		return usage("unknown flag --"+name, cmd.CommandPath(), "no flag has this name", hint)
	case errors.As(err, &missing):
		return usage("no value", "--"+missing.GetFlag().Name, "this flag needs one", see)
	case errors.As(err, &invalid):
		return badValue(invalid.GetValue(), "--"+invalid.GetFlag().Name, invalid.Unwrap())
	case errors.As(err, &syntax):
		return usage("bad flag "+syntax.GetSpecifiedFlag(), cmd.CommandPath(), "wrong form", see)
	}
	return usage("bad command line", cmd.CommandPath(), err.Error(), see)
}

func (a *app) newHelp() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND…]",
		Short:   "Show the help of a command",
		Example: `  kvroute help sim`,
		RunE: func(cmd *cobra.Command, args []string) error {
			target, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return noSuchCommand(target, rest)
			}
			return a.emit(func(w io.Writer) error { return writeHelp(w, target) })
		},
	}
}
