package tui

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/exp/teatest/v2"
	"go.uber.org/goleak"
)

// lateGoroutines end by themselves: a tick of Bubble Tea when its second is over, the test library's wait for a
// signal with the process.
var lateGoroutines = []goleak.Option{
	goleak.IgnoreAnyFunction("charm.land/bubbletea/v2.Tick.func1"),
	goleak.IgnoreAnyFunction("github.com/charmbracelet/x/exp/teatest/v2.NewTestModel.func2"),
}

func waitFor(t *testing.T, tm *teatest.TestModel, what ...string) {
	t.Helper()
	var seen bytes.Buffer
	teatest.WaitFor(t, io.TeeReader(tm.Output(), &seen), func([]byte) bool {
		for _, w := range what {
			if !bytes.Contains(seen.Bytes(), []byte(w)) {
				return false
			}
		}
		return true
	}, teatest.WithDuration(20*time.Second), teatest.WithCheckInterval(10*time.Millisecond))
}

// TestSession is a whole session: it starts with the router down, sees it come, opens a worker, explains a
// decision, filters and quits.
func TestSession(t *testing.T) {
	defer goleak.VerifyNone(t, lateGoroutines...)
	src := newFake()
	s := fleetScene(12, pd, 0)
	src.explain = map[uint64][]byte{1000: decision(t, 3)}
	tm := teatest.NewTestModel(t, New(src, Options{NoColor: true}), teatest.WithInitialTermSize(120, 40),
		teatest.WithProgramOptions(tea.WithColorProfile(colorprofile.ASCII), tea.WithFPS(60)))
	tm.Send(Update{Link: Connecting, Reason: "connection refused"})
	waitFor(t, tm, "connection refused", "q quits")
	tm.Send(live(s))
	waitFor(t, tm, "w11", "no-events")
	tm.Send(press("j"))
	tm.Send(press("enter"))
	waitFor(t, tm, "stream", "its decisions")
	tm.Type("3")
	waitFor(t, tm, "runner-up")
	tm.Send(press("enter"))
	waitFor(t, tm, "policy")
	tm.Send(press("esc"))
	tm.Type("/basis:exact")
	waitFor(t, tm, "filter:")
	tm.Send(press("enter"))
	tm.Send(Update{Link: Lost, Reason: "EOF", AgeMS: 3000})
	waitFor(t, tm, "stale", "trying again")
	tm.Type("q")
	m := tm.FinalModel(t, teatest.WithFinalTimeout(20*time.Second)).(Model)
	if m.worker != "w3" || m.page != picksPage || m.lists[picksPanel].filter != "basis:exact" || len(m.pic.picks) == 0 || len(m.pic.picks) == len(s.Picks) {
		t.Errorf("at the end: worker %q, page %d, filter %q, %d decisions of %d", m.worker, m.page, m.lists[picksPanel].filter, len(m.pic.picks), len(s.Picks))
	}
}

// TestRun checks that Run ends when the user quits, when its context does, and leaves nothing behind.
func TestRun(t *testing.T) {
	defer goleak.VerifyNone(t, lateGoroutines...)
	gone := errors.New("told to go")
	for _, tt := range []struct {
		name string
		end  func(keys io.Writer, cancel context.CancelCauseFunc)
		want error
	}{
		{"quit", func(keys io.Writer, _ context.CancelCauseFunc) { _, _ = keys.Write([]byte("q")) }, nil},
		{"cancelled", func(_ io.Writer, cancel context.CancelCauseFunc) { cancel(gone) }, gone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			in, keys := io.Pipe()
			defer keys.Close()
			src := newFake()
			done := make(chan error, 1)
			go func() {
				done <- Run(ctx, src, Options{Dark: ptr(true)}, in, io.Discard, tea.WithWindowSize(80, 24), tea.WithEnvironment([]string{"TERM=xterm-256color"}))
			}()
			src.updates <- live(fleetScene(3, agg, 0))
			src.updates <- live(fleetScene(3, agg, 250))
			tt.end(keys, cancel)
			keys.Close() // what still reads keys ends
			if err := <-done; !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Errorf("Run: %v, want %v", err, tt.want)
			}
		})
	}
}
