// Package quality measures how good the default policy's decisions are: against every weight of the
// published formula and against round robin, on recorded traffic, under both engine models and with
// late events, a slow worker and routers that do not talk. Its test keeps docs/decision-quality.md.
package quality

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/kvroute/kvroute/internal/replay"
	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/sim"
	"github.com/kvroute/kvroute/internal/trace"
)

// Weights are the overlap weights the default policy is held against.
var Weights = []float64{0, 0.25, 0.5, 1, 2, 4, 20}

// Traffic is one trace as measured.
type Traffic struct {
	Name     string
	Paths    []string // under the folder of traces; several are one trace
	Speedup  float64
	Capacity int   // blocks a worker can cache
	Workers  []int // fleet sizes
	HeldOut  bool  // played no part in choosing the policy's constants; under the serial engine only
}

// Traffics are the traces of the tables, with the settings of the published oracle numbers where
// there are any.
var Traffics = []Traffic{
	{"mooncake conversation", []string{"mooncake/conversation_trace.jsonl.gz"}, 1, 5859, small, false},
	{"claude-code small", []string{"claude-code/small.jsonl.gz"}, 1, 50000, small, false},
	{"ragpulse, 200 x", []string{"ragpulse/ragpulse_chained.jsonl.gz"}, 200, 2048, small, false},
	{"miniswe", []string{"lmcache-agent/miniswe_blocks64.jsonl.gz"}, 1, 2000, small, false},
	{"azure conversation", []string{"azure/AzureLLMInferenceTrace_conv.csv.gz"}, 1, 5859, small, false},
	{"claude-code whole", []string{
		"claude-code/part-0.jsonl.gz", "claude-code/part-1.jsonl.gz", "claude-code/part-2.jsonl.gz",
	}, 1, 50000, []int{8, 16}, true},
}

var small = []int{4, 8}

// Scenario is one fleet under one engine model.
type Scenario struct {
	Name   string
	Engine string
	Adapt  func(*sim.Config)
}

// Scenarios are measured on every trace and fleet size.
var Scenarios = []Scenario{
	{"serial", sim.SerialEngine, func(*sim.Config) {}},
	{"batch", sim.BatchEngine, func(*sim.Config) {}},
	{"batch, worker 0 at half speed", sim.BatchEngine, func(c *sim.Config) { c.Slow = []sim.Slow{{Worker: 0, Speed: 0.5}} }},
	{"batch, events 250 ms late", sim.BatchEngine, func(c *sim.Config) { c.EventDelay = 250 * time.Millisecond }},
	{"batch, 3 routers", sim.BatchEngine, func(c *sim.Config) { c.Routers = 3 }},
}

// Row is one trace, fleet and scenario; times are mean and p90 TTFT in µs.
type Row struct {
	Traffic  string
	Workers  int
	Scenario string
	Robin    *report.Run
	Weights  []*report.Run // as Weights
	Default  *report.Run
}

// Best returns the run of the formula with the least mean TTFT, and its weight.
func (r *Row) Best() (run *report.Run, weight float64) {
	for i, w := range r.Weights {
		if run == nil || w.Sim.TTFT.Sum < run.Sim.TTFT.Sum {
			run, weight = w, Weights[i]
		}
	}
	return run, weight
}

// Ratio is the default's mean TTFT as a share of the least of round robin and every weight; below 1
// the default is better than all of them.
func (r *Row) Ratio() float64 {
	best, _ := r.Best()
	return float64(r.Default.Sim.TTFT.Sum) / float64(min(best.Sim.TTFT.Sum, r.Robin.Sim.TTFT.Sum))
}

// Golden is one setting of the made sessions: no clock, unlimited caches.
type Golden struct {
	Order   string
	Workers int
	K       int
	Runs    []*report.Run // as GoldenPolicies
}

// GoldenPolicy is one column of the table of made sessions.
type GoldenPolicy struct {
	Name string
	Set  func(*score.Config)
}

