package score

import (
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/target"
)

// Notes of candidates. Constants, so that picks do not allocate.
const (
	noteNotJoined  = "has not joined the ledger"
	noteBlockSize  = "block size unknown: charged the whole prompt"
	noteNotSampled = "not drawn"
	noteUnbound    = "session is bound elsewhere"
)

// measure fills the terms that do not depend on the policy.
func (s *Scorer) measure(req *Request, cands []Candidate, dec *Decision) {
	var chain []block.Hash
	if !req.Multimodal {
		chain = req.Blocks
	}
	if len(chain) > 0 {
		s.view.Match(chain, &s.match)
	}
	if cap(dec.Terms) < len(cands) {
		dec.Terms = make([]Terms, len(cands))
	}
	dec.Terms = dec.Terms[:len(cands)]
	images := req.Images
	if req.Role == Decode {
		images = nil // an image is encoded during prefill
	}
	blocks := int64(len(chain))
	hits := s.match.Hits
	if blocks == 0 {
		hits = nil
	}
	for i := range cands {
		c := &cands[i]
		t := &dec.Terms[i]
		// Field by field: a composite literal would be built aside and copied, which doubles the time.
		t.Candidate = *c
		t.Blocks, t.Hits, t.HitWeight, t.HitTokens = blocks, 0, 0, 0
		t.Recent, t.Computed, t.ImageHits, t.Slow = 0, 0, 0, 0
		t.Demand, t.Cost, t.Tie, t.Eligible, t.Note = 0, 0, 0, false, ""
		m := s.look(c.Target, &t.Load)
		if m == nil {
			t.Load, t.Note = load.Load{}, noteNotJoined
			continue
		}
		t.Eligible = true
		s.choice.eligible++
		t.Computed = m.computed
		t.Recent = s.recent[c.Target]
		if len(images) > 0 {
			t.ImageHits = m.imageHits(images)
		}
		if c.BlockSize == 0 {
			t.Note = noteBlockSize
		} else if int(c.Target) < len(hits) && hits[c.Target] > 0 {
			s.credit(req, t, c.Target, int64(hits[c.Target]))
		}
	}
}

// look reads a target's load and memory; nil where the ledger does not know the target. Memory of a
// former life is voided.
func (s *Scorer) look(t target.ID, ld *load.Load) *memory {
	var life uint32
	if s.given == nil {
		var known bool
		if life, known = s.led.Look(t, ld); !known {
			return nil
		}
	} else {
		*ld = s.given[t]
	}
	if int(t) < len(s.mem) {
		if m := &s.mem[t]; m.life == life {
			return m
		}
	}
	return s.meet(t, life)
}

// meet starts the memory of a life.
func (s *Scorer) meet(t target.ID, life uint32) *memory {
	if s.bound != nil {
		s.bound.dirty = true // bindings of a former life are void, even if nobody called Forget
	}
	for int(t) >= len(s.mem) {
		s.mem = append(s.mem, memory{})
		s.recent = append(s.recent, 0)
	}
	s.mem[t], s.recent[t] = memory{life: life}, 0
	return &s.mem[t]
}

// credit fills the hit terms from the last match, for hits above zero.
func (s *Scorer) credit(req *Request, t *Terms, id target.ID, hits int64) {
	t.Hits = hits
	w := &s.cfg.TierWeights
	var lower [index.NumTiers]int64
	for tier := index.CPU; tier < index.NumTiers; tier++ {
		if l := s.match.Lower[tier]; int(id) < len(l) {
			lower[tier] = int64(l[id])
		}
	}
	top := hits - lower[index.CPU] - lower[index.Disk]
	t.HitWeight = float64(w[index.GPU]*float64(top)) + float64(w[index.CPU]*float64(lower[index.CPU])) +
		float64(w[index.Disk]*float64(lower[index.Disk]))
	t.HitTokens = prefixTokens(req, hits)
}

// prefixTokens is how many of the prompt's tokens its first k blocks hold.
func prefixTokens(req *Request, k int64) int64 {
	input := max(req.InputTokens, 0)
	size := max(int64(req.BlockSize), 0)
	switch {
	case len(req.BlockTokens) > 0:
		return min(int64(req.BlockTokens[min(int(k), len(req.BlockTokens))-1]), input)
	case size > 0 && k > input/size:
		return input // not multiplied: the product might overflow
	}
	return k * size
}
