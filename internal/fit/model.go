package fit

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"
)

// model judges whether a plane is the right model, and whether it is that of the engine.
func (e *evidence) model() {
	if !math.IsNaN(e.res.Heldout) && e.res.Heldout > 0.03 && e.res.Heldout > 3*e.res.Insample {
		e.weaken(CodeDrift, "take a log from a time in which the engine is warm and nothing else changes", "the last part of the log is predicted %.0f %% wrong by the first, which itself is met to %.1f %%: the engine, or what it shares its machine with, changed meanwhile", 100*e.res.Heldout, 100*e.res.Insample)
	}
	kept := e.est.keptColumns(e.design)
	e.curvature(&kept, kept.t, "token", "with sliding windows or compressed attention a token of a long context costs less; the weight holds about the middle of this log only")
	e.curvature(&kept, kept.r, "request", "batch sizes are padded to captured graphs, or the engine passed from one limit to another; the weight holds about the middle of this log only")
	e.capped(&kept)
	e.binLength()
	e.stragglers()
	if e.res.Unit != UnitRank && len(e.f.ranks) > 1 && e.coupling > 0.25 || e.res.Unit == UnitRank && e.coupling < 0.75 {
		e.weaken(CodeCoupling, "fit the ranks that step together alone", "it is not clear whether ranks wait for each other: their steps follow their own load to %.0f %%", 100*e.coupling)
	}
}

// curveParts is how many parts the jackknife leaves out in turn.
const curveParts = 10

// curvature tests for a slope of x (one of c's columns) that changes along x.
func (e *evidence) curvature(c *columns, x []float64, what, hint string) {
	low, high, ok := bend(c, x, x)
	if !ok {
		return
	}
	how := fmt.Sprintf("does not always cost the same: %.2g times as much at the high end of this log as at the low end", high/low)
	switch {
	case low <= 0:
		how = "lengthens the step at the high end of this log only"
	case high <= 0:
		how = "lengthens the step at the low end of this log only"
	}
	e.weaken(CodeCurved, hint, "one more %s %s", what, how)
}

// capped tests for tokens that cost less where requests are long: with a sliding window those beyond it cost nothing.
func (e *evidence) capped(c *columns) {
	mean := make([]float64, c.len())
	for i := range mean {
		mean[i] = c.t[i] / c.r[i]
	}
	low, high, ok := bend(c, c.t, mean)
	if !ok || high > low {
		return
	}
	how := fmt.Sprintf("only %.2g times as much where requests are long as where they are short", high/low)
	if high <= 0 {
		how = "nothing where requests are long"
	}
	e.weaken(CodeCurved, "with sliding windows or compressed attention a token of a long context costs less: the weight holds about the contexts of this log only", "a token costs %s", how)
}

// bend fits a term x*z too, that is a slope of x that changes along z. ok if it is there beyond doubt (four standard
// errors, by a jackknife over parts of the log) and the slope at the one end of z differs from that at the other by more than
// a factor of two, or one of them is negative; a and b are the slopes at the low and at the high end.
func bend(c *columns, x, z []float64) (a, b float64, ok bool) {
	n := c.len()
	if n < 5*curveParts {
		return 0, 0, false
	}
	step := 1 + n/20000 // more rows would only take time
	low, high := extent(z)
	mid := (low + high) / 2
	fit := func(skip int) (change, slope float64, ok bool) {
		return product(c, x, z, mid, step, func(i int) bool { return i*curveParts/n == skip })
	}
	change, slope, ok := fit(-1)
	if !ok {
		return 0, 0, false
	}
	var sum, sum2 float64
	for k := range curveParts {
		s, _, ok := fit(k)
		if !ok {
			return 0, 0, false
		}
		sum += s
		sum2 += float64(s * s)
	}
	variance := (curveParts - 1) * max(0, sum2/curveParts-float64((sum/curveParts)*(sum/curveParts)))
	if &x[0] == &z[0] {
		change *= 2 // the derivative of the square
		variance *= 4
	}
	a, b = slope+change*(low-mid), slope+change*(high-mid)
	if math.Abs(change) < 4*math.Sqrt(variance) || min(a, b) > 0.5*max(a, b) {
		return 0, 0, false
	}
	return a, b, true
}

// product fits y = a + bR + cT + d*x*(z-mid) to every step-th row that skip does not take, and returns d and the
// coefficient of x.
func product(c *columns, x, z []float64, mid float64, step int, skip func(int) bool) (d, slope float64, ok bool) {
	sr, st, sx, sz := scale(c.r), scale(c.t), scale(x), scale(z)
	if sr == 0 || st == 0 {
		return 0, 0, false
	}
	square := &x[0] == &z[0]
	var rows, y []float64
	for i := 0; i < c.len(); i += step {
		if skip(i) {
			continue
		}
		u := (z[i] - mid) / sz
		v := x[i] / sx
		if square {
			v = u // about the middle, so that the coefficient of x is the slope there
		}
		rows = append(rows, 1, c.r[i]/sr, c.t[i]/st, float64(u*v))
		y = append(y, c.y[i])
	}
	if len(y) < 10 {
		return 0, 0, false
	}
	var qr mat.QR
	qr.Factorize(mat.NewDense(len(y), 4, rows))
	var sol mat.VecDense
	if qr.Cond() > 1e10 || qr.SolveVecTo(&sol, false, mat.NewVecDense(len(y), y)) != nil {
		return 0, 0, false
	}
	slope = sol.AtVec(2) / st
	if &x[0] == &c.r[0] {
		slope = sol.AtVec(1) / sr
	}
	return sol.AtVec(3) / sx / sz, slope, true
}

// binLength weakens if bins of four times the length give another weight, by more than the noise of both allows.
func (e *evidence) binLength() {
	d := newDesign(e.coarse.rows)
	if d.bins() < minBins || !(e.res.Weight.Value > 0) {
		return
	}
	long := d.estimate()
	if !long.ok {
		return
	}
	w := long.trim[1] / long.trim[2]
	width := math.Log(e.res.Weight.High / e.res.Weight.Low)
	if off := math.Abs(math.Log(w / e.res.Weight.Value)); !(off > 0.1+2*width) && w > 0 {
		return
	}
	other := "no weight"
	if w > 0 {
		other = "a weight of " + tokens(w)
	}
	e.weaken(CodeBinLength, hintLonger, "bins of %g s give %s instead of %s: load changes too quickly for the lines to show what each step held", coarse*float64(e.res.BinNS)/1e9, other, tokens(e.res.Weight.Value)+" tokens")
}
