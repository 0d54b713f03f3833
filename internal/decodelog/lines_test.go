package decodelog

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// read reads logs that are given as name, text, name, text, ....
func read(t testing.TB, opt Options, logs ...string) ([]Sample, *Report, error) {
	t.Helper()
	var sources []Source
	for i := 0; i < len(logs); i += 2 {
		sources = append(sources, Source{logs[i], strings.NewReader(logs[i+1])})
	}
	var got []Sample
	rep, err := Read(context.Background(), sources, opt, func(s *Sample) error {
		got = append(got, *s)
		return nil
	})
	if rep == nil {
		t.Fatal("no report")
	}
	if int64(len(got)) != rep.Used {
		t.Errorf("%d samples, the report says %d", len(got), rep.Used)
	}
	return got, rep, err
}

func must(t testing.TB, opt Options, logs ...string) ([]Sample, *Report) {
	t.Helper()
	got, rep, err := read(t, opt, logs...)
	if err != nil {
		t.Fatal(err)
	}
	return got, rep
}

// quoted returns the lines of testdata/lines.md under a number.
func quoted(t testing.TB, number string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/lines.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n**"+number+"**")
	if !ok {
		t.Fatalf("testdata/lines.md has no **%s**", number)
	}
	_, rest, _ = strings.Cut(rest, "\n```\n")
	lines, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatalf("**%s** has no block of lines", number)
	}
	return lines
}

func at(text string) int64 {
	t, err := time.Parse("2006-01-02 15:04:05.999", text)
	if err != nil {
		panic(err)
	}
	return t.UnixNano()
}

var near = cmp.Comparer(func(a, b float64) bool { return a == b || math.Abs(a-b) <= 1e-9*math.Abs(a) })

