package tui

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"go.uber.org/goleak"
)

// faulty is a model that fails in one place.
type faulty struct{ where string }

func (f faulty) plant(where string) {
	if f.where == where {
		panic("planted fault")
	}
}

func (f faulty) Init() tea.Cmd {
	f.plant("init")
	return func() tea.Msg {
		f.plant("command")
		return tea.BatchMsg{nil, func() tea.Msg { f.plant("batch"); return nil }}
	}
}

func (f faulty) Update(tea.Msg) (tea.Model, tea.Cmd) { f.plant("update"); return f, nil }

func (f faulty) View() tea.View { f.plant("view"); return tea.NewView("drawn") }

// TestGuard: wherever a model fails, the program can be ended in good order and knows why.
func TestGuard(t *testing.T) {
	defer goleak.VerifyNone(t, lateGoroutines...)
	for _, where := range []string{"init", "command", "batch", "update", "view"} {
		ctx, cancel := context.WithCancelCause(context.Background())
		p := tea.NewProgram(Guard(faulty{where}, func(f *Fault) { cancel(f) }), tea.WithContext(ctx), tea.WithInput(nil), tea.WithOutput(io.Discard),
			tea.WithWindowSize(80, 24), tea.WithoutSignalHandler(), tea.WithoutCatchPanics())
		if _, err := p.Run(); errors.Is(err, tea.ErrProgramPanic) || !errors.Is(err, tea.ErrProgramKilled) {
			t.Errorf("%s: the program ends with %v, want that it was ended", where, err)
		}
		var f *Fault
		if !errors.As(context.Cause(ctx), &f) || f.Value != "planted fault" || !strings.Contains(string(f.Stack), "guard_test.go") {
			t.Errorf("%s: got %v, want the fault and where it is", where, context.Cause(ctx))
		}
	}
}
