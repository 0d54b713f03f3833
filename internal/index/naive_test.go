package index

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// naive is the reference the index is tested against: the same rules on plain maps, with no thought
// of speed or memory.
type naive struct {
	size    int
	opt     Options
	targets []*naiveTarget // nil: not joined
	members int
	handles int
}

type naiveTarget struct {
	pages   map[Handle]*naivePage
	holders map[block.Hash]map[Handle]bool // handles whose page completes the block
	users   map[Handle]map[Handle]bool     // handles whose first block has a part under the key
	bare    map[block.Hash]tiers           // held without a handle
	copies  map[Handle]map[Tier]int        // times announced beyond the first
	view    map[block.Hash]tiers           // what follows from the above: where each block is held
	parents map[block.Hash]block.Hash      // of every block ever seen; root hashes are their own parent
	pending []naiveOrphan                  // in order of arrival
	epoch   int
	totals  Result
}

// naivePage is what a handle stands for.
type naivePage struct {
	tiers  tiers
	blocks []block.Hash  // completed by this page
	parts  []part        // earlier pages of blocks[0], or of the block still open
	last   block.Hash    // after the last complete block
	rest   []block.Token // after last
	open   []part        // the pages rest comes from, this one included
}

type naiveOrphan struct {
	op   Op
	gone []bool // handles removed while waiting
}

func newNaive(blockSize int, opt Options) *naive {
	return &naive{size: blockSize, opt: opt.withDefaults()}
}

func newNaiveTarget() *naiveTarget {
	return &naiveTarget{
		pages: map[Handle]*naivePage{}, holders: map[block.Hash]map[Handle]bool{}, users: map[Handle]map[Handle]bool{},
		bare: map[block.Hash]tiers{}, copies: map[Handle]map[Tier]int{}, view: map[block.Hash]tiers{}, parents: map[block.Hash]block.Hash{},
	}
}

func (x *naive) Join(t target.ID) {
	if t >= target.MaxTargets {
		return
	}
	for len(x.targets) < slots(t) {
		x.targets = append(x.targets, nil)
	}
	if x.targets[t] == nil {
		x.targets[t] = newNaiveTarget()
	}
}

func (x *naive) Forget(t target.ID) {
	if nt := x.get(t); nt != nil {
		x.members -= len(nt.view)
		x.handles -= len(nt.pages)
		x.targets[t] = nil
	}
}

func (x *naive) get(t target.ID) *naiveTarget {
	if int(t) < len(x.targets) {
		return x.targets[t]
	}
	return nil
}

func (x *naive) Apply(op Op) (Result, error) {
	if err := op.validate(); err != nil {
		return Result{}, err
	}
	nt := x.get(op.Target)
	if nt == nil {
		return Result{}, unjoined(&op)
	}
	var r Result
	switch op.Kind {
	case Store:
		x.storeAll(nt, op, &r)
	case Remove:
		for _, h := range op.Handles {
			x.remove(nt, h, op.Tier, &r)
		}
	case Clear, Epoch:
		r.Removed = len(nt.view)
		for _, o := range nt.pending {
			r.Dropped += o.waiting()
		}
		totals, epoch := nt.totals, nt.epoch+1
		x.members -= len(nt.view)
		x.handles -= len(nt.pages)
		*nt = *newNaiveTarget()
		nt.totals, nt.epoch = totals, epoch
	}
	nt.totals.Add(r)
	return r, nil
}

// storeAll stores an event, and after it the orphans of its new handles, and theirs.
func (x *naive) storeAll(nt *naiveTarget, op Op, r *Result) {
	arrived := x.store(nt, op, nil, r)
	for len(arrived) > 0 {
		h := arrived[0]
		arrived = arrived[1:]
		var now []naiveOrphan
		nt.pending = slices.DeleteFunc(nt.pending, func(o naiveOrphan) bool {
			if o.op.Parent == h {
				now = append(now, o)
				return true
			}
			return false
		})
		for _, o := range now {
			r.Adopted += o.waiting()
			arrived = append(arrived, x.store(nt, o.op, o.gone, r)...)
		}
	}
}

