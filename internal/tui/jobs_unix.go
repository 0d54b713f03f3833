//go:build unix

package tui

import (
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	xterm "golang.org/x/term"
)

// stopsWithin is how long a stop may take that was asked for. A process without a shell that could continue it
// (the only one of an SSH session, the first of a container) is not stopped at all: the kernel passes it over.
const stopsWithin = time.Second

// jobControl lets a shell stop a program and continue it. Bubble Tea's own way waits for ever where nothing is
// stopped, and does not notice a stop that comes from outside. SIGTSTP is not caught for that: Go does not give a
// caught signal its default action back, which the key needs.
type jobControl struct {
	conts chan os.Signal // SIGCONT
	quit  chan struct{}
	done  sync.WaitGroup
}

// continuedMsg says that the process was stopped from outside, with the terminal as it was, and goes on.
type continuedMsg struct{}

// begin carries signals to p until end.
func (j *jobControl) begin(p *tea.Program) {
	j.conts, j.quit = make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(j.conts, syscall.SIGCONT)
	j.done.Go(func() {
		for {
			select {
			case <-j.quit:
				return
			case <-j.conts:
				p.Send(continuedMsg{})
			}
		}
	})
}

func (j *jobControl) end() {
	signal.Stop(j.conts)
	close(j.quit)
	j.done.Wait()
}

// filter looks at what comes to p, whose keys come from in. It runs in p's loop.
func (j *jobControl) filter(p *tea.Program, in io.Reader, msg tea.Msg) tea.Msg {
	switch msg.(type) {
	case tea.SuspendMsg:
		if p.ReleaseTerminal() == nil {
			j.stop()
		}
		if err := p.RestoreTerminal(); err != nil { // it went away meanwhile
			return tea.QuitMsg{}
		}
		return tea.ClearScreen()
	case continuedMsg: // whoever had the terminal meanwhile has set it up for himself, and written on it
		if f, ok := in.(*os.File); ok && xterm.IsTerminal(int(f.Fd())) {
			if _, err := xterm.MakeRaw(int(f.Fd())); err != nil {
				return tea.QuitMsg{}
			}
		}
		return tea.ClearScreen()
	}
	return msg
}

// stop stops the process with those of its job, as a terminal's driver would, and returns when it goes on.
func (j *jobControl) stop() {
	signal.Stop(j.conts)
	defer signal.Notify(j.conts, syscall.SIGCONT)
	back := make(chan os.Signal, 1)
	signal.Notify(back, syscall.SIGCONT)
	defer signal.Stop(back)
	if syscall.Kill(0, syscall.SIGTSTP) != nil {
		return
	}
	passed := time.NewTimer(stopsWithin) // time passes while it is stopped
	defer passed.Stop()
	select {
	case <-back:
	case <-passed.C:
	}
}
