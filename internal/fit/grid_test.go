package fit_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvroute/kvroute/internal/decodelog"
	"github.com/kvroute/kvroute/internal/fit"
	"github.com/kvroute/kvroute/internal/plantedlog"
)

// long asks for the large grids, which take some ten minutes.
var long = os.Getenv("KVROUTE_LONG") != ""

// cell is a log to plant.
type cell struct {
	name   string
	form   plantedlog.Form
	truth  plantedlog.Truth
	design plantedlog.Design
}

func (c cell) fit(seed uint64) (*fit.Result, error) {
	var log bytes.Buffer
	if err := plantedlog.Write(&log, c.form, c.truth, c.design, seed); err != nil {
		return nil, err
	}
	f := fit.New(fit.Options{Workers: 1, Seed: seed})
	report, err := decodelog.Read(context.Background(), []decodelog.Source{{Name: "planted", R: &log}}, decodelog.Options{}, func(s *decodelog.Sample) error {
		f.Add(s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	f.Describe(report)
	return f.Result(), nil
}

// outcome sums up the fits of a cell.
type outcome struct {
	verdicts            map[fit.Verdict]int
	covered             int
	bias, worstGood     float64 // relative
	codes               map[string]int
	first               *fit.Result
	worstGoodSeed, runs int
}

func (o outcome) String() string {
	codes := make([]string, 0, len(o.codes))
	for code, n := range o.codes {
		codes = append(codes, fmt.Sprintf("%s %d", code, n))
	}
	slices.Sort(codes)
	return fmt.Sprintf("good %d weak %d refused %d, covered %d/%d, mean error %+.3f, worst good %.3f; %s",
		o.verdicts[fit.Good], o.verdicts[fit.Weak], o.verdicts[fit.Refused], o.covered, o.runs, o.bias, o.worstGood, strings.Join(codes, ", "))
}

// run fits every cell with seeds from 1, on all processors, and logs the table of outcomes.
func run(t *testing.T, cells []cell, seeds int) []outcome {
	t.Helper()
	results := make([]*fit.Result, len(cells)*seeds)
	errs := make([]error, len(results))
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(results); i += workers {
				results[i], errs[i] = cells[i/seeds].fit(uint64(i%seeds + 1))
			}
		})
	}
	wg.Wait()
	out := make([]outcome, len(cells))
	for i, c := range cells {
		o := outcome{verdicts: map[fit.Verdict]int{}, codes: map[string]int{}, runs: seeds, first: results[i*seeds]}
		for k := range seeds {
			r, err := results[i*seeds+k], errs[i*seeds+k]
			if err != nil {
				t.Fatalf("%s, seed %d: %v", c.name, k+1, err)
			}
			w := c.truth.Weight()
			e := r.Weight.Value/w - 1
			o.bias += e / float64(seeds)
			o.verdicts[r.Verdict]++
			if r.Weight.Low <= w && w <= r.Weight.High {
				o.covered++
			}
			if r.Verdict == fit.Good && !(math.Abs(e) <= o.worstGood) {
				o.worstGood, o.worstGoodSeed = math.Abs(e), k+1
			}
			for _, reason := range r.Reasons {
				o.codes[reason.Code]++
			}
		}
		t.Logf("%-44s %s", c.name, o)
		out[i] = o
	}
	return out
}

// honest fails where a good verdict is wrong: by more than 5 %.
func honest(t *testing.T, c cell, o outcome) {
	t.Helper()
	if !(o.worstGood <= 0.05) {
		t.Errorf("%s: a good weight is %.1f %% off (seed %d), want at most 5 %%", c.name, 100*o.worstGood, o.worstGoodSeed)
	}
}

var planes = []plantedlog.Truth{
	{A: 0.018, B: 5e-4, C: 1.5e-8}, // requests matter most
	{A: 0.030, B: 3e-4, C: 6e-8},   // both
	{A: 0.010, B: 2e-4, C: 1e-7},   // tokens matter most
}

var disturbances = []struct {
	name string
	add  func(*plantedlog.Truth)
}{
	{"nothing", func(*plantedlog.Truth) {}},
	{"outliers", func(t *plantedlog.Truth) { t.Outliers = 0.005 }},
	{"pauses", func(t *plantedlog.Truth) { t.Pauses = 0.03 }},
	{"speculation", func(t *plantedlog.Truth) { t.Accept = 2.4 }},
	{"drift", func(t *plantedlog.Truth) { t.Drift = 0.02 }},
}

// grid has planes, noise, disturbances and ranks, as SGLang prints them.
func grid(seconds float64, noises []float64, ranks ...int) []cell {
	var cells []cell
	for i, plane := range planes {
		for _, noise := range noises {
			for _, d := range disturbances {
				for _, ranks := range ranks {
					truth := plane
					truth.Noise, truth.Ranks = noise, ranks
					d.add(&truth)
					form := plantedlog.SGLang
					if ranks == 1 {
						form = plantedlog.SGLangDynamo // a line that names the one rank says that there are more
					}
					cells = append(cells, cell{
						name: fmt.Sprintf("plane %d, noise %g, %s, %d ranks", i+1, noise, d.name, ranks),
						form: form, truth: truth, design: plantedlog.Design{Seconds: seconds},
					})
				}
			}
		}
	}
	return cells
}

