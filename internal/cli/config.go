package cli

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) newConfig() *cobra.Command {
	return group("config", "Look at the settings in force",
		`Settings come from flags, then the environment, then a file, then defaults.`,
		`  kvroute config show --origin`, a.newConfigShow())
}

// configLine is one setting of `config show -o json`.
type configLine struct {
	Name   string   `json:"name"`
	Value  string   `json:"value"`
	Origin string   `json:"origin"`
	Env    []string `json:"env"`
}

func (a *app) newConfigShow() *cobra.Command {
	var (
		format string
		origin bool
		scorer scorerFlags
	)
	cmd := &cobra.Command{
		Use:   "show [COMMAND…]",
		Short: "Show the settings a command would run with, and where each came from",
		Long: `Without a command: the scorer's settings. With one: all of that command's.
Scorer flags given here count as given to the command.

A file (--config, or KVROUTE_CONFIG) is YAML with flag names as keys:

  router-policy: kv-aware
  kv-overlap-weight: 2
  workers: 8

A name that no command knows is an error. Where a flag may be repeated, the file
has a list, and the environment separates the values with ';'.`,
		Example: `  kvroute config show --origin
  KVROUTE_KV_OVERLAP_WEIGHT=2 kvroute config show --origin --router-policy kv-aware
  kvroute config show sim -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.validateScorer(&scorer.cfg); err != nil {
				return err
			}
			lines, err := a.effective(cmd, args)
			if err != nil {
				return err
			}
			return a.emit(func(w io.Writer) error { return a.writeConfig(w, lines, format, origin) })
		},
	}
	bindSwitch(cmd, cmd.Flags(), spec{name: "origin", group: groupOutput, local: true, usage: "also say where each value came from"}, &origin)
	bindScorer(cmd, &scorer)
	bindOutput(cmd, &format, formatTable, formatJSON, formatCSV)
	return cmd
}

// effective lists the settings of the command named by args, those given to `config show` itself first.
func (a *app) effective(show *cobra.Command, args []string) ([]configLine, error) {
	target, rest, err := show.Root().Find(args)
	if err != nil {
		return nil, err
	}
	if len(rest) > 0 {
		return nil, noSuchCommand(target, rest)
	}
	own := map[string]bool{}
	for _, f := range flagsOf(show) {
		own[f.Name] = true
	}
	shown := a.origins
	if len(args) == 0 {
		target = show
	} else if err := a.layer(target); err != nil {
		return nil, err
	}
	var lines []configLine
	for _, f := range flagsOf(target) {
		env := note(f, noteEnv)
		if len(env) == 0 || target == show && f.Name == "output" {
			continue
		}
		line := configLine{f.Name, f.Value.String(), a.origins[f.Name].String(), env}
		if target != show && f.Name != "output" && own[f.Name] && shown[f.Name].Layer == "flag" {
			line.Value, line.Origin = show.Flags().Lookup(f.Name).Value.String(), "flag"
		}
		lines = append(lines, line)
	}
	return lines, nil
}

func (a *app) writeConfig(w io.Writer, lines []configLine, format string, origin bool) error {
	if format == formatJSON {
		return writeJSON(w, struct {
			Schema   string       `json:"schema"`
			Version  string       `json:"version"`
			Settings []configLine `json:"settings"`
		}{"kvroute.config/v1", version(), lines})
	}
	g := &grid{head: []string{"setting", "value"}}
	if origin {
		g.head = append(g.head, "origin", "environment")
	}
	for _, l := range lines {
		row := []string{l.Name, l.Value}
		if origin {
			row = append(row, l.Origin, strings.Join(l.Env, " "))
		}
		g.add(row...)
	}
	if format == formatCSV {
		return g.writeCSV(w)
	}
	return g.writeTable(w, a.bold)
}
