package tui

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// TestFrameFollowsTheState: whatever happens, the frame kept is the one that would be drawn now.
func TestFrameFollowsTheState(t *testing.T) {
	keys := []string{"j", "k", "tab", "enter", "esc", "1", "2", "3", "4", "s", "S", "p", "?", "/", "w", "1", "l", "h", "G", "g", "pgdown", "X"}
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 9))
		m := at(100, 30, Options{Dark: ptr(true)})
		ms := int64(0)
		for step := range 150 {
			var msg tea.Msg
			switch rng.IntN(8) {
			case 0, 1, 2:
				ms += 250
				msg = live(fleetScene(5, pd, ms))
			case 3:
				msg = beatMsg{}
			case 4:
				msg = []tea.Msg{
					Update{Link: Lost, Reason: "EOF", AgeMS: ms},
					Update{Link: Live},
					Update{Link: Live, Reason: "the recording ended"},
					size(100, 30), size(80, 24),
					tea.MouseWheelMsg{Button: tea.MouseWheelDown},
					tea.FocusMsg{},
					tea.PasteMsg{Content: "w"},
					tea.BackgroundColorMsg{},
					explainedMsg{pick: m.full.pick, body: []byte("{}")},
				}[rng.IntN(10)]
			default:
				msg = press(keys[rng.IntN(len(keys))])
			}
			m = after(m, msg)
			if got, want := m.View().Content, m.screen(); got != want {
				t.Fatalf("seed %d, step %d: after %T %+v the frame is not the state's:\n%s\nwant:\n%s", seed, step, msg, msg, plainText(got), plainText(want))
			}
		}
	}
}

// TestFramesAreDrawnOnceABeat: ten seconds of snapshots, four a second, are ten frames, and each is drawn once.
func TestFramesAreDrawnOnceABeat(t *testing.T) {
	m := at(120, 40, Options{}, live(fleetScene(64, agg, 0)))
	seen := map[*frame]bool{}
	look := func() {
		m.View()
		if m.frame.drawn {
			seen[m.frame] = true
		}
	}
	for ms := int64(250); ms <= 10_000; ms += 250 {
		m = after(m, live(fleetScene(64, agg, ms)))
		look()
		if ms%1000 == 0 {
			m = after(m, beatMsg{})
			look()
		}
	}
	if n := len(seen); n < 10 || n > 11 {
		t.Errorf("%d frames in ten seconds, want ten and the first", n)
	}
	if got, want := m.pic.snap.AtMS, sceneStart+10_000; got != want {
		t.Errorf("the picture is of %d, want %d", got, want)
	}
	// What must not wait does not.
	s := fleetScene(64, agg, 10_250)
	s.Workers[3].Health = "unhealthy"
	if m = after(m, live(s)); m.pic.snap != s {
		t.Error("a failure waits for the next beat")
	}
}

// wire is a router's stream of a busy fleet as it comes: the first snapshot and deltas, one a second.
func wire(t testing.TB, workers, seconds int) (first *snapshot.Snapshot, deltas [][]byte) {
	t.Helper()
	first = fleetScene(workers, pd, 0)
	last := first
	for i := range seconds {
		s := last
		for tick := range 4 {
			s = busier(s, 4*i+tick)
		}
		d := snapshot.Diff(last, s)
		if err := d.Shorten(last); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		deltas = append(deltas, data)
		last = s
	}
	return first, deltas
}

// busier is what a quarter of a second with 125 requests makes of a fleet: a third of the workers' engines have
// sent events, every second worker of the others has other requests in flight.
func busier(last *snapshot.Snapshot, tick int) *snapshot.Snapshot {
	at := last.AtMS - sceneStart + 250
	s := fleetScene(len(last.Workers), pd, at)
	rng := rand.New(rand.NewPCG(uint64(tick), 5))
	for i := range s.Workers {
		w := last.Workers[i]
		switch rng.IntN(3) {
		case 0:
			w.BlockCount += rng.IntN(40)
			w.ContentHash = fmt.Sprintf("%016x", rng.Uint64())
			w.Stream = s.Workers[i].Stream
			fallthrough
		case 1:
			w.ActiveBlocks, w.PendingTokens = int64(rng.IntN(3000)), int64(rng.IntN(9000))
			w.HeldRequests, w.HeldTokens = int64(rng.IntN(60)), int64(rng.IntN(400_000))
			w.Requests++
			w.Predictions.Compared++
		}
		if tick%4 == 0 {
			w.RequestRate, w.HitShare, w.ReportedShare = s.Workers[i].RequestRate, s.Workers[i].HitShare, s.Workers[i].ReportedShare
		}
		if tick%8 == 0 {
			w.History = s.Workers[i].History
		}
		s.Workers[i] = w
	}
	if tick%4 != 0 {
		s.Cache = last.Cache
	}
	s.Warnings = last.Warnings
	return s
}

// BenchmarkTick is what a second of a busy router costs a screen of 120x40: a delta is read and taken in, the picture
// is drawn, and what differs is sent to the terminal.
func BenchmarkTick(b *testing.B) {
	for _, n := range []int{64, 1000} {
		for _, p := range []page{fleetPage, picksPage} {
			b.Run(fmt.Sprintf("workers=%d/%s", n, pageNames[p]), func(b *testing.B) {
				first, deltas := wire(b, n, 20)
				sc := newScreen(120, 40, colorprofile.ANSI256)
				wireBytes := 0
				for _, d := range deltas {
					wireBytes += len(d)
				}
				m := on(at(120, 40, Options{Dark: ptr(true)}, live(first)), p)
				sc.draw(b, m.View().Content)
				sent := sc.n
				last := first
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if i%len(deltas) == 0 {
						last = first
					}
					s, err := next(last, deltas[i%len(deltas)])
					if err != nil {
						b.Fatal(err)
					}
					last = s
					m = after(m, live(s), beatMsg{})
					sc.draw(b, m.View().Content)
				}
				b.ReportMetric(float64(wireBytes)/float64(len(deltas)), "read-B/op")
				b.ReportMetric(float64(sc.n-sent)/float64(b.N), "sent-B/op")
			})
		}
	}
}
