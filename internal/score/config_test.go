package score_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
)

func TestDefaultsAreValid(t *testing.T) {
	if err := score.Defaults().Validate(); err != nil {
		t.Errorf("Defaults: %v", err)
	}
	for _, p := range score.Policies() {
		if err := config(p).Validate(); err != nil {
			t.Errorf("policy %s with defaults: %v", p, err)
		}
	}
	if got := score.Policies(); got[0] != score.Defaults().Policy || len(got) != 9 {
		t.Errorf("Policies() = %v, want the 9 policies, the default first", got)
	}
}

func TestValidate(t *testing.T) {
	type c = score.Config
	for _, tc := range []struct {
		name   string
		change func(*c)
		field  string // of the only fault
		reason string // part of its text
	}{
		{"unknown policy", func(x *c) { x.Policy = "kvaware" }, "router-policy", "no such policy"},
		{"no policy", func(x *c) { x.Policy = "" }, "router-policy", "no such policy"},
		{"NaN weight", func(x *c) { x.OverlapWeight = math.NaN() }, "kv-overlap-weight", "from 0 to 1e12"},
		{"negative weight", func(x *c) { x.OverlapWeight = -1 }, "kv-overlap-weight", "from 0"},
		{"infinite weight", func(x *c) { x.PrefillOverlapWeight = ptr(math.Inf(1)) }, "kv-prefill-overlap-weight", "from 0"},
		{"negative decode weight", func(x *c) { x.DecodeOverlapWeight = ptr(-0.5) }, "kv-decode-overlap-weight", "from 0"},
		{"recency elsewhere", func(x *c) { x.RecentWeight = 1 }, "kv-recent-weight", "only kv-aware"},
		{"NaN recency", func(x *c) { x.RecentWeight = math.NaN() }, "kv-recent-weight", "from 0"},
		{"threshold above 1", func(x *c) { x.PrefixThreshold = 1.5 }, "prefix-threshold", "from 0 to 1"},
		{"threshold NaN", func(x *c) { x.PrefixThreshold = math.NaN() }, "prefix-threshold", "from 0 to 1"},
		{"demand with round robin", func(x *c) { x.Policy, x.DecodeInputDemand = score.RoundRobin, score.DemandOn }, "decode-input-demand", "needs --router-policy kv-aware or least-work"},
		{"demand mode", func(x *c) { x.DecodeInputDemand = 9 }, "decode-input-demand", "no such mode"},
		{"W without demand", func(x *c) { x.DecodeRequestWeight = 5 }, "decode-request-weight", "needs --decode-input-demand shadow or on"},
		{"infinite W", func(x *c) { x.DecodeInputDemand, x.DecodeRequestWeight = score.DemandOn, math.Inf(1) }, "decode-request-weight", "from 0"},
		{"affinity mode", func(x *c) { x.SessionAffinity = 7 }, "session-affinity", "no such mode"},
		{"affinity twice", func(x *c) { x.Policy, x.SessionAffinity = score.Session, score.AffinityBoth }, "session-affinity", "binds sessions already"},
		{"tier weight", func(x *c) { x.TierWeights[1] = 1.01 }, "tier-weights", "CPU tier"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := score.Defaults()
			tc.change(&cfg)
			err := cfg.Validate()
			var all score.FieldErrors
			if !errors.As(err, &all) || len(all) != 1 {
				t.Fatalf("Validate = %v, want one fault", err)
			}
			var one *score.FieldError
			if !errors.As(err, &one) || one.Field != tc.field || !strings.Contains(one.Reason, tc.reason) {
				t.Errorf("fault = %+v, want field %s, reason with %q", all[0], tc.field, tc.reason)
			}
			if _, err := score.New(cfg, newFakeView(1), load.New()); err == nil {
				t.Error("New took it")
			}
		})
	}
	all := score.Config{Policy: "x", OverlapWeight: -1, PrefixThreshold: 2, DecodeRequestWeight: -3, TierWeights: [3]float64{2, 2, 2}}
	if n := len(all.Validate().(score.FieldErrors)); n != 7 {
		t.Errorf("%d faults (%v), want all 7", n, all.Validate())
	}
	if _, err := score.New(score.Defaults(), nil, nil); err == nil {
		t.Error("New took a nil view")
	}
}

func TestNamesRoundTrip(t *testing.T) {
	for i := range uint8(3) {
		if got, err := score.ParseRole(score.Role(i).String()); err != nil || got != score.Role(i) {
			t.Errorf("role %d: %v, %v", i, got, err)
		}
		if got, err := score.ParseDemandMode(score.DemandMode(i).String()); err != nil || got != score.DemandMode(i) {
			t.Errorf("demand %d: %v, %v", i, got, err)
		}
		if got, err := score.ParseAffinity(score.Affinity(i).String()); err != nil || got != score.Affinity(i) {
			t.Errorf("affinity %d: %v, %v", i, got, err)
		}
	}
	for i := range uint8(4) {
		if got, err := score.ParseRetention(score.Retention(i).String()); err != nil || got != score.Retention(i) {
			t.Errorf("retention %d: %v, %v", i, got, err)
		}
	}
	if _, err := score.ParseRole("router"); err == nil || !strings.Contains(err.Error(), "mixed, prefill, decode") {
		t.Errorf("ParseRole(router): %v, want the names there are", err)
	}
	if got := score.Role(9).String(); got != "9" {
		t.Errorf("Role(9) = %q", got)
	}
}
