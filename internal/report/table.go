package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// tableWidth is what a table should fit into.
const tableWidth = 80

// column is one column of a table: a head of one or more lines, and a cell a row.
type column struct {
	head  []string
	left  bool
	cells []string
}

func (c *column) width() int {
	w := 0
	for _, h := range c.head {
		w = max(w, utf8.RuneCountInString(h))
	}
	for _, s := range c.cells {
		w = max(w, utf8.RuneCountInString(s))
	}
	return w
}

// writeTable prints what a reader wants to see first: the traffic, a line a run, a line a worker where
// there is only one run, and the recommendation.
func (d *Document) writeTable(w io.Writer) error {
	var b strings.Builder
	d.tableHead(&b)
	if len(d.Runs) > 0 {
		writeColumns(&b, d.columns())
		d.tableLegend(&b)
	}
	if len(d.Runs) == 1 {
		b.WriteByte('\n')
		d.tableWorkers(&b)
	}
	if r := d.Recommendation; r != nil {
		b.WriteByte('\n')
		b.WriteString(r.Text())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (d *Document) tableHead(b *strings.Builder) {
	t := &d.Trace
	fmt.Fprintf(b, "%s: %d requests", t.Name, t.Requests)
	if t.Blocks > 0 {
		fmt.Fprintf(b, ", %d blocks\nat most %s of blocks", t.Blocks, percent(Ratio(t.CeilingHitBlocks, t.Blocks)))
		if t.InputTokens > 0 {
			fmt.Fprintf(b, " and %s of tokens", percent(Ratio(t.CeilingHitTokens, t.InputTokens)))
		}
		b.WriteString(" can hit a cache\n")
	} else {
		b.WriteString(", no blocks known\n")
	}
	if len(d.Runs) == 0 {
		return
	}
	r := &d.Runs[0]
	same := func(f func(*Run) int64) bool {
		return !slices.ContainsFunc(d.Runs, func(o Run) bool { return f(&o) != f(r) })
	}
	var parts []string
	if same(func(r *Run) int64 { return int64(r.Workers) }) {
		parts = append(parts, plural(int64(r.Workers), "worker"))
	}
	if same(func(r *Run) int64 { return r.CapacityBlocks }) {
		if r.CapacityBlocks == 0 {
			parts = append(parts, "caches without limit")
		} else {
			parts = append(parts, plural(r.CapacityBlocks, "block")+" each")
		}
	}
	parts = append(parts, fmt.Sprintf("seed %d", d.Seed))
	if d.Sweep != nil && d.Sweep.Repeats > 1 {
		parts = append(parts, fmt.Sprintf("%d repeats", d.Sweep.Repeats))
	}
	b.WriteString(strings.Join(parts, ", ") + "\n\n")
}

func plural(n int64, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return decimal(n) + " " + word + "s"
}

func (d *Document) columns() []column {
	policy := column{head: []string{"policy"}, left: true}
	for i := range d.Runs {
		policy.cells = append(policy.cells, d.Runs[i].Policy)
	}
	cols := []column{policy}
	notes := d.notes()
	for _, name := range d.variedFlags() {
		c := column{head: wrapName(name)}
		for i := range d.Runs {
			text := FlagValue(d.Runs[i].Flags[name])
			if text == "" { // added runs mostly lack the swept flags: say there what they are
				text, notes.cells[i] = notes.cells[i], ""
			}
			c.cells = append(c.cells, text)
		}
		cols = append(cols, c)
	}
	cols = append(cols, d.numbers(HitRate, "hits", "%"), d.numbers("token_hit_rate", "tokens", "hit %"))
	sim := slices.ContainsFunc(d.Runs, func(r Run) bool { return r.Sim != nil })
	if sim {
		cols = append(cols, d.numbers(MeanTTFT, "TTFT", "mean ms"))
		if d.Sweep != nil && d.Sweep.Repeats > 1 {
			cols = append(cols, d.spread(MeanTTFT))
		}
		cols = append(cols, d.numbers(P90TTFT, "TTFT", "p90 ms"), d.numbers("ttft_p99", "TTFT", "p99 ms"))
	}
	cols = append(cols, d.numbers(ImbalanceOf, "busiest", "/mean"))
	if c, ok := d.against(sim); ok {
		cols = append(cols, c)
	}
	if notes.width() > 0 {
		cols = append(cols, notes)
	}
	return cols
}

// variedFlags are the flags whose value differs between runs and that no other column shows.
func (d *Document) variedFlags() []string {
	var out []string
	for _, name := range append([]string{"workers"}, d.flagColumns()...) {
		values := map[string]bool{}
		for i := range d.Runs {
			if v, ok := d.Runs[i].Flags[name]; ok {
				values[FlagValue(v)] = true
			} else {
				values[""] = true
			}
		}
		if len(values) > 1 {
			out = append(out, name)
		}
	}
	return d.order(out)
}

// wrapName breaks a flag's name into lines of about ten letters, at its dashes.
func wrapName(name string) []string {
	var lines []string
	line := ""
	for _, word := range strings.Split(name, "-") {
		if line != "" && len(line)+1+len(word) > 10 {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += "-"
		}
		line += word
	}
	return append(lines, line)
}

// numbers is a column of one metric, in one unit with one number of digits; '*' marks the best.
func (d *Document) numbers(name string, head ...string) column {
	m := mustMetric(name)
	c := column{head: head}
	values := make([]float64, len(d.Runs))
	known := make([]bool, len(d.Runs))
	lo, hi := math.Inf(1), math.Inf(-1)
	for i := range d.Runs {
		values[i], known[i] = m.Value(&d.Runs[i])
		if known[i] {
			lo, hi = min(lo, values[i]), max(hi, values[i])
		}
	}
	best := lo
	if m.Better == Higher {
		best = hi
	}
	digits := d.digits(m)
	least, most, mark := scaled(m, lo, digits), scaled(m, hi, digits), scaled(m, best, digits)
	for i, v := range values {
		s := "-"
		if known[i] {
			s = scaled(m, v, digits)
		}
		switch {
		case least == most: // no best among equals
		case s == mark: // also those the digits shown cannot tell from it
			s += "*"
		default:
			s += " "
		}
		c.cells = append(c.cells, s)
	}
	return c
}

// digits is how many decimals a metric gets in a table: enough for three places of its smallest value.
func (d *Document) digits(m *Metric) int {
	switch m.Unit {
	case Share:
		return 1
	case Factor:
		return 2
	case Count:
		return 0
	}
	least := math.Inf(1)
	for i := range d.Runs {
		if v, ok := m.Value(&d.Runs[i]); ok && v > 0 {
			least = min(least, v/1000)
		}
	}
	switch {
	case least >= 100:
		return 0
	case least >= 10:
		return 1
	}
	return 2
}

// mustMetric finds a metric by a name that is a constant of this package.
func mustMetric(name string) *Metric {
	m, err := MetricNamed(name)
	if err != nil {
		panic("report: " + err.Error())
	}
	return m
}

// scaled prints a value in the unit tables use: percent for shares, ms for times.
func scaled(m *Metric, v float64, digits int) string {
	switch m.Unit {
	case Share:
		v *= 100
	case Micros:
		v /= 1000
	}
	return fmt.Sprintf("%.*f", digits, v)
}

// spread is the column of half the width of a metric's interval.
func (d *Document) spread(name string) column {
	m := mustMetric(name)
	c := column{head: []string{"±"}}
	digits := d.digits(m)
	for i := range d.Runs {
		iv, ok := d.Runs[i].Intervals[m.Field]
		if !ok {
			c.cells = append(c.cells, "-")
			continue
		}
		c.cells = append(c.cells, scaled(m, (iv.High-iv.Low)/2, digits))
	}
	return c
}

// against compares with round robin over the same fleet, in percent: of the mean TTFT in simulations,
// of the hits without a clock. There is no column where no other run has a round robin beside it.
func (d *Document) against(sim bool) (column, bool) {
	name, head := HitRate, "hits"
	if sim {
		name, head = MeanTTFT, "TTFT"
	}
	m := mustMetric(name)
	c := column{head: []string{head, "vs RR"}}
	any := false
	for i := range d.Runs {
		rr := d.RoundRobin(i)
		v, ok := m.Value(&d.Runs[i])
		if rr < 0 || rr == i || !ok {
			c.cells = append(c.cells, "")
			continue
		}
		base, ok := m.Value(&d.Runs[rr])
		if !ok || base == 0 {
			c.cells = append(c.cells, "-")
			continue
		}
		any = true
		c.cells = append(c.cells, signedPercent((v-base)/base))
	}
	return c, any
}

// notes tells the runs a sweep added from those it was asked for.
func (d *Document) notes() column {
	c := column{head: []string{""}, left: true, cells: make([]string, len(d.Runs))}
	for i := range d.Runs {
		switch d.Runs[i].Kind {
		case KindDefault:
			c.cells[i] = "default"
		case KindReference:
			c.cells[i] = "added"
		}
	}
	return c
}

func (d *Document) tableLegend(b *strings.Builder) {
	if len(d.Runs) < 2 {
		return
	}
	b.WriteString("\n* best; RR is round-robin with the same fleet\n")
	if n := d.notes(); n.width() > 0 {
		b.WriteString("default and added runs are there to compare with\n")
	}
	if d.Sweep != nil && d.Sweep.Repeats > 1 && d.Runs[0].Sim != nil {
		fmt.Fprintf(b, "± is half of the 5-95 %% interval over %s of the traffic\n", plural(int64(d.Sweep.Repeats-1), "resample"))
	}
}

// tableWorkers shows how one run spread: each worker where they fit a screen, else their quartiles.
func (d *Document) tableWorkers(b *strings.Builder) {
	r := &d.Runs[0]
	n := min(len(r.RequestsPerWorker), len(r.MissBlocksPerWorker))
	var requests, misses int64
	for i := range n {
		requests += r.RequestsPerWorker[i]
		misses += r.MissBlocksPerWorker[i]
	}
	name := column{head: []string{"worker"}, left: true}
	cols := []column{name, {head: []string{"requests"}}, {head: []string{"share"}}, {head: []string{"miss blocks"}}, {head: []string{"share"}}}
	add := func(label string, req, miss int64) {
		row := []string{label, decimal(req), percent(Ratio(req, requests)), decimal(miss), percent(Ratio(miss, misses))}
		for i := range cols {
			cols[i].cells = append(cols[i].cells, row[i])
		}
	}
	if n <= 32 {
		for i := range n {
			add(fmt.Sprint(i), r.RequestsPerWorker[i], r.MissBlocksPerWorker[i])
		}
	} else {
		cols[0].head[0] = fmt.Sprintf("of %d", n)
		req, miss := slices.Sorted(slices.Values(r.RequestsPerWorker)), slices.Sorted(slices.Values(r.MissBlocksPerWorker))
		for _, q := range []struct {
			label   string
			percent int
		}{{"least", 0}, {"p25", 25}, {"median", 50}, {"p75", 75}, {"most", 100}} {
			add(q.label, Percentile(req, q.percent), Percentile(miss, q.percent))
		}
	}
	writeColumns(b, cols)
	fmt.Fprintf(b, "\npicks digest %s", r.PicksDigest)
	if r.PredictedHitBlocks != r.HitBlocks {
		fmt.Fprintf(b, "; the router's mirror predicted %d hit blocks, %d were", r.PredictedHitBlocks, r.HitBlocks)
	}
	b.WriteString("\n")
	if s := r.Sim; s != nil {
		d.tableSim(b, s)
	}
}

func (d *Document) tableSim(b *strings.Builder, s *Sim) {
	cols := []column{{head: []string{"ms"}, left: true}, {head: []string{"mean"}}, {head: []string{"p50"}}, {head: []string{"p90"}}, {head: []string{"p99"}}, {head: []string{"max"}}}
	for _, row := range []struct {
		name string
		d    Dist
	}{{"TTFT", s.TTFT}, {"ITL", s.ITL}, {"E2E", s.E2E}, {"queueing", s.Queue}} {
		if row.d == (Dist{}) {
			continue
		}
		ms := func(us float64) string { return fmt.Sprintf("%.2f", us/1000) }
		cells := []string{row.name, ms(row.d.Mean), ms(float64(row.d.P50)), ms(float64(row.d.P90)), ms(float64(row.d.P99)), ms(float64(row.d.Max))}
		for i := range cols {
			cols[i].cells = append(cols[i].cells, cells[i])
		}
	}
	b.WriteString("\n")
	writeColumns(b, cols)
	fmt.Fprintf(b, "\nmakespan %.1f s, at most %d active blocks on a worker\n%d preemptions, %d requests completed, %d lost, %d rejected\n",
		float64(s.MakespanUS)/1e6, s.PeakActiveBlocks, s.Preemptions, s.Completed, s.Lost, s.Rejected)
}

// writeColumns aligns columns: heads stand on the last head line, columns are two spaces apart, or one
// where the table would not fit otherwise.
func writeColumns(b *strings.Builder, cols []column) {
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
	for i := range cols[0].cells {
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
	}
	return fmt.Sprintf("%.0f", v)
}

// Text words the recommendation in lines: the flags, then what they gain and how sure that is.
func (r *Recommendation) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "recommended: %s\n", FlagsText(r.Flags))
	title := r.Metric
	if m, err := MetricNamed(r.Metric); err == nil {
		title = m.Title
	}
	switch {
	case r.Verdict == VerdictDefault:
		fmt.Fprintf(&b, "the default flags have the best %s of all points: nothing to change\n", title)
	case r.Low == nil || r.High == nil:
		fmt.Fprintf(&b, "%s %s against the default flags (one pass over the trace: noise unknown, try --repeat 10)\n", title, gainText(r.Gain))
	case r.Verdict == VerdictNoise:
		fmt.Fprintf(&b, "no difference beyond noise: %s %s against the default flags, 5-95 %%: %s to %s\n",
			title, gainText(r.Gain), signedPercent(*r.Low), signedPercent(*r.High))
	default:
		fmt.Fprintf(&b, "%s %s against the default flags (5-95 %%: %s to %s)\n",
			title, gainText(r.Gain), signedPercent(*r.Low), signedPercent(*r.High))
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
	for _, c := range d.columns() {
		head = append(head, strings.ReplaceAll(strings.Join(c.head, " "), " /", "/"))
		for i, s := range c.cells {
			text, best := strings.CutSuffix(strings.TrimSpace(s), "*")
			rows[i] = append(rows[i], Cell{text, best})
		}
	}
	return head, rows
}
