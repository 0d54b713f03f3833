package fakeengine

import (
	"container/list"
	"fmt"
	"slices"

	"github.com/kvroute/kvroute/internal/block"
)

// paged is a pool of blocks with hashes, after vLLM's block pool (also for ATOM and TensorRT-LLM).
//
// A block is cached once it is full, when the step that computes its last token is scheduled, also
// during decoding. Free blocks keep their content until they are taken again, from the front of the free
// list; a sequence that ends puts its blocks at the back, last one first, so that children go before
// parents. Blocks of equal content are not merged: each has its own store and its own removal. At least
// the last token of a prompt is computed, hence a prompt of whole blocks computes its last block again
// and stores a second copy.
//
// Invariants (check):
//
//	the blocks on the free list are those with ref 0; ref counts the sequences that hold a block;
//	byHash holds exactly the blocks with a hash, in the order of their stores.
type paged struct {
	h      hasher
	size   int
	first  bool // freed blocks without a hash go to the front
	nulls  int  // blocks that are never given out
	all    []*pblock
	free   *list.List // of *pblock
	byHash map[digest][]*pblock
	events []event
}

// pblock is a block of the pool.
type pblock struct {
	id     int
	ref    int
	hashed bool
	hash   digest
	at     *list.Element // on the free list

	// For contents: what the hash stands for.
	parent digest
	index  int // position in its chain
	tokens []block.Token
	sp     space
}

func newPaged(c *Config, w wire, h hasher) *paged {
	p := &paged{h: h, size: c.BlockSize, first: w.reuseUnhashed}
	if c.Dialect == VLLM {
		p.nulls = 1 // block 0 stands for nothing
	}
	for i := range c.Capacity - p.nulls {
		p.all = append(p.all, &pblock{id: i + p.nulls})
	}
	p.wipe()
	return p
}

func (p *paged) wipe() {
	p.free = list.New()
	p.byHash = map[digest][]*pblock{}
	p.events = nil
	for _, b := range p.all {
		*b = pblock{id: b.id}
		b.at = p.free.PushBack(b)
	}
}

func (p *paged) used() int { return len(p.all) - p.free.Len() }

func (p *paged) take() []event {
	e := p.events
	p.events = nil
	return e
}

func (p *paged) admit(s *seq, budget int) bool {
	var hits []*pblock
	idle := 0 // hits that nobody holds: they leave the free list
	for i := range (len(s.tokens) - 1) / p.size {
		same := p.byHash[s.digest(p.h, p.size, i)]
		if len(same) == 0 {
			break
		}
		hits = append(hits, same[0])
		if same[0].ref == 0 {
			idle++
		}
	}
	need := (len(s.tokens)+p.size-1)/p.size - len(hits)
	if need+idle > p.free.Len() {
		return false
	}
	for _, b := range hits {
		if b.ref == 0 {
			p.free.Remove(b.at)
			b.at = nil
		}
		b.ref++
	}
	s.pages, s.stored = hits, len(hits)
	s.computed = len(hits) * p.size
	s.grant = min(len(s.tokens)-s.computed, budget)
	return p.grow(s, s.computed+s.grant) // fits, as the whole prompt does
}

func (p *paged) grow(s *seq, upto int) bool {
	need := (upto+p.size-1)/p.size - len(s.pages)
	if need > p.free.Len() {
		return false
	}
	for range need {
		b := p.free.Remove(p.free.Front()).(*pblock)
		b.at = nil
		p.forget(b)
		b.ref = 1
		s.pages = append(s.pages, b)
	}
	p.name(s, upto/p.size)
	return true
}

// forget takes away a block's hash, and reports it.
func (p *paged) forget(b *pblock) {
	if !b.hashed {
		return
	}
	rest := slices.DeleteFunc(p.byHash[b.hash], func(x *pblock) bool { return x == b })
	if len(rest) == 0 {
		delete(p.byHash, b.hash)
	} else {
		p.byHash[b.hash] = rest
	}
	p.events = append(p.events, event{kind: removed, blocks: []digest{b.hash}, sp: b.sp})
	b.hashed, b.tokens = false, nil
}

