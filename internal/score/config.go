package score

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MaxWeight bounds every weight, so that no cost can leave the range of finite numbers.
const MaxWeight = 1e12

// Default tier weights: a hit in GPU memory saves its whole prefill. One in CPU memory must still be
// copied back, one on disk read first; both lie below 1 so that equal runs prefer the nearer tier,
// and above 0 because either is cheaper than computing. 0.8 for CPU is what llm-d uses; disk is ours,
// not measured.
var defaultTierWeights = [3]float64{1, 0.8, 0.4}

// Defaults is the configuration of kvroute without flags.
func Defaults() Config {
	return Config{
		Policy:          LeastWork,
		OverlapWeight:   1,
		PrefixThreshold: 0.5,
		TierWeights:     defaultTierWeights,
	}
}

// Policies lists the policy names, the default first.
func Policies() []string {
	return []string{LeastWork, KVAware, RoundRobin, Random, LeastLoad, PowerOfTwo, Prefix, PrefixThreshold, Session}
}

// FieldError is one fault of a Config. Field is the name of the flag that sets it, without dashes.
type FieldError struct {
	Field  string
	Value  string
	Reason string
	Hint   string // what to do; may be empty
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("--%s %s: %s", e.Field, e.Value, e.Reason)
}

// FieldErrors are all faults of a Config, in the order of its fields.
type FieldErrors []*FieldError

func (es FieldErrors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "; ")
}

// With returns the faults and those of err, or nil where there are none: for configs that contain a
// Config. An err of another kind stands for itself.
func (es FieldErrors) With(err error) error {
	var more FieldErrors
	if errors.As(err, &more) {
		es = append(es, more...)
	} else if err != nil {
		return err
	}
	if len(es) == 0 {
		return nil
	}
	return es
}

// Unwrap gives the single faults to errors.As and errors.Is.
func (es FieldErrors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

// Validate returns nil or FieldErrors with every fault there is.
func (c Config) Validate() error {
	var es FieldErrors
	fault := func(field, value, reason, hint string) {
		es = append(es, &FieldError{Field: field, Value: value, Reason: reason, Hint: hint})
	}
	if _, ok := kinds[c.Policy]; !ok {
		fault("router-policy", strconv.Quote(c.Policy), "no such policy", "choose one of "+strings.Join(Policies(), ", "))
	}
	weight := func(field string, w float64) {
		if !(w >= 0 && w <= MaxWeight) { // catches NaN too
			fault(field, number(w), "must be a number from 0 to 1e12", "")
		}
	}
	weight("kv-overlap-weight", c.OverlapWeight)
	if c.PrefillOverlapWeight != nil {
		weight("kv-prefill-overlap-weight", *c.PrefillOverlapWeight)
	}
	if c.DecodeOverlapWeight != nil {
		weight("kv-decode-overlap-weight", *c.DecodeOverlapWeight)
	}
	weight("kv-recent-weight", c.RecentWeight)
	if c.RecentWeight > 0 && c.Policy != KVAware {
		fault("kv-recent-weight", number(c.RecentWeight), "only kv-aware has a recency weight", "add --router-policy kv-aware")
	}
	if !(c.PrefixThreshold >= 0 && c.PrefixThreshold <= 1) {
		fault("prefix-threshold", number(c.PrefixThreshold), "must be a share of the request's blocks, from 0 to 1", "")
	}
	c.validateDemand(fault, weight)
	switch {
	case c.SessionAffinity > AffinityBoth:
		fault("session-affinity", strconv.Itoa(int(c.SessionAffinity)), "no such mode", "choose off, prefill or both")
	case c.SessionAffinity != AffinityOff && c.Policy == Session:
		fault("session-affinity", c.SessionAffinity.String(), "the session policy binds sessions already", "leave --session-affinity off, or choose another policy")
	}
	for i, w := range c.TierWeights {
		if !(w >= 0 && w <= 1) {
			fault("tier-weights", number(w), "the weight of a hit in the "+tierNames[i]+" tier must lie from 0 to 1", "")
		}
	}
	if len(es) == 0 {
		return nil
	}
	return es
}

func (c Config) validateDemand(fault func(field, value, reason, hint string), weight func(string, float64)) {
	demand := c.DecodeInputDemand
	switch {
	case demand > DemandOn:
		fault("decode-input-demand", strconv.Itoa(int(demand)), "no such mode", "choose off, shadow or on")
	case demand != DemandOff && c.Policy != KVAware && c.Policy != LeastWork:
		fault("decode-input-demand", demand.String(), "needs --router-policy kv-aware or least-work", "add --router-policy kv-aware, or leave demand off")
	}
	weight("decode-request-weight", c.DecodeRequestWeight)
	if c.DecodeRequestWeight > 0 && demand == DemandOff {
		fault("decode-request-weight", number(c.DecodeRequestWeight), "needs --decode-input-demand shadow or on", "add --decode-input-demand on")
	}
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

var tierNames = [3]string{"GPU", "CPU", "disk"}

// errUnknownName is wrapped by the parsers below.
var errUnknownName = errors.New("no such name")

func parseName(names []string, what, s string) (uint8, error) {
	for i, n := range names {
		if n == s {
			return uint8(i), nil
		}
	}
	return 0, fmt.Errorf("%s %q: %w (choose one of %s)", what, s, errUnknownName, strings.Join(names, ", "))
}

func nameOf(names []string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return strconv.Itoa(int(i))
}

var (
	roleNames      = []string{"mixed", "prefill", "decode"}
	demandNames    = []string{"off", "shadow", "on"}
	affinityNames  = []string{"off", "prefill", "both"}
	retentionNames = []string{"", "none", "short", "long"}
)

// String returns mixed, prefill or decode.
func (r Role) String() string { return nameOf(roleNames, uint8(r)) }

// ParseRole reads what String writes.
func ParseRole(s string) (Role, error) {
	i, err := parseName(roleNames, "role", s)
	return Role(i), err
}

// String returns off, shadow or on.
func (m DemandMode) String() string { return nameOf(demandNames, uint8(m)) }

// ParseDemandMode reads what String writes.
func ParseDemandMode(s string) (DemandMode, error) {
	i, err := parseName(demandNames, "decode input demand", s)
	return DemandMode(i), err
}

// String returns off, prefill or both.
func (a Affinity) String() string { return nameOf(affinityNames, uint8(a)) }

// ParseAffinity reads what String writes.
func ParseAffinity(s string) (Affinity, error) {
	i, err := parseName(affinityNames, "session affinity", s)
	return Affinity(i), err
}

// String returns none, short, long, or nothing where there is no hint.
func (r Retention) String() string { return nameOf(retentionNames, uint8(r)) }

// ParseRetention reads what String writes.
func ParseRetention(s string) (Retention, error) {
	i, err := parseName(retentionNames, "retention", s)
	return Retention(i), err
}
