package sweep

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
)

// Setting is a flag with the value it has at a point.
type Setting struct {
	Flag   string
	Value  Value
	Scorer bool
}

// Point is one experiment: what to set, over what the command was given.
type Point struct {
	Kind     string    // report.KindSwept, KindDefault or KindReference
	Settings []Setting // swept points: one an axis, in their order; added points: the policy, then the fleet's
	Config   score.Config

	ignored []string // swept scorer flags that this point's policy does not read, left out of Config
	set     map[string]any
}

// String names the point in messages.
func (p *Point) String() string {
	if len(p.Settings) == 0 {
		return "as given"
	}
	parts := make([]string, len(p.Settings))
	for i, s := range p.Settings {
		parts[i] = s.Flag + "=" + report.FlagValue(s.Value)
	}
	return strings.Join(parts, " ")
}

// Int returns an integer flag's value at the point, fallback where it is not set there.
func (p *Point) Int(flag string, fallback int64) int64 {
	for _, s := range p.Settings {
		if v, ok := s.Value.(int64); ok && s.Flag == flag {
			return v
		}
	}
	return fallback
}

// Duration returns a time's value at the point, fallback where it is not set there.
func (p *Point) Duration(flag string, fallback time.Duration) time.Duration {
	for _, s := range p.Settings {
		if v, ok := s.Value.(string); ok && s.Flag == flag {
			if d, err := time.ParseDuration(v); err == nil {
				return d
			}
		}
	}
	return fallback
}

// Flags are the swept and set flags of the point as a run reports them.
func (p *Point) Flags() map[string]any {
	out := map[string]any{}
	if p.Kind == report.KindSwept {
		for k, v := range p.set {
			out[k] = v
		}
	}
	for _, s := range p.Settings {
		out[s.Flag] = s.Value
	}
	return out
}

// paste are the scorer flags that make this point, and no others: policy, and what it reads.
func (p *Point) paste() map[string]any {
	out := map[string]any{"router-policy": p.Config.Policy}
	for flag, v := range p.Flags() {
		if slices.Contains(report.ScorerFlags(), flag) && Reads(p.Config, flag) {
			out[flag] = v
		}
	}
	return out
}

// fleet is what the point sets outside of the scorer, as a comparable text.
func (p *Point) fleet() string {
	text := ""
	for _, s := range p.Settings {
		if !s.Scorer {
			text += s.Flag + "=" + report.FlagValue(s.Value) + "\n"
		}
	}
	return text
}

// key is equal for points that are the same experiment.
func (p *Point) key() string { return p.fleet() + p.scorerKey() }

// scorerKey is equal for points that decide alike.
func (p *Point) scorerKey() string {
	c := forPolicy(p.Config)
	deref := func(w *float64) string {
		if w == nil {
			return "-"
		}
		return report.FlagValue(*w)
	}
	return fmt.Sprintf("%q %v %s %s %v %v %v %v %v %v %d", c.Policy, c.OverlapWeight, deref(c.PrefillOverlapWeight),
		deref(c.DecodeOverlapWeight), c.RecentWeight, c.PrefixThreshold, c.DecodeInputDemand, c.DecodeRequestWeight,
		c.SessionAffinity, c.TierWeights, c.Seed)
}

// defaultsLike are the default scorer flags with what no flag sets taken from c.
func defaultsLike(c score.Config) score.Config {
	d := score.Defaults()
	d.Seed, d.TierWeights = c.Seed, c.TierWeights
	return d
}

// Reads says whether a policy's decisions depend on a scorer flag. A sweep over several policies sets
// each flag only where it is read: kv-recent-weight=1 is a fault at round-robin, and one experiment is
// not run once for every value it ignores.
func Reads(c score.Config, flag string) bool {
	demand := c.Policy == score.KVAware || c.Policy == score.LeastWork
	switch flag {
	case "kv-overlap-weight", "kv-prefill-overlap-weight", "kv-decode-overlap-weight", "kv-recent-weight":
		return c.Policy == score.KVAware
	case "prefix-threshold":
		return c.Policy == score.PrefixThreshold
	case "decode-input-demand":
		return demand
	case "decode-request-weight":
		return demand && c.DecodeInputDemand != score.DemandOff
	case "session-affinity":
		return c.Policy != score.Session
	}
	return true
}

