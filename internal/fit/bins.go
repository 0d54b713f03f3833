package fit

import (
	"slices"

	"github.com/kvroute/kvroute/internal/decodelog"
)

// maxOpen is how many bins back a sample may come late.
const maxOpen = 256

// maxSteps bounds the steps kept for the median of one rank in one bin. Beyond it every second one is dropped.
const maxSteps = 1024

// row is a closed bin of one unit.
type row struct {
	index          int64 // of the bin
	y              float64
	r, t           float64 // of the busiest rank, each
	meanR, meanT   float64 // over ranks
	ranks, samples int32
	id             int32 // unit: 0, source or rank index
}

// table holds rows in time order. Of too many it keeps those of some bins, by chance: every n-th would show nothing of
// load that comes and goes in step with n.
type table struct {
	rows    []row
	mask    uint64 // bins are kept whose hash has none of these bits: a half, a quarter, ... of them
	thinned int64  // rows left out of bins that are not kept
	prefill int64  // rows left out of others because prefill ran
}

func (t *table) keeps(index int64) bool { return mix(uint64(index))&t.mask == 0 }

// add appends r, of a bin that t keeps.
func (t *table) add(r row) {
	t.rows = append(t.rows, r)
	if len(t.rows) <= maxRows {
		return
	}
	t.mask = t.mask<<1 | 1
	before := len(t.rows)
	t.rows = slices.DeleteFunc(t.rows, func(r row) bool { return !t.keeps(r.index) })
	t.thinned += int64(before - len(t.rows))
}

// mix spreads x over all bits (the finalizer of SplitMix64: Steele, Lea and Flood, 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// clone returns a copy that rows can be added to.
func (t *table) clone() *table {
	c := *t
	c.rows = slices.Clone(t.rows)
	return &c
}

// rankBin is what one rank did in one bin.
type rankBin struct {
	id         int32
	n          int32
	prefill    int32
	stride     int32 // every stride-th step is in steps
	sumR, sumT float64
	steps      []float64
}

func (b *rankBin) add(s *decodelog.Sample) {
	if s.Prefill {
		b.prefill++
		return
	}
	if b.n%b.stride == 0 {
		if len(b.steps) == maxSteps {
			for i := 1; 2*i < len(b.steps); i++ {
				b.steps[i] = b.steps[2*i]
			}
			b.steps = b.steps[:maxSteps/2]
			b.stride *= 2
		}
		if b.n%b.stride == 0 {
			b.steps = append(b.steps, s.Step)
		}
	}
	b.n++
	b.sumR += s.Running
	b.sumT += s.Held
}

// openBin is a bin that samples may still come for. ranks is in the order in which they first printed in it.
type openBin struct {
	index int64
	ranks []rankBin
	used  int // of ranks; those behind are kept for their memory
}

func (b *openBin) rank(id int32) *rankBin {
	for i := range b.ranks[:b.used] {
		if b.ranks[i].id == id {
			return &b.ranks[i]
		}
	}
	if b.used == len(b.ranks) {
		b.ranks = append(b.ranks, rankBin{})
	}
	r := &b.ranks[b.used]
	b.used++
	*r = rankBin{id: id, stride: 1, steps: r.steps[:0]}
	return r
}

// binner sorts samples into bins of one length, aligned to the epoch, and closes them in order. Its memory is bounded by the open bins and
// the rows of the tables.
type binner struct {
	binNS             int64
	open              []*openBin // by index
	free              []*openBin
	at                int   // of the bin in open that was added to last
	closed            int64 // bins below are closed
	any               bool
	all, source, rank table
	scratch           []float64
	order             []int
}

func newBinner(binNS int64) *binner {
	return &binner{binNS: binNS}
}

// index of the bin that ns lies in, rounding down.
func (b *binner) index(ns int64) int64 {
	i := ns / b.binNS
	if ns%b.binNS < 0 {
		i--
	}
	return i
}

