// Package sweep runs one experiment at many settings, on the trace and on resamples of it, and says
// which settings are best and by how much more than chance.
//
// It knows flags and results, not what a run does: replay and sim hand in a function for one point.
// The same points, trace and seed give the same result, in the same order, on any number of cores.
package sweep

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
)

// Value is one setting's value: a string, float64, int64, or the text of a time.Duration.
type Value any

// Flag is a flag that can be swept.
type Flag struct {
	Name   string
	Scorer bool // decides; the others describe the fleet
	parse  func(string) (Value, error)
}

// Flags lists what can be swept, scorer flags first.
func Flags() []Flag {
	return []Flag{
		{"router-policy", true, name(score.Policies()...)},
		{"kv-overlap-weight", true, weight},
		{"kv-prefill-overlap-weight", true, weight},
		{"kv-decode-overlap-weight", true, weight},
		{"kv-recent-weight", true, weight},
		{"prefix-threshold", true, share},
		{"decode-input-demand", true, name("off", "shadow", "on")},
		{"decode-request-weight", true, weight},
		{"session-affinity", true, name("off", "prefill", "both")},
		{"workers", false, count(1)},
		{"capacity", false, count(0)},
		{"event-delay", false, span},
		{"routers", false, count(1)},
		{"outstanding", false, count(1)},
	}
}

// flagNames lists the names of flags.
func flagNames(flags []Flag) []string {
	out := make([]string, len(flags))
	for i, f := range flags {
		out[i] = f.Name
	}
	return out
}

// Axis is one swept flag and its values, in the order given.
type Axis struct {
	Flag   Flag
	Values []Value
}

// MaxPoints bounds the number of points of a sweep, and of values of an axis.
const MaxPoints = 10_000

const axisHint = "write --sweep FLAG=value,value,…, as in kv-overlap-weight=0,0.5,1"

// ParseAxis reads FLAG=a,b,c. allowed are the flags the command can sweep; leading dashes are forgiven.
// Errors carry a hint as *report.HintError.
func ParseAxis(text string, allowed []Flag) (Axis, error) {
	left, right, ok := strings.Cut(text, "=")
	left = strings.TrimLeft(strings.TrimSpace(left), "-")
	if !ok {
		return Axis{}, hinted(axisHint, "sweep %q: no '=' in it", text)
	}
	var axis Axis
	for _, f := range allowed {
		if f.Name == left {
			axis.Flag = f
		}
	}
	if axis.Flag.Name == "" {
		hint := report.DidYouMean(left, flagNames(allowed))
		if hint == "" {
			hint = "one of " + strings.Join(flagNames(allowed), ", ")
		}
		return Axis{}, hinted(hint, "sweep %q: no flag %q that can be swept", text, left)
	}
	if strings.TrimSpace(right) == "" {
		return Axis{}, hinted(axisHint, "sweep %q: no values after '='", text)
	}
	seen := map[Value]bool{}
	for _, part := range strings.Split(right, ",") {
		v, err := axis.Flag.parse(strings.TrimSpace(part))
		if err != nil {
			var h *report.HintError
			hint := axisHint
			if errors.As(err, &h) {
				hint = h.Hint
			}
			return Axis{}, hinted(hint, "sweep %q: value %q: %v", text, part, err)
		}
		if seen[v] {
			return Axis{}, hinted(axisHint, "sweep %q: value %s twice", text, report.FlagValue(v))
		}
		seen[v] = true
		if axis.Values = append(axis.Values, v); len(axis.Values) > MaxPoints {
			return Axis{}, hinted("", "sweep of %s: more than %d values", left, MaxPoints)
		}
	}
	return axis, nil
}

// ParseAxes reads several axes, which make a cross product, and reports all faults at once.
func ParseAxes(texts []string, allowed []Flag) ([]Axis, error) {
	var axes []Axis
	var faults []string
	hint := ""
	points := 1
	seen := map[string]bool{}
	fault := func(err error) {
		faults = append(faults, err.Error())
		var h *report.HintError
		if hint == "" && errors.As(err, &h) {
			hint = h.Hint
		}
	}
	for _, text := range texts {
		axis, err := ParseAxis(text, allowed)
		switch {
		case err != nil:
			fault(err)
			continue
		case seen[axis.Flag.Name]:
			fault(hinted("give all values in one --sweep", "sweep %q: %s is swept twice", text, axis.Flag.Name))
			continue
		}
		seen[axis.Flag.Name] = true
		axes = append(axes, axis)
		if points *= len(axis.Values); points > MaxPoints {
			fault(hinted("sweep fewer values", "sweep of more than %d points", MaxPoints))
			break
		}
	}
	if len(faults) > 0 {
		return nil, hinted(hint, "%s", strings.Join(faults, "; "))
	}
	return axes, nil
}

// hinted makes an error with advice, or one without where there is none.
func hinted(hint, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if hint == "" {
		return err
	}
	return &report.HintError{Err: err, Hint: hint}
}

func name(names ...string) func(string) (Value, error) {
	return func(s string) (Value, error) {
		for _, n := range names {
			if n == s {
				return s, nil
			}
		}
		hint := report.DidYouMean(s, names)
		if hint == "" {
			hint = "one of " + strings.Join(names, ", ")
		}
		return nil, hinted(hint, "no such name")
	}
}

// number reads a finite decimal number; hexadecimal and underscores are typos here.
func number(s string) (float64, error) {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) || strings.ContainsAny(s, "xXpP_") {
		return 0, errors.New("not a number")
	}
	if x == 0 {
		return 0, nil // -0 is 0
	}
	return x, nil
}

func weight(s string) (Value, error) {
	x, err := number(s)
	switch {
	case err != nil:
		return nil, err
	case x < 0:
		return nil, errors.New("negative")
	case x > score.MaxWeight:
		return nil, fmt.Errorf("more than %g", score.MaxWeight)
	}
	return x, nil
}

func share(s string) (Value, error) {
	x, err := number(s)
	switch {
	case err != nil:
		return nil, err
	case x < 0 || x > 1:
		return nil, errors.New("not between 0 and 1")
	}
	return x, nil
}

var countSuffixes = []struct {
	text  string
	times int64
}{{"ki", 1 << 10}, {"mi", 1 << 20}, {"gi", 1 << 30}, {"k", 1e3}, {"m", 1e6}, {"g", 1e9}}

// maxCount is the largest integer that every number of a report can hold.
const maxCount = 1 << 53

// count reads a whole number of at least least: 8, 64k, 2Gi.
func count(least int64) func(string) (Value, error) {
	return func(s string) (Value, error) {
		digits, times := strings.ToLower(s), int64(1)
		for _, c := range countSuffixes {
			if rest, ok := strings.CutSuffix(digits, c.text); ok {
				digits, times = rest, c.times
				break
			}
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		switch {
		case errors.Is(err, strconv.ErrRange) || n > maxCount/times:
			return nil, errors.New("too large")
		case err != nil:
			return nil, errors.New("not a whole number")
		case n < 0 || n*times < least: // far below zero the product overflows
			return nil, fmt.Errorf("less than %d", least)
		}
		return n * times, nil
	}
}

// span reads a time that is not negative.
func span(s string) (Value, error) {
	if s == "0" {
		return "0s", nil
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return nil, hinted("times look like 250ms, 20s or 1h30m", "not a time")
	case d < 0:
		return nil, errors.New("negative")
	}
	return d.String(), nil
}
