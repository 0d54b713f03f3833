package index

import (
	"slices"

	"github.com/kvroute/kvroute/internal/block"
)

// page is what a handle stands for that is not exactly one block: because the engine's pages are
// larger or smaller than a block, or because they do not begin where a block does.
//
// Invariants:
//
//	P1  ids are the blocks the page completes, in order; end is the last of them, or the block before
//	    the page if there is none, and is pinned.
//	P2  first is where the target holds ids[0] because of this page: nowhere while one of parts, the
//	    earlier pages of that block, is missing, else as together says; the other blocks are held in tiers.
//	P3  mirror.users lists the page under the handle of each of its parts.
type page struct {
	tiers tiers
	first tiers
	end   uint32
	hash  block.Hash    // of end, or the root
	ids   []uint32      // completed by this page
	parts []part        // earlier pages of ids[0], or of the block still open
	rest  []block.Token // after end
	open  []part        // the pages rest comes from, this one included
	state block.Hash    // of hash and rest: what the handle stands for as a part
}

func (p *page) place() place { return place{id: p.end, hash: p.hash, rest: p.rest, open: p.open} }

func (p *page) same(q *page) bool {
	return p.hash == q.hash && slices.Equal(p.rest, q.rest) && slices.Equal(p.ids, q.ids) && slices.Equal(p.parts, q.parts)
}

// storePages stores handles from the i-th on, each of which is a page of tokens.
func (x *Index) storePages(m *mirror, op *Op, gone []bool, i, size int, at place, r *Result) {
	for ; i < len(op.Handles); i++ {
		h := op.Handles[i]
		p, conflict := x.pageAfter(at, h, op.Tokens[i*size:(i+1)*size])
		if p == nil {
			if conflict {
				r.Conflict += len(op.Handles) - i
			} else {
				r.Refused += len(op.Handles) - i
			}
			return
		}
		at = p.place()
		if gone != nil && gone[i] {
			continue
		}
		s := x.lookup(m, h)
		if s.page != nil && s.page.same(p) {
			x.addTier(m, h, s, op.Tier, op.Counted, r)
			continue
		}
		if s.tiers != 0 {
			x.drop(m, h, s, r)
			r.Rebound++
		}
		p.tiers = tier(op.Tier)
		if x.handles >= x.opt.HandleLimit || x.members+x.need(m, h, p) > x.opt.Limit {
			r.Refused += len(op.Handles) - i
			return
		}
		x.putPage(m, h, p, r)
		if s.tiers == 0 {
			x.arrive(m, h)
		}
	}
}

// pageAfter works out what a handle stands for, makes the entries of its blocks, and moves the cursor
// to its end. It returns nil if a block is known under another parent or there are MaxBlocks.
func (x *Index) pageAfter(at place, h Handle, tokens []block.Token) (p *page, conflict bool) {
	x.tokens = append(append(x.tokens[:0], at.rest...), tokens...)
	x.chain = block.AppendChain(x.chain[:0], at.hash, x.tokens, x.size)
	p = &page{end: at.id, hash: at.hash, parts: at.open}
	for _, hash := range x.chain {
		id, conflict := x.entryOf(hash, p.end)
		if id == 0 {
			return nil, conflict
		}
		x.advance(id)
		p.ids = append(p.ids, id)
		p.end, p.hash = id, hash
	}
	p.rest = slices.Clone(x.tokens[len(x.chain)*x.size:])
	if len(p.rest) > 0 {
		p.state = block.Next(p.hash, p.rest)
		if len(p.ids) == 0 {
			p.open = slices.Clone(p.parts)
		}
		p.open = append(p.open, part{h, p.state})
	}
	return p, false
}

// held is where the target holds the first block of a page because of the page.
func (m *mirror) held(p *page) tiers {
	t := p.tiers
	for _, q := range p.parts {
		o := m.pages[q.handle]
		if o == nil || len(o.rest) == 0 || o.state != q.state {
			return 0
		}
		t = together(t, o.tiers)
	}
	return t
}

// need counts the pages by which a block comes to be held that is not, if h is stored as p.
func (x *Index) need(m *mirror, h Handle, p *page) int {
	users := m.users[h]
	if x.members+len(p.ids)+len(users) <= x.opt.Limit {
		return 0 // whatever it is, there is room
	}
	if m.pages == nil {
		m.pages = map[Handle]*page{}
	}
	m.pages[h] = p
	defer delete(m.pages, h)
	n := 0
	for k, id := range p.ids {
		if (k > 0 || m.held(p) != 0) && x.sets.get(x.arena.at(id)[fSet], m.t) == absent {
			n++
		}
	}
	for _, u := range users {
		q := m.pages[u]
		if len(q.ids) > 0 && m.held(q) != 0 && x.sets.get(x.arena.at(q.ids[0])[fSet], m.t) == absent {
			n++
		}
	}
	return n
}

// putPage stores a handle that is not known.
func (x *Index) putPage(m *mirror, h Handle, p *page, r *Result) {
	if m.pages == nil {
		m.pages = map[Handle]*page{}
	}
	if m.users == nil {
		m.users = map[Handle][]Handle{}
	}
	m.pages[h] = p
	m.handles++
	x.handles++
	x.pin(p.end)
	for _, q := range p.parts {
		if !slices.Contains(m.users[q.handle], h) {
			m.users[q.handle] = append(m.users[q.handle], h)
		}
	}
	p.first = m.held(p)
	x.reholdPage(m, p, 0, p.first, 0, p.tiers, r)
	x.wake(m, h, r)
}

// reholdPage changes where the blocks of a page are held: the first block, and the others.
func (x *Index) reholdPage(m *mirror, p *page, oldFirst, first, old, now tiers, r *Result) {
	for k, id := range p.ids {
		if k == 0 {
			x.rehold(m, id, oldFirst, first, r)
		} else {
			x.rehold(m, id, old, now, r)
		}
	}
}

// setPageTiers changes the tiers of a known handle that is a page.
func (x *Index) setPageTiers(m *mirror, h Handle, p *page, now tiers, r *Result) {
	old, oldFirst := p.tiers, p.first
	p.tiers = now
	p.first = m.held(p)
	x.reholdPage(m, p, oldFirst, p.first, old, now, r)
	x.wake(m, h, r)
}

// dropPage forgets a handle that is a page.
func (x *Index) dropPage(m *mirror, h Handle, p *page, r *Result) {
	delete(m.pages, h)
	for _, q := range p.parts {
		users := m.users[q.handle]
		if i := slices.Index(users, h); i >= 0 {
			users = slices.Delete(users, i, i+1)
		}
		if len(users) == 0 {
			delete(m.users, q.handle)
		} else {
			m.users[q.handle] = users
		}
	}
	x.reholdPage(m, p, p.first, 0, p.tiers, 0, r)
	x.wake(m, h, r)
	x.unpin(p.end)
}

// wake works out anew where the blocks are held that a handle has a part in.
func (x *Index) wake(m *mirror, h Handle, r *Result) {
	for _, u := range m.users[h] {
		q := m.pages[u]
		if now := m.held(q); now != q.first {
			old := q.first
			q.first = now
			if len(q.ids) > 0 {
				x.rehold(m, q.ids[0], old, now, r)
			}
		}
	}
}
