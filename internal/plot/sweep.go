package plot

import (
	"fmt"
	"image/color"
	"slices"
	"sort"
	"strings"
	"time"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/kvroute/kvroute/internal/report"
)

// swept is the axis a sweep is drawn along: its values in order, equally far apart, so that weights of
// 0, 0.25 and 20 can all be read.
type swept struct {
	flag    string
	texts   []string // the values as typed
	place   map[string]int
	ordered bool // values have an order; else they are names
}

// alongAxis picks the axis to draw along: one with an order before names, more values before fewer. Where
// the fleet is swept too it is the fleet's, unless that makes more curves than can be told apart: settings
// are compared within a fleet, and along it the policies to compare with are curves as well.
func alongAxis(s *report.Sweep) *swept {
	var scorer, fleet *swept
	settings := 1
	pick := func(best **swept, c *swept) {
		if b := *best; b == nil || (c.ordered && !b.ordered) || (c.ordered == b.ordered && len(c.texts) > len(b.texts)) {
			*best = c
		}
	}
	for _, a := range s.Axes {
		c := newSwept(a)
		if slices.Contains(report.ScorerFlags(), a.Flag) {
			settings *= len(a.Values)
			pick(&scorer, c)
		} else {
			pick(&fleet, c)
		}
	}
	switch {
	case scorer == nil:
		return fleet
	case fleet == nil, len(fleet.texts) < 2, len(scorer.texts) > 1 && settings > maxSeries:
		return scorer
	}
	return fleet
}

func newSwept(a report.Axis) *swept {
	s := &swept{flag: a.Flag, place: map[string]int{}, ordered: true}
	type item struct {
		text string
		size float64
	}
	var items []item
	for _, v := range a.Values {
		it := item{text: report.FlagValue(v)}
		switch v := v.(type) {
		case float64:
			it.size = v
		case int64:
			it.size = float64(v)
		case int:
			it.size = float64(v)
		case string:
			d, err := time.ParseDuration(v)
			s.ordered = s.ordered && err == nil
			it.size = float64(d)
		default:
			s.ordered = false
		}
		items = append(items, it)
	}
	if s.ordered {
		sort.SliceStable(items, func(i, j int) bool { return items[i].size < items[j].size })
	}
	for i, it := range items {
		s.place[it.text] = i
		s.texts = append(s.texts, it.text)
	}
	return s
}

// at returns the place of a run on the axis.
func (s *swept) at(r *report.Run) (int, bool) {
	v, ok := r.Flags[s.flag]
	if !ok {
		return 0, false
	}
	i, ok := s.place[report.FlagValue(v)]
	return i, ok
}

// group is the runs of one curve: equal in everything but the axis.
type group struct {
	label string
	runs  []*report.Run
	at    []int // places on the axis, beside runs
	color color.NRGBA
	glyph draw.GlyphDrawer
	shift float64 // along the axis, so that the bars of several curves stand beside each other
}

// groups sorts the swept runs into curves, in the order they first appear; and the runs added for
// comparison into references: a policy each.
func groups(d *report.Document, axis *swept) (curves, refs []group) {
	var others []string
	for _, a := range d.Sweep.Axes {
		if a.Flag != axis.flag {
			others = append(others, a.Flag)
		}
	}
	place := map[string]int{}
	for i := range d.Runs {
		r := &d.Runs[i]
		at, onAxis := axis.at(r)
		if r.Kind == report.KindDefault || r.Kind == report.KindReference {
			k := slices.IndexFunc(refs, func(g group) bool { return g.label == r.Policy })
			if k < 0 {
				k = len(refs)
				refs = append(refs, group{label: r.Policy, color: refColor(r.Policy), glyph: refGlyph(r.Policy)})
			}
			if !onAxis {
				at = -1
			}
			refs[k].runs, refs[k].at = append(refs[k].runs, r), append(refs[k].at, at)
			continue
		}
		if !onAxis {
			continue
		}
		var parts []string
		for _, f := range others {
			if v, ok := r.Flags[f]; ok {
				parts = append(parts, short(f)+" "+report.FlagValue(v))
			}
		}
		label := strings.Join(parts, ", ")
		if label == "" {
			label = r.Policy
			if axis.flag == "router-policy" {
				label = "swept"
			}
		}
		k, ok := place[label]
		if !ok {
			k = len(curves)
			place[label] = k
			curves = append(curves, group{label: label})
		}
		curves[k].runs, curves[k].at = append(curves[k].runs, r), append(curves[k].at, at)
	}
	for k := range curves {
		g := &curves[k]
		order := make([]int, len(g.runs))
		for i := range order {
			order[i] = i
		}
		sort.SliceStable(order, func(i, j int) bool { return g.at[order[i]] < g.at[order[j]] })
		runs, at := g.runs, g.at
		g.runs, g.at = nil, nil
		for _, i := range order {
			g.runs, g.at = append(g.runs, runs[i]), append(g.at, at[i])
		}
	}
	return curves, refs
}

