package report

import (
	"errors"
	"fmt"
	"strings"
)

// Unit is what a metric is counted in.
type Unit string

// The units.
const (
	Micros Unit = "us"
	Share  Unit = "share" // 0 to 1, printed in percent
	Factor Unit = "factor"
	Count  Unit = "count"
	Rate   Unit = "tokens_per_s"
)

// Direction says which way a metric is better.
type Direction int

// The directions.
const (
	Neither Direction = iota
	Lower
	Higher
)

// Metric is a number every run, or every simulated run, has.
type Metric struct {
	Name   string // as in --fail-if: ttft_p99
	Field  string // as in results, with its unit: ttft_p99_us
	Title  string // as on axes and in prose: "TTFT p99"
	Unit   Unit
	Better Direction
	Sim    bool // known in simulations only
	value  func(*Run) (float64, bool)
}

// Value returns the metric of a run; false where the run does not know it.
func (m *Metric) Value(r *Run) (float64, bool) {
	if m.Sim && r.Sim == nil {
		return 0, false
	}
	return m.value(r)
}

// The metrics that sweeps and plots ask for by name.
const (
	MeanTTFT     = "ttft_mean"
	P90TTFT      = "ttft_p90"
	HitRate      = "hit_rate"
	BusiestMiss  = "busiest_miss_blocks"
	BalancedHits = "balanced_hit_rate"
	ImbalanceOf  = "imbalance"
)

// DefaultMetric is what a recommendation goes by unless asked otherwise: mean TTFT in simulations, the
// miss blocks of the busiest worker where there is no clock.
func DefaultMetric(sim bool) string {
	if sim {
		return MeanTTFT
	}
	return BusiestMiss
}

func counted(n int64) (float64, bool) { return float64(n), true }

// blocksKnown tells a run over traffic without blocks, whose rates mean nothing, from one without hits.
func blocksKnown(r *Run) bool {
	n := r.HitBlocks
	for _, m := range r.MissBlocksPerWorker {
		n += m
	}
	return n > 0
}

