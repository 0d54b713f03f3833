package index

import (
	"github.com/kvroute/kvroute/internal/block"
)

// place is where the next page of an event goes on.
type place struct {
	id   uint32        // last complete block, 0: none
	hash block.Hash    // of it, or the root
	rest []block.Token // after it
	open []part        // pages the rest comes from
}

// source is what a handle stands for in one target: a page, or one block if page is nil.
type source struct {
	id    uint32
	tiers tiers // 0: the handle is not known
	page  *page
	first bool // the primary handle of id, in state primary
}

// lookup finds what a handle stands for.
func (x *Index) lookup(m *mirror, h Handle) source {
	return x.means(m, h, x.byHandle.find(&x.arena, mix(uint64(h)), uint64(h)))
}

// means is lookup where the owner of the handle, the entry with it as primary handle, is known; 0: none.
func (x *Index) means(m *mirror, h Handle, owner uint32) source {
	if owner != 0 && x.sets.get(x.arena.at(owner)[fSet], m.t) == primary {
		return source{id: owner, tiers: tier(GPU), first: true}
	}
	return x.unusual(m, h)
}

// unusual is lookup for handles that are not primary.
func (x *Index) unusual(m *mirror, h Handle) source {
	if m.side != nil {
		if id, t := m.side.get(h); t != 0 {
			return source{id: id, tiers: t}
		}
	}
	if m.pages != nil {
		if p := m.pages[h]; p != nil {
			return source{id: p.end, tiers: p.tiers, page: p}
		}
	}
	return source{}
}

func (x *Index) placeAfter(s source) place {
	if s.page != nil {
		return s.page.place()
	}
	return place{id: s.id, hash: x.arena.at(s.id).hash()}
}

// storeAll stores an event, and after it the orphans of its new handles, and theirs.
func (x *Index) storeAll(m *mirror, op *Op, r *Result) {
	x.arrived = x.arrived[:0]
	x.store(m, op, nil, r)
	for k := 0; k < len(x.arrived); k++ {
		for _, o := range m.orphans.of(x.arrived[k]) {
			r.Adopted += o.left
			x.store(m, &o.op, o.gone, r)
		}
	}
}

// store stores one event, except the handles in gone.
func (x *Index) store(m *mirror, op *Op, gone []bool, r *Result) {
	if op.empty() {
		x.addTierToAll(m, op, r)
		return
	}
	page := op.page(x.size)
	fits := op.fits(page)
	at := place{hash: op.Namespace}
	i := 0
	x.asHandle = x.asHandle[:0]
	if op.HasParent {
		var s source
		if fits && len(op.Hashes) > 0 {
			// The parent is as far away as the blocks, so it is looked for together with the first.
			n := min(len(op.Handles), batchLen-1)
			x.fetch(m, op.Handles[:n], op.Hashes[:n], op.Parent)
			s = x.means(m, op.Parent, x.asHandle[n].id)
			x.asHandle = x.asHandle[:n]
		} else {
			s = x.lookup(m, op.Parent)
		}
		// Announced again with its parent gone, a known handle still says where we are.
		for lost := s.tiers == 0 && fits; lost && i < len(op.Handles); i++ {
			known := x.lookup(m, op.Handles[i])
			if known.tiers == 0 {
				break
			}
			s = known
			x.asHandle = x.asHandle[:0]
			x.addTier(m, op.Handles[i], known, op.Tier, op.Counted, r)
		}
		if s.tiers == 0 {
			m.orphans.add(*op, gone, op.blocks(x.size), x.opt.OrphanLimit, r)
			return
		}
		at = x.placeAfter(s)
	}
	x.cursor = at.id
	x.root = at.hash // used if at.id is 0: then it is the namespace
	switch {
	case !fits:
		x.storeBare(m, op, at, r)
	case len(op.Hashes) > 0:
		x.storeWhole(m, op, gone, i, op.Hashes[i:], at.id, r)
	case page == x.size && len(at.rest) == 0:
		x.chain = block.AppendChain(x.chain[:0], at.hash, op.Tokens[i*page:len(op.Handles)*page], x.size)
		x.storeWhole(m, op, gone, i, x.chain, at.id, r)
	default:
		x.storePages(m, op, gone, i, page, at, r)
	}
	x.advance(0)
}

