package index

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// TestSharedReadersAndWriters lets writers store, remove and clear while readers look. Every answer must
// be one that some state between two block operations gives; under -race it also shows the locking.
func TestSharedReadersAndWriters(t *testing.T) {
	t.Parallel()
	const targets, blocks = 4, 256
	x := NewShared(16, Options{})
	chain := chainOf(nil, 1, blocks)
	handles := handlesOf(nil, chain, 1)
	for id := range target.ID(targets) {
		x.Join(id)
	}
	x.Join(targets)
	mustApply(t, x, storeOp(targets, chain, handles, 0, blocks)) // this one never changes
	var writers, readers sync.WaitGroup
	var stop atomic.Bool
	for id := range target.ID(targets) {
		writers.Go(func() {
			for round := range 30 {
				if _, err := x.Apply(storeOp(id, chain, handles, 0, blocks)); err != nil {
					t.Error(err)
				}
				op := Op{Kind: Clear, Target: id}
				if round%2 == 0 {
					op = Op{Kind: Remove, Target: id, Handles: reversed(handles)}
				}
				if r, err := x.Apply(op); err != nil || r.Removed != blocks {
					t.Errorf("emptying target %d: %+v, %v; want %d removed", id, r, err, blocks)
				}
			}
		})
	}
	for range 3 {
		readers.Go(func() {
			var m Matches
			for !stop.Load() {
				x.Match(chain, &m)
				if m.Hits[targets] != blocks {
					t.Errorf("the quiet target has %d hits, want %d", m.Hits[targets], blocks)
					return
				}
				if s := x.Stats(0); s.Blocks > blocks {
					t.Errorf("%d blocks held of %d", s.Blocks, blocks)
				}
				x.ContentHash(1)
				x.Size()
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	readers.Wait()
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}

func reversed(in []Handle) []Handle {
	out := make([]Handle, len(in))
	for i, h := range in {
		out[len(in)-1-i] = h
	}
	return out
}

// TestSharedLetsReadersInBetweenBlocks stands in for a reader that waits all the time: the writer must
// let go of the lock after every block operation, and each state it shows must be consistent.
func TestSharedLetsReadersInBetweenBlocks(t *testing.T) {
	t.Parallel()
	const blocks = 64
	chain := chainOf(nil, 1, blocks)
	handles := handlesOf(nil, chain, 1)
	x := New(16, Options{})
	x.Join(0)
	x.Join(1)
	var m Matches
	var seen []uint32
	x.yield = func() {
		x.Match(chain, &m)
		seen = append(seen, m.Hits[0])
	}
	mustApply(t, x, storeOp(0, chain, handles, 0, blocks))
	for i, hits := range seen {
		if hits != uint32(i+1) {
			t.Fatalf("after block %d of a store a reader sees %d hits, want %d", i, hits, i+1)
		}
	}
	if len(seen) != blocks {
		t.Errorf("a store of %d blocks lets readers in %d times", blocks, len(seen))
	}
	seen = nil
	mustApply(t, x, Op{Kind: Clear})
	if len(seen) < blocks {
		t.Errorf("a clear of %d blocks lets readers in %d times", blocks, len(seen))
	}
	for _, hits := range seen {
		if hits != 0 {
			t.Fatalf("a reader sees %d hits of a target that is being cleared, want 0", hits)
		}
	}
}

// TestSharedIsAView makes sure scoring can use either form.
func TestSharedIsAView(t *testing.T) {
	t.Parallel()
	for _, v := range []View{New(16, Options{}), NewShared(16, Options{})} {
		var m Matches
		if v.Match([]block.Hash{1}, &m); len(m.Hits) != 0 {
			t.Errorf("%T without targets: hits %v", v, m.Hits)
		}
	}
}
