package fit

import (
	"fmt"
	"math"
	"slices"

	"github.com/kvroute/kvroute/internal/decodelog"
)

// Limits of finding a straggler that others wait for. Over planted logs without one, in all forms and with all that
// disturbs them, own loads left 0.88 at least of what the busiest rank's left, but in real ones down to 0.55, as steps
// follow the sum of all loads, too: so they have to explain more than the busiest rank's by themselves.
const (
	straggles     = 0.7 // of the variance that the busiest rank's load leaves, at most
	straggleProof = 30  // twice the least F statistic: in short logs chance explains much
)

// stragglers looks for a rank that is slower than the others at the same load: one that the others wait for, or one
// whose own steps are longer where none waits.
func (e *evidence) stragglers() {
	if len(e.f.ranks) < 2 {
		return
	}
	id, text := int32(-1), "%s takes longer than the others at the same load"
	if e.res.Unit == UnitRank {
		id = e.slowRank()
	} else if id = e.apartRank(); id >= 0 {
		text = "steps of %s are longer than those of the others, which do not wait for it"
	} else {
		id = e.awaitedRank()
		text = "the load of %s explains steps better than that of the busiest rank: it is slower than the others at the same load, and they wait for it"
	}
	if id < 0 {
		return
	}
	key := e.f.ranks[id].key
	e.res.Spread.Straggler = e.view(key)
	e.weaken(CodeStraggler, "look at that rank's GPU (clocks, heat, neighbours), or leave it out", text, e.f.name(key))
}

// view is the index of a rank in the result.
func (e *evidence) view(key rankKey) int {
	return slices.IndexFunc(e.res.Ranks, func(r Rank) bool { return r.Source == key.source && r.Rank == key.rank })
}

// input is the name of an input.
func (f *Fitter) input(source int32) string {
	if f.report != nil && int(source) < len(f.report.Inputs) {
		return f.report.Inputs[source]
	}
	return fmt.Sprintf("input %d", source+1)
}

// name is what operators know a rank by: its number, and the input where there are several.
func (f *Fitter) name(key rankKey) string {
	input := f.input(key.source)
	n, _ := f.sources()
	switch {
	case key.rank == decodelog.NoRank:
		return input
	case n > 1:
		return fmt.Sprintf("rank %d of %s", key.rank, input)
	}
	return fmt.Sprintf("rank %d", key.rank)
}

// slowRank returns the rank whose steps lie furthest above the plane, if that is a twentieth of a step and far more than
// any other rank's; -1: none.
func (e *evidence) slowRank() int32 {
	off := make([][]float64, len(e.f.ranks))
	for i, r := range e.design.rows {
		off[r.id] = append(off[r.id], (r.y-e.est.trim.at(e.design.cols.r[i], e.design.cols.t[i]))/r.y)
	}
	shares := make([]float64, len(off))
	for id, v := range off {
		shares[id] = math.NaN()
		if len(v) >= minBins {
			shares[id] = median(v)
		}
	}
	return outstanding(shares)
}

// apartRank returns the rank whose steps are longer than those of the others in the same bins by as much, though ranks
// seem to wait for each other: then they do not wait for this one; -1: none.
func (e *evidence) apartRank() int32 {
	shares := make([]float64, len(e.f.ranks))
	for id := range shares {
		r := e.res.Ranks[e.view(e.f.ranks[id].key)]
		shares[id] = math.NaN()
		if r.Samples >= minBins {
			shares[id] = r.Residual / r.MeanStep
		}
	}
	return outstanding(shares)
}

// outstanding returns the index of the largest share, if that is above a twentieth and by as much above any other;
// -1: none.
func outstanding(shares []float64) int32 {
	worst, first, second := int32(-1), math.Inf(-1), math.Inf(-1)
	for id, x := range shares {
		if x > first {
			worst, first, second = int32(id), x, first
		} else if !math.IsNaN(x) {
			second = max(second, x)
		}
	}
	if first > 0.05 && first > second+0.05 {
		return worst
	}
	return -1
}

