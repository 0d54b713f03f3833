package tui

import (
	"strconv"
	"strings"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// mapName and mapColumns are how wide the cache map's names and how many its columns are.
func (m *Model) mapName() int {
	return min(m.longestName()+2, 26, max(12, m.w/4))
}

func (m *Model) mapColumns() int { return max(1, (m.w-1-m.mapName()-1-6-1)/2) }

// settleColumns keeps the selected column visible.
func (m *Model) settleColumns() {
	c, n := m.columnAt(), m.mapColumns()
	if c < m.left {
		m.left = c
	}
	if c >= m.left+n {
		m.left = c - n + 1
	}
	m.left = max(0, min(m.left, len(m.pic.columns)-n))
}

// cacheMap is the page of what is held where.
func (m *Model) cacheMap() []string {
	lay := m.layout()
	a := lay.panels[0]
	t := m.theme
	s := m.pic.snap
	title := "cache map: " + count(s.Cache.Held) + " blocks held, " + count(s.Cache.Distinct) + " distinct"
	if s.Cache.Held > 0 {
		dup := float64(s.Cache.Held-s.Cache.Distinct) / float64(s.Cache.Held)
		title += ", " + t.share(&dup) + " duplicates"
	}
	lines := []string{m.rule(a.w, title, m.position(cachePanel), m.focus == cachePanel)}
	lines = append(lines, m.mapHeads()...)
	sel := m.row(cachePanel)
	for r := range a.rows {
		i := m.lists[cachePanel].top + r
		if i >= len(m.pic.targets) {
			lines = append(lines, m.emptyRow(a, r))
			continue
		}
		lines = append(lines, m.mapRow(m.pic.targets[i], i == sel))
	}
	lines = append(lines, m.mapDetail(lay.detail)...)
	if lay.list.rows > 0 {
		lines = append(lines, m.prefixList(lay.list)...)
	}
	return lines
}

// mapHeads are the lines above the map: legend, how hot the columns are, which one is selected.
func (m *Model) mapHeads() []string {
	t := m.theme
	name, n := m.mapName(), m.mapColumns()
	legend := m.line(m.w).put(plain, " ").put(dim, "held: none ").put(cool, strings.Join(t.g.heat, " ")).put(dim, " all; columns: shared prefixes, hottest first")
	if k := len(m.pic.columns); k > n {
		legend.put(dim, "; "+strconv.Itoa(m.left+1)+"-"+strconv.Itoa(min(k, m.left+n))+" of "+strconv.Itoa(k))
	}
	if len(m.pic.columns) == 0 {
		says := "no recent requests shared a prefix"
		if m.lists[cachePanel].filter != "" {
			says = "no prefix meets the filter; esc clears it"
		}
		legend = m.line(m.w).put(plain, " ").put(dim, says)
	}
	uses, marks := m.line(m.w).put(plain, " ").col(dim, "uses", name), m.line(m.w).put(plain, " ").col(dim, "", name)
	top := 1
	for _, i := range m.pic.columns {
		top = max(top, m.pic.snap.Cache.Prefixes[i].Uses)
	}
	at := m.columnAt()
	var heights strings.Builder
	for c := m.left; c < min(len(m.pic.columns), m.left+n); c++ {
		u := m.pic.snap.Cache.Prefixes[m.pic.columns[c]].Uses
		levels := len(t.g.spark) - 1
		i := 0
		if u > 0 {
			i = min(levels, 1+u*(levels-1)/top)
		}
		heights.WriteString(t.g.spark[i] + " ")
		mark := " "
		if c == at {
			mark = t.g.down
		}
		marks.put(accent, mark).put(plain, " ")
	}
	uses.put(cool, heights.String()).to(m.w-7).num(dim, "blocks", 6)
	return []string{legend.end(), uses.end(), marks.end()}
}

func (m *Model) mapRow(i int, selected bool) string {
	t := m.theme
	w := &m.pic.snap.Workers[i]
	l := m.line(m.w)
	mark, k := " ", plain
	if selected {
		mark, k = t.g.cursor, strong
		if l.f == normal {
			l.f = chosen
		}
	}
	glyph, gk := t.grade(gradeOf(w))
	l.put(accent, mark).put(gk, glyph+" ").put(k, t.name(w.RouteKey, m.mapName()-2)+" ")
	var cells strings.Builder // in one tone: a change of style costs more bytes than a cell
	for c := m.left; c < min(len(m.pic.columns), m.left+m.mapColumns()); c++ {
		n := m.pic.columns[c]
		x := &m.pic.snap.Cache.Prefixes[n]
		cell := " "
		if x.Model == w.Model {
			cell = t.heat(m.pic.holds[n][w.RouteKey], x.Blocks)
		}
		cells.WriteString(cell + " ")
	}
	l.put(cool, cells.String())
	return l.to(m.w-7).num(dim, count(int64(w.BlockCount)), 6).end()
}

// heat is a cell of the map.
func (t *theme) heat(held, blocks int) string {
	last := len(t.g.heat) - 1
	switch {
	case held <= 0 || blocks <= 0:
		return t.g.heat[0]
	case held >= blocks:
		return t.g.heat[last]
	}
	return t.g.heat[1+int(int64(held)*int64(last-1)/int64(blocks))]
}

// mapDetail is what is known of the selected column.
func (m *Model) mapDetail(a area) []string {
	t := m.theme
	if len(m.pic.columns) == 0 {
		return []string{m.rule(a.w, "", "", false), spaces(a.w), spaces(a.w)}
	}
	n := m.pic.columns[m.columnAt()]
	x := &m.pic.snap.Cache.Prefixes[n]
	size := int64(m.pic.snap.Router.BlockSize)
	lines := []string{m.rule(a.w, "prefix "+t.hash(x.Hash)+" "+t.g.dot+" "+t.text(x.Model), "", false)}
	l := m.line(a.w).put(plain, " "+count(int64(x.Blocks))).put(dim, " blocks ("+count(int64(x.Blocks)*size)+" tokens) from block ").put(plain, count(int64(x.From))).
		put(dim, ", used by ").put(plain, count(int64(x.Uses))).put(dim, " of "+count(int64(m.pic.snap.Cache.Sampled))+" requests, ").put(plain, ago(m.nowMS()-x.LastMS))
	lines = append(lines, l.end())
	l = m.line(a.w)
	if x.Text != "" {
		l.put(dim, " text ").put(plain, t.text(x.Text))
		return append(lines, l.end())
	}
	l.put(dim, " held by ").put(plain, strconv.Itoa(len(x.Holders))+" ")
	l.put(dim, t.holders(x))
	return append(lines, l.end())
}

// prefixList is what few targets leave room for: the columns of the map as lines, those around the selected one.
func (m *Model) prefixList(a area) []string {
	t := m.theme
	n := len(m.pic.columns)
	lines := []string{m.rule(a.w, "its columns", strconv.Itoa(min(m.columnAt()+1, n))+"/"+strconv.Itoa(n), false)}
	h := m.line(a.w).put(plain, " ").col(dim, "prefix", 12).num(dim, "uses", 5).num(dim, "last", 4).num(dim, "from", 5).num(dim, "blocks", 6).num(dim, "tokens", 6)
	what := "held by"
	if m.pic.snap.Router.Text {
		what = "text"
	}
	lines = append(lines, h.put(dim, " "+what).end())
	at := m.columnAt()
	first := max(0, min(at-a.rows/2, n-a.rows))
	for c := first; c < first+a.rows; c++ {
		if c >= n {
			lines = append(lines, spaces(a.w))
			continue
		}
		x := &m.pic.snap.Cache.Prefixes[m.pic.columns[c]]
		l, mark, k := m.line(a.w), " ", plain
		if c == at {
			mark, k = t.g.cursor, strong
		}
		l.put(accent, mark).col(k, t.hash(x.Hash), 12).num(plain, count(int64(x.Uses)), 5).num(dim, age(m.nowMS()-x.LastMS), 4).
			num(dim, count(int64(x.From)), 5).num(plain, count(int64(x.Blocks)), 6).num(plain, count(int64(x.Blocks)*int64(m.pic.snap.Router.BlockSize)), 6)
		if x.Text != "" {
			l.put(plain, " "+t.text(x.Text))
		} else {
			l.put(dim, " "+t.holders(x))
		}
		lines = append(lines, l.end())
	}
	return lines
}

// holders names the targets that hold a prefix, and how much of it.
func (t *theme) holders(x *snapshot.Prefix) string {
	var b strings.Builder
	for i, h := range x.Holders {
		if i > 0 {
			b.WriteString(", ")
		}
		if b.Len() > 400 {
			b.WriteString(t.g.more)
			break
		}
		b.WriteString(t.text(h.RouteKey) + " " + strconv.Itoa(h.Blocks) + "/" + strconv.Itoa(x.Blocks))
	}
	return b.String()
}
