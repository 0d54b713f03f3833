package tui

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// window is w cells of clean text from a column on.
func (t *theme) window(s string, from, w int) string {
	if from <= 0 {
		return t.cut(s, w)
	}
	return t.cut(ansi.TruncateLeft(s, from, ""), w)
}

// workerPage is all of one target.
func (m *Model) workerPage() []string {
	lay := m.layout()
	i, ok := m.pic.byKey[m.worker]
	var lines []string
	if ok {
		lines = m.facts(&m.pic.snap.Workers[i], lay.facts)
	} else {
		lines = []string{m.rule(m.w, m.theme.text(m.worker), "", false)}
		says := "the router does not know this worker now; it may come back"
		if m.worker == "" {
			says = "the router has no workers yet"
		}
		lines = append(lines, m.line(m.w).put(warn, " "+says).end())
	}
	for len(lines) < lay.facts {
		lines = append(lines, spaces(m.w))
	}
	lines = append(lines, m.prefixTree(lay.panels[0])...)
	return append(lines, m.picks(lay.panels[1], "its decisions", m.pic.ownPicks, true)...)
}

// fact is a labelled line of the worker page.
type fact struct {
	label string
	put   func(l *line)
}

// facts are the lines at the top: two columns where there is room, the first ones where there is not.
func (m *Model) facts(w *snapshot.Worker, n int) []string {
	t := m.theme
	title := t.text(w.RouteKey) + " " + t.g.dot + " " + t.text(w.Model) + " " + t.g.dot + " " + t.text(w.Role)
	lines := []string{m.rule(m.w, title, t.text(strings.TrimSpace(w.Engine+" "+w.EngineVersion))+" "+t.text(w.URL), false)}
	left := []fact{
		{"state", func(l *line) { m.stateFact(l, w) }},
		{"gpu", func(l *line) { m.poolFact(l, w) }},
		{"cpu, disk", func(l *line) { m.lowerFact(l, w) }},
		{"load", func(l *line) { m.loadFact(l, w) }},
		{"requests", func(l *line) {
			l.put(cool, t.spark(w.History, min(snapshot.HistoryLength, l.room()/2), 0)).put(plain, " "+t.right(rate(w.RequestRate), 5)).put(dim, "/s ").
				put(plain, unsignedCount(w.Requests)).put(dim, " in all")
		}},
		{"hit share", func(l *line) { m.hitFact(l, w) }},
	}
	right := []fact{
		{"stream", func(l *line) { m.streamFact(l, w) }},
		{"stored", func(l *line) { m.historyFact(l, w.Stream.StoredHist, w.Stream.Stored) }},
		{"removed", func(l *line) { m.historyFact(l, w.Stream.RemovedHist, w.Stream.Removed) }},
		{"losses", func(l *line) { m.lossFact(l, w) }},
		{"parity", func(l *line) { m.parityFact(l, w) }},
		{"trust", func(l *line) { m.turnsFact(l, w) }},
		{"breaker", func(l *line) {
			s := t.text(w.Breaker)
			if s == "" {
				s = t.g.unknown
			}
			l.put(plain, s).put(dim, "  health ").put(plain, t.text(w.Health)+" ").put(dim, t.text(w.HealthReason))
			if w.Busy {
				l.put(warn, "  busy")
			}
		}},
		{"content", func(l *line) {
			l.put(plain, t.hash(w.ContentHash)).put(dim, "  orphans ").put(plain, strconv.Itoa(w.Orphans)).put(dim, "  holes ").put(plain, strconv.Itoa(w.Holes))
		}},
	}
	draw := func(f *fact, l *line) { f.put(l.put(dim, t.left(" "+f.label, 11)+" ")) }
	if m.w < 110 {
		churn := fact{"blocks/s", func(l *line) {
			for _, x := range []struct {
				name string
				h    []uint32
			}{{"stored ", w.Stream.StoredHist}, {"  removed ", w.Stream.RemovedHist}} {
				l.put(dim, x.name).put(cool, t.spark(x.h, 12, 0)).put(plain, " "+t.right(t.perSecond(x.h), 5))
			}
			l.put(dim, "  clears ").put(plain, unsignedCount(w.Stream.Clears))
		}}
		order := []fact{left[0], left[1], right[0], left[3], left[5], churn, left[2], right[3], right[5], left[4], right[4], right[6]}
		for i := 0; i < len(order) && len(lines) < n; i++ {
			l := m.line(m.w)
			draw(&order[i], l)
			lines = append(lines, l.end())
		}
		return lines
	}
	half := m.w / 2
	for i := 0; i < max(len(left), len(right)) && len(lines) < n; i++ {
		a, b := m.line(half), m.line(m.w-half)
		if i < len(left) {
			draw(&left[i], a)
		}
		if i < len(right) {
			draw(&right[i], b)
		}
		lines = append(lines, a.end()+b.end())
	}
	return lines
}

