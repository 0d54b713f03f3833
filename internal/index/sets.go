package index

import (
	"math/bits"

	"github.com/kvroute/kvroute/internal/target"
)

// state says how one target holds one block.
type state uint32

// A state is three bits, kept in three planes of a set: present; a; b. It tells the nearest tier and,
// for GPU, whether it is the common case, in which no side table has anything about target and block.
const (
	absent  state = 0
	other   state = 1 // in GPU, in any way but the next
	primary state = 3 // by the primary handle of the entry, in GPU only, and by nothing else
	onCPU   state = 5 // in CPU, perhaps Disk, not in GPU
	onDisk  state = 7 // in Disk only
)

// low is the bit of a state that says that the block is in no tier better than CPU.
const low state = 4

// setID stands for the set of targets that hold a block, each with its state. Zero is the empty set.
// A set of one is the number itself: singleTag, the state, the target. Larger sets are shared by all
// blocks with the same one, so a block that every target holds costs four bytes for all of them.
type setID = uint32

const (
	singleTag  = 1 << 31
	stateShift = 16
	targetMask = 1<<14 - 1
)

func single(t target.ID, s state) setID { return singleTag | uint32(s)<<stateShift | uint32(t) }

// sets holds the sets of two and more, counted by the entries that refer to them.
//
// Invariants:
//
//	S1  the three planes of a set are words bits of targets each; a and b are within present.
//	S2  size is the number of bits in present, at least 2 while uses > 0.
//	S3  sum is the exclusive or of token(t, state) over the members; index[sum] is a set with it.
//	S4  uses is the number of entries that refer to the set; a set with none is free.
//
// Two sets with the same sum (one in 2^64) are kept apart: the later one is not in the index. Changing
// one member is O(words), words = targets/64; a set costs 24*words + 16 bytes and about 25 in the index.
// They grow by chunks, so that no change moves others.
type sets struct {
	words  int
	chunks []*setChunk
	next   setID // ids from here on have never been used
	free   []setID
	index  map[uint64]setID
}

type setChunk struct {
	recs [setChunkLen]setRec
	bits []uint64 // of one set after the other: present, a, b
}

type setRec struct {
	sum  uint64
	uses uint32
	size uint32
}

const setChunkLen = 64

func newSets() sets {
	return sets{words: 1, next: 1, index: map[uint64]setID{}}
}

func (x *sets) rec(s setID) *setRec { return &x.chunks[s/setChunkLen].recs[s%setChunkLen] }

// bits returns the three planes of a set, words long each.
func (x *sets) bits(s setID) []uint64 {
	n := 3 * x.words
	at := int(s%setChunkLen) * n
	return x.chunks[s/setChunkLen].bits[at : at+n : at+n]
}

func token(t target.ID, s state) uint64 {
	if s == absent {
		return 0
	}
	return mix(uint64(t)<<3 | uint64(s) | 1<<40)
}

// widen makes room for targets below n. It rewrites all sets; targets join rarely.
func (x *sets) widen(n int) {
	words := (n + 63) / 64
	if words <= x.words {
		return
	}
	for _, c := range x.chunks {
		wide := make([]uint64, 3*words*setChunkLen)
		for plane := range 3 * setChunkLen {
			copy(wide[plane*words:], c.bits[plane*x.words:(plane+1)*x.words])
		}
		c.bits = wide
	}
	x.words = words
}

// get returns the state of a target in a set.
func (x *sets) get(s setID, t target.ID) state {
	if s&singleTag != 0 {
		if s&targetMask == uint32(t) {
			return state(s>>stateShift) & 7
		}
		return absent
	}
	if s == 0 {
		return absent
	}
	b, w, k := x.bits(s), int(t>>6), t&63
	return state(b[w]>>k&1 | b[x.words+w]>>k&1<<1 | b[2*x.words+w]>>k&1<<2)
}

// hasPrimary tells whether any target is in state primary.
func (x *sets) hasPrimary(s setID) bool {
	if s&singleTag != 0 {
		return state(s>>stateShift)&7 == primary
	}
	if s == 0 {
		return false
	}
	b := x.bits(s)
	for w := range x.words {
		if b[x.words+w]&^b[2*x.words+w] != 0 {
			return true
		}
	}
	return false
}

