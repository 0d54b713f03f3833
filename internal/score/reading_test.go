package score_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
)

// What engines reuse of a prompt they hold: whole pages, and never the last token.
func TestLastComputed(t *testing.T) {
	for _, tc := range []struct {
		name   string
		tokens int64 // of the prompt, in blocks of 16
		held   int   // leading blocks in the cache
		page   int   // 0: a block
		hits   int64
	}{
		{"exact multiple", 160, 10, 0, 9},
		{"one token more", 161, 10, 0, 10},
		{"one token less", 159, 9, 0, 9},
		{"held in part", 160, 4, 0, 4},
		{"one block", 16, 1, 0, 0},
		{"one block and a token", 17, 1, 0, 1},
		{"pages of two blocks, exact multiple", 160, 10, 32, 8},
		{"pages of two blocks, one token more", 161, 10, 32, 10},
		{"pages of two blocks, a page and a block", 48, 2, 32, 2},
		{"pages of two blocks, odd run", 161, 5, 32, 4},
		{"pages of two blocks, the first is enough", 33, 2, 32, 2},
		{"pages of two blocks, one page", 32, 2, 32, 0},
		{"pages of one token, exact multiple", 160, 10, 1, 9},
		{"pages of one token, one more", 161, 10, 1, 10},
		{"pages of half a block, exact multiple", 160, 10, 8, 9},
		{"pages of half a block, a block and a half", 24, 1, 8, 1},
		{"pages of a block and a half", 160, 10, 24, 9},
		{"pages longer than the prompt", 160, 10, 256, 0},
		{"nothing held", 160, 0, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 2, config(score.LeastWork))
			blocks := chain(1, int(tc.tokens/16))
			r.view.add(0, blocks[:tc.held]...)
			r.cands[0].PageSize = tc.page
			req := prompt(blocks)
			req.InputTokens, req.LastComputed, req.Lengths = tc.tokens, true, []int64{tc.tokens}
			r.pick(req)
			got := r.dec.Terms[0]
			if got.Hits != tc.hits || got.HitWeight != float64(tc.hits) || got.HitTokens != 16*tc.hits || got.Blocks != int64(len(blocks)) {
				t.Errorf("hits %d, weight %v, tokens %d of %d blocks; want %d of %d",
					got.Hits, got.HitWeight, got.HitTokens, got.Blocks, tc.hits, len(blocks))
			}
			if r.dec.Picked == 0 {
				if got, want := r.led.Load(0).PendingTokens, tc.tokens-16*tc.hits; got != want {
					t.Errorf("%d tokens pending, want %d", got, want)
				}
			}
		})
	}
}

// A run that counts in part keeps the tiers of the blocks that count.
func TestLastComputedTiers(t *testing.T) {
	r := newRig(t, 3, config(score.LeastWork))
	blocks := chain(1, 10)
	tiers := func(target int, first, last index.Tier) {
		for i, b := range blocks {
			r.view[target][b] = first
			if i >= 8 {
				r.view[target][b] = last
			}
		}
	}
	tiers(0, index.GPU, index.Disk)
	tiers(1, index.CPU, index.GPU)
	r.cands[1].PageSize = 32
	tiers(2, index.GPU, index.CPU)
	req := prompt(blocks)
	req.LastComputed, req.Lengths = true, []int64{160}
	r.pick(req)
	for i, want := range []float64{8 + 0.4, 0.8 * 8, 8 + 0.8} {
		if got := r.dec.Terms[i].HitWeight; abs(got-want) > 1e-12 {
			t.Errorf("hit weight of %s = %v, want %v", r.cands[i].Key, got, want)
		}
	}
}

// TestBatchOfPrompts adds the hits and misses of the prompts, whichever prompt they are of.
func TestBatchOfPrompts(t *testing.T) {
	for _, policy := range []string{score.LeastWork, score.KVAware, score.Prefix} {
		r := newRig(t, 3, config(policy))
		one, two, three := chain(1, 10), chain(2, 6), chain(3, 4)
		r.view.add(0, one[:8]...)
		r.view.add(1, one[:4]...)
		r.view.add(1, two...)
		r.view.add(2, two[:1]...)
		r.view.add(2, three...)
		req := prompt(one)
		req.More = [][]block.Hash{two, nil, three}
		req.InputTokens = 16*(10+6+4) + 7
		req.LastComputed, req.Lengths = true, []int64{160, 96, 7, 64}
		if got := r.pick(req); got != "b" {
			t.Errorf("%s: picked %s, want b", policy, got)
		}
		for i, want := range []int64{8, 4 + 5, 1 + 3} {
			if got := r.dec.Terms[i]; got.Hits != want || got.Blocks != 20 || got.HitTokens != 16*want {
				t.Errorf("%s: %s has %d hits (%d tokens) of %d blocks, want %d of 20", policy, r.cands[i].Key, got.Hits, got.HitTokens, got.Blocks, want)
			}
		}
		want := load.Load{ActiveBlocks: 20, PendingTokens: req.InputTokens - 9*16, PendingRequests: 1, HeldTokens: req.InputTokens, HeldRequests: 1}
		if got := r.led.Load(1); got != want {
			t.Errorf("%s: booked %+v, want %+v", policy, got, want)
		}
		if policy == score.KVAware && r.dec.Terms[0].Cost != 12 {
			t.Errorf("cost of a = %v, want its 12 misses", r.dec.Terms[0].Cost)
		}
		r.end(r.dec.Handle, 0)
		if got := r.led.Load(1); got != (load.Load{}) {
			t.Errorf("%s: load after the end %+v, want none", policy, got)
		}
	}
}

