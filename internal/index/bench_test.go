package index

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// chainOf is a chain of n blocks that belongs to a number.
func chainOf(dst []block.Hash, number uint64, n int) []block.Hash {
	h := block.Hash(mix(number + 1<<40))
	for range n {
		h = block.Hash(mix(uint64(h) + 0x9e3779b97f4a7c15))
		dst = append(dst, h)
	}
	return dst
}

// handlesOf names the blocks of a chain as an engine would whose hashes have a seed.
func handlesOf(dst []Handle, chain []block.Hash, seed uint64) []Handle {
	for _, h := range chain {
		dst = append(dst, Handle(mix(uint64(h)^seed)))
	}
	return dst
}

// storeOp stores blocks first to first+n of a chain.
func storeOp(t target.ID, chain []block.Hash, handles []Handle, first, n int) Op {
	op := Op{Kind: Store, Target: t, Handles: handles[first : first+n], Hashes: chain[first : first+n]}
	if first > 0 {
		op.HasParent, op.Parent = true, handles[first-1]
	}
	return op
}

func reversed(in []Handle) []Handle {
	out := slices.Clone(in)
	slices.Reverse(out)
	return out
}

func mustApply(tb testing.TB, x interface{ Apply(Op) (Result, error) }, op Op) Result {
	tb.Helper()
	r, err := x.Apply(op)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// matchCase makes an index of targets that hold a chain of blocks as the case says.
func matchCase(tb testing.TB, hold string, blocks, targets int) (*Index, []block.Hash) {
	x := New(16, Options{})
	chain := chainOf(nil, 0, blocks)
	handles := handlesOf(nil, chain, 1)
	for t := range targets {
		id := target.ID(t)
		x.Join(id)
		other := chainOf(nil, uint64(1+t), 64)
		mustApply(tb, x, storeOp(id, other, handlesOf(nil, other, 1), 0, 64))
		if hold == "scattered" {
			n := blocks * t / targets
			for at := 0; at < n; at += 16 { // between any two events of the chain one of another
				mustApply(tb, x, storeOp(id, chain, handles, at, min(16, n-at)))
				other := chainOf(nil, uint64(1e6+t*blocks+at), 16)
				mustApply(tb, x, storeOp(id, other, handlesOf(nil, other, 1), 0, 16))
			}
			continue
		}
		n := blocks
		switch hold {
		case "none":
			n = 0
		case "staggered":
			n = blocks * t / targets
		case "tiers":
			op := storeOp(id, chain, handles, 0, blocks)
			op.Tier = CPU
			mustApply(tb, x, op)
			n = blocks / 2
		}
		if n > 0 {
			mustApply(tb, x, storeOp(id, chain, handles, 0, n))
		}
		if hold == "holes" && t%8 == 0 {
			mustApply(tb, x, Op{Kind: Remove, Target: id, Handles: handles[blocks-2 : blocks-1]})
		}
	}
	return x, chain
}

func BenchmarkMatch(b *testing.B) {
	for _, size := range []struct{ blocks, targets int }{{4096, 8}, {4096, 96}, {4096, 1000}, {64, 8}, {64, 96}} {
		for _, hold := range []string{"all", "staggered", "scattered", "none", "holes", "tiers"} {
			b.Run(fmt.Sprintf("blocks=%d/targets=%d/hold=%s", size.blocks, size.targets, hold), func(b *testing.B) {
				x, chain := matchCase(b, hold, size.blocks, size.targets)
				var m Matches
				x.Match(chain, &m)
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				b.ReportAllocs()
				start := threadTime(b)
				for b.Loop() {
					x.Match(chain, &m)
				}
				b.ReportMetric(float64(threadTime(b)-start)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// churn keeps an index at a size: each step one target evicts the event it stored longest ago, last
// block first, and stores a new one of 16 blocks at the end of a chain of 256.
type churn struct {
	x       *Index
	targets int
	shared  bool
	oldest  []uint64 // per target, number of the oldest event held
	newest  []uint64
	chain   []block.Hash
	handles []Handle
}

const (
	churnEvent = 16
	churnChain = 256
)

func newChurn(tb testing.TB, x *Index, targets, members int, shared bool, seeds func(target.ID) uint64) *churn {
	c := &churn{x: x, targets: targets, shared: shared, oldest: make([]uint64, targets), newest: make([]uint64, targets)}
	for t := range targets {
		x.Join(target.ID(t))
	}
	each := members / targets / churnEvent
	for range each {
		for t := range targets {
			c.store(tb, target.ID(t), seeds)
		}
	}
	return c
}

// event lays out the i-th event of a target.
func (c *churn) event(t target.ID, i uint64, seeds func(target.ID) uint64) int {
	per := uint64(churnChain / churnEvent)
	number := i / per
	if !c.shared {
		number = number*uint64(c.targets) + uint64(t)
	}
	c.chain = chainOf(c.chain[:0], number, churnChain)
	c.handles = handlesOf(c.handles[:0], c.chain, seeds(t))
	return int(i%per) * churnEvent
}

func (c *churn) store(tb testing.TB, t target.ID, seeds func(target.ID) uint64) {
	first := c.event(t, c.newest[t], seeds)
	if r := mustApply(tb, c.x, storeOp(t, c.chain, c.handles, first, churnEvent)); r.Stored != churnEvent {
		tb.Fatalf("stored %+v", r)
	}
	c.newest[t]++
}

func sameSeed(target.ID) uint64 { return 1 }

func ownSeed(t target.ID) uint64 { return uint64(t) + 1 }

var heapSink any

func heapNow() uint64 {
	runtime.GC()
	runtime.GC()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	return ms.HeapAlloc
}

// BenchmarkMemory reports the heap a membership costs, everything included. It is not about time.
func BenchmarkMemory(b *testing.B) {
	for _, members := range []int{1e6, 10e6, 30e6} {
		for _, targets := range []int{8, 96} {
			for _, kind := range []string{"distinct", "shared", "shared-own-handles"} {
				b.Run(fmt.Sprintf("members=%dM/targets=%d/%s", members/1e6, targets, kind), func(b *testing.B) {
					for b.Loop() {
						seeds := sameSeed
						if kind == "shared-own-handles" {
							seeds = ownSeed
						}
						before := heapNow()
						c := newChurn(b, New(16, Options{}), targets, members, kind != "distinct", seeds)
						b.ReportMetric(float64(heapNow()-before)/float64(c.x.Size().Members), "B/member")
						heapSink = c
					}
				})
			}
		}
	}
	heapSink = nil
}

// BenchmarkChurn evicts and stores events of 16 blocks in an index that holds 10 million memberships.
// One op is 8,192 block operations. Events are laid out beforehand with the timer stopped.
func BenchmarkChurn(b *testing.B) {
	for _, members := range []int{100e3, 1e6, 10e6} {
		for _, targets := range []int{8, 96} {
			for _, kind := range []string{"distinct", "shared", "shared-own-handles"} {
				b.Run(fmt.Sprintf("members=%dk/targets=%d/%s", members/1e3, targets, kind), func(b *testing.B) {
					seeds := sameSeed
					if kind == "shared-own-handles" {
						seeds = ownSeed
					}
					benchChurn(b, newChurn(b, New(16, Options{}), targets, members, kind != "distinct", seeds), seeds)
				})
			}
		}
	}
}

func benchChurn(b *testing.B, c *churn, seeds func(target.ID) uint64) {
	const batch = 256
	rng := rand.New(rand.NewPCG(1, 2))
	ops := make([]Op, 0, 2*batch)
	b.ReportAllocs()
	var rates []float64 // by the wall clock, batch by batch
	var cpu []float64   // by the processor time of this thread
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for b.Loop() {
		b.StopTimer()
		ops = ops[:0]
		for range batch {
			t := target.ID(rng.IntN(c.targets))
			// A chain is evicted from its end: take the events of the oldest chain backwards.
			per := uint64(churnChain / churnEvent)
			old := c.oldest[t]/per*per + per - 1 - c.oldest[t]%per
			first := c.event(t, old, seeds)
			gone := append([]Handle(nil), c.handles[first:first+churnEvent]...)
			for i, j := 0, len(gone)-1; i < j; i, j = i+1, j-1 {
				gone[i], gone[j] = gone[j], gone[i]
			}
			ops = append(ops, Op{Kind: Remove, Target: t, Handles: gone})
			c.oldest[t]++
			first = c.event(t, c.newest[t], seeds)
			op := storeOp(t, c.chain, c.handles, first, churnEvent)
			op.Hashes, op.Handles = slices.Clone(op.Hashes), slices.Clone(op.Handles)
			ops = append(ops, op)
			c.newest[t]++
		}
		b.StartTimer()
		start, used := time.Now(), threadTime(b)
		for i := range ops {
			r, err := c.x.Apply(ops[i])
			if err != nil || r.Stored+r.Removed != churnEvent {
				b.Fatalf("op %d: %+v, %v", i, r, err)
			}
		}
		rates = append(rates, 2*batch*churnEvent/time.Since(start).Seconds()/1e6)
		cpu = append(cpu, 2*batch*churnEvent/(threadTime(b)-used).Seconds()/1e6)
	}
	slices.Sort(cpu)
	b.ReportMetric(cpu[len(cpu)/2], "Mblocks/cpu-s-median")
	b.ReportMetric(cpu[len(cpu)*9/10], "Mblocks/cpu-s-p90")
	slices.Sort(rates)
	b.ReportMetric(rates[len(rates)/2], "Mblocks/s-median")
	b.ReportMetric(rates[len(rates)*9/10], "Mblocks/s-p90")
	b.ReportMetric(rates[len(rates)-1], "Mblocks/s-best")
}
