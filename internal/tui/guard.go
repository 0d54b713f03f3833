package tui

import (
	"fmt"
	"runtime/debug"

	tea "charm.land/bubbletea/v2"
)

// Fault is a panic in what draws or feeds a screen: a fault of the program's own.
type Fault struct {
	Value any
	Stack []byte // of the goroutine that failed
}

// Error implements error.
func (f *Fault) Error() string { return fmt.Sprintf("a fault of kvroute's own: %v", f.Value) }

// Catch tells a panic of the goroutine that defers it to fail.
func Catch(fail func(*Fault)) {
	if r := recover(); r != nil {
		fail(&Fault{r, debug.Stack()})
	}
}

// guarded is a model whose panics are told, instead of printed over the screen or ending the process with the
// terminal as it is. Bubble Tea catches them too, but prints them while the process may be ending already.
type guarded struct {
	m    tea.Model
	fail func(*Fault)
}

// Guard makes a model whose panics, those of its commands included, are told to fail, which is to end the program.
// It is called from any goroutine, more than once if need be, and must not wait for the program.
func Guard(m tea.Model, fail func(*Fault)) tea.Model { return &guarded{m, fail} }

// Init implements tea.Model.
func (g *guarded) Init() (cmd tea.Cmd) {
	defer Catch(g.fail)
	return g.command(g.m.Init())
}

// Update implements tea.Model.
func (g *guarded) Update(msg tea.Msg) (next tea.Model, cmd tea.Cmd) {
	next = g
	defer Catch(g.fail)
	m, cmd := g.m.Update(msg)
	g.m = m
	return g, g.command(cmd)
}

// View implements tea.Model.
func (g *guarded) View() (v tea.View) {
	v.AltScreen = true // should it fail
	defer Catch(g.fail)
	return g.m.View()
}

// command guards a command and those it leads to.
func (g *guarded) command(cmd tea.Cmd) tea.Cmd {
	if cmd == nil {
		return nil
	}
	return func() (msg tea.Msg) {
		defer Catch(g.fail)
		msg = cmd()
		if batch, ok := msg.(tea.BatchMsg); ok {
			for i := range batch {
				batch[i] = g.command(batch[i])
			}
		}
		return msg
	}
}
