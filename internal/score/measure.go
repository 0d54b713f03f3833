package score

import (
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/target"
)

// Notes of candidates. Constants, so that picks do not allocate.
const (
	noteNotJoined  = "has not joined the ledger"
	noteBlockSize  = "block size unknown: charged the whole prompt"
	noteNoHashes   = "its prompt cannot be hashed: charged as the longest that can"
	noteNotSampled = "not drawn"
	noteUnbound    = "session is bound elsewhere"
)

// measure fills the terms that do not depend on the policy.
func (s *Scorer) measure(req *Request, cands []Candidate, dec *Decision) {
	hits := s.lookup(req, 0, 0) // of the first prompt, which usually is the only one
	if cap(dec.Terms) < len(cands) {
		dec.Terms = make([]Terms, len(cands))
	}
	dec.Terms = dec.Terms[:len(cands)]
	images := req.Images
	if req.Role == Decode {
		images = nil // an image is encoded during prefill
	}
	blocks, guessed := req.charged(0)
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
		if guessed {
			t.Note = noteNoHashes
		}
		if c.BlockSize == 0 {
			t.Note = noteBlockSize
		} else if int(c.Target) < len(hits) && hits[c.Target] > 0 && c.Variant == 0 {
			s.credit(req, t, 0, int64(hits[c.Target]))
		}
	}
	if len(req.More) > 0 {
		s.measureMore(req, 0, 1, dec)
	}
	for k := range req.Variants {
		s.measureVariant(req, k+1, dec)
	}
}

// measureVariant measures the candidates that make a variant of the request, if there are any.
func (s *Scorer) measureVariant(req *Request, variant int, dec *Decision) {
	used := false
	blocks, guessed := req.charged(variant)
	for i := range dec.Terms {
		t := &dec.Terms[i]
		if t.Candidate.Variant != variant {
			continue
		}
		used, t.Blocks = true, blocks
		if !t.Eligible || t.Candidate.BlockSize == 0 {
			continue
		}
		if t.Note = ""; guessed {
			t.Note = noteNoHashes
		}
	}
	if used {
		s.measureMore(req, variant, 0, dec)
	}
}

// measureMore adds the hits of a variant's prompts from the given one on.
func (s *Scorer) measureMore(req *Request, variant, from int, dec *Decision) {
	for p := from; p <= len(req.more(variant)); p++ {
		hits := s.lookup(req, variant, p)
		for i := range dec.Terms {
			t := &dec.Terms[i]
			id := t.Candidate.Target
			if t.Candidate.Variant == variant && t.Eligible && t.Candidate.BlockSize != 0 && int(id) < len(hits) && hits[id] > 0 {
				s.credit(req, t, p, int64(hits[id]))
			}
		}
	}
}

// lookup matches one prompt of a variant. The answer is nil for a prompt without blocks, and for
// multimodal requests.
func (s *Scorer) lookup(req *Request, variant, p int) []uint32 {
	chain := req.prompt(variant, p)
	if len(chain) == 0 || req.Multimodal {
		return nil
	}
	s.view.Match(chain, &s.match)
	return s.match.Hits
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

// credit adds to the hit terms what the last match says of prompt p, for hits above zero.
func (s *Scorer) credit(req *Request, t *Terms, p int, hits int64) {
	id, from := t.Candidate.Target, &s.match
	if req.LastComputed {
		held := hits
		if hits = reusable(req, &t.Candidate, p, held); hits == 0 {
			return
		}
		if hits < held {
			from = s.shortened(req, t.Candidate.Variant, p, hits)
		}
	}
	w := &s.cfg.TierWeights
	var lower [index.NumTiers]int64
	for tier := index.CPU; tier < index.NumTiers; tier++ {
		if l := from.Lower[tier]; int(id) < len(l) {
			lower[tier] = int64(l[id])
		}
	}
	top := hits - lower[index.CPU] - lower[index.Disk]
	t.Hits += hits
	t.HitWeight += float64(w[index.GPU]*float64(top)) + float64(w[index.CPU]*float64(lower[index.CPU])) +
		float64(w[index.Disk]*float64(lower[index.Disk]))
	t.HitTokens = min(t.HitTokens+prefixTokens(req, t.Candidate.Variant, p, hits), max(req.input(t.Candidate.Variant), 0))
}
