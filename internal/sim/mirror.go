package sim

import (
	"fmt"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/trace"
)

// mirror is what the routers know of the caches: one index fed by every worker's changes, each applied
// delay after it happened. All routers hear the same events at the same time and none of them writes to
// its index, so that their mirrors are equal; one stands for all.
type mirror struct {
	idx     *index.Index
	forest  *trace.Forest
	delay   int64 // ticks
	dead    []bool
	queue   []change // in order of time
	head    int
	nodes   []trace.NodeID // of queued changes
	handles []index.Handle
	hashes  []block.Hash
	err     error // the first op the index did not take in full
}

// change is one queued event: nodes[from:to] entered or left a worker's cache.
type change struct {
	due      int64
	worker   int32
	removed  bool
	from, to int
}

func newMirror(w *trace.Workload, workers int, delay int64) *mirror {
	m := &mirror{idx: index.New(max(1, w.BlockSize), index.Options{}), forest: w.Forest, delay: delay, dead: make([]bool, workers)}
	for t := range workers {
		m.idx.Join(target.ID(t))
	}
	return m
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
	m.queue = append(m.queue, change{now + m.delay, int32(worker), removed, from, len(m.nodes)})
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
	m.handles = m.handles[:0]
	for _, n := range nodes {
		m.handles = append(m.handles, index.Handle(n))
	}
	op := index.Op{Kind: index.Store, Target: target.ID(worker), Handles: m.handles}
	if removed {
		op.Kind = index.Remove
	} else {
		first := nodes[0]
		m.hashes = m.hashes[:0]
		for _, n := range nodes {
			m.hashes = append(m.hashes, m.forest.Hash[n])
		}
		op.Hashes = m.hashes
		if p := m.forest.Parent[first]; p != trace.NoNode {
			op.Parent, op.HasParent = index.Handle(p), true
		}
	}
	res, err := m.idx.Apply(op)
	switch {
	case m.err != nil:
	case err != nil:
		m.err = fmt.Errorf("mirroring worker %d: %w", worker, err)
	case res.Unknown+res.Orphaned+res.Refused+res.Conflict+res.ViewOnly > 0:
		m.err = fmt.Errorf("mirroring worker %d: the index did not take an event of %d blocks in full: %+v", worker, len(nodes), res)
	}
}

// forget drops a worker that is gone, with what is still on its way from it.
func (m *mirror) forget(worker int) {
	m.dead[worker] = true
	m.idx.Forget(target.ID(worker))
}
