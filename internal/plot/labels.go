package plot

import (
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// placed writes names beside points, each in the first of eight places where it covers neither a point
// nor another name and stays inside; a name without such a place is left out.
type placed struct {
	x, y  []float64
	names []string
	lines []float64 // values of y with a line across, not to be written on
	style text.Style
}

// Plot implements plot.Plotter.
func (l *placed) Plot(c draw.Canvas, p *plot.Plot) {
	tx, ty := p.Transforms(&c)
	const r = vg.Length(5) // room a glyph takes
	var taken []vg.Rectangle
	for i := range l.x {
		at := vg.Point{X: tx(l.x[i]), Y: ty(l.y[i])}
		taken = append(taken, vg.Rectangle{Min: vg.Point{X: at.X - r, Y: at.Y - r}, Max: vg.Point{X: at.X + r, Y: at.Y + r}})
	}
	for _, at := range l.lines {
		taken = append(taken, vg.Rectangle{Min: vg.Point{X: c.Min.X, Y: ty(at) - 1}, Max: vg.Point{X: c.Max.X, Y: ty(at) + 1}})
	}
	for i, name := range l.names {
		if name == "" {
			continue
		}
		at := vg.Point{X: tx(l.x[i]), Y: ty(l.y[i])}
		w, h := l.style.Width(name), l.style.Height(name)
		place := func(clear vg.Length) bool {
			for _, d := range []vg.Point{{X: 1}, {X: 0, Y: 1}, {X: 0, Y: -1}, {X: -1}, {X: 1, Y: 1}, {X: 1, Y: -1}, {X: -1, Y: 1}, {X: -1, Y: -1}} {
				min := vg.Point{X: at.X - w/2 + d.X*(w/2+r+1), Y: at.Y - h/2 + d.Y*(h/2+r+1)}
				box := vg.Rectangle{Min: min, Max: vg.Point{X: min.X + w, Y: min.Y + h}}
				if inside(box, c.Rectangle) && free(box, taken) && l.nearest(i, box, clear, tx, ty) {
					taken = append(taken, box)
					style := l.style
					style.XAlign, style.YAlign = text.XLeft, text.YCenter
					c.FillText(style, vg.Point{X: min.X, Y: min.Y + h/2}, name)
					return true
				}
			}
			return false
		}
		if !place(3) {
			place(1)
		}
	}
}

// nearest says whether every other point is clear times as far from the box as its own, at least: a
// reader would take it for a nearer one's name.
func (l *placed) nearest(own int, box vg.Rectangle, clear vg.Length, tx, ty func(float64) vg.Length) bool {
	dist := func(i int) vg.Length {
		x, y := tx(l.x[i]), ty(l.y[i])
		dx := max(box.Min.X-x, 0, x-box.Max.X)
		dy := max(box.Min.Y-y, 0, y-box.Max.Y)
		return dx*dx + dy*dy
	}
	for i := range l.x {
		if i != own && dist(i) < clear*clear*dist(own) {
			return false
		}
	}
	return true
}

// add notes a point; one that is where another is already adds its name to that one's.
func (l *placed) add(x, y float64, name string) {
	for i := range l.x {
		if l.x[i] == x && l.y[i] == y && name != "" && l.names[i] != "" {
			if l.names[i] != name && !strings.HasSuffix(l.names[i], ", "+name) {
				l.names[i] += ", " + name
			}
			return
		}
	}
	l.x, l.y, l.names = append(l.x, x), append(l.y, y), append(l.names, name)
}

func inside(a, b vg.Rectangle) bool {
	return a.Min.X >= b.Min.X && a.Max.X <= b.Max.X && a.Min.Y >= b.Min.Y && a.Max.Y <= b.Max.Y
}

func free(a vg.Rectangle, taken []vg.Rectangle) bool {
	for _, b := range taken {
		if a.Min.X < b.Max.X && b.Min.X < a.Max.X && a.Min.Y < b.Max.Y && b.Min.Y < a.Max.Y {
			return false
		}
	}
	return true
}

// level is a line at one value, across the whole plot or, where from < to, between these two.
type level struct {
	at       float64
	from, to float64
	vertical bool
	style    draw.LineStyle
}

// Plot implements plot.Plotter.
func (l *level) Plot(c draw.Canvas, p *plot.Plot) {
	tx, ty := p.Transforms(&c)
	if l.vertical {
		x := tx(l.at)
		c.StrokeLine2(l.style, x, c.Min.Y, x, c.Max.Y)
		return
	}
	y := ty(l.at)
	left, right := c.Min.X, c.Max.X
	if l.from < l.to {
		left, right = tx(l.from), tx(l.to)
	}
	c.StrokeLine2(l.style, left, y, right, y)
}

// Thumbnail implements plot.Thumbnailer.
func (l *level) Thumbnail(c *draw.Canvas) {
	y := c.Center().Y
	c.StrokeLine2(l.style, c.Min.X, y, c.Max.X, y)
}

// mark is the thumbnail of a glyph.
type mark struct{ style draw.GlyphStyle }

// Thumbnail implements plot.Thumbnailer.
func (m mark) Thumbnail(c *draw.Canvas) { c.DrawGlyph(m.style, c.Center()) }