func (o naiveOrphan) waiting() int {
	n := 0
	for _, g := range o.gone {
		if !g {
			n++
		}
	}
	return n
}

// store stores one event except the handles in gone, and returns the handles that were not known.
func (x *naive) store(nt *naiveTarget, op Op, gone []bool, r *Result) (arrived []Handle) {
	if op.empty() {
		for _, h := range op.Handles {
			if p := nt.pages[h]; p == nil {
				r.Unknown++
			} else {
				x.addTier(nt, h, p, op, r)
			}
		}
		return nil
	}
	page := op.page(x.size)
	at := &naivePage{last: op.Namespace}
	fits := op.fits(page)
	i := 0
	if op.HasParent {
		at = nt.pages[op.Parent]
		// Announced again with its parent gone, a known handle still says where we are.
		for lost := at == nil && fits; lost && i < len(op.Handles) && nt.pages[op.Handles[i]] != nil; i++ {
			at = nt.pages[op.Handles[i]]
			x.addTier(nt, op.Handles[i], at, op, r)
		}
		if at == nil {
			x.orphan(nt, op, gone, r)
			return nil
		}
	}
	if !fits {
		x.storeBare(nt, op, at, r)
		return nil
	}
	for ; i < len(op.Handles); i++ {
		h := op.Handles[i]
		next := x.pageAfter(at, op, i, page, nt)
		at = next
		if gone != nil && gone[i] {
			continue
		}
		old := nt.pages[h]
		if old != nil && old.same(next) {
			x.addTier(nt, h, old, op, r)
			continue
		}
		if old != nil {
			x.drop(nt, h, r)
			r.Rebound++
		}
		next.tiers = tier(op.Tier)
		if x.handles >= x.opt.HandleLimit || x.members+x.need(nt, h, next) > x.opt.Limit {
			r.Refused += len(op.Handles) - i
			return arrived
		}
		x.put(nt, h, next, r)
		if old == nil {
			arrived = append(arrived, h)
		}
	}
	return arrived
}

// pageAfter works out what handle i of op stands for, following page at.
func (x *naive) pageAfter(at *naivePage, op Op, i, page int, nt *naiveTarget) *naivePage {
	p := &naivePage{last: at.last}
	if len(op.Hashes) > 0 {
		nt.parents[op.Hashes[i]] = at.last
		p.last = op.Hashes[i]
		p.blocks = []block.Hash{p.last}
		return p
	}
	p.parts = at.open
	tokens := slices.Concat(at.rest, op.Tokens[i*page:(i+1)*page])
	for len(tokens) >= x.size {
		h := block.Next(p.last, tokens[:x.size])
		nt.parents[h] = p.last
		p.blocks = append(p.blocks, h)
		p.last, tokens = h, tokens[x.size:]
	}
	p.rest = tokens
	if len(tokens) > 0 {
		if len(p.blocks) == 0 {
			p.open = slices.Clone(p.parts)
		}
		p.open = append(p.open, part{op.Handles[i], p.state()})
	}
	return p
}

func (p *naivePage) state() block.Hash { return block.Next(p.last, p.rest) }

func (p *naivePage) same(q *naivePage) bool {
	return p.last == q.last && slices.Equal(p.rest, q.rest) && slices.Equal(p.blocks, q.blocks) && slices.Equal(p.parts, q.parts)
}

// held is where block i of the page of a handle is held because of that handle; 0 if a part is missing.
func (nt *naiveTarget) held(p *naivePage, i int) tiers {
	m := p.tiers
	if i > 0 || m == 0 {
		return m
	}
	for _, q := range p.parts {
		o := nt.pages[q.handle]
		if o == nil || o.state() != q.state {
			return 0
		}
		m = together(m, o.tiers)
	}
	return m
}

