package score_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
)

func TestNothingToChooseFrom(t *testing.T) {
	r := newRig(t, 1, config(score.KVAware))
	req := prompt(chain(1, 3))
	if err := r.sc.Pick(&req, nil, &r.dec); !errors.Is(err, score.ErrNoCandidates) {
		t.Errorf("no candidates: error %v, want ErrNoCandidates", err)
	}
	stranger := []score.Candidate{{Target: 7, Key: "x", BlockSize: 16}}
	if err := r.sc.Pick(&req, stranger, &r.dec); !errors.Is(err, score.ErrNoCandidates) || !strings.Contains(err.Error(), "x") {
		t.Errorf("candidate unknown to the ledger: error %v, want ErrNoCandidates that names it", err)
	}
	// A decision used again says nothing of the pick before, whose reservation someone may have released.
	if err := r.sc.Pick(&req, r.cands, &r.dec); err != nil {
		t.Fatal(err)
	}
	if err := r.sc.Pick(&req, nil, &r.dec); err == nil || r.dec.Handle != (load.Handle{}) || r.dec.Picked != -1 || len(r.dec.Terms) != 0 {
		t.Errorf("no candidates: error %v, decision %+v; want an error and an empty decision", err, r.dec)
	}
	// Next to one that has joined, a stranger is shown as left out.
	if err := r.sc.Pick(&req, append(stranger, r.cands...), &r.dec); err != nil {
		t.Fatal(err)
	}
	if r.dec.Picked != 1 || r.dec.Terms[0].Eligible || r.dec.Terms[0].Note == "" || r.dec.TieRule != score.ByOnly {
		t.Errorf("decision = %+v, want the second, by only", r.dec)
	}
}

func TestRoundRobin(t *testing.T) {
	r := newRig(t, 3, config(score.RoundRobin))
	roles := []score.Role{score.Prefill, score.Decode, score.Prefill, score.Decode, score.Mixed, score.Prefill, score.Prefill}
	got := ""
	for _, role := range roles {
		req := prompt(chain(1, 2))
		req.Role = role
		got += r.pick(req)
		if err := r.sc.Peek(&req, r.cands, &score.Decision{}); err != nil { // must not take a turn
			t.Fatal(err)
		}
	}
	if got != "aabbaca" {
		t.Errorf("picks = %s, want aabbaca: a counter per role", got)
	}
	if r.dec.TieRule != score.ByTurn || r.dec.Basis != score.BasisLoadOnly {
		t.Errorf("rule %s, basis %s; want turn, load-only", r.dec.TieRule, r.dec.Basis)
	}
}

func TestRandomIsEvenAndSeeded(t *testing.T) {
	picks := func(policy string, seed uint64, n int) (string, map[string]int) {
		r := newRig(t, 4, config(policy, func(c *score.Config) { c.Seed = seed }))
		var b strings.Builder
		count := map[string]int{}
		for i := range n {
			k := r.serve(prompt(chain(i, 1)))
			b.WriteString(k)
			count[k]++
		}
		return b.String(), count
	}
	for _, policy := range []string{score.Random, score.PowerOfTwo} {
		one, count := picks(policy, 1, 4000)
		again, _ := picks(policy, 1, 4000)
		other, _ := picks(policy, 2, 4000)
		if one != again {
			t.Errorf("%s: two runs of one seed differ", policy)
		}
		if one == other {
			t.Errorf("%s: seeds 1 and 2 pick alike", policy)
		}
		for k, n := range count { // idle targets tie: power-of-two must not favour low indices then
			if n < 850 || n > 1150 {
				t.Errorf("%s: %s was picked %d of 4000 times, want about 1000", policy, k, n)
			}
		}
		if len(count) != 4 {
			t.Errorf("%s: picked %d of 4 targets", policy, len(count))
		}
	}
}

