package fit

import (
	"math"

	"github.com/kvroute/kvroute/internal/decodelog"
)

// Defaults of Options.
const (
	DefaultBinNS   = 3_000_000_000
	DefaultDraws   = 400
	DefaultHoldout = 0.3
)

// coarse is how many bins one of the coarse binning takes. A weight that depends on the length of the bins is not
// one of the engine: see the reason "bin-length".
const coarse = 4

// maxRows bounds the rows that are kept, per unit: nine days of 3 s bins. Beyond it every second bin is dropped.
const maxRows = 1 << 18

// Fitter gathers samples into bins and fits them. It is for one goroutine.
type Fitter struct {
	opt    Options
	counts Counts
	ids    map[rankKey]int32
	ranks  []rankTotals
	last   int32 // index of the rank of the sample before: samples come in runs
	fine   *binner
	coarse *binner
	graphs struct{ on, off int64 }
	held   bool // some sample held tokens
}

type rankKey struct{ source, rank int32 }

// rankTotals is what a rank did over the whole log.
type rankTotals struct {
	key         rankKey
	samples     int64
	first, last int64 // ns, of its samples
}

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
	return &Fitter{
		opt: opt, ids: map[rankKey]int32{}, last: -1,
		fine: newBinner(opt.BinNS), coarse: newBinner(coarse * opt.BinNS),
	}
}

// Add takes a sample. Samples should come nearly in time order: what comes more than maxOpen bins late is left out
// and counted. A sample is not kept.
func (f *Fitter) Add(s *decodelog.Sample) {
	f.counts.Samples++
	if !(s.Step > 0) || math.IsInf(s.Step, 0) || !(s.Running > 0) || math.IsInf(s.Running, 0) || !(s.Held >= 0) || math.IsInf(s.Held, 0) {
		f.counts.Bad++
		return
	}
	id := f.rankOf(s)
	r := &f.ranks[id]
	r.first = min(r.first, s.At)
	r.last = max(r.last, s.At)
	r.samples++
	if !f.fine.add(s, id, f.ranks) {
		f.counts.Late++
		return
	}
	f.coarse.add(s, id, f.ranks)
	if s.Prefill {
		f.counts.Prefill++
		return
	}
	f.counts.Used++
	f.held = f.held || s.Held > 0
	if s.HasGraph && s.Graph {
		f.graphs.on++
	} else if s.HasGraph {
		f.graphs.off++
	}
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
		f.ranks = append(f.ranks, rankTotals{key: key, first: s.At, last: s.At})
	}
	f.last = id
	return id
}
