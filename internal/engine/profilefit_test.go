package engine

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func fittedProfile() *Profile {
	p, _ := Lookup(DefaultProfile)
	p.Fit = &ProfileFit{
		Verdict: "weak", Reasons: []string{"wide-interval"}, Engine: "sglang", Logs: []string{"decode.log"},
		Digest: strings.Repeat("0a", 16), Bins: 310, Kept: 290, R2: 0.95,
		StepMS: ProfileRange{17, 19}, RequestMS: ProfileRange{0.5, 2}, ContextMS: ProfileRange{-1, 17}, Weight: &ProfileRange{3e4, 1e5},
	}
	return p
}

func TestProfileFitReadsBack(t *testing.T) {
	for _, weight := range []*ProfileRange{nil, {3e4, 1e5}} {
		p := fittedProfile()
		p.Fit.Weight = weight
		text, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseProfile(bytes.NewReader(text), "p")
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if diff := cmp.Diff(p, back); diff != "" {
			t.Errorf("read back it differs (-want +got):\n%s", diff)
		}
	}
}

func TestProfileFitFaults(t *testing.T) {
	tests := []struct {
		field string
		spoil func(*ProfileFit)
	}{
		{"fit.verdict", func(f *ProfileFit) { f.Verdict = "great" }},
		{"fit.logs", func(f *ProfileFit) { f.Logs = nil }},
		{"fit.digest", func(f *ProfileFit) { f.Digest = "0a" }},
		{"fit.digest", func(f *ProfileFit) { f.Digest = strings.Repeat("X", 32) }},
		{"fit.bins_kept", func(f *ProfileFit) { f.Kept = f.Bins + 1 }},
		{"fit.bins_kept", func(f *ProfileFit) { f.Kept = 0 }},
		{"fit.r2", func(f *ProfileFit) { f.R2 = math.NaN() }},
		{"fit.r2", func(f *ProfileFit) { f.R2 = 1.5 }},
		{"fit.a_ms", func(f *ProfileFit) { f.StepMS = ProfileRange{19, 17} }},
		{"fit.b_ms_per_request", func(f *ProfileFit) { f.RequestMS.High = math.NaN() }},
		{"fit.c_ms_per_million_tokens", func(f *ProfileFit) { f.ContextMS.Low = math.Inf(-1) }},
		{"fit.decode_request_weight_tokens", func(f *ProfileFit) { f.Weight.High = math.Inf(1) }},
	}
	for _, tt := range tests {
		p := fittedProfile()
		tt.spoil(p.Fit)
		if err := p.Validate(); err == nil || !strings.HasPrefix(err.Error(), tt.field+": ") {
			t.Errorf("%s is wrong, got %v", tt.field, err)
		}
	}
	p := fittedProfile()
	text, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	unknown := strings.Replace(string(text), "  verdict:", "  verdikt:", 1)
	if _, err := ParseProfile(strings.NewReader(unknown), "p"); err == nil || !strings.Contains(err.Error(), "verdikt") {
		t.Errorf("an unknown key gives %v", err)
	}
}
