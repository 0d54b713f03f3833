// Package plot draws reports: sweeps as curves over the swept value, single runs as bars a worker, as
// SVG, as PNG or as one HTML page that needs nothing else. The same report gives the same bytes.
package plot

import (
	"fmt"
	"image/color"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// The colours: Okabe and Ito's, which people with any common colour blindness can tell apart, less the
// yellow that vanishes on white. Shapes and dashes say the same again.
var (
	blue   = color.NRGBA{0x00, 0x72, 0xb2, 0xff}
	orange = color.NRGBA{0xd5, 0x5e, 0x00, 0xff}
	green  = color.NRGBA{0x00, 0x9e, 0x73, 0xff}
	purple = color.NRGBA{0xcc, 0x79, 0xa7, 0xff}
	amber  = color.NRGBA{0xe6, 0x9f, 0x00, 0xff}
	sky    = color.NRGBA{0x56, 0xb4, 0xe9, 0xff}
	slate  = color.NRGBA{0x70, 0x70, 0x80, 0xff}

	// ink and faint are no pure greys, so that a page can find them in an SVG and replace them by the
	// reader's own text colour.
	ink   = color.NRGBA{0x1a, 0x1b, 0x1c, 0xff}
	faint = color.NRGBA{0xd8, 0xd9, 0xda, 0xff}
	muted = color.NRGBA{0x76, 0x77, 0x78, 0xff}
)

// series are the colours of curves; maxSeries of them can be told apart. Orange and green are those of
// round-robin and least-work on every plot.
var series = []color.NRGBA{blue, amber, purple, sky, slate, ink}

const maxSeries = 6

var glyphs = []draw.GlyphDrawer{
	draw.CircleGlyph{}, draw.PyramidGlyph{}, draw.BoxGlyph{}, draw.TriangleGlyph{}, draw.SquareGlyph{}, draw.RingGlyph{},
}

var (
	solid  []vg.Length
	dashed = []vg.Length{vg.Points(6), vg.Points(3)}
	dotted = []vg.Length{vg.Points(1.5), vg.Points(2.5)}
	mixed  = []vg.Length{vg.Points(7), vg.Points(2), vg.Points(1.5), vg.Points(2)}
)

func sans(size float64, bold bool) font.Font {
	f := font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(size)}
	if bold {
		f.Weight = 3 // x/image's WeightBold
	}
	return f
}

func textStyle(size float64, c color.Color) text.Style {
	return text.Style{Color: c, Font: sans(size, false), Handler: plot.DefaultTextHandler}
}

// newPlot makes an empty plot in the house style, without title and legend: panels draw those.
func newPlot(xLabel, yLabel string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Color = ink
		a.LineStyle.Width = vg.Points(0.8)
		a.LineStyle.Color = ink
		a.Label.TextStyle.Font = sans(11, false)
		a.Label.TextStyle.Color = ink
		a.Label.Padding = vg.Points(4)
		a.Tick.Label.Font = sans(10, false)
		a.Tick.Label.Color = ink
		a.Tick.LineStyle.Color = ink
		a.Tick.LineStyle.Width = vg.Points(0.8)
		a.Tick.Length = vg.Points(4)
		a.Padding = vg.Points(2)
		a.Tick.Marker = nice{6}
	}
	p.X.Label.Text, p.Y.Label.Text = xLabel, yLabel
	grid := plotter.NewGrid()
	grid.Horizontal = draw.LineStyle{Color: faint, Width: vg.Points(0.6)}
	grid.Vertical = draw.LineStyle{Color: faint, Width: vg.Points(0.6)}
	p.Add(grid)
	return p
}

func lineStyle(c color.Color, dashes []vg.Length) draw.LineStyle {
	return draw.LineStyle{Color: c, Width: vg.Points(1.6), Dashes: dashes}
}

// nice puts about n labelled ticks at multiples of 1, 2 or 5 times a power of ten.
type nice struct{ n int }

// Ticks implements plot.Ticker.
func (t nice) Ticks(low, high float64) []plot.Tick {
	if !(high > low) || math.IsInf(high-low, 0) {
		return []plot.Tick{{Value: low, Label: tickText(low, 1)}}
	}
	step := niceStep((high - low) / float64(t.n))
	var out []plot.Tick
	for k := math.Ceil(low/step - 1e-9); k*step <= high+step*1e-9; k++ {
		v := k * step
		out = append(out, plot.Tick{Value: v, Label: tickText(v, step)})
	}
	return out
}

// niceStep is the least of 1, 2, 5 times a power of ten that is not below x.
func niceStep(x float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(x)))
	for _, m := range []float64{1, 2, 5} {
		if m*p >= x*(1-1e-9) {
			return m * p
		}
	}
	return 10 * p
}

// tickText prints a tick with no more decimals than its step needs, thousands apart.
func tickText(v, step float64) string {
	if math.Abs(v) < step*1e-6 {
		v = 0 // also minus zero
	}
	digits := max(0, int(-math.Floor(math.Log10(step)+1e-9)))
	return thousands(strconv.FormatFloat(v, 'f', min(digits, 9), 64))
}

// thousands sets thin groups of three digits in a plain decimal number of five digits or more.
func thousands(s string) string {
	whole, frac, ok := strings.Cut(s, ".")
	sign := ""
	if strings.HasPrefix(whole, "-") {
		sign, whole = "-", whole[1:]
	}
	if len(whole) < 5 {
		return s
	}
	var b strings.Builder
	for i, d := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	if ok {
		return sign + b.String() + "." + frac
	}
	return sign + b.String()
}

// named puts one tick at each of 0, 1, 2 …, and leaves labels out evenly where more would not fit.
type named struct {
	names []string
	room  int // characters that fit beside each other; 0: no limit
}

// Ticks implements plot.Ticker.
func (t named) Ticks(low, high float64) []plot.Tick {
	longest := 1
	for _, n := range t.names {
		longest = max(longest, len(n))
	}
	every := 1
	if t.room > 0 {
		every = max(1, (len(t.names)*(longest+2)+t.room-1)/t.room)
	}
	var out []plot.Tick
	for i, n := range t.names {
		tick := plot.Tick{Value: float64(i)}
		if i%every == 0 {
			tick.Label = n
		}
		if v := tick.Value; v >= low && v <= high && tick.Label != "" {
			out = append(out, tick)
		}
	}
	return out
}

// decades puts labelled ticks at 1, 2, 5 times powers of ten where they are few, else at the powers.
type decades struct{}

// Ticks implements plot.Ticker.
func (decades) Ticks(low, high float64) []plot.Tick {
	if !(low > 0 && high > low) {
		return nice{6}.Ticks(low, high)
	}
	many := math.Log10(high/low) > 2.5
	var out []plot.Tick
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, e)
			if v < low*(1-1e-9) || v > high*(1+1e-9) {
				continue
			}
			tick := plot.Tick{Value: v}
			if m == 1 || (!many && (m == 2 || m == 5)) {
				tick.Label = tickText(v, math.Pow(10, min(e, 0)))
			}
			out = append(out, tick)
		}
	}
	return out
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
