package load_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/target"
)

func joined(n int) *load.Ledger {
	l := load.New()
	for t := range n {
		l.Join(target.ID(t), 1)
	}
	return l
}

func mustCheck(t *testing.T, l *load.Ledger) {
	t.Helper()
	if err := l.Check(); err != nil {
		t.Fatalf("Check: %v", err)
	}
}

// Golden decision D12: a shared prefix counts once.
func TestActiveBlocksAreDistinct(t *testing.T) {
	l := joined(1)
	active := func() int64 { mustCheck(t, l); return l.Load(0).ActiveBlocks }
	first := l.Reserve(0, load.Demand{Blocks: []block.Hash{1, 2, 3}})
	second := l.Reserve(0, load.Demand{Blocks: []block.Hash{1, 2, 9}})
	if got := active(); got != 4 {
		t.Errorf("active after {1,2,3} and {1,2,9} = %d, want 4", got)
	}
	l.Release(first)
	if got := active(); got != 3 {
		t.Errorf("active after the first ended = %d, want 3", got)
	}
	l.Release(second)
	if got := active(); got != 0 {
		t.Errorf("active after both ended = %d, want 0", got)
	}
}

func TestPrefixesOfEachOther(t *testing.T) {
	l := joined(2)
	long := []block.Hash{1, 2, 3, 4, 5}
	steps := []struct {
		chain []block.Hash
		want  int64
	}{{long[:2], 2}, {long, 5}, {long[:2], 5}, {long[:4], 5}, {nil, 5}, {long[:1], 5}}
	var handles []load.Handle
	for _, s := range steps {
		handles = append(handles, l.Reserve(1, load.Demand{Blocks: s.chain}))
		if got := l.Load(1).ActiveBlocks; got != s.want {
			t.Errorf("active after %v = %d, want %d", s.chain, got, s.want)
		}
		mustCheck(t, l)
	}
	l.Release(handles[1])
	if got := l.Load(1).ActiveBlocks; got != 4 {
		t.Errorf("active without the longest = %d, want 4", got)
	}
	if got := l.Load(0); got != (load.Load{}) {
		t.Errorf("other target has load %+v, want none", got)
	}
}

// A batch of prompts books the distinct blocks of all of them, and ends them all at once.
func TestBatchOfPrompts(t *testing.T) {
	l := joined(2)
	for _, tc := range []struct {
		blocks []block.Hash
		more   [][]block.Hash
		want   int64
	}{
		{[]block.Hash{1, 2, 3}, [][]block.Hash{{1, 2, 4}, {9}}, 5},
		{[]block.Hash{1, 2}, [][]block.Hash{{1, 2, 3}}, 3},
		{[]block.Hash{1, 2}, [][]block.Hash{{1, 2}, {1, 2}}, 2}, // the same prompt thrice
		{nil, [][]block.Hash{nil, {5, 6}, nil}, 2},              // prompts without a complete block
		{nil, [][]block.Hash{nil}, 0},
	} {
		h := l.Reserve(0, load.Demand{Blocks: tc.blocks, More: tc.more, Tokens: 7})
		mustCheck(t, l)
		if got, want := l.Load(0), (load.Load{ActiveBlocks: tc.want, PendingRequests: 1, HeldTokens: 7, HeldRequests: 1}); got != want {
			t.Errorf("load with %v and %v = %+v, want %+v", tc.blocks, tc.more, got, want)
		}
		other := l.Reserve(0, load.Demand{Blocks: tc.blocks})
		if !l.Release(h) || l.Release(h) {
			t.Error("Release must be true once, then false")
		}
		mustCheck(t, l)
		if got := l.Load(0).ActiveBlocks; got != int64(len(tc.blocks)) {
			t.Errorf("active without the batch = %d, want the %d of the other request", got, len(tc.blocks))
		}
		l.Release(other)
		if got := l.Load(0); got != (load.Load{}) {
			t.Errorf("load after both ended = %+v, want none", got)
		}
	}
	old := l.Reserve(1, load.Demand{More: [][]block.Hash{{1}, {2}}})
	l.Join(1, 2) // another life
	mustCheck(t, l)
	if l.Release(old) {
		t.Error("a batch of a former life was released")
	}
}