// refresh works out anew where block h is held.
func (x *naive) refresh(nt *naiveTarget, h block.Hash, r *Result) {
	m := nt.bare[h]
	for handle := range nt.holders[h] {
		p := nt.pages[handle]
		for i, b := range p.blocks {
			if b == h {
				m |= nt.held(p, i)
			}
		}
	}
	_, before := nt.view[h]
	switch {
	case m != 0 && !before:
		x.members++
		r.Stored++
	case m == 0 && before:
		x.members--
		r.Removed++
	}
	if m != 0 {
		nt.view[h] = m
	} else {
		delete(nt.view, h)
	}
}

// refreshFor does so for all blocks the handle has a part in.
func (x *naive) refreshFor(nt *naiveTarget, h Handle, p *naivePage, r *Result) {
	for _, b := range p.blocks {
		x.refresh(nt, b, r)
	}
	for _, u := range slices.Sorted(maps.Keys(nt.users[h])) {
		if q := nt.pages[u]; len(q.blocks) > 0 {
			x.refresh(nt, q.blocks[0], r)
		}
	}
}

// need counts the pages by which a block comes to be held that is not, if h is stored as p.
func (x *naive) need(nt *naiveTarget, h Handle, p *naivePage) int {
	nt.pages[h] = p
	n := 0
	for i, b := range p.blocks {
		if nt.view[b] == 0 && nt.held(p, i) != 0 {
			n++
		}
	}
	for u := range nt.users[h] {
		if q := nt.pages[u]; q != p && len(q.blocks) > 0 && nt.view[q.blocks[0]] == 0 && nt.held(q, 0) != 0 {
			n++
		}
	}
	delete(nt.pages, h)
	return n
}

func (x *naive) put(nt *naiveTarget, h Handle, p *naivePage, r *Result) {
	nt.pages[h] = p
	x.handles++
	for _, b := range p.blocks {
		link(nt.holders, b, h)
	}
	for _, q := range p.parts {
		link(nt.users, q.handle, h)
	}
	x.refreshFor(nt, h, p, r)
}

func (x *naive) drop(nt *naiveTarget, h Handle, r *Result) {
	p := nt.pages[h]
	delete(nt.pages, h)
	delete(nt.copies, h)
	x.handles--
	for _, b := range p.blocks {
		unlink(nt.holders, b, h)
	}
	for _, q := range p.parts {
		unlink(nt.users, q.handle, h)
	}
	x.refreshFor(nt, h, p, r)
}

func link[K comparable](m map[K]map[Handle]bool, k K, h Handle) {
	if m[k] == nil {
		m[k] = map[Handle]bool{}
	}
	m[k][h] = true
}

func unlink[K comparable](m map[K]map[Handle]bool, k K, h Handle) {
	delete(m[k], h)
	if len(m[k]) == 0 {
		delete(m, k)
	}
}

func (x *naive) addTier(nt *naiveTarget, h Handle, p *naivePage, op Op, r *Result) {
	if p.tiers&tier(op.Tier) != 0 {
		r.Known++
		if op.Counted {
			if nt.copies[h] == nil {
				nt.copies[h] = map[Tier]int{}
			}
			nt.copies[h][op.Tier]++
		}
		return
	}
	p.tiers |= tier(op.Tier)
	x.refreshFor(nt, h, p, r)
}

func (x *naive) remove(nt *naiveTarget, h Handle, t Tier, r *Result) {
	found, counted := false, false
	for i := range nt.pending {
		o := &nt.pending[i]
		for k, oh := range o.op.Handles {
			if oh == h && o.op.Tier == t && !o.gone[k] && !(o.op.Counted && counted) {
				o.gone[k], found, counted = true, true, counted || o.op.Counted
				r.Dropped++
			}
		}
	}
	nt.pending = slices.DeleteFunc(nt.pending, func(o naiveOrphan) bool { return len(o.gone) > 0 && o.waiting() == 0 })
	if counted {
		return
	}
	p := nt.pages[h]
	switch {
	case p == nil || p.tiers&tier(t) == 0:
		if !found {
			r.Unknown++
		}
	case nt.copies[h][t] > 0:
		nt.copies[h][t]--
	case p.tiers == tier(t):
		x.drop(nt, h, r)
	default:
		p.tiers &^= tier(t)
		x.refreshFor(nt, h, p, r)
	}
}

