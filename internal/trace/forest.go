package trace

import (
	"fmt"
	"slices"

	"github.com/kvroute/kvroute/internal/block"
)

// Len returns the number of blocks.
func (f *Forest) Len() int { return len(f.Hash) }

// BlocksOf returns the number of blocks of r.
func (w *Workload) BlocksOf(r *Request) int {
	if r.Leaf == NoNode {
		return 0
	}
	return int(w.Forest.Depth[r.Leaf])
}

// Path appends the hashes of the blocks from the root to leaf to dst and returns it.
func (w *Workload) Path(leaf NodeID, dst []block.Hash) []block.Hash {
	return w.Forest.Path(leaf, dst)
}

// PathTokens appends, for each block from the root to leaf, the tokens up to and including it to dst and
// returns it. It is for forests that have CumTokens.
func (f *Forest) PathTokens(leaf NodeID, dst []uint32) []uint32 {
	if leaf == NoNode {
		return dst
	}
	i := len(dst) + int(f.Depth[leaf])
	dst = slices.Grow(dst, int(f.Depth[leaf]))[:i]
	for ; leaf != NoNode; leaf = f.Parent[leaf] {
		i--
		dst[i] = f.CumTokens[leaf]
	}
	return dst
}

// Path appends the hashes of the blocks from the root to leaf to dst and returns it.
func (f *Forest) Path(leaf NodeID, dst []block.Hash) []block.Hash {
	if leaf == NoNode {
		return dst
	}
	n := len(dst)
	depth := int(f.Depth[leaf])
	dst = slices.Grow(dst, depth)[:n+depth]
	for i := n + depth; i > n; {
		first := f.runOf(leaf)
		k := int(leaf-first) + 1
		i -= k
		copy(dst[i:], f.Hash[first:leaf+1])
		leaf = f.Parent[first]
	}
	return dst
}

// runOf returns the first node of a sequence first, first+1, … node in which each is the parent of
// the next: the longest one where that is known, the node itself otherwise.
func (f *Forest) runOf(node NodeID) NodeID {
	if f.run == nil {
		return node
	}
	return f.run[node]
}

// RunOf returns the first node of a sequence first, first+1, … node in which each is the parent of the
// next. A set of nodes that holds the parent of each of its members holds a leading part of it.
func (f *Forest) RunOf(node NodeID) NodeID { return f.runOf(node) }

// Ancestor returns the block of the path to node at depth (1: the first block), NoNode for depth 0.
func (f *Forest) Ancestor(node NodeID, depth int) NodeID {
	if depth <= 0 {
		return NoNode
	}
	for {
		first := f.runOf(node)
		if d := int(f.Depth[first]); depth >= d {
			return first + NodeID(depth-d)
		}
		node = f.Parent[first]
	}
}

// PrefixTokens returns the tokens of the first k blocks of r, never more than its input: the sum of
// their own sizes where the format knows them, k blocks of one size otherwise.
func (w *Workload) PrefixTokens(r *Request, k int) int64 {
	if k <= 0 || r.Leaf == NoNode {
		return 0
	}
	var t int64
	switch f := w.Forest; {
	case r.Even != 0:
		t = int64(k) * int64(r.Even)
	case f.CumTokens != nil:
		t = int64(f.CumTokens[f.Ancestor(r.Leaf, min(k, int(f.Depth[r.Leaf])))])
	default:
		t = int64(k) * int64(w.BlockSize)
	}
	return min(t, r.Input)
}

// forestBuilder collects distinct blocks. Looking up a block costs a comparison with the same place
// of the record before, where prompts of a session mostly agree, else a probe of a hash table with
// open addressing (load ≤ 1/2).
type forestBuilder struct {
	f     *Forest
	size  int
	even  bool     // some prompts are known by an even split only
	slots []uint32 // node + 1; 0: empty
	shift uint
	hash  []block.Hash // path of the record before
	nodes []NodeID
}

func newForestBuilder() *forestBuilder {
	return &forestBuilder{f: &Forest{}, slots: make([]uint32, 1<<10), shift: 64 - 10}
}

// add puts the blocks of rec in and returns the deepest one.
func (b *forestBuilder) add(rec *Record) (NodeID, error) {
	// A forest has sizes of all blocks or of none, and an even split says nothing about a block's.
	switch {
	case rec.Even && b.f.CumTokens != nil:
		return NoNode, fmt.Errorf("the blocks of this prompt have no sizes of their own, unlike those before")
	case rec.BlockTokens != nil && b.even:
		return NoNode, fmt.Errorf("the blocks of this prompt have sizes of their own, unlike those before")
	}
	b.even = b.even || rec.Even
	k := 0
	if b.f.CumTokens == nil && rec.BlockTokens == nil {
		for n := min(len(b.hash), len(rec.Blocks)); k < n && b.hash[k] == rec.Blocks[k]; {
			k++
		}
	} else if b.f.CumTokens == nil {
		b.f.CumTokens = make([]uint32, len(b.f.Hash))
		for i, d := range b.f.Depth {
			b.f.CumTokens[i] = d * uint32(b.size)
		}
	}
	b.size = rec.BlockSize
	b.hash = append(b.hash[:k], rec.Blocks[k:]...)
	b.nodes = b.nodes[:k]
	cur, cum := NoNode, uint64(0)
	if k > 0 {
		cur = b.nodes[k-1]
	}
	for i := k; i < len(rec.Blocks); i++ {
		if rec.BlockTokens != nil {
			cum += uint64(rec.BlockTokens[i])
		} else {
			cum = uint64(i+1) * uint64(rec.BlockSize)
		}
		if cum > 1<<32-1 {
			return NoNode, fmt.Errorf("the blocks hold more than 2^32 tokens")
		}
		n, err := b.node(cur, rec.Blocks[i], uint32(i+1), uint32(cum))
		if err != nil {
			return NoNode, err
		}
		b.nodes = append(b.nodes, n)
		cur = n
	}
	return cur, nil
}

