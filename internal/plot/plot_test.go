package plot_test

import (
	"bytes"
	"errors"
	"fmt"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/plot"
	"github.com/kvroute/kvroute/internal/report"
)

// outDir is where the pictures of the tests are kept for looking at, if KVROUTE_PLOT_OUT names a folder.
var outDir = os.Getenv("KVROUTE_PLOT_OUT")

func keep(t *testing.T, name string, b []byte) {
	t.Helper()
	if outDir == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(outDir, name), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// curveOf makes a distribution with a long tail around a mean.
func curveOf(mean float64) []int64 {
	out := make([]int64, report.CurvePoints)
	for i := range out {
		p := (float64(i) + 0.5) / float64(len(out))
		out[i] = int64(mean * -math.Log(1-p) * (0.4 + p))
	}
	return out
}

func run(kind, policy string, flags map[string]any, hits float64, meanMS float64, spread bool, requests ...int64) report.Run {
	const blocks = 288500
	n := int64(hits * blocks)
	r := report.Run{
		Kind: kind, Policy: policy, Flags: flags, Workers: len(requests), CapacityBlocks: 5859, HitBlocks: n, HitRate: hits,
		TokenHitRate: hits * 1.02, RequestsPerWorker: requests, Imbalance: report.Imbalance(requests), PicksDigest: "0123456789abcdef",
	}
	for range requests {
		r.MissBlocksPerWorker = append(r.MissBlocksPerWorker, (blocks-n)/int64(len(requests)))
	}
	if meanMS > 0 {
		us := meanMS * 1000
		r.Sim = &report.Sim{TTFT: report.Dist{Mean: us, P50: int64(us * 0.6), P90: int64(us * 2.2), P99: int64(us * 5), Max: int64(us * 9)}}
		r.TTFTCurve = curveOf(us)
	}
	if spread {
		r.Intervals = map[string]report.Interval{
			"hit_rate":  {Low: hits - 0.01, High: hits + 0.012},
			"imbalance": {Low: max(1, r.Imbalance-0.05), High: r.Imbalance + 0.05},
		}
		if r.Sim != nil {
			r.Intervals["ttft_mean_us"] = report.Interval{Low: r.Sim.TTFT.Mean * 0.93, High: r.Sim.TTFT.Mean * 1.07}
			r.Intervals["ttft_p90_us"] = report.Interval{Low: float64(r.Sim.TTFT.P90) * 0.9, High: float64(r.Sim.TTFT.P90) * 1.1}
		}
	}
	return r
}

var weights = []any{0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 20.0}

func document(axes []report.Axis, runs ...report.Run) *report.Document {
	d := &report.Document{
		Version: "v0.1.0", Seed: 7, Flags: map[string]any{"trace": "conversation.jsonl.gz", "workers": 8, "capacity": 5859},
		Trace: report.Trace{Name: "conversation", Requests: 12031, Blocks: 288500, InputTokens: 144793823, CeilingHitBlocks: 105710, CeilingHitTokens: 54098411},
		Runs:  runs,
	}
	if axes != nil {
		d.Sweep = &report.Sweep{Axes: axes, Repeats: 10}
		low, high := 0.05, 0.11
		d.Recommendation = &report.Recommendation{
			Flags:  map[string]any{"router-policy": "kv-aware", "kv-overlap-weight": 4.0},
			Metric: "ttft_mean_us", Gain: 0.08, Low: &low, High: &high, Verdict: report.VerdictBetter,
		}
	}
	return d
}

func added(ms float64) []report.Run {
	return []report.Run{
		run(report.KindDefault, "least-work", map[string]any{"router-policy": "least-work"}, 0.31, 445.1*ms, true, 1500, 1510, 1490, 1505, 1520, 1480, 1499, 1527),
		run(report.KindReference, "round-robin", map[string]any{"router-policy": "round-robin"}, 0.128, 719.7*ms, true, 1504, 1504, 1504, 1504, 1504, 1504, 1504, 1503),
	}
}

func documents() map[string]*report.Document {
	docs := map[string]*report.Document{}
	weightRuns := func(ms float64, more map[string]any, factor float64) []report.Run {
		var out []report.Run
		for i, w := range weights {
			flags := map[string]any{"router-policy": "kv-aware", "kv-overlap-weight": w}
			for k, v := range more {
				flags[k] = v
			}
			x := float64(i)
			out = append(out, run(report.KindSwept, "kv-aware", flags, 0.14+0.025*x*factor, ms*factor*(900-110*x+9*x*x), true,
				1500+int64(60*x*x), 1500, 1500, 1500, 1480, 1500, 1490-int64(40*x), 1500-int64(20*x*x)))
		}
		return out
	}
	weightAxis := report.Axis{Flag: "kv-overlap-weight", Values: weights}
	docs["weights"] = document([]report.Axis{weightAxis}, append(weightRuns(1, nil, 1), added(1)...)...)
	docs["weights-replay"] = document([]report.Axis{weightAxis}, append(weightRuns(0, nil, 1), added(0)...)...)

	recents := report.Axis{Flag: "kv-recent-weight", Values: []any{0.0, 0.5, 1.0}}
	var two []report.Run
	for i, v := range recents.Values {
		two = append(two, weightRuns(1, map[string]any{"kv-recent-weight": v}, 1-0.08*float64(i))...)
	}
	docs["two-axes"] = document([]report.Axis{weightAxis, recents}, append(two, added(1)...)...)

	policies := report.Axis{Flag: "router-policy"}
	var byPolicy []report.Run
	for i, p := range []string{"least-work", "kv-aware", "round-robin", "random", "least-load", "power-of-two", "prefix", "prefix-threshold", "session"} {
		policies.Values = append(policies.Values, p)
		x := float64(i)
		byPolicy = append(byPolicy, run(report.KindSwept, p, map[string]any{"router-policy": p}, 0.31-0.02*x, 445+60*x, i%2 == 0,
			1500+int64(150*x), 1500, 1500, 1500, 1480, 1500, 1490-int64(100*x), 1500))
	}
	docs["policies"] = document([]report.Axis{policies}, byPolicy...)

	workers := report.Axis{Flag: "workers", Values: []any{int64(2), int64(4), int64(8)}}
	var byWorkers []report.Run
	for _, kind := range []string{report.KindSwept, report.KindDefault, report.KindReference} {
		for i, n := range workers.Values {
			policy := map[string]string{report.KindSwept: "kv-aware", report.KindDefault: "least-work", report.KindReference: "round-robin"}[kind]
			requests := make([]int64, n.(int64))
			for k := range requests {
				requests[k] = 12000/n.(int64) + int64(k*40*(2-len(kind)%2))
			}
			byWorkers = append(byWorkers, run(kind, policy, map[string]any{"router-policy": policy, "workers": n},
				0.2+0.03*float64(i), 4000/float64(n.(int64))*(1+0.2*float64(len(policy)-8)), false, requests...))
		}
	}
	docs["fleet"] = document([]report.Axis{workers}, byWorkers...)

	docs["single-sim"] = document(nil, run("", "least-work", nil, 0.31, 445.1, false, 1500, 1510, 1490, 1505, 1520, 1480, 1499, 1527))
	docs["pools"] = document(nil, run("", "least-work", nil, 0.31, 445.1, false, 3001, 2999, 1490, 1505, 1510, 1495))
	docs["pools"].Flags["engine"], docs["pools"].Flags["prefill-workers"], docs["pools"].Flags["decode-workers"] = "batch", 2, 4
	many := make([]int64, 96)
	for i := range many {
		many[i] = int64(100 + i*7%31)
	}
	docs["single-replay-96"] = document(nil, run("", "prefix", nil, 0.31, 0, false, many...))
	hostile := document([]report.Axis{{Flag: "kv-overlap-weight", Values: []any{1.0}}},
		run(report.KindSwept, "kv-aware", map[string]any{"kv-overlap-weight": 1.0}, 0, 0.001, false, 12031))
	hostile.Trace.Name = `<script>alert("x")</script> & a name that is much longer than the sheet it must stand on, or so one would think of it`
	hostile.Flags["trace"] = `"></dd><script>alert(1)</script>`
	docs["hostile"] = hostile
	flat := document([]report.Axis{weightAxis}, weightRuns(1, nil, 1)...)
	for i := range flat.Runs { // all alike: no spread, no hits, nothing to see, still a plot
		flat.Runs[i].HitRate, flat.Runs[i].HitBlocks, flat.Runs[i].Imbalance = 0, 0, 1
		flat.Runs[i].Sim.TTFT = report.Dist{Mean: 100, P90: 100}
		flat.Runs[i].TTFTCurve = make([]int64, report.CurvePoints)
		flat.Runs[i].Intervals = nil
	}
	docs["flat"] = flat
	return docs
}

func draw(t *testing.T, d *report.Document, format string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := plot.Write(&b, format, d); err != nil {
		t.Fatalf("%s: %v", format, err)
	}
	return b.Bytes()
}

func TestWrite(t *testing.T) {
	for name, d := range documents() {
		t.Run(name, func(t *testing.T) {
			for _, format := range plot.Formats() {
				b := draw(t, d, format)
				keep(t, name+"."+format, b)
				if format == "png" && name != "weights" {
					continue // the same drawing as the SVG, and slow
				}
				if again := draw(t, d, format); !bytes.Equal(b, again) {
					t.Errorf("%s: bytes differ from one time to the next", format)
				}
				if bytes.Contains(b, []byte("NaN")) {
					t.Errorf("%s: a coordinate is not a number", format)
				}
			}
		})
	}
}

func TestPNG(t *testing.T) {
	img, err := png.Decode(bytes.NewReader(draw(t, documents()["weights"], "png")))
	if err != nil {
		t.Fatal(err)
	}
	size := img.Bounds().Size()
	colours := map[string]bool{}
	for y := range size.Y {
		for x := range size.X {
			r, g, b, _ := img.At(x, y).RGBA()
			colours[fmt.Sprintf("%02x%02x%02x", r>>8, g>>8, b>>8)] = true
		}
	}
	if size.X < 1500 || size.Y < 1000 {
		t.Errorf("size %v: too small to read", size)
	}
	for what, c := range map[string]string{"paper": "ffffff", "swept": "0072b2", "round-robin": "d55e00", "least-work": "009e73", "ink": "1a1b1c"} {
		if !colours[c] {
			t.Errorf("nothing drawn in the colour of %s (#%s)", what, c)
		}
	}
}

func TestSVGSaysWhatItShows(t *testing.T) {
	for name, want := range map[string][]string{
		"weights":          {"Sweep of kv-overlap-weight on conversation", "TTFT (ms)", "--kv-overlap-weight", "round-robin, mean", "least-work, p90", "0.25", "hit rate (% of blocks)", "5-95 %"},
		"weights-replay":   {"Hit rate", "Spread of requests", "one cache without limit", "round-robin"},
		"policies":         {"power-of-two", "prefix-threshold", "TTFT (ms)"},
		"two-axes":         {"recent-weight 0.5", "TTFT mean (ms)", "TTFT p90 (ms)"},
		"fleet":            {"--workers", "round-robin"},
		"single-sim":       {"Requests per worker", "miss blocks", "mean", "TTFT (ms)"},
		"pools":            {"2 prefill and 4 decode workers", "batch engine", "0 to 1 prefill, 2 to 5 decode"},
		"single-replay-96": {"Requests per worker", "prefix on conversation"},
	} {
		svg := string(draw(t, documents()[name], "svg"))
		for _, w := range want {
			if !strings.Contains(svg, w) {
				t.Errorf("%s: %q is nowhere on the plot", name, w)
			}
		}
	}
}

func TestHTMLStandsAlone(t *testing.T) {
	for name, d := range documents() {
		html := string(draw(t, d, "html"))
		for _, bad := range []string{"<script", "http://www.w3.org/1999/xlink\" href", "src=", "<link", "@import", "url("} {
			if strings.Contains(html, bad) {
				t.Errorf("%s: page has %q in it", name, bad)
			}
		}
		if refs := regexp.MustCompile(`https?://[^" ]+`).FindAllString(html, -1); len(refs) > 0 {
			for _, r := range refs {
				if !strings.HasPrefix(r, "http://www.w3.org/") { // names of XML vocabularies, never fetched
					t.Errorf("%s: page refers to %s", name, r)
				}
			}
		}
		for _, want := range []string{"<svg", "</html>", "prefers-color-scheme: dark", "--workers", "var(--ink)"} {
			if !strings.Contains(html, want) {
				t.Errorf("%s: page lacks %q", name, want)
			}
		}
	}
	html := string(draw(t, documents()["weights"], "html"))
	for _, want := range []string{"--router-policy kv-aware --kv-overlap-weight 4", "8.0 % better", `class="best"`} {
		if !strings.Contains(html, want) {
			t.Errorf("page lacks %q", want)
		}
	}
}

func TestNothingToDraw(t *testing.T) {
	if err := plot.Write(&bytes.Buffer{}, "svg", &report.Document{}); !errors.Is(err, plot.ErrNothing) {
		t.Errorf("error %v, want ErrNothing", err)
	}
	var h *report.HintError
	if err := plot.Write(&bytes.Buffer{}, "gif", documents()["weights"]); !errors.As(err, &h) {
		t.Errorf("unknown format: %v", err)
	}
}

func TestFormatOf(t *testing.T) {
	for in, want := range map[string]string{"a.svg": "svg", "/x/b.PNG": "png", "c.html": "html"} {
		if got, err := plot.FormatOf(in); err != nil || got != want {
			t.Errorf("FormatOf(%q) = %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"a", "a.gif", "svg", ""} {
		if _, err := plot.FormatOf(in); err == nil {
			t.Errorf("FormatOf(%q): no error", in)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestWriteErrorsAreReported(t *testing.T) {
	for _, f := range plot.Formats() {
		if err := plot.Write(failing{}, f, documents()["single-sim"]); err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("%s: %v", f, err)
		}
	}
}
