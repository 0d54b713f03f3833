package tui

// area is where the rows of a panel lie on the screen.
type area struct {
	panel      panel
	x, y, w    int
	rows       int
	heads      int  // lines of heads below the title
	decoration bool // shown, not selected in
}

// layout is where the panels of the page lie. Views and selection both go by it.
type layout struct {
	panels []area
	detail area // lines about what is selected
	list   area // lines about what else there is; rows 0: none
	facts  int  // lines at the top of the worker page
	split  int  // x of the line between left and right; 0: there is none
}

// Widths from which the fleet page has a second column, and what that is given.
const (
	sideFrom = 160
	sideMin  = 56
	sideMax  = 84
)

// layout places the panels for the page and the size.
func (m *Model) layout() layout {
	if m.w < minWidth || m.h < minHeight || m.snap() == nil {
		return layout{}
	}
	body := m.h - headLines - footLines
	switch m.page {
	case fleetPage:
		return m.fleetLayout(body)
	case workerPage:
		facts := 10
		if m.h < 24 {
			facts = 5
		}
		rest := body - facts
		up := rest * 6 / 10
		if rest >= 20 { // what few prefixes leave is for decisions; in steps, so that lines seldom move
			up = min(up, max(10, (len(m.pic.prefixes)+8)/5*5))
		}
		return layout{facts: facts, panels: []area{
			{panel: prefixesPanel, y: headLines + facts + 2, w: m.w, rows: up - 2, heads: 1},
			{panel: ownPicksPanel, y: headLines + facts + up + 2, w: m.w, rows: rest - up - 2, heads: 1},
		}}
	case picksPage:
		return layout{panels: []area{{panel: picksPanel, y: headLines + 2, w: m.w, rows: body - 2, heads: 1}}}
	case cachePage:
		const heads, detail = 4, 3
		rows := body - heads - detail
		l := layout{detail: area{w: m.w, rows: detail - 1}}
		// What few targets leave is for the columns as lines.
		if spare := rows - max(len(m.pic.targets)+1, 8); spare >= 8 {
			l.list = area{w: m.w, rows: spare - 2}
			rows -= spare
		}
		l.panels = []area{{panel: cachePanel, y: headLines + heads, w: m.w, rows: rows, heads: heads - 1}}
		l.detail.y = headLines + heads + rows
		l.list.y = l.detail.y + detail + 2
		return l
	}
	return layout{}
}

func (m *Model) fleetLayout(body int) layout {
	var l layout
	heads, detail := 1, 0
	if m.h >= 20 {
		heads, detail = 2, 3
	}
	w, side := m.w, 0
	if m.w >= sideFrom {
		side = min(max(m.w*3/10, sideMin), sideMax)
		w = m.w - side - 2
		l.split = w
	}
	warnings := 1 + min(max(len(m.pic.warnings), 1), max(1, body/5))
	if side > 0 {
		warnings = 0
	}
	rows := body - heads - detail - warnings
	// What few workers leave is for the latest decisions.
	feed := 0
	if spare := rows - max(len(m.pic.workers)+1, 6); side == 0 && spare >= 5 {
		feed = spare
		rows -= feed
	}
	l.panels = append(l.panels, area{panel: workersPanel, y: headLines + heads, w: w, rows: rows, heads: heads})
	y := headLines + heads + rows
	if detail > 0 {
		l.detail = area{y: y + 1, w: w, rows: detail - 1}
		y += detail
	}
	if feed > 0 {
		l.panels = append(l.panels, area{panel: picksPanel, y: y + 2, w: w, rows: feed - 2, heads: 1, decoration: true})
		y += feed
	}
	if side == 0 {
		l.panels = append(l.panels, area{panel: warningsPanel, y: y + 1, w: w, rows: warnings - 1})
		return l
	}
	up := min(max(len(m.pic.warnings), 3), body/2-1)
	l.panels = append(l.panels,
		area{panel: warningsPanel, x: w + 2, y: headLines + 1, w: side, rows: up},
		area{panel: picksPanel, x: w + 2, y: headLines + up + 3, w: side, rows: body - up - 3, heads: 1, decoration: true})
	return l
}

// panelRows is how many rows of a panel are shown.
func (m *Model) panelRows(l panel) int {
	for _, a := range m.layout().panels {
		if a.panel == l && !a.decoration {
			return a.rows
		}
	}
	return 0
}

// overlayRows is how many lines an overlay shows.
func (m *Model) overlayRows() int { return max(1, m.h-headLines-footLines-1) }
