package report

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Threshold is one condition of --fail-if: a run for which it holds has failed.
type Threshold struct {
	Text   string // as typed, spaces trimmed
	Metric Metric
	Op     string  // ">", ">=", "<", "<=", "==", "!="
	Limit  float64 // in the metric's unit: µs, share, factor or count
}

// Breach is a run for which a threshold's condition holds.
type Breach struct {
	Threshold Threshold
	Run       int // index of the run
	Label     string
	Value     float64
}

// String words the breach for people: "ttft_p99>800ms: kv-aware kv-overlap-weight=1 has 1204.5 ms".
func (b Breach) String() string {
	return fmt.Sprintf("%s: %s has %s", b.Threshold.Text, b.Label, formatValue(&b.Threshold.Metric, b.Value))
}

// ParseThresholds reads conditions, one or several (separated by commas) a text. Times need a unit
// (us, ms, s, m, h) unless zero or the metric is named with its unit (ttft_p99_us); shares are 0 to 1
// or in percent; counts may end in k, M or G (powers of 1000). All faults are reported at once.
func ParseThresholds(texts ...string) ([]Threshold, error) {
	var out []Threshold
	var faults []error
	for _, text := range texts {
		for _, part := range strings.Split(text, ",") {
			t, err := parseThreshold(strings.TrimSpace(part))
			if err != nil {
				faults = append(faults, err)
				continue
			}
			out = append(out, t)
		}
	}
	if len(faults) > 0 {
		return nil, joinHints(faults)
	}
	return out, nil
}

// joinHints joins faults into one error and keeps the first hint, which errors.Join would bury.
func joinHints(faults []error) error {
	if len(faults) == 1 {
		return faults[0]
	}
	texts := make([]string, len(faults))
	hint := ""
	for i, f := range faults {
		texts[i] = f.Error()
		var h *HintError
		if hint == "" && errors.As(f, &h) {
			hint = h.Hint
		}
	}
	err := errors.New(strings.Join(texts, "; "))
	if hint == "" {
		return err
	}
	return &HintError{err, hint}
}

const thresholdHint = "write a metric, a comparison and a limit, as in 'ttft_p99>800ms' or 'hit_rate<30%'"

func parseThreshold(text string) (Threshold, error) {
	at := strings.IndexAny(text, "<>=!")
	if at < 0 {
		return Threshold{}, &HintError{fmt.Errorf("threshold %q: no comparison in it", text), thresholdHint}
	}
	name := strings.TrimSpace(text[:at])
	end := at + 1
	if end < len(text) && text[end] == '=' {
		end++
	}
	op, limit := text[at:end], strings.TrimSpace(text[end:])
	switch op {
	case ">", ">=", "<", "<=", "==", "!=":
	case "=":
		op = "=="
	default:
		return Threshold{}, &HintError{fmt.Errorf("threshold %q: %q is no comparison", text, op), "use >, >=, <, <=, == or !="}
	}
	m, err := MetricNamed(name)
	if err != nil {
		var h *HintError
		hint := ""
		if errors.As(err, &h) {
			hint = h.Hint
		}
		return Threshold{}, &HintError{fmt.Errorf("threshold %q: %w", text, err), hint}
	}
	v, err := parseLimit(m, limit, name == m.Field && m.Unit == Micros)
	if err != nil {
		return Threshold{}, &HintError{fmt.Errorf("threshold %q: %w", text, err), thresholdHint}
	}
	return Threshold{Text: text, Metric: *m, Op: op, Limit: v}, nil
}

type suffix struct {
	text string
	mult float64
}

// suffixes of each unit, longer ones before those they end in.
var suffixes = map[Unit][]suffix{
	Micros: {{"us", 1}, {"µs", 1}, {"ms", 1e3}, {"s", 1e6}, {"m", 60e6}, {"h", 3600e6}},
	Share:  {{"%", 1}}, // divided by 100 below: 35*0.01 is not 0.35
	Factor: {{"x", 1}},
	Rate:   {{"tok/s", 1}, {"tokens/s", 1}},
	Count:  {{"k", 1e3}, {"M", 1e6}, {"G", 1e9}},
}

func parseLimit(m *Metric, text string, bare bool) (float64, error) {
	if text == "" {
		return 0, errors.New("no limit after the comparison")
	}
	number, mult, unit := text, 1.0, false
	for _, s := range suffixes[m.Unit] {
		if rest, ok := strings.CutSuffix(text, s.text); ok {
			number, mult, unit = strings.TrimSpace(rest), s.mult, true
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || strings.ContainsAny(number, "xXpP_") {
		return 0, fmt.Errorf("limit %q is not a number with a unit of %s", text, m.Name)
	}
	v *= mult
	if m.Unit == Share && unit {
		v /= 100
	}
	switch {
	case v < 0:
		return 0, fmt.Errorf("limit %q is negative, %s never is", text, m.Name)
	case math.IsInf(v, 0):
		return 0, fmt.Errorf("limit %q is too large", text)
	case m.Unit == Micros && !unit && !bare && v != 0:
		return 0, fmt.Errorf("limit %q has no unit; %s is a time", text, m.Name)
	case m.Unit == Share && v > 1:
		return 0, fmt.Errorf("limit %q is more than everything; %s lies between 0 and 1 (100%%)", text, m.Name)
	}
	return v, nil
}

// NeedsSim returns the first threshold on a metric that only simulations know, nil where there is none.
func NeedsSim(ts []Threshold) *Threshold {
	for i := range ts {
		if ts[i].Metric.Sim {
			return &ts[i]
		}
	}
	return nil
}

// CheckThresholds returns the breaches, run by run. The runs a sweep added for comparison are not
// judged. A metric that a run does not know is an error: it is neither above nor below any limit.
func CheckThresholds(ts []Threshold, runs []Run) ([]Breach, error) {
	var out []Breach
	for i := range runs {
		r := &runs[i]
		if r.Kind == KindDefault || r.Kind == KindReference {
			continue
		}
		for _, t := range ts {
			v, ok := t.Metric.Value(r)
			if !ok {
				why := "has no " + t.Metric.Name
				if r.Sim != nil && r.Sim.Completed == 0 && t.Metric.Sim {
					why += ": no request completed"
				}
				return nil, fmt.Errorf("threshold %q: %s %s", t.Text, Label(r), why)
			}
			if t.holds(v) {
				out = append(out, Breach{Threshold: t, Run: i, Label: Label(r), Value: v})
			}
		}
	}
	return out, nil
}

func (t *Threshold) holds(v float64) bool {
	switch t.Op {
	case ">":
		return v > t.Limit
	case ">=":
		return v >= t.Limit
	case "<":
		return v < t.Limit
	case "<=":
		return v <= t.Limit
	case "==":
		return v == t.Limit
	case "!=":
		return v != t.Limit
	}
	return false
}
