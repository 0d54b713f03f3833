package index

import (
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// This file changes who holds which entry; everything else decides when.

// entryOf returns the entry of a block after parent, making it a ghost if there is none. It returns 0
// if the block is known under another parent (conflict) or there are MaxBlocks.
func (x *Index) entryOf(h block.Hash, parent uint32) (id uint32, conflict bool) {
	m := mix(uint64(h))
	if id = x.byHash.find(&x.arena, m, uint64(h)); id != 0 {
		if x.arena.at(id)[fParent] != parent {
			return 0, true
		}
		return id, false
	}
	return x.newEntry(h, m, parent), false
}

// newEntry makes a ghost of a block that has no entry; m is its hash, mixed.
func (x *Index) newEntry(h block.Hash, m uint64, parent uint32) uint32 {
	id := x.arena.alloc()
	if id == 0 {
		return 0
	}
	e := x.arena.at(id)
	e.setKey(fHash, uint64(h))
	e[fParent] = parent
	x.byHash.insert(&x.arena, m, id)
	if parent != 0 {
		x.addKid(parent, id)
	} else {
		x.begin(id)
	}
	return id
}

// holdNew makes an entry for a block that has none and the target hold it by a handle that nobody has:
// newEntry and hold for the most common case, in fewer steps. It returns 0 if there are MaxBlocks.
func (x *Index) holdNew(m *mirror, asHandle, asHash *probe, parent uint32) uint32 {
	id := x.arena.alloc()
	if id == 0 {
		return 0
	}
	e := x.arena.at(id)
	e.setKey(fHash, asHash.key)
	e.setKey(fHandle, asHandle.key)
	e[fParent], e[fSet] = parent, single(m.t, primary)
	x.byHash.insert(&x.arena, asHash.mixed, id)
	x.byHandle.insert(&x.arena, asHandle.mixed, id)
	x.members++
	m.blocks++
	m.sum += contentTerm(e.hash(), tier(GPU))
	if parent == 0 {
		x.begin(id)
		x.tell(m, id, GPU, true)
		return id
	}
	x.addKid(parent, id)
	p := x.arena.at(parent)
	if x.sets.get(p[fSet], m.t) == absent {
		x.addHoles(m, 1)
	}
	if p[fKid]&fanTag != 0 {
		x.fans[fan{parent, m.t}]++
	}
	x.tell(m, id, GPU, true)
	return id
}

// begin notes the namespace of an entry without parent.
func (x *Index) begin(id uint32) {
	if x.root != block.Root {
		x.spaces[id] = x.root
	}
}

func (x *Index) addKid(parent, id uint32) {
	p := x.arena.at(parent)
	switch kid := p[fKid]; {
	case kid == 0:
		p[fKid] = id
	case kid&fanTag != 0:
		p[fKid]++
	default:
		p[fKid] = fanTag | 2
		x.eachMember(x.arena.at(kid)[fSet], func(m *mirror) { x.fans[fan{parent, m.t}]++ })
	}
}

// dropKid takes a child that nobody holds from its parent.
func (x *Index) dropKid(parent uint32) {
	p := x.arena.at(parent)
	if p[fKid]&fanTag != 0 && p[fKid] > fanTag|1 {
		p[fKid]--
		return
	}
	p[fKid] = 0
}

// dropKidOf is dropKid for a child that one target held until now.
func (x *Index) dropKidOf(m *mirror, parent uint32) {
	p := x.arena.at(parent)
	if x.sets.get(p[fSet], m.t) == absent {
		x.addHoles(m, -1)
	}
	if p[fKid]&fanTag != 0 {
		x.unfan(fan{parent, m.t})
	}
	x.dropKid(parent)
	if p[fSet] == 0 {
		x.tryFree(parent)
	}
}

// kids is the number of children of an entry that a target holds.
func (x *Index) kids(id uint32, m *mirror) int32 {
	switch kid := x.arena.at(id)[fKid]; {
	case kid == 0:
		return 0
	case kid&fanTag != 0:
		return int32(x.fans[fan{id, m.t}])
	default:
		if x.sets.get(x.arena.at(kid)[fSet], m.t) != absent {
			return 1
		}
		return 0
	}
}

// enter makes a target hold an entry it does not hold.
func (x *Index) enter(m *mirror, id uint32, s state) {
	e := x.arena.at(id)
	e[fSet] = x.sets.with(e[fSet], m.t, s)
	x.members++
	m.blocks++
	holes := int32(0)
	if e[fKid] != 0 {
		holes = -x.kids(id, m)
	}
	if parent := e[fParent]; parent != 0 {
		p := x.arena.at(parent)
		if x.sets.get(p[fSet], m.t) == absent {
			holes++
		}
		if p[fKid]&fanTag != 0 {
			x.fans[fan{parent, m.t}]++
		}
	}
	if holes != 0 {
		x.addHoles(m, holes)
	}
}

// leave makes a target not hold an entry any more. It may free the entry.
func (x *Index) leave(m *mirror, id uint32) {
	e := x.arena.at(id)
	old := e[fSet]
	was := x.sets.get(old, m.t)
	e[fSet] = x.sets.with(old, m.t, absent)
	if was == primary && !x.sets.hasPrimary(e[fSet]) {
		x.byHandle.remove(mix(e.key(fHandle)), id)
	}
	x.members--
	m.blocks--
	holes := int32(0)
	if e[fKid] != 0 {
		holes = x.kids(id, m)
	}
	if parent := e[fParent]; parent != 0 {
		p := x.arena.at(parent)
		if x.sets.get(p[fSet], m.t) == absent {
			holes--
		}
		if p[fKid]&fanTag != 0 {
			x.unfan(fan{parent, m.t})
		}
	}
	if holes != 0 {
		x.addHoles(m, holes)
	}
	x.tryFree(id)
}

func (x *Index) unfan(f fan) {
	if n := x.fans[f]; n > 1 {
		x.fans[f] = n - 1
	} else {
		delete(x.fans, f)
	}
}

func (x *Index) addHoles(m *mirror, n int32) {
	x.holes[m.t] += n
	if !hasBit(x.joined, m.t) {
		return
	}
	if x.holes[m.t] == 0 {
		setBit(x.whole, m.t)
	} else {
		clearBit(x.whole, m.t)
	}
}

// tryFree frees an entry nothing needs, and then its parent if only it was needed for this one.
func (x *Index) tryFree(id uint32) {
	for id != 0 {
		e := x.arena.at(id)
		if e[fSet] != 0 || e[fKid] != 0 || id == x.cursor || len(x.pins) > 0 && x.pins[id] > 0 {
			return
		}
		parent := e[fParent]
		x.byHash.remove(mix(e.key(fHash)), id)
		x.arena.release(id)
		if parent != 0 {
			x.dropKid(parent)
		} else {
			delete(x.spaces, id)
		}
		id = parent
	}
}

// advance moves the cursor, which keeps the entry it is on alive.
func (x *Index) advance(id uint32) {
	old := x.cursor
	x.cursor = id
	if old != 0 && old != id {
		x.tryFree(old)
	}
}

func (x *Index) pin(id uint32) {
	if id != 0 {
		x.pins[id]++
	}
}

func (x *Index) unpin(id uint32) {
	if id == 0 {
		return
	}
	if x.pins[id]--; x.pins[id] == 0 {
		delete(x.pins, id)
		x.tryFree(id)
	}
}

// setState changes the state in which a target holds an entry; neither is absent.
func (x *Index) setState(m *mirror, id uint32, from, to state) {
	e := x.arena.at(id)
	e[fSet] = x.sets.with(e[fSet], m.t, to)
	if from == primary && !x.sets.hasPrimary(e[fSet]) {
		x.byHandle.remove(mix(e.key(fHandle)), id)
	}
}

// demote moves the primary handle of an entry, as far as one target goes, to the side table.
func (x *Index) demote(m *mirror, id uint32) {
	h := x.arena.at(id).handle()
	x.setState(m, id, primary, other)
	m.sidelong().insert(h, id, tier(GPU))
}

func (m *mirror) sidelong() *sideTable {
	if m.side == nil {
		m.side = new(sideTable)
	}
	return m.side
}

// rehold replaces one reason for a target to hold an entry, a handle or page that gives it in the
// tiers old, by the same in the tiers now; either may be empty.
func (x *Index) rehold(m *mirror, id uint32, old, now tiers, r *Result) {
	if old != now {
		x.change(m, id, old, now, 0, r)
	}
}

// holdBare makes a target hold an entry in one more tier without a handle.
func (x *Index) holdBare(m *mirror, id uint32, t Tier, r *Result) {
	if s := x.sets.get(x.arena.at(id)[fSet], m.t); s != absent && m.refs[id].bare&tier(t) != 0 {
		return
	}
	r.ViewOnly++
	x.change(m, id, 0, 0, tier(t), r)
}

// change edits the reasons for a target to hold an entry, as rehold and holdBare say, and draws the
// consequences.
func (x *Index) change(m *mirror, id uint32, old, now, bare tiers, r *Result) {
	from := x.sets.get(x.arena.at(id)[fSet], m.t)
	if from == primary {
		x.demote(m, id)
		from = other
	}
	var rf refs
	noted := false
	if from != absent {
		if rf, noted = m.refs[id]; !noted {
			rf = oneHandle
		}
	}
	before := rf.tiers()
	for t := range rf.n {
		rf.n[t] += uint32(now>>t&1) - uint32(old>>t&1)
	}
	rf.bare |= bare
	to := rf.state()
	if after := rf.tiers(); before != after {
		h := x.arena.at(id).hash()
		m.sum += contentTerm(h, after) - contentTerm(h, before)
	}
	switch {
	case to != absent && rf != oneHandle:
		if m.refs == nil {
			m.refs = map[uint32]refs{}
		}
		m.refs[id] = rf
	case noted:
		delete(m.refs, id)
	}
	x.countLower(m, from, to)
	switch {
	case from == to:
	case from == absent:
		x.enter(m, id, to)
		r.Stored++
		x.tell(m, id, to.nearest(), true)
	case to == absent:
		x.tell(m, id, from.nearest(), false)
		x.leave(m, id)
		r.Removed++
	default:
		x.setState(m, id, from, to)
		x.tell(m, id, to.nearest(), true)
	}
}

func (x *Index) countLower(m *mirror, from, to state) {
	n := int(to&low)/int(low) - int(from&low)/int(low)
	m.lower += n
	x.lowers += n
	if from == onDisk {
		m.disk--
	}
	if to == onDisk {
		m.disk++
	}
}

// eachMember calls f with the mirror of every member of a set.
func (x *Index) eachMember(s setID, f func(*mirror)) {
	x.sets.each(s, func(t target.ID) { f(x.mirrors[t]) })
}
