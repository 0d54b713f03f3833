package load

import (
	"fmt"

	"github.com/kvroute/kvroute/internal/block"
)

// none marks the absence of a node: the parent of a first block, the leaf of a request without blocks.
const none = ^uint32(0)

// node is one active block. refs counts the requests that end here plus the active children, so a
// node lives exactly as long as some request holds it or a block after it. 24 bytes.
type node struct {
	hash   block.Hash
	parent uint32 // none for first blocks; the next free node while on the free list
	refs   uint32 // 0: on the free list
	depth  uint32 // position in the chain it was added with, from 1
}

// activeSet is the set of distinct blocks that the held requests of one target touch.
//
// A block hash stands for its block and everything before it, so the set is closed under prefixes:
// a chain is added from its last block backwards and the walk stops at the first block already
// there. Adding and removing therefore cost what becomes active or stops being so, not the length
// of the prompt, and a request is remembered by its last node alone.
//
// Invariants:
//
//	A1  a live node's refs = requests ending at it + live nodes whose parent it is, and is never 0.
//	A2  the parent of a live node is live and one block less deep (hence no cycles, even if hashes
//	    that are no chains are booked: their counts may be off, but every remove still undoes its add).
//	A3  slots holds each live node once, reachable by linear probing from its home without a gap.
//	A4  live = nodes that are not on the free list = distinct active blocks.
//
// Nothing is allocated while the number of live nodes stays at or below its former maximum.
type activeSet struct {
	nodes []node
	free  uint32 // head of the free list
	slots []slot // length a power of two, at most half full
	shift uint   // 32 - log2(len(slots))
	live  int
	sum   uint32 // of what ahead loaded, or the compiler would leave the loads out
}

// batch is how many slots are loaded ahead of their use, so that they come at the same time. Far fewer would
// fit no gap, far more not the nearest cache.
const batch = 16

// slot holds the mark of a node's hash beside it, so that passing over a slot does not touch the node: nodes
// of neighbouring slots lie anywhere in memory. The top bits of the mark are the home.
type slot struct {
	mark uint32
	n    uint32 // node + 1, 0 = empty
}

const minSlots = 16

func newActiveSet() activeSet {
	a := activeSet{free: none}
	a.resize(minSlots)
	return a
}

// mark is Fibonacci hashing: block hashes are uniform already, but small test ids are not.
func mark(h block.Hash) uint32 { return uint32((uint64(h) * 0x9e3779b97f4a7c15) >> 32) }

func (a *activeSet) resize(n int) {
	a.slots = make([]slot, n)
	a.shift = 32
	for m := n; m > 1; m >>= 1 {
		a.shift--
	}
	for i := range a.nodes {
		if a.nodes[i].refs > 0 {
			a.place(uint32(i))
		}
	}
}

func (a *activeSet) place(n uint32) {
	mask, m := uint32(len(a.slots)-1), mark(a.nodes[n].hash)
	i := m >> a.shift
	for a.slots[i].n != 0 {
		i = (i + 1) & mask
	}
	a.slots[i] = slot{m, n + 1}
}

// find returns the slot of h and its node, or (first empty slot, none).
func (a *activeSet) find(h block.Hash) (at, n uint32) {
	mask, m := uint32(len(a.slots)-1), mark(h)
	i := m >> a.shift
	for {
		s := a.slots[i]
		if s.n == 0 {
			return i, none
		}
		if s.mark == m && a.nodes[s.n-1].hash == h {
			return i, s.n - 1
		}
		i = (i + 1) & mask
	}
}

// slotOf returns the slot of a live node.
func (a *activeSet) slotOf(n uint32) uint32 {
	mask := uint32(len(a.slots) - 1)
	i := mark(a.nodes[n].hash) >> a.shift
	for a.slots[i].n != n+1 {
		i = (i + 1) & mask
	}
	return i
}