func TestPlantedGrid(t *testing.T) {
	seconds, seeds, noises, ranks, least := 1200.0, 1, []float64{0.01}, []int{1, 4}, 0.05
	if long {
		seconds, seeds, noises, ranks, least = 3600, 3, []float64{0.01, 0.05}, []int{1, 4, 8}, 0.25
	}
	cells := grid(seconds, noises, ranks...)
	good, useful := 0, 0
	for i, o := range run(t, cells, seeds) {
		honest(t, cells[i], o)
		good += o.verdicts[fit.Good]
		useful += o.verdicts[fit.Good] + o.verdicts[fit.Weak]
	}
	// Honesty by refusing everything would be cheap.
	n := len(cells) * seeds
	if float64(good) < least*float64(n) {
		t.Errorf("%d of %d fits are good, want a share of %g at least", good, n, least)
	}
	t.Logf("%d of %d fits are good, %d weak", good, n, useful-good)
	if 100*useful < 98*n {
		t.Errorf("%d of %d fits are good or weak, want nearly all", useful, n)
	}
}

// all forms of logs, each with the plane that both matter in.
func formCells(seconds float64) []cell {
	var cells []cell
	for _, form := range plantedlog.Forms() {
		truth := planes[1]
		truth.Noise, truth.Ranks = 0.02, 4
		if form.OneRank() {
			truth.Ranks = 1
		}
		cells = append(cells, cell{name: string(form), form: form, truth: truth, design: plantedlog.Design{Seconds: seconds}})
		if strings.HasPrefix(string(form), "vllm") && !form.OneRank() {
			truth.Independent = true
			cells = append(cells, cell{name: string(form) + ", independent ranks", form: form, truth: truth, design: plantedlog.Design{Seconds: seconds}})
		}
	}
	return cells
}

func TestEveryFormIsFitted(t *testing.T) {
	seconds, seeds := 1200.0, 1
	if long {
		seconds, seeds = 3600, 5
	}
	cells := formCells(seconds)
	for i, o := range run(t, cells, seeds) {
		honest(t, cells[i], o)
		if 5*o.verdicts[fit.Refused] > seeds {
			t.Errorf("%s: refused: %v", cells[i].name, o)
		}
		if math.Abs(o.bias) > 0.5 {
			t.Errorf("%s: mean error of the weight %.2f", cells[i].name, o.bias)
		}
		if want := map[bool]fit.Unit{false: fit.UnitAll, true: fit.UnitRank}[cells[i].truth.Independent]; o.first.Unit != want {
			t.Errorf("%s: unit %s, want %s", cells[i].name, o.first.Unit, want)
		}
	}
}

func TestDegenerateDesignsAreRefused(t *testing.T) {
	type D = plantedlog.Design
	seeds, planes := 1, planes[:2]
	if long {
		seeds = 20
	}
	for _, d := range []struct {
		name   string
		design D
		ranks  int
		code   string
	}{
		{"prompts equally long", D{Fixed: true}, 8, fit.CodeCollinear},
		{"prompts equally long, one rank", D{Fixed: true}, 1, fit.CodeCollinear},
		{"concurrency constant", D{Flat: true}, 8, fit.CodeRequests},
		{"concurrency constant, one rank", D{Flat: true}, 1, fit.CodeRequests},
		{"both", D{Flat: true, Fixed: true}, 8, fit.CodeTokens},
		{"last rank idle", D{Idle: 1}, 8, fit.CodeMissing},
		{"one of two ranks idle", D{Idle: 1}, 2, fit.CodeOneRank},
		{"prefill on the same engine", D{Mixed: true}, 8, fit.CodePrefill},
	} {
		var cells []cell
		for i, plane := range planes {
			plane.Ranks, plane.Noise = d.ranks, 0.02
			form := plantedlog.SGLang
			if d.ranks == 1 {
				form = plantedlog.SGLangDynamo
			}
			cells = append(cells, cell{fmt.Sprintf("%s, plane %d", d.name, i+1), form, plane, d.design})
		}
		for i, o := range run(t, cells, seeds) {
			if o.verdicts[fit.Refused] != seeds || o.codes[d.code] != seeds {
				t.Errorf("%s: %v; want all refused for %s", cells[i].name, o, d.code)
			}
		}
	}
}

// What is no plane may not pass for one.
func TestWrongModelsAreNotGood(t *testing.T) {
	seeds, seconds := 1, 1200.0
	if long {
		seeds, seconds = 20, 3600
	}
	var cells []cell
	for _, window := range []float64{2048, 16384} {
		for i, plane := range planes {
			plane.Ranks, plane.Noise, plane.Window = 4, 0.02, window
			cells = append(cells, cell{fmt.Sprintf("window of %g tokens, plane %d", window, i+1), plantedlog.SGLang, plane, plantedlog.Design{Seconds: seconds}})
		}
	}
	for i, o := range run(t, cells, seeds) {
		honest(t, cells[i], o)
	}
}

func TestIntervalsCoverTheTruth(t *testing.T) {
	if !long {
		t.Skip("takes minutes: make test-fit")
	}
	var cells []cell
	for _, c := range grid(1200, []float64{0.05}, 4) {
		if c.truth.B == planes[1].B {
			cells = append(cells, c)
		}
	}
	const seeds = 200
	for i, o := range run(t, cells, seeds) {
		honest(t, cells[i], o)
		// 90 % is meant. Noise that varies as slowly as the load does cannot be told from it in twenty minutes.
		least := 0.85
		if cells[i].truth.Drift > 0 {
			least = 0.75
		}
		if share := float64(o.covered) / seeds; share < least || share > 0.97 {
			t.Errorf("%s: intervals cover the truth in %.1f %% of %d logs, want %.0f to 97", cells[i].name, 100*share, seeds, 100*least)
		}
	}
}
