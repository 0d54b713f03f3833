package vitals

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// looker looks at a fleet of three workers that are well, once a second.
type looker struct {
	v   *Vitals
	now int64
}

func (l *looker) look(change func(*snapshot.Snapshot), facts ...Fact) []snapshot.Warning {
	l.now += second
	s := snapshot.Snapshot{AtMS: l.now, Router: snapshot.Router{Ready: true}}
	for _, key := range []string{"a", "b", "c"} {
		s.Workers = append(s.Workers, snapshot.Worker{
			WorkerID: key, RouteKey: key, Health: "healthy", Trust: "trusted", Breaker: "closed", PageSize: new(int), HeldRequests: 5, HeldTokens: 100,
			Parity: []snapshot.Parity{{Case: "text", Verdict: "unknown"}, {Case: "chat", Verdict: "confirmed"}},
		})
	}
	if change != nil {
		change(&s)
	}
	l.v.Watch(&s, facts...)
	l.v.Fill(l.now, &s)
	return s.Warnings
}

// degraded is every state that a snapshot shows to be wrong. What is counted is counted on by the looks.
var degraded = []struct {
	kind, severity string
	change         func(s *snapshot.Snapshot, w *snapshot.Worker, look uint64)
	text           string // that the warning has
}{
	{"draining", "warning", func(s *snapshot.Snapshot, _ *snapshot.Worker, _ uint64) { s.Router.Draining = true }, "takes no new requests"},
	{"not-ready", "warning", func(s *snapshot.Snapshot, _ *snapshot.Worker, _ uint64) {
		s.Router.Ready, s.Router.NotReady = false, []string{"WHY"}
	}, "not ready: WHY"},
	{"health", "error", func(_ *snapshot.Snapshot, w *snapshot.Worker, _ uint64) {
		w.Health, w.HealthReason = "unhealthy", "WHY"
	}, "does not answer: WHY"},
	{"health", "warning", func(_ *snapshot.Snapshot, w *snapshot.Worker, _ uint64) { w.Health, w.HealthReason = "starting", "WHY" }, "cannot be used yet: WHY"},
	{"breaker", "error", func(_ *snapshot.Snapshot, w *snapshot.Worker, _ uint64) { w.Breaker = "open" }, "breaker open"},
	{"breaker", "error", func(_ *snapshot.Snapshot, w *snapshot.Worker, _ uint64) { w.Breaker = "half-open" }, "breaker half-open"},
	{"gap", "warning", trust("gap"), "WHY"},
	{"silent", "error", trust("silent"), "WHY"},
	{"malformed", "error", trust("malformed"), "WHY"},
	{"unverifiable", "warning", trust("unverifiable"), "WHY"},
	{"predictions", "warning", trust("diverged"), "WHY"},
	{"warming", "warning", trust("warming"), "not all that its cache holds is known: WHY"},
	{"stream", "warning", trust("connecting"), "events do not come: WHY"},
	{"stream", "warning", trust("resync"), "events do not come: WHY"},
	{"approximate", "warning", trust("no-events"), "guessed from what was sent there: WHY"},
	{"skipped", "warning", func(_ *snapshot.Snapshot, w *snapshot.Worker, look uint64) {
		w.Stream.Skipped = map[string]uint64{"bad tokens": look}
	}, "1 of its events were left out: bad tokens"},
	{"parity", "error", func(_ *snapshot.Snapshot, w *snapshot.Worker, _ uint64) {
		w.Parity = append(w.Parity, snapshot.Parity{Case: "tools", Verdict: "diverged", Detail: "WHY"})
	}, "makes other tokens than we do (tools): WHY"},
	{"parity", "warning", func(_ *snapshot.Snapshot, w *snapshot.Worker, _ uint64) {
		w.Parity = []snapshot.Parity{{Case: "text", Verdict: "unknown", Detail: "WHY"}}
	}, "could not be found out: WHY"},
	{"block-size", "warning", func(_ *snapshot.Snapshot, w *snapshot.Worker, _ uint64) { w.PageSize = nil }, "is not known"},
	{"index-full", "warning", func(_ *snapshot.Snapshot, w *snapshot.Worker, look uint64) { w.Stream.Refused = look }, "(--index-limit): 1 blocks"},
	{"orphans", "warning", func(_ *snapshot.Snapshot, w *snapshot.Worker, look uint64) { w.Stream.Dropped = look }, "1 blocks of its cache were given up"},
	{"conflicts", "warning", func(_ *snapshot.Snapshot, w *snapshot.Worker, look uint64) { w.Stream.Conflicts = look }, "another parent"},
	{"imbalance", "warning", func(_ *snapshot.Snapshot, w *snapshot.Worker, _ uint64) { w.HeldTokens = 1000 }, "holds 1000 tokens of requests, the others 100"},
}

