package index

import (
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// Index mirrors the caches of all targets. It is owned by one goroutine, or by whoever holds the lock it
// is kept under; see Options.Yield.
//
// Every distinct block is one entry of an arena, found by its hash and by its primary handle, the
// handle it was first stored under. Who holds it is a set shared by all blocks held by the same
// targets. What is unusual about one target and block (another handle, aliases, lower tiers, pages that
// are not one block) lies in that target's side tables; the common case touches none of them.
//
// Invariants (Check verifies all of them):
//
//	I1  an entry lives while a target holds it, a live entry has it as parent, a page ends in it, or it
//	    is the cursor of the event being applied; ids of dead entries are in the free list.
//	I2  byHash has exactly the live entries, byHandle exactly those with a target in state primary;
//	    no two entries have the same primary handle.
//	I3  target t holds a block in state primary if exactly the primary handle gives it, in GPU only;
//	    otherwise the nearest tier makes the state, and mirror.refs counts by tier what gives it, unless
//	    that is exactly one handle (side or page) in GPU only.
//	I4  kid of an entry is its only child, or a number of children with Index.fans counting for each
//	    target how many of them it holds.
//	I5  holes[t] is the number of blocks t holds whose parent is neither the root nor held by t; t is in
//	    whole if it has joined, is not being emptied, and holes[t] = 0. What a target in whole holds is
//	    closed under parents, so where its run ends can be found by bisection.
//	I6  members is the number of (block, target) pairs, at most Limit; handles that of (handle, target)
//	    pairs, at most HandleLimit; blocks, lower, handles and sum of a mirror are those of its content.
//	I7  mirror.copies has only handles that are known, in tiers they are in, and no zeros; spare is their sum.
//	I8  spaces has the namespace of every entry without parent whose chain does not begin at block.Root.
//
// Store and remove are O(1) per block, and so is a look at Stats and ContentHash. Emptying a target
// looks at every entry once. Match is described in match.go.
//
// Memory of a block held by one target: 28 bytes of entry and two slots of about 5.2 bytes in the
// tables, 39 in all; by many targets with the same handles: the same again for all of them together;
// with a handle of its own in each: 15 bytes a target beside.
type Index struct {
	size     int
	opt      Options
	arena    arena
	byHash   table
	byHandle table
	sets     sets
	mirrors  []*mirror // by target.ID, nil: not joined
	holes    []int32   // by target.ID
	whole    []uint64  // bit per target: see I5
	joined   []uint64  // bit per target: joined and not being emptied
	members  int
	handles  int
	lowers   int // blocks in states onCPU and onDisk over all targets
	fans     map[fan]uint32
	pins     map[uint32]uint32 // pages that end in a ghost or block, by entry id
	cursor   uint32            // entry after which the event being applied goes on
	emptied  *mirror           // being emptied, nil: none
	patience int               // yieldAfter, less in tests
	root     block.Hash        // namespace of the event being applied, for entries without parent
	spaces   map[uint32]block.Hash

	chain            []block.Hash  // of the event being applied
	tokens           []block.Token // leftover of the parent and the page after it
	asHash, asHandle []probe       // for its next blocks, see fetch
	fresh            filter        // keys they brought so far
	arrived          []Handle      // handles whose orphans have to be looked for
	sink             uint32        // keeps touches from being optimised away
}

// fan names how many children of a block a target holds.
type fan struct {
	parent uint32
	target target.ID
}

// mirror is what is particular to one target.
type mirror struct {
	t       target.ID
	side    *sideTable // handles other than primary ones that stand for one whole block; nil: none
	refs    map[uint32]refs
	pages   map[Handle]*page
	users   map[Handle][]Handle // pages that have the key as a part, see page.parts
	copies  map[Handle]copies   // handles announced several times
	spare   int                 // copies beyond the first
	orphans orphans
	blocks  int
	handles int
	lower   int // blocks in no better tier than CPU
	disk    int // of them, those in disk only
	epoch   int
	sum     uint64 // content hash
	totals  Result
}

// refs counts what gives a block to a target: handles and pages by tier, and stores without handle.
type refs struct {
	n    [NumTiers]uint32
	bare tiers
}

func (r *refs) tiers() tiers {
	m := r.bare
	for t, n := range r.n {
		if n > 0 {
			m |= tier(Tier(t))
		}
	}
	return m
}

// state is what the counts amount to, if no primary handle is among them.
func (r *refs) state() state {
	m := r.tiers()
	if m == 0 {
		return absent
	}
	return [NumTiers]state{other, onCPU, onDisk}[m.best()]
}

// oneHandle is the case that is not noted in mirror.refs: one handle, in GPU.
var oneHandle = refs{n: [NumTiers]uint32{GPU: 1}}

// New makes an index over blocks of blockSize tokens, at least 1.
func New(blockSize int, opt Options) *Index {
	if blockSize < 1 {
		panic("index: blocks without tokens")
	}
	return &Index{
		size: blockSize, opt: opt.withDefaults(),
		arena: newArena(), byHash: newTable(fHash), byHandle: newTable(fHandle), sets: newSets(),
		whole: make([]uint64, 1), joined: make([]uint64, 1), patience: yieldAfter,
		fans: map[fan]uint32{}, pins: map[uint32]uint32{}, spaces: map[uint32]block.Hash{},
	}
}

// Join makes a target known, empty. A target that has joined is left as it is. IDs from
// target.MaxTargets on are ignored, as by the ledger: their operations are refused as not joined.
func (x *Index) Join(t target.ID) {
	if t >= target.MaxTargets {
		return
	}
	for len(x.mirrors) < slots(t) {
		x.mirrors = append(x.mirrors, nil)
		x.holes = append(x.holes, 0)
	}
	x.sets.widen(len(x.mirrors))
	for len(x.whole) < x.sets.words {
		x.whole, x.joined = append(x.whole, 0), append(x.joined, 0)
	}
	if x.mirrors[t] == nil {
		x.mirrors[t] = &mirror{t: t}
		setBit(x.whole, t)
		setBit(x.joined, t)
	}
}

// Forget removes a target with all it holds. It does nothing if the target has not joined.
func (x *Index) Forget(t target.ID) {
	if m := x.mirror(t); m != nil {
		var r Result
		x.empty(m, &r)
		x.mirrors[t] = nil
		clearBit(x.whole, t)
		clearBit(x.joined, t)
	}
}

func (x *Index) mirror(t target.ID) *mirror {
	if int(t) < len(x.mirrors) {
		return x.mirrors[t]
	}
	return nil
}

// Apply folds one operation into the mirror of its target. An error (ErrOp) means that nothing changed.
func (x *Index) Apply(op Op) (Result, error) {
	if err := op.validate(); err != nil {
		return Result{}, err
	}
	m := x.mirror(op.Target)
	if m == nil {
		return Result{}, unjoined(&op)
	}
	var r Result
	switch op.Kind {
	case Store:
		x.storeAll(m, &op, &r)
	case Remove:
		x.removeAll(m, &op, &r)
	case Clear, Epoch:
		x.empty(m, &r)
		m.epoch++
	}
	m.totals.Add(r)
	return r, nil
}

// Emptying a target calls Options.Yield after yieldAfter steps, some microseconds: to look at an entry
// takes one, to take it from the target takes leaveSteps.
const (
	yieldAfter = 4096
	leaveSteps = 64
)

// empty takes everything from a target. Until it is done, the target counts as holding nothing: Match
// looks at targets that are whole, and at joined ones, of which it is neither.
func (x *Index) empty(m *mirror, r *Result) {
	clearBit(x.whole, m.t)
	clearBit(x.joined, m.t)
	if x.opt.Observer != nil {
		x.opt.Observer.Emptied(m.t)
	}
	r.Dropped += m.orphans.waiting
	m.orphans = orphans{}
	pages := m.pages
	x.handles -= m.handles
	m.handles, m.side, m.refs, m.pages, m.users = 0, nil, nil, nil, nil
	m.copies, m.spare, m.sum = nil, 0, 0
	for _, p := range pages {
		x.unpin(p.end)
	}
	r.Removed += m.blocks
	x.emptied = m
	for id, steps := uint32(1), 0; m.blocks > 0; id++ {
		if s := x.arena.at(id)[fSet]; s != 0 && x.sets.get(s, m.t) != absent {
			x.leave(m, id)
			steps += leaveSteps
		}
		if steps++; steps >= x.patience && x.opt.Yield != nil {
			x.opt.Yield()
			steps = 0
		}
	}
	x.emptied = nil
	x.lowers -= m.lower
	m.lower, m.disk = 0, 0
	setBit(x.whole, m.t)
	setBit(x.joined, m.t)
}

// Stats describes the mirror of one target.
func (x *Index) Stats(t target.ID) Stats {
	m := x.mirror(t)
	if m == nil {
		return Stats{}
	}
	s := Stats{
		Joined: true, Blocks: m.blocks, Handles: m.handles, Copies: m.spare, Orphans: m.orphans.waiting,
		Holes: int(x.holes[t]), Lower: m.lower, Disk: m.disk, Epoch: m.epoch, Totals: m.totals,
	}
	if m == x.emptied {
		s.Blocks, s.Holes, s.Lower, s.Disk = 0, 0, 0, 0
	}
	return s
}

// ContentHash depends on which blocks a target holds in which tiers, and on nothing else.
func (x *Index) ContentHash(t target.ID) uint64 {
	if m := x.mirror(t); m != nil {
		return m.sum
	}
	return 0
}

// Size describes the index as a whole.
type Size struct {
	Members int // (block, target) pairs
	Handles int // (handle, target) pairs
	Blocks  int // distinct blocks, those only descended from included
	Sets    int // distinct sets of two or more targets that hold the same block
}

// Size describes the index as a whole.
func (x *Index) Size() Size {
	return Size{x.members, x.handles, x.arena.live, int(x.sets.next) - 1 - len(x.sets.free)}
}

func setBit(b []uint64, t target.ID) { b[t>>6] |= 1 << (t & 63) }

func clearBit(b []uint64, t target.ID) { b[t>>6] &^= 1 << (t & 63) }

func hasBit(b []uint64, t target.ID) bool { return b[t>>6]>>(t&63)&1 != 0 }
