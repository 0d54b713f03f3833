package load_test

import (
	"fmt"
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
