package vitals

import "github.com/kvroute/kvroute/internal/snapshot"

// slot is what happened in one span of time.
type slot struct {
	n       uint32 // requests, or blocks stored
	removed uint32
	of, hit int64 // tokens, and those of them that were cached
}

// ring counts what happened lately, in spans of equal length. Times before the newest one count for the newest:
// callers hand in the time that they took before they waited for the lock.
type ring struct {
	span  int64 // ms
	at    int64 // number of the newest span: time / span
	slots []slot
	moved uint64 // how often it was added to
	last  int64  // number of the span that was added to last
}

func newRing(span int64, n int) ring { return ring{span: span, slots: make([]slot, n)} }

// now returns the slot of a time in ms, after forgetting those that it pushes out.
func (r *ring) now(ms int64) *slot {
	r.advance(ms)
	r.moved++
	r.last = r.at
	return &r.slots[r.at%int64(len(r.slots))]
}

func (r *ring) advance(ms int64) {
	at, n := ms/r.span, int64(len(r.slots))
	if at-r.at >= n {
		clear(r.slots)
		r.at = at
	}
	for r.at < at {
		r.at++
		r.slots[r.at%n] = slot{}
	}
}

// sum adds up the last k spans before the one of ms, and that one too if with is set.
func (r *ring) sum(ms int64, k int, with bool) (s slot) {
	r.advance(ms)
	n := int64(len(r.slots))
	first := r.at - int64(k)
	for i := max(first, r.at-n+1, 0); i <= r.at; i++ {
		if i == r.at && !with {
			break
		}
		o := &r.slots[i%n]
		s.n += o.n
		s.removed += o.removed
		s.of += o.of
		s.hit += o.hit
	}
	return s
}

// history returns the counts of the n last pairs of spans before the pair of ms, oldest first. The ring must have
// 2n+2 slots.
func (r *ring) history(ms int64, n int, get func(*slot) uint32) []uint32 {
	r.advance(ms)
	out := make([]uint32, n)
	size := int64(len(r.slots))
	end := r.at &^ 1 // begin of the pair that is under way
	for i := range out {
		for _, at := range [2]int64{end - 2*int64(n-i), end - 2*int64(n-i) + 1} {
			if at >= 0 && at > r.at-size {
				out[i] += get(&r.slots[at%size])
			}
		}
	}
	return out
}

// shown is what a snapshot last showed of a ring. Past spans do not change, so that as long as the newest span is
// the same and nothing was added all of it stands, and histories as long as the pair of spans is.
type shown struct {
	known             bool
	at                int64
	moved             uint64
	rate              float64
	share             *float64
	pair              int64
	history, removals []uint32 // shared with snapshots: never changed
}

// show brings what is shown of a ring up to date.
func (r *ring) show(ms int64, x *shown) {
	if x.known && x.moved == r.moved && x.at-r.last > int64(len(r.slots)) {
		return // all zeros, as before
	}
	if r.moved == 0 {
		x.history, x.removals = nothing, nothing
		return
	}
	r.advance(ms)
	if x.known && x.at == r.at && x.moved == r.moved {
		return
	}
	if !x.known || x.at != r.at {
		x.rate = rate(r, ms)
	}
	x.share = r.sum(ms, shareSpans, true).share()
	if pair := r.at &^ 1; !x.known || x.pair != pair {
		x.pair = pair
		x.history = r.history(ms, snapshot.HistoryLength, func(s *slot) uint32 { return s.n })
		x.removals = r.history(ms, snapshot.HistoryLength, func(s *slot) uint32 { return s.removed })
	}
	x.known, x.at, x.moved = true, r.at, r.moved
}

// share is hit over of, nil where nothing was asked for.
func (s slot) share() *float64 {
	if s.of <= 0 {
		return nil
	}
	v := float64(s.hit) / float64(s.of)
	return &v
}

// delays counts durations by size over the last minute, in classes some 19 % apart.
type delays struct {
	at    int64 // number of the newest ten seconds
	slots [6][delayClasses]uint32
}

const (
	delayClasses = 96
	delayLeast   = 4000.0 // ns; class k holds up to delayLeast * 2^(k/4)
	delaySpan    = 10_000 // ms
)

func (d *delays) advance(ms int64) {
	at := ms / delaySpan
	if at-d.at >= int64(len(d.slots)) {
		clear(d.slots[:])
		d.at = at
	}
	for d.at < at {
		d.at++
		d.slots[d.at%int64(len(d.slots))] = [delayClasses]uint32{}
	}
}

func (d *delays) add(ms int64, ns float64) {
	d.advance(ms)
	d.slots[d.at%int64(len(d.slots))][delayClass(ns)]++
}

// quantile is an upper bound, in ms, of the share q of the delays; nil where there were none.
func (d *delays) quantile(ms int64, q float64) *float64 {
	d.advance(ms)
	var sum [delayClasses]uint64
	var total uint64
	for i := range d.slots {
		for k, n := range d.slots[i] {
			sum[k] += uint64(n)
			total += uint64(n)
		}
	}
	if total == 0 {
		return nil
	}
	need := uint64(q*float64(total-1)) + 1
	for k, n := range sum {
		if n >= need {
			v := delayBound(k) / 1e6
			return &v
		}
		need -= n
	}
	return nil
}