// addTierToAll applies an event without content.
func (x *Index) addTierToAll(m *mirror, op *Op, r *Result) {
	for _, h := range op.Handles {
		if s := x.lookup(m, h); s.tiers == 0 {
			r.Unknown++
		} else {
			x.addTier(m, h, s, op.Tier, op.Counted, r)
		}
	}
}

// addTier notes that a known handle is in one more tier, or once more in a tier.
func (x *Index) addTier(m *mirror, h Handle, s source, t Tier, counted bool, r *Result) {
	now := s.tiers | tier(t)
	switch {
	case now == s.tiers:
		r.Known++
		if counted {
			m.copied(h, t)
		}
	case s.page != nil:
		x.setPageTiers(m, h, s.page, now, r)
	default:
		if s.first {
			x.demote(m, s.id)
		}
		m.side.set(h, now)
		x.rehold(m, s.id, s.tiers, now, r)
	}
}

// storeWhole stores handles from the i-th on, each of which is one block: hashes[0] after parent, and so on.
// If x.asHandle is not empty, the first of them have been fetched.
func (x *Index) storeWhole(m *mirror, op *Op, gone []bool, i int, hashes []block.Hash, parent uint32, r *Result) {
	for handles := op.Handles[i:]; len(handles) > 0; {
		n := len(x.asHandle)
		if n == 0 {
			n = min(len(handles), batchLen)
			x.fetch(m, handles[:n], hashes[:n])
		}
		var conflict bool
		for k := range n {
			asHandle, asHash := &x.asHandle[k], &x.asHash[k]
			var id uint32
			if gone != nil && gone[i+k] {
				id, conflict = x.entryOf(hashes[k], parent)
			} else {
				id, conflict = x.storeBlock(m, asHandle, asHash, parent, op.Tier, op.Counted, r)
			}
			if id == 0 {
				if conflict {
					r.Conflict += len(handles) - k
				} else {
					r.Refused += len(handles) - k
				}
				return
			}
			x.fresh.add(asHash.mixed)
			x.fresh.add(asHandle.mixed)
			x.advance(id)
			parent = id
		}
		handles, hashes, i = handles[n:], hashes[n:], i+n
		x.asHandle = x.asHandle[:0]
	}
}

// fetch finds what storing some handles will look at: entries with the hashes, x.asHash, and those
// with the primary handles, x.asHandle, first those of the blocks and then others. At most batchLen.
func (x *Index) fetch(m *mirror, handles []Handle, hashes []block.Hash, others ...Handle) {
	x.asHash, x.asHandle, x.fresh = x.asHash[:0], x.asHandle[:0], filter{}
	for _, h := range hashes {
		x.asHash = append(x.asHash, probe{key: uint64(h)})
	}
	for _, h := range handles {
		x.asHandle = append(x.asHandle, probe{key: uint64(h)})
	}
	for _, h := range others {
		x.asHandle = append(x.asHandle, probe{key: uint64(h)})
	}
	var hashAt, handleAt aims
	x.byHash.aim(x.asHash, &hashAt)
	x.byHandle.aim(x.asHandle, &handleAt)
	x.sink += hashAt.touch(len(hashes)) + handleAt.touch(len(x.asHandle))
	if m.side != nil {
		for i := range x.asHandle {
			x.sink += m.side.touch(x.asHandle[i].mixed)
		}
	}
	x.byHash.settle(&x.arena, x.asHash, &hashAt)
	x.byHandle.settle(&x.arena, x.asHandle, &handleAt)
}

// filter remembers keys by one bit of 1024 each: what it has not seen, it was not given.
type filter [16]uint64

func (f *filter) add(m uint64) { f[m>>6&15] |= 1 << (m & 63) }

func (f *filter) may(m uint64) bool { return f[m>>6&15]>>(m&63)&1 != 0 }

// recall finds a block again after fetch. What fetch found is checked; what it did not find can only
// have come since if the event itself brought it, which the filter knows.
func (x *Index) recall(p *probe) uint32 {
	if p.id != 0 && p.key != 0 && x.arena.at(p.id).key(fHash) == p.key || p.id == 0 && !x.fresh.may(p.mixed) {
		return p.id
	}
	return x.byHash.find(&x.arena, p.mixed, p.key)
}

