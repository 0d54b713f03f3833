package score_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

func demand(mode score.DemandMode, w float64) func(*score.Config) {
	return func(c *score.Config) { c.DecodeInputDemand, c.DecodeRequestWeight = mode, w }
}

// holding books requests of the given blocks and tokens on each target.
func (r *rig) holding(t target.ID, blocks, tokens, requests int64) {
	for i := range requests {
		var chain []block.Hash
		if i == 0 {
			chain = make([]block.Hash, blocks)
			for j := range chain {
				chain[j] = block.Hash(int(t)*1_000_000 + j + 777)
			}
		}
		r.led.Reserve(t, load.Demand{Blocks: chain, Tokens: tokens / requests})
	}
}

func TestDecodeDemand(t *testing.T) {
	type held struct{ blocks, tokens, requests int64 }
	for _, tc := range []struct {
		name      string
		mode      score.DemandMode
		w         float64
		role      score.Role
		n         int64
		inexact   bool
		held      [3]held // a, b, c
		hits      int     // a's
		pick      string
		suggested int
		original  int
		demand    [3]float64
		rule      score.Rule
		basis     score.Basis
	}{
		{
			"off", score.DemandOff, 0, score.Decode, 1, false,
			[3]held{{4, 900, 3}, {8, 100, 1}, {9, 500, 1}},
			0,
			"a", -1, -1,
			[3]float64{},
			score.ByCost, score.BasisExact,
		},
		{
			"shadow keeps the original choice", score.DemandShadow, 0, score.Decode, 1, false,
			[3]held{{4, 900, 3}, {8, 100, 1}, {9, 500, 1}},
			0,
			"a", 1, 0,
			[3]float64{1060, 260, 660},
			score.ByCost, score.BasisExact,
		},
		{
			"on takes the least tokens", score.DemandOn, 0, score.Decode, 1, false,
			[3]held{{4, 900, 3}, {8, 100, 1}, {9, 500, 1}},
			0,
			"b", 1, 0,
			[3]float64{1060, 260, 660},
			score.ByDemand, score.BasisExact,
		},
		{
			"prefill is unchanged", score.DemandOn, 0, score.Prefill, 1, false,
			[3]held{{4, 900, 3}, {8, 100, 1}, {9, 500, 1}},
			0,
			"a", -1, -1,
			[3]float64{},
			score.ByCost, score.BasisExact,
		},
		{
			"mixed is unchanged", score.DemandOn, 0, score.Mixed, 1, false,
			[3]held{{4, 900, 3}, {8, 100, 1}, {9, 500, 1}},
			0,
			"a", -1, -1,
			[3]float64{},
			score.ByCost, score.BasisExact,
		},
		{
			"n multiplies", score.DemandOn, 0, score.Decode, 3, false,
			[3]held{{4, 900, 3}, {8, 100, 1}, {9, 500, 1}},
			0,
			"b", 1, 0,
			[3]float64{1380, 580, 980},
			score.ByDemand, score.BasisExact,
		},
		{
			"invalid n is 1", score.DemandOn, 0, score.Decode, -7, false,
			[3]held{{4, 900, 3}, {8, 100, 1}, {9, 500, 1}},
			0,
			"b", 1, 0,
			[3]float64{1060, 260, 660},
			score.ByDemand, score.BasisExact,
		},
		{
			"W weighs requests", score.DemandOn, 100, score.Decode, 1, false,
			[3]held{{4, 300, 1}, {8, 100, 4}, {9, 500, 1}},
			0,
			"a", 0, 0,
			[3]float64{560, 660, 760},
			score.ByDemand, score.BasisExact,
		},
		{
			"ties go to the lesser original load", score.DemandOn, 0, score.Decode, 1, false,
			[3]held{{9, 500, 1}, {5, 500, 1}, {7, 500, 1}},
			10,
			"b", 1, 0,
			[3]float64{660, 660, 660},
			score.ByLoad, score.BasisExact,
		},
		{
			"then to the order", score.DemandOn, 0, score.Decode, 1, false,
			[3]held{{9, 900, 1}, {5, 500, 1}, {5, 500, 1}},
			10,
			"b", 1, 0,
			[3]float64{1060, 660, 660},
			score.ByOrder, score.BasisExact,
		},
		{
			"estimates take part", score.DemandOn, 0, score.Decode, 1, true,
			[3]held{{4, 900, 3}, {8, 100, 1}, {9, 500, 1}},
			0,
			"b", 1, 0,
			[3]float64{1060, 260, 660},
			score.ByDemand, score.BasisEstimated,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 3, config(score.KVAware, demand(tc.mode, tc.w)))
			for i, h := range tc.held {
				r.holding(target.ID(i), h.blocks, h.tokens, h.requests)
			}
			req := prompt(chain(1, 10))
			r.view.add(0, req.Blocks[:tc.hits]...)
			req.Role, req.N, req.TokensExact = tc.role, tc.n, !tc.inexact
			if got := r.pick(req); got != tc.pick {
				t.Errorf("pick = %s, want %s", got, tc.pick)
			}
			d := &r.dec
			if d.Suggested != tc.suggested || d.Original != tc.original || d.TieRule != tc.rule || d.Basis != tc.basis {
				t.Errorf("suggested %d, original %d, rule %s, basis %s; want %d, %d, %s, %s",
					d.Suggested, d.Original, d.TieRule, d.Basis, tc.suggested, tc.original, tc.rule, tc.basis)
			}
			for i, want := range tc.demand {
				if got := d.Terms[i].Demand; got != want {
					t.Errorf("demand of %s = %v, want %v", d.Terms[i].Candidate.Key, got, want)
				}
			}
		})
	}
}

