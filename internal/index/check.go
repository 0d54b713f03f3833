package index

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// Check verifies every invariant of the index and its parts, from scratch. It takes time and memory
// proportional to the content: for tests, and for a running program that is suspected.
func (x *Index) Check() error {
	for _, check := range []func() error{x.checkEntries, x.checkTables, x.checkSets, x.checkMirrors, x.checkFans} {
		if err := check(); err != nil {
			return err
		}
	}
	if x.cursor != 0 {
		return fmt.Errorf("cursor at entry %d between events", x.cursor)
	}
	return nil
}

// freeIDs returns the ids in the free list.
func (x *Index) freeIDs() (map[uint32]bool, error) {
	free := map[uint32]bool{}
	for id := x.arena.free; id != 0; id = x.arena.at(id)[fParent] {
		if free[id] || id >= x.arena.next {
			return nil, fmt.Errorf("I1: free list goes in circles or astray at entry %d", id)
		}
		free[id] = true
	}
	return free, nil
}

// alive calls f for every live entry, in order of ids.
func (x *Index) alive(f func(id uint32, e *entry) error) error {
	free, err := x.freeIDs()
	if err != nil {
		return err
	}
	for id := uint32(1); id < x.arena.next; id++ {
		if free[id] {
			continue
		}
		if err := f(id, x.arena.at(id)); err != nil {
			return err
		}
	}
	return nil
}

// checkEntries verifies I1, I8 and the child links of I4.
func (x *Index) checkEntries() error {
	kids := map[uint32][]uint32{}
	live, spaces := 0, 0
	if err := x.alive(func(id uint32, e *entry) error {
		live++
		if space, ok := x.spaces[id]; ok {
			spaces++
			if e[fParent] != 0 || space == block.Root {
				return fmt.Errorf("I8: entry %d has namespace %016x and parent %d", id, space, e[fParent])
			}
		}
		if p := e[fParent]; p != 0 {
			kids[p] = append(kids[p], id)
		}
		return nil
	}); err != nil {
		return err
	}
	if spaces != len(x.spaces) {
		return fmt.Errorf("I8: %d entries with namespaces, noted %d", spaces, len(x.spaces))
	}
	if live != x.arena.live {
		return fmt.Errorf("I1: %d live entries, counted %d", live, x.arena.live)
	}
	return x.alive(func(id uint32, e *entry) error {
		k := kids[id]
		delete(kids, id)
		if e[fSet] == 0 && len(k) == 0 && x.pins[id] == 0 {
			return fmt.Errorf("I1: entry %d is alive and nothing needs it", id)
		}
		switch kid := e[fKid]; {
		case kid&fanTag != 0:
			if int(kid&^fanTag) != len(k) || len(k) == 0 {
				return fmt.Errorf("I4: entry %d counts %d children, has %d", id, kid&^fanTag, len(k))
			}
		case kid == 0 && len(k) > 0, kid != 0 && (len(k) != 1 || k[0] != kid):
			return fmt.Errorf("I4: entry %d has child %d, should have %v", id, kid, k)
		}
		return nil
	})
}

// checkTables verifies I2 and T1 to T4.
func (x *Index) checkTables() error {
	hashes, handles := 0, 0
	seen := map[Handle]uint32{}
	if err := x.alive(func(id uint32, e *entry) error {
		hashes++
		if got := x.byHash.find(&x.arena, mix(e.key(fHash)), e.key(fHash)); got != id {
			return fmt.Errorf("I2: hash %016x of entry %d finds entry %d", e.hash(), id, got)
		}
		got := x.byHandle.find(&x.arena, mix(e.key(fHandle)), e.key(fHandle))
		if !x.sets.hasPrimary(e[fSet]) {
			if got == id {
				return fmt.Errorf("I2: entry %d is found by a handle nobody holds it through", id)
			}
			return nil
		}
		handles++
		if other := seen[e.handle()]; other != 0 || got != id {
			return fmt.Errorf("I2: primary handle %x of entry %d finds entry %d, is also of %d", e.handle(), id, got, other)
		}
		seen[e.handle()] = id
		return nil
	}); err != nil {
		return err
	}
	if err := x.byHash.check(&x.arena, hashes); err != nil {
		return fmt.Errorf("table of hashes: %w", err)
	}
	if err := x.byHandle.check(&x.arena, handles); err != nil {
		return fmt.Errorf("table of handles: %w", err)
	}
	return nil
}

