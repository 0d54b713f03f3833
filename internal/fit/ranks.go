package fit

import (
	"math"
	"slices"
)

// rankView fills Ranks and Spread.
func (f *Fitter) rankView(res *Result, t tables) {
	res.Spread = Spread{Requests: math.NaN(), Tokens: math.NaN(), Saved: math.NaN(), Straggler: -1}
	type sums struct {
		bins      int
		busiest   float64
		r, t, y   float64
		residuals []float64
	}
	all := make([]sums, len(f.ranks))
	rows := t.rank.rows
	sharedBins := 0
	var scratch []float64
	for i := 0; i < len(rows); {
		j := i + 1
		for j < len(rows) && rows[j].index == rows[i].index {
			j++
		}
		most, sharing := 0.0, 0.0
		scratch = scratch[:0]
		for k := i; k < j; k++ {
			switch r := rows[k].r; {
			case r > most:
				most, sharing = r, 1
			case r == most:
				sharing++
			}
			scratch = append(scratch, rows[k].y)
		}
		mid := median(scratch)
		sharedBins++
		for k := i; k < j; k++ {
			s := &all[rows[k].id]
			s.bins++
			s.r += rows[k].r
			s.t += rows[k].t
			s.y += rows[k].y
			if j-i > 1 {
				s.residuals = append(s.residuals, rows[k].y-mid)
			}
			if rows[k].r == most {
				s.busiest += 1 / sharing
			}
		}
		i = j
	}
	for id := range f.ranks {
		s := &all[id]
		r := Rank{Source: f.ranks[id].key.source, Rank: f.ranks[id].key.rank, Samples: f.ranks[id].samples}
		n := float64(s.bins)
		r.MeanRunning, r.MeanHeld, r.MeanStep = s.r/n, s.t/n, s.y/n
		r.Busiest = s.busiest / float64(sharedBins)
		r.Residual = math.NaN()
		if len(s.residuals) > 0 {
			r.Residual = median(s.residuals)
		}
		res.Ranks = append(res.Ranks, r)
	}
	slices.SortFunc(res.Ranks, func(x, y Rank) int {
		if x.Source != y.Source {
			return int(x.Source) - int(y.Source)
		}
		return int(x.Rank) - int(y.Rank)
	})
	f.spread(res, t)
}

// spread compares the busiest rank with the mean of the ranks. Ranks that print nothing in a bin are idle: they hold
// nothing, and an even spread would use them.
func (f *Fitter) spread(res *Result, t tables) {
	if len(f.ranks) < 2 {
		return
	}
	all := float64(len(f.ranks))
	var req, tok, saved, steps float64
	n, nt := 0, 0
	for _, r := range t.all.rows {
		share := float64(r.ranks) / all
		req += r.r / float64(r.meanR*share)
		n++
		if r.meanT > 0 {
			tok += r.t / float64(r.meanT*share)
			nt++
		}
		b, c := res.B.Value, res.C.Value
		// A rank cannot hold less than one request of those there are.
		saved += float64(b*(r.r-min(r.r, max(1, float64(r.meanR*share))))) + float64(c*(r.t-float64(r.meanT*share)))
		steps += res.A.Value + float64(b*r.r) + float64(c*r.t)
	}
	if n > 0 {
		res.Spread.Requests = req / float64(n)
	}
	if nt > 0 {
		res.Spread.Tokens = tok / float64(nt)
	}
	res.Spread.Saved = saved / steps
}
