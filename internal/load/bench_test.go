package load_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/load"
)

// BenchmarkReserveRelease books and ends one request. shared: its whole prompt but the last block is
// in flight already, as in a conversation; distinct: nothing is.
func BenchmarkReserveRelease(b *testing.B) {
	for _, blocks := range []int{64, 4096} {
		for _, shared := range []bool{true, false} {
			b.Run(fmt.Sprintf("blocks=%d/shared=%v", blocks, shared), func(b *testing.B) {
				l := joined(1)
				chain := make([]block.Hash, blocks)
				for i := range chain {
					chain[i] = block.Hash(uint64(i+1) * 0x9e3779b97f4a7c15)
				}
				if shared {
					l.Reserve(0, load.Demand{Blocks: chain[:blocks-1]})
				}
				b.ReportAllocs()
				for b.Loop() {
					l.Release(l.Reserve(0, load.Demand{Blocks: chain, PrefillTokens: 1, Tokens: 1}))
				}
			})
		}
	}
}

// BenchmarkBusy books and ends requests one after the other on a target with 63 others in flight, none of
// which shares a block: the set is larger than the nearest caches.
func BenchmarkBusy(b *testing.B) {
	const prompts, blocks = 64, 4096
	rng := rand.New(rand.NewPCG(1, 1))
	chains := make([][]block.Hash, prompts)
	held := make([]load.Handle, prompts)
	l := joined(1)
	for i := range chains {
		for range blocks {
			chains[i] = append(chains[i], block.Hash(rng.Uint64()))
		}
		held[i] = l.Reserve(0, load.Demand{Blocks: chains[i]})
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i = (i + 1) % prompts {
		l.Release(held[i])
		held[i] = l.Reserve(0, load.Demand{Blocks: chains[i], PrefillTokens: 1, Tokens: 1})
	}
}
