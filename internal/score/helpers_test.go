package score_test

import (
	"fmt"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// fakeView is the definition of a view: per target, the set of blocks held and their tiers.
type fakeView []map[block.Hash]index.Tier

func newFakeView(targets int) fakeView {
	v := make(fakeView, targets)
	for i := range v {
		v[i] = map[block.Hash]index.Tier{}
	}
	return v
}

func (v fakeView) add(t target.ID, blocks ...block.Hash) {
	for _, b := range blocks {
		v[t][b] = index.GPU
	}
}

func (v fakeView) Match(chain []block.Hash, dst *index.Matches) {
	dst.Hits = append(dst.Hits[:0], make([]uint32, len(v))...)
	for tier := range dst.Lower {
		dst.Lower[tier] = append(dst.Lower[tier][:0], make([]uint32, len(v))...)
	}
	for t := range v {
		for _, b := range chain {
			tier, held := v[t][b]
			if !held {
				break
			}
			dst.Hits[t]++
			if tier != index.GPU {
				dst.Lower[tier][t]++
			}
		}
	}
}

// rig is a scorer over a fake view, with joined targets and candidates a, b, c, …
type rig struct {
	tb    testing.TB
	view  fakeView
	led   *load.Ledger
	sc    *score.Scorer
	cands []score.Candidate
	dec   score.Decision
}

func newRig(tb testing.TB, targets int, cfg score.Config) *rig {
	tb.Helper()
	r := &rig{tb: tb, view: newFakeView(targets), led: load.New()}
	for i := range targets {
		r.led.Join(target.ID(i), 1)
		key := fmt.Sprintf("w%03d", i)
		if targets <= 26 {
			key = string(rune('a' + i))
		}
		r.cands = append(r.cands, score.Candidate{Target: target.ID(i), Key: key, BlockSize: 16})
	}
	sc, err := score.New(cfg, r.view, r.led)
	if err != nil {
		tb.Fatalf("New(%+v): %v", cfg, err)
	}
	r.sc = sc
	return r
}

// pick picks and returns the key of the winner; the decision is in r.dec.
func (r *rig) pick(req score.Request) string {
	r.tb.Helper()
	for i := range r.cands {
		r.cands[i].Role = req.Role
	}
	if err := r.sc.Pick(&req, r.cands, &r.dec); err != nil {
		r.tb.Fatalf("Pick(%+v): %v", req, err)
	}
	if err := r.led.Check(); err != nil {
		r.tb.Fatalf("ledger after the pick: %v", err)
	}
	return r.dec.PickedTerms().Candidate.Key
}

// serve is a whole request of serial traffic: picked, cached where it went, ended.
func (r *rig) serve(req score.Request) string {
	r.tb.Helper()
	key := r.pick(req)
	r.view.add(r.dec.PickedTerms().Candidate.Target, req.Blocks...)
	r.end(r.dec.Handle, req.At)
	return key
}

func (r *rig) end(h load.Handle, at int64) {
	r.tb.Helper()
	if !r.sc.Release(h, at) {
		r.tb.Fatalf("Release(%v) = false", h)
	}
}

// chain makes n block hashes that differ by id.
func chain(id, n int) []block.Hash {
	out := make([]block.Hash, n)
	for i := range out {
		out[i] = block.Hash(id*1_000_000 + i + 1)
	}
	return out
}

// prompt is an exact request over blocks of 16 tokens.
func prompt(blocks []block.Hash) score.Request {
	return score.Request{Blocks: blocks, BlockSize: 16, InputTokens: int64(16 * len(blocks)), TokensExact: true}
}

func config(policy string, change ...func(*score.Config)) score.Config {
	c := score.Defaults()
	c.Policy = policy
	for _, f := range change {
		f(&c)
	}
	return c
}

func weight(w float64) func(*score.Config) { return func(c *score.Config) { c.OverlapWeight = w } }

func recent(c *score.Config) { c.RecentWeight = 1 }