// Every line of the collection, with what a reader has to make of it by hand: step = running x accept / throughput.
func TestQuotedLines(t *testing.T) {
	graph := func(s Sample) Sample { s.Graph, s.HasGraph = true, true; return s }
	rounded := func(pool float64, s Sample) Sample { s.HeldError = pool / 1000 / math.Sqrt(12); return s }
	line := func(when string, rank int32, running, held, accept, throughput float64) Sample {
		return Sample{At: at(when), Rank: rank, Step: running * accept / throughput, Running: running, Held: held, Accept: accept}
	}
	with := func(s Sample, f func(*Sample)) Sample { f(&s); return s }
	tests := []struct {
		number string
		opt    Options
		want   []Sample
		left   []string // reasons
		other  []string // kinds
		fails  string   // part of the error
	}{
		{number: "1", left: []string{reasonWords[leftBare]}, fails: "early 2024"},
		{number: "2", want: []Sample{{At: 2028728714, Rank: NoRank, Step: 233 / 4594.01, Running: 233, Held: 370959, Accept: 1}}},
		{number: "3", want: []Sample{
			line("2025-02-27 04:46:39", NoRank, 8, 62531, 1, 186.64), line("2025-02-27 04:46:41", NoRank, 8, 62851, 1, 185.93), line("2025-02-27 04:46:43", NoRank, 8, 63171, 1, 186.99),
		}},
		{number: "5", want: []Sample{
			graph(line("2025-05-31 18:31:21", 0, 8, 37217, 2.90, 171.01)), graph(line("2025-05-31 18:31:21", 6, 8, 36267, 2.86, 168.28)),
			graph(line("2025-05-31 18:31:21", 5, 8, 37565, 2.94, 173.06)), graph(line("2025-05-31 18:31:23", 7, 8, 37357, 2.65, 155.80)),
		}},
		{number: "7", want: []Sample{graph(line("2025-09-03 18:33:19", NoRank, 1, 177, 1, 84.20))}, left: []string{reasonWords[leftLong]}},
		{number: "9", want: []Sample{graph(line("2025-10-15 18:07:24", 0, 285, 328960, 1, 3344.60))}},
		{number: "10", want: []Sample{
			graph(line("2025-10-20 03:02:22", 3, 32, 157952, 1.93, 693.45)), graph(line("2025-10-20 03:02:22", 5, 32, 164224, 1.92, 674.19)),
			graph(line("2025-10-20 03:02:22", 2, 32, 162112, 1.90, 655.17)), graph(line("2025-10-20 03:02:22", 4, 32, 168768, 1.93, 679.00)),
		}},
		{number: "12", want: []Sample{graph(line("2025-10-22 10:27:57", NoRank, 1, 186, 1.95, 178.86))}, left: []string{reasonWords[leftLong]}},
		{number: "14", want: []Sample{
			with(line("2025-11-11 04:06:27", NoRank, 46, 34901, 1, 1447.08), func(s *Sample) { s.HasGraph = true }), graph(line("2025-11-11 04:06:30", NoRank, 28, 22920, 1, 1086.59)),
		}},
		{number: "16", want: []Sample{line("2025-12-17 05:10:47", NoRank, 1, 64, 1, 84.39)}},
		{number: "18", want: []Sample{graph(line("2026-04-05 20:02:51", NoRank, 32, 11179, 1, 1635.11))}},
		{number: "20", want: []Sample{graph(line("2026-05-20 08:02:44", NoRank, 4, 477376, 1, 199.95))}},
		{number: "22", want: []Sample{graph(line("2026-06-07 10:59:31.659", NoRank, 1, 227, 1, 126.29))}},
		{number: "24", opt: Options{MaxStep: 1}, want: []Sample{graph(line("2026-07-04 05:01:33", NoRank, 40, 350592, 3.13, 155.34))}},
		{number: "26", other: []string{kindWords[kindPrefill]}, left: []string{reasonWords[leftLong]}, want: []Sample{
			graph(with(line("2026-08-27 08:30:07", NoRank, 1, 128, 1, 87.33), func(s *Sample) { s.Weight = 40 })),
			graph(with(line("2026-08-27 08:30:08", NoRank, 1, 128, 1, 87.41), func(s *Sample) { s.Weight = 40 })),
			graph(with(line("2026-08-27 08:30:11", NoRank, 2, 640, 1, 160.73), func(s *Sample) { s.Weight, s.Prefill = 321, true })),
		}},
		{number: "28", left: []string{reasonWords[leftCut]}, fails: "cut or shortened"},
		{number: "30", left: []string{reasonWords[leftLong]}, want: []Sample{
			graph(line("2026-09-30 08:30:38", NoRank, 10, 27968, 2.93, 376.87)), graph(line("2026-09-30 08:30:39", NoRank, 10, 29440, 2.67, 845.43)),
		}},
		{number: "33", other: []string{kindWords[kindPrefill]}, fails: "only prefill"},
		{number: "35", other: []string{kindWords[kindPrefill]}, fails: "only prefill"},
		{number: "37", other: []string{kindWords[kindPrefill]}, fails: "only prefill"},
		{number: "39", other: []string{kindWords[kindPrefill]}, fails: "only prefill"},
		{number: "41", other: []string{kindWords[kindPrefill]}, fails: "only prefill"},
		{number: "43", left: []string{reasonWords[leftStill]}, fails: "no token was produced"},
		{number: "45", opt: Options{Year: 2025, PoolTokens: 100_000, MaxStep: 1}, want: []Sample{line("2025-01-23 06:33:37", NoRank, 16, 92100, 1, 16.7)}},
		{number: "47", left: []string{reasonWords[leftIdle]}, fails: "no request was running"},
		{number: "49", opt: Options{Year: 2025, PoolTokens: 100_000}, want: []Sample{line("2025-07-28 06:42:09", 0, 8, 93900, 1, 240.8), rounded(100_000, line("2025-07-28 06:42:19", 0, 8, 94300, 1, 241.6))}},
		{number: "51", opt: Options{Year: 2025}, want: []Sample{
			with(line("2025-09-06 04:08:28", 0, 32, 0, 1, 200.8), func(s *Sample) { s.Prefill = true }), line("2025-09-06 04:08:38", 0, 32, 0, 1, 623.9),
			line("2025-09-06 04:08:48", 0, 32, 0, 1, 598.3), line("2025-09-06 04:08:58", 0, 32, 0, 1, 579.1), line("2025-09-06 04:09:08", 0, 32, 0, 1, 563.1),
		}},
		{number: "53", left: []string{reasonWords[leftIdle]}, fails: "no request was running"},
		{number: "55", opt: Options{MaxStep: 10, Year: 2025, PoolTokens: 1000}, left: []string{}, want: []Sample{
			with(line("2025-12-15 18:51:44", 0, 106, 25, 1, 32), func(s *Sample) { s.Prefill = true }), with(line("2025-12-15 18:51:44", 1, 106, 25, 1, 32), func(s *Sample) { s.Prefill = true }),
		}},
		{number: "57", left: []string{reasonWords[leftLong]}, fails: "most allowed"},
		{number: "59", opt: Options{Year: 2026, PoolTokens: 1000}, other: []string{kindWords[kindAccess]}, want: []Sample{line("2026-04-28 22:54:32", 0, 1, 765, 1, 5.4), rounded(1000, line("2026-04-28 22:54:42", 0, 1, 767, 1, 5.4))}},
		{number: "61", opt: Options{Year: 2026, PoolTokens: 1000}, want: []Sample{
			line("2026-05-19 10:13:11", 0, 18, 959, 1, 1055.3), rounded(1000, line("2026-05-19 10:13:21", 0, 18, 955, 1, 1226.3)),
			with(rounded(1000, line("2026-05-19 10:13:31", 0, 18, 877, 1, 734.9)), func(s *Sample) { s.Prefill = true }),
		}},
		{number: "63", left: []string{reasonWords[leftIdle]}, fails: "no request was running"},
		{number: "65", left: []string{reasonWords[leftLong]}, fails: "most allowed"},
		{number: "67", other: []string{kindWords[kindATOM]}, fails: "ATOM prints nothing about decode steps"},
	}
	for _, tt := range tests {
		t.Run(tt.number, func(t *testing.T) {
			got, rep, err := read(t, tt.opt, "log", quoted(t, tt.number))
			if tt.fails == "" && err != nil || tt.fails != "" && (err == nil || !strings.Contains(err.Error(), tt.fails)) {
				t.Errorf("error %v, want one with %q", err, tt.fails)
			}
			if diff := cmp.Diff(tt.want, got, near, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("samples (-want +got):\n%s", diff)
			}
			for _, why := range tt.left {
				if rep.Left[why].N == 0 {
					t.Errorf("left out %v, want some because %q", rep.Left, why)
				}
			}
			if len(rep.Left) > len(tt.left) {
				t.Errorf("left out %v, want only %q", rep.Left, tt.left)
			}
			for _, kind := range tt.other {
				if rep.Other[kind].N == 0 {
					t.Errorf("other lines %v, want some of %q", rep.Other, kind)
				}
			}
		})
	}
}

