package tui

import (
	"strings"
	"unicode"

	"charm.land/bubbles/v2/key"
	tea "charm.land/bubbletea/v2"
)

// onKey is what a key does, wherever it is pressed.
func (m *Model) onKey(k tea.KeyPressMsg) tea.Cmd {
	if k.String() == "ctrl+c" {
		return tea.Quit
	}
	if behind, ok := m.behindEscape(k); ok {
		m.onKey(tea.KeyPressMsg{Code: tea.KeyEscape}) // which has no command
		return m.onKey(behind)
	}
	if m.typing {
		return m.onTyped(k)
	}
	ks := &m.keys
	switch {
	case key.Matches(k, ks.quit):
		return tea.Quit
	case key.Matches(k, ks.suspend):
		return tea.Suspend
	case key.Matches(k, ks.help):
		if m.over == helpOverlay {
			m.over = noOverlay
		} else {
			m.over = helpOverlay
		}
		return nil
	case key.Matches(k, ks.back):
		m.goBack()
		return nil
	}
	if cmd := m.onPlayKey(k); cmd != nil {
		return cmd
	}
	for i := range ks.pages {
		if key.Matches(k, ks.pages[i]) {
			m.over = noOverlay
			m.show(page(i))
			return nil
		}
	}
	switch {
	case key.Matches(k, ks.pause):
		return m.pause()
	case m.over != noOverlay:
		m.scrollOverlay(k)
		return nil
	}
	return m.onPageKey(k)
}

// behindEscape is the key of what reads as alt and a key: terminals send escape and a key pressed soon after it as
// that. Nothing here is bound to alt, but for the editing of a filter.
func (m *Model) behindEscape(k tea.KeyPressMsg) (tea.KeyPressMsg, bool) {
	in := &m.input.KeyMap
	if !k.Mod.Contains(tea.ModAlt) || m.typing && key.Matches(k, in.WordForward, in.WordBackward, in.DeleteWordBackward, in.DeleteWordForward) {
		return k, false
	}
	k.Mod &^= tea.ModAlt
	if k.Text == "" && k.Mod&^tea.ModShift == 0 && unicode.IsPrint(k.Code) {
		k.Text = string(k.Code)
		if k.Mod.Contains(tea.ModShift) {
			k.Text = strings.ToUpper(k.Text)
		}
	}
	return k, true
}

// onPageKey handles what a key does to the focused panel.
func (m *Model) onPageKey(k tea.KeyPressMsg) tea.Cmd {
	ks := &m.keys
	l := m.focus
	page := max(1, m.panelRows(l)-1)
	switch {
	case key.Matches(k, ks.up):
		m.selectRow(l, m.row(l)-1, -1)
	case key.Matches(k, ks.down):
		m.selectRow(l, m.row(l)+1, 1)
	case key.Matches(k, ks.pageUp):
		m.selectRow(l, m.row(l)-page, -1)
		if m.row(l) <= page {
			m.selectRow(l, 0, 1)
		}
	case key.Matches(k, ks.pageDown):
		m.selectRow(l, m.row(l)+page, 1)
	case key.Matches(k, ks.top):
		m.selectRow(l, 0, 1)
	case key.Matches(k, ks.bottom):
		m.selectRow(l, m.pic.length(l)-1, -1)
	case key.Matches(k, ks.left):
		m.sideways(-1)
	case key.Matches(k, ks.right):
		m.sideways(1)
	case key.Matches(k, ks.nextPanel):
		m.turnPanel(1)
	case key.Matches(k, ks.prevPanel):
		m.turnPanel(int(numPanels) - 1)
	case key.Matches(k, ks.filter):
		m.typing = true
		m.input.SetValue(m.lists[l].filter)
		m.input.CursorEnd()
		return m.input.Focus()
	case key.Matches(k, ks.sort):
		m.order.by = (m.order.by + 1) % numSortKeys
		m.order.reverse = false
		m.redraw()
	case key.Matches(k, ks.reverse):
		m.order.reverse = !m.order.reverse
		m.redraw()
	case key.Matches(k, ks.open):
		return m.openSelected()
	}
	return nil
}