// Demand needs neither blocks nor a known block size, and a late release of a worker that came back
// does not subtract from its new entry.
func TestDecodeDemandWithoutBlocks(t *testing.T) {
	r := newRig(t, 2, config(score.KVAware, demand(score.DemandOn, 0)))
	r.cands[0].BlockSize, r.cands[1].BlockSize = 0, 0
	req := score.Request{Role: score.Decode, InputTokens: 1000, Unhashable: "no tokenizer"}
	got := ""
	var handles []load.Handle
	for range 4 {
		got += r.pick(req)
		handles = append(handles, r.dec.Handle)
	}
	if got != "abab" || r.dec.Basis != score.BasisEstimated {
		t.Errorf("picks %s, basis %s; want abab, estimated", got, r.dec.Basis)
	}
	r.led.Join(0, 2)
	r.pick(req)
	if r.sc.Release(handles[0], 0) || r.sc.Release(handles[2], 0) {
		t.Error("reservations of the former life were released")
	}
	if got := r.led.Load(0).HeldTokens; got != 1000 {
		t.Errorf("held tokens of the new life = %d, want 1000", got)
	}
}

// Demand against its definition, under random histories, for both policies that may have it.
func TestDecodeDemandAgainstNaive(t *testing.T) {
	for _, policy := range []string{score.KVAware, score.LeastWork} {
		const w = 250
		r := newRig(t, 4, config(policy, demand(score.DemandOn, w)))
		rng := rand.New(rand.NewPCG(11, 11))
		type held struct {
			key    string
			tokens int64
			h      load.Handle
		}
		var live []held
		for step := range 400 {
			req := prompt(chain(rng.IntN(5), rng.IntN(12)))
			req.InputTokens = rng.Int64N(4) * 500
			req.N = rng.Int64N(4) - 1
			req.Role = score.Decode
			tokens := map[string]float64{}
			for _, l := range live {
				tokens[l.key] += float64(l.tokens) + w
			}
			got := r.pick(req)
			own := req.InputTokens * max(req.N, 1)
			for _, tm := range r.dec.Terms {
				cost := tokens[tm.Candidate.Key] + float64(own)
				if tm.Demand != cost {
					t.Fatalf("%s step %d: demand of %s = %v, want %v", policy, step, tm.Candidate.Key, tm.Demand, cost)
				}
				best := r.dec.PickedTerms()
				if cost < best.Demand || cost == best.Demand && tm.Tie < best.Tie {
					t.Fatalf("%s step %d: picked %s (%v, load %v), %s has %v, load %v", policy, step, got, best.Demand, best.Tie, tm.Candidate.Key, cost, tm.Tie)
				}
			}
			live = append(live, held{got, own, r.dec.Handle})
			for len(live) > 6 {
				i := rng.IntN(len(live))
				r.end(live[i].h, 0)
				live = append(live[:i], live[i+1:]...)
			}
		}
	}
}
