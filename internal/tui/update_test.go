package tui

import (
	"errors"
	"slices"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
)

func size(w, h int) tea.WindowSizeMsg { return tea.WindowSizeMsg{Width: w, Height: h} }

// press is a key by its name.
func press(k string) tea.KeyPressMsg {
	named := map[string]rune{
		"enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "up": tea.KeyUp, "down": tea.KeyDown, "left": tea.KeyLeft, "right": tea.KeyRight,
		"pgup": tea.KeyPgUp, "pgdown": tea.KeyPgDown, "home": tea.KeyHome, "end": tea.KeyEnd, "space": tea.KeySpace, "backspace": tea.KeyBackspace,
	}
	switch {
	case k == "shift+tab":
		return tea.KeyPressMsg{Code: tea.KeyTab, Mod: tea.ModShift}
	case strings.HasPrefix(k, "ctrl+"):
		return tea.KeyPressMsg{Code: rune(k[5]), Mod: tea.ModCtrl}
	case named[k] != 0:
		return tea.KeyPressMsg{Code: named[k]}
	}
	r := []rune(k + " ")[0]
	return tea.KeyPressMsg{Code: r, Text: k}
}

// keysOf presses keys written with spaces between.
func keysOf(s string) (msgs []any) {
	for _, k := range strings.Fields(s) {
		msgs = append(msgs, press(k))
	}
	return msgs
}

// sees is what stands on the screen.
func sees(m Model) string { return ansi.Strip(m.View().Content) }

func TestKeys(t *testing.T) {
	s := fleetScene(12, pd, 0) // decode: w1 w3 w5 w7 w9 w11, prefill: w0 w2 ...
	for _, tt := range []struct {
		name, keys string
		page       page
		focus      panel
		sel        string // of the focused panel
		check      func(m *Model) bool
	}{
		{"nothing", "", fleetPage, workersPanel, "w1", nil},
		{"down and up", "j down k", fleetPage, workersPanel, "w3", nil},
		{"over a group's head", "j j j j j j", fleetPage, workersPanel, "w0", nil},
		{"and back", "j j j j j j k", fleetPage, workersPanel, "w11", nil},
		{"not above the first", "k k", fleetPage, workersPanel, "w1", nil},
		{"last and first", "G", fleetPage, workersPanel, "w10", nil},
		{"first", "G g", fleetPage, workersPanel, "w1", nil},
		{"next group", "l", fleetPage, workersPanel, "w0", nil},
		{"group before", "l h", fleetPage, workersPanel, "w1", nil},
		{"own group's head first", "l j j h", fleetPage, workersPanel, "w0", nil},
		{"pages by number", "3", picksPage, picksPanel, "", nil},
		{"panels", "tab", fleetPage, warningsPanel, "", nil},
		{"panels and pages", "tab tab tab tab", picksPage, picksPanel, "", nil},
		{"panels all around", "tab tab tab tab tab tab", fleetPage, workersPanel, "w1", nil},
		{"panels backwards", "shift+tab", cachePage, cachePanel, "", nil},
		{"open a worker", "j enter", workerPage, prefixesPanel, "", func(m *Model) bool { return m.worker == "w3" }},
		{"and back", "j enter esc", fleetPage, workersPanel, "w3", nil},
		{"the next worker", "j enter right", workerPage, prefixesPanel, "", func(m *Model) bool { return m.worker == "w5" }},
		{"selection goes along", "j enter right esc", fleetPage, workersPanel, "w5", nil},
		{"the worker of a warning", "tab j enter", workerPage, prefixesPanel, "", func(m *Model) bool { return m.worker == "w7" }},
		{"back to where one came from", "4 j enter esc", cachePage, cachePanel, "w3", nil},
		{"sort by state", "s", fleetPage, workersPanel, "w1", func(m *Model) bool { return m.order == order{by: byState} && m.pic.nameAt(workersPanel, 1) == "w5" }},
		{"reversed", "s s S", fleetPage, workersPanel, "w1", func(m *Model) bool { return m.order == order{by: byBlocks, reverse: true} }},
		{"help", "?", fleetPage, workersPanel, "w1", func(m *Model) bool { return m.over == helpOverlay && strings.Contains(sees(*m), "marks") }},
		{"help goes", "? esc", fleetPage, workersPanel, "w1", func(m *Model) bool { return m.over == noOverlay }},
		{"filter", "/ w 3", fleetPage, workersPanel, "w1", func(m *Model) bool { return m.typing && len(m.pic.targets) == 1 }},
		{"letters of keys filter", "/ q", fleetPage, workersPanel, "w1", func(m *Model) bool { return m.lists[workersPanel].filter == "q" }},
		{"kept filter", "/ w 3 enter", fleetPage, workersPanel, "w1", func(m *Model) bool { return !m.typing && len(m.pic.targets) == 1 }},
		{"cleared filter keeps the selection", "j j / w 3 enter esc", fleetPage, workersPanel, "w5", func(m *Model) bool { return len(m.pic.targets) == 12 }},
		{"escaped filter", "/ w 3 esc", fleetPage, workersPanel, "w1", func(m *Model) bool { return len(m.pic.targets) == 12 }},
		{"columns of the cache map", "4 right right", cachePage, cachePanel, "", func(m *Model) bool { return m.columnAt() == 2 }},
		{"pause", "p", fleetPage, workersPanel, "w1", func(m *Model) bool { return m.frozen && strings.Contains(sees(*m), "paused") }},
		{"esc on the first page stays", "esc esc", fleetPage, workersPanel, "w1", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := after(at(120, 40, Options{}, live(s)), keysOf(tt.keys)...)
			if m.page != tt.page || m.focus != tt.focus || m.lists[m.focus].sel != tt.sel || tt.check != nil && !tt.check(&m) {
				t.Errorf("after %q: page %d, panel %d, selected %q, want %d, %d, %q, or more is wrong; screen:\n%s",
					tt.keys, m.page, m.focus, m.lists[m.focus].sel, tt.page, tt.focus, tt.sel, sees(m))
			}
			mustFit(t, m.View().Content, 120, 40)
		})
	}
}

