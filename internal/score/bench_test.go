package score_test

import (
	"fmt"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// constView answers every lookup alike; it takes the index out of a measurement.
type constView []uint32

func (v constView) Match(_ []block.Hash, dst *index.Matches) { dst.Hits = append(dst.Hits[:0], v...) }

// A whole request, from pick to release, allocates nothing once the scorer has reached its size.
func TestNoAllocationsInSteadyState(t *testing.T) {
	cfgs := []score.Config{
		config(score.KVAware, recent, affinity(score.AffinityBoth), demand(score.DemandShadow, 10)),
		config(score.LeastWork, affinity(score.AffinityPrefill), demand(score.DemandOn, 10)),
	}
	for _, p := range score.Policies() {
		cfgs = append(cfgs, config(p))
	}
	for i, cfg := range cfgs {
		t.Run(fmt.Sprint(i, cfg.Policy), func(t *testing.T) {
			r := newRig(t, 16, cfg)
			hits := make(constView, 16)
			for j := range hits {
				hits[j] = uint32(j)
			}
			sc, err := score.New(cfg, hits, r.led)
			if err != nil {
				t.Fatal(err)
			}
			sessions := []string{"", "x", "y", "z"}
			images := []uint64{3, 4}
			var reqs []score.Request
			for j := range 24 {
				req := prompt(chain(j, 50))
				req.Role, req.Session = score.Role(j%3), sessions[j%4]
				if j%8 == 7 {
					req.Multimodal, req.Images = true, images
				}
				if j%4 == 1 { // as live requests are: batches, in two readings
					req.LastComputed, req.Lengths, req.More = true, []int64{800, 480}, [][]block.Hash{chain(50+j, 30)}
					req.InputTokens = 1280
				}
				req.Variants = []score.Variant{{Blocks: chain(90+j, 40), Lengths: []int64{640}, InputTokens: 640, TokensExact: true}}
				reqs = append(reqs, req)
			}
			for j := range r.cands {
				r.cands[j].Variant, r.cands[j].PageSize = j%5/4, 32
				if j%3 == 0 {
					r.cands[j].Doubt = "events were lost"
				}
			}
			var held [8]load.Handle
			var dec score.Decision
			var line []byte
			n := 0
			step := func() {
				req := &reqs[n%len(reqs)]
				req.At = int64(n) * 1e6
				sc.Release(held[n%8], req.At)
				if err := sc.Pick(req, r.cands, &dec); err != nil {
					t.Fatal(err)
				}
				held[n%8] = dec.Handle
				sc.FirstToken(held[(n+5)%8], req.At)
				if err := sc.Peek(req, r.cands, &dec); err != nil {
					t.Fatal(err)
				}
				line = dec.AppendJSON(line[:0])
				n++
			}
			for range 2000 {
				step()
			}
			if got := testing.AllocsPerRun(1000, step); got != 0 {
				t.Errorf("%v allocations per request, want 0", got)
			}
		})
	}
}

// BenchmarkPick is a request from pick to release without the index: scoring and booking.
func BenchmarkPick(b *testing.B) {
	for _, policy := range []string{score.KVAware, score.LeastWork, score.RoundRobin} {
		for _, size := range []struct{ blocks, workers int }{{64, 8}, {4096, 96}} {
			b.Run(fmt.Sprintf("%s/blocks=%d/workers=%d", policy, size.blocks, size.workers), func(b *testing.B) {
				r := newRig(b, size.workers, config(policy))
				hits := make(constView, size.workers)
				for i := range hits {
					hits[i] = uint32(i * size.blocks / size.workers)
				}
				sc, err := score.New(config(policy), hits, r.led)
				if err != nil {
					b.Fatal(err)
				}
				req := prompt(chain(1, size.blocks))
				var dec score.Decision
				b.ReportAllocs()
				for b.Loop() {
					if err := sc.Pick(&req, r.cands, &dec); err != nil {
						b.Fatal(err)
					}
					sc.FirstToken(dec.Handle, 0)
					sc.Release(dec.Handle, 0)
				}
			})
		}
	}
}

// BenchmarkPeek is scoring alone.
func BenchmarkPeek(b *testing.B) {
	for _, policy := range []string{score.KVAware, score.LeastWork} {
		for _, workers := range []int{8, 96} {
			b.Run(fmt.Sprintf("%s/workers=%d", policy, workers), func(b *testing.B) {
				r := newRig(b, workers, config(policy))
				sc, err := score.New(config(policy), make(constView, workers), r.led)
				if err != nil {
					b.Fatal(err)
				}
				req := prompt(chain(1, 64))
				var dec score.Decision
				b.ReportAllocs()
				for b.Loop() {
					if err := sc.Peek(&req, r.cands, &dec); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkScore is what a pick costs without its booking, over a real index: longest run and score of
// one prompt, where all, some (each a different length) or none of the targets hold its prefix. The
// index holds other prompts too.
func BenchmarkScore(b *testing.B) {
	for _, size := range []struct{ blocks, workers int }{{4096, 96}, {64, 8}, {64, 96}} {
		for _, held := range []string{"all", "some", "none"} {
			b.Run(fmt.Sprintf("blocks=%d/workers=%d/held=%s", size.blocks, size.workers, held), func(b *testing.B) {
				x := index.New(16, index.Options{})
				r := newRig(b, size.workers, config(score.LeastWork))
				req := prompt(mixed(chain(1, size.blocks)))
				for w := range size.workers {
					x.Join(target.ID(w))
					n := size.blocks
					switch held {
					case "some":
						n = w * size.blocks / size.workers
					case "none":
						n = 0
					}
					store(b, x, target.ID(w), req.Blocks[:n])
					store(b, x, target.ID(w), mixed(chain(100+w, 2000)))
				}
				sc, err := score.New(config(score.LeastWork), x, r.led)
				if err != nil {
					b.Fatal(err)
				}
				var dec score.Decision
				b.ReportAllocs()
				for b.Loop() {
					if err := sc.Peek(&req, r.cands, &dec); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// mixed makes hashes of small numbers look like block hashes.
func mixed(chain []block.Hash) []block.Hash {
	for i := range chain {
		chain[i] = block.Hash(xxh3.HashString(fmt.Sprint(uint64(chain[i]))))
	}
	return chain
}

func store(tb testing.TB, x *index.Index, t target.ID, chain []block.Hash) {
	if len(chain) == 0 {
		return
	}
	op := index.Op{Kind: index.Store, Target: t, Hashes: chain}
	for _, h := range chain {
		op.Handles = append(op.Handles, index.Handle(h))
	}
	if _, err := x.Apply(op); err != nil {
		tb.Fatal(err)
	}
}
