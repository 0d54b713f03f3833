package fit

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
)

// The bootstrap draws blocks of neighbouring bins, since neighbours are alike: batches and contexts change slowly,
// and what disturbs one step often disturbs the next. Blocks are of maxBlock bins (a minute), shorter in short logs,
// so that there are at least minBlocks to draw from: percentiles of a handful of blocks are too narrow or by chance.
const (
	maxBlock  = 20
	minBlocks = 30
)

func blockLength(bins int) int { return max(1, min(maxBlock, bins/minBlocks)) }

// draws holds what the bootstrap found; entries are NaN in draws whose plane was not determined.
type draws struct {
	a, b, c, w []float64
	block      int
	ok         int
}

// bootstrap repeats the whole fit, trimming included, on bins drawn in circular blocks. starts are the first rows of
// the bins, with the number of rows at the end. Every draw has a random stream of its own, so that the number of
// goroutines does not show.
func bootstrap(c *columns, starts []int, opt Options) draws {
	n := opt.Draws
	d := draws{a: make([]float64, n), b: make([]float64, n), c: make([]float64, n), w: make([]float64, n)}
	bins := len(starts) - 1
	d.block = blockLength(bins)
	workers := opt.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	workers = min(workers, n)
	var wg sync.WaitGroup
	for k := range workers {
		wg.Go(func() {
			var work trimWork
			var drawn columns
			var kept []bool
			for i := k; i < n; i += workers {
				rng := rand.New(rand.NewPCG(opt.Seed, uint64(i)))
				drawn.reset()
				for left := bins; left > 0; left -= d.block {
					at := rng.IntN(bins)
					for range min(d.block, left) {
						for j := starts[at]; j < starts[at+1]; j++ {
							drawn.add(c.y[j], c.r[j], c.t[j])
						}
						if at++; at == bins {
							at = 0
						}
					}
				}
				if cap(kept) < drawn.len() {
					kept = make([]bool, drawn.len()+drawn.len()/8)
				}
				p, ok := trimmed(&drawn, gram, kept[:drawn.len()], &work)
				if !ok {
					p = plane{math.NaN(), math.NaN(), math.NaN()}
				}
				d.a[i], d.b[i], d.c[i], d.w[i] = p[0], p[1], p[2], p[1]/p[2]
				if p[2] <= 0 {
					d.w[i] = math.Inf(1) // tokens that cost nothing: no number of them is worth a request
				}
			}
		})
	}
	wg.Wait()
	for _, a := range d.a {
		if !math.IsNaN(a) {
			d.ok++
		}
	}
	return d
}

// interval is value with the 5 and 95 % quantiles of the draws; NaN where fewer than half the draws had a value.
func interval(value float64, draws []float64) Interval {
	v := slices.Clone(draws)
	v = slices.DeleteFunc(v, math.IsNaN)
	if 2*len(v) <= len(draws) {
		return Interval{value, math.NaN(), math.NaN()}
	}
	return Interval{value, quantile(v, 0.05), quantile(v, 0.95)}
}
