package engine

import (
	"fmt"
	"math"
	"strings"
)

// ProfileFit says what the coefficients of a profile were fitted to, and how far they can be trusted. The model does
// not use it.
type ProfileFit struct {
	Verdict string   `yaml:"verdict"` // good, weak, refused
	Reasons []string `yaml:"reasons"` // codes
	Engine  string   `yaml:"engine"`  // whose logs
	Logs    []string `yaml:"logs"`    // names
	Digest  string   `yaml:"digest"`  // XXH3-128 of the logs as stored, in hex
	Bins    int      `yaml:"bins"`
	Kept    int      `yaml:"bins_kept"`
	R2      float64  `yaml:"r2"`

	// 5 to 95 % intervals. A weight without bound has none.
	StepMS    ProfileRange  `yaml:"a_ms"`
	RequestMS ProfileRange  `yaml:"b_ms_per_request"`
	ContextMS ProfileRange  `yaml:"c_ms_per_million_tokens"`
	Weight    *ProfileRange `yaml:"decode_request_weight_tokens,omitempty"`
}

// ProfileRange is where a value lies.
type ProfileRange struct {
	Low  float64 `yaml:"low"`
	High float64 `yaml:"high"`
}

// validate reports every fault to bad.
func (f *ProfileFit) validate(bad func(field, why string, args ...any)) {
	switch f.Verdict {
	case "good", "weak", "refused":
	default:
		bad("fit.verdict", "must be good, weak or refused, is %q", f.Verdict)
	}
	if len(f.Logs) == 0 {
		bad("fit.logs", "is missing")
	}
	if len(f.Digest) != 32 || strings.Trim(f.Digest, "0123456789abcdef") != "" {
		bad("fit.digest", "must be 32 hex digits, is %q", f.Digest)
	}
	if f.Bins < 1 || f.Kept < 1 || f.Kept > f.Bins {
		bad("fit.bins_kept", "must be 1 to bins (%d), is %d", f.Bins, f.Kept)
	}
	if !(f.R2 <= 1) || math.IsInf(f.R2, 0) {
		bad("fit.r2", "must be at most 1, is %v", f.R2)
	}
	ranges := []struct {
		name string
		r    *ProfileRange
	}{{"a_ms", &f.StepMS}, {"b_ms_per_request", &f.RequestMS}, {"c_ms_per_million_tokens", &f.ContextMS}, {"decode_request_weight_tokens", f.Weight}}
	for _, x := range ranges {
		if x.r == nil {
			continue
		}
		if !(x.r.Low <= x.r.High) || math.IsInf(x.r.Low, 0) || math.IsInf(x.r.High, 0) {
			bad("fit."+x.name, "%s", fmt.Sprintf("must be two finite numbers, low and high, is %v to %v", x.r.Low, x.r.High))
		}
	}
}