// awaitedRank returns the rank that the others wait for; -1: none. Where all ranks are alike a step is told by the most
// requests and tokens on any of them, and what one rank holds adds nothing to that. If one is slower, steps are its own
// whenever it is the last: then its requests and tokens explain them better than the busiest rank's, and what those leave. A
// rank that is slower but seldom the last hardly shows, and costs little.
func (e *evidence) awaitedRank() int32 {
	type unit struct {
		index int64
		id    int32
	}
	common := make(map[unit]int, len(e.design.rows))
	for i, r := range e.design.rows {
		common[unit{r.index, r.id}] = i
	}
	own, busy := make([]columns, len(e.f.ranks)), make([]columns, len(e.f.ranks))
	for _, r := range e.rankRows.rows {
		u := unit{index: r.index}
		if e.res.Unit == UnitSource {
			u.id = e.f.ranks[r.id].key.source
		}
		i, ok := common[u]
		if !ok || !e.est.kept[i] {
			continue
		}
		own[r.id].add(e.design.cols.y[i], r.r, r.t)
		busy[r.id].add(e.design.cols.y[i], e.design.cols.r[i], e.design.cols.t[i])
	}
	best, least := int32(-1), straggles
	for id := range own {
		n := own[id].len()
		if n < minBins {
			continue
		}
		x := explain(&busy[id], &own[id])
		if x.longer && x.alone < 1 && x.beside < least && float64(n-5)*(1-x.beside) > straggleProof*x.beside {
			best, least = int32(id), x.beside
		}
	}
	return best
}

// explained holds how well one rank's load explains the steps of bins that it printed in.
type explained struct {
	alone  float64 // variance that its load leaves, over what the busiest rank's leaves
	beside float64 // the same of both loads together
	longer bool    // steps are longer the more it has
}

func explain(busy, own *columns) explained {
	every := 1 + busy.len()/20000 // more rows would only take time
	first, _ := unexplained(busy.y, every, busy.r, busy.t)
	alone, along := unexplained(busy.y, every, own.r, own.t)
	beside, _ := unexplained(busy.y, every, busy.r, busy.t, own.r, own.t)
	return explained{alone / first, beside / first, along > 0}
}

// unexplained returns the squares that a fit of a constant and the columns leaves of y, by every n-th row, and whether y
// goes up (along above 0) or down with the column that explains most. Columns may depend on each other, as those of a rank
// that is always the busiest do on the busiest rank's.
func unexplained(y []float64, n int, columns ...[]float64) (left, along float64) {
	thin := func(v []float64) []float64 {
		var out []float64
		for i := 0; i < len(v); i += n {
			out = append(out, v[i])
		}
		return out
	}
	y = thin(y)
	ones := make([]float64, len(y))
	for i := range ones {
		ones[i] = 1
	}
	basis := [][]float64{} // orthogonal, of length 1
	for i, c := range append([][]float64{ones}, columns...) {
		v := ones
		if i > 0 {
			v = thin(c)
		}
		before := dot(v, v)
		for _, q := range basis {
			subtract(v, q, dot(v, q))
		}
		after := dot(v, v)
		if !(after > 1e-9*before) { // rounding errors of what the others have already
			continue
		}
		for k := range v {
			v[k] /= math.Sqrt(after)
		}
		basis = append(basis, v)
		p := dot(y, v)
		subtract(y, v, p)
		if i > 0 && math.Abs(p) > math.Abs(along) {
			along = p
		}
	}
	return dot(y, y), along
}

func dot(x, y []float64) float64 {
	var sum float64
	for i := range x {
		sum += float64(x[i] * y[i])
	}
	return sum
}

// subtract takes k times q from v.
func subtract(v, q []float64, k float64) {
	for i := range v {
		v[i] -= float64(k * q[i])
	}
}
