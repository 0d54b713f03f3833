package engine

import (
	"fmt"
	"math"
	"slices"

	"github.com/kvroute/kvroute/internal/trace"
)

// unlimited is the capacity of a pool without bound.
const unlimited int64 = math.MaxInt64 / 4

const (
	pageBits = 10
	pageSize = 1 << pageBits
)

// node is the state of one block in one pool. It is cached if pins or stamp is not zero.
type node struct {
	pins  uint32 // requests whose pinned path ends here, plus pinned children
	stamp uint32 // the release that made it evictable; 0 while pinned or absent
}

// segment is a run of evictable blocks, deepest first: those from node upwards that carry stamp.
type segment struct {
	stamp uint32
	node  trace.NodeID
}

// pool is the KV memory of one worker, counted in blocks.
//
// Blocks are cached (shared by every request whose path holds them) or private (prompt blocks not yet
// computed, prompt tails without an id, and answers). Released cached blocks stay and are evicted least
// recently released first, of one release the last block first, so that a parent outlives its children.
//
// Invariants (check verifies them):
//
//	P1  free + private + cached = capacity; none is negative.
//	P2  the parent of a cached block is cached; the parent of a pinned block is pinned.
//	P3  evictable counts the cached blocks without pins; each lies in exactly one segment.
//	P4  pins of a block = paths that end there + pinned children.
//
// pin, unpin and evict cost the number of blocks that change state. Memory: 8 bytes per block of a
// touched page of 1,024.
type pool struct {
	parent    []trace.NodeID
	pages     []*[pageSize]node
	capacity  int64
	free      int64
	private   int64
	cached    int64
	evictable int64
	seq       uint32
	segs      []segment
	head      int // first live segment
}

func newPool(f *trace.Forest, capacity int64) pool {
	if capacity == 0 {
		capacity = unlimited
	}
	p := pool{capacity: capacity, free: capacity}
	if f != nil {
		p.parent = f.Parent
		p.pages = make([]*[pageSize]node, (len(f.Parent)+pageSize-1)>>pageBits)
	}
	return p
}

// get returns the state of n, the zero state where nothing is known of it.
func (p *pool) get(n trace.NodeID) node {
	if page := p.pages[n>>pageBits]; page != nil {
		return page[n&(pageSize-1)]
	}
	return node{}
}

func (p *pool) at(n trace.NodeID) *node {
	page := p.pages[n>>pageBits]
	if page == nil {
		page = new([pageSize]node)
		p.pages[n>>pageBits] = page
	}
	return &page[n&(pageSize-1)]
}

// hit returns the deepest cached block on the path to leaf, NoNode if there is none, and how many
// blocks of the path lie below it.
func (p *pool) hit(leaf trace.NodeID) (n trace.NodeID, below int64) {
	for n = leaf; n != trace.NoNode; n = p.parent[n] {
		if p.get(n) != (node{}) {
			return n, below
		}
		below++
	}
	return n, below
}

// evictableOn counts the evictable blocks on the path to n, a cached block or NoNode.
func (p *pool) evictableOn(n trace.NodeID) int64 {
	var c int64
	for ; n != trace.NoNode && p.get(n).pins == 0; n = p.parent[n] {
		c++
	}
	return c
}

// available is how many blocks alloc could hand out now.
func (p *pool) available() int64 { return p.free + p.evictable }

// pin makes one request hold the path to leaf. Blocks that were not cached become so; they are
// appended to stored, root first. They are not taken from free: see publish.
func (p *pool) pin(leaf trace.NodeID, stored *[]trace.NodeID) {
	from := len(*stored)
	for n := leaf; n != trace.NoNode; n = p.parent[n] {
		s := p.at(n)
		s.pins++
		if s.pins > 1 {
			break
		}
		if s.stamp != 0 {
			s.stamp = 0
			p.evictable--
		} else {
			p.cached++
			*stored = append(*stored, n)
		}
	}
	slices.Reverse((*stored)[from:])
}