// node returns the block with hash h after parent, made if it is new.
func (b *forestBuilder) node(parent NodeID, h block.Hash, depth, cum uint32) (NodeID, error) {
	f := b.f
	if next := parent + 1; parent != NoNode && int(next) < len(f.Hash) && f.Hash[next] == h && f.Parent[next] == parent && f.CumTokens == nil {
		return next, nil // what followed the parent when it was new
	}
	mask := uint64(len(b.slots) - 1)
	i := b.place(h)
	for ; b.slots[i] != 0; i = (i + 1) & mask {
		n := NodeID(b.slots[i] - 1)
		if f.Hash[n] != h {
			continue
		}
		if f.Parent[n] != parent {
			return 0, fmt.Errorf("blocks contradict each other: block %d of the prompt (hash %016x) follows another block than before", depth, uint64(h))
		}
		if f.CumTokens != nil && f.CumTokens[n] != cum {
			return 0, fmt.Errorf("blocks contradict each other: the prompt up to block %d holds %d tokens here and %d before", depth, cum, f.CumTokens[n])
		}
		return n, nil
	}
	if len(f.Hash) >= int(NoNode)-1 {
		return 0, fmt.Errorf("more than 2^32 distinct blocks")
	}
	n := NodeID(len(f.Hash))
	b.slots[i] = uint32(n) + 1
	f.Hash = append(f.Hash, h)
	f.Parent = append(f.Parent, parent)
	f.Depth = append(f.Depth, depth)
	if f.CumTokens != nil {
		f.CumTokens = append(f.CumTokens, cum)
	}
	if 2*len(f.Hash) > len(b.slots) {
		b.rehash()
	}
	return n, nil
}

// place returns the first slot to look at for h. Hashes from files may be of any quality.
func (b *forestBuilder) place(h block.Hash) uint64 {
	return uint64(h) * 0x9e3779b97f4a7c15 >> b.shift
}

func (b *forestBuilder) rehash() {
	b.slots = make([]uint32, 2*len(b.slots))
	b.shift--
	mask := uint64(len(b.slots) - 1)
	for n, h := range b.f.Hash {
		i := b.place(h)
		for b.slots[i] != 0 {
			i = (i + 1) & mask
		}
		b.slots[i] = uint32(n) + 1
	}
}

// finish returns the forest; the builder is done.
func (b *forestBuilder) finish() *Forest {
	f := b.f
	b.slots, b.hash, b.nodes = nil, nil, nil
	f.Hash, f.Parent, f.Depth = slices.Clip(f.Hash), slices.Clip(f.Parent), slices.Clip(f.Depth)
	f.Index()
	return f
}

// Index prepares a forest made by hand for fast walks; Load has done it for its own.
func (f *Forest) Index() {
	f.run = make([]NodeID, len(f.Parent))
	for i, p := range f.Parent {
		if i > 0 && p == NodeID(i-1) {
			f.run[i] = f.run[i-1]
		} else {
			f.run[i] = NodeID(i)
		}
	}
}

// Check verifies the invariants of the forest: parents come before their children, depths count from
// 1, tokens never fall along a path.
func (f *Forest) Check() error {
	if len(f.Parent) != len(f.Hash) || len(f.Depth) != len(f.Hash) {
		return fmt.Errorf("forest: lists of %d, %d and %d blocks", len(f.Hash), len(f.Parent), len(f.Depth))
	}
	for n, p := range f.Parent {
		switch {
		case p == NoNode && f.Depth[n] != 1:
			return fmt.Errorf("forest: first block %d has depth %d", n, f.Depth[n])
		case p == NoNode:
		case int(p) >= n:
			return fmt.Errorf("forest: block %d comes before its parent %d", n, p)
		case f.Depth[n] != f.Depth[p]+1:
			return fmt.Errorf("forest: block %d has depth %d, its parent %d", n, f.Depth[n], f.Depth[p])
		case f.CumTokens != nil && f.CumTokens[n] < f.CumTokens[p]:
			return fmt.Errorf("forest: block %d ends at token %d, its parent at %d", n, f.CumTokens[n], f.CumTokens[p])
		}
	}
	return nil
}
