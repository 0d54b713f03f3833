// Package prefixcache holds the prefix cache of one worker over the blocks of a trace: which blocks
// it keeps, which it drops, and how long the leading run of a prompt is.
//
// It is pure: no clock, no I/O. A cache is owned by one goroutine.
package prefixcache

import (
	"fmt"
	"math"

	"github.com/kvroute/kvroute/internal/trace"
)

// LRU keeps the C most recently touched distinct blocks. A request touches its blocks last block
// first, so that its first block ends up most recent; hence a parent outlives its children, what is
// held is closed under prefixes, and the least recent block is always a leaf. A request of more than
// C blocks leaves its first C.
//
// A touch needs work only for blocks that are new: the recency of a block is the number of the last
// request through it, which is kept at the request's deepest block only. When a leaf goes, it hands its
// recency to its parent, if that is not more recent already. owner[s] is the block that carries request
// s; each request has at most one. The next victim is the owner of the least s that has no children in
// the cache, and a cursor over s that only moves forward finds it.
//
// Invariants (Check):
//
//	P1  the parent of a block held is held.
//	P2  kids counts the children held; size counts the blocks held; size <= capacity.
//	P3  for each block without children owner[last] is the block, and last >= cursor.
//
// Size: 8 bytes for each block of a page in use (pages of 1,024 blocks of the forest), 4 for each
// request since the oldest still carried.
type LRU struct {
	f        *trace.Forest
	capacity int
	size     int
	pages    [][]cell
	owner    []trace.NodeID // owner[i] carries request base+i
	base     uint32
	cursor   uint32
	seq      uint32 // number of the last request
}

// cell is what the cache knows of a block.
type cell struct {
	last uint32 // request the block carries, as far as known at it; 0: not held
	kids uint32 // children held
}

const (
	pageBits = 10
	pageSize = 1 << pageBits
)

// NewLRU returns an empty cache of capacity blocks over the blocks of f; capacity 0 is unlimited.
func NewLRU(f *trace.Forest, capacity int) *LRU {
	if capacity <= 0 {
		capacity = math.MaxInt
	}
	return &LRU{f: f, capacity: capacity, pages: make([][]cell, (f.Len()+pageSize-1)/pageSize), base: 1, cursor: 1}
}

// Len returns the number of blocks held.
func (c *LRU) Len() int { return c.size }

// Has tells whether node is held.
func (c *LRU) Has(node trace.NodeID) bool {
	p := c.pages[node>>pageBits]
	return p != nil && p[node&(pageSize-1)].last != 0
}

// page returns the page of node.
func (c *LRU) page(node trace.NodeID) []cell {
	p := c.pages[node>>pageBits]
	if p == nil {
		p = make([]cell, pageSize)
		c.pages[node>>pageBits] = p
	}
	return p
}

// cell returns the cell of node.
func (c *LRU) cell(node trace.NodeID) *cell {
	return &c.page(node)[node&(pageSize-1)]
}

// deepest returns the deepest block held on the path to node, trace.NoNode if there is none. The path
// is a chain of runs of consecutive nodes; the one that is held in part is searched by halving.
func (c *LRU) deepest(node trace.NodeID) trace.NodeID {
	for node != trace.NoNode {
		if c.Has(node) {
			return node
		}
		first := c.f.RunOf(node)
		if !c.Has(first) {
			node = c.f.Parent[first]
			continue
		}
		lo, hi := first, node // lo is held, hi is not
		for hi-lo > 1 {
			if mid := lo + (hi-lo)/2; c.Has(mid) {
				lo = mid
			} else {
				hi = mid
			}
		}
		return lo
	}
	return trace.NoNode
}

// Hits returns how many leading blocks of the path to leaf are held.
func (c *LRU) Hits(leaf trace.NodeID) int {
	if n := c.deepest(leaf); n != trace.NoNode {
		return int(c.f.Depth[n])
	}
	return 0
}

// Touch puts the path to leaf in the cache. Blocks that are held now and were not before are appended to
// stored, root first; blocks dropped are appended to evicted, in order. Either may be nil.
func (c *LRU) Touch(leaf trace.NodeID, stored, evicted *[]trace.NodeID) {
	if leaf == trace.NoNode {
		return
	}
	if int(c.f.Depth[leaf]) > c.capacity {
		leaf = c.f.Ancestor(leaf, c.capacity)
	}
	if c.seq == math.MaxUint32 {
		c.renumber()
	}
	c.seq++
	c.store(leaf, stored)
	c.cell(leaf).last = c.seq
	if c.capacity == math.MaxInt {
		return // nothing is ever dropped: no need to know what is old
	}
	c.owner = append(c.owner, leaf)
	c.evict(evicted)
	if done := int(c.cursor - c.base); done > 1024 && done > len(c.owner)/2 {
		c.owner = c.owner[:copy(c.owner, c.owner[done:])]
		c.base = c.cursor
	}
}

