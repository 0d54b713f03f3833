package plot

import (
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// The size of a panel, and of the margin around it.
const (
	panelWidth  = vg.Length(450)
	panelHeight = vg.Length(330)
	margin      = vg.Length(14)
)

// panel is one plot with its title above and its legend between the two, where it covers nothing.
type panel struct {
	id     string // for anchors and tests
	title  string
	note   string // one line below the title; may be empty
	plot   *plot.Plot
	legend []entry
}

type entry struct {
	label  string
	thumbs []plot.Thumbnailer
}

func (p *panel) explain(label string, thumbs ...plot.Thumbnailer) {
	p.legend = append(p.legend, entry{label, thumbs})
}

// draw fills the canvas from the top: title, note, legend lines, plot.
func (p *panel) draw(c draw.Canvas) {
	c = draw.Crop(c, margin, -margin, margin, -margin)
	title := text.Style{Color: ink, Font: sans(13, true), YAlign: text.YTop, Handler: plot.DefaultTextHandler}
	c.FillText(title, vg.Point{X: c.Min.X, Y: c.Max.Y}, fit(title, p.title, c.Max.X-c.Min.X))
	c.Max.Y -= vg.Points(19)
	if p.note != "" {
		note := textStyle(10, muted)
		note.YAlign = text.YTop
		c.FillText(note, vg.Point{X: c.Min.X, Y: c.Max.Y}, fit(note, p.note, c.Max.X-c.Min.X))
		c.Max.Y -= vg.Points(15)
	}
	c.Max.Y -= p.drawLegend(c)
	p.plot.Draw(c)
}

// drawLegend lets the entries flow in lines from the left, and returns the height they took.
func (p *panel) drawLegend(c draw.Canvas) vg.Length {
	const (
		thumb  = vg.Length(22)
		gap    = vg.Length(14)
		height = vg.Length(16)
	)
	if len(p.legend) == 0 {
		return vg.Points(6)
	}
	style := textStyle(10, ink)
	x, y := c.Min.X, c.Max.Y
	for _, e := range p.legend {
		name := fit(style, e.label, c.Max.X-c.Min.X-thumb-vg.Points(4))
		width := thumb + vg.Points(4) + style.Width(name)
		if x > c.Min.X && x+width > c.Max.X {
			x, y = c.Min.X, y-height
		}
		icon := draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: x, Y: y - height + 3}, Max: vg.Point{X: x + thumb, Y: y - 1},
		}}
		for _, t := range e.thumbs {
			t.Thumbnail(&icon)
		}
		label := style
		label.YAlign = text.YCenter
		c.FillText(label, vg.Point{X: x + thumb + vg.Points(4), Y: (icon.Min.Y + icon.Max.Y) / 2}, name)
		x += width + gap
	}
	return c.Max.Y - y + height + vg.Points(6)
}

// sheet is all panels of a report on one picture, two abreast.
type sheet struct {
	title, note string
	panels      []panel
}

const sheetHead = vg.Length(48)

func (s *sheet) columns() int { return min(2, len(s.panels)) }

func (s *sheet) size() (w, h vg.Length) {
	cols := max(1, s.columns())
	rows := (len(s.panels) + cols - 1) / cols
	return vg.Length(cols) * panelWidth, sheetHead + vg.Length(rows)*panelHeight
}

func (s *sheet) draw(c draw.Canvas) {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	title := text.Style{Color: ink, Font: sans(15, true), YAlign: text.YTop, Handler: plot.DefaultTextHandler}
	c.FillText(title, vg.Point{X: c.Min.X + margin, Y: c.Max.Y - margin}, fit(title, s.title, c.Max.X-c.Min.X-2*margin))
	note := textStyle(10, muted)
	note.YAlign = text.YTop
	c.FillText(note, vg.Point{X: c.Min.X + margin, Y: c.Max.Y - margin - 21}, fit(note, s.note, c.Max.X-c.Min.X-2*margin))
	cols := s.columns()
	for i := range s.panels {
		x := c.Min.X + vg.Length(i%cols)*panelWidth
		y := c.Max.Y - sheetHead - vg.Length(i/cols)*panelHeight
		s.panels[i].draw(draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: x, Y: y - panelHeight}, Max: vg.Point{X: x + panelWidth, Y: y},
		}})
	}
}

// fit shortens a text to the room there is.
func fit(style text.Style, s string, room vg.Length) string {
	if style.Width(s) <= room {
		return s
	}
	runes := []rune(s)
	for len(runes) > 0 && style.Width(string(runes)+"…") > room {
		runes = runes[:len(runes)-1]
	}
	return string(runes) + "…"
}