func TestHandleLivesOnce(t *testing.T) {
	l := joined(1)
	h := l.Reserve(0, load.Demand{Blocks: []block.Hash{7}, PrefillTokens: 30, Tokens: 100})
	want := load.Load{ActiveBlocks: 1, PendingTokens: 30, PendingRequests: 1, HeldTokens: 100, HeldRequests: 1}
	if got := l.Load(0); got != want {
		t.Errorf("load = %+v, want %+v", got, want)
	}
	if !l.FirstToken(h) || l.FirstToken(h) {
		t.Error("FirstToken must be true once, then false")
	}
	want.PendingTokens, want.PendingRequests = 0, 0
	if got := l.Load(0); got != want {
		t.Errorf("load after the first token = %+v, want %+v", got, want)
	}
	if !l.Release(h) || l.Release(h) || l.FirstToken(h) {
		t.Error("Release must be true once, then false, and FirstToken false after it")
	}
	again := l.Reserve(0, load.Demand{Tokens: 5, Tag: 77}) // takes the same slot
	if got, ok := l.Reservation(again); !ok || got != (load.Reservation{Tokens: 5, Tag: 77, Waiting: true}) {
		t.Errorf("Reservation = %+v, %v; want what was booked", got, ok)
	}
	if _, ok := l.Reservation(h); ok {
		t.Error("a released handle has a reservation")
	}
	if l.Release(h) {
		t.Error("a released handle released its slot's next reservation")
	}
	if l.Release(load.Handle{}) {
		t.Error("the zero handle released something")
	}
	if got := l.Load(0).HeldTokens; got != 5 {
		t.Errorf("held tokens = %d, want 5", got)
	}
	mustCheck(t, l)
}

func TestLifeOfATarget(t *testing.T) {
	d := load.Demand{Blocks: []block.Hash{1, 2}, PrefillTokens: 3, Tokens: 4}
	for _, tc := range []struct {
		name     string
		between  func(l *load.Ledger)
		released bool  // whether the old handle still releases
		held     int64 // held requests of target 0 before that release, a new one included
	}{
		{"left", func(l *load.Ledger) { l.Leave(0) }, true, 2},
		{"came back as itself", func(l *load.Ledger) { l.Leave(0); l.Join(0, 1) }, true, 2},
		{"joined twice", func(l *load.Ledger) { l.Join(0, 1) }, true, 2},
		{"came back as another", func(l *load.Ledger) { l.Leave(0); l.Join(0, 2) }, false, 1},
		{"replaced without leaving", func(l *load.Ledger) { l.Join(0, 2) }, false, 1},
		{"forgotten, same number", func(l *load.Ledger) { l.Forget(0); l.Join(0, 1) }, false, 1},
		{"other target forgotten", func(l *load.Ledger) { l.Forget(1) }, true, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := joined(2)
			life := l.Life(0)
			h := l.Reserve(0, d)
			tc.between(l)
			if now := l.Life(0); (now == life) != tc.released {
				t.Errorf("life went from %d to %d, want a new one: %v", life, now, !tc.released)
			}
			fresh := l.Reserve(0, d)
			mustCheck(t, l)
			if got := l.Load(0).HeldRequests; got != tc.held {
				t.Errorf("held = %d, want %d", got, tc.held)
			}
			if got := l.Release(h); got != tc.released {
				t.Errorf("old handle released = %v, want %v", got, tc.released)
			}
			want := load.Load{ActiveBlocks: 2, PendingTokens: 3, PendingRequests: 1, HeldTokens: 4, HeldRequests: 1}
			if got := l.Load(0); got != want {
				t.Errorf("load = %+v, want only the new reservation %+v", got, want)
			}
			if !l.Release(fresh) {
				t.Error("new handle did not release")
			}
			mustCheck(t, l)
		})
	}
}

func TestUnknownTargetsAndOddNumbers(t *testing.T) {
	l := joined(1)
	if h := l.Reserve(5, load.Demand{Tokens: 1}); h != (load.Handle{}) {
		t.Errorf("reserving an unknown target gave %+v, want the zero handle", h)
	}
	l.Join(target.MaxTargets, 1)
	if l.Known(target.MaxTargets) {
		t.Error("an ID beyond MaxTargets became known")
	}
	l.Leave(9)
	l.Forget(9)
	if !l.Present(0) || l.Present(1) || l.Present(9) {
		t.Error("Present is wrong")
	}
	h := l.Reserve(0, load.Demand{PrefillTokens: -5, Tokens: 1 << 62})
	if got := l.Load(0); got.PendingTokens != 0 || got.HeldTokens != load.MaxTokens {
		t.Errorf("load = %+v, want tokens clamped to 0 and %d", got, load.MaxTokens)
	}
	l.Release(h)
	// Hashes that are no chains must not break the books for those that are.
	var hs []load.Handle
	for _, chain := range [][]block.Hash{{1, 1}, {1, 2, 1}, {2, 1}, {3, 3, 3, 3}, {1, 2, 3}} {
		hs = append(hs, l.Reserve(0, load.Demand{Blocks: chain}))
		mustCheck(t, l)
	}
	for _, h := range hs {
		l.Release(h)
		mustCheck(t, l)
	}
	if got := l.Load(0); got != (load.Load{}) {
		t.Errorf("load after all ended = %+v, want none", got)
	}
}