func trust(state string) func(*snapshot.Snapshot, *snapshot.Worker, uint64) {
	return func(_ *snapshot.Snapshot, w *snapshot.Worker, _ uint64) { w.Trust, w.TrustReason = state, "WHY" }
}

// TestNothingDegradesInSilence: each state that is not as it should be is told, once, in words, first of all that is
// told; and is over when it is over.
func TestNothingDegradesInSilence(t *testing.T) {
	for _, tt := range degraded {
		t.Run(tt.kind+" "+tt.text, func(t *testing.T) {
			l := &looker{v: New(), now: 1_000_000}
			if w := l.look(nil); len(w) != 0 {
				t.Fatalf("warnings of a fleet that is well: %+v", w)
			}
			l.v.Happened(l.now, Fact{Kind: "older", Text: "something before"})
			var got []snapshot.Warning
			n := uint64(0)
			for i := 0; i < 32 && (len(got) < 2 || got[0].OverMS != nil); i++ {
				n++
				got = l.look(func(s *snapshot.Snapshot) { tt.change(s, &s.Workers[1], n) })
			}
			if len(got) != 2 {
				t.Fatalf("%d warnings, want the one and the older one: %+v", len(got), got)
			}
			w := got[0]
			if w.Kind != tt.kind || w.Severity != tt.severity || !strings.Contains(w.Text, tt.text) || w.OverMS != nil || strings.Contains(w.Text, "%") {
				t.Errorf("got %+v, want %s %s: …%s…", w, tt.severity, tt.kind, tt.text)
			}
			if router := tt.kind == "draining" || tt.kind == "not-ready"; (w.RouteKey == "b") == router {
				t.Errorf("it is about %q", w.RouteKey)
			}
			end := func() (now []snapshot.Warning) {
				for range 11 {
					now = l.look(func(s *snapshot.Snapshot) {
						for _, c := range []string{"skipped", "index-full", "orphans", "conflicts"} {
							if c == tt.kind {
								tt.change(s, &s.Workers[1], n)
							}
						}
					})
				}
				return now
			}()
			if len(end) != 2 || end[0].ID != w.ID || end[0].OverMS == nil {
				t.Errorf("when it is over: %+v", end)
			}
		})
	}
}

// TestEveryKindIsDocumented: docs/cli-json.md lists the kinds that the source has, and no others.
func TestEveryKindIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/cli-json.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| `kind` | what is wrong |")
	table, _, _ = strings.Cut(table, "\n\n")
	documented := map[string]bool{}
	for _, row := range strings.Split(table, "\n")[2:] {
		for _, m := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(strings.Split(row, "|")[1], -1) {
			documented[m[1]] = true
		}
	}
	source := map[string]string{}
	kinds := regexp.MustCompile(`(?:Kind: |fact\(|happened\(|facts\.set\(|wrong\.set\(|^\t\t\t?\{)"([a-z-]+)",`)
	for _, dir := range []string{".", "../fleet", "../admin", "../cli"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range strings.Split(string(text), "\n") {
				if m := kinds.FindStringSubmatch(line); m != nil && (!strings.HasPrefix(line, "\t\t") || strings.Contains(line, "Kind: ") || strings.Contains(line, "(") || dir == ".") {
					source[m[1]] = name
				}
			}
		}
	}
	if len(source) < 25 {
		t.Fatalf("found %d kinds in the source: it is not read right", len(source))
	}
	for k, at := range source {
		if !documented[k] {
			t.Errorf("docs/cli-json.md does not have the kind %s of %s", k, at)
		}
	}
	for k := range documented {
		if source[k] == "" {
			t.Errorf("docs/cli-json.md has the kind %s, the source does not", k)
		}
	}
	for _, d := range degraded {
		if source[d.kind] == "" {
			t.Errorf("the kind %s is not found in the source", d.kind)
		}
	}
}

// TestFlips: what comes and goes between two looks is told, with how often; what goes on is told as that alone.
func TestFlips(t *testing.T) {
	l := &looker{v: New(), now: 1_000_000}
	trip := Fact{Kind: "breaker", Severity: "error", Worker: "b", Text: "its breaker opened"}
	open := func(s *snapshot.Snapshot) { s.Workers[1].Breaker = "open" }
	l.look(nil)
	l.v.Happened(l.now+100, trip)
	l.v.Happened(l.now+400, trip)
	l.v.Happened(l.now+500, Fact{Kind: "health", Severity: "error", Worker: "c", Text: "did not answer"})
	got := l.look(nil)
	var texts []string
	for _, w := range got {
		texts = append(texts, fmt.Sprint(w.Kind, " ", w.RouteKey, " ", w.Text, " ", w.AtMS, "-", *w.OverMS))
	}
	want := []string{"health c did not answer 1001500-1001500", "breaker b its breaker opened (2 times) 1001100-1001400"}
	if !slices.Equal(texts, want) {
		t.Fatalf("got %q, want %q", texts, want)
	}
	l.v.Happened(l.now+100, trip)
	if got = l.look(open); len(got) != 3 || got[0].OverMS != nil || got[0].Text != "breaker open: requests to it failed" {
		t.Errorf("one that goes on: %+v, want it once more, open", got)
	}
	if got = l.look(nil); len(got) != 3 || got[0].OverMS == nil {
		t.Errorf("when it is over: %+v", got)
	}
	// What is later than the snapshot may go on in the next one.
	l.v.Happened(l.now+second+1, trip)
	if got = l.look(nil); len(got) != 3 {
		t.Errorf("before it can be known whether it goes on: %+v", got)
	}
	if got = l.look(open); len(got) != 4 || got[0].OverMS != nil {
		t.Errorf("it goes on: %+v", got)
	}
}