// turnPanel moves the focus by panels, through all pages.
func (m *Model) turnPanel(by int) {
	m.focus = panel((int(m.focus) + by) % int(numPanels))
	m.page = panelPage[m.focus]
}

// show turns to a page and its first panel.
func (m *Model) show(p page) {
	if m.page == p {
		return
	}
	m.page = p
	for l := range numPanels {
		if panelPage[l] == p {
			m.focus = l
			break
		}
	}
}

// goBack leaves the overlay, then the filter, then the page.
func (m *Model) goBack() {
	switch {
	case m.over != noOverlay:
		m.over = noOverlay
	case m.lists[m.focus].filter != "":
		m.setFilter("")
	case m.page == workerPage && m.back != workerPage:
		m.show(m.back)
		m.back = fleetPage
	default:
		m.show(fleetPage)
	}
}

// sideways is left and right: columns of the cache map, workers of the worker page, groups of the table.
func (m *Model) sideways(by int) {
	switch m.focus {
	case cachePanel:
		if n := len(m.pic.columns); n > 0 {
			m.column = m.prefixName(m.pic.columns[min(max(m.columnAt()+by, 0), n-1)])
		}
	case prefixesPanel, ownPicksPanel:
		ts := m.pic.targets
		for i, w := range ts {
			if m.pic.snap.Workers[w].RouteKey == m.worker {
				next := ts[min(max(i+by, 0), len(ts)-1)]
				m.setWorker(m.pic.snap.Workers[next].RouteKey)
				return
			}
		}
		if len(ts) > 0 {
			m.setWorker(m.pic.snap.Workers[ts[0]].RouteKey)
		}
	case workersPanel:
		i := m.row(workersPanel)
		for j := i + by; j >= 0 && j < len(m.pic.workers); j += by {
			// Going back stops at the head of the own group first.
			if m.pic.workers[j].worker < 0 && (by > 0 || j+1 != i) {
				m.selectRow(workersPanel, j+1, 1)
				return
			}
		}
	}
}

// setWorker turns the worker page to a target.
func (m *Model) setWorker(routeKey string) {
	if m.worker == routeKey {
		return
	}
	m.worker = routeKey
	for _, l := range []panel{prefixesPanel, ownPicksPanel} {
		m.lists[l].sel, m.lists[l].top = "", 0
	}
	m.lists[workersPanel].sel = routeKey
	m.redraw()
}

// openSelected is enter.
func (m *Model) openSelected() tea.Cmd {
	i := m.row(m.focus)
	name := m.pic.nameAt(m.focus, i)
	if name == "" {
		return nil
	}
	switch m.focus {
	case workersPanel, cachePanel:
		m.openWorker(name)
	case warningsPanel:
		if k := m.pic.snap.Warnings[m.pic.warnings[i]].RouteKey; k != "" {
			m.openWorker(k)
		}
	case prefixesPanel:
		m.column = name
		m.show(cachePage)
		m.lists[cachePanel].sel = m.worker
	case picksPanel:
		return m.ask(m.pic.snap.Picks[m.pic.picks[i]].ID)
	case ownPicksPanel:
		return m.ask(m.pic.snap.Picks[m.pic.ownPicks[i]].ID)
	}
	return nil
}

func (m *Model) openWorker(routeKey string) {
	m.back = m.page
	m.setWorker(routeKey)
	m.show(workerPage)
}

func (m *Model) scrollOverlay(k tea.KeyPressMsg) {
	ks := &m.keys
	at := &m.full.top
	if m.over == helpOverlay {
		at = &m.helpAt
	}
	page := max(1, m.overlayRows()-1)
	switch {
	case key.Matches(k, ks.up):
		*at--
	case key.Matches(k, ks.down):
		*at++
	case key.Matches(k, ks.pageUp):
		*at -= page
	case key.Matches(k, ks.pageDown):
		*at += page
	case key.Matches(k, ks.top):
		*at = 0
	case key.Matches(k, ks.bottom):
		*at = 1 << 30
	case key.Matches(k, ks.left):
		m.full.column -= 8
	case key.Matches(k, ks.right):
		m.full.column += 8
	}
}

