package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat"
)

// random rows about a plane, with outliers.
func noisy(rng *rand.Rand, n int) *columns {
	c := &columns{}
	for range n {
		r, t := float64(rng.IntN(40)), 4e5*rng.Float64()
		y := 0.02 + 5e-4*r + 2e-8*t + 1e-4*rng.NormFloat64()
		if rng.IntN(20) == 0 {
			y += 0.1 * rng.ExpFloat64()
		}
		c.add(y, r, t)
	}
	return c
}

func TestQuantileAgreesWithSorting(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := 1; n < 300; n++ {
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(rng.IntN(1 + n/2)) // with ties
		}
		sorted := slices.Clone(v)
		slices.Sort(sorted)
		for _, q := range []float64{0, 0.05, 0.3, 0.5, 0.95, 1} {
			at := q * float64(n-1)
			lo, hi := sorted[int(at)], sorted[int(math.Ceil(at))]
			want := lo + (at-math.Floor(at))*(hi-lo)
			if got := quantile(slices.Clone(v), q); math.Abs(got-want) > 1e-12 {
				t.Fatalf("quantile %g of %v = %g, want %g", q, sorted, got, want)
			}
		}
	}
	if got := quantile([]float64{1, math.Inf(1), math.Inf(1)}, 0.9); !math.IsInf(got, 1) {
		t.Errorf("quantile between infinities = %g", got)
	}
	if got := median(nil); got != 0 {
		t.Errorf("median of nothing = %g, want 0", got)
	}
}

// The normal equations stand in for QR in the bootstrap: they must not be worse by anything that shows.
func TestBothSolversAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for n := 3; n < 2000; n = n*3/2 + 1 {
		c := noisy(rng, n)
		p, ok := leastSquares(c)
		q, ok2 := gram(c)
		if !ok || !ok2 {
			t.Fatalf("%d rows: QR %v, normal equations %v; want both to solve", n, ok, ok2)
		}
		for i := range p {
			if math.Abs(p[i]-q[i]) > 1e-9*math.Abs(p[i]) {
				t.Errorf("%d rows: coefficient %d is %.15g by QR and %.15g by normal equations", n, i, p[i], q[i])
			}
		}
	}
}

func TestWhatDeterminesNoPlane(t *testing.T) {
	constant := func(f func(i int) (y, r, t float64)) *columns {
		c := &columns{}
		for i := range 50 {
			c.add(f(i))
		}
		return c
	}
	for name, c := range map[string]*columns{
		"no rows":            {},
		"two rows":           {y: []float64{1, 2}, r: []float64{1, 2}, t: []float64{4, 7}},
		"R constant":         constant(func(i int) (float64, float64, float64) { return 1, 3, float64(i * i) }),
		"T constant":         constant(func(i int) (float64, float64, float64) { return 1, float64(i), 5 }),
		"T zero":             constant(func(i int) (float64, float64, float64) { return 1, float64(i), 0 }),
		"T a multiple of R":  constant(func(i int) (float64, float64, float64) { return 1, float64(i), 1000 * float64(i) }),
		"T affine in R":      constant(func(i int) (float64, float64, float64) { return 1, float64(i), 7 + 1000*float64(i) }),
		"everything is zero": constant(func(int) (float64, float64, float64) { return 0, 0, 0 }),
	} {
		if p, ok := leastSquares(c); ok {
			t.Errorf("%s: QR finds %v", name, p)
		}
		if p, ok := gram(c); ok {
			t.Errorf("%s: normal equations find %v", name, p)
		}
	}
}

// Pauses only lengthen steps. A plane is found all the same, and few good rows are lost to them.
func TestTrimmingResistsPauses(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, share := range []float64{0, 0.1, 0.25, 0.35} {
		c := &columns{}
		clean := 0
		for range 2000 {
			r, k := float64(rng.IntN(40)), 4e5*rng.Float64()
			y := 0.02 + 5e-4*r + 2e-8*k + 2e-4*rng.NormFloat64()
			if rng.Float64() < share {
				y += 0.01 + 0.2*rng.ExpFloat64()
			} else {
				clean++
			}
			c.add(y, r, k)
		}
		kept := make([]bool, c.len())
		p, ok := trimmed(c, leastSquares, kept, &trimWork{})
		n := 0
		for _, k := range kept {
			if k {
				n++
			}
		}
		if w := p[1] / p[2]; !ok || math.Abs(w/25000-1) > 0.05 {
			t.Errorf("%.0f %% pauses: W %.0f, want 25000 within 5 %%", 100*share, w)
		}
		if math.Abs(float64(n-clean)) > 0.05*float64(clean) {
			t.Errorf("%.0f %% pauses: kept %d rows, want about the %d without", 100*share, n, clean)
		}
	}
}