// recallOwner is recall for the entry with a primary handle.
func (x *Index) recallOwner(p *probe) uint32 {
	if p.id == 0 {
		if !x.fresh.may(p.mixed) {
			return 0
		}
	} else if e := x.arena.at(p.id); e.key(fHandle) == p.key && x.sets.hasPrimary(e[fSet]) {
		return p.id
	}
	return x.byHandle.find(&x.arena, p.mixed, p.key)
}

// storeBlock stores a handle that is one block. It returns the entry, or 0 if the block is refused.
func (x *Index) storeBlock(m *mirror, asHandle, asHash *probe, parent uint32, t Tier, counted bool, r *Result) (id uint32, conflict bool) {
	h, hash := Handle(asHandle.key), block.Hash(asHash.key)
	owner := x.recallOwner(asHandle) // of h as a primary handle
	s := x.means(m, h, owner)
	if s.tiers != 0 {
		if s.page == nil && x.arena.at(s.id).hash() == hash {
			x.addTier(m, h, s, t, counted, r)
			return s.id, false
		}
		x.drop(m, h, s, r)
		r.Rebound++
		owner = x.recallOwner(asHandle)
	}
	if x.handles >= x.opt.HandleLimit {
		return 0, false
	}
	id = x.recall(asHash)
	was := absent
	if id != 0 {
		e := x.arena.at(id)
		if e[fParent] != parent {
			return 0, true
		}
		was = x.sets.get(e[fSet], m.t)
	}
	if was == absent && x.members >= x.opt.Limit {
		return 0, false
	}
	fresh := id == 0 && owner == 0 && t == GPU
	if fresh {
		id = x.holdNew(m, asHandle, asHash, parent)
	} else if id == 0 {
		id = x.newEntry(hash, asHash.mixed, parent)
	}
	if id == 0 {
		return 0, false
	}
	if fresh {
		r.Stored++
	} else if was == absent && t == GPU {
		x.hold(m, h, asHandle.mixed, id, owner)
		r.Stored++
	} else {
		m.sidelong().insert(h, id, tier(t))
		x.rehold(m, id, 0, tier(t), r)
	}
	m.handles++
	x.handles++
	if s.tiers == 0 {
		x.arrive(m, h)
	}
	return id, false
}

// hold makes a target hold an entry by one handle in GPU: as its primary handle if it is that already,
// or if the entry has none and the handle is nobody else's. Owner is the entry with that primary handle.
func (x *Index) hold(m *mirror, h Handle, mixed uint64, id, owner uint32) {
	e := x.arena.at(id)
	m.sum += contentTerm(e.hash(), tier(GPU))
	switch {
	case owner == id:
		x.enter(m, id, primary)
	case owner == 0 && !x.sets.hasPrimary(e[fSet]):
		e.setKey(fHandle, uint64(h))
		x.byHandle.insert(&x.arena, mixed, id)
		x.enter(m, id, primary)
	default:
		m.sidelong().insert(h, id, tier(GPU))
		x.enter(m, id, other)
	}
	x.tell(m, id, GPU, true)
}

// arrive notes a handle that was not known, if orphans wait for it.
func (x *Index) arrive(m *mirror, h Handle) {
	if len(m.orphans.byParent) > 0 && len(m.orphans.byParent[h]) > 0 {
		x.arrived = append(x.arrived, h)
	}
}

// storeBare stores content whose handles cannot be told apart.
func (x *Index) storeBare(m *mirror, op *Op, at place, r *Result) {
	hashes := op.Hashes
	if len(op.Tokens) > 0 {
		x.tokens = append(append(x.tokens[:0], at.rest...), op.Tokens...)
		x.chain = block.AppendChain(x.chain[:0], at.hash, x.tokens, x.size)
		hashes = x.chain
	}
	parent := at.id
	for i, h := range hashes {
		id, conflict := x.entryOf(h, parent)
		if conflict {
			r.Conflict += len(hashes) - i
			return
		}
		if id != 0 {
			x.advance(id)
		}
		if id == 0 || x.members >= x.opt.Limit && x.sets.get(x.arena.at(id)[fSet], m.t) == absent {
			r.Refused += len(hashes) - i
			return
		}
		x.holdBare(m, id, op.Tier, r)
		parent = id
	}
}

// removeAll takes handles away from one tier.
func (x *Index) removeAll(m *mirror, op *Op, r *Result) {
	for handles := op.Handles; len(handles) > 0; {
		n := min(len(handles), batchLen)
		x.fetchGone(m, handles[:n])
		for k, h := range handles[:n] {
			if !x.evictSole(m, &x.asHandle[k], &x.asHash[k], op.Tier) {
				x.removeOne(m, h, x.asHandle[k].id, op.Tier, r)
			} else {
				r.Removed++
			}
		}
		handles = handles[n:]
	}
}