// name gives the full blocks of s up to full their hashes, and reports them as one store.
func (p *paged) name(s *seq, full int) {
	if full <= s.stored {
		return
	}
	e := event{kind: stored, first: s.stored, sp: s.sp, tokens: slices.Clone(s.tokens[s.stored*p.size : full*p.size])}
	if s.stored > 0 {
		e.parent = s.digest(p.h, p.size, s.stored-1)
	}
	for i := s.stored; i < full; i++ {
		b := s.pages[i]
		b.hashed, b.hash, b.index, b.sp = true, s.digest(p.h, p.size, i), i, s.sp
		b.tokens = e.tokens[(i-s.stored)*p.size : (i-s.stored+1)*p.size]
		if i > 0 {
			b.parent = s.digest(p.h, p.size, i-1)
		}
		p.byHash[b.hash] = append(p.byHash[b.hash], b)
		e.blocks = append(e.blocks, b.hash)
	}
	s.stored = full
	p.events = append(p.events, e)
}

// prefilled: what is full was named when the step was scheduled.
func (*paged) prefilled(*seq) {}

// release: what is named stays named whether the sequence ended well or not.
func (p *paged) release(s *seq, _ bool) {
	var front, back []*pblock
	for _, b := range slices.Backward(s.pages) {
		if b.ref--; b.ref > 0 {
			continue
		}
		if b.hashed || !p.first {
			back = append(back, b)
		} else {
			front = append(front, b)
		}
	}
	for _, b := range slices.Backward(front) {
		b.at = p.free.PushFront(b)
	}
	for _, b := range back {
		b.at = p.free.PushBack(b)
	}
	s.pages, s.stored, s.computed, s.grant = nil, 0, 0, 0
}

func (p *paged) reset() bool {
	if p.used() > 0 {
		return false
	}
	clear(p.byHash)
	for _, b := range p.all {
		b.hashed, b.tokens = false, nil
	}
	p.events = append(p.events, event{kind: cleared})
	return true
}

func (p *paged) contents() []Block {
	var kept []*pblock
	for _, same := range p.byHash {
		kept = append(kept, same[0])
	}
	slices.SortFunc(kept, func(a, b *pblock) int {
		if a.index != b.index {
			return a.index - b.index
		}
		return slices.Compare(a.hash[:], b.hash[:])
	})
	out := make([]Block, 0, len(kept))
	for _, b := range kept {
		out = append(out, Block{
			Handle: p.h.handle(b.hash), Parent: p.h.handle(b.parent), HasParent: b.index > 0,
			Tokens: b.tokens, Adapter: b.sp.adapter, Salt: b.sp.salt, Copies: len(p.byHash[b.hash]),
		})
	}
	return out
}

func (p *paged) check(running []*seq) error {
	refs := map[*pblock]int{}
	for _, s := range running {
		for _, b := range s.pages {
			refs[b]++
		}
	}
	named := 0
	for _, b := range p.all {
		if b.ref != refs[b] {
			return fmt.Errorf("block %d has %d references, sequences hold it %d times", b.id, b.ref, refs[b])
		}
		if (b.ref == 0) != (b.at != nil) {
			return fmt.Errorf("block %d with %d references: on the free list %v", b.id, b.ref, b.at != nil)
		}
		if b.hashed {
			named++
			if !slices.Contains(p.byHash[b.hash], b) {
				return fmt.Errorf("block %d has a hash and cannot be found by it", b.id)
			}
		}
	}
	for _, same := range p.byHash {
		named -= len(same)
	}
	if named != 0 {
		return fmt.Errorf("%d more blocks with a hash than found by hash", named)
	}
	return nil
}
