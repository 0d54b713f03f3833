package report_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/report"
)

var update = flag.Bool("update", false, "rewrite golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got, -update rewrites it):\n%s", name, diff)
	}
}

// fakeRun makes a run whose numbers hang together.
func fakeRun(policy, kind string, flags map[string]any, hits int64, meanMS float64, requests ...int64) report.Run {
	r := report.Run{
		Policy: policy, Kind: kind, Flags: flags, Workers: len(requests), CapacityBlocks: 5859,
		HitBlocks: hits, HitRate: report.Ratio(hits, 288500), HitTokens: hits * 512, TokenHitRate: report.Ratio(hits*512, 144793823),
		RequestsPerWorker: requests, Imbalance: report.Imbalance(requests), PicksDigest: "0123456789abcdef", PredictedHitBlocks: hits,
	}
	for _, n := range requests {
		r.MissBlocksPerWorker = append(r.MissBlocksPerWorker, 20*n)
	}
	if meanMS > 0 {
		us := int64(meanMS * 1000)
		r.Sim = &report.Sim{
			TTFT:       report.Dist{Sum: us * 12031, Mean: meanMS * 1000, P50: us / 2, P90: us * 2, P99: us * 5, Max: us * 9},
			E2E:        report.Dist{Sum: us * 24062, Mean: meanMS * 2000, P50: us, P90: us * 4, P99: us * 10, Max: us * 18},
			MakespanUS: 3548506300, PeakActiveBlocks: 785, Completed: 12031,
		}
	}
	return r
}

func fakeTrace() report.Trace {
	return report.Trace{
		Name: "conversation", Requests: 12031, Blocks: 288500, InputTokens: 144793823, OutputTokens: 4122048,
		CeilingHitBlocks: 105710, CeilingHitTokens: 54098411,
	}
}

func fakeSweep(sim bool) *report.Document {
	scale := 0.0
	if sim {
		scale = 1
	}
	d := &report.Document{
		Version: "v0.1.0", Seed: 7, Flags: map[string]any{"trace": "conversation.jsonl.gz", "workers": 4.0}, Trace: fakeTrace(),
		Sweep: &report.Sweep{Axes: []report.Axis{{Flag: "kv-overlap-weight", Values: []any{0.25, 1.0, 20.0}}}, Repeats: 5},
		Runs: []report.Run{
			fakeRun("kv-aware", report.KindSwept, map[string]any{"router-policy": "kv-aware", "kv-overlap-weight": 0.25}, 36845, 951.2*scale, 3051, 2944, 3022, 3014),
			fakeRun("kv-aware", report.KindSwept, map[string]any{"router-policy": "kv-aware", "kv-overlap-weight": 1.0}, 41000, 701.7*scale, 3100, 2900, 3000, 3031),
			fakeRun("kv-aware", report.KindSwept, map[string]any{"router-policy": "kv-aware", "kv-overlap-weight": 20.0}, 52000, 548.2*scale, 4000, 2500, 2600, 2931),
			fakeRun("least-work", report.KindDefault, map[string]any{"router-policy": "least-work"}, 60000, 445.1*scale, 3010, 3000, 3010, 3011),
			fakeRun("round-robin", report.KindReference, map[string]any{"router-policy": "round-robin"}, 37162, 1207*scale, 3008, 3008, 3008, 3007),
		},
	}
	for i := range d.Runs {
		if s := d.Runs[i].Sim; s != nil {
			d.Runs[i].Intervals = map[string]report.Interval{"ttft_mean_us": {Low: s.TTFT.Mean * 0.9, High: s.TTFT.Mean * 1.1}}
		}
	}
	low, high := 0.12, 0.26
	d.Recommendation = &report.Recommendation{
		Flags:  map[string]any{"router-policy": "kv-aware", "kv-overlap-weight": 20.0},
		Metric: "ttft_mean_us", Gain: 0.19, Low: &low, High: &high, Verdict: report.VerdictBetter,
	}
	return d
}

func fakeSingle(sim bool) *report.Document {
	ms := 0.0
	if sim {
		ms = 445.1
	}
	return &report.Document{
		Version: "v0.1.0", Seed: 1, Trace: fakeTrace(),
		Runs: []report.Run{fakeRun("least-work", "", nil, 60000, ms, 3010, 3000, 3010, 3011)},
	}
}

