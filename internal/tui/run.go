package tui

import (
	"context"
	"errors"
	"fmt"
	"io"

	tea "charm.land/bubbletea/v2"
)

// FPS is how many frames are drawn a second at most.
const FPS = 10

// Run draws what src tells on a terminal until the user quits (nil) or ctx is done (its cause). Whatever ends it,
// the terminal is as it was before when it returns, and src has ended; a panic is a *Fault then. It stops and
// continues with its process where a shell asks for that. more adds to the program's options; signals that end
// the program are the caller's.
func Run(ctx context.Context, src Source, o Options, in io.Reader, out io.Writer, more ...tea.ProgramOption) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	fail := func(f *Fault) { cancel(f) }
	var p *tea.Program
	var jobs jobControl
	opts := append([]tea.ProgramOption{
		tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithFPS(FPS), tea.WithoutSignalHandler(),
		tea.WithFilter(func(_ tea.Model, msg tea.Msg) tea.Msg { return jobs.filter(p, in, msg) }),
	}, more...)
	p = tea.NewProgram(Guard(New(src, o), fail), opts...)
	jobs.begin(p)
	defer jobs.end()
	feeding, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer Catch(fail)
		Feed(feeding, p, src)
	}()
	_, err := p.Run()
	stop()
	<-done
	switch {
	case errors.Is(err, tea.ErrProgramPanic): // elsewhere, and printed already
		return fmt.Errorf("drawing the screen: %w", err)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("drawing the screen: %w", err)
	}
	return nil
}

// Feed carries src's updates to a program that draws a Model, until ctx is done and src has ended.
func Feed(ctx context.Context, p *tea.Program, src Source) {
	src.Run(ctx, func(u Update) { p.Send(u) })
}
