package fit

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/kvroute/kvroute/internal/decodelog"
)

func testSample(at int64, rank int32, step float64) decodelog.Sample {
	return decodelog.Sample{At: at, Rank: rank, Step: step, Running: 3, Held: 1000, Accept: 1}
}

// steady returns samples of eight ranks, three a bin each, n in all.
func steady(n int) []decodelog.Sample {
	rng := rand.New(rand.NewPCG(1, 1))
	out := make([]decodelog.Sample, n)
	running, held := 10.0, 2e5
	for i := range out {
		if i%8 == 0 {
			running = min(max(running+rng.NormFloat64(), 1), 40)
			held = min(max(held+2e4*rng.NormFloat64(), 1e4), 1e6)
		}
		out[i] = decodelog.Sample{
			At: int64(i/8) * 1e9, Rank: int32(i % 8), Running: running, Held: held, Accept: 1,
			Step: 0.02 + 5e-4*running + 2e-8*held + 2e-4*rng.NormFloat64(),
		}
	}
	return out
}

func TestAddTakesNoMemory(t *testing.T) {
	f := New(Options{})
	samples := steady(200_000)
	for i := range samples[:100_000] {
		f.Add(&samples[i])
	}
	// Rows are kept, hence grow now and then: less than one allocation in a thousand samples.
	i := 100_000
	got := testing.AllocsPerRun(50, func() {
		for range 1000 {
			f.Add(&samples[i])
			i++
		}
	})
	if got > 1 {
		t.Errorf("%g allocations for 1000 samples, want at most 1", got)
	}
}

// heap is what is in use after a collection, bytes.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestMemoryDoesNotGrowWithTheLog(t *testing.T) {
	f := New(Options{})
	var after [2]int64
	at := int64(0)
	for i := range after {
		// More than are kept, of the long bins too, and more again.
		for range 10 * maxRows {
			for rank := range int32(2) {
				s := testSample(at, rank, 0.02)
				f.Add(&s)
			}
			at += 3e9
		}
		after[i] = heap()
	}
	if grown := after[1] - after[0]; grown > 1<<20 {
		t.Errorf("%d bytes of heap after %d bins, %d after %d", after[0], 10*maxRows, after[1], 20*maxRows)
	}
	runtime.KeepAlive(f)
}

func BenchmarkAdd(b *testing.B) {
	samples := steady(1 << 20)
	b.ReportAllocs()
	f := New(Options{})
	i := 0
	for b.Loop() {
		if i == len(samples) {
			i, f = 0, New(Options{})
		}
		f.Add(&samples[i])
		i++
	}
}

func BenchmarkResult(b *testing.B) {
	for _, bins := range []int{300, 10_000} {
		f := New(Options{})
		for _, s := range steady(24 * bins) {
			f.Add(&s)
		}
		b.Run(fmt.Sprint(bins, " bins"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if r := f.Result(); len(r.Bins) != bins {
					b.Fatalf("%d bins, want %d", len(r.Bins), bins)
				}
			}
		})
	}
}
