package score

import (
	"math"

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
	for i := range cands {
		c := &cands[i]
		t := &dec.Terms[i]
		*t = Terms{Candidate: *c, Blocks: int64(len(chain))}
		m, known := s.look(c.Target, &t.Load)
		if !known {
			t.Note = noteNotJoined
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
		} else if len(chain) > 0 && int(c.Target) < len(s.match.Hits) {
			s.credit(req, t, c.Target)
		}
	}
}

// look reads a target's load and memory, which it voids if another life has begun. known is false
// for targets the ledger does not know.
func (s *Scorer) look(t target.ID, ld *load.Load) (m *memory, known bool) {
	var life uint32
	if s.given != nil {
		*ld = s.given[t]
	} else if *ld, life, known = s.led.Look(t); !known {
		return nil, false
	}
	for int(t) >= len(s.mem) {
		s.mem = append(s.mem, memory{life: math.MaxUint32})
		s.recent = append(s.recent, 0)
	}
	m = &s.mem[t]
	if m.life != life {
		*m = memory{life: life}
		s.recent[t] = 0
	}
	return m, true
}

// credit fills the hit terms from the last match.
func (s *Scorer) credit(req *Request, t *Terms, id target.ID) {
	hits := int64(s.match.Hits[id])
	if hits == 0 {
		return
	}
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
	n := k * int64(req.BlockSize)
	if len(req.BlockTokens) > 0 {
		n = int64(req.BlockTokens[min(int(k), len(req.BlockTokens))-1])
	}
	return min(n, max(req.InputTokens, 0))
}