func TestBlocks(t *testing.T) {
	for _, c := range []struct{ bins, want int }{{1, 1}, {59, 1}, {60, 2}, {310, 10}, {600, 20}, {1e6, 20}} {
		if got := blockLength(c.bins); got != c.want {
			t.Errorf("blocks of %d bins in a log of %d, want %d", got, c.bins, c.want)
		}
	}
}

func TestThinningKeepsByChance(t *testing.T) {
	const n = 5*maxRows + 17
	b := newBinner(1e9)
	ranks := []rankTotals{{}}
	for i := range int64(n) {
		s := testSample(i*1e9, 0, 0.02)
		b.add(&s, 0, ranks)
	}
	tab, _, _ := b.tables(ranks)
	kept := len(tab.rows)
	if kept > maxRows || kept < maxRows/2 {
		t.Errorf("%d rows kept, want between half of %d and that", kept, maxRows)
	}
	if got := int64(kept) + tab.thinned; got != n {
		t.Errorf("%d rows kept or counted, want %d", got, n)
	}
	// Load that comes and goes every few bins, or doubles in the course of the log, must show as it is.
	for _, period := range []int64{2, 3, 4, 8, 16, n} {
		first := 0
		for i, r := range tab.rows {
			if i > 0 && r.index <= tab.rows[i-1].index {
				t.Fatalf("row %d is of bin %d, after bin %d", i, r.index, tab.rows[i-1].index)
			}
			if r.index%period < (period+1)/2 {
				first++
			}
		}
		share := float64((period+1)/2) / float64(period)
		if got := float64(first) / float64(kept); math.Abs(got-share) > 0.01 {
			t.Errorf("%.3f of the rows kept are of the first half of each %d bins, want %.3f", got, period, share)
		}
	}
}

// slowNoise is noise that neighbours share, of about unit size.
func slowNoise(rng *rand.Rand, n int, one func() float64) []float64 {
	v := make([]float64, n)
	x := 0.0
	for i := range v {
		x = 0.8*x + 0.6*rng.NormFloat64()
		v[i] = 0.7*x + 0.7*one()
	}
	return v
}

func TestBlockSumsAgreeWithRefits(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const n = 6000
	for _, c := range []struct {
		name string
		one  func() float64
	}{
		{"normal", rng.NormFloat64},
		{"exponential", func() float64 { return rng.ExpFloat64() - rng.ExpFloat64() }},
		{"pauses", func() float64 {
			if rng.IntN(12) == 0 {
				return 3 + 8*rng.Float64()
			}
			return rng.NormFloat64()
		}},
	} {
		name, noise := c.name, slowNoise(rng, n, c.one)
		load := slowNoise(rng, n, rng.NormFloat64)
		rows := make([]row, n)
		for i := range rows {
			r, tok := 20+4*load[i], 3e5+4e4*load[i]+1e5*rng.Float64()
			rows[i] = row{index: int64(i), r: r, t: tok, y: 0.02 + 5e-4*r + 2e-8*tok + 1e-3*noise[i]}
		}
		d := newDesign(rows)
		e := d.estimate()
		block := blockLength(n)
		sums := newBlockSums(d, e, block)
		spread := func(draw func(*rand.Rand) (plane, bool)) (v [3]float64) {
			var of [3][]float64
			for range 400 {
				p, ok := draw(rng)
				if !ok {
					t.Fatal("a draw determines no plane")
				}
				for i := range p {
					of[i] = append(of[i], p[i])
				}
			}
			for i := range v {
				v[i] = stat.StdDev(of[i], nil)
			}
			return v
		}
		got, want := spread(sums.draw), spread(refits(d, block))
		t.Logf("%s: pull %.3f, spread %.3g of block sums, %.3g of refits", name, sums.pull, got, want)
		for i := range got {
			if ratio := got[i] / want[i]; ratio < 0.85 || ratio > 1.18 {
				t.Errorf("%s: coefficient %d spreads by %.3g with block sums, %.3g with refits", name, i, got[i], want[i])
			}
		}
	}
}

func TestManyStepsOfOneBin(t *testing.T) {
	b := rankBin{stride: 1}
	rng := rand.New(rand.NewPCG(8, 8))
	var all []float64
	for range 100_000 {
		s := testSample(0, 0, 0.02+0.01*rng.Float64())
		b.add(&s)
		all = append(all, s.Step)
	}
	if len(b.steps) > maxSteps || int(b.n) != len(all) {
		t.Errorf("%d steps kept of %d, want at most %d of %d", len(b.steps), b.n, maxSteps, len(all))
	}
	if got, want := median(b.steps), median(all); math.Abs(got-want) > 0.001 {
		t.Errorf("median %g of the steps kept, %g of all", got, want)
	}
}
