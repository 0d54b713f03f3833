package plot

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/kvroute/kvroute/internal/report"
)

// tradeoff draws hits over imbalance, a dot a run: up and to the left is better.
func tradeoff(d *report.Document, axis *swept) (panel, bool, error) {
	hits, err := report.MetricNamed(report.HitRate)
	if err != nil {
		return panel{}, false, err
	}
	uneven, err := report.MetricNamed(report.ImbalanceOf)
	if err != nil {
		return panel{}, false, err
	}
	out := panel{
		id: "tradeoff", title: "Hits against spread", note: "up and to the left is better",
		plot: newPlot("requests of the busiest worker / mean", "hit rate (% of blocks)"),
	}
	curves, refs := groups(d, axis)
	curves, dropped := best(curves, hits)
	if dropped > 0 {
		out.note += "; best settings only"
	}
	names := &placed{style: textStyle(9, ink)}
	xs, ys := newSpan(), newSpan()
	for _, g := range slices.Concat(curves, refs) {
		var pts plotter.XYs
		for i, r := range g.runs {
			y, ok := hits.Value(r)
			x, okx := uneven.Value(r)
			if !ok || !okx {
				continue
			}
			pts = append(pts, plotter.XY{X: x, Y: y * 100})
			xs.include(x)
			ys.include(y * 100)
			name := ""
			if end := i == 0 || i == len(g.runs)-1; g.at[i] >= 0 && (end || len(curves) == 1) && (end || len(curves) <= 3) && g.color != refColor(g.label) {
				name = axis.texts[g.at[i]]
			}
			names.add(x, y*100, name)
		}
		if len(pts) == 0 {
			continue
		}
		dots, err := plotter.NewScatter(pts)
		if err != nil {
			return out, false, err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: g.color, Radius: vg.Points(3.4), Shape: g.glyph}
		if n := len(curves); axis.ordered && len(pts) > 1 && 1 < n && n <= 3 && g.color != refColor(g.label) {
			// Names would be too many: the way from the least to the greatest value, named at its ends.
			line, err := plotter.NewLine(pts)
			if err != nil {
				return out, false, err
			}
			line.LineStyle = draw.LineStyle{Color: g.color, Width: vg.Points(0.6)}
			out.plot.Add(line)
		}
		out.plot.Add(dots)
		label := g.label
		if label == "swept" {
			label = "swept policies"
		}
		out.explain(label, mark{dots.GlyphStyle})
	}
	if !ys.any {
		return out, false, nil
	}
	if d.Trace.Blocks > 0 && d.Trace.CeilingHitBlocks > 0 {
		l := &level{at: 100 * report.Ratio(d.Trace.CeilingHitBlocks, d.Trace.Blocks), style: draw.LineStyle{Color: muted, Width: vg.Points(1), Dashes: dashed}}
		ys.include(l.at)
		names.lines = append(names.lines, l.at)
		out.plot.Add(l)
		out.explain("one cache without limit", l)
	}
	out.plot.Add(names)
	out.plot.Y.Min, out.plot.Y.Max = ys.limits()
	pad := max((xs.high-1)*0.08, 0.01)
	out.plot.X.Min, out.plot.X.Max = 1-pad, xs.high+2*pad // names stand to the right of their dots
	return out, true, nil
}

// distribution draws the share of requests that had their first token within a time, a curve a run.
func distribution(runs []*report.Run, labels []string, colors []color.NRGBA) (panel, bool, error) {
	out := panel{id: "cdf", title: "Distribution of the time to first token", plot: newPlot("TTFT (ms)", "requests that had it by then (%)")}
	low, high := math.Inf(1), 0.0
	styles := [][]vg.Length{solid, dashed, mixed, dotted}
	n := 0
	for i, r := range runs {
		if len(r.TTFTCurve) < 2 {
			continue
		}
		pts := make(plotter.XYs, len(r.TTFTCurve))
		for k, us := range r.TTFTCurve {
			x := max(float64(us)/1000, 0.001) // a logarithmic axis has no zero; 1 µs is the least time there is
			pts[k] = plotter.XY{X: x, Y: 100 * float64(k) / float64(len(r.TTFTCurve)-1)}
			if k >= len(pts)/100 { // the least of a hundred may lie far away: a request with every block cached
				low = min(low, x)
			}
			high = max(high, x)
		}
		line, err := plotter.NewLine(pts)
		if err != nil {
			return out, false, err
		}
		line.LineStyle = lineStyle(colors[i], styles[n%len(styles)])
		out.plot.Add(line)
		out.explain(labels[i], line)
		n++
	}
	if n == 0 {
		return out, false, nil
	}
	if high <= low {
		low, high = low/2, high*2
	}
	out.plot.X.Scale = plot.LogScale{}
	out.plot.X.Tick.Marker = decades{}
	out.plot.X.Min, out.plot.X.Max = low, high
	out.plot.Y.Min, out.plot.Y.Max = 0, 100
	return out, true, nil
}

// perWorker draws one count a worker as bars, with their mean as a line.
func perWorker(id, title, yLabel string, counts []int64, pools []report.Pool, c color.NRGBA) (panel, error) {
	out := panel{id: id, title: title, plot: newPlot("worker", yLabel)}
	values := make(plotter.Values, len(counts))
	names := make([]string, len(counts))
	var most float64
	for i, n := range counts {
		values[i], names[i] = float64(n), report.FlagValue(i)
		most = max(most, values[i])
	}
	room := float64(panelWidth) - 100
	bars, err := plotter.NewBarChart(values, vg.Length(min(40, 0.7*room/float64(len(counts)))))
	if err != nil {
		return out, err
	}
	bars.Color, bars.LineStyle.Width = c, 0
	out.plot.Add(bars)
	for i, p := range pools {
		mean := &level{style: draw.LineStyle{Color: ink, Width: vg.Points(1.2), Dashes: dashed}}
		for _, v := range values[p.From:p.To] {
			mean.at += v / float64(p.To-p.From)
		}
		if len(pools) > 1 {
			mean.from, mean.to = float64(p.From)-0.5, float64(p.To)-0.5
			out.note = strings.TrimPrefix(fmt.Sprintf("%s, %d to %d %s", out.note, p.From, p.To-1, p.Role), ", ")
		}
		out.plot.Add(mean)
		if i == 0 {
			out.explain("mean", mean)
		}
	}
	out.plot.X.Tick.Marker = named{names, 70}
	out.plot.X.Min, out.plot.X.Max = -0.6, float64(len(counts))-0.4
	out.plot.Y.Min, out.plot.Y.Max = 0, max(most*1.06, 1)
	return out, nil
}
