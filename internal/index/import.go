package index

import (
	"errors"
	"fmt"
	"iter"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// ErrImport is wrapped by the errors of Import: the records are not those of a mirror.
var ErrImport = errors.New("not the records of a mirror")

// Import fills the mirror of a target that has joined and is empty with what Export gave, in that order.
// Later operations have the effect they would have on the exported mirror. What is beyond the limits is
// refused and counted, as Apply does. An error, of records or of the sequence, leaves the target empty. The
// observer is told of every block. The index keeps none of the slices.
func (x *Index) Import(t target.ID, records iter.Seq2[*Record, error]) (Result, error) {
	m := x.mirror(t)
	switch {
	case m == nil:
		return Result{}, fmt.Errorf("importing to target %d: %w: the target has not joined", t, ErrOp)
	case m.blocks > 0 || m.handles > 0 || m.orphans.waiting > 0:
		return Result{}, fmt.Errorf("importing to target %d: %w: the target is not empty", t, ErrOp)
	}
	im := importer{x: x, m: m}
	n := 0
	for rec, err := range records {
		if err == nil {
			if err = im.record(rec); err != nil {
				err = fmt.Errorf("record %d: %w", n+1, err)
			}
		}
		if err != nil {
			im.done()
			x.empty(m, &Result{})
			return Result{}, fmt.Errorf("importing to target %d: %w", t, err)
		}
		n++
	}
	im.done()
	m.totals.Add(im.r)
	return im.r, nil
}

// importer is the state of an import. Blocks that the target does not hold are pinned until the blocks
// after them have come.
type importer struct {
	x      *Index
	m      *mirror
	ghosts []uint32
	r      Result
}

func (im *importer) done() {
	im.x.advance(0)
	for _, id := range im.ghosts {
		im.x.unpin(id)
	}
}

func (im *importer) record(rec *Record) error {
	x := im.x
	in := tiers(0)
	for t, n := range rec.Copies {
		if n > 0 {
			in |= tier(Tier(t))
		}
	}
	switch {
	case len(rec.Hashes) == 0:
		return fmt.Errorf("%w: no block", ErrImport)
	case !rec.HasHandle && len(rec.Hashes) > 1:
		return fmt.Errorf("%w: %d blocks without a handle", ErrImport, len(rec.Hashes))
	case rec.HasHandle && in == 0:
		return fmt.Errorf("%w: handle %x is in no tier", ErrImport, rec.Handle)
	}
	parent := uint32(0)
	if x.root = rec.Parent; !rec.First {
		if parent = x.byHash.find(&x.arena, mix(uint64(rec.Parent)), uint64(rec.Parent)); parent == 0 {
			if im.r.Refused > 0 { // it was refused, and so is what comes after it
				im.r.Refused++
				return nil
			}
			return fmt.Errorf("%w: the block %016x before %016x is not known", ErrImport, rec.Parent, rec.Hashes[0])
		}
	}
	x.advance(parent)
	var conflict bool
	switch {
	case !rec.HasHandle:
		conflict = im.bare(rec.Hashes[0], parent, in)
	case x.lookup(im.m, rec.Handle).tiers != 0:
		return fmt.Errorf("%w: handle %x comes twice", ErrImport, rec.Handle)
	case len(rec.Hashes) == 1:
		conflict = im.whole(rec, parent)
	default:
		conflict = im.page(rec, parent, in)
	}
	if conflict {
		return fmt.Errorf("%w: a block of %016x is known after another block than %016x", ErrImport, rec.Hashes, rec.Parent)
	}
	return nil
}

// whole imports a handle that is one block.
func (im *importer) whole(rec *Record, parent uint32) (conflict bool) {
	x := im.x
	x.arrived = x.arrived[:0]
	stored := false
	for t, n := range rec.Copies {
		if n == 0 {
			continue
		}
		if stored {
			x.addTier(im.m, rec.Handle, x.lookup(im.m, rec.Handle), Tier(t), false, &im.r)
		} else {
			x.fetch(im.m, []Handle{rec.Handle}, rec.Hashes)
			id, conflict := x.storeBlock(im.m, &x.asHandle[0], &x.asHash[0], parent, Tier(t), false, &im.r)
			if id == 0 {
				if !conflict {
					im.r.Refused++
				}
				return conflict
			}
			stored = true
		}
		im.copies(rec.Handle, Tier(t), n)
	}
	return false
}

func (im *importer) copies(h Handle, t Tier, n uint32) {
	if n < 2 {
		return
	}
	im.m.copied(h, t)
	c := im.m.copies[h]
	im.m.spare += int(n-1) - int(c[t])
	c[t] = n - 1
	im.m.copies[h] = c
}

// bare imports a block held without a handle, or not held at all.
func (im *importer) bare(h block.Hash, parent uint32, in tiers) (conflict bool) {
	x := im.x
	id, conflict := x.entryOf(h, parent)
	switch {
	case id == 0:
		if !conflict {
			im.r.Refused++
		}
		return conflict
	case in == 0:
		x.pin(id)
		im.ghosts = append(im.ghosts, id)
		return false
	case x.members >= x.opt.Limit && x.sets.get(x.arena.at(id)[fSet], im.m.t) == absent:
		im.r.Refused++
		x.tryFree(id)
		return false
	}
	for t := GPU; t < NumTiers; t++ {
		if in&tier(t) != 0 {
			x.holdBare(im.m, id, t, &im.r)
		}
	}
	return false
}

// page imports a handle that is several blocks.
func (im *importer) page(rec *Record, parent uint32, in tiers) (conflict bool) {
	x := im.x
	p := &page{end: parent, tiers: in}
	for _, h := range rec.Hashes {
		id, conflict := x.entryOf(h, p.end)
		if id == 0 {
			if !conflict {
				im.r.Refused++
			}
			return conflict
		}
		x.advance(id)
		p.ids = append(p.ids, id)
		p.end, p.hash = id, h
	}
	if x.handles >= x.opt.HandleLimit || x.members+x.need(im.m, rec.Handle, p) > x.opt.Limit {
		im.r.Refused++
		return false
	}
	x.putPage(im.m, rec.Handle, p, &im.r)
	for t, n := range rec.Copies {
		im.copies(rec.Handle, Tier(t), n)
	}
	return false
}