func TestQuit(t *testing.T) {
	for _, k := range []string{"q", "ctrl+c"} {
		for _, u := range [][]Update{nil, {live(fleetScene(3, agg, 0))}, {{Link: Connecting, Reason: "refused"}}} {
			_, cmd := at(80, 24, Options{}, u...).Update(press(k))
			if cmd == nil {
				t.Fatalf("%s does nothing", k)
			}
			if _, ok := cmd().(tea.QuitMsg); !ok {
				t.Errorf("%s does not quit", k)
			}
		}
	}
	m := after(at(80, 24, Options{}, live(fleetScene(3, agg, 0))), press("/"))
	if next, cmd := m.Update(press("ctrl+c")); cmd == nil {
		t.Errorf("ctrl+c does not quit while a filter is typed: %v", next)
	}
	if _, cmd := m.Update(press("ctrl+z")); cmd != nil {
		if _, ok := cmd().(tea.SuspendMsg); ok {
			t.Error("ctrl+z suspends while a filter is typed")
		}
	}
	if _, cmd := at(80, 24, Options{}).Update(press("ctrl+z")); cmd == nil {
		t.Error("ctrl+z does not suspend")
	}
}

// TestSelectionFollows checks that what is selected stays so when rows come, go and move.
func TestSelectionFollows(t *testing.T) {
	s := fleetScene(30, agg, 0)
	m := after(at(80, 24, Options{}, live(s)), keysOf("j j j j j j j j j j j j j j j")...)
	if sel := m.lists[workersPanel].sel; sel != "w15" {
		t.Fatalf("selected %q, want w15", sel)
	}
	top := m.lists[workersPanel].top
	if top == 0 {
		t.Fatal("the table did not scroll")
	}
	fewer := *fleetScene(30, agg, 2000)
	fewer.Workers = slices.Delete(slices.Clone(fewer.Workers), 20, 22)
	m = after(m, live(&fewer))
	if sel := m.lists[workersPanel].sel; sel != "w15" || m.lists[workersPanel].top != top {
		t.Errorf("after workers behind went: selected %q at top %d, want w15 at %d", sel, m.lists[workersPanel].top, top)
	}
	without := *fleetScene(30, agg, 4000)
	without.Workers = slices.Delete(slices.Clone(without.Workers), 15, 16)
	m = after(m, live(&without), live(fleetScene(30, agg, 6000)))
	if got := m.pic.nameAt(workersPanel, m.row(workersPanel)); got != "w15" {
		t.Errorf("after its worker went and came back: selected %q, want w15", got)
	}
	again := *fleetScene(30, agg, 8000)
	again.Run, again.Seq = "run-2", 1
	m = after(m, Update{Snap: m.update.Snap, Link: Lost, Reason: "EOF", AgeMS: 100}, live(&again))
	if got := m.pic.nameAt(workersPanel, m.row(workersPanel)); got != "w15" || m.lists[workersPanel].top != top {
		t.Errorf("after a restart of the router: selected %q at top %d, want w15 at %d", got, m.lists[workersPanel].top, top)
	}
}

