package index

import (
	"github.com/kvroute/kvroute/internal/block"
)

// tell tells the observer that a target now holds an entry, nearest in a tier, or does not any more. The
// entry is still alive.
func (x *Index) tell(m *mirror, id uint32, t Tier, held bool) {
	if x.opt.Observer != nil {
		x.report(m, id, t, held)
	}
}

func (x *Index) report(m *mirror, id uint32, t Tier, held bool) {
	e := x.arena.at(id)
	x.opt.Observer.Changed(m.t, e.hash(), x.parentHash(id), t, held)
}

// parentHash is the hash that the chain of an entry goes on from: of its parent, or the namespace.
func (x *Index) parentHash(id uint32) block.Hash {
	if p := x.arena.at(id)[fParent]; p != 0 {
		return x.arena.at(p).hash()
	}
	if len(x.spaces) > 0 {
		return x.spaces[id]
	}
	return block.Root
}

// nearest is the tier that a state which is not absent stands for.
func (s state) nearest() Tier {
	switch s {
	case onCPU:
		return CPU
	case onDisk:
		return Disk
	}
	return GPU
}
