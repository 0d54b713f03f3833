package tui

import (
	"strings"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// column is a column of the table of targets. Those with a small rank are drawn first where room is short.
type column struct {
	head, unit string
	w          int
	rank       int
	num        bool
	by         sortKey // what sorts by it; byName: nothing but the name
	cell       func(t *theme, c *cell) (tone, string)
	sum        func(g *sum) string // of a group; nil: nothing
}

// cell is what a column draws of.
type cell struct {
	w     *snapshot.Worker
	nowMS int64
	width int
	top   uint32
}

// quiet is dim for nothing, plain for something: zeros stand back.
func quiet(zero bool) tone {
	if zero {
		return dim
	}
	return plain
}

var columns = []column{
	{head: "state", w: 12, rank: 1, by: byState, cell: func(t *theme, c *cell) (tone, string) {
		glyph, k := t.grade(gradeOf(c.w))
		return k, glyph + " " + t.text(shortState(stateWord(c.w), c.width-2))
	}},
	{head: "blocks", unit: "mirror", w: 6, rank: 2, num: true, by: byBlocks, cell: func(t *theme, c *cell) (tone, string) {
		s := count(int64(c.w.BlockCount))
		if c.w.Approximate {
			s = t.g.approx + s
		}
		return quiet(c.w.BlockCount == 0), s
	}, sum: func(g *sum) string { return count(g.blocks) }},
	{head: "pool", unit: "full", w: 4, rank: 3, num: true, by: byFill, cell: func(t *theme, c *cell) (tone, string) { return quiet(c.w.Fill == nil), t.share(c.w.Fill) }},
	{head: "fill", w: 10, rank: 16, cell: func(t *theme, c *cell) (tone, string) {
		if c.w.Fill == nil {
			return dim, ""
		}
		full, rest := t.bar(*c.w.Fill, c.width)
		return cool, full + rest
	}},
	{head: "cpu", unit: "blocks", w: 6, rank: 19, num: true, cell: func(_ *theme, c *cell) (tone, string) {
		return quiet(c.w.Tiers[1] == 0), count(int64(c.w.Tiers[1]))
	}},
	{head: "disk", unit: "blocks", w: 6, rank: 20, num: true, cell: func(_ *theme, c *cell) (tone, string) {
		return quiet(c.w.Tiers[2] == 0), count(int64(c.w.Tiers[2]))
	}},
	{head: "activ", unit: "block", w: 5, rank: 4, num: true, by: byActive, cell: func(_ *theme, c *cell) (tone, string) { return quiet(c.w.ActiveBlocks == 0), count(c.w.ActiveBlocks) }, sum: func(g *sum) string { return count(g.active) }},
	{head: "pend", unit: "token", w: 5, rank: 5, num: true, by: byPending, cell: func(_ *theme, c *cell) (tone, string) { return quiet(c.w.PendingTokens == 0), count(c.w.PendingTokens) }, sum: func(g *sum) string { return count(g.pending) }},
	{head: "held", unit: "req", w: 4, rank: 6, num: true, by: byHeld, cell: func(_ *theme, c *cell) (tone, string) { return quiet(c.w.HeldRequests == 0), short(c.w.HeldRequests) }, sum: func(g *sum) string { return short(g.held) }},
	{head: "held", unit: "token", w: 5, rank: 11, num: true, cell: func(_ *theme, c *cell) (tone, string) { return quiet(c.w.HeldTokens == 0), count(c.w.HeldTokens) }, sum: func(g *sum) string { return count(g.heldTokens) }},
	{head: "req/s", w: 5, rank: 7, num: true, by: byRate, cell: func(_ *theme, c *cell) (tone, string) { return quiet(c.w.RequestRate == 0), rate(c.w.RequestRate) }, sum: func(g *sum) string { return rate(g.rate) }},
	{head: "hit", unit: "pred", w: 4, rank: 8, num: true, by: byHit, cell: func(t *theme, c *cell) (tone, string) { return quiet(c.w.HitShare == nil), t.share(c.w.HitShare) }},
	{head: "hit", unit: "rept", w: 4, rank: 9, num: true, cell: func(t *theme, c *cell) (tone, string) {
		if c.w.Predictions.Diverged {
			return warn, t.share(c.w.ReportedShare)
		}
		return quiet(c.w.ReportedShare == nil), t.share(c.w.ReportedShare)
	}},
	{head: "requests", unit: "1 min", w: snapshot.HistoryLength, rank: 17, cell: func(t *theme, c *cell) (tone, string) {
		return cool, t.spark(c.w.History, c.width, c.top)
	}},
	{head: "req/s", unit: "20 s", w: 10, rank: 12, cell: func(t *theme, c *cell) (tone, string) { return cool, t.spark(c.w.History, c.width, c.top) }},
	{head: "last", unit: "ago", w: 4, rank: 10, num: true, by: byAge, cell: func(t *theme, c *cell) (tone, string) {
		if c.w.Stream.LastEventMS == nil {
			return dim, t.g.unknown
		}
		return plain, age(c.nowMS - *c.w.Stream.LastEventMS)
	}},
	{head: "gaps", w: 4, rank: 13, num: true, by: byGaps, cell: func(_ *theme, c *cell) (tone, string) {
		n := c.w.Stream.Gaps
		if n > 0 {
			return warn, short(int64(min(n, 1<<60)))
		}
		return dim, "0"
	}, sum: func(g *sum) string { return short(int64(min(g.gaps, 1<<60))) }},
	{head: "engine", w: 14, rank: 18, cell: func(t *theme, c *cell) (tone, string) {
		return dim, t.text(strings.TrimSpace(c.w.Engine + " " + c.w.EngineVersion))
	}},
	{head: "why", w: 20, rank: 15, cell: func(t *theme, c *cell) (tone, string) {
		if gradeOf(c.w) == gradeGood {
			return dim, ""
		}
		return dim, t.text(stateReason(c.w))
	}},
}

// short is a count in at most 4 cells.
func short(n int64) string {
	if n < 10000 {
		return count(n)
	}
	return scaled(float64(n), 2)
}

// The name's column: what it is given at least, what before other columns if names are long, and at most.
const (
	nameMin  = 10
	nameGood = 16
	nameMax  = 32
)

// fitted are the columns for a width, and how wide the name is.
type fitted struct {
	name int
	cols []int // into columns
	ws   []int
}

// longestName is how wide the names of the first targets are, within the bounds.
func (m *Model) longestName() int {
	longest := nameMin
	for i := range m.pic.snap.Workers[:min(len(m.pic.snap.Workers), 256)] {
		longest = max(longest, width(strings.TrimRight(m.theme.name(m.pic.snap.Workers[i].RouteKey, nameMax), " ")))
		if longest == nameMax {
			break
		}
	}
	return longest
}

// fit chooses columns by rank. What is left over goes to the name, as far as names are long, then to the reason.
func (m *Model) fit(w int) fitted {
	longest := m.longestName()
	name := min(longest, nameGood) // worth more than the last columns
	room := w - 1 - name - 1
	take := make([]bool, len(columns))
	for rank := 1; rank <= 20; rank++ {
		for i := range columns {
			c := &columns[i]
			if c.rank != rank || c.w+1 > room {
				continue
			}
			if rank == 17 { // the long sparkline instead of the short one
				for j := range columns {
					if columns[j].rank == 12 && take[j] {
						take[j] = false
						room += columns[j].w + 1
					}
				}
			}
			take[i] = true
			room -= c.w + 1
		}
	}
	f := fitted{name: name + min(room, longest-name)}
	room -= f.name - name
	for i, ok := range take {
		if ok {
			cw := columns[i].w
			if columns[i].head == "why" {
				cw += min(room, 60)
			}
			f.cols, f.ws = append(f.cols, i), append(f.ws, cw)
		}
	}
	return f
}

// fleet is the first page.
func (m *Model) fleet() []string {
	lay := m.layout()
	table := lay.panels[0]
	lines := m.table(table)
	if lay.detail.rows > 0 {
		lines = append(lines, m.detail(lay.detail)...)
	}
	if lay.split == 0 {
		for _, a := range lay.panels[1:] {
			if a.decoration {
				lines = append(lines, m.latest(a)...)
			} else {
				lines = append(lines, m.warnings(a)...)
			}
		}
		return lines
	}
	side := append(m.warnings(lay.panels[1]), m.latest(lay.panels[2])...)
	sep := m.theme.paint(normal, dim, m.theme.g.sep)
	for i := range lines {
		lines[i] += sep + " " + side[i]
	}
	return lines
}

// table is the table of targets.
func (m *Model) table(a area) []string {
	t := m.theme
	f := m.fit(a.w)
	focused := m.focus == workersPanel
	head, units := m.line(a.w), m.line(a.w)
	mark := func(by sortKey) string {
		if by != m.order.by {
			return ""
		}
		if m.order.reverse {
			return t.g.up
		}
		return t.g.down
	}
	where := "worker"
	if m.order.by == byName && m.order.reverse {
		where += " " + mark(byName)
	}
	k := plain
	if focused {
		k = strong
	}
	head.put(plain, " ").col(k, where, f.name)
	units.put(plain, " ").col(dim, "", f.name)
	for i, c := range f.cols {
		col := &columns[c]
		title, hk := col.head, dim
		if s := ""; col.by != byName {
			if s = mark(col.by); s != "" {
				title, hk = t.cut(title, f.ws[i]-1)+s, accent
			}
		}
		if col.num {
			head.num(hk, title, f.ws[i])
			units.num(dim, col.unit, f.ws[i])
		} else {
			head.col(hk, title, f.ws[i])
			units.col(dim, col.unit, f.ws[i])
		}
	}
	lines := []string{head.end()}
	if a.heads > 1 {
		lines = append(lines, units.end())
	}
	sel := m.row(workersPanel)
	for r := range a.rows {
		i := m.lists[workersPanel].top + r
		switch {
		case i >= len(m.pic.workers):
			lines = append(lines, m.emptyRow(a, r))
		case m.pic.workers[i].worker < 0:
			lines = append(lines, m.groupRow(a.w, &f, &m.pic.workers[i].sum))
		default:
			lines = append(lines, m.workerRow(a.w, &f, m.pic.workers[i].worker, i == sel))
		}
	}
	return lines
}

// emptyRow is a line below the last row; the first says why there are no rows.
func (m *Model) emptyRow(a area, r int) string {
	if r == 1 && m.pic.length(a.panel) == 0 {
		says := "the router has no workers yet"
		switch {
		case m.lists[a.panel].filter != "":
			says = "nothing meets the filter; esc clears it"
		case a.panel == warningsPanel:
			says = ""
		}
		return m.line(a.w).put(dim, "  "+says).end()
	}
	return spaces(a.w)
}

func (m *Model) groupRow(w int, f *fitted, g *sum) string {
	t := m.theme
	l := m.line(w)
	model := t.text(g.model)
	if model == "" {
		model = "(no model)"
	}
	title := model + " " + t.g.dot + " " + t.text(g.role)
	if g.role == "" {
		title = model
	}
	tail := "  " + count(int64(g.targets))
	if g.doubtful > 0 {
		tail += ", " + count(int64(g.doubtful)) + " in doubt"
	}
	// Sums stand below their heads; those that the title reaches into are left out.
	room := max(w/2, 1+f.name)
	l.put(accent, t.cut(title, room-width(tail))).put(dim, tail)
	x := 1 + f.name + 1
	for i, c := range f.cols {
		if sum := columns[c].sum; sum != nil && x >= l.used {
			l.to(x).num(dim, t.cut(sum(g), f.ws[i]), f.ws[i])
		}
		x += f.ws[i] + 1
	}
	return l.end()
}

func (m *Model) workerRow(w int, f *fitted, i int, selected bool) string {
	t := m.theme
	l := m.line(w)
	c := cell{w: &m.pic.snap.Workers[i], nowMS: m.nowMS(), top: m.pic.top}
	mark := " "
	if selected {
		mark = t.g.cursor
		if m.focus == workersPanel && l.f == normal {
			l.f = chosen
		}
	}
	l.put(accent, mark)
	k := plain
	if selected {
		k = strong
	}
	l.put(k, t.name(c.w.RouteKey, f.name)+" ")
	for j, n := range f.cols {
		col := &columns[n]
		c.width = f.ws[j]
		k, s := col.cell(t, &c)
		if col.num {
			l.num(k, s, c.width)
		} else {
			l.col(k, s, c.width)
		}
	}
	return l.end()
}

// detail is what is known of the selected target beyond its line, or the selected warning in full.
func (m *Model) detail(a area) []string {
	t := m.theme
	if m.focus == warningsPanel && len(m.pic.warnings) > 0 {
		x := &m.pic.snap.Warnings[m.pic.warnings[m.row(warningsPanel)]]
		lines := []string{m.rule(a.w, t.text(x.Kind)+" "+t.text(x.RouteKey), ago(m.nowMS()-x.AtMS), false)}
		for _, s := range t.wrap(t.text(x.Text), a.w-2, a.rows) {
			lines = append(lines, m.line(a.w).put(plain, " "+s).end())
		}
		for len(lines) <= a.rows {
			lines = append(lines, spaces(a.w))
		}
		return lines
	}
	i, ok := m.pic.byKey[m.pic.nameAt(workersPanel, m.row(workersPanel))]
	if !ok {
		right := ""
		if m.lists[workersPanel].filter != "" { // it stands nowhere else
			right = m.position(workersPanel)
		}
		return []string{m.rule(a.w, "", right, false), spaces(a.w), spaces(a.w)}
	}
	w := &m.pic.snap.Workers[i]
	lines := []string{m.rule(a.w, t.text(w.RouteKey), m.position(workersPanel), false)}
	glyph, k := t.grade(gradeOf(w))
	l := m.line(a.w).put(k, " "+glyph+" "+t.text(stateWord(w)))
	if s := t.text(stateReason(w)); s != "" {
		l.put(plain, ": "+s)
	}
	if w.TrustSinceMS != nil {
		l.put(dim, " (for "+lasting(m.nowMS()-*w.TrustSinceMS)+")")
	}
	l.put(dim, "  "+t.text(w.URL))
	lines = append(lines, l.end())
	// Its numbers may grow to five cells; what is left is for the sparkline, then for the engine.
	const numbers = len("   requests  gpu 12.3k cpu 12.3k disk 12.3k | held 12.3k tok | 12.3k gaps")
	l = m.line(a.w).put(plain, " ")
	if n := min(snapshot.HistoryLength, a.w-numbers); n >= 5 {
		l.put(dim, "requests ").put(cool, t.spark(w.History, n, m.pic.top)).put(plain, "  ")
	}
	l.put(dim, "gpu ").put(plain, count(int64(w.Tiers[0]))).put(dim, " cpu ").put(plain, count(int64(w.Tiers[1]))).put(dim, " disk ").put(plain, count(int64(w.Tiers[2])))
	l.put(dim, " "+t.g.sep+" held ").put(plain, count(w.HeldTokens)).put(dim, " tok "+t.g.sep+" ")
	l.put(plain, unsignedCount(w.Stream.Gaps)).put(dim, " gaps")
	if s := t.text(strings.TrimSpace(w.Engine + " " + w.EngineVersion)); s != "" && l.room() > width(s)+3 {
		l.put(dim, " "+t.g.sep+" "+s)
	}
	return append(lines, l.end())
}

// warnings is the panel of warnings, newest first.
func (m *Model) warnings(a area) []string {
	t := m.theme
	open := 0
	for _, i := range m.pic.warnings {
		if m.pic.snap.Warnings[i].OverMS == nil {
			open++
		}
	}
	title := "warnings"
	if open > 0 {
		title += " (" + count(int64(open)) + " going on)"
	}
	lines := []string{m.rule(a.w, title, m.position(warningsPanel), m.focus == warningsPanel)}
	sel := m.row(warningsPanel)
	for r := range a.rows {
		i := m.lists[warningsPanel].top + r
		if i >= len(m.pic.warnings) {
			if r == 0 {
				says := "none"
				if m.lists[warningsPanel].filter != "" {
					says = "nothing meets the filter; esc clears it"
				}
				lines = append(lines, m.line(a.w).put(dim, "  "+says).end())
				continue
			}
			lines = append(lines, spaces(a.w))
			continue
		}
		x := &m.pic.snap.Warnings[m.pic.warnings[i]]
		l := m.line(a.w)
		glyph, k := t.g.warn, warn
		if x.Severity == "error" {
			glyph, k = t.g.bad, bad
		}
		text := plain
		if x.OverMS != nil {
			glyph, k, text = t.g.off, dim, dim
		}
		mark := " "
		if i == sel && m.focus == warningsPanel {
			mark = t.g.cursor
			if l.f == normal {
				l.f = chosen
			}
		}
		l.put(accent, mark).put(k, glyph+" ").num(dim, age(m.nowMS()-x.AtMS), 4)
		if x.OverMS != nil {
			l.put(dim, "over: ")
		}
		if key := t.text(x.RouteKey); key != "" && !strings.Contains(x.Text, x.RouteKey) {
			l.put(strong, strings.TrimRight(t.name(key, 24), " ")+" ")
		}
		lines = append(lines, l.put(text, t.text(x.Text)).end())
	}
	return lines
}
