package replay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/target"
)

// The mirrors of a recording answer as a table of targets and blocks does, for few targets and for many.
func TestHoldingsAgainstNaive(t *testing.T) {
	for _, targets := range []int{3, 64, 65, 200} {
		t.Run(fmt.Sprintf("targets=%d", targets), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, uint64(targets)))
			v, naive := newHoldings(), map[target.ID]map[block.Hash]index.Tier{}
			widest := target.ID(0)
			chain := make([]block.Hash, 12)
			for i := range chain {
				chain[i] = block.Hash(100 + i)
			}
			var got index.Matches
			for step := range 6000 {
				id := target.ID(rng.IntN(1 + min(step/20, targets-1))) // the fleet grows
				if id >= widest {
					widest = id + 1
				}
				v.widen(id)
				if naive[id] == nil {
					naive[id] = map[block.Hash]index.Tier{}
				}
				h := chain[rng.IntN(len(chain))]
				switch k := rng.IntN(40); {
				case k == 0:
					v.empty(id)
					clear(naive[id])
				case k < 10:
					v.drop(id, h)
					delete(naive[id], h)
				default:
					tier := index.Tier(rng.IntN(int(index.NumTiers)))
					v.set(id, h, tier)
					naive[id][h] = tier
				}
				n := rng.IntN(len(chain) + 1)
				v.Match(chain[:n], &got)
				hits := make([]uint32, widest)
				var lower [index.NumTiers][]uint32
				for tier := range lower {
					lower[tier] = make([]uint32, widest)
				}
				for id, held := range naive {
					for _, h := range chain[:n] {
						tier, ok := held[h]
						if !ok {
							break
						}
						hits[id]++
						if tier != index.GPU {
							lower[tier][id]++
						}
					}
				}
				if !slices.Equal(got.Hits, hits) || !slices.Equal(got.Lower[index.CPU], lower[index.CPU]) || !slices.Equal(got.Lower[index.Disk], lower[index.Disk]) {
					t.Fatalf("step %d: hits %v, lower %v; want %v, %v", step, got.Hits, got.Lower, hits, lower)
				}
			}
			for id := range widest {
				v.empty(id)
			}
			if len(v.at) != 0 || len(v.free)*cellKinds*v.words != len(v.bits) {
				t.Errorf("%d blocks and %d of %d cells left when all is gone", len(v.at), len(v.bits)/(cellKinds*v.words)-len(v.free), len(v.bits))
			}
		})
	}
}

func TestDifferences(t *testing.T) {
	for _, tc := range []struct {
		name, recorded, replayed string
		want                     []Term
	}{
		{"a number", `{"a":1,"c":[{"hits":2},{"hits":3}]}`, `{"a":1,"c":[{"hits":2},{"hits":4}]}`, []Term{{"c[1].hits", "3", "4"}}},
		{"a term more", `{"a":1}`, `{"a":1,"b":"x"}`, []Term{{"b", "", `"x"`}}},
		{"a term less", `{"a":null,"b":{"c":true}}`, `{"a":null}`, []Term{{"b.c", "true", ""}}},
		{"form alone", `{"a":1 }`, `{"a":1}`, []Term{{"decision", `{"a":1 }`, `{"a":1}`}}},
		{"digits of a number", `{"a":1.0}`, `{"a":1}`, []Term{{"a", "1.0", "1"}}},
		{"no JSON", `{"a":`, `{"a":1}`, []Term{{"decision", `{"a":`, `{"a":1}`}}},
		{"text after it", `{"a":1}]`, `{"a":1}`, []Term{{"decision", `{"a":1}]`, `{"a":1}`}}},
	} {
		if got := differences([]byte(tc.recorded), []byte(tc.replayed)); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}