func render(t *testing.T, d *report.Document, format string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := d.Write(&b, format); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestGolden(t *testing.T) {
	wide := fakeSingle(false)
	for range 36 {
		wide.Runs[0].RequestsPerWorker = append(wide.Runs[0].RequestsPerWorker, 100)
		wide.Runs[0].MissBlocksPerWorker = append(wide.Runs[0].MissBlocksPerWorker, 3)
	}
	wide.Runs[0].Workers = 40
	fleets := &report.Document{Version: "v0.1.0", Trace: fakeTrace(), Sweep: &report.Sweep{Repeats: 1, Axes: []report.Axis{
		{Flag: "workers", Values: []any{2.0, 4.0}}, {Flag: "kv-overlap-weight", Values: []any{1.0, 4.0}},
	}}}
	for i, kind := range []string{report.KindSwept, report.KindSwept, report.KindReference} {
		for n := int64(2); n <= 4; n += 2 {
			flags := map[string]any{"router-policy": "round-robin", "workers": float64(n)}
			if kind == report.KindSwept {
				flags = map[string]any{"router-policy": "kv-aware", "workers": float64(n), "kv-overlap-weight": 1 + 3*float64(i)}
			}
			fleets.Runs = append(fleets.Runs, fakeRun(flags["router-policy"].(string), kind, flags, 40000+3000*int64(i)*n, 0, make([]int64, n)...))
			fleets.Runs[len(fleets.Runs)-1].Imbalance = 1 + 0.1*float64(i)
		}
	}
	noBlocks := fakeSingle(true)
	noBlocks.Trace.Blocks, noBlocks.Trace.CeilingHitBlocks = 0, 0
	r := &noBlocks.Runs[0]
	r.HitBlocks, r.HitRate, r.TokenHitRate, r.MissBlocksPerWorker, r.CapacityBlocks = 0, 0, 0, make([]int64, 4), 0
	// Requests that were not completed are not passed over in silence, and no times are not good times.
	undone := fakeSweep(true)
	undone.Runs[0].Sim.Completed, undone.Runs[0].Sim.Lost, undone.Runs[0].Sim.Rejected = 11_000, 31, 1000
	undone.Runs[1].Sim = &report.Sim{Rejected: 12_031}
	undone.Runs[1].Intervals, undone.Recommendation = nil, nil
	// Workers of different pools are not compared with each other.
	pools := fakeSingle(true)
	pools.Flags = map[string]any{"engine": "batch", "prefill-workers": 1, "decode-workers": 3}
	widePools := fakeSingle(false)
	widePools.Flags = map[string]any{"prefill-workers": 30}
	widePools.Runs[0] = wide.Runs[0]
	for name, d := range map[string]*report.Document{
		"pools": pools, "wide-pools": widePools, "undone": undone, "sweep-sim": fakeSweep(true), "sweep-replay": fakeSweep(false), "single-sim": fakeSingle(true), "single-replay": fakeSingle(false),
		"wide": wide, "fleets": fleets, "no-blocks": noBlocks, "empty": {Version: "v0.1.0", Trace: report.Trace{Name: "none"}},
	} {
		for _, format := range report.Formats() {
			if strings.HasPrefix(name, "sweep-") || name == "single-sim" || format == "table" {
				golden(t, name+"."+format, render(t, d, format))
			}
			if !bytes.Equal(render(t, d, format), render(t, d, format)) {
				t.Errorf("%s %s: bytes differ from one time to the next", name, format)
			}
		}
	}
}

func TestTableFits(t *testing.T) {
	for name, d := range map[string]*report.Document{"sweep-sim": fakeSweep(true), "sweep-replay": fakeSweep(false), "single": fakeSingle(true)} {
		for line := range strings.Lines(string(render(t, d, "table"))) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 || strings.HasSuffix(strings.TrimRight(line, "\n"), " ") {
				t.Errorf("%s: line of %d columns or with blanks at its end: %q", name, n, line)
			}
		}
	}
}

func TestJSONIsWhole(t *testing.T) {
	d := fakeSweep(true)
	var got report.Document
	if err := json.Unmarshal(render(t, d, "json"), &got); err != nil {
		t.Fatal(err)
	}
	want := *d
	want.Schema = report.Schema
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var doc map[string]any
	if err := json.Unmarshal(render(t, fakeSingle(false), "json"), &doc); err != nil {
		t.Fatal(err)
	}
	if v, ok := doc["recommendation"]; !ok || v != nil {
		t.Errorf("recommendation = %v, %v; want null", v, ok)
	}
	run := doc["runs"].([]any)[0].(map[string]any)
	if _, ok := run["flags"].(map[string]any); !ok {
		t.Errorf("flags = %v, want an object", run["flags"])
	}
	if _, ok := run["sim"]; ok {
		t.Error("a replay has a sim part")
	}
	lines := strings.Split(strings.TrimSpace(string(render(t, d, "jsonl"))), "\n")
	if len(lines) != len(d.Runs) {
		t.Fatalf("%d lines, want %d", len(lines), len(d.Runs))
	}
	for i, line := range lines {
		var r report.Run
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(d.Runs[i], r); diff != "" {
			t.Errorf("line %d: %s", i, diff)
		}
	}
}

func TestCSVIsRectangular(t *testing.T) {
	d := fakeSweep(true)
	d.Runs[1].Sim = nil
	rows, err := csv.NewReader(bytes.NewReader(render(t, d, "csv"))).ReadAll()
	if err != nil {
		t.Fatal(err) // also where rows differ in length
	}
	if len(rows) != 1+len(d.Runs) || rows[0][2] != "kv-overlap-weight" || rows[1][2] != "0.25" || rows[4][2] != "" {
		t.Errorf("rows %v", rows)
	}
}

