package report_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/report"
)

func TestParseThresholds(t *testing.T) {
	type want struct {
		metric, op string
		limit      float64
	}
	for _, c := range []struct {
		in   []string
		want []want
	}{
		{[]string{"ttft_p99>800ms"}, []want{{"ttft_p99", ">", 800e3}}},
		{[]string{"hit_rate<0.3"}, []want{{"hit_rate", "<", 0.3}}},
		{[]string{"hit_rate < 35%"}, []want{{"hit_rate", "<", 0.35}}},
		{[]string{" ttft_mean >= 1.5s , imbalance>1.2", "lost!=0"}, []want{{"ttft_mean", ">=", 1.5e6}, {"imbalance", ">", 1.2}, {"lost", "!=", 0}}},
		{[]string{"ttft_p90>0"}, []want{{"ttft_p90", ">", 0}}},
		{[]string{"ttft_p90_us>250"}, []want{{"ttft_p90", ">", 250}}},
		{[]string{"ttft_p90_us>250ms"}, []want{{"ttft_p90", ">", 250e3}}},
		{[]string{"makespan>2h"}, []want{{"makespan", ">", 7200e6}}},
		{[]string{"itl_p50=10µs"}, []want{{"itl_p50", "==", 10}}},
		{[]string{"hit_blocks<100k"}, []want{{"hit_blocks", "<", 100e3}}},
		{[]string{"imbalance>1.1x"}, []want{{"imbalance", ">", 1.1}}},
	} {
		got, err := report.ParseThresholds(c.in...)
		if err != nil {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		var g []want
		for _, th := range got {
			g = append(g, want{th.Metric.Name, th.Op, th.Limit})
		}
		if diff := cmp.Diff(c.want, g, cmp.AllowUnexported(want{})); diff != "" {
			t.Errorf("%q: %s", c.in, diff)
		}
	}
}

func TestParseThresholdsRejects(t *testing.T) {
	for _, c := range []struct{ in, message, hint string }{
		{"ttft_p98>1s", `unknown metric "ttft_p98"`, "ttft_p99"},
		{"zzz>1", `unknown metric "zzz"`, "one of hit_rate,"},
		{"ttft_p99", "no comparison", "as in"},
		{"", "no comparison", "as in"},
		{"ttft_p99>", "no limit", ""},
		{"ttft_p99>800", "has no unit", "as in"},
		{"ttft_p99>800kg", "not a number", ""},
		{"ttft_p99>-1ms", "negative", ""},
		{"ttft_p99>1e400s", "not a number", ""},
		{"ttft_p99>1e308h", "too large", ""},
		{"hit_rate<NaN", "not a number", ""},
		{"hit_rate<inf", "not a number", ""},
		{"hit_rate<30", "more than everything", ""},
		{"hit_rate<0x1p-2", "not a number", ""},
		{"hit_rate!0.2", "is no comparison", ""},
		{"hit_rate<0.3,", "no comparison", ""},
		{">1ms", `unknown metric ""`, ""},
	} {
		_, err := report.ParseThresholds(c.in)
		if err == nil {
			t.Errorf("%q: no error", c.in)
			continue
		}
		if !strings.Contains(err.Error(), c.message) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: error %q, want %q in it on one line", c.in, err, c.message)
		}
		var h *report.HintError
		if !errors.As(err, &h) || !strings.Contains(h.Hint, c.hint) {
			t.Errorf("%q: hint of %v, want %q", c.in, err, c.hint)
		}
	}
	_, err := report.ParseThresholds("ttft_p98>1s", "hit_rate<30")
	if err == nil || !strings.Contains(err.Error(), "ttft_p98") || !strings.Contains(err.Error(), "more than everything") {
		t.Errorf("two faults: %v", err)
	}
	if !errors.Is(func() error { _, err := report.ParseThresholds("x_y_z>1"); return err }(), report.ErrUnknownMetric) {
		t.Error("unknown metric is not ErrUnknownMetric")
	}
}

