package sweep

import (
	"math"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/kvroute/kvroute/internal/report"
)

// intervalMetrics are the metrics whose spread a sweep reports.
var intervalMetrics = []string{
	report.MeanTTFT, report.P90TTFT, "ttft_p99", "e2e_mean", report.HitRate, "token_hit_rate", report.ImbalanceOf,
	report.BusiestMiss, report.BalancedHits,
}

// margin is half the 5-95 % interval of a figure, from its values on resamples of the traffic.
//
// A resample stands to the trace as the trace stands to all traffic of its kind, so the spread of the
// resampled values is the standard error of the trace's own value: it is not divided by the number of
// resamples, and more of them make the margin better known, not smaller. Student's t accounts for
// knowing it from few. Two resamples are the least that have a spread.
func margin(resampled []float64) (float64, bool) {
	n := len(resampled)
	if n < 2 {
		return 0, false
	}
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(n - 1)}.Quantile(0.95)
	return t * stat.StdDev(resampled, nil), true
}

// intervals returns the spread of a point's metrics over its repeats, nil where it is not known. The
// interval lies around the value on the trace itself: a resample's cuts and copies can shift all levels
// alike, and such a shift is no uncertainty of the trace.
func intervals(runs []*report.Run) map[string]report.Interval {
	var out map[string]report.Interval
	for _, name := range intervalMetrics {
		m, err := report.MetricNamed(name)
		if err != nil {
			continue
		}
		values, ok := valuesOf(m, runs)
		if !ok {
			continue
		}
		half, ok := margin(values[1:])
		if !ok {
			continue
		}
		if out == nil {
			out = map[string]report.Interval{}
		}
		least, most := bounds(m)
		out[m.Field] = report.Interval{Low: max(least, values[0]-half), High: min(values[0]+half, most)}
	}
	return out
}

// bounds are what no value of a metric lies beyond, so that no interval does.
func bounds(m *report.Metric) (least, most float64) {
	switch {
	case m.Unit == report.Share:
		return 0, 1
	case m.Name == report.ImbalanceOf: // greatest over mean
		return 1, math.Inf(1)
	}
	return 0, math.Inf(1)
}

// valuesOf returns a metric of every run, false unless all know it.
func valuesOf(m *report.Metric, runs []*report.Run) ([]float64, bool) {
	out := make([]float64, len(runs))
	for i, r := range runs {
		v, ok := m.Value(r)
		if !ok || math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, false
		}
		out[i] = v
	}
	return out, true
}

// recommend finds the scorer flags with the greatest gain over the default ones, averaged over the
// fleets swept. Nil where the metric is not known.
//
// Gains are paired: both settings ran on the same traffic, so what the traffic does to both cancels.
// The interval covers what the resamples say about the gain (their mean) as well as the trace, widened
// by the margin: where the two disagree, the gain is less sure than either alone would claim.
func recommend(cfg *Config, res *Result) (*report.Recommendation, error) {
	name := cfg.Metric
	if name == "" {
		name = report.DefaultMetric(res.Repeats[0][0].Sim != nil)
	}
	m, err := report.MetricNamed(name)
	if err != nil {
		return nil, err
	}
	gains, ok := gainsOf(m, cfg.Points, res.Repeats)
	if !ok || len(gains) == 0 {
		return nil, nil
	}
	best := &gains[0] // the default: it wins ties
	for i := range gains {
		if gains[i].over[0] > best.over[0] {
			best = &gains[i]
		}
	}
	rec := &report.Recommendation{Flags: best.flags, Metric: m.Field, Gain: best.over[0], Verdict: report.VerdictDefault}
	if best == &gains[0] {
		zero, also := 0.0, 0.0
		rec.Low, rec.High = &zero, &also // the default against itself: exactly nothing
		return rec, nil
	}
	half, ok := margin(best.over[1:])
	if !ok {
		rec.Verdict = report.VerdictOnce
		return rec, nil
	}
	mean := stat.Mean(best.over[1:], nil)
	low, high := min(rec.Gain, mean)-half, max(rec.Gain, mean)+half
	rec.Low, rec.High, rec.Verdict = &low, &high, report.VerdictBetter
	if low <= 0 {
		rec.Verdict = report.VerdictNoise
	}
	return rec, nil
}

// gain is what one set of scorer flags gains over the default ones, a repeat each.
type gain struct {
	flags map[string]any
	over  []float64
}

// gainsOf returns the default flags first, with gains of zero, then every other set of scorer flags in
// the order of the points. False where a run does not know the metric, or where a gain over the
// default's value means nothing because that is zero.
func gainsOf(m *report.Metric, points []Point, runs [][]*report.Run) ([]gain, bool) {
	base := map[string][]float64{} // fleet -> the default's values
	var fleets []string
	for i := range points {
		if !isDefault(&points[i]) {
			continue
		}
		v, ok := valuesOf(m, runs[i])
		if !ok {
			return nil, false
		}
		for _, x := range v {
			if x == 0 {
				return nil, false
			}
		}
		if f := points[i].fleet(); base[f] == nil {
			base[f] = v
			fleets = append(fleets, f)
		}
	}
	if len(fleets) == 0 {
		return nil, false
	}
	sign := 1.0
	if m.Better == report.Lower {
		sign = -1
	}
	var out []gain
	place := map[string]int{}
	counted := map[string]bool{} // points seen: the same experiment counts once
	for _, pass := range []bool{true, false} {
		for i := range points {
			p := &points[i]
			if isDefault(p) != pass || counted[p.key()] {
				continue
			}
			counted[p.key()] = true
			b, ok := base[p.fleet()]
			if !ok {
				return nil, false
			}
			v, ok := valuesOf(m, runs[i])
			if !ok {
				return nil, false
			}
			id := p.scorerKey()
			at, ok := place[id]
			if !ok {
				at = len(out)
				place[id] = at
				out = append(out, gain{flags: p.paste(), over: make([]float64, len(v))})
			}
			for r := range v {
				out[at].over[r] += sign * (v[r] - b[r]) / b[r] / float64(len(fleets))
			}
		}
	}
	return out, true
}

// isDefault says whether the point runs the default scorer flags, swept or added.
func isDefault(p *Point) bool {
	d := Point{Config: defaultsLike(p.Config)}
	return p.scorerKey() == d.scorerKey()
}
