package score_test

import (
	"fmt"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
)

// The golden simulation: 80 sessions of synthetic tokens, caches without limit.
const (
	simSessions = 80
	simRequests = 436
	simBlocks   = 7624
	simCeiling  = 5993
)

// simTrace returns the prompts of the golden simulation, session after session, or 16 sessions at a
// time, one turn each in rotation.
func simTrace(interleaved bool) [][]block.Hash {
	var sessions [simSessions][][]block.Hash
	for s := range sessions {
		turns := 3 + s%6
		var tokens []block.Token
		for tok := range 48 {
			tokens = append(tokens, block.Token(1000+tok))
		}
		longest := (3 + 4 + 3*turns) * 16
		for i := 0; len(tokens) < longest; i++ {
			tokens = append(tokens, block.Token(10000+(s*1000003+i*7919)%80000))
		}
		full := block.AppendChain(nil, block.Root, tokens, 16)
		for t := range turns {
			sessions[s] = append(sessions[s], full[:3+4+3*(t+1)])
		}
	}
	var out [][]block.Hash
	if !interleaved {
		for _, turns := range sessions {
			out = append(out, turns...)
		}
		return out
	}
	type slot struct{ session, turn int }
	var open []slot
	next := 0
	for ; next < 16; next++ {
		open = append(open, slot{session: next})
	}
	for len(open) > 0 {
		kept := open[:0:0]
		for _, s := range open {
			out = append(out, sessions[s.session][s.turn])
			s.turn++
			switch {
			case s.turn < len(sessions[s.session]):
				kept = append(kept, s)
			case next < simSessions:
				kept = append(kept, slot{session: next})
				next++
			}
		}
		open = kept
	}
	return out
}

type simResult struct {
	split  []int
	hits   int64
	digest string
}

// simulate is the portable loop: prefill counts as done at once, k-1 requests are in flight at a pick.
func simulate(tb testing.TB, trace [][]block.Hash, workers, k int, cfg score.Config) simResult {
	r := newRig(tb, workers, cfg)
	res := simResult{split: make([]int, workers)}
	var fifo []load.Handle
	letters := ""
	for _, p := range trace {
		req := prompt(p)
		r.pick(req)
		t := r.dec.PickedTerms()
		res.hits += t.Hits
		res.split[r.dec.Picked]++
		letters += string(rune('A' + r.dec.Picked))
		r.sc.FirstToken(r.dec.Handle, 0)
		r.view.add(t.Candidate.Target, p...)
		if fifo = append(fifo, r.dec.Handle); len(fifo) >= k {
			r.end(fifo[0], 0)
			fifo = fifo[1:]
		}
	}
	res.digest = fmt.Sprintf("%016x", xxh3.HashString(letters))
	return res
}