// add books one request and returns its last node (none where it has no blocks).
func (a *activeSet) add(chain []block.Hash) (leaf uint32) {
	leaf = none
	child := none
	for i, todo := len(chain)-1, 1; i >= 0; i-- {
		if todo--; todo < 0 { // the last block is new, so those before it may be
			todo = batch - 1
			for _, h := range chain[max(i+1-batch, 0) : i+1] {
				a.sum += a.slots[mark(h)>>a.shift].n
			}
		}
		at, n := a.find(chain[i])
		if n == none {
			n = a.insert(chain[i], at)
			a.nodes[n].depth = uint32(i + 1)
		} else if child != none && int(a.nodes[n].depth) != i+1 {
			return leaf // no chain: a hash at two depths
		}
		if child == none {
			leaf = n
		} else {
			a.nodes[child].parent = n
		}
		a.nodes[n].refs++
		if a.nodes[n].refs > 1 {
			return leaf // this block, hence everything before it, was active already
		}
		child = n
	}
	return leaf
}

// insert makes a node without references and puts it into the given empty slot.
func (a *activeSet) insert(h block.Hash, at uint32) uint32 {
	n := a.free
	if n != none {
		a.free = a.nodes[n].parent
		a.nodes[n] = node{hash: h, parent: none}
	} else {
		n = uint32(len(a.nodes))
		a.nodes = append(a.nodes, node{hash: h, parent: none})
	}
	a.live++
	a.slots[at] = slot{mark(h), n + 1}
	if a.live*2 > len(a.slots) {
		// The fresh node has no references yet and would be taken for a free one.
		a.nodes[n].refs = 1
		a.resize(len(a.slots) * 2)
		a.nodes[n].refs = 0
	}
	return n
}

// remove undoes one add that returned leaf.
func (a *activeSet) remove(leaf uint32) {
	for n, todo := leaf, 1; n != none; {
		if todo--; todo < 0 {
			todo = batch - 1
			for k, m := 0, n; k < batch && m != none; k++ {
				nd := &a.nodes[m]
				a.sum += a.slots[mark(nd.hash)>>a.shift].n
				m = nd.parent
			}
		}
		nd := &a.nodes[n]
		nd.refs--
		if nd.refs > 0 {
			return
		}
		a.unplace(a.slotOf(n))
		parent := nd.parent
		nd.parent = a.free
		a.free = n
		a.live--
		n = parent
	}
}

// unplace empties a slot and moves later entries of the run back, so that no tombstones pile up.
func (a *activeSet) unplace(at uint32) {
	mask := uint32(len(a.slots) - 1)
	for i := at; ; {
		i = (i + 1) & mask
		s := a.slots[i]
		if s.n == 0 {
			break
		}
		home := s.mark >> a.shift
		if (i-home)&mask >= (i-at)&mask { // its home is at or before the gap
			a.slots[at] = s
			at = i
		}
	}
	a.slots[at] = slot{}
}

func (a *activeSet) clear() {
	a.nodes = a.nodes[:0]
	a.free = none
	a.live = 0
	clear(a.slots)
}

// check recounts A1 to A4; ends holds how many requests end at each node.
func (a *activeSet) check(ends map[uint32]uint32) error {
	want := make([]uint32, len(a.nodes))
	live := 0
	for i, nd := range a.nodes {
		if nd.refs == 0 {
			continue
		}
		live++
		if nd.parent == none {
			continue
		}
		if int(nd.parent) >= len(a.nodes) || a.nodes[nd.parent].refs == 0 || a.nodes[nd.parent].depth+1 != nd.depth {
			return fmt.Errorf("A2: block %016x has a parent that is not active one block before it", uint64(a.nodes[i].hash))
		}
		want[nd.parent]++
	}
	for n, c := range ends {
		if int(n) >= len(a.nodes) {
			return fmt.Errorf("A1: a request ends at node %d of %d", n, len(a.nodes))
		}
		want[n] += c
	}
	for i, nd := range a.nodes {
		if nd.refs != want[i] {
			return fmt.Errorf("A1: block %016x has %d references, counted %d", uint64(nd.hash), nd.refs, want[i])
		}
		if nd.refs == 0 {
			continue
		}
		if _, n := a.find(nd.hash); n != uint32(i) {
			return fmt.Errorf("A3: block %016x is not found by its hash", uint64(nd.hash))
		}
	}
	used := 0
	for _, s := range a.slots {
		if s.n != 0 {
			used++
		}
	}
	freed := 0
	for n := a.free; n != none && freed <= len(a.nodes); n = a.nodes[n].parent {
		freed++
	}
	if used != live || a.live != live || freed != len(a.nodes)-live {
		return fmt.Errorf("A4: %d live blocks, %d counted, %d in slots, %d of %d nodes free", live, a.live, used, freed, len(a.nodes))
	}
	return nil
}
