package plot

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/kvroute/kvroute/internal/report"
)

// Formats are the file endings that plots are written for, without the dot.
func Formats() []string { return []string{"svg", "png", "html"} }

// FormatOf returns the format that a file's name asks for.
func FormatOf(path string) (string, error) {
	ext := strings.TrimPrefix(strings.ToLower(filepath.Ext(path)), ".")
	if slices.Contains(Formats(), ext) {
		return ext, nil
	}
	return "", &report.HintError{
		Err:  fmt.Errorf("plot %s: cannot tell the format from the name", path),
		Hint: "let it end in .svg, .png or .html",
	}
}

// ErrNothing is returned for a report without runs: there is nothing to draw.
var ErrNothing = errors.New("no runs to draw")

// Write draws the report in a format of Formats.
func Write(w io.Writer, format string, d *report.Document) error {
	s, err := newSheet(d)
	if err != nil {
		return fmt.Errorf("drawing the plot: %w", err)
	}
	return s.write(w, format, func() error { return writeHTML(w, s, d) })
}

// write writes the sheet in a format of Formats; page writes the one of HTML.
func (s *sheet) write(w io.Writer, format string, page func() error) (err error) {
	switch format {
	case "svg":
		err = writeSVG(w, s.size, s.draw)
	case "png":
		err = writePNG(w, s)
	case "html":
		err = page()
	default:
		return &report.HintError{Err: fmt.Errorf("unknown plot format %q", format), Hint: "one of " + strings.Join(Formats(), ", ")}
	}
	if err != nil {
		return fmt.Errorf("writing the plot as %s: %w", format, err)
	}
	return nil
}

// newSheet chooses the panels for a report: those of a sweep where there is one, else those of its
// first run.
func newSheet(d *report.Document) (*sheet, error) {
	if len(d.Runs) == 0 {
		return nil, ErrNothing
	}
	s := &sheet{title: heading(d), note: subtitle(d)}
	var err error
	if d.Sweep != nil && len(d.Sweep.Axes) > 0 {
		s.panels, err = sweepPanels(d)
	} else {
		s.panels, err = runPanels(d)
	}
	if err == nil && len(s.panels) == 0 {
		err = ErrNothing
	}
	return s, err
}

func heading(d *report.Document) string {
	if d.Sweep != nil && len(d.Sweep.Axes) > 0 {
		var names []string
		for _, a := range d.Sweep.Axes {
			names = append(names, a.Flag)
		}
		return "Sweep of " + strings.Join(names, " × ") + " on " + d.Trace.Name
	}
	return d.Runs[0].Policy + " on " + d.Trace.Name
}

func subtitle(d *report.Document) string {
	r := &d.Runs[0]
	parts := []string{thousands(fmt.Sprint(d.Trace.Requests)) + " requests"}
	same := func(f func(*report.Run) int64) bool {
		return !slices.ContainsFunc(d.Runs, func(o report.Run) bool { return f(&o) != f(r) })
	}
	if same(func(r *report.Run) int64 { return int64(r.Workers) }) {
		if p := d.Pools(r.Workers); len(p) == 2 {
			parts = append(parts, fmt.Sprintf("%d prefill and %s", p[0].To, plural(p[1].To-p[1].From, "decode worker")))
		} else {
			parts = append(parts, plural(r.Workers, "worker"))
		}
	}
	if same(func(r *report.Run) int64 { return r.CapacityBlocks }) {
		if r.CapacityBlocks == 0 {
			parts = append(parts, "caches without limit")
		} else {
			parts = append(parts, thousands(fmt.Sprint(r.CapacityBlocks))+" blocks each")
		}
	}
	if engine, ok := d.Flags["engine"].(string); ok {
		parts = append(parts, engine+" engine")
	}
	parts = append(parts, fmt.Sprintf("seed %d", d.Seed))
	if d.Sweep != nil && d.Sweep.Repeats > 1 {
		parts = append(parts, plural(d.Sweep.Repeats, "repeat"))
	}
	if d.Version != "" {
		parts = append(parts, "kvroute "+d.Version)
	}
	return strings.Join(parts, "  ·  ")
}

