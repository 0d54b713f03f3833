package tui

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestUTF8: the first variable that is set decides, and it must say UTF-8.
func TestUTF8(t *testing.T) {
	for _, c := range []struct {
		set  map[string]string
		want bool
	}{
		{nil, true},
		{map[string]string{"LANG": "en_US.UTF-8"}, true},
		{map[string]string{"LANG": "de_DE.utf8"}, true},
		{map[string]string{"LANG": "C"}, false},
		{map[string]string{"LANG": "POSIX"}, false},
		{map[string]string{"LANG": "de_DE.ISO-8859-1"}, false},
		{map[string]string{"LANG": "en_US.UTF-8", "LC_ALL": "C"}, false},
		{map[string]string{"LANG": "C", "LC_ALL": "", "LC_CTYPE": "C.UTF-8"}, true},
	} {
		if got := UTF8(func(name string) string { return c.set[name] }); got != c.want {
			t.Errorf("%v: %v, want %v", c.set, got, c.want)
		}
	}
}

// TestDamageIsToldOnTheScreen: a recording that breaks off does not look like one that is over.
func TestDamageIsToldOnTheScreen(t *testing.T) {
	data := taped(t, 5)
	for _, c := range []struct {
		name string
		data []byte
		want bool
	}{{"whole", data, false}, {"cut", data[:len(data)-7], true}} {
		track, err := OpenTape("run.watch", strings.NewReader(string(c.data)))
		if err != nil {
			t.Fatal(err)
		}
		all := watchUntil(t, NewPlayback("run.watch", track, mostSpeed), func(u Update) bool { return u.Link == Ended })
		s := sees(at(80, 24, Options{}, all[len(all)-1]))
		if got := strings.Contains(s, "breaks off here"); got != c.want || !strings.Contains(s, "recording, over") {
			t.Errorf("%s: damage is told: %v, want %v, in\n%s", c.name, got, c.want, s)
		}
	}
}

// TestPlayedWhileItGrows: a recording that is still written is played on, and never stands behind its own end.
func TestPlayedWhileItGrows(t *testing.T) {
	data := taped(t, 12)
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "run.watch"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // of a test
	half := len(strings.Join(strings.SplitAfter(string(data), "\n")[:6], ""))
	add := func(p []byte, offset int64) {
		if _, err := file.WriteAt(p, offset); err != nil {
			t.Fatal(err)
		}
	}
	add(data[:half], 0)
	track, err := OpenTape("run.watch", file)
	if err != nil {
		t.Fatal(err)
	}
	_, was := track.Span()
	add(data[half:], int64(half))
	all := watchUntil(t, NewPlayback("run.watch", track, mostSpeed), func(u Update) bool { return u.Link == Ended })
	for _, u := range all {
		if p := u.Play; p.AtMS > p.ToMS || p.ToMS < was {
			t.Fatalf("it stands at %d ms of %d to %d", p.AtMS, p.FromMS, p.ToMS)
		}
	}
	if last := all[len(all)-1].Play; last.ToMS <= was {
		t.Errorf("what was written after it was opened is not played: the end is %d ms, as before", last.ToMS)
	}
}

// TestFilterThatNothingMeetsIsSeen: whoever forgot the filter sees why the fleet is gone.
func TestFilterThatNothingMeetsIsSeen(t *testing.T) {
	m := after(at(80, 24, Options{}, live(fleetScene(4, agg, 0))), keysOf("/ z z enter")...)
	if s := sees(m); !strings.Contains(s, "filter zz, 0/0") || strings.Contains(s, "──  ──") {
		t.Errorf("the filter is not shown:\n%s", s)
	}
}

// TestExplanationOutlivesTheRun: decisions are numbered anew after a restart; one from before is called so.
func TestExplanationOutlivesTheRun(t *testing.T) {
	s := fleetScene(4, agg, 0)
	m := after(at(80, 24, Options{}, live(s)), press("3"), press("enter"))
	m = after(m, explainedMsg{pick: m.full.pick, body: decision(t, 4)})
	const says = ", before the router's restart"
	if got := sees(m); !strings.Contains(got, "── decision #") || strings.Contains(got, says) {
		t.Fatalf("want the decision, as one of this run:\n%s", got)
	}
	restarted := *s
	restarted.Run, restarted.Seq = "another", 1
	if got := sees(after(m, live(&restarted))); !strings.Contains(got, says) {
		t.Errorf("want it said that the decision is of a former run:\n%s", got)
	}
}

// TestNamesOfWorkersThatAreGone: a fleet that has shrunk leaves its workers' names in the decisions readable.
func TestNamesOfWorkersThatAreGone(t *testing.T) {
	s := *fleetScene(4, agg, 0)
	s.Workers = nil
	s.Picks = slices.Clone(s.Picks)
	for i := range s.Picks {
		s.Picks[i].RouteKey = "10.20.30.40:30001"
	}
	if got := sees(after(at(100, 24, Options{}, live(&s)), press("3"))); !strings.Contains(got, " 10.20.30.40:30001 ") {
		t.Errorf("the name is cut:\n%s", got)
	}
}
