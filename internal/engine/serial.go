package engine

import (
	"math"
	"math/bits"

	"github.com/kvroute/kvroute/internal/prefixcache"
	"github.com/kvroute/kvroute/internal/trace"
)

// SerialCost holds the constants of the serial model, in microseconds. Speed is the worker's in
// millionths: 1,000,000 is normal, half of it takes twice as long.
type SerialCost struct {
	PrefillUS int64 // per uncached prompt token
	DecodeUS  int64 // per answer token
	Speed     int64
}

// NormalSpeed is the Speed of a worker that is neither slow nor fast.
const NormalSpeed = 1_000_000

// SpeedOf converts a factor to a SerialCost's Speed, to the nearest millionth.
func SpeedOf(factor float64) int64 { return int64(math.Round(factor * NormalSpeed)) }

// time returns tokens*each at the worker's speed, rounded to the nearest microsecond.
func (c SerialCost) time(tokens, each int64) int64 {
	t := mulSat(max(0, tokens), each)
	if c.Speed == NormalSpeed {
		return t
	}
	hi, lo := bits.Mul64(uint64(t), NormalSpeed)
	lo, carry := bits.Add64(lo, uint64(c.Speed/2), 0)
	hi += carry
	if hi >= uint64(c.Speed) {
		return Forever
	}
	q, _ := bits.Div64(hi, lo, uint64(c.Speed))
	return int64(min(q, uint64(Forever)))
}

// Serial is one worker of the discrete-event model, whose clock counts microseconds. Prefill is a
// first-come-first-served queue, decode never contends, and a prompt is in the worker's LRU cache from
// the moment it arrives:
//
//	start  = max(arrival, the last prefill's end)
//	finish = start + PrefillUS * (input - tokens of the cached leading run)
//	end    = finish + DecodeUS * output
//
// Not safe for concurrent use.
type Serial struct {
	cost    SerialCost
	cache   *prefixcache.LRU
	free    int64 // end of the last prefill
	stored  []trace.NodeID
	evicted []trace.NodeID
}

// NewSerial returns an idle worker with an empty cache of capacity blocks, 0 without limit.
func NewSerial(cost SerialCost, f *trace.Forest, capacity int) *Serial {
	return &Serial{cost: cost, cache: prefixcache.NewLRU(f, capacity)}
}

// Cached is the number of blocks in the cache.
func (s *Serial) Cached() int64 { return int64(s.cache.Len()) }

// Check verifies the cache's invariants.
func (s *Serial) Check() error { return s.cache.Check() }

// Hits returns how many leading blocks of the path to leaf are cached.
func (s *Serial) Hits(leaf trace.NodeID) int {
	if leaf == trace.NoNode {
		return 0
	}
	return s.cache.Hits(leaf)
}

// Touch puts the path to leaf into the cache. It returns how many leading blocks were there before, and
// what entered (a chain, root first) and left; the slices are valid until the next call.
func (s *Serial) Touch(leaf trace.NodeID) (hits int, stored, evicted []trace.NodeID) {
	if leaf == trace.NoNode {
		return 0, nil, nil
	}
	hits = s.cache.Hits(leaf)
	s.stored, s.evicted = s.stored[:0], s.evicted[:0]
	s.cache.Touch(leaf, &s.stored, &s.evicted)
	return hits, s.stored, s.evicted
}

// Prefill queues tokens of prefill at time now and returns when they start and when they are done.
func (s *Serial) Prefill(now, tokens int64) (start, finish int64) {
	start = max(now, s.free)
	s.free = addSat(start, s.cost.time(tokens, s.cost.PrefillUS))
	return start, s.free
}

// Decode returns when the last of tokens is out, if the first prefill ends at from.
func (s *Serial) Decode(from, tokens int64) int64 {
	return addSat(from, s.cost.time(tokens, s.cost.DecodeUS))
}