func TestPowerOfTwo(t *testing.T) {
	r := newRig(t, 5, config(score.PowerOfTwo))
	for i := range 300 {
		req := prompt(chain(i, 1+i%7))
		var peek score.Decision
		for range 2 {
			if err := r.sc.Peek(&req, r.cands, &peek); err != nil {
				t.Fatal(err)
			}
		}
		r.pick(req)
		if peek.Picked != r.dec.Picked {
			t.Fatalf("pick %d: peeked %d, picked %d", i, peek.Picked, r.dec.Picked)
		}
		drawn := 0
		for j, tm := range r.dec.Terms {
			if !tm.Eligible {
				continue
			}
			drawn++
			if tm.Load.ActiveBlocks < r.dec.PickedTerms().Load.ActiveBlocks {
				t.Fatalf("pick %d: took %d, drew %d with less load", i, r.dec.Picked, j)
			}
		}
		if drawn != 2 || !r.dec.PickedTerms().Eligible {
			t.Fatalf("pick %d: %d drawn, want 2 with the winner among them", i, drawn)
		}
	}
	one := newRig(t, 1, config(score.PowerOfTwo))
	if one.pick(prompt(nil)); one.dec.TieRule != score.ByOnly {
		t.Errorf("one candidate: rule %s, want only", one.dec.TieRule)
	}
}

func TestLeastLoadIsKVAwareAtZero(t *testing.T) {
	a, b := newRig(t, 4, config(score.LeastLoad, weight(9))), newRig(t, 4, config(score.KVAware, weight(0)))
	rng := rand.New(rand.NewPCG(3, 3))
	var ha, hb []load.Handle
	for i := range 300 {
		req := prompt(chain(rng.IntN(5), rng.IntN(30)))
		if ka, kb := a.pick(req), b.pick(req); ka != kb {
			t.Fatalf("pick %d: least-load %s, kv-aware at 0 %s", i, ka, kb)
		}
		ha, hb = append(ha, a.dec.Handle), append(hb, b.dec.Handle)
		if j := rng.IntN(len(ha)); rng.IntN(3) > 0 {
			a.sc.Release(ha[j], 0)
			b.sc.Release(hb[j], 0)
		}
	}
}

// The clockless policies against their one-line definitions, under random histories.
func TestPrefixPolicies(t *testing.T) {
	const n = 4
	for _, threshold := range []float64{-1, 0, 0.5, 1} {
		cfg := config(score.Prefix)
		if threshold >= 0 {
			cfg = config(score.PrefixThreshold, func(c *score.Config) { c.PrefixThreshold = threshold })
		}
		t.Run(fmt.Sprintf("%s/%v", cfg.Policy, threshold), func(t *testing.T) {
			r := newRig(t, n, cfg)
			rng := rand.New(rand.NewPCG(5, 5))
			var miss [n]int
			for i := range 500 {
				blocks := chain(rng.IntN(8), rng.IntN(20))
				var hits [n]int
				most := 0
				for w := range hits {
					for hits[w] < len(blocks) {
						if _, held := r.view[w][blocks[hits[w]]]; !held {
							break
						}
						hits[w]++
					}
					most = max(most, hits[w])
				}
				want := -1
				byHits := threshold < 0 || float64(most) >= threshold*float64(len(blocks))
				for w := range hits {
					if byHits && hits[w] < most {
						continue
					}
					if want < 0 || miss[w] < miss[want] {
						want = w
					}
				}
				r.pick(prompt(blocks))
				if r.dec.Picked != want {
					t.Fatalf("pick %d: %d, want %d (hits %v of %d, computed %v)", i, r.dec.Picked, want, hits, len(blocks), miss)
				}
				miss[want] += len(blocks) - hits[want]
				if got := r.dec.PickedTerms().Computed; got+int64(len(blocks)-hits[want]) != int64(miss[want]) {
					t.Fatalf("pick %d: computed %d before the pick, want %d after it", i, got, miss[want])
				}
				r.view.add(r.cands[want].Target, blocks...)
				if rng.IntN(10) == 0 {
					clear(r.view[rng.IntN(n)])
				}
			}
		})
	}
}

// For the prefix policies a hit is a hit, whatever the tier.
func TestPrefixIgnoresTiers(t *testing.T) {
	for _, policy := range []string{score.Prefix, score.PrefixThreshold} {
		r := newRig(t, 2, config(policy))
		blocks := chain(1, 10)
		r.view.add(0, blocks[:6]...)
		for _, b := range blocks[:7] {
			r.view[1][b] = index.Disk
		}
		if got := r.pick(prompt(blocks)); got != "b" {
			t.Errorf("%s: picked %s, want b with 7 hits on disk", policy, got)
		}
	}
}