// TestFeedStandsStill checks that the newest decision is followed until one selects another, which then stays on
// its line.
func TestFeedStandsStill(t *testing.T) {
	m := after(at(80, 24, Options{}, live(fleetScene(4, agg, 0))), press("3"))
	m = after(m, live(fleetScene(4, agg, 2000)))
	if got := m.pic.nameAt(picksPanel, m.row(picksPanel)); got != "1040" {
		t.Errorf("following: selected %s, want 1040", got)
	}
	m = after(m, keysOf("j j j")...)
	line := func() int { return m.row(picksPanel) - m.lists[picksPanel].top }
	before := line()
	m = after(m, live(fleetScene(4, agg, 4000)))
	if got := m.pic.nameAt(picksPanel, m.row(picksPanel)); got != "1037" || line() != before {
		t.Errorf("selected %s on line %d, want 1037 on %d", got, line(), before)
	}
	m = after(m, press("g"), live(fleetScene(4, agg, 6000)))
	if got := m.pic.nameAt(picksPanel, m.row(picksPanel)); got != "1120" {
		t.Errorf("following again: selected %s, want 1120", got)
	}
}

func TestFilter(t *testing.T) {
	for _, tt := range []struct {
		filter string
		want   bool
	}{
		{"", true},
		{"w3", true},
		{"W3", true},
		{"worker:w3", true},
		{"worker:w4", false},
		{"model:llama basis:exact", true},
		{"model:llama basis:load", false},
		{"session:ab", true},
		{"basis:w3", false},
		{"req-7", true},
		{"http://w3:1", false},
		{"colon:x", false},
		{"worker:", true},
	} {
		got := parseFilter(tt.filter).match("req-7", field{"worker", "w3"}, field{"model", "Llama-3"}, field{"basis", "exact"}, field{"session", "abcd"})
		if got != tt.want {
			t.Errorf("filter %q: %v, want %v", tt.filter, got, tt.want)
		}
	}
}

func TestPicksFilter(t *testing.T) {
	s := fleetScene(8, agg, 0)
	m := after(at(120, 40, Options{}, live(s)), press("3"), press("/"))
	for _, r := range "basis:exact worker:w2" {
		m = after(m, press(string(r)))
	}
	want := 0
	for i := range s.Picks {
		if s.Picks[i].Basis == "exact" && s.Picks[i].RouteKey == "w2" {
			want++
		}
	}
	if want == 0 || len(m.pic.picks) != want {
		t.Errorf("%d decisions meet the filter, want %d (not 0)", len(m.pic.picks), want)
	}
}

// TestCalm checks that the picture changes at most once a beat, but for what one must see at once.
func TestCalm(t *testing.T) {
	m := at(80, 24, Options{}, live(fleetScene(8, agg, 0)))
	frame := sees(m)
	for ms := int64(250); ms < 1000; ms += 250 {
		m = after(m, live(fleetScene(8, agg, ms)))
		if got := sees(m); got != frame {
			t.Errorf("the picture changed %d ms after the last one", ms)
		}
	}
	m = after(m, beatMsg{})
	if m.pic.snap.AtMS != sceneStart+750 {
		t.Errorf("after a beat the picture is of %d ms, want the newest, 750", m.pic.snap.AtMS-sceneStart)
	}
	s := *fleetScene(8, agg, 1000)
	s.Workers = slices.Clone(s.Workers)
	s.Workers[2].Trust, s.Workers[2].TrustReason = "gap", "batch 7 is missing"
	m = after(m, live(&s))
	if got := sees(m); strings.Count(got, "▲ gap") != 2 {
		t.Errorf("a gap did not show at once:\n%s", got)
	}
	if got := m.turns["w2"]; len(got) != 1 || got[0].from != "trusted" || got[0].into != "gap" || got[0].reason != "batch 7 is missing" {
		t.Errorf("turns of trust: %+v", got)
	}
}

// TestAgesPass checks that beats make ages pass while nothing comes, and not on frozen or played screens.
func TestAgesPass(t *testing.T) {
	s := fleetScene(1, agg, 0)
	s.Workers[0].Stream.LastEventMS = ptr(s.AtMS - 30_000)
	m := after(at(80, 24, Options{}, live(s)), beatMsg{}, beatMsg{})
	if got := sees(m); !strings.Contains(got, " 32 s ") {
		t.Errorf("two beats after 30 s the age is not 32 s:\n%s", got)
	}
	if got := sees(after(m, press("p"), beatMsg{})); !strings.Contains(got, " 32 s ") {
		t.Errorf("a frozen screen aged:\n%s", got)
	}
	lost := after(m, Update{Link: Lost, Reason: "refused", AgeMS: 4000}, beatMsg{})
	if got := sees(lost); !strings.Contains(got, "stale 5 s: refused; trying again") {
		t.Errorf("the age of the picture does not pass:\n%s", got)
	}
	if got := sees(after(lost, live(s))); strings.Contains(got, "stale") || !strings.Contains(got, "live") {
		t.Errorf("the screen is still stale:\n%s", got)
	}
}