// refColor keeps the two policies that are compared with in the same colours on every plot.
func refColor(policy string) color.NRGBA {
	if policy == "round-robin" {
		return orange
	}
	return green
}

func refGlyph(policy string) draw.GlyphDrawer {
	if policy == "round-robin" {
		return draw.BoxGlyph{}
	}
	return draw.PyramidGlyph{}
}

// short names a flag in a legend.
func short(flag string) string {
	switch flag {
	case "router-policy":
		return ""
	case "kv-overlap-weight":
		return "weight"
	}
	return strings.TrimPrefix(flag, "kv-")
}

// best keeps the maxSeries curves with the best value of a metric anywhere, and colours them.
func best(curves []group, m *report.Metric) (kept []group, dropped int) {
	rank := func(g *group) (float64, bool) {
		found := false
		var top float64
		for _, r := range g.runs {
			if v, ok := m.Value(r); ok && (!found || (m.Better == report.Higher) == (v > top)) {
				top, found = v, true
			}
		}
		return top, found
	}
	order := make([]int, len(curves))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool {
		a, aok := rank(&curves[order[i]])
		b, bok := rank(&curves[order[j]])
		if aok != bok {
			return aok
		}
		if m.Better == report.Higher {
			return a > b
		}
		return a < b
	})
	order = order[:min(len(order), maxSeries)]
	slices.Sort(order)
	for n, i := range order {
		g := curves[i]
		g.color, g.glyph = series[n%len(series)], glyphs[n%len(glyphs)]
		g.shift = 0.07 * (float64(n) - float64(len(order)-1)/2)
		kept = append(kept, g)
	}
	return kept, len(curves) - len(kept)
}

// shown returns a metric in the unit plots use: percent, ms, or as it is.
func shown(m *report.Metric, v float64) float64 {
	switch m.Unit {
	case report.Share:
		return v * 100
	case report.Micros:
		return v / 1000
	}
	return v
}

// withErrors and flipped are what plotter.NewYErrorBars and NewXErrorBars take.
type withErrors struct {
	plotter.XYs
	plotter.YErrors
}

type flipped struct {
	plotter.XYs
	plotter.XErrors
}

// part is one metric of a panel with what tells its curves from the others'.
type part struct {
	metric *report.Metric
	name   string // beside the group's label in the legend; "" where the panel has one metric
	dashes []vg.Length
}

// against draws metrics over the swept values: curves for what was swept, lines across for what was
// added to compare with.
func against(d *report.Document, axis *swept, id, title, yLabel string, parts []part) (panel, error) {
	curves, refs := groups(d, axis)
	curves, dropped := best(curves, parts[0].metric)
	out := panel{id: id, title: title, plot: newPlot("--"+axis.flag, yLabel)}
	if dropped > 0 {
		out.note = fmt.Sprintf("the %d best of %d settings", len(curves), len(curves)+dropped)
	}
	if axis.ordered {
		out.plot.X.Tick.Marker = named{axis.texts, 70}
		out.plot.X.Min, out.plot.X.Max = -0.3, float64(len(axis.texts))-0.7
	} else {
		names := slices.Clone(axis.texts)
		slices.Reverse(names)
		out.plot = newPlot(yLabel, "")
		out.plot.Y.Tick.Marker = named{names, 0}
		out.plot.Y.Min, out.plot.Y.Max = -0.5, float64(len(names))-0.5
	}
	span := newSpan()
	bars := false
	for _, part := range parts {
		for i := range curves {
			g := &curves[i]
			c := g.curve(part.metric)
			if len(c.pts) == 0 {
				continue
			}
			bars = bars || len(c.bars) > 0
			span.add(c)
			if err := out.addCurve(g, c, part, axis, len(curves) > 1); err != nil {
				return out, err
			}
		}
		for i := range refs {
			if err := out.addReference(&refs[i], part, axis, span); err != nil {
				return out, err
			}
		}
	}
	low, high := span.limits()
	if parts[0].metric.Unit == report.Factor { // never below 1
		low, high = 1-0.03*max(high-1, 0.05), max(high, 1.05)
	}
	if axis.ordered {
		out.plot.Y.Min, out.plot.Y.Max = low, high
	} else {
		out.plot.X.Min, out.plot.X.Max = low, high
	}
	if bars {
		out.note = strings.TrimPrefix(out.note+"; bars: 5-95 % over resampled traffic", "; ")
	}
	return out, nil
}

