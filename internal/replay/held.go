package replay

import (
	"math/bits"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/target"
)

// holdings is the mirrors of a recording: which target holds which block, and where. It is an index.View
// with none of package index's code in it, so that verifying a recording checks what the live index
// answered, too.
//
// A block has one bit for each target: held, and at best in CPU memory or on disk. The bits of all blocks
// lie in one slice, stride words a block.
type holdings struct {
	at      map[block.Hash]uint32 // cell number
	bits    []uint64
	free    []uint32
	words   int // for the targets known
	targets int
	alive   []uint64 // scratch of Match
}

// The words of a cell, for each of holdings.words.
const (
	heldBits = iota
	cpuBits
	diskBits
	cellKinds
)

func newHoldings() *holdings { return &holdings{at: map[block.Hash]uint32{}, words: 1} }

// widen makes room for a target.
func (v *holdings) widen(t target.ID) {
	if int(t) < v.targets {
		return
	}
	v.targets = int(t) + 1
	words := (v.targets + 63) / 64
	if words == v.words {
		return
	}
	cells := len(v.bits) / (v.words * cellKinds)
	wide := make([]uint64, cells*words*cellKinds)
	for i := range cells * cellKinds {
		copy(wide[i*words:], v.bits[i*v.words:(i+1)*v.words])
	}
	v.bits, v.words = wide, words
}

// cell returns the words of one kind of a cell.
func (v *holdings) cell(c uint32, kind int) []uint64 {
	start := (int(c)*cellKinds + kind) * v.words
	return v.bits[start : start+v.words]
}

// set notes that t holds h, nearest in tier.
func (v *holdings) set(t target.ID, h block.Hash, tier index.Tier) {
	c, ok := v.at[h]
	if !ok {
		if n := len(v.free); n > 0 {
			c, v.free = v.free[n-1], v.free[:n-1]
		} else {
			c = uint32(len(v.bits) / (v.words * cellKinds))
			v.bits = append(v.bits, make([]uint64, v.words*cellKinds)...)
		}
		v.at[h] = c
	}
	word, bit := t/64, uint64(1)<<(t%64)
	v.cell(c, heldBits)[word] |= bit
	v.cell(c, cpuBits)[word] &^= bit
	v.cell(c, diskBits)[word] &^= bit
	switch tier {
	case index.CPU:
		v.cell(c, cpuBits)[word] |= bit
	case index.Disk:
		v.cell(c, diskBits)[word] |= bit
	}
}

// drop notes that t does not hold h any more.
func (v *holdings) drop(t target.ID, h block.Hash) {
	c, ok := v.at[h]
	if !ok {
		return
	}
	left := uint64(0)
	for kind := range cellKinds {
		w := v.cell(c, kind)
		w[t/64] &^= 1 << (t % 64)
		for _, x := range w {
			left |= x
		}
	}
	if left == 0 {
		delete(v.at, h)
		v.free = append(v.free, c)
	}
}

// empty notes that t holds nothing. It looks at every block; the order in which it does never shows.
func (v *holdings) empty(t target.ID) {
	for h, c := range v.at {
		if v.cell(c, heldBits)[t/64]>>(t%64)&1 != 0 {
			v.drop(t, h)
		}
	}
}

// Match is index.View's.
func (v *holdings) Match(chain []block.Hash, dst *index.Matches) {
	dst.Hits = zeros(dst.Hits, v.targets)
	for tier := range dst.Lower {
		dst.Lower[tier] = zeros(dst.Lower[tier], v.targets)
	}
	v.alive = v.alive[:0]
	for range v.words {
		v.alive = append(v.alive, ^uint64(0))
	}
	for _, h := range chain {
		c, ok := v.at[h]
		if !ok {
			return
		}
		held, any := v.cell(c, heldBits), uint64(0)
		for i := range v.alive {
			v.alive[i] &= held[i]
			any |= v.alive[i]
		}
		if any == 0 {
			return
		}
		count(dst.Hits, v.alive, nil)
		count(dst.Lower[index.CPU], v.alive, v.cell(c, cpuBits))
		count(dst.Lower[index.Disk], v.alive, v.cell(c, diskBits))
	}
}

// count adds one for each target that is in all of the sets; nil is every target.
func count(to []uint32, alive, also []uint64) {
	for i, w := range alive {
		if also != nil {
			w &= also[i]
		}
		for ; w != 0; w &= w - 1 {
			to[i*64+bits.TrailingZeros64(w)]++
		}
	}
}

func zeros(s []uint32, n int) []uint32 {
	if cap(s) < n {
		return make([]uint32, n)
	}
	s = s[:n]
	clear(s)
	return s
}
