package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvroute/kvroute/internal/report"
)

// origin says where a setting's value came from.
type origin struct {
	Layer string // "flag", "environment", "file", "default"
	Place string // variable, or file:line
}

// String is how `config show --origin` prints it.
func (o origin) String() string {
	if o.Place == "" {
		return o.Layer
	}
	return o.Layer + " " + o.Place
}

// fileSetting is one key of a configuration file.
type fileSetting struct {
	values []string
	place  string // file:line
}

// layer fills the flags of cmd that were not given on the command line: from the environment, then
// from the configuration file. It records the origin of every value.
func (a *app) layer(cmd *cobra.Command) error {
	file := map[string]fileSetting{}
	if path, from := a.configPath(cmd); path != "" {
		var err error
		if file, err = readConfig(path, from, a.settingNames(cmd.Root())); err != nil {
			return err
		}
	}
	a.checkEnv(cmd.Root())
	a.origins, a.texts = map[string]origin{}, map[string]string{}
	for _, f := range flagsOf(cmd) {
		o, err := a.layerFlag(f, file)
		if err != nil {
			return err
		}
		a.origins[f.Name], a.texts[f.Name] = o, f.Value.String()
	}
	return nil
}

func (a *app) layerFlag(f *pflag.Flag, file map[string]fileSetting) (origin, error) {
	if f.Changed {
		return origin{Layer: "flag"}, nil
	}
	for _, name := range note(f, noteEnv) {
		text, ok := a.env[name]
		if !ok || text == "" {
			continue
		}
		values := []string{text}
		if _, isList := f.Value.(multi); isList {
			values = strings.Split(text, ";")
		}
		if foreignFormat(f, values) {
			break
		}
		if err := setAll(f, values, "environment variable "+name); err != nil {
			return origin{}, err
		}
		return origin{"environment", name}, nil
	}
	if s, ok := file[f.Name]; ok && firstNote(f, noteLocal) == "" {
		if _, isList := f.Value.(multi); !isList && len(s.values) != 1 {
			return origin{}, usage("bad value", s.place, fmt.Sprintf("%s takes one value, got a list of %d", f.Name, len(s.values)), "")
		}
		if foreignFormat(f, s.values) {
			return origin{Layer: "default"}, nil
		}
		if err := setAll(f, s.values, s.place); err != nil {
			return origin{}, err
		}
		return origin{"file", s.place}, nil
	}
	return origin{Layer: "default"}, nil
}

// foreignFormat says whether values are an output format that other commands have and this one has not.
// A setting for all commands must not stop those (version, config show) that know fewer formats.
func foreignFormat(f *pflag.Flag, values []string) bool {
	return f.Name == "output" && len(values) == 1 &&
		contains([]string{formatTable, formatJSON, formatJSONL, formatCSV}, values[0]) &&
		f.Value.Set(values[0]) != nil // which leaves the value as it was
}

func setAll(f *pflag.Flag, values []string, where string) error {
	if m, ok := f.Value.(multi); ok {
		m.renew()
	}
	for _, v := range values {
		if err := f.Value.Set(v); err != nil {
			return badValue(v, where+": --"+f.Name, err)
		}
	}
	return nil
}

// given says whether a flag's value comes from the user rather than from the program.
func (a *app) given(name string) bool {
	o, ok := a.origins[name]
	return ok && o.Layer != "default"
}

// givenFlags returns the text of every setting that the user gave in any layer, by name, for results.
func (a *app) givenFlags() map[string]any {
	out := map[string]any{}
	for name, o := range a.origins {
		if o.Layer != "default" && !contains(notInResults, name) {
			out[name] = a.texts[name]
		}
	}
	return out
}

// notInResults are flags that say how to show a result, not what it is.
var notInResults = []string{"config", "output", "no-color", "no-progress", "plot", "help"}

// configPath finds the configuration file; "" means there is none.
func (a *app) configPath(cmd *cobra.Command) (path, from string) {
	if f := cmd.Flags().Lookup("config"); f != nil && f.Changed {
		return f.Value.String(), "--config"
	}
	return a.env["KVROUTE_CONFIG"], "environment variable KVROUTE_CONFIG"
}