// unpin ends one request's hold on the path to leaf.
func (p *pool) unpin(leaf trace.NodeID) {
	if leaf == trace.NoNode {
		return
	}
	p.seq++
	if p.seq == 0 {
		panic("engine: more than 2^32 releases on one worker")
	}
	if p.at(leaf).pins == 1 {
		p.segs = append(p.segs, segment{p.seq, leaf})
	}
	for n := leaf; n != trace.NoNode; n = p.parent[n] {
		s := p.at(n)
		s.pins--
		if s.pins > 0 {
			break
		}
		s.stamp = p.seq
		p.evictable++
	}
}

// publish turns the count private blocks of a request between old (exclusive; its pinned end so far) and
// end into cached ones. Where another request was quicker, the spare copy is freed.
func (p *pool) publish(old, end trace.NodeID, count int64, stored *[]trace.NodeID) {
	before := p.cached
	p.pin(end, stored)
	if old != trace.NoNode {
		p.at(old).pins-- // a pinned child keeps it above zero
	}
	p.private -= count
	p.free += count - (p.cached - before)
}

// alloc takes n private blocks, evicting what it must; evicted blocks are appended in order. The caller
// has checked available.
func (p *pool) alloc(n int64, evicted *[]trace.NodeID) {
	for p.free < n {
		p.evictOne(evicted)
	}
	p.free -= n
	p.private += n
}

// drop gives n private blocks back.
func (p *pool) drop(n int64) {
	p.private -= n
	p.free += n
}

func (p *pool) evictOne(evicted *[]trace.NodeID) {
	for {
		seg := &p.segs[p.head]
		if seg.node != trace.NoNode {
			if s := p.at(seg.node); s.stamp == seg.stamp {
				s.stamp = 0
				p.cached--
				p.evictable--
				p.free++
				*evicted = append(*evicted, seg.node)
				seg.node = p.parent[seg.node]
				return
			}
		}
		p.head++
		if p.head >= 1024 && p.head*2 >= len(p.segs) {
			p.segs = p.segs[:copy(p.segs, p.segs[p.head:])]
			p.head = 0
		}
	}
}

// check verifies the invariants, given the ends of the paths that requests hold now.
func (p *pool) check(held []trace.NodeID) error {
	if p.free < 0 || p.private < 0 || p.cached < 0 || p.free+p.private+p.cached != p.capacity {
		return fmt.Errorf("pool: free %d + private %d + cached %d is not the capacity %d", p.free, p.private, p.cached, p.capacity)
	}
	want := make(map[trace.NodeID]uint32)
	for _, n := range held {
		for ; n != trace.NoNode; n = p.parent[n] {
			want[n]++
			if want[n] > 1 {
				break
			}
		}
	}
	inSegment := make(map[trace.NodeID]bool)
	for _, seg := range p.segs[p.head:] {
		for n := seg.node; n != trace.NoNode && p.get(n).stamp == seg.stamp; n = p.parent[n] {
			if inSegment[n] {
				return fmt.Errorf("pool: block %d lies in two segments", n)
			}
			inSegment[n] = true
		}
	}
	var cached, evictable int64
	for i := range p.parent {
		n := trace.NodeID(i)
		s := p.get(n)
		if s == (node{}) {
			continue
		}
		cached++
		if s.pins != want[n] {
			return fmt.Errorf("pool: block %d has %d pins, want %d", n, s.pins, want[n])
		}
		if s.pins == 0 {
			evictable++
			if !inSegment[n] {
				return fmt.Errorf("pool: evictable block %d lies in no segment", n)
			}
		} else if s.stamp != 0 {
			return fmt.Errorf("pool: pinned block %d has stamp %d", n, s.stamp)
		}
		if up := p.parent[n]; up != trace.NoNode && p.get(up) == (node{}) {
			return fmt.Errorf("pool: block %d is cached without its parent %d", n, up)
		}
	}
	if cached != p.cached || evictable != p.evictable {
		return fmt.Errorf("pool: counted %d cached and %d evictable blocks, want %d and %d", cached, evictable, p.cached, p.evictable)
	}
	return nil
}
