package load

import (
	"fmt"

	"github.com/kvroute/kvroute/internal/target"
)

// MaxTokens bounds the tokens of one reservation, so that no sum over a ledger can overflow. Larger
// demands count as MaxTokens, negative ones as 0.
const MaxTokens = int64(1) << 40

// Ledger counts what has been sent to each target and has not ended yet.
//
// It is not safe for concurrent use. Whoever shares one between goroutines holds one lock around the
// reads a choice rests on and the Reserve that follows, or two choices see the same load.
//
// A reservation belongs to one life of a target, from Join to the next Join with another incarnation
// (or Forget). Leaving does not end a life: a worker that drops out of discovery and comes back as
// the same incarnation still computes what it was sent. Handles of a former life change nothing.
//
// Invariants (Check verifies them):
//
//	L1  a target's Load is the sum over the reservations of its present life.
//	L2  ActiveBlocks counts the distinct blocks of those reservations.
//	L3  a reservation is released at most once, and its first token counts at most once.
//	L4  each slot is either live or on the free list; generations of freed slots differ from all
//	    handles given out for them (until 2^32 reuses of one slot).
//	L5  each end is on the list of one live reservation or on the free list.
//
// Reserve costs one hash lookup per newly active block plus one, Release the same; neither allocates
// once the ledger has reached its working size. Memory: 40 bytes per active block and target at
// worst, 56 per reservation, 8 per further prompt.
type Ledger struct {
	targets []account
	slots   []reservation
	free    uint32
	ends    []end // of further prompts
	spare   uint32
}

// end is where one of the further prompts of a reservation ends.
type end struct {
	leaf uint32 // in the target's active set
	next uint32 // of the same reservation, or of the free list; none: the last
}

// account is one target's side of the ledger.
type account struct {
	known   bool // between Join and Forget
	present bool // joined and not left
	inc     target.Incarnation
	life    uint32
	load    Load
	active  activeSet
}

// reservation is one slot. While free, leaf is the next free slot.
type reservation struct {
	gen     uint32
	live    bool
	waiting bool // no first token yet
	target  target.ID
	leaf    uint32
	more    uint32 // further prompts: first of their ends, none: there are none
	prefill int64
	tokens  int64
	tag     uint64
}

// New returns an empty ledger.
func New() *Ledger { return &Ledger{free: none, spare: none} }

// Join starts a life of target t, or continues it if t was joined before as the same incarnation. It
// voids the reservations of an earlier incarnation. IDs from target.MaxTargets on are ignored.
func (l *Ledger) Join(t target.ID, inc target.Incarnation) {
	if t >= target.MaxTargets {
		return
	}
	for int(t) >= len(l.targets) {
		l.targets = append(l.targets, account{})
	}
	a := &l.targets[t]
	if a.known && a.inc != inc {
		l.Forget(t)
	}
	if a.active.slots == nil {
		a.active = newActiveSet()
	}
	a.known, a.present, a.inc = true, true, inc
}

// Leave marks t as gone from discovery. Its load stays until released, or until another incarnation
// joins: requests under way are still held by the worker.
func (l *Ledger) Leave(t target.ID) {
	if int(t) < len(l.targets) {
		l.targets[t].present = false
	}
}

// Forget ends the life of t: its reservations are void and its load is nothing. It must be called
// before the ID is given to another worker, whose incarnation may happen to be the same number.
func (l *Ledger) Forget(t target.ID) {
	if !l.Known(t) {
		return
	}
	for i := range l.slots {
		if r := &l.slots[i]; r.live && r.target == t {
			l.freeSlot(uint32(i))
		}
	}
	a := &l.targets[t]
	a.active.clear()
	*a = account{active: a.active, life: a.life + 1}
}

// Known reports whether t has joined and was not forgotten; only then can it be reserved.
func (l *Ledger) Known(t target.ID) bool { return int(t) < len(l.targets) && l.targets[t].known }

// Present reports whether t is known and has not left.
func (l *Ledger) Present(t target.ID) bool { return int(t) < len(l.targets) && l.targets[t].present }

// Load returns what is in flight on t; it is zero for targets that are not Known.
func (l *Ledger) Load(t target.ID) (ld Load) {
	l.Look(t, &ld)
	return ld
}

// Look puts what is in flight on t into ld and returns the life of t and whether it is Known; ld is
// not touched where it is not. It is Load and Life in one, for loops over many targets.
func (l *Ledger) Look(t target.ID, ld *Load) (life uint32, known bool) {
	if int(t) >= len(l.targets) {
		return 0, false
	}
	a := &l.targets[t]
	if a.known {
		*ld = a.load
	}
	return a.life, a.known
}

// Life returns a number that is different in every life of t. Memory about a target that is kept
// elsewhere is void once its life differs.
func (l *Ledger) Life(t target.ID) uint32 {
	if int(t) >= len(l.targets) {
		return 0
	}
	return l.targets[t].life
}

// Reserve books d on t. The zero Handle comes back, and nothing is booked, where t is not Known.
// d.Blocks must be one chain of block hashes: equal hashes have equal predecessors.
func (l *Ledger) Reserve(t target.ID, d Demand) Handle {
	if !l.Known(t) {
		return Handle{}
	}
	a := &l.targets[t]
	i := l.free
	if i != none {
		l.free = l.slots[i].leaf
	} else {
		i = uint32(len(l.slots))
		l.slots = append(l.slots, reservation{gen: 1})
	}
	r := &l.slots[i]
	*r = reservation{
		gen: r.gen, live: true, waiting: true, target: t,
		leaf: a.active.add(d.Blocks), more: none, prefill: clampTokens(d.PrefillTokens), tokens: clampTokens(d.Tokens),
		tag: d.Tag,
	}
	for _, chain := range d.More {
		r.more = l.putEnd(a.active.add(chain), r.more)
	}
	a.load.ActiveBlocks = int64(a.active.live)
	a.load.PendingTokens += r.prefill
	a.load.PendingRequests++
	a.load.HeldTokens += r.tokens
	a.load.HeldRequests++
	return Handle{slot: i, gen: r.gen}
}