func (t *table) check(a *arena, want int) error {
	total := 0
	for i := range t.count {
		s := t.nth(i)
		var n uint32
		past := make([]uint32, s.size)
		for j := range s.size {
			b := s.bucket(j)
			for k, slot := range b[1:] {
				if used := k < int(b[0]&15); used != (slot != 0) {
					return fmt.Errorf("T1: shard %d bucket %d slot %d of %d is %#x", i, j, k, b[0]&15, slot)
				} else if !used {
					continue
				}
				n++
				m := mix(a.at(slot & idMask).key(t.at))
				if t.shard(m) != s || mark(m) != slot&^idMask || seventh(m) != b[0]>>seventhAt(uint32(k+1))&1 {
					return fmt.Errorf("T4: entry %d in shard %d under the wrong address or mark", slot&idMask, i)
				}
				for at := s.home(m); at != j; at = s.after(at) {
					past[at]++
				}
			}
		}
		for j := range past {
			if got := s.bucket(uint32(j))[0] >> pastShift; got != past[j] && got != maxPast {
				return fmt.Errorf("T2: shard %d bucket %d: %d keys went past it, counted %d", i, j, past[j], got)
			}
		}
		if n != s.n || n*8 > s.size*bucketKeys*7 {
			return fmt.Errorf("T3: shard %d has %d keys, counted %d, in %d buckets", i, n, s.n, s.size)
		}
		total += int(n)
	}
	if total != want || t.n != want {
		return fmt.Errorf("%d keys, counted %d, should be %d", total, t.n, want)
	}
	return nil
}

// checkSets verifies S1 to S4.
func (x *Index) checkSets() error {
	uses := map[setID]uint32{}
	if err := x.alive(func(_ uint32, e *entry) error {
		if s := e[fSet]; s != 0 && s&singleTag == 0 {
			uses[s]++
		}
		return nil
	}); err != nil {
		return err
	}
	return x.sets.check(uses)
}

func (x *sets) check(uses map[setID]uint32) error {
	free := map[setID]bool{}
	for _, s := range x.free {
		free[s] = true
	}
	for s := setID(1); s < x.next; s++ {
		if r := x.rec(s); r.uses != uses[s] || free[s] != (r.uses == 0) {
			return fmt.Errorf("S4: set %d has %d uses, counted %d, free %v", s, uses[s], r.uses, free[s])
		} else if r.uses == 0 {
			continue
		}
		var size uint32
		var sum uint64
		x.each(s, func(t target.ID) {
			size++
			sum ^= token(t, x.get(s, t))
		})
		b := x.bits(s)
		for w := range x.words {
			if (b[x.words+w]|b[2*x.words+w])&^b[w] != 0 {
				return fmt.Errorf("S1: set %d has a state for targets it has not", s)
			}
		}
		if r := x.rec(s); size != r.size || size < 2 {
			return fmt.Errorf("S2: set %d has %d members, counted %d", s, size, r.size)
		} else if sum != r.sum || x.index[sum] == 0 {
			return fmt.Errorf("S3: set %d has sum %016x, noted %016x, listed as %d", s, sum, r.sum, x.index[sum])
		}
	}
	return nil
}

