package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Annotations of flags, read by the help pages, the layers of configuration and completion.
const (
	noteGroup = "kvroute_group"
	noteArg   = "kvroute_arg"
	noteEnv   = "kvroute_env"   // further environment variables besides KVROUTE_<NAME>
	noteLocal = "kvroute_local" // command line only: no environment, no file
)

// Groups of flags, in the order of the help pages.
const (
	groupDecision = "Decision"
	groupTrace    = "Trace"
	groupCut      = "What to keep and how"
	groupFleet    = "Fleet"
	groupEngine   = "Engine"
	groupScorer   = "Scorer (the same set wherever requests are placed)"
	groupSweep    = "Sweep"
	groupOutput   = "Output"
	groupGeneral  = "General"
)

var groupOrder = []string{groupWorkers, groupPrompts, groupListen, groupSSH, groupLimits, groupFailover, groupKeep, groupLog, groupWatch, groupDecision, groupLogs, groupFit, groupTrace, groupCut, groupFleet, groupEngine, groupWire, groupFaults, groupScorer, groupSweep, groupOutput, groupGeneral}

// spec describes a flag once, for the parser, the help pages, the man pages and completion.
type spec struct {
	name, short string
	arg         string // what stands for the value in help, "" for switches
	def         string // default, in the user's spelling; "" shows none
	usage       string
	group       string
	env         []string // further environment variables, after KVROUTE_<NAME>
	values      []string // what completion offers; names that a value follows end in =
	local       bool     // command line only
}

// bind adds a flag whose text goes through parse into to. A default that does not parse is a fault of
// the program, not of the user.
func bind[T any](cmd *cobra.Command, fs *pflag.FlagSet, s spec, to *T, parse func(string) (T, error)) {
	v := &value[T]{to: to, parse: parse, text: s.def}
	if s.def != "" {
		t, err := parse(s.def)
		if err != nil {
			panic("default of --" + s.name + ": " + err.Error())
		}
		*to = t
	}
	add(cmd, fs, s, v)
}

// bindList adds a flag that may be given several times; split, if not "", also separates values in one.
func bindList[T any](cmd *cobra.Command, fs *pflag.FlagSet, s spec, split string, to *[]T, parse func(string) (T, error)) {
	add(cmd, fs, s, &list[T]{to: to, parse: parse, split: split})
}

// bindSwitch adds a flag without a value.
func bindSwitch(cmd *cobra.Command, fs *pflag.FlagSet, s spec, to *bool) {
	add(cmd, fs, s, &value[bool]{to: to, parse: parseBool, text: "false"})
	fs.Lookup(s.name).NoOptDefVal = "true"
}

func add(cmd *cobra.Command, fs *pflag.FlagSet, s spec, v pflag.Value) {
	fs.SortFlags = false // help lists flags in the order they are added
	f := fs.VarPF(v, s.name, s.short, s.usage)
	f.DefValue = s.def
	f.Annotations = map[string][]string{noteGroup: {s.group}, noteArg: {s.arg}}
	if s.local {
		f.Annotations[noteLocal] = []string{"true"}
	} else {
		f.Annotations[noteEnv] = append([]string{envName(s.name)}, s.env...)
	}
	if s.values != nil {
		vals, then := s.values, cobra.ShellCompDirectiveNoFileComp
		if strings.Contains(s.arg, "FILE") {
			then = cobra.ShellCompDirectiveDefault // or a file
		}
		if strings.HasSuffix(vals[0], "=") {
			then |= cobra.ShellCompDirectiveNoSpace
		}
		complete := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return vals, then
		}
		if err := cmd.RegisterFlagCompletionFunc(s.name, complete); err != nil {
			panic(err) // registered twice
		}
	}
}

// envName is the environment variable of a flag.
func envName(flag string) string {
	return "KVROUTE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// note returns an annotation's values.
func note(f *pflag.Flag, key string) []string { return f.Annotations[key] }

func firstNote(f *pflag.Flag, key string) string {
	if n := f.Annotations[key]; len(n) > 0 {
		return n[0]
	}
	return ""
}

// flagsOf returns the flags of a command that people can set, own ones and inherited ones, by name.
func flagsOf(cmd *cobra.Command) []*pflag.Flag {
	var out []*pflag.Flag
	seen := map[string]bool{}
	collect := func(f *pflag.Flag) {
		if !f.Hidden && !seen[f.Name] {
			seen[f.Name] = true
			out = append(out, f)
		}
	}
	cmd.LocalFlags().VisitAll(collect)
	cmd.InheritedFlags().VisitAll(collect)
	return out
}
