package tui

// helpLine is a line of the help, a title or a key.
type helpLine struct{ key, does string }

// helpLines are all keys, and what the marks mean.
func (m *Model) helpLines() []helpLine {
	var lines []helpLine
	for _, g := range m.allKeys() {
		lines = append(lines, helpLine{"", g.title})
		for _, b := range g.keys {
			lines = append(lines, helpLine{b.Help().Key, b.Help().Desc})
		}
	}
	g := m.theme.g
	return append(lines,
		helpLine{"", "marks"},
		helpLine{g.good, "healthy, and every event was applied: its mirror is what it holds"},
		helpLine{g.off, "without events, or without their numbers: the mirror is a guess, " + g.approx + " stands before its blocks"},
		helpLine{g.wait, "on its way: starting, connecting, fetching what was missed"},
		helpLine{g.warn, "in doubt: a gap, silence, unreadable events, or predictions that do not hold"},
		helpLine{g.bad, "gets no requests: unhealthy, or its breaker is open"},
		helpLine{g.unknown, "not known"},
		helpLine{"", "columns"},
		helpLine{"blocks", "of the router's size in the mirror; pool: the engine's GPU cache that they fill"},
		helpLine{"activ", "blocks of requests in flight there, those that requests share once"},
		helpLine{"pend", "tokens that wait for prefill"},
		helpLine{"held", "requests that are there, and their tokens"},
		helpLine{"hit", "tokens found cached, of all: predicted in the last minute, and as the engine reports"},
		helpLine{"last", "event of its stream; gaps: how often events were missing for good"},
		helpLine{"margin", "what the runner-up would have cost more"},
		helpLine{"", "filter"},
		helpLine{"w3", "any text, anywhere in the row"},
		helpLine{"worker:w3", "or model: basis: session: role: state: engine: kind: id:"},
	)
}

// help is the overlay of all keys.
func (m *Model) help() []string {
	all := m.helpLines()
	lines := []string{m.rule(m.w, "help", "esc goes back", true)}
	for _, h := range all[min(m.helpAt, len(all)):min(len(all), m.helpAt+m.overlayRows())] {
		l := &line{t: m.theme, w: m.w}
		if h.key == "" {
			l.put(strong, " "+h.does)
		} else {
			l.put(plain, "   ").col(accent, h.key, 12).put(plain, h.does)
		}
		lines = append(lines, l.end())
	}
	return lines
}