// add puts s, of rank id, into its bin; false: that was closed already.
func (b *binner) add(s *decodelog.Sample, id int32, ranks []rankTotals) bool {
	i := b.index(s.At)
	if b.any && i < b.closed {
		return false
	}
	if b.at >= len(b.open) || b.open[b.at].index != i {
		b.seek(i, ranks)
	}
	b.open[b.at].rank(id).add(s)
	return true
}

// seek makes b.open[b.at] the bin i, opening it and closing those that are too old.
func (b *binner) seek(i int64, ranks []rankTotals) {
	at, ok := slices.BinarySearchFunc(b.open, i, func(o *openBin, i int64) int {
		switch {
		case o.index < i:
			return -1
		case o.index > i:
			return 1
		}
		return 0
	})
	if !ok {
		var o *openBin
		if n := len(b.free); n > 0 {
			o, b.free = b.free[n-1], b.free[:n-1]
		} else {
			o = &openBin{}
		}
		o.index, o.used = i, 0
		b.open = slices.Insert(b.open, at, o)
	}
	limit := b.open[len(b.open)-1].index - maxOpen
	if !b.any || limit > b.closed {
		b.closed, b.any = limit, true
	}
	n := 0
	for n < len(b.open) && b.open[n].index < limit {
		b.emit(b.open[n], &b.all, &b.source, &b.rank, ranks)
		b.free = append(b.free, b.open[n])
		n++
	}
	b.open = slices.Delete(b.open, 0, n)
	b.at = at - n
}

// tables returns the rows of closed and open bins together, leaving the binner as it is.
func (b *binner) tables(ranks []rankTotals) (all, source, rank *table) {
	all, source, rank = b.all.clone(), b.source.clone(), b.rank.clone()
	for _, o := range b.open {
		b.emit(o, all, source, rank, ranks)
	}
	return all, source, rank
}

// emit appends the rows of o. Ranks are taken in the order of their numbers, so that the order of lines within a bin
// does not show.
func (b *binner) emit(o *openBin, all, source, rank *table, ranks []rankTotals) {
	b.order = b.order[:0]
	for i := range o.used {
		b.order = append(b.order, i)
	}
	slices.SortFunc(b.order, func(x, y int) int {
		p, q := ranks[o.ranks[x].id].key, ranks[o.ranks[y].id].key
		if p.source != q.source {
			return int(p.source) - int(q.source)
		}
		return int(p.rank) - int(q.rank)
	})
	b.emitUnit(o, b.order, all, 0)
	for i := 0; i < len(b.order); {
		src := ranks[o.ranks[b.order[i]].id].key.source
		j := i + 1
		for j < len(b.order) && ranks[o.ranks[b.order[j]].id].key.source == src {
			j++
		}
		b.emitUnit(o, b.order[i:j], source, src)
		i = j
	}
	for i := range b.order {
		b.emitUnit(o, b.order[i:i+1], rank, o.ranks[b.order[i]].id)
	}
}

// emitUnit appends the row of the ranks members of o that step together: the median of all their steps, and the most
// requests and the most tokens on any of them, where a rank counts with its mean over the bin. If one of them
// prefilled, all waited for it, and the bin tells nothing about decode steps.
func (b *binner) emitUnit(o *openBin, members []int, to *table, id int32) {
	if !to.keeps(o.index) {
		to.thinned++
		return
	}
	r := row{index: o.index, id: id}
	b.scratch = b.scratch[:0]
	var sumR, sumT float64
	for _, m := range members {
		k := &o.ranks[m]
		if k.prefill > 0 {
			to.prefill++
			return
		}
		meanR, meanT := k.sumR/float64(k.n), k.sumT/float64(k.n)
		r.r, r.t = max(r.r, meanR), max(r.t, meanT)
		sumR += meanR
		sumT += meanT
		r.ranks++
		r.samples += k.n
		b.scratch = append(b.scratch, k.steps...)
	}
	if r.ranks == 0 {
		return
	}
	r.meanR, r.meanT = sumR/float64(r.ranks), sumT/float64(r.ranks)
	r.y = median(b.scratch)
	to.add(r)
}
