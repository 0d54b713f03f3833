package tui

import (
	"strconv"
	"strings"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// pickColumns are the columns of decisions that fit a width: the chosen worker's name takes what is left, and the
// runner-up's after it.
type pickColumns struct {
	id, at, picked, runner, model, session, rule, request bool
	name, other                                           int
}

func fitPicks(w, longest int, own bool) pickColumns {
	c := pickColumns{at: true, picked: !own}
	// basis 10, hits 11, tokens 6, margin 7, with their spaces and the mark, and the age 5
	room := w - 1 - 11 - 12 - 7 - 8 - 5
	take := func(on *bool, n int) {
		if room-n >= 22 {
			*on = true
			room -= n
		}
	}
	take(&c.runner, 13)
	take(&c.id, 9)
	take(&c.session, 9)
	take(&c.model, 19)
	take(&c.rule, 15)
	if c.runner {
		room += 12
		c.other = min(room/2, 24, longest+1)
		room -= c.other + 1
	}
	c.name = max(4, min(room-1, longest+1))
	c.request = own || room-c.name > 12
	return c
}

// picks draws the decisions of a panel.
func (m *Model) picks(a area, title string, idx []int, own bool) []string {
	focused := m.focus == a.panel && !a.decoration
	right := m.position(a.panel)
	if a.decoration {
		right = "3 opens"
	}
	lines := []string{m.rule(a.w, title, right, focused)}
	c := fitPicks(a.w, m.longestPicked(a, idx), own)
	h := m.line(a.w).put(plain, " ")
	h.num(dim, "ago", 4)
	if c.id {
		h.num(dim, "decision", 8)
	}
	h.col(dim, "basis", 10).num(dim, "hits/blocks", 11).num(dim, "tokens", 6)
	if c.picked {
		h.col(dim, "worker", c.name)
	}
	if c.runner {
		h.col(dim, "runner-up", c.other)
	}
	h.num(dim, "margin", 7)
	if c.rule {
		h.col(dim, "settled by", 14)
	}
	if c.session {
		h.col(dim, "session", 8)
	}
	if c.model {
		h.col(dim, "model", 18)
	}
	if c.request {
		h.put(dim, "request")
	}
	lines = append(lines, h.end())
	sel, top := m.row(a.panel), m.lists[a.panel].top
	if a.decoration {
		sel, top = -1, 0
	}
	for r := range a.rows {
		i := top + r
		if i >= len(idx) {
			lines = append(lines, m.noPicks(a, r, len(idx)))
			continue
		}
		lines = append(lines, m.pickRow(a.w, &c, &m.pic.snap.Picks[idx[i]], i == sel, focused, own))
	}
	return lines
}

func (m *Model) noPicks(a area, r, n int) string {
	if r == 0 && n == 0 {
		says := "no decisions yet"
		if m.lists[a.panel].filter != "" {
			says = "nothing meets the filter; esc clears it"
		}
		return m.line(a.w).put(dim, "  "+says).end()
	}
	return spaces(a.w)
}

func (m *Model) pickRow(w int, c *pickColumns, x *snapshot.Pick, selected, focused, own bool) string {
	t := m.theme
	l := m.line(w)
	mark := " "
	if selected {
		mark = t.g.cursor
		if focused && l.f == normal {
			l.f = chosen
		}
	}
	l.put(accent, mark).num(dim, age(m.nowMS()-x.AtMS), 4)
	if c.id {
		l.num(dim, strconv.FormatUint(x.ID%1e8, 10), 8)
	}
	k := plain
	switch x.Basis {
	case "exact":
		k = good
	case "estimated":
		k = cool
	case "load-only":
		k = dim
	}
	l.col(k, t.text(x.Basis), 10)
	hits := plain
	if x.Hits == 0 {
		hits = dim
	}
	l.num(hits, count(x.Hits)+"/"+count(x.Blocks), 11).num(plain, count(x.Tokens), 6)
	if c.picked {
		l.put(plain, t.name(x.RouteKey, c.name)+" ")
	}
	if c.runner {
		l.put(dim, t.name(x.RunnerUp, c.other)+" ")
	}
	l.num(plain, t.margin(x.Margin), 7)
	if c.rule {
		l.col(dim, t.text(x.Rule), 14)
	}
	if c.session {
		l.col(dim, t.hash(x.Session), 8)
	}
	if c.model {
		l.col(dim, t.text(x.Model), 18)
	}
	if c.request {
		l.put(dim, t.text(x.RequestID))
	}
	return l.end()
}

// margin is a cost in at most 7 cells.
func (t *theme) margin(p *float64) string {
	if p == nil {
		return t.g.unknown
	}
	v := *p
	if v != v {
		return "?"
	}
	sign := "+"
	if v < 0 {
		sign, v = "-", -v
	}
	switch {
	case v == 0:
		return "0"
	case v < 0.01:
		return sign + "<0.01"
	case v < 999.5:
		return sign + scaled(v, 3)
	}
	return sign + scaled(min(v, 1e20), 3)
}

// decisions is the page of the feed.
func (m *Model) decisions() []string {
	a := m.layout().panels[0]
	s := m.snap()
	title := "decisions"
	if s.Router.Kept > 0 && s.Router.Kept < s.Router.Requests {
		title += " (kept " + unsignedCount(s.Router.Kept) + " of " + unsignedCount(s.Router.Requests) + ")"
	}
	return m.picks(a, title, m.pic.picks, false)
}

// latest is the feed beside the fleet.
func (m *Model) latest(a area) []string {
	return m.picks(a, "decisions", m.pic.picks, false)
}

// longestPicked is longestName with the names that are shown of workers which are gone.
func (m *Model) longestPicked(a area, idx []int) int {
	longest, top := m.longestName(), 0
	if !a.decoration {
		top = m.lists[a.panel].top
	}
	for _, i := range idx[min(top, len(idx)):min(top+a.rows, len(idx))] {
		p := &m.pic.snap.Picks[i]
		for _, name := range []string{p.RouteKey, p.RunnerUp} {
			if _, here := m.pic.byKey[name]; !here && longest < nameMax {
				longest = max(longest, width(strings.TrimRight(m.theme.name(name, nameMax), " ")))
			}
		}
	}
	return longest
}

// explanation is a decision in full.
func (m *Model) explanation() []string {
	t := m.theme
	e := &m.full
	right := ""
	if n := len(e.lines); n > 0 {
		right = "lines " + strconv.Itoa(e.top+1) + "-" + strconv.Itoa(min(n, e.top+m.overlayRows())) + " of " + strconv.Itoa(n)
	}
	title := "decision #" + strconv.FormatUint(e.pick, 10)
	if e.run != m.pic.snap.Run { // its numbers begin anew with each run
		title += ", before the router's restart"
	}
	lines := []string{m.rule(m.w, title, right, true)}
	put := func(k tone, s string) {
		lines = append(lines, m.line(m.w).put(k, s).end())
	}
	switch {
	case e.busy:
		put(dim, " fetching its record "+t.g.more)
	case e.err != "":
		for _, s := range t.wrap(e.err, m.w-6, 4) {
			put(bad, " "+t.g.bad+" "+s)
		}
		put(dim, "   esc goes back, enter there asks again")
	default:
		for _, s := range e.lines[e.top:min(len(e.lines), e.top+m.overlayRows())] {
			put(plain, " "+t.window(s, e.column, m.w-2))
		}
	}
	return lines
}