// randomChain makes chains that share prefixes: the hash of a block depends on all before it.
func randomChain(rng *rand.Rand, maxLen int) []block.Hash {
	var out []block.Hash
	h := uint64(0)
	for range rng.IntN(maxLen + 1) {
		h = h*1000003 + uint64(rng.IntN(3)) + 1
		out = append(out, block.Hash(h))
	}
	return out
}

// The ledger against its definition, with every invariant checked after every step.
func TestRandomHistories(t *testing.T) {
	const targets = 4
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		l, ref := load.New(), newNaive()
		inc := [targets]target.Incarnation{}
		type pair struct {
			h load.Handle
			k int
		}
		var pairs []pair
		for step := range 600 {
			at := target.ID(rng.IntN(targets))
			what := ""
			switch p := rng.IntN(100); {
			case p < 45:
				d := load.Demand{Blocks: randomChain(rng, 12), PrefillTokens: rng.Int64N(100), Tokens: rng.Int64N(1000)}
				for rng.IntN(3) == 0 {
					d.More = append(d.More, randomChain(rng, 12))
				}
				h, k := l.Reserve(at, d), ref.reserve(at, d)
				pairs = append(pairs, pair{h, k})
				what = fmt.Sprintf("reserve %v and %v on %d", d.Blocks, d.More, at)
			case p < 60 && len(pairs) > 0:
				pr := pairs[rng.IntN(len(pairs))]
				if got, want := l.FirstToken(pr.h), ref.firstToken(pr.k); got != want {
					t.Fatalf("seed %d step %d: FirstToken = %v, want %v", seed, step, got, want)
				}
				what = "first token"
			case p < 92 && len(pairs) > 0:
				pr := pairs[rng.IntN(len(pairs))]
				if got, want := l.Release(pr.h), ref.release(pr.k); got != want {
					t.Fatalf("seed %d step %d: Release = %v, want %v", seed, step, got, want)
				}
				what = "release"
			case p < 94:
				l.Leave(at)
				what = "leave"
			case p < 98:
				if rng.IntN(2) == 0 {
					inc[at]++
				}
				l.Join(at, inc[at])
				ref.join(at, inc[at])
				what = "join"
			default:
				l.Forget(at)
				ref.forget(at)
				what = "forget"
			}
			if err := l.Check(); err != nil {
				t.Fatalf("seed %d step %d (%s): Check: %v", seed, step, what, err)
			}
			for id := range target.ID(targets) {
				if got, want := l.Load(id), ref.load(id); got != want {
					t.Fatalf("seed %d step %d (%s): load of %d = %+v, want %+v", seed, step, what, id, got, want)
				}
			}
		}
	}
}

func TestNoAllocationsInSteadyState(t *testing.T) {
	l := joined(8)
	rng := rand.New(rand.NewPCG(7, 7))
	demands := make([]load.Demand, 64)
	for i := range demands {
		demands[i] = load.Demand{Blocks: randomChain(rng, 200), PrefillTokens: 10, Tokens: 20}
		for range i % 3 {
			demands[i].More = append(demands[i].More, randomChain(rng, 100))
		}
	}
	var held [32]load.Handle
	i := 0
	step := func() {
		slot := i % len(held)
		l.Release(held[slot])
		held[slot] = l.Reserve(target.ID(i%8), demands[i%len(demands)])
		l.FirstToken(held[slot])
		_ = l.Load(target.ID(i % 8))
		i++
	}
	for range 10_000 {
		step()
	}
	if got := testing.AllocsPerRun(2000, step); got != 0 {
		t.Errorf("%v allocations per reserve and release, want 0", got)
	}
	mustCheck(t, l)
}