// legendName joins a group's label and a part's name.
func legendName(label, part string) string {
	switch {
	case part == "":
		return label
	case label == "":
		return part
	}
	return label + ", " + part
}

func (p *panel) addCurve(g *group, c curve, part part, axis *swept, several bool) error {
	label := legendName(strings.TrimSpace(g.label), part.name)
	if !axis.ordered && !several {
		label = part.name
		if label == "" {
			label = part.metric.Title
		}
	}
	glyph := draw.GlyphStyle{Color: g.color, Radius: vg.Points(3.4), Shape: g.glyph}
	if part.dashes != nil && !several {
		glyph.Shape = draw.PyramidGlyph{}
	}
	if !axis.ordered { // names: rows of dots, nothing to join
		n := float64(len(axis.texts) - 1)
		flip := func(from plotter.XYs) plotter.XYs {
			to := make(plotter.XYs, len(from))
			for i, q := range from {
				to[i] = plotter.XY{X: q.Y, Y: n - q.X}
			}
			return to
		}
		if len(c.bars) > 0 {
			bars, err := plotter.NewXErrorBars(flipped{flip(c.barsAt), plotter.XErrors(c.bars)})
			if err != nil {
				return err
			}
			bars.LineStyle = draw.LineStyle{Color: g.color, Width: vg.Points(1)}
			p.plot.Add(bars)
		}
		dots, err := plotter.NewScatter(flip(c.pts))
		if err != nil {
			return err
		}
		dots.GlyphStyle = glyph
		p.plot.Add(dots)
		p.explain(label, mark{glyph})
		return nil
	}
	if len(c.bars) > 0 {
		bars, err := plotter.NewYErrorBars(withErrors{c.barsAt, c.bars})
		if err != nil {
			return err
		}
		bars.LineStyle = draw.LineStyle{Color: g.color, Width: vg.Points(1)}
		p.plot.Add(bars)
	}
	line, dots, err := plotter.NewLinePoints(c.pts)
	if err != nil {
		return err
	}
	line.LineStyle, dots.GlyphStyle = lineStyle(g.color, part.dashes), glyph
	p.plot.Add(line, dots)
	p.explain(label, line, mark{glyph})
	return nil
}

// addReference draws what was added to compare with: a curve where the fleet was swept, a line across
// where there is one run, and nothing where several fleets share the plot without being its axis.
func (p *panel) addReference(g *group, part part, axis *swept, span *span) error {
	style := draw.LineStyle{Color: g.color, Width: vg.Points(1.2), Dashes: part.dashes}
	if part.dashes == nil {
		style.Dashes = dotted
	}
	c := g.curve(part.metric)
	if len(c.pts) == 0 {
		return nil
	}
	label := legendName(g.label, part.name)
	if g.at[0] < 0 {
		if len(c.pts) != 1 {
			return nil
		}
		l := &level{at: c.pts[0].Y, vertical: !axis.ordered, style: style}
		c.bars = nil // no bars on lines across
		span.add(c)
		p.plot.Add(l)
		p.explain(label, l)
		return nil
	}
	if !axis.ordered || hasDuplicates(g.at) {
		return nil
	}
	sort.Sort(byX(c.pts))
	line, err := plotter.NewLine(c.pts)
	if err != nil {
		return err
	}
	line.LineStyle = style
	c.bars = nil
	span.add(c)
	p.plot.Add(line)
	p.explain(label, line)
	return nil
}

type byX plotter.XYs

func (p byX) Len() int           { return len(p) }
func (p byX) Less(i, j int) bool { return p[i].X < p[j].X }
func (p byX) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }

func hasDuplicates(at []int) bool {
	sorted := slices.Sorted(slices.Values(at))
	return len(slices.Compact(sorted)) != len(at)
}