// The two whole logs, against counts made by grep and the definition.
func TestWholeLogs(t *testing.T) {
	for _, tt := range []struct {
		name              string
		lines, used, long int64
		pool              int64
	}{
		{"g52-pd-dp8-nomtp", 4845, 4755, 89, 3215360},
		{"g52-pd-dp8-short", 911, 898, 12, 2830208},
	} {
		data, err := os.ReadFile("testdata/decode-logs/" + tt.name + ".log.gz")
		if err != nil {
			t.Fatal(err)
		}
		got, rep := must(t, Options{}, tt.name, string(data))
		if rep.Lines != tt.lines || rep.Used != tt.used || rep.Left[reasonWords[leftLong]].N != tt.long || rep.Bytes != int64(len(data)) {
			t.Errorf("%s: lines %d, used %d, left %v, bytes %d; want %d, %d, %d too long, %d", tt.name, rep.Lines, rep.Used, rep.Left, rep.Bytes, tt.lines, tt.used, tt.long, len(data))
		}
		if diff := cmp.Diff([]int32{0, 1, 2, 3, 4, 5, 6, 7}, rep.Ranks); diff != "" {
			t.Errorf("%s: ranks (-want +got):\n%s", tt.name, diff)
		}
		if rep.PoolTokens[3] != tt.pool || rep.PoolFrom != "the start-up line" || rep.Engine != SGLang || rep.Accepting || !rep.HasHeld {
			t.Errorf("%s: report %+v", tt.name, rep)
		}
		for i := range got {
			if i > 0 && got[i].At < got[i-1].At {
				t.Fatalf("%s: sample %d is before the one before it", tt.name, i)
			}
		}
	}
}

