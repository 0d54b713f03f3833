package index

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// observed is a mirror folded from what an observer is told, and nothing else.
type observed struct {
	held   map[target.ID]map[block.Hash]heldBlock
	broken []string // calls that say nothing new, or what cannot be
	log    []string // if not nil, all calls
}

type heldBlock struct {
	parent block.Hash
	tier   Tier
}

func (o *observed) Changed(t target.ID, h, parent block.Hash, tier Tier, held bool) {
	if o.log != nil {
		o.log = append(o.log, fmt.Sprintf("%d %016x after %016x tier %d %v", t, h, parent, tier, held))
	}
	if o.held == nil {
		o.held = map[target.ID]map[block.Hash]heldBlock{}
	}
	if o.held[t] == nil {
		o.held[t] = map[block.Hash]heldBlock{}
	}
	before, was := o.held[t][h]
	now := heldBlock{parent, tier}
	switch {
	case held && was && (before.tier == tier || before.parent != parent), !held && before != now:
		o.broken = append(o.broken, fmt.Sprintf("target %d, block %016x: %+v (%v) becomes %+v, held %v", t, h, before, was, now, held))
	case held:
		o.held[t][h] = now
	default:
		delete(o.held[t], h)
	}
}

func (o *observed) Emptied(t target.ID) {
	if o.log != nil {
		o.log = append(o.log, fmt.Sprintf("%d emptied", t))
	}
	delete(o.held, t)
}

// Match is that of a view of n targets.
func (o *observed) match(chain []block.Hash, n int, dst *Matches) {
	dst.reset(n)
	for t := range n {
		for _, h := range chain {
			b, ok := o.held[target.ID(t)][h]
			if !ok {
				break
			}
			dst.Hits[t]++
			if b.tier != GPU {
				dst.lower(b.tier)[t]++
			}
		}
	}
}

// compareObserved holds what the observer of the index was told against the reference.
func (h *history) compareObserved(t *testing.T, did any) {
	t.Helper()
	if len(h.seen.broken) > 0 {
		t.Fatalf("byte %d, during %+v: the observer is told %v", h.at, did, h.seen.broken)
	}
	for id := range target.ID(h.targets) {
		var sum uint64
		single := true // every block is in one tier: the observer knows all that the content hash depends on
		want := map[block.Hash]heldBlock{}
		if nt := h.slow.get(id); nt != nil {
			for b, m := range nt.view {
				want[b] = heldBlock{nt.parents[b], m.best()}
				single = single && m == tier(m.best())
			}
		}
		for b, got := range h.seen.held[id] {
			sum += contentTerm(b, tier(got.tier))
			if got != want[b] {
				t.Fatalf("byte %d, after %+v: the observer saw target %d hold %016x as %+v, want %+v", h.at, did, id, b, got, want[b])
			}
		}
		if got := len(h.seen.held[id]); got != len(want) {
			t.Fatalf("byte %d, after %+v: the observer saw target %d hold %d blocks, want %d", h.at, did, id, got, len(want))
		}
		if got := h.fast.ContentHash(id); single && got != sum {
			t.Fatalf("byte %d, after %+v: ContentHash(%d) = %x, folded from observations %x", h.at, did, id, got, sum)
		}
	}
	for v := range 16 {
		chain := block.AppendChain(nil, block.Hash(v/8*7), prompt(v%8), historyBlock)
		h.fast.Match(chain, &h.got)
		h.seen.match(chain, len(h.got.Hits), &h.want)
		if !slices.Equal(h.got.Hits, h.want.Hits) || !slices.EqualFunc(h.got.Lower[:], h.want.Lower[:], slices.Equal) {
			t.Fatalf("byte %d, after %+v: Match of prompt %d =\n%v lower %v, folded from observations\n%v lower %v",
				h.at, did, v, h.got.Hits, h.got.Lower, h.want.Hits, h.want.Lower)
		}
	}
}

// TestObserverIsToldInOrder spells out one history.
func TestObserverIsToldInOrder(t *testing.T) {
	t.Parallel()
	o := &observed{log: []string{}}
	x := New(4, Options{Observer: o})
	x.Join(0)
	spaced := block.Namespace("adapter", "")
	first := block.Next(spaced, tokens(1, 4))
	for _, op := range []Op{
		stored(tokens(1, 8), 101, 102),
		stored(tokens(1, 8), 101, 102),                   // known: nothing
		stored(tokens(1, 4), 555),                        // an alias: nothing
		{Kind: Store, Handles: []Handle{102}, Tier: CPU}, // offloaded: still nearest in GPU
		removed(102),
		removed(101), // the alias still holds it
		removed(555),
		stored(tokens(5, 8), 102).after(777), // known, parent or not
		{Kind: Store, Handles: []Handle{1}, Tokens: tokens(1, 4), Namespace: spaced},
		{Kind: Store, Handles: []Handle{1}, Tokens: tokens(9, 12)}, // other content
		cleared,
		epoch,
	} {
		mustApply(t, x, op)
	}
	x.Forget(0)
	x.Forget(0) // is not there any more
	third := block.Next(block.Root, tokens(9, 12))
	want := []string{
		fmt.Sprintf("0 %016x after %016x tier 0 true", blockA, block.Root),
		fmt.Sprintf("0 %016x after %016x tier 0 true", blockB, blockA),
		fmt.Sprintf("0 %016x after %016x tier 1 true", blockB, blockA),
		fmt.Sprintf("0 %016x after %016x tier 0 false", blockA, block.Root),
		fmt.Sprintf("0 %016x after %016x tier 0 true", blockB, blockA),
		fmt.Sprintf("0 %016x after %016x tier 0 true", first, spaced),
		fmt.Sprintf("0 %016x after %016x tier 0 false", first, spaced),
		fmt.Sprintf("0 %016x after %016x tier 0 true", third, block.Root),
		"0 emptied", "0 emptied", "0 emptied",
	}
	if diff := cmp.Diff(want, o.log); diff != "" {
		t.Errorf("the observer is told (-want +got):\n%s", diff)
	}
}

