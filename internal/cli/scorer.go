package cli

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
)

// scorerSetting is one row of the scorer's flag table: the same in every command that places requests.
type scorerSetting struct {
	name   string
	arg    string
	usage  string
	unset  string   // how help words the default where the value is unset
	env    []string // after KVROUTE_<NAME>
	values []string
	// set checks a text and stores it.
	set func(c *score.Config, text string) error
	// get returns the value as results show it; nil where unset.
	get func(c *score.Config) any
}

// scorerSettings is the table. Defaults are not in it: they are those of score.Defaults.
func scorerSettings() []scorerSetting {
	real := func(field func(*score.Config) *float64) (func(*score.Config, string) error, func(*score.Config) any) {
		set := func(c *score.Config, text string) (err error) {
			*field(c), err = parseReal(text)
			return err
		}
		return set, func(c *score.Config) any { return *field(c) }
	}
	optional := func(field func(*score.Config) **float64) (func(*score.Config, string) error, func(*score.Config) any) {
		set := func(c *score.Config, text string) error {
			x, err := parseReal(text)
			if err != nil {
				return err
			}
			*field(c) = &x
			return nil
		}
		get := func(c *score.Config) any {
			if p := *field(c); p != nil {
				return *p
			}
			return nil
		}
		return set, get
	}
	overlap, getOverlap := real(func(c *score.Config) *float64 { return &c.OverlapWeight })
	prefill, getPrefill := optional(func(c *score.Config) **float64 { return &c.PrefillOverlapWeight })
	decode, getDecode := optional(func(c *score.Config) **float64 { return &c.DecodeOverlapWeight })
	recent, getRecent := real(func(c *score.Config) *float64 { return &c.RecentWeight })
	threshold, getThreshold := real(func(c *score.Config) *float64 { return &c.PrefixThreshold })
	request, getRequest := real(func(c *score.Config) *float64 { return &c.DecodeRequestWeight })
	modes := []string{"off", "shadow", "on"}
	affinities := []string{"off", "prefill", "both"}
	return []scorerSetting{
		{
			name: "router-policy", arg: "NAME", values: score.Policies(),
			usage: "how workers are chosen: least-work (least expected work left), kv-aware (overlap weight × misses + active blocks), " +
				"round-robin, random, least-load, power-of-two, prefix, prefix-threshold, session",
			set: func(c *score.Config, text string) (err error) {
				c.Policy, err = oneOf(score.Policies()...)(text)
				return err
			},
			get: func(c *score.Config) any { return c.Policy },
		},
		{
			name: "kv-overlap-weight", arg: "W", set: overlap, get: getOverlap,
			usage: "kv-aware: weight of a block to compute against a block in flight; higher seeks cached prefixes, lower spreads load",
		},
		{
			name: "kv-prefill-overlap-weight", arg: "W", unset: "--kv-overlap-weight", set: prefill, get: getPrefill,
			usage: "the same when a prefill worker is chosen",
		},
		{
			name: "kv-decode-overlap-weight", arg: "W", unset: "--kv-overlap-weight", set: decode, get: getDecode,
			usage: "the same when a decode worker is chosen",
		},
		{
			name: "kv-recent-weight", arg: "W", set: recent, get: getRecent,
			usage: "kv-aware: weight of blocks lately sent to a worker, so that bursts spread; 0 is the plain formula",
		},
		{
			name: "prefix-threshold", arg: "SHARE", set: threshold, get: getThreshold,
			usage: "prefix-threshold: follow the prefix where at least this share of a request's blocks is held",
		},
		{
			name: "decode-input-demand", arg: "MODE", values: modes, env: []string{"INFERA_DECODE_INPUT_DEMAND"},
			usage: "choose decode workers by the input tokens they hold: off, shadow (only say what would be chosen), on; needs kv-aware or least-work",
			set: func(c *score.Config, text string) error {
				if _, err := oneOf(modes...)(text); err != nil {
					return err
				}
				m, err := score.ParseDemandMode(text)
				c.DecodeInputDemand = m
				return err
			},
			get: func(c *score.Config) any { return c.DecodeInputDemand.String() },
		},
		{
			name: "decode-request-weight", arg: "TOKENS", env: []string{"INFERA_DECODE_REQUEST_WEIGHT"}, set: request, get: getRequest,
			usage: "tokens that one more held request counts in decode demand; needs demand shadow or on",
		},
		{
			name: "session-affinity", arg: "MODE", values: affinities, env: []string{"INFERA_SESSION_AFFINITY"},
			usage: "keep a session on its worker: off, prefill, both",
			set: func(c *score.Config, text string) error {
				if _, err := oneOf(affinities...)(text); err != nil {
					return err
				}
				m, err := score.ParseAffinity(text)
				c.SessionAffinity = m
				return err
			},
			get: func(c *score.Config) any { return c.SessionAffinity.String() },
		},
	}
}