func TestGoldenSimulation(t *testing.T) {
	serial, inter := simTrace(false), simTrace(true)
	if first, last := serial[0][0], serial[simRequests-1]; len(serial) != simRequests || len(inter) != simRequests ||
		first != 0xf548de624307c9e9 || last[len(last)-1] != 0x76b46bd52a8840a1 {
		t.Fatalf("the trace is not the golden one: %d and %d requests, hashes %x … %x", len(serial), len(inter), first, last[len(last)-1])
	}
	const rr, infera, seed = "rr", "infera", "seed"
	for _, tc := range []struct {
		trace   [][]block.Hash
		workers int
		k       int
		policy  string
		weight  float64
		split   []int
		hits    int64
		digest  string
	}{
		{serial, 2, 1, rr, 0, []int{218, 218}, 4602, "9055e88693442e98"},
		{serial, 2, 1, infera, 0, []int{150, 286}, 4716, "082699837d8b11ae"},
		{serial, 2, 1, infera, 0.1, []int{222, 214}, 4689, "a4382839130b1269"},
		{serial, 2, 1, infera, 1, []int{219, 217}, 5980, "ec34bd634033a744"},
		{serial, 2, 1, infera, 20, []int{224, 212}, 5990, "ce80ed0755bf341c"},
		{serial, 2, 1, seed, 1, []int{436, 0}, simCeiling, "d7a1771bd52e8e7d"},
		{serial, 2, 1, seed, 20, []int{436, 0}, simCeiling, "d7a1771bd52e8e7d"},
		{serial, 4, 1, seed, 1, []int{436, 0, 0, 0}, simCeiling, "d7a1771bd52e8e7d"},
		{serial, 2, 8, infera, 1, []int{214, 222}, 4810, "f227012b422dc477"},
		{serial, 2, 8, seed, 1, []int{210, 226}, 5486, "8eaa98c0d294ae18"},
		{serial, 4, 1, infera, 1, []int{108, 108, 110, 110}, 5964, "d47386b0ceec76b7"},
		{serial, 4, 1, infera, 20, []int{198, 185, 53, 0}, 5987, "62580387592e0242"},
		{serial, 4, 8, infera, 1, []int{106, 109, 107, 114}, 3744, "47f93a8e1aa7c22a"},
		{serial, 4, 8, seed, 1, []int{111, 116, 104, 105}, 3809, "e416a99dd6568fbc"},
		{inter, 2, 1, rr, 0, []int{218, 218}, 5837, "9055e88693442e98"},
		{inter, 2, 8, infera, 1, []int{216, 220}, 5663, "d34d8ba2761ed4c2"},
		{inter, 4, 1, rr, 0, []int{109, 109, 109, 109}, 5620, "393b0730c6d106d1"},
		{inter, 4, 1, infera, 1, []int{114, 107, 110, 105}, 5947, "c3915e0d8f3f4a54"},
		{inter, 4, 8, infera, 0, []int{105, 100, 123, 108}, 4141, "b84c566353c5c136"},
		{inter, 4, 8, infera, 0.1, []int{106, 116, 112, 102}, 4360, "b9f37a1ad24e7e90"},
		{inter, 4, 8, infera, 1, []int{110, 107, 109, 110}, 5148, "e2b29c3eca9762a3"},
		{inter, 4, 8, infera, 20, []int{124, 111, 113, 88}, 5984, "56f6d5f10d0cee03"},
		{inter, 4, 8, seed, 1, []int{111, 107, 112, 106}, 5506, "39c82b7a336bf9ef"},
		{inter, 4, 8, seed, 20, []int{203, 157, 76, 0}, 5987, "5ee7e037e2922fdc"},
	} {
		order := "inter16"
		if &tc.trace[0] == &serial[0] {
			order = "serial"
		}
		t.Run(fmt.Sprintf("%s/workers=%d/K=%d/%s/w=%v", order, tc.workers, tc.k, tc.policy, tc.weight), func(t *testing.T) {
			cfg := config(score.KVAware, weight(tc.weight))
			switch tc.policy {
			case rr:
				cfg = config(score.RoundRobin)
			case infera:
				cfg.RecentWeight = 1
			}
			got := simulate(t, tc.trace, tc.workers, tc.k, cfg)
			if fmt.Sprint(got.split) != fmt.Sprint(tc.split) || got.hits != tc.hits || got.digest != tc.digest {
				t.Errorf("split %v, hits %d, digest %s; want %v, %d, %s", got.split, got.hits, got.digest, tc.split, tc.hits, tc.digest)
			}
		})
	}
}

// least-work keeps nearly all hits and an even split in every setting, without tuning.
func TestLeastWorkOnGoldenSessions(t *testing.T) {
	for _, tc := range []struct {
		interleaved bool
		workers, k  int
	}{{false, 2, 1}, {false, 4, 1}, {false, 4, 8}, {true, 2, 8}, {true, 4, 1}, {true, 4, 8}} {
		got := simulate(t, simTrace(tc.interleaved), tc.workers, tc.k, config(score.LeastWork))
		rate := float64(got.hits) / simBlocks
		busiest := 0
		for _, n := range got.split {
			busiest = max(busiest, n)
		}
		imbalance := float64(busiest*tc.workers) / simRequests
		t.Logf("interleaved=%v workers=%d K=%d: hit rate %.4f, busiest/mean %.3f", tc.interleaved, tc.workers, tc.k, rate, imbalance)
		if rate < 0.78 || imbalance > 1.10 {
			t.Errorf("interleaved=%v workers=%d K=%d: hit rate %.4f, busiest/mean %.3f (split %v); want at least 0.78, at most 1.10",
				tc.interleaved, tc.workers, tc.k, rate, imbalance, got.split)
		}
	}
}