// settingNames lists every flag that may stand in the environment or a file, of all commands.
func (a *app) settingNames(root *cobra.Command) []string {
	seen := map[string]bool{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, f := range flagsOf(c) {
			if len(note(f, noteEnv)) > 0 {
				seen[f.Name] = true
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	names := make([]string, 0, len(seen))
	for n := range seen {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// checkEnv warns of KVROUTE_ variables that look like a misspelt setting. Others are left alone: a
// cluster may well put KVROUTE_SERVICE_HOST there.
func (a *app) checkEnv(root *cobra.Command) {
	known := []string{"CONFIG"}
	isKnown := map[string]bool{"CONFIG": true, "TRACES": true, "REQUIRE_TRACES": true} // the last two: our own tests
	for _, n := range a.settingNames(root) {
		v := strings.TrimPrefix(envName(n), "KVROUTE_")
		known = append(known, v)
		isKnown[v] = true
	}
	var names []string
	for name, text := range a.env {
		if v, ours := strings.CutPrefix(name, "KVROUTE_"); ours && text != "" && !isKnown[v] {
			names = append(names, v)
		}
	}
	sort.Strings(names)
	for _, v := range names {
		if near := report.Nearest(v, known); len(near) > 0 {
			a.warn("environment variable KVROUTE_%s is no setting and has no effect: did you mean KVROUTE_%s?", v, near[0])
		}
	}
}

// readConfig reads a flat YAML file whose keys are flag names.
func readConfig(path, from string, known []string) (map[string]fileSetting, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, usage("cannot read configuration "+path, from, pathWhy(err), "")
	}
	return parseConfig(path, bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")), known)
}

// parseConfig is readConfig on the file's text.
func parseConfig(path string, text []byte, known []string) (map[string]fileSetting, error) {
	at := func(n ast.Node) string {
		if t := n.GetToken(); t != nil && t.Position != nil {
			return path + ":" + strconv.Itoa(t.Position.Line)
		}
		return path
	}
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		var se *yaml.SyntaxError
		if errors.As(err, &se) {
			return nil, usage("bad configuration", path+":"+strconv.Itoa(se.Token.Position.Line), se.Message, "")
		}
		return nil, usage("bad configuration", path, err.Error(), "")
	}
	out := map[string]fileSetting{}
	for _, doc := range file.Docs {
		var pairs []*ast.MappingValueNode
		switch body := doc.Body.(type) {
		case nil:
			continue
		case *ast.MappingNode:
			pairs = body.Values
		case *ast.MappingValueNode:
			pairs = []*ast.MappingValueNode{body}
		case *ast.NullNode, *ast.CommentGroupNode:
			continue
		default:
			return nil, usage("bad configuration", at(body), "want lines of the form name: value", "")
		}
		for _, pair := range pairs {
			key := strings.TrimSpace(pair.Key.String())
			if s, ok := pair.Key.(*ast.StringNode); ok {
				key = s.Value
			}
			place := at(pair.Key)
			if !contains(known, key) {
				return nil, usage(fmt.Sprintf("unknown setting %q", key), place, "no flag has this name", didYouMean(key, known))
			}
			if earlier, twice := out[key]; twice {
				return nil, usage(fmt.Sprintf("setting %q twice", key), place, "already set at "+earlier.place, "")
			}
			values, err := scalars(pair.Value)
			if err != nil {
				return nil, usage(fmt.Sprintf("bad value of %q", key), place, err.Error(), "")
			}
			out[key] = fileSetting{values: values, place: place}
		}
	}
	return out, nil
}

// scalars returns the text of a value, or of each entry of a list, as it stands in the file.
func scalars(n ast.Node) ([]string, error) {
	switch v := n.(type) {
	case *ast.SequenceNode:
		var out []string
		for _, e := range v.Values {
			one, err := scalars(e)
			if err != nil {
				return nil, err
			}
			if len(one) != 1 {
				return nil, fmt.Errorf("a list inside a list")
			}
			out = append(out, one[0])
		}
		if len(out) == 0 {
			return nil, fmt.Errorf("empty list")
		}
		return out, nil
	case *ast.StringNode:
		return []string{v.Value}, nil
	case *ast.LiteralNode:
		return []string{v.Value.Value}, nil
	case *ast.NullNode:
		return nil, fmt.Errorf("no value")
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return []string{n.GetToken().Value}, nil
	default:
		return nil, fmt.Errorf("want a number, text, true, false or a list of these")
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}