// TestBatchWithoutBlocksOfItsFirst has blocks in a later prompt only: the request is hashed all the same.
func TestBatchWithoutBlocksOfItsFirst(t *testing.T) {
	r := newRig(t, 2, config(score.KVAware))
	two := chain(2, 6)
	r.view.add(1, two...)
	req := score.Request{More: [][]block.Hash{two}, BlockSize: 16, InputTokens: 100, TokensExact: true}
	if got := r.pick(req); got != "b" || r.dec.Basis != score.BasisExact || r.dec.Terms[1].Hits != 6 {
		t.Errorf("picked %s, basis %s, %d hits; want b, exact, 6", got, r.dec.Basis, r.dec.Terms[1].Hits)
	}
}

// TestVariants is a pool of two engines that make different tokens of the same request.
func TestVariants(t *testing.T) {
	vllm, sglang := chain(1, 10), chain(2, 12)
	base := prompt(vllm)
	base.LastComputed, base.Lengths = true, []int64{160}
	base.Variants = []score.Variant{
		{Blocks: sglang, Lengths: []int64{200}, InputTokens: 200},
		{Unhashable: "no template", InputTokens: 150},
	}
	rig := func(policy string) *rig {
		r := newRig(t, 4, config(policy))
		r.cands[0].PageSize = 32 // vLLM
		r.cands[1].Variant, r.cands[1].PageSize = 1, 1
		r.cands[2].Variant, r.cands[2].PageSize = 1, 1
		r.cands[3].Variant = 2
		r.view.add(0, vllm...)
		r.view.add(0, sglang...) // whoever else's
		r.view.add(1, vllm...)
		r.view.add(2, sglang...)
		r.view.add(3, vllm...)
		return r
	}
	for _, policy := range []string{score.LeastWork, score.KVAware, score.Prefix} {
		r := rig(policy)
		if got := r.pick(base); got != "c" {
			t.Errorf("%s: picked %s, want c", policy, got)
		}
		for i, want := range []struct{ blocks, hits int64 }{{10, 8}, {12, 0}, {12, 12}, {12, 0}} {
			if got := r.dec.Terms[i]; got.Blocks != want.blocks || got.Hits != want.hits || (got.Note != "") != (i == 3) {
				t.Errorf("%s: %s has %d hits of %d blocks (%s), want %d of %d", policy, r.cands[i].Key, got.Hits, got.Blocks, got.Note, want.hits, want.blocks)
			}
		}
		if r.dec.Basis != score.BasisEstimated || r.dec.Tokens != 200 || r.dec.TokensExact {
			t.Errorf("%s: basis %s, %d tokens, exact %v; want estimated, 200, false", policy, r.dec.Basis, r.dec.Tokens, r.dec.TokensExact)
		}
		want := load.Load{ActiveBlocks: 12, PendingTokens: 8, PendingRequests: 1, HeldTokens: 200, HeldRequests: 1}
		if got := r.led.Load(2); got != want {
			t.Errorf("%s: booked %+v, want %+v", policy, got, want)
		}
		costs := map[string][4]float64{score.LeastWork: {32, 200, 8, 150}, score.KVAware: {2, 12, 0, 12}, score.Prefix: {2, 12, 0, 12}}[policy]
		for i, want := range costs {
			if got := r.dec.Terms[i].Cost; got != want {
				t.Errorf("%s: cost of %s = %v, want %v", policy, r.cands[i].Key, got, want)
			}
		}
		r.cands = r.cands[3:]
		if r.pick(base); r.dec.Basis != score.BasisLoadOnly || r.dec.Reason != "no template" || r.dec.Tokens != 150 {
			t.Errorf("%s: basis %s (%s), %d tokens; want load-only (no template), 150", policy, r.dec.Basis, r.dec.Reason, r.dec.Tokens)
		}
	}
	r := rig(score.LeastWork)
	base.Role = score.Decode
	r.pick(base)
	for i, want := range []float64{160, 200, 200, 150} {
		if got := r.dec.Terms[i].Cost; got != want {
			t.Errorf("decode: cost of %s = %v, want %v", r.cands[i].Key, got, want)
		}
	}
}