func TestCheckThresholds(t *testing.T) {
	runs := []report.Run{
		{
			Policy: "kv-aware", Kind: report.KindSwept, Flags: map[string]any{"kv-overlap-weight": 1.0}, HitBlocks: 3, HitRate: 0.3, Imbalance: 1.5,
			MissBlocksPerWorker: []int64{7}, Sim: &report.Sim{TTFT: report.Dist{P99: 900_000}},
		},
		{
			Policy: "kv-aware", Kind: report.KindSwept, HitBlocks: 5, HitRate: 0.5, Imbalance: 1,
			MissBlocksPerWorker: []int64{5}, Sim: &report.Sim{TTFT: report.Dist{P99: 700_000}},
		},
		{
			Policy: "round-robin", Kind: report.KindReference, HitBlocks: 1, HitRate: 0.1, Imbalance: 1,
			MissBlocksPerWorker: []int64{9}, Sim: &report.Sim{TTFT: report.Dist{P99: 9_000_000}},
		},
	}
	ts, err := report.ParseThresholds("ttft_p99>800ms", "hit_rate<0.3", "imbalance>=1.5", "hit_rate==0.5", "hit_rate<=0.3", "hit_rate!=0.3")
	if err != nil {
		t.Fatal(err)
	}
	breaches, err := report.CheckThresholds(ts, runs)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range breaches {
		got = append(got, b.String())
	}
	want := []string{
		"ttft_p99>800ms: kv-aware kv-overlap-weight=1 has 900.0 ms",
		"imbalance>=1.5: kv-aware kv-overlap-weight=1 has 1.500",
		"hit_rate<=0.3: kv-aware kv-overlap-weight=1 has 30.00 %",
		"hit_rate==0.5: kv-aware has 50.00 %",
		"hit_rate!=0.3: kv-aware has 50.00 %",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	// Of a fleet that rejected everything no time is known: it is not a good one.
	for name, want := range map[string]string{
		"ttft_p99>800ms": `threshold "ttft_p99>800ms": kv-aware has no ttft_p99: no request completed`, "rejected>5": "",
	} {
		ts, err := report.ParseThresholds(name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = report.CheckThresholds(ts, []report.Run{{Policy: "kv-aware", Sim: &report.Sim{Rejected: 9}}})
		if got := fmt.Sprint(err); got != want && (want != "" || err != nil) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}

	// What a run does not know is neither good nor bad.
	runs[0].Sim = nil
	if _, err := report.CheckThresholds(ts[:1], runs); err == nil || !strings.Contains(err.Error(), "has no ttft_p99") {
		t.Errorf("no clock: %v", err)
	}
	noBlocks := []report.Run{{Policy: "least-work", MissBlocksPerWorker: []int64{0}}}
	if _, err := report.CheckThresholds(ts[1:2], noBlocks); err == nil {
		t.Error("hit rate of a trace without blocks was judged")
	}
	if got := report.NeedsSim(ts); got == nil || got.Metric.Name != "ttft_p99" {
		t.Errorf("NeedsSim = %v", got)
	}
	if got := report.NeedsSim(ts[1:]); got != nil {
		t.Errorf("NeedsSim without times = %v", got)
	}
}

func FuzzParseThresholds(f *testing.F) {
	for _, s := range []string{"ttft_p99>800ms", "hit_rate<0.3", "hit_rate<30%,lost>0", "a=", "ttft_p99_us!=1", ">=", "itl_p50<µs", "hit_blocks>1k"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ts, err := report.ParseThresholds(s)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("empty error")
			}
			return
		}
		if len(ts) == 0 {
			t.Fatal("neither thresholds nor an error")
		}
		for _, th := range ts {
			again, err := report.ParseThresholds(th.Text)
			if err != nil || len(again) != 1 || again[0].Limit != th.Limit || again[0].Op != th.Op {
				t.Fatalf("%q does not parse again as itself: %v", th.Text, err)
			}
			if !(th.Limit >= 0) {
				t.Fatalf("%q: limit %v", th.Text, th.Limit)
			}
		}
	})
}