func TestErrorsAreTyped(t *testing.T) {
	_, _, err := read(t, Options{}, "a.log", "hello\n")
	var e *Error
	if !errors.As(err, &e) || e.File != "a.log" || e.Hint == "" {
		t.Errorf("error %#v, want a *Error about a.log with a hint", err)
	}
	boom := errors.New("boom")
	_, err = Read(context.Background(), []Source{{"a", bytes.NewReader([]byte(quoted(t, "3")))}}, Options{}, func(*Sample) error { return boom })
	if !errors.Is(err, boom) {
		t.Errorf("error of each came back as %v", err)
	}
}

// The form of models with sliding windows has two counts of tokens; what is held is the full one.
func TestSlidingWindow(t *testing.T) {
	got, rep := must(t, Options{}, "log", "[2026-01-01 00:00:05 TP0] Decode batch, #running-req: 4, #full token: 4000, full token usage: 0.40, #swa token: 300, swa token usage: 0.10, cuda graph: True, gen throughput (token/s): 100.00, #queue-req: 0\n")
	if len(got) != 1 || got[0].Held != 4000 || got[0].Step != 0.04 || !strings.Contains(strings.Join(rep.Notes, ""), "sliding window") {
		t.Errorf("samples %+v, notes %q", got, rep.Notes)
	}
}

// The rounding of a share that is told is an error of its own in each line only while the share changes.
func TestSharesThatChange(t *testing.T) {
	var s shares
	for i, tt := range []struct {
		share float64
		lines int
		want  bool
	}{
		{0.15, 100, false}, // never changed
		{0.16, steady, true},
		{0.16, 100, false}, // steady again
		{0, 1, true},
		{0.01, 1, true},
	} {
		for k := range tt.lines {
			if got := s.change(tt.share); got != tt.want {
				t.Fatalf("row %d, line %d of share %g: changes %v, want %v", i, k+1, tt.share, got, tt.want)
			}
		}
	}
}

// Steps at the limits are counted, but for those that prefill lengthened.
func TestStepsAtTheLimits(t *testing.T) {
	st := newState(Options{MinStep: 0.010, MaxStep: 0.100})
	for _, step := range []float64{0.009, 0.010, 0.0124, 0.0126, 0.05, 0.079, 0.081, 0.100, 0.101, 3} {
		_, ok := st.allowed(step, false)
		if want := step >= 0.010 && step <= 0.100; ok != want {
			t.Errorf("step %g allowed %v, want %v", step, ok, want)
		}
		st.allowed(step, true)
	}
	if got, want := st.rep.Shortest, (Limit{Step: 0.010, Near: 2, Beyond: 1}); got != want {
		t.Errorf("shortest %+v, want %+v", got, want)
	}
	if got, want := st.rep.Longest, (Limit{Step: 0.100, Near: 2, Beyond: 2}); got != want {
		t.Errorf("longest %+v, want %+v", got, want)
	}
}
