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

// exactRows is how many rows the bootstrap fits again in every draw. Of more it draws the sums of blocks.
const exactRows = 1 << 13

// bootstrap repeats the fit e of d on bins drawn in blocks. Every draw has a random stream of its own, so that the
// number of goroutines does not show.
func bootstrap(d *design, e *estimate, opt Options) draws {
	n := opt.Draws
	out := draws{
		a: make([]float64, n), b: make([]float64, n), c: make([]float64, n), w: make([]float64, n),
		block: blockLength(d.bins()),
	}
	resample := func() func(rng *rand.Rand) (plane, bool) { return refits(d, out.block) }
	if len(d.rows) > exactRows {
		sums := newBlockSums(d, e, out.block)
		resample = func() func(rng *rand.Rand) (plane, bool) { return sums.draw }
	}
	workers := opt.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	workers = min(workers, n)
	var wg sync.WaitGroup
	for k := range workers {
		wg.Go(func() {
			draw := resample()
			for i := k; i < n; i += workers {
				p, ok := draw(rand.New(rand.NewPCG(opt.Seed, uint64(i))))
				if !ok {
					p = plane{math.NaN(), math.NaN(), math.NaN()}
				}
				out.a[i], out.b[i], out.c[i], out.w[i] = p[0], p[1], p[2], p[1]/p[2]
				if p[2] <= 0 {
					out.w[i] = math.Inf(1) // tokens that cost nothing: no number of them is worth a request
				}
			}
		})
	}
	wg.Wait()
	for _, a := range out.a {
		if !math.IsNaN(a) {
			out.ok++
		}
	}
	return out
}

// refits returns a draw of circular blocks that repeats the whole fit, trimming included. It is for one goroutine.
func refits(d *design, block int) func(rng *rand.Rand) (plane, bool) {
	var work trimWork
	var drawn columns
	var kept []bool
	bins := d.bins()
	return func(rng *rand.Rand) (plane, bool) {
		drawn.reset()
		for left := bins; left > 0; left -= block {
			at := rng.IntN(bins)
			for range min(block, left) {
				for j := d.starts[at]; j < d.starts[at+1]; j++ {
					drawn.add(d.cols.y[j], d.cols.r[j], d.cols.t[j])
				}
				if at++; at == bins {
					at = 0
				}
			}
		}
		if cap(kept) < drawn.len() {
			kept = make([]bool, drawn.len()+drawn.len()/8)
		}
		return trimmed(&drawn, gram, kept[:drawn.len()], &work)
	}
}

// blockSums is a design as the sums of its blocks, one behind another. A draw then costs as much as there are blocks,
// whatever is in them. It leaves out the rows that the fit left out; what trimming again would do is in pull.
type blockSums struct {
	blocks []moments
	about  centre
	at     plane // that of the fit
	pull   float64
}

// newBlockSums needs a fit that is determined.
func newBlockSums(d *design, e *estimate, block int) *blockSums {
	kept := e.keptColumns(d)
	s := &blockSums{about: middle(&kept), at: e.trim, pull: e.pull(d)}
	for i := 0; i < d.bins(); i += block {
		var m moments
		for j := d.starts[i]; j < d.starts[min(i+block, d.bins())]; j++ {
			if e.kept[j] {
				m.add(d.cols.y[j]-s.about.y, d.cols.r[j]-s.about.r, d.cols.t[j]-s.about.t)
			}
		}
		s.blocks = append(s.blocks, m)
	}
	return s
}

func (s *blockSums) draw(rng *rand.Rand) (plane, bool) {
	var m moments
	for range s.blocks {
		m.merge(&s.blocks[rng.IntN(len(s.blocks))])
	}
	p, ok := m.plane(s.about)
	for i := range p {
		p[i] = s.at[i] + float64(s.pull*(p[i]-s.at[i]))
	}
	return p, ok
}

// pull is by how much more the plane moves when rows are trimmed again than when the same rows are left out: moving
// it moves rows across the limit, too. To first order that is 1/(1 - 2 c f(c)/P), with c the limit, f the density of
// residuals there and P the share of rows that remains (the derivative of the estimating equation of a mean with rejection:
// Hampel and others, Robust Statistics, 1986, section 2.6). The density is that of the rows within a tenth of the limit.
func (e *estimate) pull(d *design) float64 {
	res := make([]float64, d.cols.len())
	for i := range res {
		res[i] = d.cols.y[i] - e.trim.at(d.cols.r[i], d.cols.t[i])
	}
	mid, limit := trimLimit(slices.Clone(res), e.trim)
	near := 0
	for _, x := range res {
		if off := math.Abs(x-mid) / limit; off > 0.9 && off < 1.1 {
			near++
		}
	}
	return 1 / max(0.5, 1-float64(near)/0.2/float64(e.n))
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