// onTyped is a key while a filter is typed; every letter filters.
func (m *Model) onTyped(k tea.KeyPressMsg) tea.Cmd {
	switch {
	case key.Matches(k, m.keys.back):
		m.typing = false
		m.input.Blur()
		m.setFilter("")
		return nil
	case key.Matches(k, m.keys.open), k.String() == "tab":
		m.typing = false
		m.input.Blur()
		return nil
	}
	var cmd tea.Cmd
	m.input, cmd = m.input.Update(k)
	m.setFilter(m.input.Value())
	return cmd
}

// setFilter filters the focused panel. The cache map's rows are those of the table of targets.
func (m *Model) setFilter(s string) {
	if m.lists[m.focus].filter == s {
		return
	}
	m.lists[m.focus].filter = s
	m.redraw()
}

// pause freezes the picture, or a played file.
func (m *Model) pause() tea.Cmd {
	if m.player != nil {
		paused := m.update.Play != nil && m.update.Play.Paused
		return m.steer(func(p Player) { p.Pause(!paused) })
	}
	m.frozen = !m.frozen
	if !m.frozen && m.update.Snap != nil {
		m.adopt()
	}
	return m.tick()
}

// steer does something to the played file, as a command: the model waits for nobody.
func (m *Model) steer(do func(Player)) tea.Cmd {
	p := m.player
	return func() tea.Msg {
		do(p)
		return nil
	}
}

// onPlayKey steers a played file; nil for keys that do not.
func (m *Model) onPlayKey(k tea.KeyPressMsg) tea.Cmd {
	if m.player == nil {
		return nil
	}
	ks := &m.keys
	speed := 1.0
	if p := m.update.Play; p != nil {
		speed = p.Speed
	}
	switch {
	case key.Matches(k, ks.playPause):
		return m.pause()
	case key.Matches(k, ks.slower):
		return m.steer(func(p Player) { p.SetSpeed(max(speed/2, 1.0/16)) })
	case key.Matches(k, ks.faster):
		return m.steer(func(p Player) { p.SetSpeed(min(speed*2, 64)) })
	case key.Matches(k, ks.backward):
		return m.steer(func(p Player) { p.Skip(-10_000) })
	case key.Matches(k, ks.forward):
		return m.steer(func(p Player) { p.Skip(10_000) })
	}
	return nil
}

// prefixName names a prefix of the snapshot.
func (m *Model) prefixName(i int) string {
	x := &m.pic.snap.Cache.Prefixes[i]
	return x.Model + "\x00" + x.Hash
}

// columnAt is the selected column of the cache map.
func (m *Model) columnAt() int {
	for c, i := range m.pic.columns {
		if m.prefixName(i) == m.column {
			return c
		}
	}
	return 0
}

// onWheel scrolls what is focused.
func (m *Model) onWheel(e tea.Mouse) {
	by := 0
	switch e.Button {
	case tea.MouseWheelUp:
		by = -1
	case tea.MouseWheelDown:
		by = 1
	}
	switch {
	case by == 0 || m.typing:
	case m.over == helpOverlay:
		m.helpAt += 3 * by
	case m.over == explainOverlay:
		m.full.top += 3 * by
	default:
		m.selectRow(m.focus, m.row(m.focus)+by, by)
	}
}

// onClick selects what was clicked.
func (m *Model) onClick(e tea.Mouse) {
	if e.Button != tea.MouseLeft || m.over != noOverlay || m.typing {
		return
	}
	for _, p := range m.layout().panels {
		if r := e.Y - p.y; e.X >= p.x && e.X < p.x+p.w && r >= 0 && r < p.rows && !p.decoration {
			m.focus = p.panel
			if i := m.lists[p.panel].top + r; m.pic.nameAt(p.panel, i) != "" {
				m.selectRow(p.panel, i, 1)
			}
			return
		}
	}
}
