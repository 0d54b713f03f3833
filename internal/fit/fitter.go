package fit

import (
	"math"
	"slices"

	"github.com/kvroute/kvroute/internal/decodelog"
)

// Defaults of Options.
const (
	DefaultBinNS   = 3_000_000_000
	DefaultDraws   = 400
	DefaultHoldout = 0.3
)

const (
	// coarse is how many bins one of the coarse binning takes. A weight that depends on the length of the bins is
	// not one of the engine: see the reason "bin-length".
	coarse = 4
	// maxRows bounds the rows that are kept, per unit: two days of 3 s bins. Beyond it half of the bins are left out.
	maxRows = 1 << 16
	// maxPending is how many samples are looked at before the length of bins is settled.
	maxPending = 4096
)

// Fitter gathers samples into bins and fits them. It is for one goroutine.
type Fitter struct {
	opt     Options
	counts  Counts
	ids     map[rankKey]int32
	ranks   []rankTotals
	last    int32     // index of the rank of the sample before: samples come in runs
	pending []pending // until the length of the bins is settled, then nil
	bins    *binning  // nil until then
	graphs  struct{ on, off int64 }
	held    bool // some sample held tokens

	rounded rounding
	report  *decodelog.Report
}

// Describe tells what the reader of the samples reports, which the verdict then takes into account: ranks that the
// log names but that print no steps, and the kind of engine. Without it both are unknown.
func (f *Fitter) Describe(r *decodelog.Report) { f.report = r }

type pending struct {
	s  decodelog.Sample
	id int32
}

// binning is the bins and coarser ones.
type binning struct {
	fine, coarse  *binner
	late, prefill int64
}

func (b *binning) add(s *decodelog.Sample, id int32, ranks []rankTotals) {
	switch {
	case !b.fine.add(s, id, ranks):
		b.late++
		return
	case s.Prefill:
		b.prefill++
	}
	b.coarse.add(s, id, ranks)
}

type rankKey struct{ source, rank int32 }

// New returns an empty fitter.
func New(opt Options) *Fitter {
	if opt.BinNS <= 0 {
		opt.BinNS = DefaultBinNS
	}
	if opt.Draws <= 0 {
		opt.Draws = DefaultDraws
	}
	if !(opt.Holdout > 0 && opt.Holdout < 1) {
		opt.Holdout = DefaultHoldout
	}
	return &Fitter{opt: opt, ids: map[rankKey]int32{}, last: -1}
}

// Add takes a sample. Samples should come nearly in time order: what comes more than maxOpen bins late is left out
// and counted. A sample is not kept.
func (f *Fitter) Add(s *decodelog.Sample) {
	f.counts.Samples++
	if !positive(s.Step) || !positive(s.Running) || !(s.Held >= 0) || math.IsInf(s.Held, 0) {
		f.counts.Bad++
		return
	}
	id := f.rankOf(s)
	f.round(s, &f.ranks[id])
	m := f.ranks[id].overInterval(s)
	f.held = f.held || s.Held > 0
	if s.HasGraph && s.Graph {
		f.graphs.on++
	} else if s.HasGraph {
		f.graphs.off++
	}
	if f.bins != nil {
		f.bins.add(&m, id, f.ranks)
		return
	}
	f.pending = append(f.pending, pending{m, id})
	if len(f.pending) == maxPending {
		f.bins = f.settle()
		f.pending = nil
	}
}

func positive(x float64) bool { return x > 0 && !math.IsInf(x, 0) }

// settle chooses the length of the bins and fills them with the samples so far. Bins are as long as asked for, or
// some times that: in a bin shorter than the time between two lines of a rank, ranks would be missing, the busiest one
// among them.
func (f *Fitter) settle() *binning {
	k := max(1, int64(math.Ceil(1.2*f.gap()/float64(f.opt.BinNS))))
	b := &binning{fine: newBinner(k * f.opt.BinNS), coarse: newBinner(coarse * k * f.opt.BinNS)}
	for i := range f.pending {
		b.add(&f.pending[i].s, f.pending[i].id, f.ranks)
	}
	return b
}