// TestFrozen checks that a paused screen shows what it showed, then the newest.
func TestFrozen(t *testing.T) {
	m := after(at(80, 24, Options{}, live(fleetScene(4, agg, 0))), press("p"), live(fleetScene(4, agg, 60_000)), beatMsg{})
	if m.pic.snap.AtMS != sceneStart || !strings.Contains(sees(m), "paused 1 m ago") {
		t.Errorf("not frozen:\n%s", sees(m))
	}
	// What is filtered while paused is the frozen picture.
	m = after(m, keysOf("/ w 1 enter")...)
	if m.pic.snap.AtMS != sceneStart || len(m.pic.targets) != 1 {
		t.Errorf("the filter took a newer picture")
	}
	if m = after(m, press("p")); m.pic.snap.AtMS != sceneStart+60_000 {
		t.Errorf("after the pause the picture is of %d", m.pic.snap.AtMS-sceneStart)
	}
}

// decision is the record of a decision among n workers.
func decision(t testing.TB, n int) []byte {
	t.Helper()
	var cands []score.ExplainCandidate
	for i := range n {
		cands = append(cands, score.ExplainCandidate{Name: "w" + string(rune('a'+i%26)), Hits: int64(i), Load: load.Load{ActiveBlocks: int64(10 * i)}})
	}
	d, err := score.Explain(score.Defaults(), score.Request{InputTokens: 640}, 40, cands)
	if err != nil {
		t.Fatal(err)
	}
	return d.AppendJSON(nil)
}

func TestExplain(t *testing.T) {
	src := newFake()
	record := decision(t, 4)
	src.explain = map[uint64][]byte{1000: record, 999: []byte(`{"what":"is this"}`)}
	m := New(src, Options{Width: 80, Height: 24})
	m = after(m, live(fleetScene(4, agg, 0)), press("3"))
	open := func(m Model) Model {
		next, cmd := m.Update(press("enter"))
		if m = next.(Model); !strings.Contains(sees(m), "fetching") {
			t.Errorf("it does not say that it waits:\n%s", sees(m))
		}
		return after(m, cmd())
	}
	var want strings.Builder
	d, err := score.ParseDecision(record)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Table(&want); err != nil {
		t.Fatal(err)
	}
	got := open(m)
	if s := strings.Join(got.full.lines, "\n") + "\n"; s != want.String() {
		t.Errorf("the explanation is not what explain prints; got:\n%s\nwant:\n%s", s, want.String())
	}
	right := after(got, press("right"))
	mustFit(t, right.View().Content, 80, 24)
	if got.full.width > 78 && sees(right) == sees(got) {
		t.Error("it does not scroll sideways")
	}
	if back := after(got, press("esc")); back.over != noOverlay || back.page != picksPage {
		t.Error("esc does not go back to the decisions")
	}
	if s := sees(open(after(m, press("j")))); !strings.Contains(s, "cannot be read") || !strings.Contains(s, `"what": "is this"`) {
		t.Errorf("a record of another version is not shown as it is:\n%s", s)
	}
	if s := sees(open(after(m, keysOf("j j")...))); !strings.Contains(s, "does not keep this decision") {
		t.Errorf("the error is not shown:\n%s", s)
	}
	// An answer to what is not asked any more changes nothing.
	if late := after(got, explainedMsg{pick: 7, err: errors.New("late")}); late.full.err != "" {
		t.Error("a late answer was taken")
	}
}

// fakePlayer remembers how it was steered.
type fakePlayer struct {
	*fakeSource
	did []string
}

func (p *fakePlayer) Pause(on bool) {
	p.did = append(p.did, map[bool]string{true: "pause", false: "go on"}[on])
}
func (p *fakePlayer) SetSpeed(x float64) { p.did = append(p.did, "speed "+rate(x)) }
func (p *fakePlayer) Skip(ms int64)      { p.did = append(p.did, "skip "+count(ms/1000)) }

