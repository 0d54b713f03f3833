package fit

import (
	"slices"

	"github.com/kvroute/kvroute/internal/decodelog"
)

// apart judges whether the ranks of one engine are in several inputs that do not step together: either these are of
// engines that print less than all their ranks, or their clocks differ. In both cases the busiest rank of a step is not
// always among those it is looked for in. top is the highest rank number.
func (e *evidence) apart(top int32) {
	for id := range e.f.ranks {
		src := e.f.ranks[id].key.source
		var seen, missing []int32
		for _, r := range e.f.ranks {
			if r.key.source == src {
				seen = append(seen, r.key.rank)
			}
		}
		for rank := range top + 1 {
			if !slices.Contains(seen, rank) {
				missing = append(missing, rank)
			}
		}
		if len(missing) == 0 || slices.Contains(seen, decodelog.NoRank) {
			continue
		}
		e.refuse(CodeMissing, "give all ranks of an engine with the same clock (time zone, date): shift the times of one log, or take both again",
			"ranks %s of 0 to %d are not in %s, and those of other logs do not step with it: the clocks of the logs differ, or they are of several engines and not whole", list(missing), top, e.f.input(src))
		return
	}
}

// strangers judges whether ranks of one engine never print at the same time, as with clocks of different zones: ranks that
// are in different inputs only, each input ending before the other begins.
func (e *evidence) strangers() {
	type span struct {
		first, last int64
		sources     []int32
		samples     int64
	}
	var order []int32
	spans := map[int32]*span{}
	for i := range e.f.ranks {
		r := &e.f.ranks[i]
		s := spans[r.key.rank]
		if s == nil {
			s = &span{first: r.first, last: r.at}
			spans[r.key.rank] = s
			order = append(order, r.key.rank)
		}
		s.first, s.last = min(s.first, r.first), max(s.last, r.at)
		s.sources = append(s.sources, r.key.source)
		s.samples += r.samples
	}
	slices.Sort(order)
	for i, x := range order {
		for _, y := range order[:i] {
			p, q := spans[y], spans[x]
			if y == decodelog.NoRank || min(p.samples, q.samples) < minBins || p.first <= q.last && q.first <= p.last ||
				slices.ContainsFunc(p.sources, func(s int32) bool { return slices.Contains(q.sources, s) }) {
				continue
			}
			e.refuse(CodeMissing, "give all ranks of an engine with the same clock (time zone, date): shift the times of one log, or take both again",
				"rank %d in %s and rank %d in %s never print at the same time: their clocks differ, or the logs are of different times", y, e.f.input(p.sources[0]), x, e.f.input(q.sources[0]))
			return
		}
	}
}