// scorerFlags is the flag set of the scorer on one command.
type scorerFlags struct{ cfg score.Config }

// bindScorer adds the table's flags and the seed.
func bindScorer(cmd *cobra.Command, s *scorerFlags) {
	s.cfg = score.Defaults()
	for _, row := range scorerSettings() {
		def := report.FlagValue(row.get(&s.cfg))
		v := &scorerValue{cfg: &s.cfg, row: row, text: def}
		shown := def
		if def == "" {
			shown = row.unset
		}
		add(cmd, cmd.Flags(), spec{
			name: row.name, arg: row.arg, def: shown, usage: row.usage, group: groupScorer, env: row.env, values: row.values,
		}, v)
	}
	bind(cmd, cmd.Flags(), spec{
		name: "seed", arg: "N", def: "0", group: groupScorer,
		usage: "seed of everything left to chance; the same seed gives the same bytes",
	}, &s.cfg.Seed, parseSeed)
}

// scorerValue is a flag that writes into a score.Config.
type scorerValue struct {
	cfg  *score.Config
	row  scorerSetting
	text string
}

// Set checks and stores the text.
func (v *scorerValue) Set(s string) error {
	if err := v.row.set(v.cfg, s); err != nil {
		return err
	}
	v.text = s
	return nil
}

// String returns the text that was set last.
func (v *scorerValue) String() string { return v.text }

// Type names the flag's kind for completion scripts.
func (v *scorerValue) Type() string { return "value" }

// validateScorer checks the settings against each other.
func (a *app) validateScorer(c *score.Config) error { return a.fieldFault(c.Validate()) }

// fieldFault turns the faults of a configuration, which name fields by their flags, into one of usage
// that says where the wrong value came from. Other errors pass.
func (a *app) fieldFault(err error) error {
	var all score.FieldErrors
	if !errors.As(err, &all) || len(all) == 0 {
		return err
	}
	first := all[0]
	where := "--" + first.Field
	switch o := a.origins[first.Field]; o.Layer {
	case "environment":
		where = "environment variable " + o.Place + ": " + where
	case "file":
		where = o.Place + ": " + where
	}
	why := first.Reason
	if len(all) > 1 {
		why += fmt.Sprintf(" (and %d more: %s)", len(all)-1, all[1:].Error())
	}
	value := first.Value
	if unq, err := strconv.Unquote(value); err == nil {
		value = unq
	}
	f := usage(fmt.Sprintf("bad value %q", value), where, why, first.Hint)
	f.err = err
	return f
}

// setFlags returns the scorer's settings that the user gave, by name, as results show them. The policy
// is always among them.
func (a *app) setFlags(c *score.Config) map[string]any {
	out := map[string]any{}
	for _, row := range scorerSettings() {
		if v := row.get(c); v != nil && (a.given(row.name) || row.name == "router-policy") {
			out[row.name] = v
		}
	}
	return out
}

// allFlags returns all settings of the scorer, by name.
func allFlags(c *score.Config) map[string]any {
	out := map[string]any{}
	for _, row := range scorerSettings() {
		out[row.name] = row.get(c)
	}
	return out
}