func makeMetrics() []Metric {
	ms := []Metric{
		{
			Name: HitRate, Title: "hit rate", Unit: Share, Better: Higher,
			value: func(r *Run) (float64, bool) { return r.HitRate, blocksKnown(r) },
		},
		{
			Name: "token_hit_rate", Title: "token hit rate", Unit: Share, Better: Higher,
			value: func(r *Run) (float64, bool) { return r.TokenHitRate, blocksKnown(r) },
		},
		{
			Name: "hit_blocks", Title: "hit blocks", Unit: Count, Better: Higher,
			value: func(r *Run) (float64, bool) { return counted(r.HitBlocks) },
		},
		{
			Name: "hit_tokens", Title: "hit tokens", Unit: Count, Better: Higher,
			value: func(r *Run) (float64, bool) { return counted(r.HitTokens) },
		},
		{
			Name: "predicted_hit_blocks", Title: "predicted hit blocks", Unit: Count,
			value: func(r *Run) (float64, bool) { return counted(r.PredictedHitBlocks) },
		},
		{
			Name: ImbalanceOf, Title: "imbalance", Unit: Factor, Better: Lower,
			value: func(r *Run) (float64, bool) { return r.Imbalance, r.Imbalance > 0 },
		},
		// Without a clock there is no time to compare, but work: what the busiest worker has to compute is
		// what the fleet waits for. Both hits given away and an uneven spread raise it.
		{
			Name: BusiestMiss, Title: "miss blocks of the busiest worker", Unit: Count, Better: Lower,
			value: func(r *Run) (float64, bool) {
				var most int64
				for _, n := range r.MissBlocksPerWorker {
					most = max(most, n)
				}
				return float64(most), blocksKnown(r)
			},
		},
		{
			Name: BalancedHits, Title: "hit rate / imbalance", Unit: Share, Better: Higher,
			value: func(r *Run) (float64, bool) {
				if r.Imbalance <= 0 || !blocksKnown(r) {
					return 0, false
				}
				return r.HitRate / r.Imbalance, true
			},
		},
	}
	dists := []struct {
		name, title string
		of          func(*Sim) *Dist
	}{
		{"ttft", "TTFT", func(s *Sim) *Dist { return &s.TTFT }},
		{"itl", "ITL", func(s *Sim) *Dist { return &s.ITL }},
		{"e2e", "E2E", func(s *Sim) *Dist { return &s.E2E }},
		{"queue", "queueing", func(s *Sim) *Dist { return &s.Queue }},
	}
	parts := []struct {
		name string
		of   func(*Dist) float64
	}{
		{"mean", func(d *Dist) float64 { return d.Mean }},
		{"p50", func(d *Dist) float64 { return float64(d.P50) }},
		{"p90", func(d *Dist) float64 { return float64(d.P90) }},
		{"p99", func(d *Dist) float64 { return float64(d.P99) }},
		{"max", func(d *Dist) float64 { return float64(d.Max) }},
	}
	for _, d := range dists {
		for _, p := range parts {
			ms = append(ms, Metric{
				Name: d.name + "_" + p.name, Title: d.title + " " + p.name, Unit: Micros, Better: Lower, Sim: true,
				value: func(r *Run) (float64, bool) { return p.of(d.of(r.Sim)), r.Sim.known(d.of(r.Sim)) },
			})
		}
	}
	for _, p := range parts[1:3] {
		// The rate that this share of requests reaches at least: the percentile is of the slow end, as with times.
		ms = append(ms, Metric{
			Name: "interactivity_" + p.name, Title: "interactivity " + p.name, Unit: Rate, Better: Higher, Sim: true,
			value: func(r *Run) (float64, bool) {
				itl := p.of(&r.Sim.ITL)
				return 1e6 / itl, itl > 0 && r.Sim.known(&r.Sim.ITL)
			},
		})
	}
	ms = append(ms,
		Metric{
			Name: "makespan", Title: "makespan", Unit: Micros, Better: Lower, Sim: true,
			value: func(r *Run) (float64, bool) { return counted(r.Sim.MakespanUS) },
		},
		Metric{
			Name: "peak_active_blocks", Title: "peak active blocks", Unit: Count, Better: Lower, Sim: true,
			value: func(r *Run) (float64, bool) { return counted(r.Sim.PeakActiveBlocks) },
		},
		Metric{
			Name: "preemptions", Title: "preemptions", Unit: Count, Better: Lower, Sim: true,
			value: func(r *Run) (float64, bool) { return counted(r.Sim.Preemptions) },
		},
		Metric{
			Name: "completed", Title: "completed requests", Unit: Count, Better: Higher, Sim: true,
			value: func(r *Run) (float64, bool) { return counted(r.Sim.Completed) },
		},
		Metric{
			Name: "lost", Title: "lost requests", Unit: Count, Better: Lower, Sim: true,
			value: func(r *Run) (float64, bool) { return counted(r.Sim.Lost) },
		},
		Metric{
			Name: "rejected", Title: "rejected requests", Unit: Count, Better: Lower, Sim: true,
			value: func(r *Run) (float64, bool) { return counted(r.Sim.Rejected) },
		},
	)
	for i := range ms {
		ms[i].Field = ms[i].Name
		if ms[i].Unit == Micros {
			ms[i].Field += "_us"
		}
		if ms[i].Unit == Rate {
			ms[i].Field += "_tokens_per_s"
		}
	}
	return ms
}

// metrics is the fixed table of all of them; nothing writes to it.
var metrics = makeMetrics()

// MetricNames returns the names --fail-if knows, in a fixed order.
func MetricNames() []string {
	out := make([]string, len(metrics))
	for i := range metrics {
		out[i] = metrics[i].Name
	}
	return out
}

// ErrUnknownMetric is wrapped by MetricNamed for a name that is none; a HintError carries the nearest ones.
var ErrUnknownMetric = errors.New("unknown metric")

// HintError is an error with advice on what to do about it, which Error leaves out: print it apart.
type HintError struct {
	Err  error
	Hint string
}

func (e *HintError) Error() string { return e.Err.Error() }
func (e *HintError) Unwrap() error { return e.Err }

// MetricNamed finds a metric by Name or Field.
func MetricNamed(name string) (*Metric, error) {
	for i := range metrics {
		if metrics[i].Name == name || metrics[i].Field == name {
			m := metrics[i]
			return &m, nil
		}
	}
	hint := DidYouMean(name, MetricNames())
	if hint == "" {
		hint = "one of " + strings.Join(MetricNames(), ", ")
	}
	return nil, &HintError{fmt.Errorf("%w %q", ErrUnknownMetric, name), hint}
}