// checkMirrors verifies I3, I5 to I7 and P1 to P3.
func (x *Index) checkMirrors() error {
	members, handles, lowers := 0, 0, 0
	pins := map[uint32]uint32{}
	for t, m := range x.mirrors {
		if m == nil {
			continue
		}
		if err := x.checkMirror(m, pins); err != nil {
			return fmt.Errorf("target %d: %w", t, err)
		}
		members += m.blocks
		handles += m.handles
		lowers += m.lower
	}
	if members != x.members || handles != x.handles || lowers != x.lowers {
		return fmt.Errorf("I6: %d memberships, %d handles, %d lower, counted %d, %d, %d",
			members, handles, lowers, x.members, x.handles, x.lowers)
	}
	if members > x.opt.Limit || handles > x.opt.HandleLimit {
		return fmt.Errorf("I6: %d memberships and %d handles, allowed %d and %d", members, handles, x.opt.Limit, x.opt.HandleLimit)
	}
	if !maps.Equal(pins, x.pins) {
		return fmt.Errorf("P1: pages end in %v, pinned are %v", pins, x.pins)
	}
	return nil
}

func (x *Index) checkMirror(m *mirror, pins map[uint32]uint32) error {
	reasons := map[uint32]refs{} // beside primary handles
	count := func(id uint32, t tiers) {
		rf := reasons[id]
		for k := range rf.n {
			rf.n[k] += uint32(t >> k & 1)
		}
		reasons[id] = rf
	}
	handles, err := x.checkSide(m, count)
	if err != nil {
		return err
	}
	n, err := x.checkPages(m, count, pins)
	if err != nil {
		return err
	}
	handles += n
	for id, rf := range m.refs {
		if rf.bare != 0 {
			r := reasons[id]
			r.bare = rf.bare
			reasons[id] = r
		}
	}
	var holes int32
	blocks, lowBlocks, diskBlocks := 0, 0, 0
	var sum uint64
	if err := x.alive(func(id uint32, e *entry) error {
		s := x.sets.get(e[fSet], m.t)
		rf := reasons[id]
		if s == primary {
			handles++
			if rf != (refs{}) {
				return fmt.Errorf("I3: entry %d is held by its primary handle and by %v", id, rf)
			}
			rf = oneHandle
		} else if want := rf.state(); s != want {
			return fmt.Errorf("I3: entry %d is in state %d, its handles %v make it %d", id, s, rf, want)
		}
		if noted, ok := m.refs[id]; ok != (s != absent && rf != oneHandle) || ok && noted != rf {
			return fmt.Errorf("I3: entry %d in state %d is noted as %v, held by %v", id, s, noted, rf)
		}
		if s == absent {
			return nil
		}
		blocks++
		if s&low != 0 {
			lowBlocks++
		}
		if s == onDisk {
			diskBlocks++
		}
		sum += contentTerm(e.hash(), rf.tiers())
		if p := e[fParent]; p != 0 && x.sets.get(x.arena.at(p)[fSet], m.t) == absent {
			holes++
		}
		return nil
	}); err != nil {
		return err
	}
	if holes != x.holes[m.t] || hasBit(x.whole, m.t) != (holes == 0) || !hasBit(x.joined, m.t) {
		return fmt.Errorf("I5: %d holes, counted %d, whole %v", holes, x.holes[m.t], hasBit(x.whole, m.t))
	}
	if blocks != m.blocks || handles != m.handles || lowBlocks != m.lower || diskBlocks != m.disk || sum != m.sum {
		return fmt.Errorf("I6: %d blocks, %d handles, %d lower, %d on disk, sum %x, noted %d, %d, %d, %d, %x",
			blocks, handles, lowBlocks, diskBlocks, sum, m.blocks, m.handles, m.lower, m.disk, m.sum)
	}
	if err := x.checkCopies(m); err != nil {
		return err
	}
	return m.orphans.check(x.opt.OrphanLimit)
}

func (x *Index) checkCopies(m *mirror) error {
	spare := 0
	for h, c := range m.copies {
		in := x.lookup(m, h).tiers
		for t, n := range c {
			if n > 0 && in&tier(Tier(t)) == 0 {
				return fmt.Errorf("I7: handle %x has %d copies in tier %d, and is in tiers %b", h, n, t, in)
			}
			spare += int(n)
		}
		if c == (copies{}) {
			return fmt.Errorf("I7: handle %x has an entry for no copies", h)
		}
	}
	if spare != m.spare {
		return fmt.Errorf("I7: %d copies, counted %d", spare, m.spare)
	}
	return nil
}