func TestSessionPolicy(t *testing.T) {
	r := newRig(t, 3, config(score.Session))
	for i, step := range []struct {
		session, want string
		rule          score.Rule
	}{
		{"x", "a", score.ByTurn},
		{"y", "b", score.ByTurn},
		{"x", "a", score.BySession},
		{"z", "c", score.ByTurn},
		{"y", "b", score.BySession},
		{"v", "a", score.ByTurn},
		{"", "b", score.ByTurn},
		{"", "c", score.ByTurn},
		{"v", "a", score.BySession},
	} {
		req := prompt(chain(i, 2))
		req.Session, req.At = step.session, int64(i)*1e13 // far beyond any time to live
		if got := r.serve(req); got != step.want || r.dec.TieRule != step.rule {
			t.Errorf("step %d, session %q: %s by %s, want %s by %s", i, step.session, got, r.dec.TieRule, step.want, step.rule)
		}
	}
	r.sc.Forget(1)
	r.led.Join(1, 2)
	req := prompt(nil)
	req.Session = "y"
	if r.serve(req); r.dec.Session != score.BoundInvalid || r.dec.TieRule != score.ByTurn {
		t.Errorf("after its target restarted: %s by %s, want invalid by turn", r.dec.Session, r.dec.TieRule)
	}
}

// Targets without a block size are charged the whole prompt, so they are never cheaper than a cold one.
func TestUnknownBlockSizeIsNotFavoured(t *testing.T) {
	for _, policy := range []string{score.KVAware, score.LeastWork, score.Prefix} {
		r := newRig(t, 3, config(policy))
		r.cands[0].BlockSize = 0
		blocks := chain(1, 10)
		r.view.add(0, blocks...) // whatever the view says of it
		r.view.add(2, blocks[:5]...)
		if got := r.pick(prompt(blocks)); got != "c" {
			t.Errorf("%s: picked %s, want c, which holds half", policy, got)
		}
		a, b := r.dec.Terms[0], r.dec.Terms[1]
		if a.Hits != 0 || a.Blocks != 10 || a.Cost < b.Cost || a.Note == "" {
			t.Errorf("%s: terms %+v, want no hits, 10 blocks and a cost not below a cold target's %v", policy, a, b.Cost)
		}
	}
}

func TestBasis(t *testing.T) {
	full := prompt(chain(1, 4))
	estimated, unhashable, short, mm, images := full, prompt(nil), prompt(nil), full, full
	estimated.TokensExact = false
	unhashable.Unhashable = "no tokenizer"
	mm.Multimodal = true
	images.Multimodal, images.Images = true, []uint64{1}
	for _, tc := range []struct {
		name   string
		policy string
		req    score.Request
		want   score.Basis
		reason string
	}{
		{"exact", score.KVAware, full, score.BasisExact, ""},
		{"estimated", score.LeastWork, estimated, score.BasisEstimated, ""},
		{"unhashable", score.KVAware, unhashable, score.BasisLoadOnly, "no tokenizer"},
		{"short", score.LeastWork, short, score.BasisLoadOnly, "the prompt has no complete block"},
		{"multimodal without images", score.KVAware, mm, score.BasisLoadOnly, "multimodal: text hashes are not used"},
		{"images", score.KVAware, images, score.BasisAffinity, "multimodal: text hashes are not used"},
		{"least load", score.LeastLoad, full, score.BasisLoadOnly, "overlap weight is 0"},
		{"random", score.Random, full, score.BasisLoadOnly, "the policy does not look at caches"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 2, config(tc.policy))
			if r.pick(tc.req); r.dec.Basis != tc.want || r.dec.Reason != tc.reason {
				t.Errorf("basis %s (%s), want %s (%s)", r.dec.Basis, r.dec.Reason, tc.want, tc.reason)
			}
		})
	}
}