func (m *Model) stateFact(l *line, w *snapshot.Worker) {
	t := m.theme
	glyph, k := t.grade(gradeOf(w))
	l.put(k, glyph+" "+t.text(stateWord(w)))
	if w.TrustSinceMS != nil {
		l.put(dim, " for "+lasting(m.nowMS()-*w.TrustSinceMS))
	}
	if s := t.text(stateReason(w)); s != "" {
		l.put(plain, "  "+s)
	}
	if w.Approximate {
		l.put(warn, "  approximate: made of what was sent there")
	}
}

func (m *Model) poolFact(l *line, w *snapshot.Worker) {
	t := m.theme
	if w.Fill != nil {
		full, rest := t.bar(*w.Fill, min(20, l.room()/5))
		l.put(cool, full).put(dim, rest).put(strong, " "+t.right(t.share(w.Fill), 4)+"  ")
	}
	l.put(plain, count(int64(w.Tiers[0]))).put(dim, " blocks")
	if w.PoolBlocks != nil && w.PageSize != nil {
		l.put(dim, ", pool ").put(plain, count(*w.PoolBlocks)).put(dim, " x ").put(plain, strconv.Itoa(*w.PageSize)).put(dim, " tok")
	} else {
		l.put(dim, ", pool unknown")
	}
}

func (m *Model) lowerFact(l *line, w *snapshot.Worker) {
	t := m.theme
	all := max(1, w.BlockCount)
	for i, name := range []string{"cpu ", "disk "} {
		n := w.Tiers[i+1]
		full, rest := t.bar(float64(n)/float64(all), min(8, l.room()/9))
		l.put(dim, name).put(cool, full).put(dim, rest).put(plain, " "+t.right(count(int64(n)), 5)+"  ")
	}
	l.put(dim, "of ").put(plain, count(int64(w.BlockCount))).put(dim, " blocks")
}

func (m *Model) loadFact(l *line, w *snapshot.Worker) {
	blocks, tokens := " blocks  pending ", " tok  held "
	if l.room() < len("active 12.3k blocks  pending 12.3k tok  held 9999 req 12.3k tok") {
		blocks, tokens = " pending ", " held "
	}
	l.put(dim, "active ").put(plain, count(w.ActiveBlocks)).put(dim, blocks).put(plain, count(w.PendingTokens)).
		put(dim, tokens).put(plain, count(w.HeldRequests)).put(dim, " req ").put(plain, count(w.HeldTokens)).put(dim, " tok")
}

func (m *Model) hitFact(l *line, w *snapshot.Worker) {
	t := m.theme
	p := &w.Predictions
	l.put(plain, t.share(w.HitShare)).put(dim, " predicted  ").put(plain, t.share(w.ReportedShare)).put(dim, " reported  ")
	l.put(plain, unsignedCount(p.Differing)).put(dim, " of ").put(plain, unsignedCount(p.Compared)).put(dim, " differ")
	if p.Diverged {
		l.put(warn, "  "+t.g.warn+" diverged")
	}
}

func (m *Model) streamFact(l *line, w *snapshot.Worker) {
	t := m.theme
	s := &w.Stream
	seq, last := t.g.unknown, t.g.unknown
	if s.Sequence != nil {
		seq = strconv.FormatUint(*s.Sequence, 10)
	}
	if s.LastEventMS != nil {
		last = age(m.nowMS() - *s.LastEventMS)
	}
	name := "sequence "
	if l.w < 70 {
		name = "seq "
	}
	l.put(dim, name).put(plain, seq).put(dim, "  last ").put(plain, last).put(dim, "  batches ").put(plain, unsignedCount(s.Batches)).
		put(dim, "  replayed ").put(plain, unsignedCount(s.Replayed))
}

// historyFact is a sparkline of counts, the rate over its last ten seconds and the total.
func (m *Model) historyFact(l *line, h []uint32, total uint64) {
	t := m.theme
	l.put(cool, t.spark(h, min(snapshot.HistoryLength, l.room()-30), 0))
	l.put(plain, " "+t.right(t.perSecond(h), 5)).put(dim, " blocks/s ").put(plain, unsignedCount(total)).put(dim, " in all")
}

// perSecond is the rate over the last ten seconds of a history, unknown without one.
func (t *theme) perSecond(h []uint32) string {
	n := min(len(h), 5)
	if n == 0 {
		return t.g.unknown
	}
	var sum uint64
	for _, v := range h[len(h)-n:] {
		sum += uint64(v)
	}
	return rate(float64(sum) / (float64(n) * snapshot.HistorySpanMS / 1000))
}

