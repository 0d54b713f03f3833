package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/kvroute/kvroute/internal/trace"
)

type silent struct{}

func (silent) Admitted(int, int32, int, bool) {}
func (silent) Stored(int, []trace.NodeID)     {}
func (silent) Evicted(int, []trace.NodeID)    {}
func (silent) FirstToken(int, int32)          {}
func (silent) Finished(int, int32)            {}
func (silent) Preempted(int, int32)           {}

// steady drives one worker with random requests, forever.
type steady struct {
	b   *Batch
	r   *rand.Rand
	f   *trace.Forest
	now int64
	id  int32
}

func newSteady() *steady {
	r := rand.New(rand.NewPCG(1, 2))
	f := randomForest(r, 20000, 64, false)
	p, _ := Lookup(DefaultProfile)
	return &steady{r: r, f: f, b: NewBatch(BatchConfig{
		Cost: p.Cost(), Budget: p.ChunkTokens, MaxRunning: p.MaxRunning,
		Capacity: 2000, BlockSize: 64, Forest: f,
	}, silent{})}
}

// request hands in one request and runs the worker until it has fewer than 32 at once.
func (s *steady) request() {
	leaf := trace.NodeID(s.r.IntN(len(s.f.Parent)))
	s.id++
	s.b.Submit(s.now, Job{ID: s.id, Leaf: leaf, Input: int64(s.f.Depth[leaf]) * 64, Output: 1 + s.r.Int64N(600)})
	s.b.Start(s.now)
	for s.b.Running()+s.b.Waiting() > 32 {
		s.now = s.b.Next()
		s.b.Finish()
		s.b.Start(s.now)
	}
}

func BenchmarkBatch(b *testing.B) {
	s := newSteady()
	b.ReportAllocs()
	for b.Loop() {
		s.request()
	}
	b.ReportMetric(float64(s.b.steps)/float64(b.N), "steps/op")
}

func TestBatchDoesNotAllocate(t *testing.T) {
	s := newSteady()
	for range 20000 {
		s.request()
	}
	// Amortised growth of the list of evictable runs is all that is left.
	if got := testing.AllocsPerRun(5000, s.request); got > 0 {
		t.Errorf("got %v allocations a request, want 0", got)
	}
}
