package tui

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/kvroute/kvroute/internal/score"
)

// ask fetches a decision's full record.
func (m *Model) ask(pick uint64) tea.Cmd {
	m.over = explainOverlay
	m.full = explained{pick: pick, run: m.pic.snap.Run, busy: true}
	explain := m.explain
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		body, err := explain(ctx, pick)
		return explainedMsg{pick, body, err}
	}
}

// answer takes the record of a decision, if it is still asked for.
func (m *Model) answer(a explainedMsg) {
	if a.pick != m.full.pick || !m.full.busy {
		return
	}
	m.full.busy = false
	if a.err != nil {
		m.full.err = m.theme.text(a.err.Error())
		return
	}
	var text bytes.Buffer
	d, err := score.ParseDecision(bytes.TrimSpace(a.body))
	if err == nil {
		err = d.Table(&text)
	}
	if err != nil {
		// A router of another version may tell more or less than this one knows: show what it said.
		text.Reset()
		fmt.Fprintf(&text, "the record cannot be read (%s); as the router sent it:\n\n", err)
		if json.Indent(&text, a.body, "", "  ") != nil {
			text.Write(a.body)
		}
	}
	for s := range strings.Lines(text.String()) {
		s = m.theme.text(strings.TrimRight(s, "\r\n"))
		m.full.lines = append(m.full.lines, s)
		m.full.width = max(m.full.width, width(s))
		if len(m.full.lines) >= 100_000 {
			break
		}
	}
}