// with returns s with the state of t changed. The caller's use of s passes to the result.
func (x *sets) with(s setID, t target.ID, to state) setID {
	if s == 0 || s&singleTag != 0 && s&targetMask == uint32(t) {
		if to == absent {
			return 0
		}
		return single(t, to)
	}
	if s&singleTag != 0 {
		if to == absent {
			return s
		}
		u, su := target.ID(s&targetMask), state(s>>stateShift)&7
		sum := token(u, su) ^ token(t, to)
		if id := x.index[sum]; id != 0 && x.rec(id).size == 2 && x.get(id, u) == su && x.get(id, t) == to {
			x.rec(id).uses++
			return id
		}
		id := x.alloc()
		x.write(id, u, su)
		x.write(id, t, to)
		x.rec(id).size = 2
		x.enlist(id, sum)
		return id
	}
	from := x.get(s, t)
	if from == to {
		return s
	}
	r := x.rec(s)
	size := r.size
	if from == absent {
		size++
	} else if to == absent {
		size--
	}
	if size == 1 {
		last := x.other(s, t)
		x.release(s)
		return last
	}
	sum := r.sum ^ token(t, from) ^ token(t, to)
	if id := x.index[sum]; id != 0 && x.equalBut(s, id, t, to) {
		x.rec(id).uses++
		x.release(s)
		return id
	}
	if r.uses == 1 {
		x.delist(s)
	} else {
		id := x.alloc()
		copy(x.bits(id), x.bits(s))
		x.release(s)
		s = id
	}
	x.write(s, t, to)
	x.rec(s).size = size
	x.enlist(s, sum)
	return s
}

// other returns the only member of a set of two beside t.
func (x *sets) other(s setID, t target.ID) setID {
	for w, word := range x.bits(s)[:x.words] {
		if w == int(t>>6) {
			word &^= 1 << (t & 63)
		}
		if word != 0 {
			u := target.ID(w*64 + bits.TrailingZeros64(word))
			return single(u, x.get(s, u))
		}
	}
	return 0
}

// equalBut tells whether q is s with the state of t changed.
func (x *sets) equalBut(s, q setID, t target.ID, to state) bool {
	if x.get(q, t) != to {
		return false
	}
	a, b := x.bits(s), x.bits(q)
	var diff uint64
	for w := range x.words {
		d := a[w] ^ b[w] | a[x.words+w] ^ b[x.words+w] | a[2*x.words+w] ^ b[2*x.words+w]
		if w == int(t>>6) {
			d &^= 1 << (t & 63)
		}
		diff |= d
	}
	return diff == 0
}

func (x *sets) write(s setID, t target.ID, st state) {
	b := x.bits(s)
	for p := range 3 {
		w := p*x.words + int(t>>6)
		b[w] = b[w]&^(1<<(t&63)) | uint64(st)>>p&1<<(t&63)
	}
}

// alloc returns a set with no members and one use.
func (x *sets) alloc() setID {
	var id setID
	if n := len(x.free); n > 0 {
		id, x.free = x.free[n-1], x.free[:n-1]
		clear(x.bits(id))
	} else {
		id = x.next
		x.next++
		if int(id/setChunkLen) == len(x.chunks) {
			x.chunks = append(x.chunks, &setChunk{bits: make([]uint64, 3*x.words*setChunkLen)})
		}
	}
	x.rec(id).uses = 1
	return id
}

func (x *sets) enlist(s setID, sum uint64) {
	x.rec(s).sum = sum
	if _, taken := x.index[sum]; !taken {
		x.index[sum] = s
	}
}

func (x *sets) delist(s setID) {
	if sum := x.rec(s).sum; x.index[sum] == s {
		delete(x.index, sum)
	}
}

func (x *sets) release(s setID) {
	r := x.rec(s)
	if r.uses--; r.uses == 0 {
		x.delist(s)
		r.size = 0
		x.free = append(x.free, s)
	}
}

// each calls f for the members of a set in the order of their numbers.
func (x *sets) each(s setID, f func(target.ID)) {
	if s == 0 {
		return
	}
	if s&singleTag != 0 {
		f(target.ID(s & targetMask))
		return
	}
	for w, word := range x.bits(s)[:x.words] {
		for ; word != 0; word &= word - 1 {
			f(target.ID(w*64 + bits.TrailingZeros64(word)))
		}
	}
}
