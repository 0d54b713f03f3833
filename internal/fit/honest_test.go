package fit_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/decodelog"
	"github.com/kvroute/kvroute/internal/fit"
	"github.com/kvroute/kvroute/internal/plantedlog"
)

// has says whether a result has a reason.
func has(r *fit.Result, code string) bool {
	return slices.ContainsFunc(r.Reasons, func(x fit.Reason) bool { return x.Code == code })
}

func fitted(t *testing.T, c cell, seed uint64) *fit.Result {
	t.Helper()
	r, err := c.fit(seed)
	if err != nil {
		t.Fatalf("%s, seed %d: %v", c.name, seed, err)
	}
	return r
}

// Limits of steps are there for pauses. Where decode steps are cut off by them, the rest lies on another plane.
func TestLimitsThatCutStepsOffAreTold(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		truth   plantedlog.Truth
		refused bool
		want    bool
	}{
		{"steps around the longest", plantedlog.Truth{A: 0.18, B: 2e-3, C: 1.5e-7, Noise: 0.01}, true, true},
		{"steps around the shortest", plantedlog.Truth{A: 0.0035, B: 5e-5, C: 5e-9, Noise: 0.01}, true, true},
		{"pauses far beyond", plantedlog.Truth{A: 0.018, B: 5e-4, C: 1.5e-8, Noise: 0.01, Pauses: 0.1}, false, false},
	} {
		r := fitted(t, cell{tt.name, plantedlog.SGLang, with(tt.truth, 2), plantedlog.Design{}}, 1)
		if got := has(r, fit.CodeLimits); got != tt.want || tt.refused && r.Verdict != fit.Refused {
			t.Errorf("%s: verdict %s, %s told %v; want it told %v, refused %v; reasons %+v", tt.name, r.Verdict, fit.CodeLimits, got, tt.want, tt.refused, r.Reasons)
		}
	}
}

func with(truth plantedlog.Truth, ranks int) plantedlog.Truth {
	truth.Ranks = ranks
	return truth
}

// Shares of a large pool are rounded to more tokens than are held: the intervals have to know.
func TestRoundedSharesAreTold(t *testing.T) {
	t.Parallel()
	truth := planes[1]
	truth.Noise = 0.005
	covered, told := 0, 0
	const seeds = 3
	for seed := range uint64(seeds) {
		for _, pool := range []int64{2_000_000, 60_000_000} {
			truth.Pool = pool
			r := fitted(t, cell{"rounded", plantedlog.VLLM, truth, plantedlog.Design{Seconds: 1800, Context: 2000}}, seed+1)
			w := truth.Weight()
			switch got := has(r, fit.CodeCoarse); {
			case pool < 60_000_000 && got:
				t.Errorf("pool %d, seed %d: %s told, want not", pool, seed+1, fit.CodeCoarse)
			case pool == 60_000_000:
				if got {
					told++
				}
				if r.Verdict == fit.Refused || r.Weight.Low <= w && w <= r.Weight.High {
					covered++
				}
				t.Logf("seed %d: %s, W %.0f of %.0f (%.0f to %.0f), may be %.0f %% too high, told %v", seed+1, r.Verdict, r.Weight.Value, w, r.Weight.Low, r.Weight.High, 100*r.Blur, got)
			}
		}
	}
	if told < seeds-1 || covered < seeds-1 {
		t.Errorf("of %d logs with 60,000 tokens in a unit of usage %d say so and the intervals of %d have the truth, want nearly all", seeds, told, covered)
	}
}

