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

// Run draws what src tells on a terminal until the user quits (nil) or ctx is done (its cause). The terminal is as
// it was before when it returns, and src has ended. more adds to the program's options; signals are the caller's.
func Run(ctx context.Context, src Source, o Options, in io.Reader, out io.Writer, more ...tea.ProgramOption) error {
	opts := append([]tea.ProgramOption{
		tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithFPS(FPS), tea.WithoutSignalHandler(),
	}, more...)
	p := tea.NewProgram(New(src, o), opts...)
	feeding, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		Feed(feeding, p, src)
	}()
	_, err := p.Run()
	stop()
	<-done
	switch {
	case ctx.Err() != nil && !errors.Is(err, tea.ErrProgramPanic):
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
