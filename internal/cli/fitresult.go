package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/kvroute/kvroute/internal/decodelog"
	"github.com/kvroute/kvroute/internal/fit"
)

// fitDocument is kvroute.fit/v1. What is not known is null.
type fitDocument struct {
	Schema   string         `json:"schema"`
	Version  string         `json:"version"`
	Seed     uint64         `json:"seed"`
	Settings map[string]any `json:"settings"`

	Verdict      fit.Verdict `json:"verdict"`
	Reasons      []fitReason `json:"reasons"`
	Weight       *float64    `json:"decode_request_weight_tokens"`
	Low          *float64    `json:"low"`
	High         *float64    `json:"high"`
	Flags        *string     `json:"flags"` // to paste; null where refused
	Coefficients fitPlane    `json:"coefficients"`
	Plain        fitPlain    `json:"plain"`

	R2       *float64  `json:"r2"`
	Corr     *float64  `json:"corr_requests_tokens"`
	Bins     int       `json:"bins"`
	Kept     int       `json:"bins_kept"`
	BinMS    float64   `json:"bin_ms"`
	Unit     fit.Unit  `json:"unit"`
	Heldout  *float64  `json:"heldout_error"`
	Insample *float64  `json:"insample_error"`
	Blur     *float64  `json:"moment_bias"`
	Draws    int       `json:"bootstrap_draws"`
	Block    int       `json:"bootstrap_block_bins"`
	Samples  fitCounts `json:"samples"`

	Ranks  []fitRank `json:"ranks"`
	Spread fitSpread `json:"spread"`
	Input  fitInput  `json:"input"`
}

type fitReason struct {
	Code  string `json:"code"`
	Grade string `json:"grade"` // refuses, weakens, remark
	Text  string `json:"text"`
	Hint  string `json:"hint"`
}

type fitInterval struct {
	Value *float64 `json:"value"`
	Low   *float64 `json:"low"`
	High  *float64 `json:"high"`
}

type fitPlane struct {
	A fitInterval `json:"a_ms"`
	B fitInterval `json:"b_ms_per_request"`
	C fitInterval `json:"c_ms_per_million_tokens"`
}

// fitPlain is least squares over all bins, nothing left out.
type fitPlain struct {
	A      *float64 `json:"a_ms"`
	B      *float64 `json:"b_ms_per_request"`
	C      *float64 `json:"c_ms_per_million_tokens"`
	Weight *float64 `json:"decode_request_weight_tokens"`
}

type fitCounts struct {
	Read        int64 `json:"read"`
	Used        int64 `json:"used"`
	Prefill     int64 `json:"prefill"`
	Late        int64 `json:"late"`
	Bad         int64 `json:"impossible"`
	PrefillBins int64 `json:"prefill_bins"`
	Thinned     int64 `json:"thinned_bins"`
}

type fitRank struct {
	Source   string   `json:"source"`
	Rank     *int32   `json:"rank"` // null where lines name none
	Samples  int64    `json:"samples"`
	Requests *float64 `json:"mean_requests"`
	Tokens   *float64 `json:"mean_tokens"`
	StepMS   *float64 `json:"mean_step_ms"`
	Busiest  *float64 `json:"busiest_share"`
	Residual *float64 `json:"step_over_median_ms"`
}

type fitSpread struct {
	Requests  *float64 `json:"requests_busiest_over_mean"`
	Tokens    *float64 `json:"tokens_busiest_over_mean"`
	Saved     *float64 `json:"step_time_even_spread_saves"`
	Straggler *int     `json:"straggler"` // index into ranks
}