// store adds the blocks of the path to leaf that are not held.
func (c *LRU) store(leaf trace.NodeID, stored *[]trace.NodeID) {
	top := c.deepest(leaf)
	if top == leaf {
		return
	}
	from := 0
	if stored != nil {
		from = len(*stored)
	}
	for n := leaf; n != top; {
		// A run of consecutive blocks is the usual case: one look at each page.
		first := max(c.f.RunOf(n), n&^(pageSize-1))
		if top != trace.NoNode && top >= first && top < n {
			first = top + 1 // top is in this run, as its own child is
		}
		page := c.page(n)
		for i := int(n & (pageSize - 1)); i >= int(first&(pageSize-1)); i-- {
			page[i] = cell{last: c.seq, kids: 1}
		}
		c.size += int(n-first) + 1
		if stored != nil {
			for m := n; ; m-- {
				*stored = append(*stored, m)
				if m == first {
					break
				}
			}
		}
		n = c.f.Parent[first]
	}
	c.cell(leaf).kids = 0
	if top != trace.NoNode {
		c.cell(top).kids++
	}
	if stored != nil {
		for i, j := from, len(*stored)-1; i < j; i, j = i+1, j-1 {
			(*stored)[i], (*stored)[j] = (*stored)[j], (*stored)[i]
		}
	}
}

// evict drops the least recent blocks until no more than capacity are left.
func (c *LRU) evict(evicted *[]trace.NodeID) {
	for ; c.size > c.capacity; c.cursor++ {
		n := c.owner[c.cursor-c.base]
		if n == trace.NoNode {
			continue
		}
		if e := c.cell(n); e.last != c.cursor || e.kids > 0 {
			continue // carried by a later request by now
		}
		if n = c.evictFrom(n, evicted); n == trace.NoNode {
			c.owner[c.cursor-c.base] = n
			continue
		}
		c.owner[c.cursor-c.base] = n
		if c.size <= c.capacity {
			return // the request may have more to give: the cursor stays
		}
	}
}

// evictFrom drops the leaf n, then its parent if that carries the same request and became a leaf, and so
// on. It returns the block that carries the request now, trace.NoNode if it is done with.
func (c *LRU) evictFrom(n trace.NodeID, evicted *[]trace.NodeID) trace.NodeID {
	e := c.cell(n)
	for {
		e.last = 0
		c.size--
		if evicted != nil {
			*evicted = append(*evicted, n)
		}
		if n = c.f.Parent[n]; n == trace.NoNode {
			return n
		}
		e = c.cell(n)
		e.kids--
		if e.last > c.cursor {
			return trace.NoNode // a later request went through it
		}
		e.last = c.cursor
		if e.kids > 0 || c.size <= c.capacity {
			return n
		}
	}
}

// renumber moves the requests still carried back to the start of the numbers.
func (c *LRU) renumber() {
	delta := c.cursor - 1
	if c.capacity == math.MaxInt {
		delta = c.seq - 1
	}
	for _, p := range c.pages {
		for i := range p {
			if last := p[i].last; last > delta {
				p[i].last = last - delta
			} else if last != 0 {
				p[i].last = 1 // inner blocks whose recency is kept further down
			}
		}
	}
	if c.capacity != math.MaxInt {
		c.owner = c.owner[:copy(c.owner, c.owner[c.cursor-c.base:])]
		c.base, c.cursor = 1, 1
	}
	c.seq -= delta
}

// Check verifies the invariants.
func (c *LRU) Check() error {
	size := 0
	kids := make(map[trace.NodeID]uint32)
	for n := range trace.NodeID(c.f.Len()) {
		if !c.Has(n) {
			continue
		}
		size++
		p := c.f.Parent[n]
		if p == trace.NoNode {
			continue
		}
		if !c.Has(p) {
			return fmt.Errorf("prefixcache P1: block %d is held, its parent %d is not", n, p)
		}
		kids[p]++
	}
	if size != c.size || size > c.capacity {
		return fmt.Errorf("prefixcache P2: %d blocks held, size says %d, capacity %d", size, c.size, c.capacity)
	}
	for n := range trace.NodeID(c.f.Len()) {
		p := c.pages[n>>pageBits]
		if p == nil {
			continue
		}
		e := p[n&(pageSize-1)]
		if e.kids != kids[n] {
			return fmt.Errorf("prefixcache P2: block %d has %d children held, kids says %d", n, kids[n], e.kids)
		}
		if e.last == 0 || e.kids > 0 || c.capacity == math.MaxInt {
			continue
		}
		if e.last < c.cursor || e.last > c.seq || c.owner[e.last-c.base] != n {
			return fmt.Errorf("prefixcache P3: leaf %d carries request %d (cursor %d, last %d), whose owner is another block", n, e.last, c.cursor, c.seq)
		}
	}
	return nil
}