// Prompts that cannot be hashed must not pin one target, nor may serial traffic with recency.
func TestUnhashableSpreads(t *testing.T) {
	for _, cfg := range []score.Config{config(score.LeastWork), config(score.KVAware, recent)} {
		r := newRig(t, 2, cfg)
		count := map[string]int{}
		for range 100 {
			req := prompt(nil)
			req.InputTokens, req.Unhashable = 500, "no tokenizer"
			count[r.serve(req)]++
		}
		if count["a"] < 40 || count["b"] < 40 {
			t.Errorf("%s: split %v, want about even", cfg.Policy, count)
		}
	}
}

// The formula's load does not see requests without blocks; in flight together they spread all the same.
func TestRequestsWithoutBlocksSpread(t *testing.T) {
	for name, req := range map[string]score.Request{
		"no tokenizer": {InputTokens: 500, Unhashable: "no tokenizer"},
		"new images":   {InputTokens: 500, Multimodal: true},
	} {
		for _, policy := range []string{score.KVAware, score.LeastLoad} {
			r := newRig(t, 4, config(policy))
			count := map[string]int{}
			for i := range 100 {
				if req.Multimodal {
					req.Images = []uint64{uint64(i)}
				}
				count[r.pick(req)]++
			}
			for _, c := range r.cands {
				if count[c.Key] != 25 {
					t.Errorf("%s, %s: split %v, want 25 each", policy, name, count)
					break
				}
			}
		}
	}
}

// The rule that settles ties of requests without blocks is the one that did.
func TestFewestHeldRule(t *testing.T) {
	for _, tc := range []struct {
		held [3]int
		pick string
		rule score.Rule
	}{
		{[3]int{0, 0, 0}, "a", score.ByOrder},
		{[3]int{1, 1, 1}, "a", score.ByOrder},
		{[3]int{2, 1, 3}, "b", score.ByHeld},
		{[3]int{0, 1, 2}, "a", score.ByHeld},
		{[3]int{2, 1, 1}, "b", score.ByOrder},
		{[3]int{1, 2, 1}, "a", score.ByOrder},
		{[3]int{1, 1, 2}, "a", score.ByOrder},
		{[3]int{1, 2, 0}, "c", score.ByHeld},
	} {
		r := newRig(t, 3, config(score.KVAware))
		for i, n := range tc.held {
			for range n {
				r.led.Reserve(r.cands[i].Target, load.Demand{})
			}
		}
		if got := r.pick(score.Request{Unhashable: "no tokenizer"}); got != tc.pick || r.dec.TieRule != tc.rule {
			t.Errorf("held %v: picked %s by %s, want %s by %s", tc.held, got, r.dec.TieRule, tc.pick, tc.rule)
		}
	}
}

// Nor prompts whose length is not known either, whether they end before the next pick or not.
func TestUnknownLengthSpreads(t *testing.T) {
	for _, serial := range []bool{true, false} {
		r := newRig(t, 4, config(score.LeastWork))
		count := map[string]int{}
		for range 100 {
			if req := (score.Request{Unhashable: "no tokenizer"}); serial {
				count[r.serve(req)]++
			} else {
				count[r.pick(req)]++
			}
		}
		for _, c := range r.cands {
			if n := count[c.Key]; n < 20 || n > 30 {
				t.Errorf("serial %v: split %v, want about even", serial, count)
				break
			}
		}
	}
}

// A charge decays to exactly nothing, and a prompt that is cached in full charges nothing.
func TestRecencyDecaysToNothing(t *testing.T) {
	r := newRig(t, 2, config(score.KVAware, recent))
	r.view.add(0, chain(1, 4)...)
	r.view.add(1, chain(1, 4)...)
	r.pick(prompt(chain(2, 4)))
	for range 400 {
		r.serve(prompt(chain(1, 4)))
	}
	if got := r.recents(); got[0] != 0 || got[1] != 0 {
		t.Errorf("recents = %v, want none", got)
	}
}