func (x *Index) checkSide(m *mirror, count func(uint32, tiers)) (int, error) {
	if m.side == nil {
		return 0, nil
	}
	n := 0
	for i := range m.side.shards {
		s := &m.side.shards[i]
		used := 0
		for k, v := range s.vals {
			if v == 0 {
				continue
			}
			used++
			id, t := m.side.get(s.keys[k])
			if sideVal(id, t) != v || t == 0 {
				return 0, fmt.Errorf("side table: handle %x at slot %d of shard %d finds another slot", s.keys[k], k, i)
			}
			count(id, t)
		}
		if used != s.n {
			return 0, fmt.Errorf("side table: shard %d has %d handles, counted %d", i, used, s.n)
		}
		n += used
	}
	if n != m.side.n {
		return 0, fmt.Errorf("side table: %d handles, counted %d", n, m.side.n)
	}
	return n, nil
}

func (x *Index) checkPages(m *mirror, count func(uint32, tiers), pins map[uint32]uint32) (int, error) {
	users := map[Handle]map[Handle]bool{}
	for h, p := range m.pages {
		if p.end != 0 {
			pins[p.end]++
		}
		if len(p.ids) > 0 && p.ids[len(p.ids)-1] != p.end || p.tiers == 0 {
			return 0, fmt.Errorf("P1: page %x ends in entry %d, completes %v, in tiers %b", h, p.end, p.ids, p.tiers)
		}
		if want := m.held(p); p.first != want {
			return 0, fmt.Errorf("P2: page %x gives its first block in %b, should in %b", h, p.first, want)
		}
		for k, id := range p.ids {
			if k == 0 {
				count(id, p.first)
			} else {
				count(id, p.tiers)
			}
		}
		for _, q := range p.parts {
			if users[q.handle] == nil {
				users[q.handle] = map[Handle]bool{}
			}
			users[q.handle][h] = true
		}
	}
	if len(users) != len(m.users) {
		return 0, fmt.Errorf("P3: %d handles have users, listed %d", len(users), len(m.users))
	}
	for h, us := range users {
		if list := m.users[h]; len(list) != len(us) || slices.ContainsFunc(list, func(u Handle) bool { return !us[u] }) {
			return 0, fmt.Errorf("P3: handle %x is used by %v, listed %v", h, us, list)
		}
	}
	return len(m.pages), nil
}

// checkFans verifies the counts of I4.
func (x *Index) checkFans() error {
	want := map[fan]uint32{}
	if err := x.alive(func(_ uint32, e *entry) error {
		if p := e[fParent]; p != 0 && x.arena.at(p)[fKid]&fanTag != 0 {
			x.sets.each(e[fSet], func(t target.ID) { want[fan{p, t}]++ })
		}
		return nil
	}); err != nil {
		return err
	}
	if !maps.Equal(want, x.fans) {
		return fmt.Errorf("I4: children held %v, counted %v", want, x.fans)
	}
	return nil
}

func (o *orphans) check(limit int) error {
	cost, waiting, events := 0, 0, 0
	for i, n := range o.queue {
		if n == nil {
			continue
		}
		events++
		cost += n.blocks
		left := 0
		for k, h := range n.op.Handles {
			if !n.gone[k] {
				left++
			}
			if !slices.Contains(o.byHandle[h], n) {
				return fmt.Errorf("O3: handle %x of orphan %d is not listed", h, i)
			}
		}
		waiting += left
		if n.at != i || left != n.left || !slices.Contains(o.byParent[n.op.Parent], n) {
			return fmt.Errorf("O3: orphan %d is at %d with %d handles left of %d", i, n.at, n.left, left)
		}
	}
	listed := 0
	for _, l := range o.byParent {
		listed += len(l)
	}
	if cost != o.cost || cost > max(limit, 0) || waiting != o.waiting || listed != events {
		return fmt.Errorf("O1: %d orphans of %d blocks and %d handles, counted %d of %d and %d", events, cost, waiting, listed, o.cost, o.waiting)
	}
	return nil
}
