package tui

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	tea "charm.land/bubbletea/v2"
)

// The smallest screen that is drawn.
const (
	minWidth  = 60
	minHeight = 15
)

// Lines above and below a page.
const (
	headLines = 3
	footLines = 1
)

// View draws the screen.
func (m Model) View() tea.View {
	if !m.frame.drawn {
		*m.frame = frame{true, m.screen()}
	}
	v := tea.NewView(m.frame.text)
	v.AltScreen = true
	v.WindowTitle = "kvroute watch"
	if m.opts.Mouse {
		v.MouseMode = tea.MouseModeCellMotion
	}
	if m.typing && m.w >= minWidth && m.h >= minHeight {
		x := width("filter: ") + 1 + width(clean(m.input.Value()[:min(len(m.input.Value()), runeOffset(m.input.Value(), m.input.Position()))], m.theme.ascii))
		v.Cursor = tea.NewCursor(min(x, m.w-1), m.h-1)
	}
	return v
}

// runeOffset is where in bytes the n-th rune begins.
func runeOffset(s string, n int) int {
	for i := range s {
		if n == 0 {
			return i
		}
		n--
	}
	return len(s)
}

// screen is h lines of w cells: a pure function of the model.
func (m *Model) screen() string {
	if m.w <= 0 || m.h <= 0 {
		return ""
	}
	if m.w < minWidth || m.h < minHeight {
		return m.tooSmall()
	}
	lines := m.header()
	body := m.h - headLines - footLines
	switch {
	case m.over == helpOverlay:
		lines = append(lines, m.help()...)
	case m.snap() == nil:
		lines = append(lines, m.welcome(body)...)
	case m.over == explainOverlay:
		lines = append(lines, m.explanation()...)
	case m.page == fleetPage:
		lines = append(lines, m.fleet()...)
	case m.page == workerPage:
		lines = append(lines, m.workerPage()...)
	case m.page == picksPage:
		lines = append(lines, m.decisions()...)
	case m.page == cachePage:
		lines = append(lines, m.cacheMap()...)
	}
	for len(lines) < m.h-footLines {
		lines = append(lines, spaces(m.w))
	}
	lines = append(lines[:m.h-footLines], m.foot())
	return strings.Join(lines, "\n")
}

// tooSmall is what is said where nothing can be drawn.
func (m *Model) tooSmall() string {
	says := []string{
		fmt.Sprintf("kvroute watch needs %dx%d cells;", minWidth, minHeight),
		fmt.Sprintf("here are %dx%d. q quits.", m.w, m.h),
	}
	lines := make([]string, m.h)
	for i := range lines {
		lines[i] = spaces(m.w)
		if i < len(says) {
			lines[i] = m.theme.left(says[i], m.w)
		}
	}
	return strings.Join(lines, "\n")
}

// line puts a line of exactly w cells together. What does not fit is cut.
type line struct {
	t    *theme
	f    face
	w    int
	used int
	b    strings.Builder
}

func (m *Model) line(w int) *line { return &line{t: m.theme, f: m.lineFace(), w: w} }

// put appends clean text.
func (l *line) put(k tone, s string) *line {
	if room := l.w - l.used; width(s) > room {
		s = l.t.cut(s, room)
	}
	l.used += width(s)
	if s == "" || k == plain && l.f == normal {
		l.b.WriteString(s)
		return l
	}
	i := &l.t.inks[l.f][k]
	l.b.WriteString(i.open)
	l.b.WriteString(s)
	l.b.WriteString(i.shut)
	return l
}

// col appends clean text in w cells, from the left, and a space.
func (l *line) col(k tone, s string, w int) *line { return l.put(k, l.t.left(s, w)+" ") }

// num appends a number in w cells, at the right, and a space.
func (l *line) num(k tone, s string, w int) *line { return l.put(k, l.t.right(s, w)+" ") }

// room is how many cells are left.
func (l *line) room() int { return l.w - l.used }

// to fills up to a column.
func (l *line) to(x int) *line {
	if x > l.used {
		l.put(plain, spaces(x-l.used))
	}
	return l
}

func (l *line) end() string {
	l.to(l.w)
	return l.b.String()
}