// gap is the usual time between samples of a rank in the pending ones, ns: the median over ranks of the mean, without
// the times in which the rank was idle.
func (f *Fitter) gap() float64 {
	times := make([][]int64, len(f.ranks))
	for _, p := range f.pending {
		times[p.id] = append(times[p.id], p.s.At)
	}
	var means []float64
	for _, at := range times {
		if len(at) < 4 {
			continue
		}
		slices.Sort(at)
		g := make([]float64, len(at)-1)
		for i := range g {
			g[i] = float64(at[i+1] - at[i])
		}
		limit := 3*median(g) + 1e9
		sum, n := 0.0, 0.0
		for _, x := range g {
			if x <= limit {
				sum += x
				n++
			}
		}
		means = append(means, sum/n)
	}
	return median(means)
}

func (f *Fitter) rankOf(s *decodelog.Sample) int32 {
	key := rankKey{s.Source, s.Rank}
	if f.last >= 0 && f.ranks[f.last].key == key {
		return f.last
	}
	id, ok := f.ids[key]
	if !ok {
		id = int32(len(f.ranks))
		f.ids[key] = id
		f.ranks = append(f.ranks, rankTotals{key: key, gap: DefaultBinNS})
	}
	f.last = id
	return id
}

// rankTotals is what a rank did so far.
type rankTotals struct {
	key     rankKey
	samples int64
	first   int64 // ns, of the first sample
	turns   turns

	// Of the sample before.
	at            int64
	running, held float64
	gap           int64 // usual time between two, ns: follows the least ones

	// Squared changes of the tokens held over an interval, summed, for the error of taking the mean of its ends.
	jumps, intervals float64
}

func (r *rankTotals) note(change, factor float64) {
	r.jumps += float64(factor * float64(change*change))
	r.intervals++
}

// overInterval returns s with what the rank held meanwhile. A line tells the step of the interval before it, but the
// requests and tokens at its end, and the step was computed with these requests although those of the whole interval
// made the tokens. The mean of both ends is nearer to what was held; the step is corrected by as much. Where the line
// before is not the beginning of the interval, as after idle times, s stays as it is.
func (r *rankTotals) overInterval(s *decodelog.Sample) decodelog.Sample {
	m := *s
	gap := s.At - r.at
	if r.samples > 0 && gap >= 0 {
		if gap <= 5*r.gap/2+1e9 && !s.Meanwhile {
			m.Running = (r.running + s.Running) / 2
			m.Held = (r.held + s.Held) / 2
			r.note(s.Held-r.held, 1)
			if !s.Measured {
				m.Step = s.Step * m.Running / s.Running
			}
		}
		// Means of both ends, as scrapes have them, differ by half of what two intervals changed; means over the
		// whole of long intervals that overlap, as of requests in recordings, have no such error.
		if s.Meanwhile && s.Weight > 0 && float64(gap) > 0.5e9*s.Weight*s.Step && gap <= 5*r.gap/2+1e9 {
			r.note(s.Held-r.held, 2)
		}
		r.gap = min(gap, r.gap+r.gap/8+1e8)
	}
	if !s.Meanwhile {
		r.turns.add(s.Held)
	}
	if r.samples == 0 {
		r.first = s.At
	}
	r.samples++
	r.at, r.running, r.held = s.At, s.Running, s.Held
	return m
}

// blur is the variance of the tokens of a row that comes from seeing them at the ends of intervals only, and not
// meanwhile. For what changes at random it is a twelfth of the mean squared change over an interval (the variance of
// the mean of a Brownian bridge), less where a bin holds several intervals.
func (f *Fitter) blur(binNS int64) float64 {
	var jumps, intervals float64
	for i := range f.ranks {
		jumps += f.ranks[i].jumps
		intervals += f.ranks[i].intervals
	}
	if intervals == 0 {
		return 0
	}
	return jumps / intervals / 12 / f.perBin(binNS)
}

// perBin is how many lines of a rank a bin usually holds, 1 at least.
func (f *Fitter) perBin(binNS int64) float64 {
	var intervals, gaps float64
	for i := range f.ranks {
		intervals += f.ranks[i].intervals
		gaps += float64(f.ranks[i].intervals * float64(f.ranks[i].gap))
	}
	return max(1, float64(binNS)*intervals/max(gaps, 1e6))
}

// sources counts the inputs, and says whether one of them has several ranks.
func (f *Fitter) sources() (n int, several bool) {
	var seen []int32
	for i := range f.ranks {
		s := f.ranks[i].key.source
		if slices.Contains(seen, s) {
			several = true
		} else {
			seen = append(seen, s)
		}
	}
	return len(seen), several
}
