package fit

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat"
)

// plane holds a, b and c of y = a + b*R + c*T.
type plane [3]float64

func (p plane) at(r, t float64) float64 { return p[0] + float64(p[1]*r) + float64(p[2]*t) }

// columns are the regression's data, one row each.
type columns struct{ y, r, t []float64 }

func (c *columns) len() int { return len(c.y) }

func (c *columns) add(y, r, t float64) {
	c.y, c.r, c.t = append(c.y, y), append(c.r, r), append(c.t, t)
}

// slice returns the rows from i to j.
func (c *columns) slice(i, j int) columns { return columns{c.y[i:j], c.r[i:j], c.t[i:j]} }

// reset empties c, keeping its memory.
func (c *columns) reset() { c.y, c.r, c.t = c.y[:0], c.r[:0], c.t[:0] }

// leastSquares fits the plane to the rows by a QR decomposition of scaled columns; false: R and T do not determine
// it (too few rows, one of them constant, or both in step).
func leastSquares(c *columns) (plane, bool) {
	n := c.len()
	if n < 3 {
		return plane{}, false
	}
	sr, st := scale(c.r), scale(c.t)
	if sr == 0 || st == 0 {
		return plane{}, false
	}
	x := mat.NewDense(n, 3, nil)
	for i := range n {
		x.SetRow(i, []float64{1, c.r[i] / sr, c.t[i] / st})
	}
	var qr mat.QR
	qr.Factorize(x)
	if qr.Cond() > 1e10 {
		return plane{}, false
	}
	var sol mat.VecDense
	if err := qr.SolveVecTo(&sol, false, mat.NewVecDense(n, c.y)); err != nil {
		return plane{}, false
	}
	return plane{sol.AtVec(0), sol.AtVec(1) / sr, sol.AtVec(2) / st}, true
}

func scale(v []float64) float64 {
	m := 0.0
	for _, x := range v {
		m = max(m, math.Abs(x))
	}
	return m
}

// gram fits the plane by the normal equations of centred columns: quicker than leastSquares, and as exact for
// columns that are fit to be used (a correlation of 0.99 costs two digits of fifteen).
func gram(c *columns) (plane, bool) {
	if c.len() < 3 {
		return plane{}, false
	}
	mid := middle(c)
	var m moments
	for i := range c.y {
		m.add(c.y[i]-mid.y, c.r[i]-mid.r, c.t[i]-mid.t)
	}
	return m.plane(mid)
}

// centre is a step time, requests and tokens.
type centre struct{ y, r, t float64 }

// middle of the rows, of which there is one at least.
func middle(c *columns) centre {
	return centre{stat.Mean(c.y, nil), stat.Mean(c.r, nil), stat.Mean(c.t, nil)}
}

// moments are the sums of rows that a plane is fitted from. Rows are added less a centre near their means: else the
// digits that tell them apart are lost.
type moments struct{ n, y, r, t, rr, rt, tt, ry, ty float64 }

func (m *moments) add(y, r, t float64) {
	m.n++
	m.y += y
	m.r += r
	m.t += t
	m.rr += float64(r * r)
	m.rt += float64(r * t)
	m.tt += float64(t * t)
	m.ry += float64(r * y)
	m.ty += float64(t * y)
}

func (m *moments) merge(o *moments) {
	m.n += o.n
	m.y += o.y
	m.r += o.r
	m.t += o.t
	m.rr += o.rr
	m.rt += o.rt
	m.tt += o.tt
	m.ry += o.ry
	m.ty += o.ty
}

// plane solves the normal equations of rows that were added less c; false: they do not determine it.
func (m *moments) plane(c centre) (plane, bool) {
	if m.n < 3 {
		return plane{}, false
	}
	my, mr, mt := m.y/m.n, m.r/m.n, m.t/m.n
	rr, rt, tt := m.rr-float64(m.r*mr), m.rt-float64(m.r*mt), m.tt-float64(m.t*mt)
	ry, ty := m.ry-float64(m.r*my), m.ty-float64(m.t*my)
	det := float64(rr*tt) - float64(rt*rt)
	if !(det > 1e-10*rr*tt) {
		return plane{}, false
	}
	b := (float64(tt*ry) - float64(rt*ty)) / det
	k := (float64(rr*ty) - float64(rt*ry)) / det
	return plane{c.y + my - float64(b*(c.r+mr)) - float64(k*(c.t+mt)), b, k}, true
}