// TestYield empties targets of which others hold parts, and looks at everything whenever it may.
func TestYield(t *testing.T) {
	t.Parallel()
	const blocks = 500
	chain := chainOf(nil, 1, blocks)
	handles := handlesOf(nil, chain, 1)
	kinds := []struct {
		name string
		do   func(x *Index)
	}{
		{"clear", func(x *Index) { x.Apply(Op{Kind: Clear, Target: 1}) }},
		{"epoch", func(x *Index) { x.Apply(Op{Kind: Epoch, Target: 1}) }},
		{"forget", func(x *Index) { x.Forget(1) }},
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			var x *Index
			var m Matches
			yields, o := 0, &observed{}
			want := []uint32{300, 0, 200, 0}
			x = New(16, Options{Observer: o, Yield: func() {
				yields++
				x.Match(chain, &m)
				if !slices.Equal(m.Hits, want) || m.Lower[CPU][2] != 200 || m.Lower[CPU][1] != 0 {
					t.Fatalf("yield %d: hits %v, lower %v; want %v", yields, m.Hits, m.Lower[CPU], want)
				}
				if s := x.Stats(1); s.Blocks+s.Handles+s.Holes+s.Lower+s.Copies != 0 || x.ContentHash(1) != 0 {
					t.Fatalf("yield %d: target 1 is %+v, content hash %x", yields, s, x.ContentHash(1))
				}
				if len(o.held[1]) != 0 || len(o.held[0]) != 300 {
					t.Fatalf("yield %d: observed %d and %d blocks, want 0 and 300", yields, len(o.held[1]), len(o.held[0]))
				}
			}})
			for id := range target.ID(4) {
				x.Join(id)
			}
			mustApply(t, x, storeOp(0, chain, handles, 0, 300))
			low := storeOp(2, chain, handles, 0, 200)
			low.Tier = CPU
			mustApply(t, x, low)
			mustApply(t, x, storeOp(1, chain, handles, 0, blocks))
			mustApply(t, x, storeOp(1, chain, handles, 0, 10))
			mustApply(t, x, Op{Kind: Store, Target: 1, Tier: CPU, Handles: handles[:20]})
			mustApply(t, x, Op{Kind: Remove, Target: 1, Handles: handles[10:30]})
			if yields != 0 {
				t.Fatalf("%d yields while nothing was emptied", yields)
			}
			k.do(x)
			if want := (blocks - 10) / (yieldAfter / leaveSteps) * 9 / 10; yields < want {
				t.Errorf("%d yields while %d blocks went, want at least %d", yields, blocks-10, want)
			}
			if err := x.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestReadersWhileYielding keeps an index as a pool does: writers take turns, and readers come in where
// the index yields. The race detector sees the rest.
func TestReadersWhileYielding(t *testing.T) {
	t.Parallel()
	const targets, blocks, rounds = 3, 2000, 5
	var turn, lock sync.Mutex
	x := New(16, Options{Yield: func() { lock.Unlock(); lock.Lock() }})
	x.patience = leaveSteps
	chain := chainOf(nil, 1, blocks)
	handles := handlesOf(nil, chain, 1)
	for id := range target.ID(targets + 1) {
		x.Join(id)
	}
	mustApply(t, x, storeOp(targets, chain, handles, 0, blocks)) // this one never changes
	write := func(op Op) {
		turn.Lock()
		defer turn.Unlock()
		lock.Lock()
		defer lock.Unlock()
		if r, err := x.Apply(op); err != nil || r.Stored+r.Removed != blocks {
			t.Errorf("%d of target %d: %+v, %v; want %d blocks", op.Kind, op.Target, r, err, blocks)
		}
	}
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for id := range target.ID(targets) {
		writers.Go(func() {
			for range rounds {
				write(storeOp(id, chain, handles, 0, blocks))
				write(Op{Kind: Clear, Target: id})
			}
		})
	}
	readers.Go(func() {
		var m Matches
		for {
			select {
			case <-stop:
				return
			default:
			}
			lock.Lock()
			x.Match(chain, &m)
			lock.Unlock()
			for id, hits := range m.Hits {
				if hits != blocks && (hits != 0 || id == targets) {
					t.Errorf("target %d has %d hits: a part of an operation", id, hits)
					return
				}
			}
		}
	})
	writers.Wait()
	close(stop)
	readers.Wait()
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}