// FirstToken ends the pending part of a reservation: its prefill is done. It reports false, and
// changes nothing, the second time and for handles that are unknown, released or of a former life.
func (l *Ledger) FirstToken(h Handle) bool {
	r := l.find(h)
	if r == nil || !r.waiting {
		return false
	}
	r.waiting = false
	ld := &l.targets[r.target].load
	ld.PendingTokens -= r.prefill
	ld.PendingRequests--
	return true
}

// Release ends a reservation. It reports false, and changes nothing, for handles that are unknown,
// already released or of a former life.
func (l *Ledger) Release(h Handle) bool {
	l.FirstToken(h)
	r := l.find(h)
	if r == nil {
		return false
	}
	a := &l.targets[r.target]
	a.load.HeldTokens -= r.tokens
	a.load.HeldRequests--
	a.active.remove(r.leaf)
	for e := r.more; e != none; e = l.ends[e].next {
		a.active.remove(l.ends[e].leaf)
	}
	a.load.ActiveBlocks = int64(a.active.live)
	l.freeSlot(h.slot)
	return true
}

// Reservation is a live reservation as it was booked.
type Reservation struct {
	Target        target.ID
	PrefillTokens int64
	Tokens        int64
	Tag           uint64
	Waiting       bool // no first token yet
}

// Reservation returns what h names. ok is false for handles that are unknown, released or of a former life.
func (l *Ledger) Reservation(h Handle) (res Reservation, ok bool) {
	r := l.find(h)
	if r == nil {
		return Reservation{}, false
	}
	return Reservation{Target: r.target, PrefillTokens: r.prefill, Tokens: r.tokens, Tag: r.tag, Waiting: r.waiting}, true
}

func (l *Ledger) find(h Handle) *reservation {
	if int(h.slot) >= len(l.slots) {
		return nil
	}
	if r := &l.slots[h.slot]; r.live && r.gen == h.gen {
		return r
	}
	return nil
}

func (l *Ledger) freeSlot(i uint32) {
	l.freeEnds(l.slots[i].more)
	gen := l.slots[i].gen + 1
	if gen == 0 { // the zero Handle must never name a reservation
		gen = 1
	}
	l.slots[i] = reservation{gen: gen, leaf: l.free}
	l.free = i
}

// putEnd puts an end before those of a list.
func (l *Ledger) putEnd(leaf, list uint32) uint32 {
	e := l.spare
	if e == none {
		e = uint32(len(l.ends))
		l.ends = append(l.ends, end{})
	} else {
		l.spare = l.ends[e].next
	}
	l.ends[e] = end{leaf, list}
	return e
}

// freeEnds puts the ends of a list on the free list.
func (l *Ledger) freeEnds(list uint32) {
	for list != none {
		next := l.ends[list].next
		l.ends[list] = end{none, l.spare}
		l.spare, list = list, next
	}
}

func clampTokens(n int64) int64 { return min(max(n, 0), MaxTokens) }

// Check verifies L1 to L4 and the invariants of every target's active set, in time proportional to
// the ledger. It is for tests and for debugging a running router.
func (l *Ledger) Check() error {
	sums := make([]Load, len(l.targets))
	ends := make([]map[uint32]uint32, len(l.targets))
	live, listed := 0, 0
	for i := range l.slots {
		r := &l.slots[i]
		if !r.live {
			continue
		}
		live++
		if !l.Known(r.target) {
			return fmt.Errorf("L1: slot %d is held on target %d, which is not known", i, r.target)
		}
		s := &sums[r.target]
		s.HeldRequests++
		s.HeldTokens += r.tokens
		if r.waiting {
			s.PendingRequests++
			s.PendingTokens += r.prefill
		}
		if ends[r.target] == nil {
			ends[r.target] = make(map[uint32]uint32)
		}
		ends[r.target][r.leaf]++
		for e := r.more; e != none && listed <= len(l.ends); e = l.ends[e].next {
			ends[r.target][l.ends[e].leaf]++
			listed++
		}
		delete(ends[r.target], none) // of prompts without blocks
	}
	for e := l.spare; e != none && listed <= len(l.ends); e = l.ends[e].next {
		listed++
	}
	if listed != len(l.ends) {
		return fmt.Errorf("L5: %d ends are listed, of %d", listed, len(l.ends))
	}
	freed := 0
	for i := l.free; i != none && freed <= len(l.slots); i = l.slots[i].leaf {
		freed++
	}
	if live+freed != len(l.slots) {
		return fmt.Errorf("L4: %d live and %d free of %d slots", live, freed, len(l.slots))
	}
	for t := range l.targets {
		a := &l.targets[t]
		if !a.known && (a.load.HeldRequests != 0 || a.active.live != 0) {
			return fmt.Errorf("L1: target %d is forgotten but has load %+v", t, l.Load(target.ID(t)))
		}
		sums[t].ActiveBlocks = int64(a.active.live)
		if got := a.load; got != sums[t] {
			return fmt.Errorf("L1: target %d has load %+v, its reservations add up to %+v", t, got, sums[t])
		}
		if a.active.slots == nil {
			continue
		}
		if err := a.active.check(ends[t]); err != nil {
			return fmt.Errorf("target %d: %w", t, err)
		}
	}
	return nil
}