type fitInput struct {
	Engine      decodelog.Engine `json:"engine"`
	Files       []string         `json:"files"`
	Digest      string           `json:"digest"`
	Bytes       int64            `json:"bytes"`
	Lines       int64            `json:"lines"`
	Used        int64            `json:"lines_used"`
	Left        []fitLeft        `json:"lines_left_out"`
	Other       []fitLeft        `json:"lines_of_other_kinds"`
	Ranks       []int32          `json:"ranks"`
	PoolTokens  []fitPool        `json:"pool_tokens"`
	PoolFrom    string           `json:"pool_tokens_from"`
	Speculation bool             `json:"speculation"`
	HasTokens   bool             `json:"tells_tokens"`
	Notes       []string         `json:"notes"`
}

type fitLeft struct {
	Why   string `json:"why"`
	Lines int64  `json:"lines"`
	File  string `json:"first_file"`
	Line  int64  `json:"first_line"`
	Text  string `json:"first_text"`
}

type fitPool struct {
	Rank   *int32 `json:"rank"`
	Tokens int64  `json:"tokens"`
}

// finite is x, or nil where it is not a number that JSON has.
func finite(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

func intervalOf(v fit.Interval, unit float64) fitInterval {
	return fitInterval{finite(v.Value * unit), finite(v.Low * unit), finite(v.High * unit)}
}

// Units of coefficients, from seconds.
const (
	perMS        = 1e3
	perMSMillion = 1e9
)

func (a *app) fitDocument(r *fitted) *fitDocument {
	f := r.flags
	d := &fitDocument{
		Schema: "kvroute.fit/v1", Version: version(), Seed: f.seed,
		Settings: map[string]any{
			"engine": f.engine, "bin": f.bin.String(), "bootstrap": f.bootstrap, "holdout": f.holdout,
			"min-step": f.minStep.String(), "max-step": f.maxStep.String(),
		},
		Verdict: r.Verdict, Reasons: []fitReason{},
		Weight: finite(r.Weight.Value), Low: finite(r.Weight.Low), High: finite(r.Weight.High),
		Coefficients: fitPlane{intervalOf(r.A, perMS), intervalOf(r.B, perMS), intervalOf(r.C, perMSMillion)},
		Plain: fitPlain{
			finite(r.Plain[0] * perMS), finite(r.Plain[1] * perMS), finite(r.Plain[2] * perMSMillion), finite(r.Plain[1] / r.Plain[2]),
		},
		R2: finite(r.R2), Corr: finite(r.Corr), Bins: len(r.Bins), Kept: r.Kept, BinMS: float64(r.BinNS) / 1e6, Unit: r.Unit,
		Heldout: finite(r.Heldout), Insample: finite(r.Insample), Blur: finite(r.Blur), Draws: r.Draws, Block: r.Block,
		Samples: fitCounts{
			Read: r.Counts.Samples, Used: r.Counts.Used, Prefill: r.Counts.Prefill, Late: r.Counts.Late, Bad: r.Counts.Bad,
			PrefillBins: r.Counts.PrefillBins, Thinned: r.Counts.Thinned,
		},
		Ranks:  []fitRank{},
		Spread: fitSpread{Requests: finite(r.Spread.Requests), Tokens: finite(r.Spread.Tokens), Saved: finite(r.Spread.Saved)},
		Input:  r.input(),
	}
	for _, name := range []string{"pool-tokens", "year"} {
		if a.given(name) {
			d.Settings[name] = a.texts[name]
		}
	}
	if flags, ok := r.paste(); ok {
		d.Flags = &flags
	}
	if s := r.Spread.Straggler; s >= 0 {
		d.Spread.Straggler = &s
	}
	for _, reason := range r.Reasons {
		d.Reasons = append(d.Reasons, fitReason{reason.Code, grade(reason), reason.Text, reason.Hint})
	}
	for _, k := range r.Ranks {
		d.Ranks = append(d.Ranks, fitRank{
			Source: r.names[k.Source], Rank: rankOf(k.Rank), Samples: k.Samples, Requests: finite(k.MeanRunning), Tokens: finite(k.MeanHeld),
			StepMS: finite(k.MeanStep * perMS), Busiest: finite(k.Busiest), Residual: finite(k.Residual * perMS),
		})
	}
	return d
}

func grade(r fit.Reason) string {
	switch {
	case r.Refuses:
		return "refuses"
	case r.Remark:
		return "remark"
	}
	return "weakens"
}

func rankOf(rank int32) *int32 {
	if rank == decodelog.NoRank {
		return nil
	}
	return &rank
}

func (r *fitted) input() fitInput {
	l := r.log
	in := fitInput{
		Engine: l.Engine, Files: r.names, Digest: l.Digest, Bytes: l.Bytes, Lines: l.Lines, Used: l.Used,
		Left: leftOf(l.Left), Other: leftOf(l.Other), Ranks: []int32{}, PoolTokens: []fitPool{}, PoolFrom: l.PoolFrom,
		Speculation: l.Accepting, HasTokens: l.HasHeld, Notes: append([]string{}, l.Notes...),
	}
	for _, rank := range l.Ranks {
		if rank != decodelog.NoRank {
			in.Ranks = append(in.Ranks, rank)
		}
	}
	for _, rank := range slices.Sorted(maps.Keys(l.PoolTokens)) {
		in.PoolTokens = append(in.PoolTokens, fitPool{rankOf(rank), l.PoolTokens[rank]})
	}
	return in
}

// leftOf lists reasons, the most frequent first.
func leftOf(m map[string]decodelog.Count) []fitLeft {
	out := []fitLeft{}
	for why, c := range m {
		out = append(out, fitLeft{why, c.N, c.First.File, c.First.Line, c.Text})
	}
	slices.SortFunc(out, func(x, y fitLeft) int {
		return cmp.Or(cmp.Compare(y.Lines, x.Lines), cmp.Compare(x.Why, y.Why))
	})
	return out
}

// paste gives the flags that apply the weight; none where the fit is refused.
func (r *fitted) paste() (string, bool) {
	if r.Verdict == fit.Refused || !(r.Weight.Value > 0) || math.IsInf(r.Weight.Value, 0) {
		return "", false
	}
	return "--decode-input-demand on --decode-request-weight " + strconv.FormatInt(sensible(r.Weight), 10), true
}

// sensible rounds a weight as its interval allows: to a tenth of the interval's width, at most to three digits.
func sensible(w fit.Interval) int64 {
	unit := math.Pow(10, math.Floor(math.Log10(w.Value))-2)
	for width := w.High - w.Low; 100*unit <= width && 10*unit <= w.Value/10; {
		unit *= 10
	}
	return max(1, int64(math.Round(math.Round(w.Value/unit)*unit)))
}

// binGrid is one line a bin, for a spreadsheet.
func (r *fitted) binGrid() *grid {
	g := &grid{head: []string{
		"at_ns", "step_ms", "fitted_ms", "kept", "requests_busiest", "tokens_busiest", "requests_mean", "tokens_mean", "ranks", "samples",
	}}
	n := func(x float64) string {
		if finite(x) == nil {
			return ""
		}
		return strconv.FormatFloat(x, 'g', -1, 64)
	}
	for _, b := range r.Bins {
		g.add(strconv.FormatInt(b.AtNS, 10), n(b.Step*perMS), n(b.Fitted*perMS), fmt.Sprint(b.Kept), n(b.Running), n(b.Held),
			n(b.MeanRunning), n(b.MeanHeld), strconv.Itoa(b.Ranks), strconv.Itoa(b.Samples))
	}
	return g
}

func (a *app) writeFit(w io.Writer, r *fitted) error {
	switch r.flags.format {
	case formatJSON:
		return writeJSON(w, a.fitDocument(r))
	case formatJSONL:
		return writeJSONLines(w, []*fitDocument{a.fitDocument(r)})
	case formatCSV:
		return r.binGrid().writeCSV(w)
	}
	return a.writeFitTable(w, r)
}
