package tui

import (
	"fmt"
	"testing"

	"github.com/charmbracelet/colorprofile"
	uv "github.com/charmbracelet/ultraviolet"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// screen draws frames as Bubble Tea's renderer does, and counts what a terminal is sent.
type screen struct {
	n     int
	r     *uv.TerminalRenderer
	cells uv.ScreenBuffer
	last  string
}

func newScreen(w, h int, p colorprofile.Profile) *screen {
	s := &screen{cells: uv.NewScreenBuffer(w, h)}
	s.r = uv.NewTerminalRenderer(s, []string{"TERM=xterm-256color"})
	s.r.SetColorProfile(p)
	s.r.SetFullscreen(true)
	s.r.SetRelativeCursor(false)
	s.r.SetScrollOptim(true)
	s.r.SetTabStops(-1)
	return s
}

func (s *screen) Write(b []byte) (int, error) {
	s.n += len(b)
	return len(b), nil
}

// draw draws a frame and returns how many bytes it took.
func (s *screen) draw(t testing.TB, frame string) int {
	t.Helper()
	before := s.n
	if frame != s.last {
		s.last = frame
		s.cells.Clear()
		uv.NewStyledString(frame).Draw(s.cells, s.cells.Bounds())
		s.r.Render(s.cells.RenderBuffer)
	}
	if err := s.r.Flush(); err != nil {
		t.Fatal(err)
	}
	return s.n - before
}

// TestBandwidth holds ten seconds of a busy fleet, told four times a second, under 64 kbit/s on every page: 64
// workers and 500 requests/s, at 120x40, all numbers new in each snapshot.
func TestBandwidth(t *testing.T) {
	const seconds, limit = 10, 8000
	for p := range numPages {
		for _, o := range []Options{{Dark: ptr(true)}, {NoColor: true}} {
			t.Run(fmt.Sprintf("%s/colour=%v", pageNames[p], !o.NoColor), func(t *testing.T) {
				sc := newScreen(120, 40, colorprofile.ANSI256)
				m := at(120, 40, o, live(fleetScene(64, pd, 0)))
				m = on(m, p)
				first := sc.draw(t, m.View().Content)
				total := 0
				for ms := int64(250); ms <= seconds*1000; ms += 250 {
					m = after(m, live(fleetScene(64, pd, ms)))
					total += sc.draw(t, m.View().Content)
					if ms%1000 == 0 {
						m = after(m, beatMsg{})
						total += sc.draw(t, m.View().Content)
					}
				}
				t.Logf("first frame %d bytes, then %d bytes/s", first, total/seconds)
				if total == 0 || total/seconds >= limit {
					t.Errorf("%d bytes/s, want some, below %d", total/seconds, limit)
				}
			})
		}
	}
}

// TestNothingForNothing checks that a picture that does not change sends no bytes.
func TestNothingForNothing(t *testing.T) {
	s := fleetScene(64, agg, 0)
	old := func(ms *int64) {
		if ms != nil {
			*ms = s.AtMS - 3*3600_000 - 1000
		}
	}
	for i := range s.Workers {
		old(s.Workers[i].TrustSinceMS)
		old(s.Workers[i].Stream.LastEventMS)
	}
	for i := range s.Picks {
		old(&s.Picks[i].AtMS)
	}
	for i := range s.Warnings {
		old(&s.Warnings[i].AtMS)
	}
	for i := range s.Cache.Prefixes {
		old(&s.Cache.Prefixes[i].LastMS)
	}
	for p := range numPages {
		sc := newScreen(120, 40, colorprofile.TrueColor)
		m := at(120, 40, Options{}, live(s))
		m = on(m, p)
		if sc.draw(t, m.View().Content) == 0 {
			t.Fatal("the first frame took no bytes")
		}
		for i := range 30 {
			same := *s
			same.Seq, same.AtMS = s.Seq+uint64(i), s.AtMS+int64(i)*250
			m = after(m, live(&same), beatMsg{}, press("X"))
			if n := sc.draw(t, m.View().Content); n != 0 {
				t.Fatalf("%s: nothing changed, and %d bytes were sent", pageNames[p], n)
			}
		}
	}
}

// TestQuietAges counts what ages alone cost where nothing else happens: seconds tick on, and little else.
func TestQuietAges(t *testing.T) {
	sc := newScreen(120, 40, colorprofile.ANSI256)
	m := at(120, 40, Options{}, live(fleetScene(64, agg, 0)))
	sc.draw(t, m.View().Content)
	total := 0
	for range 10 {
		m = after(m, beatMsg{})
		total += sc.draw(t, m.View().Content)
	}
	t.Logf("%d bytes/s", total/10)
	if total == 0 || total/10 > 2000 {
		t.Errorf("%d bytes/s of ages, want some, at most 2000", total/10)
	}
}

func BenchmarkView(b *testing.B) {
	for _, n := range []int{8, 64, 1000} {
		s := fleetScene(n, pd, 0)
		for p := range numPages {
			b.Run(fmt.Sprintf("%s/workers=%d/200x60", pageNames[p], n), func(b *testing.B) {
				m := at(200, 60, Options{Dark: ptr(true)}, live(s))
				m = on(m, p)
				b.ReportAllocs()
				for b.Loop() {
					_ = m.screen()
				}
			})
		}
	}
}

// BenchmarkUpdate takes a new snapshot in, once a beat.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{64, 1000} {
		b.Run(fmt.Sprintf("workers=%d", n), func(b *testing.B) {
			two := []*snapshot.Snapshot{fleetScene(n, pd, 0), fleetScene(n, pd, 2000)}
			m := at(200, 60, Options{}, live(two[0]))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				m = after(m, live(two[i%2]))
			}
		})
	}
}

// TestViewCostsWhatIsVisible checks that a thousand workers cost no more to draw than those on the screen.
func TestViewCostsWhatIsVisible(t *testing.T) {
	allocs := func(n int) float64 {
		m := at(200, 60, Options{Dark: ptr(true)}, live(fleetScene(n, agg, 0)))
		return testing.AllocsPerRun(3, func() { _ = m.screen() })
	}
	few, many := allocs(64), allocs(1000)
	if many > few*1.2 {
		t.Errorf("%.0f allocations for a frame of 1000 workers, %.0f for one of 64", many, few)
	}
}