func TestBooking(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  func(*score.Request)
		want load.Load
	}{
		{"mixed", func(r *score.Request) {}, load.Load{ActiveBlocks: 10, PendingTokens: 165 - 64, PendingRequests: 1, HeldTokens: 165, HeldRequests: 1}},
		{"prefill, n 3", func(r *score.Request) { r.Role, r.N = score.Prefill, 3 }, load.Load{ActiveBlocks: 10, PendingTokens: 165 - 64, PendingRequests: 1, HeldTokens: 495, HeldRequests: 1}},
		{"decode, n -1", func(r *score.Request) { r.Role, r.N = score.Decode, -1 }, load.Load{ActiveBlocks: 10, PendingRequests: 1, HeldTokens: 165, HeldRequests: 1}},
		{"multimodal", func(r *score.Request) { r.Multimodal = true }, load.Load{PendingTokens: 165, PendingRequests: 1, HeldTokens: 165, HeldRequests: 1}},
		{
			"uneven blocks", func(r *score.Request) { r.BlockTokens = []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 160} },
			load.Load{ActiveBlocks: 10, PendingTokens: 165 - 4, PendingRequests: 1, HeldTokens: 165, HeldRequests: 1},
		},
		{"absurd", func(r *score.Request) { r.InputTokens, r.N = 1<<62, 1<<40 }, load.Load{ActiveBlocks: 10, PendingTokens: load.MaxTokens, PendingRequests: 1, HeldTokens: load.MaxTokens, HeldRequests: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 1, config(score.KVAware))
			r.view.add(0, chain(1, 4)...)
			req := prompt(chain(1, 10))
			req.InputTokens = 165
			tc.set(&req)
			r.pick(req)
			if got := r.led.Load(0); got != tc.want {
				t.Errorf("load = %+v, want %+v", got, tc.want)
			}
			h := r.dec.Handle
			if !r.sc.FirstToken(h, 1) || r.sc.FirstToken(h, 1) || !r.sc.Release(h, 2) || r.sc.Release(h, 3) {
				t.Error("FirstToken and Release must be true exactly once")
			}
			if got := r.led.Load(0); got != (load.Load{}) {
				t.Errorf("load after the end = %+v, want none", got)
			}
		})
	}
}

// Whatever a request claims, no term leaves its range.
func TestAbsurdRequests(t *testing.T) {
	for _, policy := range score.Policies() {
		cfg := config(policy)
		r := newRig(t, 3, cfg)
		for i := range 300 {
			req := prompt(chain(i%3, i%7))
			req.Role = score.Role(i % 3)
			req.InputTokens = []int64{math.MaxInt64, math.MinInt64, 0, -1, 1 << 62}[i%5]
			req.N = []int64{math.MaxInt64, math.MinInt64, 0, 1 << 40}[i%4]
			req.At = []int64{math.MaxInt64, math.MinInt64, 0}[i%3]
			req.BlockSize = []int{16, math.MaxInt, -5, 0}[i%4]
			r.pick(req)
			for _, x := range r.dec.Terms {
				if !(x.Cost >= 0 && x.Cost < 1e30) || x.HitTokens < 0 || x.HitTokens > max(req.InputTokens, 0) {
					t.Fatalf("%s, request %d %+v: %+v", policy, i, req, x)
				}
			}
			r.view.add(r.dec.PickedTerms().Candidate.Target, req.Blocks...)
			if i%2 == 0 {
				r.end(r.dec.Handle, -req.At)
			}
		}
	}
}

func TestTierWeights(t *testing.T) {
	r := newRig(t, 3, config(score.KVAware, func(c *score.Config) { c.TierWeights = [3]float64{1, 0.5, 0.25} }))
	blocks := chain(1, 10)
	for i, tier := range []int{0, 1, 2} { // a: 6 blocks on the GPU; b: 8, 4 of them in CPU memory; c: 9 on disk
		for j := range []int{6, 8, 9}[i] {
			r.view[i][blocks[j]] = 0
			if tier == 1 && j >= 4 || tier == 2 {
				r.view[i][blocks[j]] = [3]index.Tier{index.GPU, index.CPU, index.Disk}[tier]
			}
		}
	}
	if got := r.pick(prompt(blocks)); got != "a" {
		t.Errorf("picked %s, want a (b by order only)", got)
	}
	for i, want := range []float64{4, 4, 7.75} {
		if got := r.dec.Terms[i].Cost; got != want {
			t.Errorf("cost of %s = %v, want %v", r.cands[i].Key, got, want)
		}
	}
}