func simulated(d *report.Document) bool {
	return slices.ContainsFunc(d.Runs, func(r report.Run) bool { return r.Sim != nil })
}

func sweepPanels(d *report.Document) ([]panel, error) {
	axis := alongAxis(d.Sweep)
	curves, _ := groups(d, axis)
	type wanted struct {
		id, title, label string
		metrics          []string
	}
	var list []wanted
	switch {
	case !simulated(d):
		list = []wanted{
			{"hits", "Hit rate", "hit rate (% of blocks)", []string{report.HitRate}},
			{"imbalance", "Spread of requests", "requests of the busiest worker / mean", []string{report.ImbalanceOf}},
		}
	case len(curves) == 1:
		list = []wanted{{"ttft", "Time to first token", "TTFT (ms)", []string{report.MeanTTFT, report.P90TTFT}}}
	default:
		list = []wanted{
			{"ttft-mean", "Mean time to first token", "TTFT mean (ms)", []string{report.MeanTTFT}},
			{"ttft-p90", "Ninetieth percentile of the time to first token", "TTFT p90 (ms)", []string{report.P90TTFT}},
		}
	}
	var out []panel
	for _, w := range list {
		var parts []part
		for i, name := range w.metrics {
			m, err := report.MetricNamed(name)
			if err != nil {
				return nil, err
			}
			p := part{metric: m}
			if len(w.metrics) > 1 {
				p.name = strings.TrimPrefix(m.Title, "TTFT ")
			}
			if i > 0 {
				p.dashes = dashed
			}
			parts = append(parts, p)
		}
		if !known(d, parts[0].metric) {
			continue
		}
		p, err := against(d, axis, w.id, w.title, w.label, parts)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	p, ok, err := tradeoff(d, axis)
	if err != nil {
		return nil, err
	}
	if ok {
		out = append(out, p)
	}
	p, ok, err = distribution(telling(d))
	if err != nil {
		return nil, err
	}
	if ok {
		out = append(out, p)
	}
	return out, nil
}

func known(d *report.Document, m *report.Metric) bool {
	return slices.ContainsFunc(d.Runs, func(r report.Run) bool { _, ok := m.Value(&r); return ok })
}

// telling picks the runs whose distributions are worth comparing: the best and the worst swept ones by
// mean TTFT, and round-robin and least-work over the best one's fleet.
func telling(d *report.Document) (runs []*report.Run, labels []string, colors []color.NRGBA) {
	var sweep []*report.Run
	for i := range d.Runs {
		if r := &d.Runs[i]; r.Sim != nil && len(r.TTFTCurve) > 0 && r.Kind == report.KindSwept {
			sweep = append(sweep, r)
		}
	}
	if len(sweep) == 0 {
		return nil, nil, nil
	}
	sort.SliceStable(sweep, func(i, j int) bool { return sweep[i].Sim.TTFT.Mean < sweep[j].Sim.TTFT.Mean })
	add := func(r *report.Run, c color.NRGBA) {
		if !slices.Contains(runs, r) {
			runs, labels, colors = append(runs, r), append(labels, report.Label(r)), append(colors, c)
		}
	}
	best := sweep[0]
	add(best, blue)
	add(sweep[len(sweep)-1], amber)
	for i := range d.Runs {
		r := &d.Runs[i]
		if (r.Policy == "round-robin" || r.Policy == "least-work") && report.Fleet(r) == report.Fleet(best) && len(runs) < maxSeries {
			add(r, refColor(r.Policy))
		}
	}
	return runs, labels, colors
}

func runPanels(d *report.Document) ([]panel, error) {
	r := &d.Runs[0]
	var out []panel
	for _, w := range []struct {
		id, title, label string
		counts           []int64
		c                color.NRGBA
	}{
		{"requests", "Requests per worker", "requests", r.RequestsPerWorker, blue},
		{"misses", "Blocks each worker had to compute", "miss blocks", r.MissBlocksPerWorker, amber},
	} {
		if len(w.counts) == 0 {
			continue
		}
		p, err := perWorker(w.id, w.title, w.label, w.counts, d.Pools(len(w.counts)), w.c)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	var runs []*report.Run
	var labels []string
	var colors []color.NRGBA
	for i := range d.Runs[:min(len(d.Runs), maxSeries)] {
		runs, labels, colors = append(runs, &d.Runs[i]), append(labels, report.Label(&d.Runs[i])), append(colors, series[i])
	}
	p, ok, err := distribution(runs, labels, colors)
	if err != nil {
		return nil, err
	}
	if ok {
		out = append(out, p)
	}
	return out, nil
}

func writeSVG(w io.Writer, size func() (vg.Length, vg.Length), paint func(draw.Canvas)) error {
	width, height := size()
	c := vgsvg.New(width, height)
	paint(draw.New(c))
	_, err := c.WriteTo(w)
	return err
}

// dpi of PNG files: sharp on screens with two pixels a point.
const dpi = 144

func writePNG(w io.Writer, s *sheet) error {
	width, height := s.size()
	c := vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(dpi))
	s.draw(draw.New(c))
	_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

func writeHTML(w io.Writer, s *sheet, d *report.Document) error {
	head, rows := d.Cells()
	var flags [][2]string
	var names []string
	for name := range d.Flags {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		flags = append(flags, [2]string{"--" + name, cmp.Or(report.FlagValue(d.Flags[name]), "not set")})
	}
	heading, paste := "", ""
	var rec []string
	if r := d.Recommendation; r != nil {
		heading, paste = r.Heading(), report.FlagsText(r.Flags)
		rec = strings.Split(strings.TrimSpace(r.Text()), "\n")[1:]
	}
	return writePage(w, s, map[string]any{
		"Head": head, "Rows": rows, "Flags": flags,
		"Heading": heading, "Recommendation": rec, "Paste": paste, "Several": len(d.Runs) > 1,
		"Ceiling": fmt.Sprintf("%.1f", 100*report.Ratio(d.Trace.CeilingHitBlocks, d.Trace.Blocks)), "HasBlocks": d.Trace.Blocks > 0,
		"Spread": slices.Contains(head, "±"),
	})
}

// writePage draws the panels on a page, with what else it shows.
func writePage(w io.Writer, s *sheet, with map[string]any) error {
	type figure struct {
		ID, Title string
		SVG       template.HTML
	}
	var figures []figure
	for i := range s.panels {
		p := &s.panels[i]
		var b bytes.Buffer
		size := func() (vg.Length, vg.Length) { return panelWidth, panelHeight }
		if err := writeSVG(&b, size, p.draw); err != nil {
			return err
		}
		figures = append(figures, figure{p.id, p.title, inline(b.String(), p.title)})
	}
	with["Title"], with["Note"], with["Figures"] = s.title, s.note, figures
	return page.Execute(w, with)
}

// inline makes an SVG part of a page: no XML head, size from the page, colours of the page's theme.
func inline(svg, title string) template.HTML {
	if i := strings.Index(svg, "<svg"); i > 0 {
		svg = svg[i:]
	}
	if _, rest, ok := strings.Cut(svg, "viewBox"); ok {
		svg = `<svg role="img" aria-label="` + template.HTMLEscapeString(title) + `" viewBox` + rest
	}
	return template.HTML(strings.NewReplacer(
		hex(ink), "var(--ink)", hex(faint), "var(--faint)", hex(muted), "var(--muted)",
	).Replace(strings.TrimSpace(svg)))
}

func hex(c color.NRGBA) string { return fmt.Sprintf("#%02X%02X%02X", c.R, c.G, c.B) }
