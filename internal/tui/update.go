package tui

import (
	"maps"
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// Update takes a message in: an Update of the source, a key, a size, a beat, an answer.
func (m Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case Update:
		was := m
		if cmd = m.take(msg); m.looksLike(&was) {
			return m, cmd
		}
	case beatMsg:
		was := m
		if cmd = m.onBeat(); m.looksLike(&was) {
			return m, cmd
		}
	case tea.WindowSizeMsg:
		m.w, m.h = msg.Width, msg.Height
	case tea.BackgroundColorMsg:
		if m.opts.Dark == nil {
			m.dark = msg.IsDark()
			m.dress()
		}
	case tea.ColorProfileMsg:
		m.few = msg.Profile < colorprofile.ANSI256
		m.dress()
	case explainedMsg:
		m.answer(msg)
	case tea.PasteMsg:
		if m.typing {
			m.input, _ = m.input.Update(tea.PasteMsg{Content: clean(msg.Content, false)})
			m.setFilter(m.input.Value())
		}
	case tea.KeyPressMsg:
		cmd = m.onKey(msg)
	case tea.MouseClickMsg:
		m.onClick(msg.Mouse())
	case tea.MouseWheelMsg:
		m.onWheel(msg.Mouse())
	default:
		return m, nil
	}
	m.settle()
	return m, cmd
}

// looksLike says that an update or a beat left nothing to be drawn anew since was: it is held back, or says what is
// known.
func (m *Model) looksLike(was *Model) bool {
	u, o := &m.update, &was.update
	return m.pic == was.pic && m.beats == was.beats && u.Link == o.Link && u.Reason == o.Reason && u.Notice == o.Notice && u.AgeMS == o.AgeMS &&
		u.Play == nil && o.Play == nil && !m.frozen
}

func (m *Model) dress() { m.theme = newTheme(m.opts.ASCII, !m.opts.NoColor, m.dark, m.few) }

// take keeps an update. The picture follows at once where something turned that one must see or the last one has
// stood for a beat, else at the next beat.
func (m *Model) take(u Update) tea.Cmd {
	last := m.update
	if u.Snap == nil {
		u.Snap = last.Snap
	}
	if u.Snap != nil && u.Snap != last.Snap {
		m.watchTrust(last.Snap, u.Snap)
	}
	m.update = u
	if u.Link != Live && last.Link == Live || u.Link == Live && last.Link != Live || u.AgeMS != last.AgeMS {
		m.beats = 0
	}
	if u.Snap == nil || m.frozen {
		return m.tick()
	}
	old := m.pic.snap
	switch {
	case u.Snap == old:
		m.waiting = false
	case old == nil || u.Snap.AtMS < old.AtMS || u.Snap.AtMS-old.AtMS >= calm.Milliseconds() || !m.ticking || last.Link != Live || snapshot.Turned(old, u.Snap):
		m.adopt()
		m.early = m.ticking
	default:
		m.waiting = true
	}
	return m.tick()
}

// tick starts the beats if they do not go already. While nothing comes and nothing ages they rest.
func (m *Model) tick() tea.Cmd {
	if m.ticking || m.pic.snap == nil && m.update.Snap == nil || m.still() && !m.waiting {
		return nil
	}
	m.ticking = true
	return tea.Tick(beat, func(time.Time) tea.Msg { return beatMsg{} })
}

func (m *Model) onBeat() tea.Cmd {
	m.ticking = false
	early := m.early
	m.early = false
	if !m.still() && !early {
		m.beats++
	}
	if m.waiting && !m.frozen {
		m.adopt()
	}
	return m.tick()
}

// adopt makes the newest snapshot the picture. Selections stay on what they name; in the feeds the selected
// decision stays on its line.
func (m *Model) adopt() {
	feeds := []panel{ownPicksPanel, picksPanel}
	var at [2]int
	for i, l := range feeds {
		at[i] = m.row(l) - m.lists[l].top
	}
	if s := m.update.Snap; s != nil && s.Run != m.run {
		m.run = s.Run
	}
	m.beats = 0
	m.waiting = false
	m.redraw()
	for i, l := range feeds {
		if m.lists[l].sel != "" && m.pic.rowOf(l, m.lists[l].sel) >= 0 {
			m.lists[l].top = max(0, m.row(l)-at[i])
		}
	}
	if m.lists[workersPanel].sel == "" {
		m.lists[workersPanel].sel = m.pic.nameAt(workersPanel, m.row(workersPanel))
	}
}

