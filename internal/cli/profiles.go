package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/engine"
)

func (a *app) newProfiles() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "profiles [NAME]",
		Short: "List the built-in engine profiles, their origin and what they assume",
		Long: `A profile holds the constants of the batch engine: what a step costs and how
large the KV pool is. With a NAME its whole text is printed, as YAML that sim
reads back with --profile FILE.`,
		Example: `  kvroute profiles
  kvroute profiles -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage(fmt.Sprintf("unexpected argument %q", args[1]), "kvroute profiles", "want one name", "")
			}
			return nil
		},
		ValidArgs: engine.ProfileNames(),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				return a.printProfile(args[0], format)
			}
			return a.listProfiles(format)
		},
	}
	bindOutput(cmd, &format, formatTable, formatJSON, formatJSONL, formatCSV)
	return cmd
}

func (a *app) printProfile(name, format string) error {
	p, ok := engine.Lookup(name)
	if !ok {
		return usage(fmt.Sprintf("unknown profile %q", name), "kvroute profiles", "not built in", didYouMean(name, engine.ProfileNames()))
	}
	return a.emit(func(w io.Writer) error {
		switch format {
		case formatJSON, formatJSONL:
			return writeProfiles(w, format, []*engine.Profile{p})
		case formatCSV:
			return profileGrid([]*engine.Profile{p}).writeCSV(w)
		}
		text, err := p.Encode()
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
}

func (a *app) listProfiles(format string) error {
	all := engine.Profiles()
	return a.emit(func(w io.Writer) error {
		switch format {
		case formatJSON, formatJSONL:
			return writeProfiles(w, format, all)
		case formatCSV:
			return profileGrid(all).writeCSV(w)
		}
		for i, p := range all {
			if i > 0 {
				fmt.Fprintln(w)
			}
			measured := "" // then the origin says who has not measured it
			if p.Measured {
				measured = "measured by us; "
			}
			def := ""
			if p.Name == engine.DefaultProfile {
				def = " (the default)"
			}
			fmt.Fprintf(w, "%s%s\n", a.bold(p.Name), def)
			field := func(name, text string) {
				for i, line := range wrap(text, 66) {
					if i > 0 {
						name = ""
					}
					fmt.Fprintf(w, "  %-10s  %s\n", name, line)
				}
			}
			field("hardware", p.Hardware)
			field("model", p.Model)
			field("engine", p.Engine)
			field("origin", measured+p.Origin)
			for _, s := range p.Assumptions {
				field("assumed", s)
			}
		}
		return nil
	})
}

// writeProfiles prints profiles as JSON, with the keys of their files.
func writeProfiles(w io.Writer, format string, all []*engine.Profile) error {
	docs := make([]json.RawMessage, len(all))
	for i, p := range all {
		text, err := p.Encode()
		if err != nil {
			return err
		}
		if docs[i], err = yaml.YAMLToJSON(text); err != nil {
			return fmt.Errorf("profile %s as JSON: %w", p.Name, err)
		}
	}
	if format == formatJSONL {
		return writeJSONLines(w, docs)
	}
	return writeJSON(w, struct {
		Schema   string            `json:"schema"`
		Version  string            `json:"version"`
		Profiles []json.RawMessage `json:"profiles"`
	}{"kvroute.profiles/v1", version(), docs})
}

func profileGrid(all []*engine.Profile) *grid {
	g := &grid{head: []string{"name", "hardware", "model", "engine", "measured_by_us", "origin", "assumptions"}}
	for _, p := range all {
		g.add(p.Name, p.Hardware, p.Model, p.Engine, fmt.Sprint(p.Measured), p.Origin, strings.Join(p.Assumptions, "; "))
	}
	return g
}
