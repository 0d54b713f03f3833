package score

import (
	"errors"
	"fmt"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/target"
)

// ExplainCandidate states a candidate in numbers.
type ExplainCandidate struct {
	Name      string
	Role      Role
	NoBlocks  bool   // its block size is unknown: no hits, charged the whole prompt
	PageSize  int    // tokens per page of its cache, for Request.LastComputed; 0: those of a block
	Doubt     string // why its hits are not to be believed fully
	Hits      int64
	CPUHits   int64 // of Hits, those in CPU memory
	DiskHits  int64 // of Hits, those on disk
	Load      load.Load
	Recent    float64
	Computed  int64
	ImageHits int64
}

// MaxExplainBlocks bounds the prompt of Explain.
const MaxExplainBlocks = 1 << 20

// Explain decides about a request of blocks blocks with the code that decides in earnest, on numbers
// given instead of measured. Of req.Blocks nothing counts, of req.Images their number; where req.BlockSize
// or req.InputTokens is zero, blocks of block.DefaultSize and full blocks are assumed. Blocks are those of
// all prompts of a batch together, so req.More, req.Lengths and req.Variants count for nothing. With
// req.LastComputed, hits are what the candidates hold.
func Explain(cfg Config, req Request, blocks int64, cands []ExplainCandidate) (Decision, error) {
	if blocks < 0 || blocks > MaxExplainBlocks {
		return Decision{}, fmt.Errorf("explaining a request of %d blocks: must be from 0 to %d", blocks, MaxExplainBlocks)
	}
	if len(cands) > target.MaxTargets {
		return Decision{}, fmt.Errorf("explaining %d candidates: at most %d", len(cands), target.MaxTargets)
	}
	if req.BlockSize == 0 {
		req.BlockSize = block.DefaultSize
	}
	if req.InputTokens == 0 {
		req.InputTokens = blocks * int64(req.BlockSize)
		req.TokensExact = true
	}
	req.More, req.Variants, req.Lengths = nil, nil, []int64{req.InputTokens}
	req.Blocks = make([]block.Hash, blocks)
	for i := range req.Blocks {
		req.Blocks[i] = block.Hash(i + 1)
	}
	images := make([]uint64, len(req.Images)) // different ones, so that any number of them can be held
	for i := range images {
		images[i] = uint64(i)
	}
	req.Images = images
	view := statedView(cands)
	s, err := New(cfg, view, load.New())
	if err != nil {
		return Decision{}, err
	}
	s.given = make([]load.Load, len(cands))
	s.mem = make([]memory, len(cands))
	s.recent = make([]float64, len(cands))
	list := make([]Candidate, len(cands))
	for i, c := range cands {
		if err := c.validate(blocks, len(req.Images)); err != nil {
			return Decision{}, fmt.Errorf("candidate %q: %w", c.Name, err)
		}
		list[i] = Candidate{Target: target.ID(i), Key: c.Name, Role: c.Role, BlockSize: req.BlockSize, PageSize: c.PageSize, Doubt: c.Doubt}
		if c.NoBlocks {
			list[i].BlockSize = 0
		}
		s.given[i] = c.Load
		s.recent[i] = c.Recent
		s.mem[i] = memory{computed: c.Computed}
		s.mem[i].touchImages(req.Images[:c.ImageHits])
	}
	var d Decision
	err = s.Peek(&req, list, &d)
	return d, err
}

func (c *ExplainCandidate) validate(blocks int64, images int) error {
	ld := c.Load
	switch {
	case c.Hits < 0 || c.CPUHits < 0 || c.DiskHits < 0 || c.Computed < 0 || !(c.Recent >= 0 && c.Recent <= MaxWeight):
		return errors.New("hits and charges must not be negative")
	case min(ld.ActiveBlocks, ld.PendingTokens, ld.PendingRequests, ld.HeldTokens, ld.HeldRequests) < 0:
		return errors.New("loads must not be negative")
	case max(ld.ActiveBlocks, ld.PendingTokens, ld.PendingRequests, ld.HeldTokens, ld.HeldRequests, c.Computed) > load.MaxTokens:
		return fmt.Errorf("loads must not be above %d", load.MaxTokens)
	case c.PageSize < 0:
		return fmt.Errorf("pages of %d tokens", c.PageSize)
	case c.Hits > blocks:
		return fmt.Errorf("%d hits are more than the request's %d blocks", c.Hits, blocks)
	case c.CPUHits > c.Hits || c.DiskHits > c.Hits-c.CPUHits:
		return fmt.Errorf("%d CPU and %d disk hits are more than its %d hits", c.CPUHits, c.DiskHits, c.Hits)
	case c.ImageHits < 0 || c.ImageHits > int64(images):
		return fmt.Errorf("%d image hits, of %d images", c.ImageHits, images)
	case c.ImageHits > imageCapacity:
		return fmt.Errorf("%d image hits; a target's last %d images are remembered", c.ImageHits, imageCapacity)
	}
	return nil
}

// statedView answers every lookup with the hits that the candidates state.
type statedView []ExplainCandidate

func (v statedView) Match(chain []block.Hash, dst *index.Matches) {
	dst.Hits = make([]uint32, len(v))
	dst.Lower[index.CPU] = make([]uint32, len(v))
	dst.Lower[index.Disk] = make([]uint32, len(v))
	for i, c := range v {
		// Of a part of the prompt: the nearer tiers come first, as caches let go of the ends of prompts first.
		hits := min(c.Hits, int64(len(chain)))
		cpu := min(c.CPUHits, max(hits-(c.Hits-c.CPUHits-c.DiskHits), 0))
		dst.Hits[i] = uint32(hits)
		dst.Lower[index.CPU][i] = uint32(cpu)
		dst.Lower[index.Disk][i] = uint32(max(hits-(c.Hits-c.DiskHits), 0))
	}
}