// rule is a title in a line across.
func (m *Model) rule(w int, title, right string, focused bool) string {
	l := m.line(w)
	k := dim
	if focused {
		k = accent
	}
	g := m.theme.g
	if title != "" {
		l.put(k, strings.Repeat(g.rule, 2)+" ")
		if focused {
			l.put(strong, title)
		} else {
			l.put(plain, title)
		}
		l.put(plain, " ")
	}
	if n := l.room() - width(right) - 4; n > 0 && right != "" {
		l.put(k, strings.Repeat(g.rule, n)+" ").put(dim, right).put(k, " "+g.rule+g.rule)
	}
	return l.put(k, strings.Repeat(g.rule, max(0, l.room()))).end()
}

// position is where in a list one is, and its filter.
func (m *Model) position(p panel) string {
	n := m.pic.length(p)
	at := 0
	if n > 0 {
		at = m.row(p) + 1
	}
	if p == workersPanel { // heads of groups are no targets
		n, at = len(m.pic.targets), 0
		for _, r := range m.pic.workers[:min(m.row(p)+1, len(m.pic.workers))] {
			if r.worker >= 0 {
				at++
			}
		}
	}
	s := strconv.Itoa(at) + "/" + strconv.Itoa(n)
	if f := m.lists[p].filter; f != "" {
		s = "filter " + m.theme.cut(m.theme.text(f), 30) + ", " + s
	}
	return s
}

// header is what stands above every page.
func (m *Model) header() []string {
	t := m.theme
	l := &line{t: t, w: m.w}
	l.put(strong, " kvroute ")
	names := [numPages]string{"fleet", "worker", "decisions", "cache"}
	for i, n := range names {
		n = strconv.Itoa(i+1) + " " + n
		if page(i) == m.page {
			l.put(accent, " [").put(strong, n).put(accent, "]")
		} else {
			l.put(dim, "  "+n+" ")
		}
	}
	glyph, k, words := m.linkState()
	words = t.cut(words, l.room()-5)
	l.to(m.w-width(words)-4).put(k, " "+glyph+" ").put(k, words)
	return []string{l.end(), m.totals(), m.about()}
}

// totals is the line of numbers.
func (m *Model) totals() string {
	s := m.snap()
	l := m.line(m.w)
	if s == nil {
		return l.end()
	}
	t, r := m.theme, &s.Router
	l.put(plain, " ")
	sep := func() *line {
		if m.w < 90 {
			return l.put(dim, " "+t.g.sep)
		}
		return l.put(dim, " "+t.g.sep+" ")
	}
	l.put(strong, t.right(rate(r.RequestRate), 5)).put(dim, " req/s")
	sep().put(dim, "hit ").put(strong, t.right(t.share(r.HitShare1m), 4)).put(dim, " 1m ").put(plain, t.right(t.share(r.HitShare15m), 4)).put(dim, " 15m")
	var saved *float64
	if r.InputTokens > 0 {
		v := float64(r.SavedTokens) / float64(r.InputTokens)
		saved = &v
	}
	sep().put(dim, "saved ").put(plain, t.right(count(r.SavedTokens), 5)).put(dim, " "+t.right(t.share(saved), 4)+" tok")
	sep()
	if m.w >= 100 {
		l.put(dim, "router ")
	}
	l.put(plain, t.right(t.millis(r.DispatchP50), 4)).put(dim, " p50 ").put(plain, t.right(t.millis(r.DispatchP99), 4)).put(dim, " p99 ms")
	if l.room() >= 20 {
		sep().put(plain, t.right(count(r.InFlight), 5)).put(dim, " in flight")
	}
	if l.room() >= 22 {
		sep().put(plain, t.right(unsignedCount(r.Requests), 5)).put(dim, " requests")
	}
	if l.room() >= 40 {
		sep().put(plain, t.right(count(s.Cache.Held), 5)).put(dim, " blocks held, ").put(plain, t.right(count(s.Cache.Distinct), 5)).put(dim, " distinct")
	}
	return l.end()
}

