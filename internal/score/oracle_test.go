package score_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// naive is kv-aware as the reference describes it, with everything recounted at every pick. It shares
// no code with the scorer and knows targets by their names.
type naive struct {
	cfg    score.Config
	recent map[string]float64
	images map[string][]uint64
	held   map[string][][]block.Hash // by target: the prompts in flight
}

func newNaive(cfg score.Config) *naive {
	return &naive{cfg: cfg, recent: map[string]float64{}, images: map[string][]uint64{}, held: map[string][][]block.Hash{}}
}

func (n *naive) forget(key string) {
	delete(n.recent, key)
	delete(n.images, key)
	delete(n.held, key)
}

func (n *naive) pick(req *score.Request, cands []score.Candidate, view fakeView) (winner string, costs []float64) {
	w := n.cfg.OverlapWeight
	if p := n.cfg.PrefillOverlapWeight; req.Role == score.Prefill && p != nil {
		w = *p
	}
	if p := n.cfg.DecodeOverlapWeight; req.Role == score.Decode && p != nil {
		w = *p
	}
	switch req.Retention {
	case score.RetainLong:
		w *= 2
	case score.RetainNone:
		w *= 0.1
	}
	wmm := w * 48
	blocks := req.Blocks
	if req.Multimodal {
		blocks = nil
	}
	best, bestLoad, bestMisses := -1, 0.0, 0.0
	for i, c := range cands {
		hits := 0.0
		if c.BlockSize > 0 {
			for _, b := range blocks {
				tier, ok := view[c.Target][b]
				if !ok {
					break
				}
				hits += n.cfg.TierWeights[tier]
			}
		}
		missing := 0.0
		if req.Role != score.Decode {
			for _, k := range req.Images {
				found := false
				for _, have := range n.images[c.Key] {
					found = found || have == k
				}
				if !found {
					missing++
				}
			}
		}
		distinct := map[block.Hash]bool{}
		for _, p := range n.held[c.Key] {
			for _, b := range p {
				distinct[b] = true
			}
		}
		recency := float64(n.cfg.RecentWeight * n.recent[c.Key])
		ld := float64(len(distinct)) + recency
		misses := float64(len(blocks)) - hits
		cost := float64(w*misses) + float64(wmm*missing) + ld
		costs = append(costs, cost)
		fewer := len(blocks) == 0 && best >= 0 && len(n.held[c.Key]) < len(n.held[cands[best].Key])
		if best < 0 || cost < costs[best] || cost == costs[best] && (ld < bestLoad || ld == bestLoad && fewer) {
			best, bestLoad, bestMisses = i, ld, misses
		}
	}
	winner = cands[best].Key
	if n.cfg.RecentWeight > 0 {
		for k, v := range n.recent {
			if v = float64(v * 0.97); v < 1e-3 {
				delete(n.recent, k)
			} else {
				n.recent[k] = v
			}
		}
		charge := bestMisses
		if len(blocks) == 0 {
			charge = 1
		}
		if charge > 0 {
			n.recent[winner] += charge
		}
	}
	if req.Role != score.Decode {
		for _, k := range req.Images {
			var kept []uint64
			for _, have := range n.images[winner] {
				if have != k {
					kept = append(kept, have)
				}
			}
			kept = append(kept, k)
			n.images[winner] = kept[max(0, len(kept)-256):]
		}
	}
	n.held[winner] = append(n.held[winner], blocks)
	return winner, costs
}

func (n *naive) release(key string, blocks []block.Hash) {
	for i, p := range n.held[key] {
		if len(p) == len(blocks) && (len(p) == 0 || p[len(p)-1] == blocks[len(blocks)-1]) {
			n.held[key] = append(n.held[key][:i:i], n.held[key][i+1:]...)
			return
		}
	}
}

func ptr(f float64) *float64 { return &f }

// kv-aware against the naive implementation under random histories: every cost and every pick.
func TestKVAwareAgainstNaive(t *testing.T) {
	configs := map[string]score.Config{
		"seed":    config(score.KVAware, weight(1)),
		"recent":  config(score.KVAware, weight(0.5), recent),
		"half":    config(score.KVAware, weight(3), func(c *score.Config) { c.RecentWeight = 0.5 }),
		"by role": config(score.KVAware, func(c *score.Config) { c.PrefillOverlapWeight, c.DecodeOverlapWeight = ptr(20), ptr(0.25) }),
	}
	for name, cfg := range configs {
		// Weights that binary floating point holds exactly: the naive sum over tiers must be equal in any order.
		cfg.TierWeights = [3]float64{1, 0.75, 0.5}
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(8) {
				randomHistory(t, cfg, seed)
			}
		})
	}
}

func randomHistory(t *testing.T, cfg score.Config, seed uint64) {
	const targets = 5
	rng := rand.New(rand.NewPCG(seed, 2))
	r := newRig(t, targets, cfg)
	r.cands[3].BlockSize = 0
	ref := newNaive(cfg)
	inc := target.Incarnation(1)
	type inflight struct {
		key    string
		blocks []block.Hash
		h      load.Handle
	}
	var fifo []inflight
	for step := range 400 {
		req := prompt(chain(rng.IntN(6), rng.IntN(20)))
		req.Role = score.Role(rng.IntN(3))
		req.Retention = score.Retention(rng.IntN(4))
		if rng.IntN(5) == 0 {
			req.Multimodal = true
			for range rng.IntN(3) {
				req.Images = append(req.Images, uint64(rng.IntN(6)))
			}
		}
		all := r.cands
		r.cands = all[:1+rng.IntN(targets)]
		got := r.pick(req)
		want, costs := ref.pick(&req, r.cands, r.view)
		for i, c := range costs {
			if r.dec.Terms[i].Cost != c {
				t.Fatalf("seed %d step %d: cost of %s = %v, want %v", seed, step, r.cands[i].Key, r.dec.Terms[i].Cost, c)
			}
		}
		r.cands = all
		if got != want {
			t.Fatalf("seed %d step %d: picked %s, want %s", seed, step, got, want)
		}
		blocks := req.Blocks
		if req.Multimodal {
			blocks = nil
		}
		fifo = append(fifo, inflight{got, blocks, r.dec.Handle})
		for _, b := range blocks {
			r.view[r.dec.PickedTerms().Candidate.Target][b] = 0
		}
		for len(fifo) > rng.IntN(8) {
			r.end(fifo[0].h, 0)
			ref.release(fifo[0].key, fifo[0].blocks)
			fifo = fifo[1:]
		}
		switch gone := rng.IntN(targets * 8); {
		case gone < targets:
			key := r.cands[gone].Key
			if rng.IntN(2) == 0 {
				r.sc.Forget(target.ID(gone))
				r.led.Join(target.ID(gone), inc)
			} else { // the ledger alone is told: the scorer's memory must be void all the same
				inc++
				r.led.Join(target.ID(gone), inc)
			}
			ref.forget(key)
			var kept []inflight
			for _, f := range fifo {
				if f.key != key {
					kept = append(kept, f)
				} else if r.sc.Release(f.h, 0) {
					t.Fatalf("seed %d step %d: a reservation of a former life was released", seed, step)
				}
			}
			fifo = kept
		case gone < 2*targets: // blocks move to a lower tier
			for b := range r.view[gone-targets] {
				r.view[gone-targets][b] = 1 + r.view[gone-targets][b]&1
			}
		}
	}
}
