package replay

import (
	"fmt"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/trace"
)

// mirror is the router's index, fed with every change of the workers' caches as it happens: the same
// operations that engine events become, with the forest's node numbers as engine handles.
type mirror struct {
	idx     *index.Index
	forest  *trace.Forest
	handles []index.Handle
	hashes  []block.Hash
}

func newMirror(w *trace.Workload, workers int) *mirror {
	m := &mirror{idx: index.New(max(1, w.BlockSize), index.Options{}), forest: w.Forest}
	for t := range workers {
		m.idx.Join(target.ID(t))
	}
	return m
}

// store mirrors blocks that entered a worker's cache: a chain, parents first.
func (m *mirror) store(worker int, nodes []trace.NodeID) error {
	if len(nodes) == 0 {
		return nil
	}
	m.hashes = m.hashes[:0]
	for _, n := range nodes {
		m.hashes = append(m.hashes, m.forest.Hash[n])
	}
	op := index.Op{Kind: index.Store, Target: target.ID(worker), Hashes: m.hashes}
	if p := m.forest.Parent[nodes[0]]; p != trace.NoNode {
		op.Parent, op.HasParent = index.Handle(p), true
	}
	return m.apply(op, nodes)
}

// remove mirrors blocks that left a worker's cache.
func (m *mirror) remove(worker int, nodes []trace.NodeID) error {
	if len(nodes) == 0 {
		return nil
	}
	return m.apply(index.Op{Kind: index.Remove, Target: target.ID(worker)}, nodes)
}

// apply changes the index. A replay's events are complete and in order, so an op that is not taken in
// full means that the index is at its bound; going on would report a policy on a mirror it never had.
func (m *mirror) apply(op index.Op, nodes []trace.NodeID) error {
	m.handles = m.handles[:0]
	for _, n := range nodes {
		m.handles = append(m.handles, index.Handle(n))
	}
	op.Handles = m.handles
	res, err := m.idx.Apply(op)
	if err != nil {
		return fmt.Errorf("mirroring worker %d: %w", op.Target, err)
	}
	if res.Stored+res.Removed != len(nodes) {
		return fmt.Errorf("mirroring worker %d: the index did not take a change of %d blocks in full: %+v", op.Target, len(nodes), res)
	}
	return nil
}
