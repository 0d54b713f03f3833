package score

import (
	"fmt"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
)

// This file is about what a candidate makes of a request: which tokens, in how many prompts, and how much
// of them its cache can spare it. Variant 0 is the request itself; prompt 0 is Blocks, prompt p More[p-1].

func (r *Request) more(variant int) [][]block.Hash {
	if variant > 0 {
		return r.Variants[variant-1].More
	}
	return r.More
}

// prompt returns the blocks of one prompt of a variant.
func (r *Request) prompt(variant, p int) []block.Hash {
	switch {
	case p > 0:
		return r.more(variant)[p-1]
	case variant > 0:
		return r.Variants[variant-1].Blocks
	}
	return r.Blocks
}

// blocks counts those of all prompts of a variant; there are none for multimodal requests, whose text
// hashes mean nothing.
func (r *Request) blocks(variant int) int64 {
	if r.Multimodal {
		return 0
	}
	n := int64(len(r.prompt(variant, 0)))
	for _, chain := range r.more(variant) {
		n += int64(len(chain))
	}
	return n
}

// charged is blocks, but for a variant that cannot be hashed next to others that can: it counts as the
// longest of these (guessed), so that not to know a prompt makes no candidate cheap.
func (r *Request) charged(variant int) (blocks int64, guessed bool) {
	blocks = r.blocks(variant)
	if blocks > 0 || len(r.Variants) == 0 || r.unhashable(variant) == "" {
		return blocks, false
	}
	for v := range len(r.Variants) + 1 {
		blocks = max(blocks, r.blocks(v))
	}
	return blocks, blocks > 0
}

func (r *Request) input(variant int) int64 {
	if variant > 0 {
		return r.Variants[variant-1].InputTokens
	}
	return r.InputTokens
}

// booked is the tokens that a variant holds: of the input, for every sample.
func (r *Request) booked(variant int) int64 {
	n, tokens := max(r.N, 1), max(r.input(variant), 0)
	if tokens > load.MaxTokens/n {
		return load.MaxTokens
	}
	return tokens * n
}

func (r *Request) exact(variant int) bool {
	if variant > 0 {
		return r.Variants[variant-1].TokensExact
	}
	return r.TokensExact
}

func (r *Request) unhashable(variant int) string {
	if variant > 0 {
		return r.Variants[variant-1].Unhashable
	}
	return r.Unhashable
}

func (r *Request) lengths(variant int) []int64 {
	if variant > 0 {
		return r.Variants[variant-1].Lengths
	}
	return r.Lengths
}

// check refuses requests whose parts do not fit together, which only a fault in the caller leads to.
func (r *Request) check(cands []Candidate) error {
	for i := range cands {
		if v := cands[i].Variant; v < 0 || v > len(r.Variants) {
			return fmt.Errorf("scoring request %q: candidate %s takes variant %d of %d", r.ID, cands[i].Key, v, len(r.Variants))
		}
	}
	if !r.LastComputed {
		return nil
	}
	for v := range len(r.Variants) + 1 {
		n := 1 + len(r.more(v))
		if got := len(r.lengths(v)); r.blocks(v) > 0 && got != n {
			return fmt.Errorf("scoring request %q: variant %d has %d lengths for %d prompts", r.ID, v, got, n)
		}
	}
	if len(r.BlockTokens) > 0 || r.BlockSize < 1 {
		return fmt.Errorf("scoring request %q: the last token is computed, and blocks have %d tokens, or sizes of their own", r.ID, r.BlockSize)
	}
	return nil
}

// reusable is how many of the leading blocks of prompt p that a candidate holds it need not compute, see
// Request.LastComputed.
func reusable(r *Request, c *Candidate, p int, held int64) int64 {
	size, page := int64(r.BlockSize), int64(c.PageSize)
	if page < 1 {
		page = int64(c.BlockSize)
	}
	tokens := max(min(held*size, r.lengths(c.Variant)[p]-1), 0)
	return tokens / page * page / size
}

// shortened looks at a leading run again that counts for its first blocks only, for the tiers of these.
// Where none of the run is in a lower tier, the last match says all.
func (s *Scorer) shortened(req *Request, variant, p int, hits int64) *index.Matches {
	if s.match.Lower[index.CPU] == nil && s.match.Lower[index.Disk] == nil {
		return &s.match
	}
	if key := (shortRun{variant, p, hits}); s.short != key {
		s.view.Match(req.prompt(variant, p)[:hits], &s.shortMatch)
		s.short = key
	}
	return &s.shortMatch
}

// shortRun names what shortMatch is about. Number of hits 0: nothing.
type shortRun struct {
	variant, prompt int
	hits            int64
}

// prefixTokens is how many tokens the first k blocks of prompt p hold, at most those of the request.
func prefixTokens(r *Request, variant, p int, k int64) int64 {
	input := max(r.input(variant), 0)
	size := max(int64(r.BlockSize), 0)
	switch {
	case len(r.BlockTokens) > 0 && variant == 0 && p == 0:
		return min(int64(r.BlockTokens[min(int(k), len(r.BlockTokens))-1]), input)
	case size > 0 && k > input/size:
		return input // not multiplied: the product might overflow
	}
	return k * size
}