func TestDoubt(t *testing.T) {
	for _, tc := range []struct {
		name   string
		set    func(req *score.Request, cands []score.Candidate)
		basis  score.Basis
		reason string
	}{
		{"none", func(*score.Request, []score.Candidate) {}, score.BasisExact, ""},
		{"of the picked", func(_ *score.Request, c []score.Candidate) { c[0].Doubt = "events were lost" }, score.BasisEstimated, "events were lost"},
		{"of another", func(_ *score.Request, c []score.Candidate) { c[1].Doubt = "events were lost" }, score.BasisExact, ""},
		{"of all mirrors", func(r *score.Request, _ []score.Candidate) { r.Approximate = "no events" }, score.BasisEstimated, "no events"},
		{"of both", func(r *score.Request, c []score.Candidate) { r.Approximate, c[0].Doubt = "no events", "silent" }, score.BasisEstimated, "silent"},
		{"of the tokens too", func(r *score.Request, c []score.Candidate) { r.TokensExact, c[0].Doubt = false, "silent" }, score.BasisEstimated, "silent"},
		{"where caches do not matter", func(r *score.Request, _ []score.Candidate) { r.Multimodal, r.Approximate = true, "no events" }, score.BasisLoadOnly, "multimodal: text hashes are not used"},
	} {
		for _, policy := range []string{score.LeastWork, score.KVAware, score.Prefix} {
			r := newRig(t, 2, config(policy))
			req := prompt(chain(1, 4))
			r.view.add(0, req.Blocks[:2]...)
			tc.set(&req, r.cands)
			if got := r.pick(req); got != "a" || r.dec.Basis != tc.basis || r.dec.Reason != tc.reason {
				t.Errorf("%s, %s: picked %s, basis %s (%s), want a, %s (%s)", tc.name, policy, got, r.dec.Basis, r.dec.Reason, tc.basis, tc.reason)
			}
			if got := r.dec.Terms[0].Hits; got != 2 && !req.Multimodal {
				t.Errorf("%s, %s: %d hits, want 2: they count all the same", tc.name, policy, got)
			}
		}
	}
}

func TestRequestsThatDoNotFit(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  func(req *score.Request, cands []score.Candidate)
		want string
	}{
		{"no such variant", func(_ *score.Request, c []score.Candidate) { c[1].Variant = 1 }, "candidate b takes variant 1 of 0"},
		{"negative variant", func(_ *score.Request, c []score.Candidate) { c[1].Variant = -1 }, "variant -1"},
		{"no lengths", func(r *score.Request, _ []score.Candidate) { r.LastComputed = true }, "variant 0 has 0 lengths for 1 prompts"},
		{"lengths of another batch", func(r *score.Request, _ []score.Candidate) {
			r.LastComputed, r.Lengths, r.More = true, []int64{64}, [][]block.Hash{nil}
		}, "1 lengths for 2 prompts"},
		{"no lengths of a variant", func(r *score.Request, _ []score.Candidate) {
			r.LastComputed, r.Lengths, r.Variants = true, []int64{64}, []score.Variant{{Blocks: chain(1, 2)}}
		}, "variant 1 has 0 lengths"},
		{"no block size", func(r *score.Request, _ []score.Candidate) {
			r.LastComputed, r.Lengths, r.BlockSize = true, []int64{64}, 0
		}, "0 tokens"},
		{"blocks of different sizes", func(r *score.Request, _ []score.Candidate) {
			r.LastComputed, r.Lengths, r.BlockTokens = true, []int64{64}, []uint32{3, 4, 5, 6}
		}, "sizes of their own"},
	} {
		r := newRig(t, 2, config(score.LeastWork))
		req := prompt(chain(1, 4))
		tc.set(&req, r.cands)
		err := r.sc.Pick(&req, r.cands, &r.dec)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.want)
		}
		if r.led.Load(0).HeldRequests != 0 || r.dec.Picked != -1 {
			t.Errorf("%s: something was picked or booked", tc.name)
		}
	}
}

// naiveReading is what a candidate makes of a request, straight from the definitions.
type naiveReading struct {
	prompts [][]block.Hash
	lengths []int64
	input   int64
}

func naiveRead(req *score.Request, c score.Candidate) naiveReading {
	if c.Variant == 0 {
		return naiveReading{append([][]block.Hash{req.Blocks}, req.More...), req.Lengths, req.InputTokens}
	}
	v := req.Variants[c.Variant-1]
	return naiveReading{append([][]block.Hash{v.Blocks}, v.More...), v.Lengths, v.InputTokens}
}

