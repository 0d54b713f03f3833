package plot

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Fit is a plane y = A + B·R + C·T with the observations that it was fitted to.
type Fit struct {
	Title, Note string
	Paste       string // flags; "" none
	A, B, C     float64
	Points      []FitPoint
}

// FitPoint is one observation.
type FitPoint struct {
	AtNS             int64
	Step             float64 // s
	Requests, Tokens float64
	Kept             bool
}

func (f *Fit) at(r, t float64) float64 { return f.A + float64(f.B*r) + float64(f.C*t) }

// maxDots is how many observations are drawn; of more, evenly chosen ones.
const maxDots = 4000

// WriteFit draws a fit in a format of Formats: measured against fitted steps, what is left over time, and the two
// slices of the plane.
func WriteFit(w io.Writer, format string, f *Fit) error {
	s, err := f.sheet()
	if err != nil {
		return fmt.Errorf("drawing the plot: %w", err)
	}
	return s.write(w, format, func() error {
		return writePage(w, s, map[string]any{"Paste": f.Paste, "Heading": "Flags to paste"})
	})
}

// typical are the means over the observations kept.
func (f *Fit) typical() (r, t float64) {
	n := 0
	for _, p := range f.Points {
		if p.Kept {
			r, t, n = r+p.Requests, t+p.Tokens, n+1
		}
	}
	return r / float64(n), t / float64(n)
}

func (f *Fit) sheet() (*sheet, error) {
	if len(f.Points) == 0 || math.IsNaN(f.at(1, 1)) || math.IsInf(f.at(1, 1), 0) {
		return nil, errors.New("no fit to draw")
	}
	g := *f
	if step := (len(f.Points) + maxDots - 1) / maxDots; step > 1 {
		g.Points = nil
		for i := 0; i < len(f.Points); i += step {
			g.Points = append(g.Points, f.Points[i])
		}
	}
	r, t := f.typical()
	if math.IsNaN(r) {
		return nil, errors.New("no fit to draw")
	}
	start := f.Points[0].AtNS
	fitted := func(p FitPoint) float64 { return 1e3 * g.at(p.Requests, p.Tokens) }
	s := &sheet{title: f.Title, note: f.Note}
	for _, v := range []struct {
		id, title, note, x, y string
		line                  func(x float64) float64 // nil: level at 0
		at                    func(p FitPoint) plotter.XY
	}{
		{
			"fit", "Measured against fitted", "on the line both are equal", "fitted step (ms)", "measured step (ms)",
			func(x float64) float64 { return x },
			func(p FitPoint) plotter.XY { return plotter.XY{X: fitted(p), Y: 1e3 * p.Step} },
		},
		{
			"residuals", "What is left, over time", "a drift or steps: something else changed", "time (min)", "measured - fitted (ms)",
			func(float64) float64 { return 0 },
			func(p FitPoint) plotter.XY {
				return plotter.XY{X: float64(p.AtNS-start) / 60e9, Y: float64(1e3*p.Step) - fitted(p)}
			},
		},
		{
			"requests", "Step over requests", fmt.Sprintf("moved along the plane to %s tokens; slope %.3g ms a request", thousands(fmt.Sprintf("%.0f", t)), 1e3*f.B),
			"requests of the busiest rank", "step (ms)",
			func(x float64) float64 { return 1e3 * f.at(x, t) },
			func(p FitPoint) plotter.XY {
				return plotter.XY{X: p.Requests, Y: 1e3 * (p.Step - float64(f.C*(p.Tokens-t)))}
			},
		},
		{
			"tokens", "Step over tokens", fmt.Sprintf("moved along the plane to %.2f requests; slope %.3g ms a million tokens", r, 1e9*f.C),
			"tokens of the busiest rank (thousands)", "step (ms)",
			func(x float64) float64 { return 1e3 * f.at(r, 1e3*x) },
			func(p FitPoint) plotter.XY {
				return plotter.XY{X: p.Tokens / 1e3, Y: 1e3 * (p.Step - float64(f.B*(p.Requests-r)))}
			},
		},
	} {
		p := panel{id: v.id, title: v.title, note: v.note, plot: newPlot(v.x, v.y)}
		if err := p.cloud(g.Points, v.at, v.line); err != nil {
			return nil, err
		}
		s.panels = append(s.panels, p)
	}
	return s, nil
}

// cloud draws observations and the line that the plane is there. What was left out is drawn only as far as it lies
// near the others.
func (p *panel) cloud(points []FitPoint, at func(FitPoint) plotter.XY, line func(float64) float64) error {
	xs, ys := newSpan(), newSpan()
	for _, q := range points {
		if q.Kept {
			v := at(q)
			xs.include(v.X)
			ys.include(v.Y)
		}
	}
	padX, padY := max(0.04*(xs.high-xs.low), 1e-9), max(0.15*(ys.high-ys.low), 1e-9)
	p.plot.X.Min, p.plot.X.Max = xs.low-padX, xs.high+padX
	p.plot.Y.Min, p.plot.Y.Max = ys.low-padY, ys.high+padY
	var kept, out plotter.XYs
	for _, q := range points {
		v := at(q)
		switch {
		case q.Kept:
			kept = append(kept, v)
		case v.X >= p.plot.X.Min && v.X <= p.plot.X.Max && v.Y >= p.plot.Y.Min && v.Y <= p.plot.Y.Max:
			out = append(out, v)
		}
	}
	for _, d := range []struct {
		pts   plotter.XYs
		color color.NRGBA
		glyph draw.GlyphDrawer
		label string
	}{{kept, blue, draw.CircleGlyph{}, "bins"}, {out, orange, cross{}, "left out"}} {
		if len(d.pts) == 0 {
			continue
		}
		dots, err := plotter.NewScatter(d.pts)
		if err != nil {
			return err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: d.color, Radius: vg.Points(1.8), Shape: d.glyph}
		p.plot.Add(dots)
		p.explain(d.label, mark{dots.GlyphStyle})
	}
	ends := plotter.XYs{{X: xs.low, Y: line(xs.low)}, {X: xs.high, Y: line(xs.high)}}
	l, err := plotter.NewLine(ends)
	if err != nil {
		return err
	}
	l.LineStyle = lineStyle(ink, dashed)
	p.plot.Add(l)
	p.explain("fit", l)
	return nil
}

// cross is an x of lines that show on dark grounds, too: those of draw.CrossGlyph are thinner than a pixel.
type cross struct{}

// DrawGlyph draws an x.
func (cross) DrawGlyph(c *draw.Canvas, style draw.GlyphStyle, at vg.Point) {
	c.SetLineStyle(draw.LineStyle{Color: style.Color, Width: vg.Points(1.2)})
	for _, up := range []vg.Length{1, -1} {
		var p vg.Path
		p.Move(vg.Point{X: at.X - style.Radius, Y: at.Y - up*style.Radius})
		p.Line(vg.Point{X: at.X + style.Radius, Y: at.Y + up*style.Radius})
		c.Stroke(p)
	}
}
