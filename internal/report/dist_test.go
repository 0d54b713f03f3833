package report_test

import (
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/report"
)

// nearestRank is the definition, in exact fractions: the ceil(p*n)-th smallest.
func nearestRank(values []int64, percent int64) int64 {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	p := new(big.Rat).Mul(big.NewRat(percent, 100), big.NewRat(int64(len(sorted)), 1))
	k := new(big.Int).Add(p.Num(), new(big.Int).Sub(p.Denom(), big.NewInt(1)))
	k.Quo(k, p.Denom())
	return sorted[max(k.Int64(), 1)-1]
}

func naiveDist(values []int64) report.Dist {
	d := report.Dist{P50: nearestRank(values, 50), P90: nearestRank(values, 90), P99: nearestRank(values, 99), Max: slices.Max(values)}
	for _, v := range values {
		d.Sum += v
	}
	d.Mean = float64(d.Sum) / float64(len(values))
	return d
}

func TestDistAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := 1; n < 400; n++ {
		values := make([]int64, n)
		counts := map[int64]int64{}
		for i := range values {
			values[i] = rng.Int64N(1 + int64(n))
			counts[values[i]]++
		}
		want := naiveDist(values)
		var weighted []report.Weighted
		for v, c := range counts {
			weighted = append(weighted, report.Weighted{Value: v, Count: c})
		}
		weighted = append(weighted, report.Weighted{Value: 1 << 40, Count: 0})
		if got := report.NewWeightedDist(weighted); got != want {
			t.Fatalf("weighted, n=%d: got %+v, want %+v", n, got, want)
		}
		if got := report.NewDist(values); got != want {
			t.Fatalf("n=%d: got %+v, want %+v", n, got, want)
		}
		for p := 0; p <= 100; p++ {
			if got, want := report.Percentile(values, p), nearestRank(values, int64(p)); got != want {
				t.Fatalf("n=%d p=%d: got %d, want %d", n, p, got, want)
			}
		}
	}
}

func TestDistEmpty(t *testing.T) {
	if got := report.NewDist(nil); got != (report.Dist{}) {
		t.Errorf("NewDist(nil) = %+v", got)
	}
	if got := report.NewWeightedDist([]report.Weighted{{Value: 3}}); got != (report.Dist{}) {
		t.Errorf("NewWeightedDist without counts = %+v", got)
	}
	if got := report.Percentile(nil, 50); got != 0 {
		t.Errorf("Percentile(nil) = %d", got)
	}
	if got := report.Curve(nil); got != nil {
		t.Errorf("Curve(nil) = %v", got)
	}
}

func TestCurve(t *testing.T) {
	values := make([]int64, 1000)
	for i := range values {
		values[i] = int64(i + 1)
	}
	c := report.Curve(values)
	if len(c) != report.CurvePoints {
		t.Fatalf("%d points, want %d", len(c), report.CurvePoints)
	}
	for i, want := range map[int]int64{0: 1, 1: 5, 100: 500, 180: 900, 198: 990, 200: 1000} {
		if c[i] != want {
			t.Errorf("point %d: got %d, want %d", i, c[i], want)
		}
	}
	if got := report.Curve([]int64{7}); got[0] != 7 || got[200] != 7 {
		t.Errorf("one value: got %v", got)
	}
}

func TestImbalance(t *testing.T) {
	for _, c := range []struct {
		counts []int64
		want   float64
	}{{nil, 0}, {[]int64{0, 0}, 0}, {[]int64{5}, 1}, {[]int64{436, 0}, 2}, {[]int64{3, 1, 2, 2}, 1.5}} {
		if got := report.Imbalance(c.counts); got != c.want {
			t.Errorf("Imbalance(%v) = %v, want %v", c.counts, got, c.want)
		}
	}
}

func TestPicksDigest(t *testing.T) {
	// Digests of the golden simulation: all to one worker, and round robin over two and four.
	for _, c := range []struct {
		workers int
		pick    func(i int) int
		want    string
	}{
		{4, func(int) int { return 0 }, "d7a1771bd52e8e7d"},
		{2, func(i int) int { return i % 2 }, "9055e88693442e98"},
		{4, func(i int) int { return i % 4 }, "393b0730c6d106d1"},
	} {
		p := report.NewPicks(c.workers)
		for i := range 436 {
			p.Add(c.pick(i))
		}
		if got := p.Sum(); got != c.want {
			t.Errorf("%d workers: got %s, want %s", c.workers, got, c.want)
		}
	}
	// Up to 191 workers a pick is one byte, whatever the fleet's size; beyond, no two sequences collide by overflow.
	sum := func(workers int, picks ...int) string {
		p := report.NewPicks(workers)
		for _, i := range picks {
			p.Add(i)
		}
		return p.Sum()
	}
	if sum(3, 0, 1, 2) != sum(191, 0, 1, 2) {
		t.Error("digest depends on the number of workers below 192")
	}
	if sum(192, 191) == sum(192, 0) || sum(1000, 257) == sum(1000, 1) {
		t.Error("wide picks collide")
	}
	long := report.NewPicks(1000)
	for i := range 5000 {
		long.Add(i % 1000)
	}
	if a, b := long.Sum(), long.Sum(); a != b || len(a) != 16 {
		t.Errorf("Sum is not repeatable: %s, %s", a, b)
	}
}

func TestNearest(t *testing.T) {
	names := report.MetricNames()
	for in, want := range map[string]string{
		"ttft_p9": "ttft_p90", "tttf_p99": "ttft_p99", "TTFT-mean": "ttft_mean", "hitrate": "hit_rate", "imbalence": "imbalance",
		"preempt": "preemptions",
	} {
		got := report.Nearest(in, names)
		if len(got) == 0 || !slices.Contains(got, want) {
			t.Errorf("Nearest(%q) = %v, want %s among them", in, got, want)
		}
	}
	if got := report.Nearest("zzzzzzzz", names); got != nil {
		t.Errorf("Nearest of nothing like it = %v", got)
	}
	if got := report.Nearest(strings.Repeat("a", 1<<16), names); got != nil {
		t.Errorf("Nearest of a very long name = %v", got)
	}
	if got := report.DidYouMean("ttft_p9", []string{"ttft_p90"}); got != "did you mean ttft_p90?" {
		t.Errorf("DidYouMean = %q", got)
	}
}

func TestWeightedDistSortsInPlace(t *testing.T) {
	in := []report.Weighted{{Value: 3, Count: 1}, {Value: 1, Count: 2}}
	report.NewWeightedDist(in)
	if diff := cmp.Diff([]report.Weighted{{Value: 1, Count: 2}, {Value: 3, Count: 1}}, in); diff != "" {
		t.Error(diff)
	}
}