func (x *naive) storeBare(nt *naiveTarget, op Op, at *naivePage, r *Result) {
	hashes := op.Hashes
	if len(op.Tokens) > 0 {
		hashes = block.AppendChain(nil, at.last, slices.Concat(at.rest, op.Tokens), x.size)
	}
	last := at.last
	for i, h := range hashes {
		nt.parents[h], last = last, h
		if nt.view[h] == 0 && x.members >= x.opt.Limit {
			r.Refused += len(hashes) - i
			return
		}
		if nt.bare[h]&tier(op.Tier) == 0 {
			nt.bare[h] |= tier(op.Tier)
			r.ViewOnly++
		}
		x.refresh(nt, h, r)
	}
}

// orphan buffers an event whose parent is not known.
func (x *naive) orphan(nt *naiveTarget, op Op, gone []bool, r *Result) {
	op.Handles, op.Tokens, op.Hashes = slices.Clone(op.Handles), slices.Clone(op.Tokens), slices.Clone(op.Hashes)
	o := naiveOrphan{op, slices.Concat(gone, make([]bool, len(op.Handles)-len(gone)))}
	r.Orphaned += o.waiting()
	nt.pending = append(nt.pending, o)
	total := 0
	for _, o := range nt.pending {
		total += o.op.blocks(x.size)
	}
	for total > x.opt.OrphanLimit && len(nt.pending) > 0 {
		total -= nt.pending[0].op.blocks(x.size)
		r.Dropped += nt.pending[0].waiting()
		nt.pending = nt.pending[1:]
	}
}

func (x *naive) Match(chain []block.Hash, dst *Matches) {
	dst.reset(len(x.targets))
	for t, nt := range x.targets {
		if nt == nil {
			continue
		}
		for _, h := range chain {
			m := nt.view[h]
			if m == 0 {
				break
			}
			dst.Hits[t]++
			if b := m.best(); b != GPU {
				dst.lower(b)[t]++
			}
		}
	}
}

func (x *naive) Stats(t target.ID) Stats {
	nt := x.get(t)
	if nt == nil {
		return Stats{}
	}
	s := Stats{Joined: true, Blocks: len(nt.view), Handles: len(nt.pages), Epoch: nt.epoch, Totals: nt.totals}
	for h, m := range nt.view {
		if m.best() != GPU {
			s.Lower++
		}
		if m.best() == Disk {
			s.Disk++
		}
		p := nt.parents[h]
		if _, block := nt.parents[p]; block && nt.view[p] == 0 {
			s.Holes++
		}
	}
	for _, o := range nt.pending {
		s.Orphans += o.waiting()
	}
	for _, c := range nt.copies {
		for _, n := range c {
			s.Copies += n
		}
	}
	return s
}

func (x *naive) ContentHash(t target.ID) uint64 {
	var sum uint64
	if nt := x.get(t); nt != nil {
		for h, m := range nt.view {
			sum += contentTerm(h, m)
		}
	}
	return sum
}

func (x *naive) Check() error {
	members, handles := 0, 0
	for t, nt := range x.targets {
		if nt == nil {
			continue
		}
		members += len(nt.view)
		handles += len(nt.pages)
		for h, m := range nt.view {
			var r Result
			x.refresh(nt, h, &r)
			if r != (Result{}) || nt.view[h] != m {
				return fmt.Errorf("target %d: block %016x is in tiers %b, its handles say %b", t, h, m, nt.view[h])
			}
		}
	}
	if members != x.members || handles != x.handles {
		return fmt.Errorf("counted %d memberships and %d handles, there are %d and %d", x.members, x.handles, members, handles)
	}
	return nil
}