// TestWorkerOfRanks: what is wrong with a worker is told once, not for each of its ranks.
func TestWorkerOfRanks(t *testing.T) {
	l := &looker{v: New(), now: 1_000_000}
	ranks := func(s *snapshot.Snapshot) {
		for i := range s.Workers {
			s.Workers[i].WorkerID, s.Workers[i].RouteKey = "w", fmt.Sprint("w#dp", i)
		}
	}
	l.look(ranks)
	got := l.look(func(s *snapshot.Snapshot) {
		ranks(s)
		for i := range s.Workers {
			s.Workers[i].Breaker, s.Workers[i].Health, s.Workers[i].HealthReason = "open", "unhealthy", "WHY"
		}
	})
	if len(got) != 2 || got[0].RouteKey != "w#dp0" || got[1].RouteKey != "w#dp0" {
		t.Errorf("got %+v, want a warning about health and one about the breaker", got)
	}
	l.v.Happened(l.now+1, Fact{Kind: "breaker", Worker: "w", Text: "opened"})
	if got = l.look(ranks); len(got) != 3 || got[0].RouteKey != "w#dp0" {
		t.Errorf("what happened to it: %+v", got)
	}
}

// TestCounted: a counter that grows is told with how much it has grown since that began, and is over some time after
// it has stopped; one that has grown before the first look is not told, one of a later comer is.
func TestCounted(t *testing.T) {
	l := &looker{v: New(), now: 1_000_000}
	fact := func(n uint64) Fact {
		return Fact{Kind: "failed", Severity: "error", Counted: true, Count: n, Text: "%d requests failed at 100%"}
	}
	for i, tt := range []struct {
		n     uint64
		looks int
		want  string
	}{
		{70, 3, ""},
		{71, 1, "1 requests failed at 100%"},
		{75, 1, "5 requests failed at 100%"},
		{75, 9, "5 requests failed at 100%"},
		{75, 1, "5 requests failed at 100% over"},
		{80, 1, "5 requests failed at 100%, 5 requests failed at 100% over"},
	} {
		var got []snapshot.Warning
		for range tt.looks {
			got = l.look(nil, fact(tt.n))
		}
		var texts []string
		for _, w := range got {
			over := ""
			if w.OverMS != nil {
				over = " over"
			}
			texts = append(texts, w.Text+over)
		}
		if s := strings.Join(texts, ", "); s != tt.want {
			t.Errorf("step %d: got %q, want %q", i, s, tt.want)
		}
	}
	if got := l.look(nil, fact(80), Fact{Kind: "untokenized", Name: "new", Counted: true, Count: 2, Text: "%d"}); got[0].Text != "2" {
		t.Errorf("a counter that was not there before: %+v", got)
	}
}

// TestManyWarnings: of more than can be listed errors stay, and that there are more is said.
func TestManyWarnings(t *testing.T) {
	l := &looker{v: New(), now: 1_000_000}
	var facts []Fact
	for i := range 250 {
		f := Fact{Kind: "approximate", RouteKey: fmt.Sprint("w", i), Text: "guessed"}
		if i < 3 {
			f.Kind, f.Severity = "silent", "error"
		}
		facts = append(facts, f)
	}
	got := l.look(nil, facts...)
	errors, last := 0, got[len(got)-1]
	for _, w := range got {
		if w.Severity == "error" {
			errors++
		}
	}
	if len(got) != maxWarnings || errors != 3 || !slices.ContainsFunc(got, func(w snapshot.Warning) bool { return w.Kind == "many" && strings.HasPrefix(w.Text, "151 more") }) {
		t.Errorf("%d warnings, %d errors, the last %+v", len(got), errors, last)
	}
	for i := range 2 * maxMoments {
		l.v.Happened(l.now, Fact{Kind: "restart", RouteKey: fmt.Sprint("w", i), Text: "x"})
	}
	if got = l.look(nil); len(got) != maxWarnings || got[0].Kind != "many" || !strings.Contains(got[0].Text, fmt.Sprint(maxMoments)) {
		t.Errorf("more happened than can be told: %+v", got[0])
	}
}
