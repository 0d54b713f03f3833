package plot

import (
	"math"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/report"
	gonum "gonum.org/v1/plot"
)

func labels(ticks []gonum.Tick) string {
	var out []string
	for _, t := range ticks {
		if t.Label != "" {
			out = append(out, t.Label)
		}
	}
	return strings.Join(out, " ")
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		ticker    gonum.Ticker
		low, high float64
		want      string
	}{
		{nice{6}, 0, 2100, "0 500 1000 1500 2000"},
		{nice{6}, -0.01, 0.3, "0.0 0.1 0.2 0.3"},
		{nice{6}, 0.998, 1.05, "1.00 1.01 1.02 1.03 1.04 1.05"},
		{nice{6}, 0, 60000, "0 10,000 20,000 30,000 40,000 50,000 60,000"},
		{nice{6}, 5, 5, "5"},
		{nice{6}, math.Inf(-1), math.Inf(1), "-Inf"},
		{decades{}, 8, 2000, "10 20 50 100 200 500 1000 2000"},
		{decades{}, 0.01, 20000, "0.01 0.1 1 10 100 1000 10,000"},
		{decades{}, 0, 10, "0 2 4 6 8 10"}, // no logarithm of zero
		{named{[]string{"a", "b", "c"}, 0}, -0.5, 2.5, "a b c"},
		{named{[]string{"a", "b", "c"}, 0}, 0.5, 1.5, "b"},
		{named{strings.Fields(strings.Repeat("12345678 ", 14)), 70}, -1, 14, "12345678 12345678 12345678 12345678 12345678 12345678 12345678"},
	} {
		if got := labels(c.ticker.Ticks(c.low, c.high)); got != c.want {
			t.Errorf("%T from %v to %v: got %q, want %q", c.ticker, c.low, c.high, got, c.want)
		}
	}
}

func TestThousands(t *testing.T) {
	for in, want := range map[string]string{"0": "0", "9999": "9999", "10000": "10,000", "-1234567.5": "-1,234,567.5", "123456": "123,456"} {
		if got := thousands(in); got != want {
			t.Errorf("thousands(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestAlongAxis(t *testing.T) {
	axis := func(flag string, values ...any) report.Axis { return report.Axis{Flag: flag, Values: values} }
	weights := axis("kv-overlap-weight", 4.0, 1.0, 20.0)
	policies := axis("router-policy", "least-work", "kv-aware", "round-robin", "prefix")
	workers := axis("workers", int64(8), int64(2))
	many := axis("kv-recent-weight", 0.0, 1.0, 2.0, 3.0)
	for _, c := range []struct {
		axes []report.Axis
		want string
	}{
		{[]report.Axis{weights}, "kv-overlap-weight: 1 4 20"},
		{[]report.Axis{policies}, "router-policy: least-work kv-aware round-robin prefix"},
		{[]report.Axis{policies, weights}, "kv-overlap-weight: 1 4 20"},
		{[]report.Axis{weights, many}, "kv-recent-weight: 0 1 2 3"},
		{[]report.Axis{weights, workers}, "workers: 2 8"},
		{[]report.Axis{weights, many, workers}, "kv-recent-weight: 0 1 2 3"}, // 12 settings are too many curves
		{[]report.Axis{weights, axis("workers", int64(8))}, "kv-overlap-weight: 1 4 20"},
		{[]report.Axis{axis("event-delay", "1s", "50ms", "0s")}, "event-delay: 0s 50ms 1s"},
	} {
		got := alongAxis(&report.Sweep{Axes: c.axes})
		if text := got.flag + ": " + strings.Join(got.texts, " "); text != c.want {
			t.Errorf("got %q, want %q", text, c.want)
		}
	}
}
