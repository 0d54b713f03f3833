package fit

import (
	"math"

	"gonum.org/v1/gonum/stat"
)

// stretch is the factor, at least 1, by which a bootstrap in blocks is too narrow in a finite log. Two things make it
// so. Blocks cut neighbours apart at their ends: they see the covariance of rows k bins apart only in 1-k/block of
// the cases, so that slowly varying noise is taken for less than it is; how much is told by the covariances of
// what each row adds to the error of the weight (its influence), under a flat-topped window (Politis and Romano,
// 1995) against the blocks' triangular one. And few blocks tell their own spread badly: the 95 % quantile is that of
// Student's t with as many degrees of freedom as there are other blocks.
func (e *estimate) stretch(d *design, block int) float64 {
	bins := d.bins()
	blocks := float64(bins) / float64(block)
	if blocks < 3 {
		return 2
	}
	// Cornish and Fisher's expansion of the quantile, exact to a percent from 5 degrees of freedom on.
	const z = 1.6449
	nu := blocks - 1
	student := 1 + (z*z+1)/(4*nu) + (5*z*z*z*z+16*z*z+3)/(96*nu*nu)
	few := student * math.Sqrt(blocks/nu)

	score := e.influence(d)
	n := len(score)
	covariance := func(k int) float64 {
		s := 0.0
		for i := k; i < n; i++ {
			s += float64(score[i] * score[i-k])
		}
		return s
	}
	flat, triangular := covariance(0), covariance(0)
	reach := min(2*block, n/4)
	for k := 1; k < reach; k++ {
		c := 2 * covariance(k)
		flat += float64(c * min(1, 2*(1-float64(k)/float64(reach))))
		if k < block {
			triangular += float64(c * (1 - float64(k)/float64(block)))
		}
	}
	slow := 1.0
	if triangular > 0 && flat > triangular {
		slow = math.Sqrt(min(flat/triangular, 2.25))
	}
	return few * slow
}

// influence is what each bin adds to the error of the weight, up to a factor.
func (e *estimate) influence(d *design) []float64 {
	kept := e.keptColumns(d)
	mr, mt := stat.Mean(kept.r, nil), stat.Mean(kept.t, nil)
	rr, tt, rt := stat.Variance(kept.r, nil), stat.Variance(kept.t, nil), stat.Covariance(kept.r, kept.t, nil)
	b, c := e.trim[1], e.trim[2]
	score := make([]float64, d.bins())
	for i := range score {
		for j := d.starts[i]; j < d.starts[i+1]; j++ {
			if !e.kept[j] {
				continue
			}
			r, t := d.cols.r[j]-mr, d.cols.t[j]-mt
			ofB, ofC := float64(tt*r)-float64(rt*t), float64(rr*t)-float64(rt*r)
			score[i] += (ofB/b - ofC/c) * (d.cols.y[j] - e.trim.at(d.cols.r[j], d.cols.t[j]))
		}
	}
	return score
}

// stretched moves the ends away from the value by the factor: of positive ones in logarithms, as for a ratio.
func (v Interval) stretched(by float64) Interval {
	if v.Low > 0 && v.Value > 0 && !math.IsInf(v.High, 0) {
		v.Low = v.Value * math.Pow(v.Low/v.Value, by)
		v.High = v.Value * math.Pow(v.High/v.Value, by)
		return v
	}
	v.Low = v.Value - float64(by*(v.Value-v.Low))
	v.High = v.Value + float64(by*(v.High-v.Value))
	return v
}
