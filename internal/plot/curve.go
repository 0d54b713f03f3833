package plot

import (
	"gonum.org/v1/plot/plotter"

	"github.com/kvroute/kvroute/internal/report"
)

// curve is what one group shows of one metric: points, and bars at those whose interval is known.
type curve struct {
	pts    plotter.XYs
	barsAt plotter.XYs
	bars   plotter.YErrors
}

func (g *group) curve(m *report.Metric) curve {
	var c curve
	for i, r := range g.runs {
		v, ok := m.Value(r)
		if !ok {
			continue
		}
		at := plotter.XY{X: float64(g.at[i]) + g.shift, Y: shown(m, v)}
		c.pts = append(c.pts, at)
		if iv, ok := r.Intervals[m.Field]; ok {
			c.barsAt = append(c.barsAt, at)
			c.bars = append(c.bars, struct{ Low, High float64 }{shown(m, v-iv.Low), shown(m, iv.High-v)})
		}
	}
	return c
}

// span collects the range of values of a panel, error bars included.
type span struct {
	low, high float64
	any       bool
}

func newSpan() *span { return &span{} }

func (s *span) add(c curve) {
	for _, q := range c.pts {
		s.include(q.Y)
	}
	for i, e := range c.bars {
		s.include(c.barsAt[i].Y - e.Low)
		s.include(c.barsAt[i].Y + e.High)
	}
}

func (s *span) include(v float64) {
	if !s.any {
		s.low, s.high, s.any = v, v, true
	}
	s.low, s.high = min(s.low, v), max(s.high, v)
}

// limits starts at zero unless that would leave more than half of the plot empty.
func (s *span) limits() (low, high float64) {
	if !s.any || s.high <= 0 {
		return 0, 1
	}
	if s.low < s.high/2 {
		return 0, s.high * 1.06
	}
	pad := max((s.high-s.low)*0.1, s.high*0.01)
	return max(0, s.low-pad), s.high + pad
}