// redraw makes the picture anew, of the newest snapshot unless the screen is frozen.
func (m *Model) redraw() {
	s := m.pic.snap
	if !m.frozen {
		s = m.update.Snap
	}
	if m.worker == "" && s != nil && len(s.Workers) > 0 {
		m.worker = m.lists[workersPanel].sel
		if m.worker == "" {
			m.worker = s.Workers[0].RouteKey
		}
	}
	m.pic = draw(s, m.order, &m.lists, m.worker, m.pic)
}

// watchTrust keeps the turns of trust between two snapshots.
func (m *Model) watchTrust(a, b *snapshot.Snapshot) {
	if a == nil {
		return
	}
	was := make(map[string]string, len(a.Workers))
	for i := range a.Workers {
		was[a.Workers[i].RouteKey] = stateWord(&a.Workers[i])
	}
	var turns map[string][]turn
	for i := range b.Workers {
		w := &b.Workers[i]
		from, ok := was[w.RouteKey]
		if to := stateWord(w); ok && from != to {
			if turns == nil { // models are copied, so maps are not written to
				turns = maps.Clone(m.turns)
			}
			t := append(slices.Clone(turns[w.RouteKey]), turn{b.AtMS, from, to, stateReason(w)})
			turns[w.RouteKey] = t[max(0, len(t)-maxTurns):]
		}
	}
	if turns != nil {
		present := make(map[string]bool, len(b.Workers))
		for i := range b.Workers {
			present[b.Workers[i].RouteKey] = true
		}
		maps.DeleteFunc(turns, func(k string, _ []turn) bool { return !present[k] && len(turns) > 2*len(b.Workers)+64 })
		m.turns = turns
	}
}

// row is the selected row of a panel: that of the name, or the first that can be selected.
func (m *Model) row(l panel) int {
	n := m.pic.length(l)
	if i := m.pic.rowOf(l, m.lists[l].sel); i >= 0 {
		return i
	}
	for i := range n {
		if m.pic.nameAt(l, i) != "" {
			return i
		}
	}
	return 0
}

// selectRow selects row i or, where it cannot be, the next one in the direction.
func (m *Model) selectRow(l panel, i, direction int) {
	n := m.pic.length(l)
	i = min(max(i, 0), n-1)
	for j := i; j >= 0 && j < n; j += direction {
		if s := m.pic.nameAt(l, j); s != "" {
			m.lists[l].sel = s
			if j == 0 && (l == picksPanel || l == ownPicksPanel) {
				m.lists[l].sel = "" // the newest, whichever it will be
			}
			if j == 1 && l == workersPanel {
				m.lists[l].top = 0 // with the head of its group
			}
			return
		}
	}
}

// settle ends every change of the state: selected rows of the page are made visible, and the frame is to be drawn
// anew.
func (m *Model) settle() {
	m.frame = &frame{}
	for _, p := range m.layout().panels {
		h := p.rows
		n := m.pic.length(p.panel)
		if h <= 0 || p.decoration {
			continue
		}
		ls := &m.lists[p.panel]
		i := m.row(p.panel)
		top := ls.top
		if i < top {
			top = i
			if p.panel == workersPanel && i > 0 && m.pic.nameAt(workersPanel, i-1) == "" {
				top = i - 1
			}
		}
		if i >= top+h {
			top = i - h + 1
		}
		ls.top = max(0, min(top, n-h))
	}
	if m.page == cachePage && m.snap() != nil {
		m.settleColumns()
	}
	m.full.top = max(0, min(m.full.top, len(m.full.lines)-m.overlayRows()))
	m.full.column = max(0, min(m.full.column, m.full.width-m.w+2))
	m.helpAt = max(0, min(m.helpAt, len(m.helpLines())-m.overlayRows()))
}
