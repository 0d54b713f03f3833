//go:build !unix

package tui

import (
	"io"

	tea "charm.land/bubbletea/v2"
)

// jobControl is for systems whose shells stop programs; here they do not.
type jobControl struct{}

func (*jobControl) begin(*tea.Program) {}

func (*jobControl) end() {}

func (*jobControl) filter(_ *tea.Program, _ io.Reader, msg tea.Msg) tea.Msg {
	if _, ok := msg.(tea.SuspendMsg); ok {
		return nil
	}
	return msg
}