func TestUnknownFormat(t *testing.T) {
	err := (&report.Document{}).Write(&bytes.Buffer{}, "jsn")
	var h *report.HintError
	if !errors.As(err, &h) || !strings.Contains(h.Hint, "json") {
		t.Errorf("error %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestWriteErrorsAreReported(t *testing.T) {
	for _, f := range report.Formats() {
		if err := fakeSweep(true).Write(failing{}, f); err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("%s: %v", f, err)
		}
	}
}

func TestFlagsText(t *testing.T) {
	got := report.FlagsText(map[string]any{"session-affinity": "both", "kv-overlap-weight": 0.25, "router-policy": "kv-aware", "x": -1, "decode-request-weight": 1e6})
	want := "--router-policy kv-aware --kv-overlap-weight 0.25 --decode-request-weight 1000000 --session-affinity both --x=-1"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestRoundRobinOfTheSameFleet(t *testing.T) {
	d := fakeSweep(true)
	if got := string(render(t, d, "table")); strings.Count(got, "-21.2%") != 1 {
		t.Errorf("not compared with round robin:\n%s", got)
	}
	d.Runs[4].Flags["event-delay"] = "50ms"
	if got := string(render(t, d, "table")); strings.Contains(got, "vs RR") {
		t.Errorf("compared with a run of another fleet:\n%s", got)
	}
}

// TestManyRuns: the greatest sweep there can be still prints in no time (it would take minutes if every
// run were compared with every other).
func TestManyRuns(t *testing.T) {
	d := fakeSweep(true)
	one := d.Runs[0]
	for i := range 10_000 {
		one.Flags = map[string]any{"kv-overlap-weight": float64(i), "workers": float64(i % 100)}
		d.Runs = append(d.Runs, one)
	}
	if n := bytes.Count(render(t, d, "table"), []byte("\n")); n < 10_000 {
		t.Errorf("%d lines", n)
	}
}

func TestPools(t *testing.T) {
	for _, c := range []struct {
		prefill any
		want    []report.Pool
	}{
		{nil, []report.Pool{{Role: "", From: 0, To: 4}}},
		{1, []report.Pool{{Role: "prefill", From: 0, To: 1}, {Role: "decode", From: 1, To: 4}}},
		{4, []report.Pool{{Role: "", From: 0, To: 4}}}, // of another fleet
	} {
		d := report.Document{Flags: map[string]any{"prefill-workers": c.prefill}}
		if diff := cmp.Diff(c.want, d.Pools(4)); diff != "" {
			t.Errorf("prefill-workers %v (-want +got):\n%s", c.prefill, diff)
		}
	}
}

func TestRecommendationText(t *testing.T) {
	low, high := -0.02, 0.05
	for _, c := range []struct {
		r    report.Recommendation
		want string
	}{
		{report.Recommendation{Metric: "ttft_mean_us", Gain: 0.01, Low: &low, High: &high, Verdict: report.VerdictNoise}, "no difference beyond noise, the default flags will do\nTTFT mean: 1.0 % better than with"},
		{report.Recommendation{Metric: "ttft_mean_us", Verdict: report.VerdictDefault}, "nothing to change"},
		{report.Recommendation{Metric: "balanced_hit_rate", Gain: 0.2, Verdict: report.VerdictOnce}, "noise unknown"},
		{report.Recommendation{Metric: "balanced_hit_rate", Gain: 0.2, Low: &low, High: &high, Verdict: report.VerdictBetter}, "5-95 % over resampled traffic: -2.0% to +5.0%"},
	} {
		if got := c.r.Text(); !strings.Contains(got, c.want) {
			t.Errorf("got %q, want %q in it", got, c.want)
		}
	}
}

// Where nothing completed there are no times: null in JSON, empty cells in CSV, never zeros.
func TestNoTimesAreNotZero(t *testing.T) {
	some := &report.Sim{Completed: 1, TTFT: report.Dist{Sum: 7, Mean: 7, P50: 7, P90: 7, P99: 7, Max: 7}}
	for _, tc := range []struct {
		sim  *report.Sim
		json string
		csv  string
	}{
		{&report.Sim{Rejected: 3}, `{"ttft_us":null,"itl_us":null,"e2e_us":null,"queue_us":null,"makespan_us":0,`, strings.Repeat(",", 24)},
		{some, `{"ttft_us":{"sum":7,"mean":7,"p50":7,"p90":7,"p99":7,"max":7},"itl_us":{"sum":0,`, ",7,7,7,7,7,7,0,0,0,"},
	} {
		got, err := json.Marshal(tc.sim)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(string(got), tc.json) {
			t.Errorf("JSON = %s, want %s at its start", got, tc.json)
		}
		var out bytes.Buffer
		doc := report.Document{Runs: []report.Run{{Policy: "least-work", Sim: tc.sim}}}
		if err := doc.Write(&out, "csv"); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), tc.csv) {
			t.Errorf("CSV = %s, want %q in it", out.String(), tc.csv)
		}
	}
}
