package sweep

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/trace"
)

// RunFunc makes one run of a workload at a point. It is called from several goroutines at once, must
// not change the workload, and must depend on nothing but its arguments.
type RunFunc func(ctx context.Context, w *trace.Workload, p Point) (*report.Run, error)

// Config says how to run a sweep.
type Config struct {
	Points   []Point               // from Plan
	Axes     []Axis                // for the report
	Repeats  int                   // 1: the trace alone; n: also n-1 resamples of it, the same ones at every point
	Seed     uint64                // of the resamples
	Parallel int                   // runs at once; 0: GOMAXPROCS
	Metric   string                // what the recommendation goes by (a report.Metric); "": report.DefaultMetric
	Progress func(done, total int) // called after every run, one call at a time; may be nil
}

// Result is a finished sweep.
type Result struct {
	Runs           []report.Run // one a point, in the order of the points, on the trace itself, with intervals over the repeats
	Recommendation *report.Recommendation
	Sweep          report.Sweep

	// Repeats has every run: [point][repeat], the first repeat being the trace itself. Points that are
	// the same experiment share runs.
	Repeats [][]*report.Run
}

// Run makes every run of the sweep. On an error, or when ctx ends, it returns after the runs that were
// under way have ended, with the error of the earliest of them and no result.
func Run(ctx context.Context, w *trace.Workload, cfg Config, run RunFunc) (*Result, error) {
	switch {
	case len(cfg.Points) == 0:
		return nil, errors.New("sweep without points")
	case cfg.Repeats < 1:
		return nil, fmt.Errorf("sweep of %d repeats; at least 1", cfg.Repeats)
	}
	first, unique := distinct(cfg.Points)
	got, err := runAll(ctx, w, &cfg, unique, run)
	if err != nil {
		return nil, err
	}
	res := &Result{Sweep: report.Sweep{Axes: []report.Axis{}, Repeats: cfg.Repeats}}
	for _, a := range cfg.Axes {
		axis := report.Axis{Flag: a.Flag.Name}
		for _, v := range a.Values {
			axis.Values = append(axis.Values, v)
		}
		res.Sweep.Axes = append(res.Sweep.Axes, axis)
	}
	for i := range cfg.Points {
		runs := got[first[i]]
		r := *runs[0]
		r.Kind, r.Flags = cfg.Points[i].Kind, cfg.Points[i].Flags()
		r.Intervals = intervals(runs)
		res.Runs = append(res.Runs, r)
		res.Repeats = append(res.Repeats, runs)
	}
	res.Recommendation, err = recommend(&cfg, res)
	if err != nil {
		return nil, err
	}
	return res, nil
}

// distinct maps every point to the first that is the same experiment, as an index into unique.
func distinct(points []Point) (first []int, unique []Point) {
	seen := map[string]int{}
	for i := range points {
		key := points[i].key()
		at, ok := seen[key]
		if !ok {
			at = len(unique)
			seen[key] = at
			unique = append(unique, points[i])
		}
		first = append(first, at)
	}
	return first, unique
}

// runAll fills [point][repeat]. Tasks start in a fixed order, repeat by repeat, so that all points of a
// resample can share it and it is gone when they are done. After an error no task starts any more; those
// before the failed one have started and end, so the earliest error is the same every time.
func runAll(ctx context.Context, w *trace.Workload, cfg *Config, points []Point, run RunFunc) ([][]*report.Run, error) {
	total := len(points) * cfg.Repeats
	out := make([][]*report.Run, len(points))
	for i := range out {
		out[i] = make([]*report.Run, cfg.Repeats)
	}
	parallel := cfg.Parallel
	if parallel <= 0 {
		parallel = runtime.GOMAXPROCS(0)
	}
	var (
		mu     sync.Mutex // done, failed, err
		done   int
		failed = total // lowest task that failed
		err    error
		group  errgroup.Group
	)
	group.SetLimit(parallel)
	stopped := func(task int) bool {
		mu.Lock()
		defer mu.Unlock()
		return failed < task || ctx.Err() != nil
	}
	for rep := range cfg.Repeats {
		load := w
		if rep > 0 && !stopped(rep*len(points)) {
			load = w.Resample(rand.New(rand.NewPCG(cfg.Seed, uint64(rep))).Uint64)
		}
		for i := range points {
			task := rep*len(points) + i
			if stopped(task) {
				break
			}
			group.Go(func() error {
				if stopped(task) { // while it waited for its turn
					return nil
				}
				r, e := run(ctx, load, points[i])
				if e == nil && r == nil {
					e = errors.New("no result")
				}
				mu.Lock()
				defer mu.Unlock()
				switch {
				case e != nil && task < failed:
					failed, err = task, fmt.Errorf("sweep point %s: %w", &points[i], e)
				case e == nil:
					out[i][rep] = r
					done++
					if cfg.Progress != nil {
						cfg.Progress(done, total)
					}
				}
				return nil
			})
		}
	}
	_ = group.Wait() // tasks keep their errors themselves
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return out, err
}
