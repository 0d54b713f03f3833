package tui

import (
	"charm.land/bubbles/v2/key"
)

// keyMap is every key there is. Help and footers are made from it.
type keyMap struct {
	up, down, left, right, pageUp, pageDown, top, bottom key.Binding
	open, back, filter, nextPanel, prevPanel             key.Binding
	pages                                                [numPages]key.Binding
	sort, reverse, pause, help, quit, suspend            key.Binding
	playPause, slower, faster, backward, forward         key.Binding
}

func newKeys() keyMap {
	b := func(shown, does string, keys ...string) key.Binding {
		return key.NewBinding(key.WithKeys(keys...), key.WithHelp(shown, does))
	}
	return keyMap{
		up:        b("k", "up", "up", "k"),
		down:      b("j", "down", "down", "j"),
		left:      b("h", "left, previous group or worker", "left", "h"),
		right:     b("l", "right, next group or worker", "right", "l"),
		pageUp:    b("pgup", "a page up", "pgup", "ctrl+b"),
		pageDown:  b("pgdn", "a page down", "pgdown", "ctrl+f"),
		top:       b("g", "first", "g", "home"),
		bottom:    b("G", "last", "G", "shift+g", "end"),
		open:      b("enter", "open", "enter"),
		back:      b("esc", "back", "esc"),
		filter:    b("/", "filter", "/"),
		nextPanel: b("tab", "next panel", "tab"),
		prevPanel: b("shift+tab", "previous panel", "shift+tab"),
		pages: [numPages]key.Binding{
			b("1", "fleet", "1"), b("2", "worker", "2"), b("3", "decisions", "3"), b("4", "cache map", "4"),
		},
		sort:      b("s", "sort", "s"),
		reverse:   b("S", "reverse", "S", "shift+s"),
		pause:     b("p", "pause", "p"),
		help:      b("?", "help", "?"),
		quit:      b("q", "quit", "q", "ctrl+c"),
		suspend:   b("ctrl+z", "suspend", "ctrl+z"),
		playPause: b("space", "pause or play", "space"),
		slower:    b("[", "slower", "["),
		faster:    b("]", "faster", "]"),
		backward:  b("<", "back 10 s", "<", ","),
		forward:   b(">", "on 10 s", ">", "."),
	}
}

// footer is the keys of the focused panel, the most useful first: what does not fit is left out.
func (m *Model) footer() []key.Binding {
	k := &m.keys
	as := func(b key.Binding, shown, does string) key.Binding {
		b.SetHelp(shown, does)
		return b
	}
	arrows := "↑↓"
	sides := "←→"
	if m.theme.ascii {
		arrows, sides = "jk", "hl"
	}
	switch m.over {
	case helpOverlay:
		return []key.Binding{as(k.down, arrows, "scroll"), k.back, k.quit}
	case explainOverlay:
		return []key.Binding{as(k.down, arrows+sides, "scroll"), k.back, k.quit}
	}
	if m.typing {
		return []key.Binding{as(k.open, "enter", "keep"), as(k.back, "esc", "no filter")}
	}
	move := as(k.down, arrows, "move")
	bs := []key.Binding{move}
	switch m.focus {
	case workersPanel:
		bs = append(bs, as(k.open, "enter", "open worker"), k.filter, as(k.sort, "s", "sort ("+sortNames[m.order.by]+")"))
	case warningsPanel:
		bs = append(bs, as(k.open, "enter", "open worker"), k.filter)
	case prefixesPanel:
		bs = append(bs, as(k.right, sides, "other worker"), as(k.open, "enter", "in cache map"), k.filter, k.back)
	case ownPicksPanel:
		bs = append(bs, as(k.right, sides, "other worker"), as(k.open, "enter", "explain"), k.filter, k.back)
	case picksPanel:
		bs = append(bs, as(k.open, "enter", "explain"), k.filter)
	case cachePanel:
		bs[0] = as(k.down, arrows+sides, "move")
		bs = append(bs, as(k.open, "enter", "open worker"), k.filter, as(k.sort, "s", "sort ("+sortNames[m.order.by]+")"))
	}
	if m.player != nil {
		bs = append(bs, as(k.playPause, "space", "pause"), as(k.faster, "[ ]", "speed"), as(k.forward, "< >", "seek"))
	} else {
		bs = append(bs, k.pause)
	}
	return append(bs, as(k.nextPanel, "tab", "panel"), as(k.pages[0], "1-4", "pages"), k.help, k.quit)
}

// allKeys is what help lists, in groups.
func (m *Model) allKeys() (groups []keyGroup) {
	k := &m.keys
	both := func(a, b key.Binding, does string) key.Binding {
		a.SetHelp(a.Help().Key+" "+b.Help().Key, does)
		return a
	}
	groups = []keyGroup{
		{"pages", k.pages[:]},
		{"moving", []key.Binding{
			both(k.down, k.up, "down, up (and arrows)"), both(k.left, k.right, "left, right; on lists the group or worker before, behind"),
			both(k.pageUp, k.pageDown, "a page"), both(k.top, k.bottom, "first, last"), both(k.nextPanel, k.prevPanel, "next panel, the one before"),
		}},
		{"doing", []key.Binding{k.open, k.back, k.filter, k.sort, k.reverse, k.pause, k.help, k.suspend, k.quit}},
	}
	if m.player != nil {
		groups = append(groups, keyGroup{"a played file", []key.Binding{
			k.playPause, both(k.slower, k.faster, "slower, faster"), both(k.backward, k.forward, "10 s back, on"),
		}})
	}
	return groups
}

type keyGroup struct {
	title string
	keys  []key.Binding
}