// GoldenPolicies are its columns.
var GoldenPolicies = []GoldenPolicy{
	{"round robin", func(c *score.Config) { c.Policy = score.RoundRobin }},
	{"formula, 1", formula(1, 0)},
	{"formula, 20", formula(20, 0)},
	{"with recency, 1", formula(1, 1)},
	{"with recency, 20", formula(20, 1)},
	{"least-work", func(*score.Config) {}},
}

func formula(weight, recent float64) func(*score.Config) {
	return func(c *score.Config) { c.Policy, c.OverlapWeight, c.RecentWeight = score.KVAware, weight, recent }
}

// GoldenSettings are order, workers and outstanding requests.
var GoldenSettings = []Golden{
	{"serial", 2, 1, nil},
	{"serial", 4, 1, nil},
	{"serial", 4, 8, nil},
	{"inter16", 2, 8, nil},
	{"inter16", 4, 1, nil},
	{"inter16", 4, 8, nil},
}

// MeasureGolden fills the table of made sessions.
func MeasureGolden(ctx context.Context, dir string) ([]Golden, error) {
	out := make([]Golden, len(GoldenSettings))
	for i, g := range GoldenSettings {
		w, err := load(dir, Traffic{Paths: []string{"golden/sessions80-" + g.Order + ".jsonl.gz"}})
		if err != nil {
			return nil, err
		}
		for _, p := range GoldenPolicies {
			cfg := score.Defaults()
			p.Set(&cfg)
			run, err := replay.Run(ctx, w, replay.Config{Workers: g.Workers, Outstanding: g.K, Score: cfg})
			if err != nil {
				return nil, fmt.Errorf("replay %s with %s: %w", g.Order, p.Name, err)
			}
			g.Runs = append(g.Runs, run)
		}
		out[i] = g
	}
	return out, nil
}

// Measure runs everything on the traces under dir, on all cores, in a fixed order of rows.
func Measure(ctx context.Context, dir string) ([]Row, error) {
	var rows []Row
	var jobs []func() error
	for _, t := range Traffics {
		w, err := load(dir, t)
		if err != nil {
			return nil, err
		}
		for _, n := range t.Workers {
			for _, s := range Scenarios {
				if t.HeldOut && s.Engine != sim.SerialEngine {
					continue
				}
				rows = append(rows, Row{Traffic: t.Name, Workers: n, Scenario: s.Name, Weights: make([]*report.Run, len(Weights))})
				i := len(rows) - 1
				job := func(dst func(*Row) **report.Run, set func(*score.Config)) {
					jobs = append(jobs, func() (err error) {
						cfg := sim.Config{
							Workers: n, Engine: s.Engine, Serial: sim.DefaultSerial(), Capacity: t.Capacity,
							Score: score.Defaults(),
						}
						set(&cfg.Score)
						s.Adapt(&cfg)
						*dst(&rows[i]), err = sim.Run(ctx, w, cfg)
						return err
					})
				}
				job(func(r *Row) **report.Run { return &r.Robin }, func(c *score.Config) { c.Policy = score.RoundRobin })
				job(func(r *Row) **report.Run { return &r.Default }, func(*score.Config) {})
				for k, weight := range Weights {
					job(func(r *Row) **report.Run { return &r.Weights[k] }, formula(weight, 0))
				}
			}
		}
	}
	return rows, parallel(jobs)
}

// parallel runs the jobs on all cores and returns the first error in their order.
func parallel(jobs []func() error) error {
	errs := make([]error, len(jobs))
	next := make(chan int)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				errs[i] = jobs[i]()
			}
		})
	}
	for i := range jobs {
		next <- i
	}
	close(next)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func load(dir string, t Traffic) (*trace.Workload, error) {
	var sources []trace.Source
	for _, p := range t.Paths {
		path := filepath.Join(dir, filepath.FromSlash(p))
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		sources = append(sources, trace.Source{Name: path, R: f})
	}
	return trace.Load(sources, trace.Options{Speedup: t.Speedup})
}
