package index

import (
	"math/bits"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// Match finds the longest leading run of chain for every target. It allocates only to grow dst.
//
// The targets whose content is closed under parents (Index.whole, usually all) hold at each block of
// the chain a subset of what they hold at the block before. Their runs are found by bisection for all
// at once: a stretch of the chain is looked into only while some target holds its begin and not its
// end. That is two lookups if all targets or none hold all, and at most one more per halving and
// distinct length otherwise, however many targets there are. The others are followed block by block
// until the last of them stops. Blocks in lower tiers, if there are any, are counted in a further pass.
//
// Chain must be a chain: each hash stands for all before it.
func (x *Index) Match(chain []block.Hash, dst *Matches) {
	dst.reset(len(x.mirrors))
	if len(chain) == 0 || len(x.mirrors) == 0 {
		return
	}
	words := x.sets.words
	if need := 72 * words; cap(dst.mask) < need {
		dst.mask = make([]uint64, need)
		dst.todo = make([]span, 0, 72)
	}
	dst.mask = dst.mask[:72*words]
	x.matchWhole(chain, dst, words)
	x.matchHoley(chain, dst, words)
	if x.lowers > 0 {
		x.matchLower(chain, dst)
	}
}

// seeker finds the blocks of a chain. Blocks that arrived in one event have ids in a row, so that from
// one of them the id of another can be guessed, which saves the search of a table; it stops guessing
// while that does not pay.
type seeker struct {
	x    *Index
	luck int
}

// seek returns the entry of a hash, 0 if there is none, and its set; guess may be any number.
func (s *seeker) seek(h block.Hash, guess uint32) (uint32, setID) {
	if s.luck >= 0 && guess != 0 && guess < s.x.arena.next {
		if e := s.x.arena.at(guess); e.hash() == h && e[fSet] != 0 { // a free entry has no set
			s.luck = min(s.luck+1, 4)
			return guess, e[fSet]
		}
		s.luck -= 2
	} else {
		s.luck++
	}
	if id := s.x.byHash.find(&s.x.arena, mix(uint64(h)), uint64(h)); id != 0 {
		return id, s.x.arena.at(id)[fSet]
	}
	return 0, 0
}

// run counts the leading hashes of chain that are the entries from id on, all with the same set, which
// is not empty. It looks no further than the end of a chunk.
func (x *Index) run(chain []block.Hash, id uint32, set setID) int32 {
	c := int(id >> chunkBits)
	if c >= len(x.arena.chunks) {
		return 0
	}
	row := x.arena.chunks[c][id&(chunkLen-1):]
	n := min(len(chain), len(row))
	row, chain = row[:n], chain[:n]
	for k := range row {
		if e := &row[k]; e.hash() != chain[k] || e[fSet] != set {
			return int32(k)
		}
	}
	return int32(n)
}

// divide splits the targets in mask, words long, into those that are in s (in) and those that are not
// (out, which may be mask itself), and tells which of the two are empty.
func (x *sets) divide(s setID, mask, in, out []uint64) (anyIn, anyOut bool) {
	var ins, outs uint64
	switch {
	case s == 0:
		for w, m := range mask {
			in[w], out[w] = 0, m
			outs |= m
		}
	case s&singleTag != 0:
		t := s & targetMask
		for w, m := range mask {
			in[w], out[w] = 0, m
			outs |= m
		}
		if w, bit := t>>6, uint64(1)<<(t&63); out[w]&bit != 0 {
			in[w] = bit
			ins = bit
			out[w] &^= bit
			outs = 0
			for _, m := range out {
				outs |= m
			}
		}
	default:
		p := x.bits(s)[:len(mask)]
		for w, m := range mask {
			a, b := m&p[w], m&^p[w]
			in[w], out[w] = a, b
			ins |= a
			outs |= b
		}
	}
	return ins != 0, outs != 0
}

// matchWhole bisects. Span (lo, hi) with mask k on the stack: these targets hold block lo (or lo is
// before the first) and not block hi.
func (x *Index) matchWhole(chain []block.Hash, dst *Matches, words int) {
	n := int32(len(chain))
	at := func(k int) []uint64 { return dst.mask[k*words : (k+1)*words] }
	in, rest := at(0), at(1)
	sk := seeker{x: x}
	_, last := sk.seek(chain[n-1], 0)
	_, any := x.sets.divide(last, x.whole, in, rest)
	dst.assign(in, uint32(n))
	if !any || n == 1 {
		return // the others hold none
	}
	// in is free again from here on; what holds the first block goes on, the others hold none.
	id, first := sk.seek(chain[0], 0)
	if any, _ = x.sets.divide(first, rest, in, rest); !any {
		return
	}
	todo := append(dst.todo[:0], span{0, n - 1, id})
	for len(todo) > 0 {
		k := len(todo) - 1
		s, mask := todo[k], at(k)
		if s.hi-s.lo <= walkBelow {
			x.walk(chain, dst, s, &sk, mask, at(k+1))
			todo = todo[:k]
			continue
		}
		mid := s.lo + (s.hi-s.lo)/2
		id, set := sk.seek(chain[mid], s.id+uint32(mid-s.lo))
		anyIn, anyOut := x.sets.divide(set, mask, at(k+1), mask)
		switch {
		case anyIn && anyOut:
			todo[k].hi = mid
			todo = append(todo, span{mid, s.hi, id})
		case anyIn:
			copy(mask, at(k+1))
			todo[k] = span{mid, s.hi, id}
		default:
			todo[k].hi = mid
		}
	}
	dst.todo = todo
}

// walkBelow is the length of a stretch that is walked rather than bisected: blocks in a row are found
// by guessing in a tenth of the time a jump takes.
const walkBelow = 32

// walk settles a span block by block. Mask is used up; spare is as long.
func (x *Index) walk(chain []block.Hash, dst *Matches, s span, sk *seeker, mask, spare []uint64) {
	id, before := s.id, setID(singleTag) // none such
	for i := s.lo + 1; i < s.hi; i++ {
		var set setID
		if id, set = sk.seek(chain[i], id+1); set == before {
			continue
		}
		before = set
		next := i
		if set != 0 {
			k := x.run(chain[i+1:s.hi], id+1, set)
			id, next = id+uint32(k), i+k
		}
		anyIn, anyOut := x.sets.divide(set, mask, spare, mask)
		if anyOut {
			dst.assign(mask, uint32(i))
		}
		if !anyIn {
			return
		}
		mask, spare = spare, mask
		i = next
	}
	dst.assign(mask, uint32(s.hi))
}

func (m *Matches) assign(mask []uint64, hits uint32) {
	for w, word := range mask {
		for ; word != 0; word &= word - 1 {
			m.Hits[w*64+bits.TrailingZeros64(word)] = hits
		}
	}
}

// matchHoley follows the targets with holes from the start.
func (x *Index) matchHoley(chain []block.Hash, dst *Matches, words int) {
	mask, in := dst.mask[:words], dst.mask[words:2*words]
	var any uint64
	for w := range mask {
		mask[w] = x.joined[w] &^ x.whole[w]
		any |= mask[w]
	}
	if any == 0 {
		return
	}
	sk := seeker{x: x}
	x.walk(chain, dst, span{lo: -1, hi: int32(len(chain))}, &sk, mask, in)
}

// matchLower counts the hits in lower tiers. Blocks in a row with the same set are counted together.
func (x *Index) matchLower(chain []block.Hash, dst *Matches) {
	most := uint32(0)
	for _, h := range dst.Hits {
		most = max(most, h)
	}
	run, from := setID(0), uint32(0)
	sk, id := seeker{x: x}, uint32(0)
	for i := uint32(0); i < most; i++ {
		var s setID
		if id, s = sk.seek(chain[i], id+1); s != run {
			x.countHits(dst, run, from, i)
			run, from = s, i
		}
		if s != 0 {
			k := uint32(x.run(chain[i+1:most], id+1, s))
			id, i = id+k, i+k
		}
	}
	x.countHits(dst, run, from, most)
}

// countHits counts the blocks from one position to another, all with set s, that are hits in a lower tier.
func (x *Index) countHits(dst *Matches, s setID, from, to uint32) {
	count := func(t target.ID, st state) {
		if end := min(to, dst.Hits[t]); st&low != 0 && end > from {
			dst.lower([2]Tier{CPU, Disk}[(st-onCPU)/2])[t] += end - from
		}
	}
	if s&singleTag != 0 {
		count(target.ID(s&targetMask), state(s>>stateShift)&7)
		return
	}
	if s == 0 {
		return
	}
	words, b := x.sets.words, x.sets.bits(s)
	for w := range words {
		for word := b[2*words+w]; word != 0; word &= word - 1 {
			t := target.ID(w*64 + bits.TrailingZeros64(word))
			count(t, x.sets.get(s, t))
		}
	}
}
