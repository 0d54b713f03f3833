package score

import (
	"slices"

	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/target"
)

// Session affinity, infera-router reference 18.1. Times are the caller's, in ns.
const (
	bindCapacity = 65536
	bindTTL      = int64(3600e9) // from the last release
	bindSweep    = int64(30e9)
)

type bindKey struct {
	session string
	role    Role
}

// binding ties one session, in one role, to a target. uses counts its unreleased picks; while it is
// above zero the binding neither expires nor is evicted. gen tells a late release of an earlier
// binding in the same slot from one of this.
type binding struct {
	key    bindKey
	target target.ID
	life   uint32 // of the target when bound; another life makes the binding invalid
	gen    uint32
	uses   int32
	live   bool
	idle   int64  // time of the last release, meaningful while uses is 0
	turn   uint64 // rank of its last use among all uses
}

// bindings is a bounded set of bindings. With a ttl, idle ones are dropped by sweeps and a set full of
// younger ones takes no more. Without (the session policy), the half unused longest makes room.
//
// Invariants: byKey and the live slots are the same set; at most capacity are live; inUse counts those
// of them with uses above 0; a slot's gen changes whenever its binding does.
type bindings struct {
	byKey    map[bindKey]uint32
	slots    []binding
	free     []uint32
	capacity int
	ttl      int64 // 0: none
	swept    int64 // time of the last sweep
	everUsed bool
	nextIdle int64 // a sweep before this time would drop nothing, unless dirty (what is released later expires later)
	dirty    bool  // a target began or ended a life since the last sweep
	inUse    int   // live bindings with uses above 0
	turns    uint64
}

func newBindings(capacity int, ttl int64) *bindings {
	return &bindings{byKey: make(map[bindKey]uint32), capacity: capacity, ttl: ttl}
}

func (b *bindings) stale(s *binding, led *load.Ledger) bool {
	return !led.Known(s.target) || led.Life(s.target) != s.life
}

// find returns the slot of a session's binding and whether it may be used at this time.
func (b *bindings) find(key bindKey, at int64, led *load.Ledger) (slot uint32, found Bound) {
	slot, ok := b.byKey[key]
	if !ok {
		return 0, BoundNew
	}
	s := &b.slots[slot]
	switch {
	case b.stale(s, led):
		return slot, BoundInvalid
	case b.ttl > 0 && s.uses == 0 && at-s.idle >= b.ttl:
		return slot, BoundExpired
	}
	return slot, BoundHit
}

// use takes a lease on the binding in slot and returns the tag that ends it.
func (b *bindings) use(slot uint32) (tag uint64) {
	s := &b.slots[slot]
	if s.uses == 0 {
		b.inUse++
	}
	s.uses++
	b.turns++
	s.turn = b.turns
	return uint64(slot+1)<<32 | uint64(s.gen)
}

// bind makes or replaces the binding of key and takes a lease on it. It reports false where every
// binding is in use or too young to be dropped.
func (b *bindings) bind(key bindKey, t target.ID, life uint32, at int64, led *load.Ledger) (tag uint64, ok bool) {
	slot, exists := b.byKey[key]
	if !exists {
		b.makeRoom(at, led)
		if len(b.byKey) >= b.capacity {
			return 0, false
		}
		if n := len(b.free); n > 0 {
			slot, b.free = b.free[n-1], b.free[:n-1]
		} else {
			slot = uint32(len(b.slots))
			b.slots = append(b.slots, binding{})
		}
		b.byKey[key] = slot
	}
	s := &b.slots[slot]
	if s.uses > 0 {
		b.inUse-- // leases of the replaced binding are void
	}
	*s = binding{key: key, target: t, life: life, gen: s.gen + 1, live: true}
	return b.use(slot), true
}

func (b *bindings) makeRoom(at int64, led *load.Ledger) {
	if !b.everUsed || at < b.swept {
		// A clock that went back would put off the next sweep by as much.
		b.everUsed, b.swept, b.nextIdle = true, at, at
	}
	full := len(b.byKey) >= b.capacity
	if full && b.dirty || b.ttl > 0 && (full && at >= b.nextIdle || at-b.swept >= bindSweep) {
		b.sweep(at, led)
	}
	if b.ttl == 0 && len(b.byKey) >= b.capacity && b.inUse < len(b.byKey) {
		b.dropOlderHalf()
	}
}

// sweep drops what is idle for the ttl or bound to a target that is gone.
func (b *bindings) sweep(at int64, led *load.Ledger) {
	b.swept, b.dirty = at, false
	b.nextIdle = at + b.ttl
	for i := range b.slots {
		s := &b.slots[i]
		switch {
		case !s.live:
		case b.stale(s, led), b.ttl > 0 && s.uses == 0 && at-s.idle >= b.ttl:
			b.drop(uint32(i))
		case s.uses == 0:
			s.idle = min(s.idle, at) // the clock may have gone back
			b.nextIdle = min(b.nextIdle, s.idle+b.ttl)
		}
	}
}

// dropOlderHalf drops, of the bindings not in use, the half whose last use is longest ago, at least
// one. Halving keeps the mean cost of a new session constant.
func (b *bindings) dropOlderHalf() {
	turns := make([]uint64, 0, len(b.byKey))
	for i := range b.slots {
		if s := &b.slots[i]; s.live && s.uses == 0 {
			turns = append(turns, s.turn)
		}
	}
	if len(turns) == 0 {
		return
	}
	slices.Sort(turns)
	limit := turns[(len(turns)-1)/2]
	for i := range b.slots {
		if s := &b.slots[i]; s.live && s.uses == 0 && s.turn <= limit {
			b.drop(uint32(i))
		}
	}
}

func (b *bindings) drop(slot uint32) {
	s := &b.slots[slot]
	if s.uses > 0 {
		b.inUse--
	}
	delete(b.byKey, s.key)
	*s = binding{gen: s.gen + 1}
	b.free = append(b.free, slot)
}

// lease returns the binding a tag was given for, if it is still the same one.
func (b *bindings) lease(tag uint64) (slot uint32, ok bool) {
	slot = uint32(tag>>32) - 1
	if int(slot) >= len(b.slots) { // none, or a tag that another scorer on the same ledger gave
		return 0, false
	}
	s := &b.slots[slot]
	return slot, s.live && s.gen == uint32(tag)
}

// release ends a lease; the binding's time to live starts with the last one.
func (b *bindings) release(tag uint64, at int64) {
	slot, ok := b.lease(tag)
	if !ok {
		return
	}
	s := &b.slots[slot]
	if s.uses > 0 {
		if s.uses--; s.uses == 0 {
			b.inUse--
		}
	}
	if s.uses == 0 {
		s.idle = at
	}
}
