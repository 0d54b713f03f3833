package report

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"
)

// writeColumns aligns columns: heads stand on the last head line, columns are two spaces apart, or one
// where the table would not fit otherwise. groups, if not nil, says which rows belong together; an empty
// line stands between groups of several rows.
func writeColumns(b *strings.Builder, cols []column, groups []int) {
	lines, total := 0, 0
	widths := make([]int, len(cols))
	for i := range cols {
		lines = max(lines, len(cols[i].head))
		widths[i] = cols[i].width()
		total += widths[i]
	}
	gap := "  "
	if total+2*(len(cols)-1) > tableWidth {
		gap = " "
	}
	row := func(cell func(*column) string) {
		var line strings.Builder
		for i := range cols {
			if i > 0 {
				line.WriteString(gap)
			}
			s := cell(&cols[i])
			fill := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(s))
			if cols[i].left {
				line.WriteString(s + fill)
			} else {
				line.WriteString(fill + s)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	for l := range lines {
		row(func(c *column) string {
			if k := l - (lines - len(c.head)); k >= 0 {
				return c.head[k]
			}
			return ""
		})
	}
	apart := false
	for i := 1; i < len(groups); i++ {
		apart = apart || groups[i] == groups[i-1]
	}
	for i := range cols[0].cells {
		if apart && i > 0 && groups[i] != groups[i-1] {
			b.WriteByte('\n')
		}
		row(func(c *column) string { return c.cells[i] })
	}
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

func signedPercent(share float64) string {
	s := fmt.Sprintf("%+.1f%%", 100*share)
	if s == "-0.0%" {
		return "+0.0%"
	}
	return s
}

// formatValue prints a value with its unit, for a sentence.
func formatValue(m *Metric, v float64) string {
	switch m.Unit {
	case Share:
		return fmt.Sprintf("%.2f %%", 100*v)
	case Micros:
		return fmt.Sprintf("%.1f ms", v/1000)
	case Factor:
		return fmt.Sprintf("%.3f", v)
	case Rate:
		return fmt.Sprintf("%.2f tokens/s", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// Heading says what the flags are: what does not beat the default for sure is not recommended.
func (r *Recommendation) Heading() string {
	if r.Verdict == VerdictNoise {
		return "Best measured"
	}
	return "Recommended"
}

// Text words the recommendation in lines: the flags, then what they gain and how sure that is.
func (r *Recommendation) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", strings.ToLower(r.Heading()), FlagsText(r.Flags))
	title := r.Metric
	if m, err := MetricNamed(r.Metric); err == nil {
		title = m.Title
	}
	switch {
	case r.Verdict == VerdictDefault:
		fmt.Fprintf(&b, "%s: no point is better than the default flags, nothing to change\n", title)
		return b.String()
	case r.Verdict == VerdictNoise:
		b.WriteString("no difference beyond noise, the default flags will do\n")
	}
	fmt.Fprintf(&b, "%s: %s than with the default flags", title, gainText(r.Gain))
	if r.Low == nil || r.High == nil {
		b.WriteString("\nnoise unknown: measure on resampled traffic too, with --repeat 10\n")
	} else {
		fmt.Fprintf(&b, "\n5-95 %% over resampled traffic: %s to %s\n", signedPercent(*r.Low), signedPercent(*r.High))
	}
	return b.String()
}

// gainText words a gain: positive is better, whichever way the metric itself goes.
func gainText(gain float64) string {
	if gain < 0 {
		return fmt.Sprintf("%.1f %% worse", -100*gain)
	}
	return fmt.Sprintf("%.1f %% better", 100*gain)
}

// Cell is a cell of the table of runs.
type Cell struct {
	Text string
	Best bool // nothing in its column is better
}

// Cells returns the table of runs as the table format prints it, for other ways to show it.
func (d *Document) Cells() (head []string, rows [][]Cell) {
	if len(d.Runs) == 0 {
		return nil, nil
	}
	rows = make([][]Cell, len(d.Runs))
	for _, c := range d.byFleet().columns() {
		head = append(head, cmp.Or(c.title, strings.ReplaceAll(strings.Join(c.head, " "), " /", "/")))
		for i, s := range c.cells {
			text, best := strings.CutSuffix(strings.TrimSpace(s), "*")
			rows[i] = append(rows[i], Cell{text, best})
		}
	}
	return head, rows
}
