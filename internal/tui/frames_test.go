package tui

import (
	"flag"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// updating says whether golden frames are written anew; the flag -update is that of the library for sessions.
func updating() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

var pd = []string{"prefill", "decode"}

var agg = []string{"aggregated"}

// states are what a screen can be told.
var states = []struct {
	name    string
	pages   []page
	updates func() []Update
}{
	{"empty", []page{fleetPage, workerPage, picksPage, cachePage}, func() []Update { return []Update{live(fleetScene(0, agg, 0))} }},
	{"one", []page{fleetPage, workerPage, cachePage}, func() []Update { return []Update{live(fleetScene(1, agg, 0))} }},
	{"many", []page{fleetPage, workerPage, picksPage, cachePage}, func() []Update { return []Update{live(fleetScene(64, agg, 0))} }},
	{"stale", []page{fleetPage}, func() []Update {
		s := fleetScene(8, agg, 0)
		return []Update{live(s), {Snap: s, Link: Lost, Reason: "reading http://127.0.0.1:9090/v1/admin/stream: connection refused", AgeMS: 12_000}}
	}},
	{"down", []page{fleetPage}, func() []Update {
		return []Update{{Link: Connecting, Reason: "http://127.0.0.1:9090/v1/admin/snapshot: connection refused; is kvroute serve running?"}}
	}},
	{"hostile", []page{fleetPage, workerPage, picksPage, cachePage}, func() []Update { return []Update{live(hostileScene())} }},
	{"pd", []page{fleetPage}, func() []Update { return []Update{live(fleetScene(12, pd, 0))} }},
	{"ranks", []page{fleetPage, workerPage, cachePage}, func() []Update { return []Update{live(ranksScene(3, 4))} }},
	{"played", []page{fleetPage}, func() []Update {
		u := live(fleetScene(8, agg, 0))
		u.Play = &Play{AtMS: sceneStart + 75_000, FromMS: sceneStart, ToMS: sceneStart + 200_000, Speed: 2, Paused: true}
		return []Update{u}
	}},
	{"ended", []page{fleetPage}, func() []Update { return []Update{{Snap: fleetScene(2, agg, 0), Link: Ended}} }},
}

var looks = []struct {
	name string
	o    Options
}{{"colour", Options{Dark: ptr(true)}}, {"plain", Options{NoColor: true}}, {"ascii", Options{ASCII: true, NoColor: true}}}

var pageNames = [numPages]string{"fleet", "worker", "decisions", "cache"}

// TestFrames compares frames with golden files, one for a state and a look with all sizes in it: colours as ANSI
// text, all others as what one sees. The largest is drawn of the first page, and of a fleet of many of all.
func TestFrames(t *testing.T) {
	for _, st := range states {
		for _, look := range looks {
			name := st.name + "-" + look.name
			t.Run(name, func(t *testing.T) {
				var b strings.Builder
				for _, size := range [][2]int{{80, 24}, {120, 40}, {200, 60}} {
					m := at(size[0], size[1], look.o, st.updates()...)
					for _, p := range st.pages {
						if size[0] == 200 && p != st.pages[0] && name != "many-plain" {
							continue
						}
						m = on(m, p)
						fmt.Fprintf(&b, "== %s, %dx%d\n", pageNames[p], m.w, m.h)
						s := m.View().Content
						mustFit(t, s, m.w, m.h)
						if look.o.NoColor {
							s = ansi.Strip(s)
						}
						for _, l := range strings.Split(s, "\n") {
							b.WriteString(strings.TrimRight(l, " ") + "\n")
						}
					}
				}
				golden(t, name, b.String())
			})
		}
	}
}

// TestLightBackground: a light background changes colours and nothing else, and each colour to the one that is read
// on it.
func TestLightBackground(t *testing.T) {
	onLight := map[string]string{"245": "242", "108": "28", "179": "130", "203": "160", "110": "25", "73": "30", "237": "254"}
	for _, st := range states {
		dark, light := at(120, 40, Options{Dark: ptr(true)}, st.updates()...), at(120, 40, Options{Dark: ptr(false)}, st.updates()...)
		for _, p := range st.pages {
			dark, light = on(dark, p), on(light, p)
			want := dark.View().Content
			for from, to := range onLight {
				for _, ground := range []string{"38;5;", "48;5;"} {
					want = strings.ReplaceAll(want, ground+from, ground+"on-light-"+to)
				}
			}
			want = strings.ReplaceAll(want, "on-light-", "")
			if got := light.View().Content; got != want {
				t.Errorf("%s, %s:\n%q\nwant:\n%q", st.name, pageNames[p], got, want)
			}
		}
	}
	// What the terminal says of its background is taken, unless the user said.
	asked := at(120, 40, Options{}, states[2].updates()...)
	if got := after(asked, tea.BackgroundColorMsg{Color: color.White}).View().Content; got != at(120, 40, Options{Dark: ptr(false)}, states[2].updates()...).View().Content {
		t.Error("a terminal with a white background does not get its colours")
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "frames", name+".txt")
	if updating() {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("frame %s (-want +got; -update writes it anew):\n%s", name, d)
	}
}

// mustFit checks that a frame is h lines of exactly w cells, without control codes but those of styles.
func mustFit(t *testing.T, s string, w, h int) {
	t.Helper()
	lines := strings.Split(s, "\n")
	if len(lines) != h {
		t.Fatalf("%d lines, want %d, of:\n%s", len(lines), h, s)
	}
	for i, l := range lines {
		if got, wc := ansi.StringWidth(l), ansi.StringWidthWc(l); got != w || wc != w {
			t.Fatalf("line %d is %d cells by graphemes and %d by runes, want %d: %q", i, got, wc, w, l)
		}
		for _, r := range ansi.Strip(l) {
			if r < 0x20 || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r >= 0x200b && r <= 0x200f {
				t.Fatalf("line %d has %U: %q", i, r, l)
			}
		}
		for rest := l; ; {
			_, after, ok := strings.Cut(rest, "\x1b")
			if !ok {
				break
			}
			n := strings.IndexFunc(after, func(r rune) bool { return r != '[' && r != ';' && (r < '0' || r > '9') })
			if n < 0 || after[0] != '[' || after[n] != 'm' {
				t.Fatalf("line %d has a sequence that is no style: %q", i, l)
			}
			rest = after[n:]
		}
	}
}

// TestFramesOfAnySizeFit draws every state and page at every kind of size, with overlays and filters.
func TestFramesOfAnySizeFit(t *testing.T) {
	for _, st := range states {
		for _, o := range looks {
			m := at(0, 0, o.o, st.updates()...)
			for _, w := range []int{1, 17, 59, 60, 61, 80, 109, 110, 159, 160, 300} {
				for _, h := range []int{1, 14, 15, 19, 20, 24, 61, 300} {
					if w > 60 && h > 61 {
						continue
					}
					m = after(m, size(w, h))
					for p := range numPages {
						n := m
						n = on(n, p)
						mustFit(t, n.View().Content, w, h)
					}
					mustFit(t, after(m, press("?")).View().Content, w, h)
				}
			}
		}
	}
}

// TestAsciiIsAscii checks that --ascii draws nothing else, whatever it is told.
func TestAsciiIsAscii(t *testing.T) {
	for _, st := range states {
		m := at(120, 40, Options{ASCII: true}, st.updates()...)
		for p := range numPages {
			m = on(m, p)
			for i, r := range ansi.Strip(m.View().Content) {
				if r > 0x7e {
					t.Fatalf("%s, %s: %q at %d", st.name, pageNames[p], r, i)
				}
			}
		}
	}
}

// TestNoColourHasNoColour checks that NO_COLOR leaves bold, faint and reverse only.
func TestNoColourHasNoColour(t *testing.T) {
	m := at(120, 40, Options{NoColor: true}, live(fleetScene(64, pd, 0)))
	for p := range numPages {
		m = on(m, p)
		s := m.View().Content
		for _, part := range strings.Split(s, "\x1b[")[1:] {
			seq, _, _ := strings.Cut(part, "m")
			for _, code := range strings.Split(seq, ";") {
				switch code {
				case "", "0", "1", "2", "7":
				default:
					t.Fatalf("%s: style %q", pageNames[p], seq)
				}
			}
		}
	}
}

// TestStateNeedsNoColour checks that every state is told by a word and a symbol of its own grade.
func TestStateNeedsNoColour(t *testing.T) {
	s := fleetScene(14, agg, 0)
	got := ansi.Strip(at(200, 60, Options{}, live(s)).View().Content)
	for _, want := range []string{"● trusted", "▲ gap", "▲ silent", "◌ warming", "○ no-events", "✗ unhealthy", "● live", "~"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

// TestUnknownIsNotZero checks that what a router does not tell shows as unknown.
func TestUnknownIsNotZero(t *testing.T) {
	s := &snapshot.Snapshot{Workers: []snapshot.Worker{{RouteKey: "w0", Health: "healthy", Trust: "trusted"}}}
	got := ansi.Strip(at(120, 24, Options{}, live(s)).View().Content)
	var row string
	for _, l := range strings.Split(got, "\n") {
		if strings.Contains(l, "● trusted") {
			row = l
			break
		}
	}
	if n := strings.Count(row, "–"); n != 4 { // pool, both hit shares, last event
		t.Errorf("%d unknowns, want 4, in %q", n, row)
	}
	if !strings.Contains(got, "hit    – 1m") {
		t.Errorf("the header does not say that the hit share is unknown:\n%s", got)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(uint16(80), uint16(24), uint8(3), "w0", "gap", "reason", uint8(1))
	for i, h := range hostile {
		f.Add(uint16(60+i), uint16(15+i), uint8(i), h, h, h, uint8(i))
	}
	f.Fuzz(func(t *testing.T, w, h uint16, n uint8, name, trust, text string, flags uint8) {
		s := fleetScene(int(n)%20, []string{name, "decode"}[:1+flags%2], int64(n))
		for i := range s.Workers {
			if i%2 == 0 {
				x := &s.Workers[i]
				x.RouteKey, x.Trust, x.TrustReason, x.Model, x.Engine, x.URL = name+x.RouteKey, trust, text, name, text, text
				x.BlockCount, x.HeldTokens, x.RequestRate = int(w)<<40, -int64(h)<<40, float64(n)*1e30
				x.History = x.History[:min(len(x.History), int(n))]
			}
		}
		for i := range s.Picks {
			s.Picks[i].RouteKey, s.Picks[i].Basis, s.Picks[i].Session = name, trust, text
		}
		for i := range s.Cache.Prefixes {
			s.Cache.Prefixes[i].Text, s.Cache.Prefixes[i].Hash = text, name+s.Cache.Prefixes[i].Hash
			s.Cache.Prefixes[i].Blocks -= int(flags)
		}
		s.Warnings = append(s.Warnings, snapshot.Warning{ID: text, RouteKey: name, Severity: trust, Text: text, Kind: trust})
		m := at(1+int(w)%300, 1+int(h)%300, Options{ASCII: flags&4 != 0, NoColor: flags&8 != 0}, live(s), Update{Link: Link(flags >> 4 % 4), Reason: text})
		for p := range numPages {
			m = on(m, p)
			mustFit(t, m.View().Content, m.w, m.h)
		}
		for _, k := range []string{"tab", "down", "G", "right", "enter", "/"} {
			m = after(m, press(k))
			mustFit(t, m.View().Content, m.w, m.h)
		}
		for _, r := range text {
			m = after(m, press(string(r)))
		}
		mustFit(t, m.View().Content, m.w, m.h)
	})
}