// trimmed fits the plane, leaves out the rows whose residual is more than three robust standard deviations (1.4826 x
// the median absolute deviation) from the median residual, and repeats that until the same rows remain. The median
// and the deviation are those of all rows: with those of the remaining ones every round finds new outliers where tails
// are long, until hardly a row is left. They are taken about the median, not 0, because pauses only ever lengthen
// steps: they lift the plane off the mass of the rows, which then must not count as outliers. kept, of the rows'
// length, says which remain; work is overwritten.
func trimmed(c *columns, solve func(*columns) (plane, bool), kept []bool, work *trimWork) (plane, bool) {
	for i := range kept {
		kept[i] = true
	}
	p, ok := solve(c)
	if !ok {
		return p, false
	}
	for range maxTrims {
		work.res, work.scratch = work.res[:0], work.scratch[:0]
		for i := range c.y {
			work.res = append(work.res, c.y[i]-p.at(c.r[i], c.t[i]))
		}
		work.scratch = append(work.scratch, work.res...)
		mid, limit := trimLimit(work.scratch, p)
		changed := false
		work.cols.reset()
		for i, e := range work.res {
			k := math.Abs(e-mid) <= limit
			changed = changed || k != kept[i]
			kept[i] = k
			if k {
				work.cols.add(c.y[i], c.r[i], c.t[i])
			}
		}
		if !changed {
			break
		}
		if p, ok = solve(&work.cols); !ok {
			return p, false
		}
	}
	return p, true
}

// trimLimit returns the median of the residuals and how far from it they may be. res is overwritten.
func trimLimit(res []float64, p plane) (mid, limit float64) {
	mid, deviation := mad(res)
	// Where the plane is exact, residuals are rounding errors, and no row is an outlier for them.
	return mid, max(3*1.4826*deviation, 1e-9*math.Abs(p[0]))
}

// maxTrims bounds the rounds: logs take about five, and a row on the limit could go in and out for ever.
const maxTrims = 30

type trimWork struct {
	res, scratch []float64
	cols         columns
}

// mad returns the median of v and the median absolute deviation from it. v is overwritten.
func mad(v []float64) (mid, deviation float64) {
	mid = median(v)
	for i := range v {
		v[i] = math.Abs(v[i] - mid)
	}
	return mid, median(v)
}

// median of v, which is reordered; 0 without values.
func median(v []float64) float64 { return quantile(v, 0.5) }

// quantile of v by linear interpolation, reordering v; 0 without values.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	at := q * float64(len(v)-1)
	i := int(at)
	lo := selectNth(v, i)
	f := at - float64(i)
	if f == 0 {
		return lo
	}
	hi := slices.Min(v[i+1:])
	if hi == lo { // both may be infinite
		return lo
	}
	return lo + float64(f*(hi-lo))
}

// selectNth puts the n-th smallest of v at v[n], smaller ones before and greater ones behind, and returns it.
func selectNth(v []float64, n int) float64 {
	lo, hi := 0, len(v)-1
	for hi-lo > 16 {
		mid := lo + (hi-lo)/2
		// The median of three as pivot: sorted and constant input are common here.
		if v[mid] < v[lo] {
			v[mid], v[lo] = v[lo], v[mid]
		}
		if v[hi] < v[lo] {
			v[hi], v[lo] = v[lo], v[hi]
		}
		if v[hi] < v[mid] {
			v[hi], v[mid] = v[mid], v[hi]
		}
		pivot := v[mid]
		i, j := lo, hi
		for i <= j {
			for v[i] < pivot {
				i++
			}
			for pivot < v[j] {
				j--
			}
			if i <= j {
				v[i], v[j] = v[j], v[i]
				i++
				j--
			}
		}
		switch {
		case n <= j:
			hi = j
		case n >= i:
			lo = i
		default:
			return v[n]
		}
	}
	slices.Sort(v[lo : hi+1])
	return v[n]
}
