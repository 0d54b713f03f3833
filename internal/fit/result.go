package fit

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// Result fits what was added so far. It may be called again after more samples, and costs a bootstrap each time.
func (f *Fitter) Result() *Result {
	bins := f.bins
	if bins == nil {
		bins = f.settle()
	}
	fine := bins.fine.rows(f.ranks)
	unit, coupling := chooseUnit(f, fine)
	t := fine.of(unit)
	res := &Result{Unit: unit, BinNS: bins.fine.binNS, Counts: f.counts}
	c := &res.Counts
	c.Late, c.Prefill, c.PrefillBins, c.Thinned = bins.late, bins.prefill, t.prefill, t.thinned
	c.Used = c.Samples - c.Bad - c.Late - c.Prefill
	d := newDesign(t.rows)
	e := d.estimate()
	e.into(res, d)
	if e.ok {
		b := bootstrap(d, e, f.opt)
		res.Draws, res.Block = b.ok, b.block
		res.A, res.B, res.C = interval(e.trim[0], b.a), interval(e.trim[1], b.b), interval(e.trim[2], b.c)
		res.Weight = interval(e.trim[1]/e.trim[2], b.w)
		by := e.stretch(d, b.block)
		for _, v := range []*Interval{&res.A, &res.B, &res.C, &res.Weight} {
			*v = v.stretched(by)
		}
		e.blur(res, d, f.blur(res.BinNS)+f.coarseness(res.BinNS))
		res.Heldout, res.Insample = d.heldout(f.opt.Holdout)
	}
	f.rankView(res, fine)
	judge(&evidence{f: f, res: res, design: d, est: e, coupling: coupling, coarse: bins.coarse.rows(f.ranks).of(unit), rankRows: fine.rank})
	return res
}

// design is the rows of a regression.
type design struct {
	rows   []row
	cols   columns
	starts []int // first row of every bin, and the number of rows
}

func newDesign(rows []row) *design {
	d := &design{rows: rows}
	for i := range rows {
		if i == 0 || rows[i].index != rows[i-1].index {
			d.starts = append(d.starts, i)
		}
		d.cols.add(rows[i].y, rows[i].r, rows[i].t)
	}
	d.starts = append(d.starts, len(rows))
	return d
}

func (d *design) bins() int { return len(d.starts) - 1 }

// estimate is the point estimates over a design.
type estimate struct {
	plain, trim plane
	ok          bool // trim is determined
	plainOK     bool
	kept        []bool
	n           int // kept
	r2, corr    float64
}

func (d *design) estimate() *estimate {
	e := &estimate{kept: make([]bool, d.cols.len())}
	e.plain, e.plainOK = leastSquares(&d.cols)
	e.trim, e.ok = trimmed(&d.cols, leastSquares, e.kept, &trimWork{})
	kept := e.keptColumns(d)
	e.n = kept.len()
	e.r2, e.corr = math.NaN(), correlation(kept.r, kept.t)
	if e.ok {
		e.r2 = rSquared(&kept, e.trim)
	}
	return e
}

func (e *estimate) keptColumns(d *design) columns {
	var c columns
	for i, k := range e.kept {
		if k {
			c.add(d.cols.y[i], d.cols.r[i], d.cols.t[i])
		}
	}
	return c
}

// correlation of x and y; NaN where one of them is constant.
func correlation(x, y []float64) float64 {
	if len(x) < 2 {
		return math.NaN()
	}
	return stat.Correlation(x, y, nil)
}

// rSquared is the share of the variance of y that the plane explains.
func rSquared(c *columns, p plane) float64 {
	m := stat.Mean(c.y, nil)
	var left, all float64
	for i, y := range c.y {
		e := y - p.at(c.r[i], c.t[i])
		left += float64(e * e)
		all += float64((y - m) * (y - m))
	}
	return 1 - left/all
}

func (e *estimate) into(res *Result, d *design) {
	nan := math.NaN()
	none := Interval{nan, nan, nan}
	res.A, res.B, res.C, res.Weight = none, none, none, none
	res.Plain = [3]float64{nan, nan, nan}
	res.R2, res.Corr, res.Kept, res.Heldout, res.Insample = e.r2, e.corr, e.n, nan, nan
	if e.plainOK {
		res.Plain = e.plain
	}
	res.Bins = make([]Bin, len(d.rows))
	for i := range d.rows {
		r := &d.rows[i]
		res.Bins[i] = Bin{
			AtNS: r.index * res.BinNS, Step: r.y, Running: r.r, Held: r.t, MeanRunning: r.meanR, MeanHeld: r.meanT,
			Ranks: int(r.ranks), Samples: int(r.samples), Kept: e.kept[i], Fitted: nan,
		}
		if e.ok {
			res.Bins[i].Fitted = e.trim.at(r.r, r.t)
		}
	}
}