// about is the line of words: what is watched, how it decides.
func (m *Model) about() string {
	t := m.theme
	l := m.line(m.w)
	l.put(plain, " ")
	if m.update.Link == Lost {
		says := "stale " + age(m.staleMS())
		const tail = "; trying again"
		if r := strings.TrimSuffix(t.text(m.update.Reason), tail); r != "" {
			says += ": " + r
		}
		l.f = normal
		return l.put(bad, t.g.bad+" "+t.cut(says, l.room()-2-len(tail))+tail).end()
	}
	if n := m.update.Notice; n != "" {
		l.put(warn, t.g.warn+" "+t.cut(t.text(n), l.room()-2)+" ").put(dim, t.g.sep+" ")
	}
	if p := m.update.Play; p != nil {
		return m.playLine(l, p)
	}
	s := m.snap()
	if s == nil {
		return l.put(dim, t.text(m.name)).end()
	}
	r := &s.Router
	switch {
	case r.Draining:
		l.put(warn, t.g.warn+" draining").put(dim, " "+t.g.sep+" ")
	case !r.Ready:
		l.put(bad, t.g.bad+" not ready: "+t.text(strings.Join(r.NotReady, ", "))).put(dim, " "+t.g.sep+" ")
	}
	l.put(dim, t.text(m.name)+" "+t.g.sep+" ").put(plain, t.text(r.Policy))
	for _, k := range slices.Sorted(maps.Keys(r.Flags)) {
		if r.Flags[k] == nil { // not set
			continue
		}
		l.put(dim, " "+t.text(strings.ReplaceAll(k, "_", "-"))+"="+t.text(fmt.Sprint(r.Flags[k])))
		if l.room() < 30 {
			break
		}
	}
	up := "up " + age(m.nowMS()-r.StartedMS)
	if l.room() >= 40 && r.Version != "" {
		up = t.cut(t.text(r.Version), 16) + " " + up
	}
	if n := l.room() - width(up) - 2; n > 0 {
		l.to(m.w-width(up)-1).put(dim, up)
	}
	return l.end()
}

// playLine is where a played file stands.
func (m *Model) playLine(l *line, p *Play) string {
	t := m.theme
	l.put(dim, t.cut(t.text(m.name), max(10, m.w/4))+"  ")
	glyph := t.g.play
	if p.Paused {
		glyph = t.g.paused
	}
	length := p.ToMS - p.FromMS
	l.put(accent, glyph+" ").put(strong, clock(p.AtMS-p.FromMS)).put(dim, " of "+clock(length)+"  ")
	end := fmt.Sprintf("  %gx ", p.Speed)
	part := 0.0
	if length > 0 {
		part = float64(p.AtMS-p.FromMS) / float64(length)
	}
	full, rest := t.bar(part, max(0, l.room()-width(end)))
	return l.put(cool, full).put(dim, rest).put(plain, end).end()
}

// foot is the line of keys, or of the filter that is typed.
func (m *Model) foot() string {
	t := m.theme
	l := &line{t: t, w: m.w}
	l.put(plain, " ")
	if m.typing {
		l.put(accent, "filter: ").put(plain, t.text(m.input.Value()))
		hint := "worker: model: basis: session: state: or any text   enter keeps  esc clears "
		if l.room() > width(hint)+2 {
			l.to(m.w-width(hint)).put(dim, hint)
		}
		return l.end()
	}
	keys := m.footer()
	// The way out and to help stay; of the others, what does not fit is left out.
	last := 0
	for _, b := range keys[len(keys)-2:] {
		last += width(b.Help().Key) + width(b.Help().Desc) + 3
	}
	for i, b := range keys {
		h := b.Help()
		n := width(h.Key) + width(h.Desc) + 3
		if i < len(keys)-2 && n+last > l.room() {
			continue
		}
		l.put(accent, h.Key).put(dim, " "+h.Desc+"  ")
	}
	return l.end()
}

// welcome is the page before the first snapshot.
func (m *Model) welcome(rows int) []string {
	t := m.theme
	says := []struct {
		k tone
		s string
	}{
		{strong, "waiting for " + t.text(m.name)},
		{plain, ""},
		{warn, t.text(m.update.Reason)},
		{dim, "it is tried again until it answers; q quits"},
	}
	var lines []string
	for range max(0, rows/2-3) {
		lines = append(lines, spaces(m.w))
	}
	for _, x := range says {
		for _, part := range t.wrap(x.s, m.w-8, 4) {
			l := &line{t: t, w: m.w}
			lines = append(lines, l.to((m.w-width(part))/2).put(x.k, part).end())
		}
	}
	return lines
}

// wrap breaks clean text into at most n lines of w cells, at spaces where there are any.
func (t *theme) wrap(s string, w, n int) []string {
	var lines []string
	cur := ""
	words := strings.Fields(s)
	for i, word := range words {
		switch {
		case cur == "":
			cur = word
		case width(cur)+1+width(word) <= w:
			cur += " " + word
		default:
			if len(lines) == n-1 {
				return append(lines, t.cut(cur+" "+strings.Join(words[i:], " "), w))
			}
			lines = append(lines, t.cut(cur, w))
			cur = word
		}
	}
	return append(lines, t.cut(cur, w))
}