// fetchGone finds what removing some handles will look at: entries with the primary handles, x.asHandle,
// and where the hashes of those and of others lie. At most batchLen.
func (x *Index) fetchGone(m *mirror, handles []Handle) {
	x.asHandle, x.asHash = x.asHandle[:0], x.asHash[:0]
	for _, h := range handles {
		x.asHandle = append(x.asHandle, probe{key: uint64(h)})
	}
	var at aims
	x.byHandle.aim(x.asHandle, &at)
	x.sink += at.touch(len(handles))
	if m.side != nil {
		for i := range x.asHandle {
			x.sink += m.side.touch(x.asHandle[i].mixed)
		}
	}
	x.byHandle.settle(&x.arena, x.asHandle, &at)
	for i := range x.asHandle {
		id := x.asHandle[i].id
		if id == 0 {
			id, _ = m.side.get(handles[i])
		}
		var p probe
		if id != 0 {
			e := x.arena.at(id)
			p.key = e.key(fHash)
			if parent := e[fParent]; parent != 0 {
				x.sink += x.arena.at(parent)[fSet]
			}
		}
		x.asHash = append(x.asHash, p)
	}
	x.byHash.aim(x.asHash, &at)
	x.sink += at.touch(len(x.asHash))
}

// evictSole takes the handle away if that is what most removals are: from GPU, of a block that this target
// alone holds and only by this handle, and that has no child. If not it does nothing, and says so. The
// outcome is that of removeOne.
func (x *Index) evictSole(m *mirror, asHandle, asHash *probe, t Tier) bool {
	id := asHandle.id
	if id == 0 || t != GPU || m.orphans.waiting > 0 || len(x.pins) > 0 {
		return false
	}
	e := x.arena.at(id)
	if e.key(fHandle) != asHandle.key || e[fSet] != single(m.t, primary) || e[fKid] != 0 {
		return false
	}
	if m.spare > 0 && m.copies[Handle(asHandle.key)] != (copies{}) {
		return false
	}
	x.tell(m, id, GPU, false)
	m.sum -= contentTerm(e.hash(), tier(GPU))
	x.members--
	m.blocks--
	m.handles--
	x.handles--
	parent := e[fParent]
	x.byHandle.remove(asHandle.mixed, id)
	x.byHash.remove(asHash.mixed, id)
	x.arena.release(id)
	if parent != 0 {
		x.dropKidOf(m, parent)
	} else {
		delete(x.spaces, id)
	}
	return true
}

// removeOne takes a handle away from a tier; owner had it as primary handle when the event began.
func (x *Index) removeOne(m *mirror, h Handle, owner uint32, t Tier, r *Result) {
	void := 0
	if m.orphans.waiting > 0 {
		var counted bool
		void, counted = m.orphans.remove(h, t)
		r.Dropped += void
		if counted {
			return // what is held, and the other announcements that wait, are further copies
		}
	}
	// Removals free entries and give nothing a primary handle, so the owner is this one or none.
	if owner != 0 && x.arena.at(owner).handle() != h {
		owner = 0
	}
	s := x.means(m, h, owner)
	now := s.tiers &^ tier(t)
	switch {
	case s.tiers == now:
		if void == 0 {
			r.Unknown++
		}
	case m.uncopied(h, t):
	case now == 0:
		x.drop(m, h, s, r)
	case s.page != nil:
		x.setPageTiers(m, h, s.page, now, r)
	default:
		m.side.set(h, now)
		x.rehold(m, s.id, s.tiers, now, r)
	}
}

// drop forgets a handle.
func (x *Index) drop(m *mirror, h Handle, s source, r *Result) {
	m.handles--
	x.handles--
	m.forgetCopies(h)
	switch {
	case s.page != nil:
		x.dropPage(m, h, s.page, r)
	case s.first:
		m.sum -= contentTerm(x.arena.at(s.id).hash(), tier(GPU))
		x.tell(m, s.id, GPU, false)
		x.leave(m, s.id)
		r.Removed++
	default:
		m.side.remove(h)
		x.rehold(m, s.id, s.tiers, 0, r)
	}
}
