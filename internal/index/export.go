package index

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// Record is one part of a mirror: a handle and what it stands for; a block held without a handle; or, with
// Copies all zero, a block that the target does not hold while it holds later ones of the chain.
type Record struct {
	Handle    Handle
	HasHandle bool
	First     bool             // there is no block before the first of Hashes
	Parent    block.Hash       // the block before the first of Hashes; if it is First, the namespace
	Hashes    []block.Hash     // one, or the several blocks of a page
	Copies    [NumTiers]uint32 // by tier: how often it was announced there, see Op.Counted; 0: not there
}

// ErrExport is wrapped by the errors of Export: the mirror cannot be put into records.
var ErrExport = errors.New("not exportable")

// Export gives the mirror of a target, record by record: of a block before those of the blocks after it,
// otherwise in an order that depends on the history. Handles and hashes are all it has, no tokens; hence a
// mirror with pages that do not begin and end where blocks do cannot be exported. Events waiting for their
// parent (Stats.Orphans) are not part of it. The index must not change meanwhile.
//
// The slices of a record are valid until each returns. An error of each ends the export and is returned.
// Time is in proportion to the whole index, 100 to 300 ns for a block of the target and 1 for others; memory
// one bit for each block of the index, and 4 to 8 bytes for each beside 16 for each handle if some are
// not primary ones.
func (x *Index) Export(t target.ID, each func(*Record) error) error {
	m := x.mirror(t)
	if m == nil {
		return fmt.Errorf("exporting target %d: %w: the target has not joined", t, ErrExport)
	}
	odd := 0
	for _, p := range m.pages {
		if len(p.rest) > 0 || len(p.parts) > 0 {
			odd++
		}
	}
	if odd > 0 {
		return fmt.Errorf("exporting target %d: %w: %d of its %d handles stand for pages that do not begin and end where blocks do", t, ErrExport, odd, m.handles)
	}
	e := exporter{x: x, m: m, each: each, seen: make([]uint64, x.arena.next/64+1)}
	e.listSides()
	e.listPages()
	var path []uint32
	for id, left := uint32(1), m.blocks; left > 0; id++ {
		s := x.arena.at(id)[fSet]
		if s == 0 || x.sets.get(s, t) == absent {
			continue
		}
		left--
		for a := id; a != 0 && e.seen[a/64]>>(a%64)&1 == 0; a = x.arena.at(a)[fParent] {
			e.seen[a/64] |= 1 << (a % 64)
			path = append(path, a)
		}
		for ; len(path) > 0; path = path[:len(path)-1] {
			if err := e.block(path[len(path)-1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// exporter is the state of an export.
type exporter struct {
	x       *Index
	m       *mirror
	each    func(*Record) error
	seen    []uint64 // bit per entry: it had its turn, or is about to
	covered []uint64 // bit per entry: it is in a page that had its turn
	sides   []sideHandle
	sideAt  []uint32 // by entry: 1 + place of its first in sides; nil: there are none
	pages   []pageHandle
	pageAt  []uint32 // by entry that is the first of a page: 1 + place in pages; nil: there are none
	rec     Record
	hashes  []block.Hash
}

// sideHandle is a handle of the side table.
type sideHandle struct {
	h    Handle
	in   tiers
	next uint32 // of the same entry, as in sideAt; 0: none
}

// pageHandle is a handle that is a page. They are in order of the first entries, then of handles.
type pageHandle struct {
	h     Handle
	first uint32
	p     *page
}

func (e *exporter) listSides() {
	if e.m.side == nil || e.m.side.n == 0 {
		return
	}
	e.sides = make([]sideHandle, 0, e.m.side.n)
	e.sideAt = make([]uint32, e.x.arena.next)
	for i := range e.m.side.shards {
		for k, v := range e.m.side.shards[i].vals {
			if v != 0 {
				id := v & idMask
				e.sides = append(e.sides, sideHandle{e.m.side.shards[i].keys[k], tiers(v >> idBits), e.sideAt[id]})
				e.sideAt[id] = uint32(len(e.sides))
			}
		}
	}
}

func (e *exporter) listPages() {
	if len(e.m.pages) == 0 {
		return
	}
	e.pages = make([]pageHandle, 0, len(e.m.pages))
	for h, p := range e.m.pages {
		e.pages = append(e.pages, pageHandle{h, p.ids[0], p})
	}
	slices.SortFunc(e.pages, func(a, b pageHandle) int {
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.h, b.h))
	})
	e.pageAt = make([]uint32, e.x.arena.next)
	for i := len(e.pages) - 1; i >= 0; i-- {
		e.pageAt[e.pages[i].first] = uint32(i + 1)
	}
	e.covered = make([]uint64, len(e.seen))
}

// block gives the records of one entry. A page is given with its first block.
func (e *exporter) block(id uint32) error {
	ent := e.x.arena.at(id)
	e.rec.First, e.rec.Parent = ent[fParent] == 0, e.x.parentHash(id)
	e.hashes = append(e.hashes[:0], ent.hash())
	if e.x.sets.get(ent[fSet], e.m.t) == primary {
		return e.give(ent.handle(), true, tier(GPU))
	}
	given := false
	if e.sideAt != nil {
		for i := e.sideAt[id]; i != 0; i = e.sides[i-1].next {
			if err := e.give(e.sides[i-1].h, true, e.sides[i-1].in); err != nil {
				return err
			}
			given = true
		}
	}
	if bare := e.m.refs[id].bare; bare != 0 {
		if err := e.give(0, false, bare); err != nil {
			return err
		}
		given = true
	}
	if e.pageAt != nil && e.pageAt[id] != 0 {
		given = true
		for i := int(e.pageAt[id] - 1); i < len(e.pages) && e.pages[i].first == id; i++ {
			if err := e.page(&e.pages[i]); err != nil {
				return err
			}
		}
	}
	if given || e.covered != nil && e.covered[id/64]>>(id%64)&1 != 0 {
		return nil
	}
	return e.give(0, false, 0)
}

func (e *exporter) page(p *pageHandle) error {
	e.hashes = e.hashes[:0]
	for _, b := range p.p.ids {
		e.hashes = append(e.hashes, e.x.arena.at(b).hash())
		e.covered[b/64] |= 1 << (b % 64)
	}
	return e.give(p.h, true, p.p.tiers)
}

func (e *exporter) give(h Handle, has bool, in tiers) error {
	e.rec.Handle, e.rec.HasHandle, e.rec.Hashes, e.rec.Copies = h, has, e.hashes, [NumTiers]uint32{}
	for t := range e.rec.Copies {
		if in&tier(Tier(t)) != 0 {
			e.rec.Copies[t] = 1
		}
	}
	if has && e.m.spare > 0 {
		for t, n := range e.m.copies[h] {
			e.rec.Copies[t] += n
		}
	}
	return e.each(&e.rec)
}
