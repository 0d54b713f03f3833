package sim

import (
	"fmt"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/trace"
)

// mirror is what the routers know of the caches: every change of a worker's cache, delay after it
// happened. All routers hear the same events at the same time and none of them writes to its mirror, so
// that their mirrors are equal; one stands for all.
type mirror struct {
	view  view
	delay int64 // ticks
	dead  []bool
	queue []change // in order of time
	head  int
	nodes []trace.NodeID // of queued changes
	err   error          // the first change that contradicts what was known
}

// view is the mirror's content: what the scorer reads, and the changes that reach it.
type view interface {
	index.View
	// look names the path that the next lookups are for.
	look(leaf trace.NodeID)
	// store adds a chain of blocks, root first; remove takes blocks away, children first.
	store(worker int, nodes []trace.NodeID) error
	remove(worker int, nodes []trace.NodeID) error
	forget(worker int)
	blocks(worker int) int64
}

// change is one queued event: nodes[from:to] entered or left a worker's cache.
type change struct {
	due      int64
	worker   int32
	removed  bool
	from, to int
}

func newMirror(v view, workers int, delay int64) *mirror {
	return &mirror{view: v, delay: delay, dead: make([]bool, workers)}
}

// note takes a change of a worker's cache at time now.
func (m *mirror) note(now int64, worker int, removed bool, nodes []trace.NodeID) {
	if len(nodes) == 0 {
		return
	}
	if m.delay == 0 {
		m.apply(worker, removed, nodes)
		return
	}
	from := len(m.nodes)
	m.nodes = append(m.nodes, nodes...)
	m.queue = append(m.queue, change{later(now, m.delay), int32(worker), removed, from, len(m.nodes)})
}

// hear applies what the routers know by time now.
func (m *mirror) hear(now int64) {
	for m.head < len(m.queue) && m.queue[m.head].due <= now {
		c := &m.queue[m.head]
		m.head++
		m.apply(int(c.worker), c.removed, m.nodes[c.from:c.to])
	}
	if m.head == len(m.queue) {
		m.queue, m.nodes, m.head = m.queue[:0], m.nodes[:0], 0
	} else if m.head > 4096 && m.head*2 > len(m.queue) {
		m.compact()
	}
}

// compact drops the applied part of the queue.
func (m *mirror) compact() {
	base := m.queue[m.head].from
	m.nodes = m.nodes[:copy(m.nodes, m.nodes[base:])]
	m.queue = m.queue[:copy(m.queue, m.queue[m.head:])]
	m.head = 0
	for i := range m.queue {
		m.queue[i].from -= base
		m.queue[i].to -= base
	}
}

func (m *mirror) apply(worker int, removed bool, nodes []trace.NodeID) {
	if m.dead[worker] {
		return
	}
	change := m.view.store
	if removed {
		change = m.view.remove
	}
	if err := change(worker, nodes); err != nil && m.err == nil {
		m.err = fmt.Errorf("mirroring worker %d: %w", worker, err)
	}
}

// forget drops a worker that is gone, with what is still on its way from it.
func (m *mirror) forget(worker int) {
	m.dead[worker] = true
	m.view.forget(worker)
}

// forestView is an index over the blocks of one forest. Live traffic brings blocks that nobody has seen
// before and needs index.Index to find them by their hashes; in a simulation all blocks are known and
// numbered, so that a bit for each block and worker says the same, several times faster. A test holds it
// to index.Index, decision by decision.
//
// Changes come in the order in which they happened in a cache that is closed under prefixes; hence what is
// held of a path is a leading part of it, which halving finds.
//
// Size: a bit for each block of a page in use (4,096 blocks), for each worker.
type forestView struct {
	f     *trace.Forest
	held  [][]*bitPage // by worker
	count []int64
	leaf  trace.NodeID
}

const (
	bitPageBits = 12
	bitPageMask = 1<<bitPageBits - 1
)

type bitPage [1 << bitPageBits / 64]uint64

func newForestView(f *trace.Forest, workers int) *forestView {
	v := &forestView{f: f, held: make([][]*bitPage, workers), count: make([]int64, workers), leaf: trace.NoNode}
	for w := range v.held {
		v.held[w] = make([]*bitPage, (f.Len()+bitPageMask)>>bitPageBits)
	}
	return v
}

func (v *forestView) look(leaf trace.NodeID) { v.leaf = leaf }

// Match answers for the path given to look, which chain must be the hashes of.
func (v *forestView) Match(chain []block.Hash, dst *index.Matches) {
	if v.leaf == trace.NoNode || len(chain) != int(v.f.Depth[v.leaf]) || chain[len(chain)-1] != v.f.Hash[v.leaf] {
		panic("sim: lookup of another path than was announced")
	}
	if cap(dst.Hits) < len(v.held) {
		dst.Hits = make([]uint32, len(v.held))
	}
	dst.Hits = dst.Hits[:len(v.held)]
	for w := range v.held {
		dst.Hits[w] = v.hits(v.held[w])
	}
}

// hits returns how many leading blocks of the path are held.
func (v *forestView) hits(pages []*bitPage) uint32 {
	for node := v.leaf; node != trace.NoNode; {
		if has(pages, node) {
			return v.f.Depth[node]
		}
		first := v.f.RunOf(node)
		if !has(pages, first) {
			node = v.f.Parent[first]
			continue
		}
		lo, hi := first, node // lo is held, hi is not
		for hi-lo > 1 {
			if mid := lo + (hi-lo)/2; has(pages, mid) {
				lo = mid
			} else {
				hi = mid
			}
		}
		return v.f.Depth[lo]
	}
	return 0
}

func has(pages []*bitPage, n trace.NodeID) bool {
	p := pages[n>>bitPageBits]
	return p != nil && p[n&bitPageMask/64]>>(n%64)&1 != 0
}

func (v *forestView) store(worker int, nodes []trace.NodeID) error {
	pages := v.held[worker]
	for _, n := range nodes {
		p := pages[n>>bitPageBits]
		if p == nil {
			p = new(bitPage)
			pages[n>>bitPageBits] = p
		}
		word, bit := &p[n&bitPageMask/64], uint64(1)<<(n%64)
		if *word&bit != 0 {
			return fmt.Errorf("block %d was stored twice", n)
		}
		*word |= bit
	}
	v.count[worker] += int64(len(nodes))
	return nil
}

func (v *forestView) remove(worker int, nodes []trace.NodeID) error {
	pages := v.held[worker]
	for _, n := range nodes {
		if !has(pages, n) {
			return fmt.Errorf("block %d was removed and is not held", n)
		}
		pages[n>>bitPageBits][n&bitPageMask/64] &^= uint64(1) << (n % 64)
	}
	v.count[worker] -= int64(len(nodes))
	return nil
}

func (v *forestView) forget(worker int) {
	clear(v.held[worker])
	v.count[worker] = 0
}

func (v *forestView) blocks(worker int) int64 { return v.count[worker] }