// Ranks of one engine in files whose clocks differ show the busiest rank of each file, not of the step.
func TestRanksApartAreRefused(t *testing.T) {
	truth := with(planes[1], 4)
	truth.Noise = 0.005
	var log bytes.Buffer
	if err := plantedlog.Write(&log, plantedlog.SGLang, truth, plantedlog.Design{Start: 1_785_600_000}, 1); err != nil {
		t.Fatal(err)
	}
	half := [2]strings.Builder{}
	for line := range strings.Lines(log.String()) {
		for rank := range 4 {
			if strings.Contains(line, fmt.Sprintf(" DP%d ", rank)) {
				half[rank/2].WriteString(line)
			}
		}
	}
	// The log begins at 16:00 and takes twenty minutes.
	minute := regexp.MustCompile(` 16:(\d\d):`)
	shifted := func(minutes int) string {
		return minute.ReplaceAllStringFunc(half[1].String(), func(s string) string {
			m, err := strconv.Atoi(s[4:6])
			if err != nil {
				t.Fatal(err)
			}
			m += minutes
			return fmt.Sprintf(" %d:%02d:", 16+m/60, m%60)
		})
	}
	for _, tt := range []struct {
		name   string
		second string
		want   bool
	}{
		{"one clock", half[1].String(), false},
		{"another zone", shifted(300), true},
		{"five minutes off", shifted(5), true},
	} {
		f := fit.New(fit.Options{})
		report, err := decodelog.Read(t.Context(), []decodelog.Source{
			{Name: "node0.log", R: strings.NewReader(half[0].String())}, {Name: "node1.log", R: strings.NewReader(tt.second)},
		}, decodelog.Options{}, func(s *decodelog.Sample) error {
			f.Add(s)
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		f.Describe(report)
		r := f.Result()
		if got := has(r, fit.CodeMissing); got != tt.want || tt.want != (r.Verdict == fit.Refused) {
			t.Errorf("%s: %s, %s told %v, want %v: %+v", tt.name, r.Verdict, fit.CodeMissing, got, tt.want, r.Reasons)
		}
		for i, rank := range r.Ranks {
			if want := int32(i / 2); rank.Source != want {
				t.Errorf("%s: rank %d is of input %d, want %d", tt.name, rank.Rank, rank.Source, want)
			}
		}
	}
}

// Logs of several engines that are mixed into one, as by kubectl logs of several pods, are of no engine.
func TestEnginesMixedAreRefused(t *testing.T) {
	t.Parallel()
	one := func(seed uint64, d plantedlog.Design) []string {
		var log bytes.Buffer
		if err := plantedlog.Write(&log, plantedlog.SGLangDynamo, with(planes[1], 1), d, seed); err != nil {
			t.Fatal(err)
		}
		return slices.Collect(strings.Lines(log.String()))
	}
	short, waves := plantedlog.Design{Context: 1500, Output: 100}, plantedlog.Design{Fixed: true, Flat: true, Output: 80}
	for _, tt := range []struct {
		name string
		logs [][]string
		want bool
	}{
		{"one", [][]string{one(1, plantedlog.Design{})}, false},
		{"one, short answers", [][]string{one(1, short)}, false},
		{"one, waves", [][]string{one(1, waves)}, false},
		{"two", [][]string{one(1, plantedlog.Design{}), one(2, plantedlog.Design{Load: 8})}, true},
		{"two, short answers", [][]string{one(1, short), one(2, short)}, true},
		{"three", [][]string{one(1, plantedlog.Design{}), one(2, plantedlog.Design{}), one(3, plantedlog.Design{})}, true},
	} {
		var mixed []string
		for i, at := 0, 0; i < len(tt.logs[0]); i++ { // in the order of lines, which is nearly that of times
			for _, log := range tt.logs {
				if at = i * len(log) / len(tt.logs[0]); at < len(log) {
					mixed = append(mixed, log[at])
				}
			}
		}
		f := fit.New(fit.Options{})
		report, err := decodelog.Read(t.Context(), []decodelog.Source{{Name: "pods.log", R: strings.NewReader(strings.Join(mixed, ""))}}, decodelog.Options{}, func(s *decodelog.Sample) error {
			f.Add(s)
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		f.Describe(report)
		if r := f.Result(); has(r, fit.CodeSeveral) != tt.want || tt.want && r.Verdict != fit.Refused {
			t.Errorf("%s: %s, want %s told %v: %+v", tt.name, r.Verdict, fit.CodeSeveral, tt.want, r.Reasons)
		}
	}
}

// Tokens that are drawn anew for every line, as no engine holds them but a test may, are those of one engine.
func TestRandomTokensAreNotInTurn(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 9))
		var samples []decodelog.Sample
		for i := range 100 + int64(seed) {
			running, held := float64(1+rng.IntN(30)), float64(1000+rng.IntN(500_000))
			samples = append(samples, decodelog.Sample{
				At: i * 3e9, Rank: decodelog.NoRank, Step: 0.018 + 5e-4*running + 1.5e-8*held, Running: running, Held: held, Accept: 1, Measured: true,
			})
		}
		if r := fitSamples(samples, fit.Options{Draws: 20}); has(r, fit.CodeSeveral) {
			t.Errorf("seed %d: %+v", seed, r.Reasons)
		}
	}
}
