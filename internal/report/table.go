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
	title string // the head in one line; "" joins its lines
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
	if d.Changes != nil {
		return d.writeChanges(w)
	}
	var b strings.Builder
	d.tableHead(&b)
	if len(d.Runs) > 0 {
		byFleet := d.byFleet()
		writeColumns(&b, byFleet.columns(), byFleet.fleets())
		d.tableLegend(&b)
	}
	if len(d.Runs) == 1 {
		b.WriteByte('\n')
		d.tableWorkers(&b)
	}
	if r := d.Recommendation; r != nil {
		b.WriteByte('\n')
		b.WriteString(r.Text())
	} else if d.Sweep != nil && len(d.Sweep.Axes) > 0 {
		b.WriteString("\nno recommendation: its metric is not known of every run, or is 0 with the\ndefault flags\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// byFleet returns the document with the runs of a fleet beside each other: those a sweep added come last
// in it, but belong to the points of their fleet.
func (d *Document) byFleet() *Document {
	c := *d
	c.Runs = make([]Run, 0, len(d.Runs))
	fleets := d.fleets()
	order := make([]int, len(d.Runs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return fleets[a] - fleets[b] })
	for _, i := range order {
		c.Runs = append(c.Runs, d.Runs[i])
	}
	return &c
}

func (d *Document) tableHead(b *strings.Builder) {
	t := &d.Trace
	fmt.Fprintf(b, "%s: %s", t.Name, plural(t.Requests, "request"))
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
		if p := d.Pools(r.Workers); len(p) == 2 {
			parts = append(parts, fmt.Sprintf("%d prefill and %s", p[0].To, plural(int64(p[1].To-p[1].From), "decode worker")))
		} else {
			parts = append(parts, plural(int64(r.Workers), "worker"))
		}
	}
	if same(func(r *Run) int64 { return r.CapacityBlocks }) {
		if r.CapacityBlocks == 0 {
			parts = append(parts, "caches without limit")
		} else {
			parts = append(parts, plural(r.CapacityBlocks, "block")+" each")
		}
	}
	if engine, ok := d.Flags["engine"].(string); ok {
		parts = append(parts, engine+" engine")
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
		c := column{head: wrapName(name), title: name}
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
		if d.hasIntervals() {
			cols = append(cols, d.spread(MeanTTFT))
		}
		cols = append(cols, d.numbers(P90TTFT, "TTFT", "p90 ms"), d.numbers("ttft_p99", "TTFT", "p99 ms"))
		if r := d.Recommendation; r != nil && !strings.HasPrefix(r.Metric, "ttft_") {
			if m := mustMetric(r.Metric); m.Unit == Micros || m.Unit == Rate { // others are shown
				name, part, _ := strings.Cut(m.Title, " ")
				cols = append(cols, d.numbers(m.Name, name, strings.TrimSpace(part+" "+unitWord[m.Unit])))
			}
		}
	}
	cols = append(cols, d.numbers(ImbalanceOf, "busiest", "/mean"))
	if len(d.Runs) > 1 && d.anyUndone() {
		c := column{head: []string{"not", "done"}}
		for i := range d.Runs {
			c.cells = append(c.cells, decimal(undone(&d.Runs[i])))
		}
		cols = append(cols, c)
	}
	if c, ok := d.against(sim); ok {
		cols = append(cols, c)
	}
	if notes.width() > 0 {
		cols = append(cols, notes)
	}
	return cols
}

// undone is how many requests a run did not complete.
func undone(r *Run) int64 {
	if r.Sim == nil {
		return 0
	}
	return r.Sim.Lost + r.Sim.Rejected
}

func (d *Document) anyUndone() bool {
	return slices.ContainsFunc(d.Runs, func(r Run) bool { return undone(&r) > 0 })
}

func (d *Document) hasIntervals() bool {
	return slices.ContainsFunc(d.Runs, func(r Run) bool { return r.Intervals != nil })
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

// numbers is a column of one metric, in one unit with one number of digits; '*' marks the best of each
// fleet, with all that the digits shown cannot tell from it.
func (d *Document) numbers(name string, head ...string) column {
	m := mustMetric(name)
	c := column{head: head, cells: make([]string, len(d.Runs))}
	digits := d.digits(m)
	for i := range d.Runs {
		c.cells[i] = "-"
		if v, ok := m.Value(&d.Runs[i]); ok {
			c.cells[i] = scaled(m, v, digits)
		}
	}
	type ends struct {
		least, most float64 // by goodness: least is best
		best, worst string
		seen        bool
	}
	fleets := d.fleets()
	of := make([]ends, len(d.Runs))
	for i := range d.Runs {
		v, ok := m.Value(&d.Runs[i])
		if !ok {
			continue
		}
		if m.Better == Higher {
			v = -v
		}
		e := &of[fleets[i]]
		if !e.seen || v < e.least {
			e.least, e.best = v, c.cells[i]
		}
		if !e.seen || v > e.most {
			e.most, e.worst = v, c.cells[i]
		}
		e.seen = true
	}
	marked := func(i int) bool { // no best among equals
		e := &of[fleets[i]]
		return e.best != e.worst && c.cells[i] == e.best
	}
	marks := make([]string, len(d.Runs))
	any := false
	for i := range marks {
		if marks[i] = " "; marked(i) {
			marks[i], any = "*", true
		}
	}
	if any {
		for i := range c.cells {
			c.cells[i] += marks[i]
		}
	}
	return c
}

// fleets numbers the runs' fleets in the order they appear.
func (d *Document) fleets() []int {
	out := make([]int, len(d.Runs))
	place := map[string]int{}
	for i := range d.Runs {
		key := Fleet(&d.Runs[i])
		if _, ok := place[key]; !ok {
			place[key] = len(place)
		}
		out[i] = place[key]
	}
	return out
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
	case Rate:
		return 1
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

// unitWord heads columns of times and rates.
var unitWord = map[Unit]string{Micros: "ms", Rate: "tok/s"}

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
	fleets := d.fleets()
	peers := make([]int, len(d.Runs)) // of fleets: their round robin + 1
	for i := len(d.Runs) - 1; i >= 0; i-- {
		if d.Runs[i].Policy == "round-robin" {
			peers[fleets[i]] = i + 1
		}
	}
	for i := range d.Runs {
		rr := peers[fleets[i]] - 1
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
	if d.anyUndone() {
		b.WriteString("not done: lost with killed workers, or rejected as larger than a KV pool;\ntimes are those of the others\n")
	}
	if d.hasIntervals() && d.Runs[0].Sim != nil {
		fmt.Fprintf(b, "± is half of the 5-95 %% interval over %s of the traffic\n", plural(int64(d.Sweep.Repeats-1), "resample"))
	}
}

// tableWorkers shows how one run spread: each worker where they fit a screen, else their quartiles.
func (d *Document) tableWorkers(b *strings.Builder) {
	r := &d.Runs[0]
	n := min(len(r.RequestsPerWorker), len(r.MissBlocksPerWorker))
	cols := []column{{head: []string{"worker"}, left: true}, {head: []string{"requests"}}, {head: []string{"share"}}, {head: []string{"miss blocks"}}, {head: []string{"share"}}}
	for _, pool := range d.Pools(n) {
		requests, misses := r.RequestsPerWorker[pool.From:pool.To], r.MissBlocksPerWorker[pool.From:pool.To]
		allRequests, allMisses := sum(requests), sum(misses)
		add := func(label string, req, miss int64) {
			label = strings.TrimSuffix(label+" "+pool.Role, " ")
			row := []string{label, decimal(req), percent(Ratio(req, allRequests)), decimal(miss), percent(Ratio(miss, allMisses))}
			for i := range cols {
				cols[i].cells = append(cols[i].cells, row[i])
			}
		}
		if n <= 32 {
			for i := range requests {
				add(fmt.Sprint(pool.From+i), requests[i], misses[i])
			}
			continue
		}
		cols[0].head[0] = fmt.Sprintf("of %d", n)
		req, miss := slices.Sorted(slices.Values(requests)), slices.Sorted(slices.Values(misses))
		for _, q := range []struct {
			label   string
			percent int
		}{{"least", 0}, {"p25", 25}, {"median", 50}, {"p75", 75}, {"most", 100}} {
			add(q.label, Percentile(req, q.percent), Percentile(miss, q.percent))
		}
	}
	writeColumns(b, cols, nil)
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
	writeColumns(b, cols, nil)
	fmt.Fprintf(b, "\nmakespan %.1f s, at most %d active blocks on a worker\n%d preemptions, %d requests completed, %d lost, %d rejected\n",
		float64(s.MakespanUS)/1e6, s.PeakActiveBlocks, s.Preemptions, s.Completed, s.Lost, s.Rejected)
}
