package prefixcache

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/trace"
)

// naive is the ordered list of blocks, most recent last: the rule read aloud.
type naive struct {
	f        *trace.Forest
	capacity int
	order    []trace.NodeID
}

func (n *naive) path(leaf trace.NodeID) []trace.NodeID {
	var p []trace.NodeID
	for ; leaf != trace.NoNode; leaf = n.f.Parent[leaf] {
		p = append(p, leaf)
	}
	slices.Reverse(p)
	return p
}

func (n *naive) hits(leaf trace.NodeID) int {
	for i, b := range n.path(leaf) {
		if !slices.Contains(n.order, b) {
			return i
		}
	}
	return len(n.path(leaf))
}

func (n *naive) touch(leaf trace.NodeID) (stored, evicted []trace.NodeID) {
	path := n.path(leaf)
	before := slices.Clone(n.order)
	for i := len(path) - 1; i >= 0; i-- {
		if k := slices.Index(n.order, path[i]); k >= 0 {
			n.order = slices.Delete(n.order, k, k+1)
		}
		n.order = append(n.order, path[i])
	}
	for n.capacity > 0 && len(n.order) > n.capacity {
		if slices.Contains(before, n.order[0]) {
			evicted = append(evicted, n.order[0])
		}
		n.order = n.order[1:]
	}
	for _, b := range path {
		if slices.Contains(n.order, b) && !slices.Contains(before, b) {
			stored = append(stored, b)
		}
	}
	return stored, evicted
}

// randomForest grows a forest of n blocks; long makes paths rather than bushes.
func randomForest(r *rand.Rand, n int, long bool) *trace.Forest {
	f := &trace.Forest{}
	for i := range n {
		p, depth := trace.NoNode, uint32(1)
		if i > 0 && r.IntN(8) > 0 {
			p = trace.NodeID(i - 1)
			if !long || r.IntN(6) == 0 {
				p = trace.NodeID(r.IntN(i))
			}
			depth = f.Depth[p] + 1
		}
		f.Hash = append(f.Hash, block.Hash(i+1))
		f.Parent = append(f.Parent, p)
		f.Depth = append(f.Depth, depth)
	}
	return f
}

// compare drives both caches through random requests.
func compare(t *testing.T, seed uint64, blocks, capacity, steps int, indexed bool) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, uint64(blocks)))
	f := randomForest(r, blocks, r.IntN(2) == 0)
	if indexed {
		f.Index()
	}
	fast, slow := NewLRU(f, capacity), &naive{f: f, capacity: capacity}
	if seed%3 == 0 {
		fast.seq, fast.base, fast.cursor = math.MaxUint32-uint32(steps/2), math.MaxUint32-uint32(steps/2)+1, math.MaxUint32-uint32(steps/2)+1
	}
	for i := range steps {
		leaf := trace.NodeID(r.IntN(blocks))
		where := fmt.Sprintf("seed %d, %d blocks, capacity %d, step %d, leaf %d", seed, blocks, capacity, i, leaf)
		if got, want := fast.Hits(leaf), slow.hits(leaf); got != want {
			t.Fatalf("%s: %d hits, want %d", where, got, want)
		}
		var stored, evicted []trace.NodeID
		fast.Touch(leaf, &stored, &evicted)
		wantStored, wantEvicted := slow.touch(leaf)
		if d := cmp.Diff(wantStored, stored); d != "" {
			t.Fatalf("%s: stored (-want +got):\n%s", where, d)
		}
		if d := cmp.Diff(wantEvicted, evicted); d != "" {
			t.Fatalf("%s: evicted (-want +got):\n%s", where, d)
		}
		if err := fast.Check(); err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		if fast.Len() != len(slow.order) {
			t.Fatalf("%s: %d blocks held, want %d", where, fast.Len(), len(slow.order))
		}
	}
}

func TestLRUAgainstNaive(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		blocks := 1 + r.IntN(60)
		compare(t, seed, blocks, r.IntN(blocks+3), 80, seed%2 == 0)
	}
	compare(t, 3, 400, 50, 3000, true)
	compare(t, 4, 3000, 300, 400, true)
}

func FuzzLRU(f *testing.F) {
	f.Add(uint64(1), uint8(20), uint8(5), uint8(40))
	f.Add(uint64(6), uint8(40), uint8(0), uint8(90))
	f.Fuzz(func(t *testing.T, seed uint64, blocks, capacity, steps uint8) {
		compare(t, seed, int(blocks)+1, int(capacity), int(steps), seed%2 == 0)
	})
}

func TestLRUWithoutBlocks(t *testing.T) {
	c := NewLRU(&trace.Forest{}, 10)
	c.Touch(trace.NoNode, nil, nil)
	if c.Hits(trace.NoNode) != 0 || c.Len() != 0 {
		t.Fatalf("a request without blocks left %d blocks", c.Len())
	}
}

func TestLRUTouchAllocates(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	f := randomForest(r, 5000, true)
	f.Index()
	c := NewLRU(f, 1000)
	for range 5000 {
		c.Touch(trace.NodeID(r.IntN(5000)), nil, nil)
	}
	if got := testing.AllocsPerRun(2000, func() {
		leaf := trace.NodeID(r.IntN(5000))
		c.Hits(leaf)
		c.Touch(leaf, nil, nil)
	}); got != 0 {
		t.Fatalf("a touch allocates %v times, want 0", got)
	}
}
