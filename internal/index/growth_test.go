package index

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// TestGrowth fills and empties an index far enough for shards to grow and split.
func TestGrowth(t *testing.T) {
	t.Parallel()
	x := New(16, Options{})
	const targets, chains, blocks = 3, 200, 100
	for id := range target.ID(targets) {
		x.Join(id)
	}
	for i := range chains {
		chain := chainOf(nil, uint64(i), blocks)
		for id := range target.ID(targets) {
			mustApply(t, x, storeOp(id, chain, handlesOf(nil, chain, uint64(id%2)), 0, blocks-int(id)))
		}
	}
	if err := x.Check(); err != nil {
		t.Fatal(err)
	}
	if got, want := x.Size(), (Size{Members: chains * (3*blocks - 3), Handles: chains * (3*blocks - 3), Blocks: chains * blocks, Sets: 2}); got != want {
		t.Errorf("Size() = %+v, want %+v", got, want)
	}
	var m Matches
	for i := range chains {
		if x.Match(chainOf(nil, uint64(i), blocks), &m); m.Hits[0] != blocks || m.Hits[1] != blocks-1 || m.Hits[2] != blocks-2 {
			t.Fatalf("chain %d: hits %v", i, m.Hits)
		}
	}
	for i := range chains {
		chain := chainOf(nil, uint64(i), blocks)
		mustApply(t, x, Op{Kind: Remove, Target: 1, Handles: reversed(handlesOf(nil, chain, 1))})
	}
	x.Forget(2)
	if err := x.Check(); err != nil {
		t.Fatal(err)
	}
	x.Forget(0)
	if got := x.Size(); got != (Size{}) {
		t.Errorf("emptied index has %+v", got)
	}
	if err := x.Check(); err != nil {
		t.Fatal(err)
	}
}

// footprint is what the index has allocated, in its own units.
func footprint(x *Index) string {
	buckets := 0
	for _, t := range []*table{&x.byHash, &x.byHandle} {
		for i := range t.count {
			buckets += int(t.nth(i).size)
		}
	}
	return fmt.Sprint("chunks ", len(x.arena.chunks), " shards ", x.byHash.count, "+", x.byHandle.count, " buckets/100 ", (buckets+50)/100)
}

// TestSoak replaces the content ten times over, and lets a thousand targets come and go: what the index
// has allocated must stay what it was after the first round.
func TestSoak(t *testing.T) {
	t.Parallel()
	const targets, members = 4, 64_000
	x := New(16, Options{})
	c := newChurn(t, x, targets, members, false, sameSeed)
	round := func() {
		for range members / targets / churnEvent {
			for id := range target.ID(targets) {
				first := c.event(id, c.oldest[id], sameSeed)
				mustApply(t, x, Op{Kind: Remove, Target: id, Handles: c.handles[first : first+churnEvent]})
				c.oldest[id]++
				c.store(t, id, sameSeed)
			}
		}
	}
	round()
	chunks, live := len(x.arena.chunks), x.arena.live
	warm := footprint(x)
	for range 10 {
		round()
	}
	if len(x.arena.chunks) != chunks || x.arena.live != live {
		t.Errorf("after ten rounds %d chunks and %d entries, after one %d and %d (%s; %s)",
			len(x.arena.chunks), x.arena.live, chunks, live, warm, footprint(x))
	}
	for i := range 1000 {
		id := target.ID(targets + i%7)
		x.Join(id)
		chain := chainOf(nil, uint64(1e9+i), 64)
		mustApply(t, x, storeOp(id, chain, handlesOf(nil, chain, 1), 0, 64))
		if i >= 6 {
			x.Forget(target.ID(targets + (i+1)%7))
		}
	}
	for i := range 7 {
		x.Forget(target.ID(targets + i))
	}
	if x.arena.live != live || x.Size().Members != members {
		t.Errorf("after a thousand joins and leaves %d entries and %d members, before %d and %d", x.arena.live, x.Size().Members, live, members)
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

func TestSideTable(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	var side sideTable
	want := map[Handle]uint32{}
	for step := range 200_000 {
		h := Handle(rng.IntN(3000)) << 40
		id, m := side.get(h)
		if w := want[h]; sideVal(id, m) != w {
			t.Fatalf("step %d: handle %x gives entry %d in %b, want %#x", step, h, id, m, w)
		}
		switch {
		case m == 0:
			side.insert(h, uint32(step+1), tier(GPU))
			want[h] = sideVal(uint32(step+1), tier(GPU))
		case rng.IntN(3) == 0:
			side.set(h, tier(CPU))
			want[h] = sideVal(id, tier(CPU))
		default:
			side.remove(h)
			delete(want, h)
		}
		if side.n != len(want) {
			t.Fatalf("step %d: %d handles, want %d", step, side.n, len(want))
		}
	}
}

// TestSetsOfManyTargets follows one block through random holders, beyond one word of targets.
func TestSetsOfManyTargets(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	x := newSets()
	x.widen(200)
	var s [4]setID
	var want [4]map[target.ID]state
	for i := range want {
		want[i] = map[target.ID]state{}
	}
	states := []state{absent, absent, other, primary, onCPU, onDisk}
	for step := range 20_000 {
		i, id, to := rng.IntN(4), target.ID(rng.IntN(200)), states[rng.IntN(len(states))]
		if step/2000%2 == 1 {
			to = absent // and empty again
		}
		s[i] = x.with(s[i], id, to)
		want[i][id] = to
		uses := map[setID]uint32{}
		for k := range s {
			if s[k] != 0 && s[k]&singleTag == 0 {
				uses[s[k]]++
			}
		}
		if step%50 == 0 {
			for k := range s {
				for id := range target.ID(200) {
					if got := x.get(s[k], id); got != want[k][id] {
						t.Fatalf("step %d: state of target %d in set %d is %d, want %d", step, id, k, got, want[k][id])
					}
				}
			}
		}
		if err := x.check(uses); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
}

// TestOneBucketForAll gives the index keys that all have the same home bucket.
func TestOneBucketForAll(t *testing.T) {
	t.Parallel()
	x := New(16, Options{})
	x.Join(0)
	// Each multiple of 2^32 minus a little mixes to anything; search for keys whose mixed high half is small.
	var hashes []block.Hash
	for k := uint64(1); len(hashes) < 300; k++ {
		if mix(k)>>32 < 1<<22 {
			hashes = append(hashes, block.Hash(k))
		}
	}
	handles := make([]Handle, len(hashes))
	for i := range handles {
		handles[i] = Handle(hashes[i])
	}
	for round := range 3 {
		mustApply(t, x, Op{Kind: Store, Handles: handles, Hashes: hashes})
		if err := x.Check(); err != nil {
			t.Fatalf("round %d, stored: %v", round, err)
		}
		mustApply(t, x, Op{Kind: Remove, Handles: reversed(handles)[:250]})
		if err := x.Check(); err != nil {
			t.Fatalf("round %d, removed: %v", round, err)
		}
	}
}