func (m *Model) lossFact(l *line, w *snapshot.Worker) {
	s := &w.Stream
	for _, x := range []struct {
		name string
		n    uint64
		k    tone
	}{{"gaps", s.Gaps, warn}, {"missing", s.Missing, warn}, {"bad", s.Bad, warn}, {"restarts", s.Restarts, plain}, {"clears", s.Clears, plain}} {
		k := dim
		if x.n > 0 {
			k = x.k
		}
		l.put(dim, x.name+" ").put(k, unsignedCount(x.n)+"  ")
	}
	for _, k := range slices.Sorted(maps.Keys(s.Skipped)) {
		l.put(warn, "skipped "+m.theme.text(k)+" "+unsignedCount(s.Skipped[k])+"  ")
	}
}

func (m *Model) parityFact(l *line, w *snapshot.Worker) {
	t := m.theme
	if len(w.Parity) == 0 {
		l.put(dim, "not compared")
	}
	for i := range w.Parity {
		p := &w.Parity[i]
		glyph, k := t.g.off, dim
		switch p.Verdict {
		case "confirmed":
			glyph, k = t.g.good, good
		case "diverged":
			glyph, k = t.g.bad, bad
		}
		l.put(k, glyph+" ").put(plain, t.text(p.Case)+" ").put(k, t.text(p.Verdict)+" ")
		if p.Verdict != "confirmed" || l.w >= 90 { // that it is equal says enough
			l.put(dim, t.text(p.Detail))
		}
		l.put(plain, "  ")
	}
}

// turnsFact is how trust turned while one watched, the newest first.
func (m *Model) turnsFact(l *line, w *snapshot.Worker) {
	t := m.theme
	turns := m.turns[w.RouteKey]
	if len(turns) == 0 {
		l.put(dim, "no turns since this screen is open")
	}
	for i := len(turns) - 1; i >= 0; i-- {
		x := &turns[i]
		l.put(plain, t.text(x.from)+t.g.arrow+t.text(x.into)).put(dim, " "+ago(m.nowMS()-x.atMS)+"  ")
	}
}

// prefixTree is the panel of the shared prefixes that the target holds, as a tree.
func (m *Model) prefixTree(a area) []string {
	s := m.pic.snap
	focused := m.focus == prefixesPanel
	title := "shared prefixes it holds"
	if s.Cache.Sampled > 0 {
		title += ", of the last " + count(int64(s.Cache.Sampled)) + " requests"
	}
	lines := []string{m.rule(a.w, title, m.position(prefixesPanel), focused)}
	// prefix, blocks held/own, tokens, uses, holders, last, text
	tree := min(40, max(20, a.w/4))
	h := m.line(a.w).put(plain, " ").col(dim, "prefix", tree).num(dim, "blocks held", 11).num(dim, "from", 5).num(dim, "tokens", 6).num(dim, "uses", 5).num(dim, "holders", 7).num(dim, "last", 4)
	if s.Router.Text {
		h.put(dim, " text")
	}
	lines = append(lines, h.end())
	sel := m.row(prefixesPanel)
	for r := range a.rows {
		i := m.lists[prefixesPanel].top + r
		if i >= len(m.pic.prefixes) {
			says := ""
			if r == 0 && len(m.pic.prefixes) == 0 {
				says = "  none of the prefixes that recent requests shared"
				if m.lists[prefixesPanel].filter != "" {
					says = "  nothing meets the filter; esc clears it"
				}
			}
			lines = append(lines, m.line(a.w).put(dim, says).end())
			continue
		}
		lines = append(lines, m.prefixRow(a.w, tree, i, i == sel && focused))
	}
	return lines
}

func (m *Model) prefixRow(w, tree, i int, selected bool) string {
	t := m.theme
	n := m.pic.prefixes[i]
	x := &m.pic.snap.Cache.Prefixes[n]
	l := m.line(w)
	mark := " "
	if selected {
		mark = t.g.cursor
		if l.f == normal {
			l.f = chosen
		}
	}
	l.put(accent, mark)
	indent := ""
	if d := m.pic.depth[n]; d > 0 {
		branch := t.g.last
		for j := i + 1; j < len(m.pic.prefixes); j++ {
			e := m.pic.depth[m.pic.prefixes[j]]
			if e < d {
				break
			}
			if e == d {
				branch = t.g.branch
				break
			}
		}
		indent = spaces(min(2*(d-1), tree-12)) + branch + t.g.rule
	}
	l.put(dim, indent).put(plain, t.hash(x.Hash)).to(tree + 2)
	held := m.pic.holds[n][m.worker]
	k := plain
	if held < x.Blocks {
		k = warn
	}
	l.num(k, count(int64(held))+"/"+count(int64(x.Blocks)), 11).num(dim, count(int64(x.From)), 5).
		num(plain, count(int64(x.Blocks)*int64(m.pic.snap.Router.BlockSize)), 6).num(plain, count(int64(x.Uses)), 5).
		num(plain, count(int64(len(x.Holders))), 7).num(dim, age(m.nowMS()-x.LastMS), 4)
	if x.Text != "" {
		l.put(plain, " "+t.text(x.Text))
	}
	return l.end()
}