// blur widens the intervals by what errors of the tokens, of that variance, do to least squares: c comes out too
// small by the share lost of the variance that requests do not explain, and b too large by what R stands in for T. It
// is of first order and on one side, so that it is kept out of the values themselves.
func (e *estimate) blur(res *Result, d *design, variance float64) {
	if !(e.trim[1] > 0 && e.trim[2] > 0) || math.IsNaN(e.corr) {
		return
	}
	lost := min(0.9, variance/(stat.Variance(d.cols.t, nil)*(1-float64(e.corr*e.corr))))
	moved := lost * e.trim[2] * max(0, stat.Covariance(d.cols.r, d.cols.t, nil)/stat.Variance(d.cols.r, nil))
	res.Blur = 1 - (1-lost)*max(0, 1-moved/e.trim[1])
	res.B.Low -= moved
	res.C.High /= 1 - lost
	if res.Weight.Low > 0 {
		res.Weight.Low *= 1 - res.Blur
	}
}

// heldout fits the bins before the last share of them and returns the median absolute relative error on the last
// ones, and on those that it was fitted on. NaN: either part has too few bins.
func (d *design) heldout(share float64) (out, in float64) {
	bins := d.bins()
	cut := bins - int(math.Round(float64(share*float64(bins))))
	if cut < 10 || bins-cut < 5 {
		return math.NaN(), math.NaN()
	}
	at := d.starts[cut]
	first, last := d.cols.slice(0, at), d.cols.slice(at, d.cols.len())
	p, ok := trimmed(&first, leastSquares, make([]bool, at), &trimWork{})
	if !ok {
		return math.NaN(), math.NaN()
	}
	return relativeError(&last, p), relativeError(&first, p)
}

func relativeError(c *columns, p plane) float64 {
	v := make([]float64, c.len())
	for i := range v {
		v[i] = math.Abs(c.y[i]-p.at(c.r[i], c.t[i])) / c.y[i]
	}
	return median(v)
}

// tables are the rows of the three units.
type tables struct{ all, source, rank *table }

func (b *binner) rows(ranks []rankTotals) tables {
	all, source, rank := b.tables(ranks)
	return tables{all, source, rank}
}

func (t tables) of(u Unit) *table {
	switch u {
	case UnitRank:
		return t.rank
	case UnitSource:
		return t.source
	}
	return t.all
}

// chooseUnit finds out which ranks wait for each other. The steps of ranks that do are the same whatever each of
// them holds; those of ranks that do not follow their own load. coupling is how much of the difference that the
// fitted plane would expect between ranks of one unit is seen: about 0 for ranks that step together and 1 for ranks that do
// not; NaN where ranks are too alike to tell.
func chooseUnit(f *Fitter, t tables) (unit Unit, coupling float64) {
	if len(f.ranks) < 2 {
		return UnitAll, math.NaN()
	}
	units := []Unit{UnitAll}
	if n, several := f.sources(); n > 1 && several {
		units = append(units, UnitSource)
	}
	for _, u := range units {
		coupling = ownLoad(f, t, u)
		if !(coupling > 0.5) {
			return u, coupling
		}
	}
	return UnitRank, coupling
}

// ownLoad is how the steps of ranks, less the mean of their bin, follow what the plane says of their own load, less
// the same mean: the weighted median of the ratios, so that pauses that hit the interval of one rank and not of
// another do not decide.
func ownLoad(f *Fitter, t tables, u Unit) float64 {
	p, ok := positivePlane(t.of(u).rows)
	if !ok {
		if p, ok = positivePlane(t.rank.rows); !ok {
			return math.NaN()
		}
	}
	group := func(r row) int32 {
		if u == UnitSource {
			return f.ranks[r.id].key.source
		}
		return 0
	}
	var ratios []weighted
	rows := t.rank.rows
	for i := 0; i < len(rows); {
		j := i + 1
		for j < len(rows) && rows[j].index == rows[i].index && group(rows[j]) == group(rows[i]) {
			j++
		}
		x, y := 0.0, 0.0
		for _, r := range rows[i:j] {
			x += p.at(r.r, r.t)
			y += r.y
		}
		n := float64(j - i)
		x, y = x/n, y/n
		for _, r := range rows[i:j] {
			// Ranks that differ by less than a hundredth of a step tell nothing.
			if dx := p.at(r.r, r.t) - x; math.Abs(dx) > 0.01*y {
				ratios = append(ratios, weighted{(r.y - y) / dx, math.Abs(dx)})
			}
		}
		i = j
	}
	if len(ratios) < 30 {
		return math.NaN()
	}
	return weightedMedian(ratios)
}

type weighted struct{ value, weight float64 }

func weightedMedian(v []weighted) float64 {
	slices.SortFunc(v, func(a, b weighted) int { return cmp.Compare(a.value, b.value) })
	total := 0.0
	for _, x := range v {
		total += x.weight
	}
	sum := 0.0
	for _, x := range v {
		if sum += x.weight; 2*sum >= total {
			return x.value
		}
	}
	return math.NaN()
}

func positivePlane(rows []row) (plane, bool) {
	d := newDesign(rows)
	p, ok := trimmed(&d.cols, leastSquares, make([]bool, len(rows)), &trimWork{})
	return p, ok && p[1] > 0 && p[2] > 0
}