// Plan lists the points of a sweep: the cross product of the axes (the last one turning fastest) over
// base, then, for each fleet that the axes name, the default scorer flags and round robin where no
// swept point is the same. set are the scorer flags the user set outside of the sweep, for reports.
// Every point's configuration is valid; else the error says at which point it is not.
func Plan(axes []Axis, base score.Config, set map[string]any) ([]Point, error) {
	total := 1
	for _, a := range axes {
		if total *= len(a.Values); total > MaxPoints || total == 0 {
			return nil, fmt.Errorf("a sweep of %d points or more; at most %d", total, MaxPoints)
		}
	}
	var points []Point
	var fleets [][]Setting
	seen := map[string]bool{}
	seenFleet := map[string]bool{}
	for i := range total {
		p := Point{Kind: report.KindSwept, Settings: make([]Setting, len(axes)), set: set}
		for k, rest := len(axes)-1, i; k >= 0; k-- {
			a := axes[k]
			p.Settings[k] = Setting{a.Flag.Name, a.Values[rest%len(a.Values)], a.Flag.Scorer}
			rest /= len(a.Values)
		}
		if err := p.configure(base); err != nil {
			return nil, err
		}
		points = append(points, p)
		seen[p.key()] = true
		if f := p.fleet(); !seenFleet[f] {
			seenFleet[f] = true
			fleets = append(fleets, slices.DeleteFunc(slices.Clone(p.Settings), func(s Setting) bool { return s.Scorer }))
		}
	}
	for _, fleet := range fleets {
		for _, add := range []struct{ kind, policy string }{
			{report.KindDefault, score.Defaults().Policy}, {report.KindReference, score.RoundRobin},
		} {
			p := Point{Kind: add.kind, Settings: append([]Setting{{"router-policy", add.policy, true}}, fleet...)}
			if err := p.configure(defaultsLike(base)); err != nil {
				return nil, err
			}
			if !seen[p.key()] {
				seen[p.key()] = true
				points = append(points, p)
			}
		}
	}
	return points, nil
}

// configure sets Config to base with the point's scorer settings.
func (p *Point) configure(base score.Config) error {
	c := base
	for _, s := range p.Settings { // first what decides which of the others are read
		switch s.Flag {
		case "router-policy":
			c.Policy = s.Value.(string)
		case "decode-input-demand":
			mode, err := score.ParseDemandMode(s.Value.(string))
			if err != nil {
				return fmt.Errorf("sweep point %s: %w", p, err)
			}
			c.DecodeInputDemand = mode
		}
	}
	if swept := slices.ContainsFunc(p.Settings, func(s Setting) bool { return s.Flag == "router-policy" }); swept {
		// The user's other flags were meant for the policies that read them.
		c = forPolicy(c)
	}
	for _, s := range p.Settings {
		if !s.Scorer {
			continue
		}
		if !Reads(c, s.Flag) {
			p.ignored = append(p.ignored, s.Flag)
			continue
		}
		if err := apply(&c, s); err != nil {
			return fmt.Errorf("sweep point %s: %w", p, err)
		}
	}
	if err := c.Validate(); err != nil {
		return fmt.Errorf("sweep point %s: %w", p, err)
	}
	p.Config = c
	return nil
}

// forPolicy resets what the policy does not read.
func forPolicy(c score.Config) score.Config {
	d := score.Defaults()
	if !Reads(c, "kv-overlap-weight") {
		c.OverlapWeight, c.PrefillOverlapWeight, c.DecodeOverlapWeight, c.RecentWeight = d.OverlapWeight, nil, nil, d.RecentWeight
	}
	if !Reads(c, "prefix-threshold") {
		c.PrefixThreshold = d.PrefixThreshold
	}
	if !Reads(c, "decode-input-demand") {
		c.DecodeInputDemand = d.DecodeInputDemand
	}
	if !Reads(c, "decode-request-weight") {
		c.DecodeRequestWeight = d.DecodeRequestWeight
	}
	if !Reads(c, "session-affinity") {
		c.SessionAffinity = d.SessionAffinity
	}
	return c
}

func apply(c *score.Config, s Setting) error {
	switch s.Flag {
	case "router-policy", "decode-input-demand": // done first
	case "kv-overlap-weight":
		c.OverlapWeight = s.Value.(float64)
	case "kv-prefill-overlap-weight":
		w := s.Value.(float64)
		c.PrefillOverlapWeight = &w
	case "kv-decode-overlap-weight":
		w := s.Value.(float64)
		c.DecodeOverlapWeight = &w
	case "kv-recent-weight":
		c.RecentWeight = s.Value.(float64)
	case "prefix-threshold":
		c.PrefixThreshold = s.Value.(float64)
	case "decode-request-weight":
		c.DecodeRequestWeight = s.Value.(float64)
	case "session-affinity":
		mode, err := score.ParseAffinity(s.Value.(string))
		if err != nil {
			return err
		}
		c.SessionAffinity = mode
	default:
		return fmt.Errorf("no scorer flag %q", s.Flag)
	}
	return nil
}

// Ignored are the swept flags that no swept point reads: their axis changes nothing, which the user
// should be told.
func Ignored(points []Point) []string {
	var out []string
	for _, flag := range report.ScorerFlags() {
		swept, read := false, false
		for i := range points {
			p := &points[i]
			if p.Kind != report.KindSwept {
				continue
			}
			for _, s := range p.Settings {
				if s.Flag == flag {
					swept = true
					read = read || !slices.Contains(p.ignored, flag)
				}
			}
		}
		if swept && !read {
			out = append(out, flag)
		}
	}
	return out
}