func TestPlayer(t *testing.T) {
	p := &fakePlayer{fakeSource: newFake()}
	u := live(fleetScene(2, agg, 0))
	u.Play = &Play{AtMS: sceneStart, FromMS: sceneStart, ToMS: sceneStart + 60_000, Speed: 1}
	m := after(New(p, Options{Width: 80, Height: 24}), u)
	for _, k := range []string{"space", "p", "[", "]", "<", ">"} {
		_, cmd := m.Update(press(k))
		if cmd == nil {
			t.Fatalf("%s does nothing", k)
		}
		cmd()
	}
	want := []string{"pause", "pause", "speed 0.5", "speed 2.0", "skip -10", "skip 10"}
	if !slices.Equal(p.did, want) {
		t.Errorf("steered %q, want %q", p.did, want)
	}
	if !strings.Contains(sees(m), "playing") || !strings.Contains(sees(m), "00:00 of 01:00") {
		t.Errorf("it does not say where it stands:\n%s", sees(m))
	}
}

func TestMouse(t *testing.T) {
	m := at(80, 24, Options{Mouse: true}, live(fleetScene(30, agg, 0)))
	if m.View().MouseMode == tea.MouseModeNone || at(80, 24, Options{}).View().MouseMode != tea.MouseModeNone {
		t.Error("the mouse is on without being asked for, or off")
	}
	a := m.layout().panels[0]
	m = after(m, tea.MouseClickMsg{X: 5, Y: a.y + 4, Button: tea.MouseLeft})
	if got := m.lists[workersPanel].sel; got != "w3" {
		t.Errorf("clicked %q, want w3", got)
	}
	m = after(m, tea.MouseWheelMsg{Button: tea.MouseWheelDown}, tea.MouseWheelMsg{Button: tea.MouseWheelDown}, tea.MouseWheelMsg{Button: tea.MouseWheelUp})
	if got := m.lists[workersPanel].sel; got != "w4" {
		t.Errorf("after the wheel %q, want w4", got)
	}
	for y := range 30 {
		for x := range 90 {
			m = after(m, tea.MouseClickMsg{X: x - 2, Y: y - 2, Button: tea.MouseLeft})
		}
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "a\tb\r\nc": "a b  c", "\x1b[31mred\x1b[0m": "red", "\x1b]0;t\x07x": "x", "\u202eabc": "abc", "a\u200bb": "ab", "e\u0301": "e",
		"\xff": "\ufffd", "日本": "日本", "\u0085x": "x", "a\u00a0b": "a b", "\x00\x07": "",
	} {
		if got := clean(in, false); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
	if got := clean("日本 é", true); got != "?? ?" {
		t.Errorf("in ASCII: %q", got)
	}
}

func TestNumbersFit(t *testing.T) {
	th := newTheme(false, true, true, false)
	for _, v := range []int64{0, 7, 999, 9999, 10_000, 12_345, 99_949, 99_950, 99_999, 999_499, 999_500, 999_999, 1_000_000, 1 << 40, 1 << 62, 9223372036854775807, -1, -999, -1000, -99_999, -1 << 63} {
		if s := count(v); len(s) > 5 {
			t.Errorf("count(%d) = %q: more than 5 cells", v, s)
		}
		if s := short(v); v >= 0 && len(s) > 4 {
			t.Errorf("short(%d) = %q: more than 4 cells", v, s)
		}
		if s := age(v); len(s) > 4 {
			t.Errorf("age(%d) = %q: more than 4 cells", v, s)
		}
		f := float64(v) / 1000
		if s := rate(f); len(s) > 5 {
			t.Errorf("rate(%g) = %q: more than 5 cells", f, s)
		}
		if s := th.share(&f); len(s) > 4 {
			t.Errorf("share(%g) = %q: more than 4 cells", f, s)
		}
		if s := th.margin(&f); len(s) > 7 {
			t.Errorf("margin(%g) = %q: more than 7 cells", f, s)
		}
	}
	for in, want := range map[int64]string{12_345: "12.3k", 99_950: "100k", 1_240_000: "1.24M", 9999: "9999"} {
		if got := count(in); got != want {
			t.Errorf("count(%d) = %q, want %q", in, got, want)
		}
	}
}

func TestNatural(t *testing.T) {
	names := []string{"w10", "w2", "w1#dp10", "w1#dp2", "a", "w02", "w"}
	slices.SortFunc(names, natural)
	if got := strings.Join(names, " "); got != "a w w1#dp2 w1#dp10 w02 w2 w10" && got != "a w w1#dp2 w1#dp10 w2 w02 w10" {
		t.Errorf("sorted: %s", got)
	}
}
