package sweep_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/sweep"
	"github.com/kvroute/kvroute/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func axes(t *testing.T, texts ...string) []sweep.Axis {
	t.Helper()
	out, err := sweep.ParseAxes(texts, sweep.Flags())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func plan(t *testing.T, base score.Config, set map[string]any, texts ...string) []sweep.Point {
	t.Helper()
	points, err := sweep.Plan(axes(t, texts...), base, set)
	if err != nil {
		t.Fatal(err)
	}
	return points
}

func names(points []sweep.Point) []string {
	var out []string
	for i := range points {
		out = append(out, points[i].Kind+": "+points[i].String())
	}
	return out
}

func kvAware() score.Config {
	c := score.Defaults()
	c.Policy = score.KVAware
	return c
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name  string
		base  score.Config
		sweep []string
		want  []string
	}{
		{"last axis turns fastest, default and round robin follow", kvAware(), []string{"kv-overlap-weight=1,2", "kv-recent-weight=0,1"}, []string{
			"swept: kv-overlap-weight=1 kv-recent-weight=0", "swept: kv-overlap-weight=1 kv-recent-weight=1",
			"swept: kv-overlap-weight=2 kv-recent-weight=0", "swept: kv-overlap-weight=2 kv-recent-weight=1",
			"default: router-policy=least-work", "reference: router-policy=round-robin",
		}},
		{"what is swept is not added again", score.Defaults(), []string{"router-policy=round-robin,least-work,prefix"}, []string{
			"swept: router-policy=round-robin", "swept: router-policy=least-work", "swept: router-policy=prefix",
		}},
		{"each fleet has its own default", score.Defaults(), []string{"workers=2,4"}, []string{
			"swept: workers=2", "swept: workers=4", "reference: router-policy=round-robin workers=2", "reference: router-policy=round-robin workers=4",
		}},
		{"no axis at all", score.Defaults(), nil, []string{"swept: as given", "reference: router-policy=round-robin"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, names(plan(t, c.base, nil, c.sweep...))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPointConfig(t *testing.T) {
	base := kvAware()
	base.RecentWeight, base.Seed = 0.5, 42
	points := plan(t, base, map[string]any{"kv-recent-weight": 0.5, "router-policy": "kv-aware"}, "router-policy=kv-aware,round-robin", "kv-overlap-weight=3", "event-delay=50ms", "capacity=64k")
	kv, rr, def := points[0], points[1], points[2]
	if kv.Config.OverlapWeight != 3 || kv.Config.RecentWeight != 0.5 || kv.Config.Policy != score.KVAware {
		t.Errorf("kv-aware: %+v", kv.Config)
	}
	// Round robin reads no weights: they are left out rather than being a fault.
	if rr.Config.Policy != score.RoundRobin || rr.Config.RecentWeight != 0 || rr.Config.OverlapWeight != 1 {
		t.Errorf("round-robin: %+v", rr.Config)
	}
	want := score.Defaults()
	want.Seed = 42
	if diff := cmp.Diff(want, def.Config); diff != "" || def.Kind != report.KindDefault {
		t.Errorf("default: %s", diff)
	}
	if kv.Duration("event-delay", 0) != 50*time.Millisecond || kv.Int("capacity", 1) != 64000 || kv.Int("workers", 7) != 7 || kv.Duration("x", time.Second) != time.Second {
		t.Error("fleet settings are not what was swept")
	}
	wantFlags := map[string]any{"router-policy": "kv-aware", "kv-overlap-weight": 3.0, "kv-recent-weight": 0.5, "event-delay": "50ms", "capacity": int64(64000)}
	if diff := cmp.Diff(wantFlags, kv.Flags()); diff != "" {
		t.Errorf("flags of a swept point: %s", diff)
	}
	wantFlags = map[string]any{"router-policy": "least-work", "event-delay": "50ms", "capacity": int64(64000)}
	if diff := cmp.Diff(wantFlags, def.Flags()); diff != "" {
		t.Errorf("flags of the default: %s", diff)
	}
}

func TestPlanAppliesEveryScorerFlag(t *testing.T) {
	for text, ok := range map[string]func(score.Config) bool{
		"router-policy=kv-aware":      func(c score.Config) bool { return c.Policy == score.KVAware },
		"kv-overlap-weight=7":         func(c score.Config) bool { return c.OverlapWeight == 7 },
		"kv-prefill-overlap-weight=7": func(c score.Config) bool { return *c.PrefillOverlapWeight == 7 },
		"kv-decode-overlap-weight=7":  func(c score.Config) bool { return *c.DecodeOverlapWeight == 7 },
		"kv-recent-weight=7":          func(c score.Config) bool { return c.RecentWeight == 7 },
		"decode-input-demand=shadow":  func(c score.Config) bool { return c.DecodeInputDemand == score.DemandShadow },
		"decode-request-weight=7":     func(c score.Config) bool { return c.DecodeRequestWeight == 7 },
		"session-affinity=both":       func(c score.Config) bool { return c.SessionAffinity == score.AffinityBoth },
		"prefix-threshold=0.7":        func(c score.Config) bool { return c.PrefixThreshold == 0.7 },
	} {
		base := kvAware()
		base.DecodeInputDemand = score.DemandOn
		if strings.HasPrefix(text, "prefix-") {
			base = score.Defaults()
			base.Policy = score.PrefixThreshold
		}
		if p := plan(t, base, nil, text); !ok(p[0].Config) {
			t.Errorf("%s: %+v", text, p[0].Config)
		}
	}
	for _, f := range sweep.Flags() {
		if f.Scorer != slices.Contains(report.ScorerFlags(), f.Name) {
			t.Errorf("%s is a scorer flag here or in reports, but not in both", f.Name)
		}
	}
}

func TestPlanRejects(t *testing.T) {
	base := kvAware()
	base.DecodeInputDemand = score.DemandOn
	base.DecodeRequestWeight = 5
	if _, err := sweep.Plan(axes(t, "decode-input-demand=off,on"), base, nil); err == nil || !strings.Contains(err.Error(), "sweep point decode-input-demand=off") {
		t.Errorf("a weight without demand: %v", err)
	}
	var es score.FieldErrors
	bad := kvAware()
	bad.OverlapWeight = math.NaN()
	if _, err := sweep.Plan(axes(t, "workers=1"), bad, nil); !errors.As(err, &es) {
		t.Errorf("an invalid base: %v", err)
	}
}

func TestIgnored(t *testing.T) {
	if got := sweep.Ignored(plan(t, score.Defaults(), nil, "kv-overlap-weight=1,2", "workers=2")); !slices.Equal(got, []string{"kv-overlap-weight"}) {
		t.Errorf("least-work reads no weight: %v", got)
	}
	if got := sweep.Ignored(plan(t, score.Defaults(), nil, "kv-overlap-weight=1,2", "router-policy=least-work,kv-aware")); got != nil {
		t.Errorf("kv-aware reads it: %v", got)
	}
}

// traffic makes a workload of sessions whose turns share blocks.
func traffic(tb testing.TB, sessions int) *trace.Workload {
	tb.Helper()
	var b strings.Builder
	for s := range sessions {
		for turn := range 1 + s%4 {
			fmt.Fprintf(&b, `{"timestamp":%d,"input_length":%d,"output_length":%d,"hash_ids":[%d,%d],"session_id":"s%d"}`+"\n",
				1000*s+100*turn, 1024, 1+s%7, 2*s, 2*s+1, s)
		}
	}
	w, err := trace.Load([]trace.Source{{Name: "made", R: strings.NewReader(b.String())}}, trace.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// experiment is a run whose result is a plain function of the point and of the traffic: mean is the
// sum of outputs a request, times what factor says of the point.
func experiment(factor func(p *sweep.Point, w *trace.Workload) float64) sweep.RunFunc {
	return func(_ context.Context, w *trace.Workload, p sweep.Point) (*report.Run, error) {
		var out float64
		for i := range w.Requests {
			out += float64(w.Requests[i].Output)
		}
		mean := 1000 * out / float64(len(w.Requests)) * factor(&p, w)
		return &report.Run{
			Policy: p.Config.Policy, Workers: int(p.Int("workers", 1)), RequestsPerWorker: []int64{int64(len(w.Requests))},
			HitBlocks: 1, HitRate: 0.5, MissBlocksPerWorker: []int64{1}, Imbalance: 1,
			Sim: &report.Sim{TTFT: report.Dist{Mean: mean, P90: int64(2 * mean)}},
		}, nil
	}
}

func weights(p *sweep.Point, _ *trace.Workload) float64 {
	switch p.Config.Policy {
	case score.KVAware:
		return 1.5 - p.Config.OverlapWeight/10
	case score.RoundRobin:
		return 2
	}
	return 1
}

func do(t *testing.T, cfg sweep.Config, run sweep.RunFunc) *sweep.Result {
	t.Helper()
	res, err := sweep.Run(context.Background(), traffic(t, 60), cfg, run)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestRunIsTheSameOnAnyNumberOfCores(t *testing.T) {
	points := plan(t, kvAware(), nil, "kv-overlap-weight=0,1,2,4,8", "workers=2,4")
	var want []byte
	for _, parallel := range []int{1, 2, 7, 0} {
		run := experiment(weights)
		res := do(t, sweep.Config{Points: points, Axes: axes(t, "kv-overlap-weight=0,1,2,4,8", "workers=2,4"), Repeats: 6, Seed: 3, Parallel: parallel},
			func(ctx context.Context, w *trace.Workload, p sweep.Point) (*report.Run, error) {
				for range len(p.String()) % 5 {
					runtime.Gosched() // tasks end in another order than they start in
				}
				return run(ctx, w, p)
			})
		got, err := json.Marshal(res)
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = got
		}
		if string(got) != string(want) {
			t.Errorf("parallel %d: another result", parallel)
		}
	}
}

func TestRunResult(t *testing.T) {
	points := plan(t, kvAware(), map[string]any{"router-policy": "kv-aware"}, "kv-overlap-weight=0,8")
	var calls atomic.Int32
	run := experiment(weights)
	last := 0
	res := do(t, sweep.Config{
		Points: points, Axes: axes(t, "kv-overlap-weight=0,8"), Repeats: 8, Seed: 1,
		Progress: func(done, total int) {
			if done != last+1 || total != 32 {
				t.Errorf("progress %d of %d after %d", done, total, last)
			}
			last = done
		},
	},
		func(ctx context.Context, w *trace.Workload, p sweep.Point) (*report.Run, error) {
			calls.Add(1)
			return run(ctx, w, p)
		})
	if calls.Load() != 32 || last != 32 {
		t.Errorf("%d runs, progress to %d; want 32", calls.Load(), last)
	}
	if len(res.Runs) != 4 || len(res.Repeats) != 4 || len(res.Repeats[0]) != 8 {
		t.Fatalf("%d runs, %d points", len(res.Runs), len(res.Repeats))
	}
	for i, kind := range []string{report.KindSwept, report.KindSwept, report.KindDefault, report.KindReference} {
		r := res.Runs[i]
		if r.Kind != kind || r.Sim != res.Repeats[i][0].Sim {
			t.Errorf("run %d: kind %s, or not that of the trace itself", i, r.Kind)
		}
		iv, ok := r.Intervals["ttft_mean_us"]
		if m := r.Sim.TTFT.Mean; !ok || iv.Low >= m || iv.High <= m || math.Abs((iv.High-m)-(m-iv.Low)) > 1e-6 {
			t.Errorf("run %d: mean %v, interval %+v", i, m, iv)
		}
	}
	if diff := cmp.Diff(map[string]any{"router-policy": "kv-aware", "kv-overlap-weight": 8.0}, res.Runs[1].Flags); diff != "" {
		t.Error(diff)
	}
	rec := res.Recommendation
	// Weight 8 has factor 0.7 on any traffic: the gain is 30 % and has no noise, however the traffic varies.
	if rec == nil || math.Abs(rec.Gain-0.3) > 1e-9 || math.Abs(*rec.Low-0.3) > 1e-9 || math.Abs(*rec.High-0.3) > 1e-9 || rec.Verdict != report.VerdictBetter || rec.Metric != "ttft_mean_us" {
		t.Fatalf("recommendation %+v", rec)
	}
	if diff := cmp.Diff(map[string]any{"router-policy": "kv-aware", "kv-overlap-weight": 8.0}, rec.Flags); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(report.Sweep{Axes: []report.Axis{{Flag: "kv-overlap-weight", Values: []any{0.0, 8.0}}}, Repeats: 8}, res.Sweep); diff != "" {
		t.Error(diff)
	}
}

// No interval reaches beyond what its metric can be.
func TestIntervalsStayInRange(t *testing.T) {
	res := do(t, sweep.Config{Points: plan(t, kvAware(), nil, "kv-overlap-weight=1"), Repeats: 5, Seed: 1},
		func(_ context.Context, w *trace.Workload, p sweep.Point) (*report.Run, error) {
			last := w.Requests[len(w.Requests)-1].Output // 4 in the trace itself
			spread := math.Abs(float64(last-4)) / 7
			return &report.Run{
				HitBlocks: 1, HitRate: 1 - spread/5, TokenHitRate: 1 - spread/5, MissBlocksPerWorker: []int64{1},
				RequestsPerWorker: []int64{1}, Imbalance: 1 + spread/10,
			}, nil
		})
	for field, least := range map[string]float64{"hit_rate": 0, "token_hit_rate": 0, "balanced_hit_rate": 0, "imbalance": 1} {
		iv, ok := res.Runs[0].Intervals[field]
		if !ok || iv.Low < least || iv.Low >= iv.High || field != "imbalance" && iv.High > 1 {
			t.Errorf("%s: interval %+v, want one within its range", field, iv)
		}
	}
}

// TestResamplesAreShared: all points see the same traffic in a repeat, other traffic in the next, and
// the trace itself in the first.
func TestResamplesAreShared(t *testing.T) {
	w := traffic(t, 60)
	points := plan(t, kvAware(), nil, "kv-overlap-weight=0,1,2")
	type seen struct{ sum, n int64 }
	res, err := sweep.Run(context.Background(), w, sweep.Config{Points: points, Repeats: 5, Seed: 9}, func(_ context.Context, w *trace.Workload, p sweep.Point) (*report.Run, error) {
		var sum int64
		for i := range w.Requests {
			sum += w.Requests[i].Output * int64(i)
		}
		return &report.Run{HitBlocks: sum, PredictedHitBlocks: int64(len(w.Requests))}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var first []seen
	for rep := range 5 {
		r := res.Repeats[0][rep]
		first = append(first, seen{r.HitBlocks, r.PredictedHitBlocks})
		for i := range points {
			if r := res.Repeats[i][rep]; (seen{r.HitBlocks, r.PredictedHitBlocks}) != first[rep] {
				t.Errorf("point %d, repeat %d: other traffic than point 0", i, rep)
			}
		}
		if slices.Contains(first[:rep], first[rep]) {
			t.Errorf("repeat %d: traffic of an earlier one", rep)
		}
	}
	if first[0].n != int64(len(w.Requests)) {
		t.Error("the first repeat is not the trace itself")
	}
}

func TestSameExperimentRunsOnce(t *testing.T) {
	points := plan(t, score.Defaults(), nil, "router-policy=round-robin,kv-aware", "kv-overlap-weight=1,2,4")
	if len(points) != 7 {
		t.Fatalf("%d points, want 6 and the default: %v", len(points), names(points))
	}
	var calls atomic.Int32
	res := do(t, sweep.Config{Points: points, Repeats: 1}, func(_ context.Context, _ *trace.Workload, p sweep.Point) (*report.Run, error) {
		calls.Add(1)
		return &report.Run{Policy: p.Config.Policy}, nil
	})
	if calls.Load() != 5 {
		t.Errorf("%d runs, want 5: round-robin reads no weight", calls.Load())
	}
	if len(res.Runs) != 7 || res.Runs[2].Flags["kv-overlap-weight"] != 4.0 || res.Runs[2].Policy != score.RoundRobin {
		t.Errorf("every point has its run: %+v", res.Runs)
	}
}

func TestRecommendation(t *testing.T) {
	// noise moves a point's result by how the traffic's requests fall, independently of the mean.
	noise := func(w *trace.Workload, size float64) float64 {
		h := 0
		for i := range w.Requests {
			h = (h*31 + int(w.Requests[i].Output)) % 1009
		}
		return size * (float64(h)/1009 - 0.5)
	}
	for _, c := range []struct {
		name    string
		repeats int
		factor  func(p *sweep.Point, w *trace.Workload) float64
		verdict string
		policy  string
	}{
		{"a real gain", 12, weights, report.VerdictBetter, score.KVAware},
		{"the default is best", 12, func(p *sweep.Point, _ *trace.Workload) float64 {
			if p.Config.Policy == score.LeastWork {
				return 1
			}
			return 2
		}, report.VerdictDefault, score.LeastWork},
		{"all alike", 12, func(*sweep.Point, *trace.Workload) float64 { return 1 }, report.VerdictDefault, score.LeastWork},
		{"noise only", 12, func(p *sweep.Point, w *trace.Workload) float64 {
			if p.Config.Policy == score.KVAware && p.Config.OverlapWeight == 8 {
				return 0.999 + noise(w, 0.2)
			}
			return 1 + math.Abs(noise(w, 0.2))
		}, report.VerdictNoise, score.KVAware},
		{"one repeat says nothing about noise", 1, weights, report.VerdictOnce, score.KVAware},
		{"nor do two", 2, weights, report.VerdictOnce, score.KVAware},
	} {
		t.Run(c.name, func(t *testing.T) {
			points := plan(t, kvAware(), nil, "kv-overlap-weight=0,4,8")
			rec := do(t, sweep.Config{Points: points, Repeats: c.repeats, Seed: 5}, experiment(c.factor)).Recommendation
			if rec == nil || rec.Verdict != c.verdict || rec.Flags["router-policy"] != c.policy {
				t.Fatalf("got %+v, want %q for %s", rec, c.verdict, c.policy)
			}
			if c.verdict == report.VerdictOnce {
				if rec.Low != nil || rec.High != nil {
					t.Error("an interval out of nothing")
				}
				return
			}
			if !(*rec.Low <= rec.Gain && rec.Gain <= *rec.High) {
				t.Errorf("gain %v outside of %v..%v", rec.Gain, *rec.Low, *rec.High)
			}
			if (c.verdict == report.VerdictNoise) != (*rec.Low <= 0 && *rec.High > 0) {
				t.Errorf("%s with %v..%v", rec.Verdict, *rec.Low, *rec.High)
			}
		})
	}
}

// TestRecommendationOverFleets: with several fleets a setting's gain is the mean over them, each against
// its own default, so that more workers are no recommendation.
func TestRecommendationOverFleets(t *testing.T) {
	points := plan(t, kvAware(), nil, "workers=2,8", "kv-overlap-weight=1,2")
	res := do(t, sweep.Config{Points: points, Repeats: 3, Seed: 5}, experiment(func(p *sweep.Point, _ *trace.Workload) float64 {
		base := 1 / float64(p.Int("workers", 1))
		switch {
		case p.Config.Policy == score.KVAware && p.Config.OverlapWeight == 1 && p.Int("workers", 0) == 2:
			return base * 0.5 // best anywhere, but
		case p.Config.Policy == score.KVAware && p.Config.OverlapWeight == 1:
			return base * 1.2
		case p.Config.Policy == score.KVAware:
			return base * 0.6 // good everywhere
		}
		return base
	}))
	rec := res.Recommendation
	if rec == nil || rec.Flags["kv-overlap-weight"] != 2.0 || math.Abs(rec.Gain-0.4) > 1e-9 || rec.Flags["workers"] != nil {
		t.Errorf("recommendation %+v, want weight 2 with a gain of 40 %%", rec)
	}
}

func TestReplayMetric(t *testing.T) {
	points := plan(t, kvAware(), nil, "kv-overlap-weight=1,20")
	run := func(_ context.Context, _ *trace.Workload, p sweep.Point) (*report.Run, error) {
		r := &report.Run{HitBlocks: 60, HitRate: 0.6, Imbalance: 1.1, MissBlocksPerWorker: []int64{20, 20}}
		if p.Config.Policy == score.KVAware {
			r.HitBlocks, r.HitRate, r.Imbalance, r.MissBlocksPerWorker = 70, 0.7, 2, []int64{30, 0} // all hits there are, on one worker
		}
		if p.Config.Policy == score.KVAware && p.Config.OverlapWeight == 1 {
			r.HitBlocks, r.HitRate, r.Imbalance, r.MissBlocksPerWorker = 66, 0.66, 1.1, []int64{16, 18}
		}
		return r, nil
	}
	rec := do(t, sweep.Config{Points: points, Repeats: 3}, run).Recommendation
	if rec == nil || rec.Metric != "busiest_miss_blocks" || rec.Flags["kv-overlap-weight"] != 1.0 || math.Abs(rec.Gain-0.1) > 1e-9 {
		t.Errorf("recommendation %+v", rec)
	}
	rec = do(t, sweep.Config{Points: points, Repeats: 3, Metric: "hit_rate"}, run).Recommendation
	if rec == nil || rec.Flags["kv-overlap-weight"] != 20.0 {
		t.Errorf("by hit rate alone: %+v", rec)
	}
	if rec := do(t, sweep.Config{Points: points, Repeats: 3, Metric: "ttft_mean"}, run).Recommendation; rec != nil {
		t.Errorf("a replay knows no times, yet %+v", rec)
	}
	if _, err := sweep.Run(context.Background(), traffic(t, 5), sweep.Config{Points: points, Repeats: 1, Metric: "tttf"}, run); !errors.Is(err, report.ErrUnknownMetric) {
		t.Errorf("unknown metric: %v", err)
	}
}

func TestErrors(t *testing.T) {
	points := plan(t, kvAware(), nil, "kv-overlap-weight=0,1,2,4,8")
	boom := errors.New("boom")
	for _, parallel := range []int{1, 4} {
		var calls atomic.Int32
		_, err := sweep.Run(context.Background(), traffic(t, 20), sweep.Config{Points: points, Repeats: 50, Parallel: parallel},
			func(_ context.Context, _ *trace.Workload, p sweep.Point) (*report.Run, error) {
				calls.Add(1)
				if w := p.Config.OverlapWeight; p.Config.Policy == score.KVAware && w >= 2 {
					for range int(16 - w) {
						runtime.Gosched() // the later of them fail first
					}
					return nil, fmt.Errorf("%w at %v", boom, w)
				}
				return &report.Run{}, nil
			})
		if !errors.Is(err, boom) || !strings.Contains(err.Error(), "sweep point kv-overlap-weight=2") {
			t.Errorf("parallel %d: error %v, want that of the first point that fails", parallel, err)
		}
		if calls.Load() > 20 {
			t.Errorf("parallel %d: %d runs after the error", parallel, calls.Load())
		}
	}
	if _, err := sweep.Run(context.Background(), traffic(t, 20), sweep.Config{Points: points, Repeats: 1},
		func(context.Context, *trace.Workload, sweep.Point) (*report.Run, error) { return nil, nil }); err == nil {
		t.Error("no result and no error: taken")
	}
	for _, cfg := range []sweep.Config{{Repeats: 1}, {Points: points}} {
		if _, err := sweep.Run(context.Background(), traffic(t, 20), cfg, experiment(weights)); err == nil {
			t.Errorf("%d points, %d repeats: no error", len(cfg.Points), cfg.Repeats)
		}
	}
}

func TestCancel(t *testing.T) {
	points := plan(t, kvAware(), nil, "kv-overlap-weight=0,1,2,4,8")
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := errors.New("stop")
	var calls atomic.Int32
	_, err := sweep.Run(ctx, traffic(t, 20), sweep.Config{Points: points, Repeats: 100}, func(ctx context.Context, _ *trace.Workload, _ sweep.Point) (*report.Run, error) {
		if calls.Add(1) >= 3 {
			cancel(stop)
		}
		return &report.Run{}, context.Cause(ctx)
	})
	if !errors.Is(err, stop) {
		t.Errorf("error %v, want the cause", err)
	}
	if n := calls.Load(); n > 2+int32(runtime.GOMAXPROCS(0)) {
		t.Errorf("%d runs after the end", n)
	}
}