// measure returns blocks, hits, hit weight, and the distinct blocks.
func (n naiveReading) measure(req *score.Request, c score.Candidate, held map[block.Hash]index.Tier) (blocks, hits int64, weight float64, distinct map[block.Hash]bool) {
	distinct = map[block.Hash]bool{}
	for p, chain := range n.prompts {
		blocks += int64(len(chain))
		var reused []index.Tier
		for _, b := range chain {
			distinct[b] = true
		}
		for _, b := range chain {
			tier, ok := held[b]
			if !ok {
				break
			}
			reused = append(reused, tier)
		}
		if req.LastComputed {
			page := 16
			if c.PageSize > 0 {
				page = c.PageSize
			}
			tokens := 0 // in pages that end before the last token and within the run
			for tokens+page <= 16*len(reused) && tokens+page <= int(n.lengths[p])-1 {
				tokens += page
			}
			reused = reused[:tokens/16]
		}
		hits += int64(len(reused))
		for _, tier := range reused {
			weight += []float64{1, 0.8, 0.4}[tier]
		}
	}
	return blocks, hits, weight, distinct
}

// Everything a candidate is measured by, and what is booked, against the definitions: batches, variants,
// pages of all sizes, tiers.
func TestReadingsAgainstNaive(t *testing.T) {
	capped := 0
	for _, policy := range []string{score.LeastWork, score.KVAware, score.Prefix} {
		for seed := range uint64(4) {
			const targets = 5
			r := newRig(t, targets, config(policy))
			rng := rand.New(rand.NewPCG(seed, 14))
			for i := range r.cands {
				r.cands[i].PageSize = []int{0, 1, 8, 24, 32, 48}[rng.IntN(6)]
				r.cands[i].Variant = i % 3
			}
			if seed == 3 {
				r.cands[4].BlockSize = 0
			}
			part := func() ([]block.Hash, [][]block.Hash, []int64, int64) {
				var prompts [][]block.Hash
				var lengths []int64
				input := int64(0)
				for range 1 + rng.IntN(3)*rng.IntN(2) {
					n := rng.IntN(12)
					prompts = append(prompts, chain(rng.IntN(6), n))
					lengths = append(lengths, int64(16*n)+rng.Int64N(16)*rng.Int64N(2))
					input += lengths[len(lengths)-1]
				}
				return prompts[0], prompts[1:], lengths, input
			}
			var live []load.Handle
			for step := range 300 {
				req := score.Request{BlockSize: 16, TokensExact: true, LastComputed: rng.IntN(4) > 0}
				req.Blocks, req.More, req.Lengths, req.InputTokens = part()
				for range 2 {
					var v score.Variant
					v.Blocks, v.More, v.Lengths, v.InputTokens = part()
					req.Variants = append(req.Variants, v)
				}
				r.pick(req)
				for i, tm := range r.dec.Terms {
					c := r.cands[i]
					held := r.view[i]
					if c.BlockSize == 0 {
						held = nil
					}
					n := naiveRead(&req, c)
					blocks, hits, weight, distinct := n.measure(&req, c, held)
					if req.LastComputed && hits > 0 {
						capped++
					}
					if tm.Blocks != blocks || tm.Hits != hits || abs(tm.HitWeight-weight) > 1e-9 || tm.HitTokens != 16*hits {
						t.Fatalf("%s seed %d step %d, %s: %d hits weighing %v, %d tokens, of %d; want %d weighing %v of %d\n%+v\n%+v",
							policy, seed, step, c.Key, tm.Hits, tm.HitWeight, tm.HitTokens, tm.Blocks, hits, weight, blocks, c, req)
					}
					if i != r.dec.Picked {
						continue
					}
					res, _ := r.led.Reservation(r.dec.Handle)
					if res.PrefillTokens != n.input-16*hits || res.Tokens != n.input || r.dec.Tokens != n.input {
						t.Fatalf("%s seed %d step %d: booked %+v, decision says %d tokens; want %d of %d", policy, seed, step, res, r.dec.Tokens, n.input-16*hits, n.input)
					}
					if len(live) == 0 && r.led.Load(c.Target).ActiveBlocks != int64(len(distinct)) {
						t.Fatalf("%s seed %d step %d: %d blocks active, want %d", policy, seed, step, r.led.Load(c.Target).ActiveBlocks, len(distinct))
					}
					for _, chain := range n.prompts {
						for _, b := range chain {
							r.view[i][b] = index.Tier(rng.IntN(3) * rng.IntN(2))
						}
					}
				}
				if live = append(live, r.dec.Handle); len(live) > 4 || step%3 == 0 {
					for _, h := range live {
						r.end(h, 0)
					}
					live = nil
				}
				if rng.IntN(20) == 0 {
					clear(r.view[rng.IntN(targets)])
				}
			}
		}
	}
	if capped == 0 {
		t.Error("no run was ever looked at for whole pages")
	}
}
