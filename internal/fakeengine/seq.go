package fakeengine

import "github.com/kvroute/kvroute/internal/block"

// seq is one sequence that a rank works on: a prompt and what was answered so far. Everything in it
// belongs to the rank's lock, but for notify.
type seq struct {
	tokens []block.Token // prompt, then answer
	prompt int           // tokens of the prompt
	max    int           // tokens to answer
	sp     space
	seed   uint64

	cached   int  // prompt tokens found in the cache when first admitted; -1: not admitted yet
	computed int  // tokens whose KV is there, or will be at the end of the step under way
	grant    int  // tokens of the step under way
	prefill  bool // that step computes prompt, or an answer again after a preemption
	digests  []digest

	pages  []*pblock // paged caches: the blocks held
	stored int       // of them, leading ones that are named in the cache

	node      *rnode // radix caches: where the locked prefix ends
	protected int    // tokens of that prefix
	own       int    // pages held beside the tree

	done    bool
	aborted bool
	notify  chan struct{} // holds one element if something happened since the last look
}

func newSeq(prompt []block.Token, answer int, sp space, seed uint64) *seq {
	s := &seq{prompt: len(prompt), max: answer, sp: sp, seed: seed, cached: -1, notify: make(chan struct{}, 1)}
	s.tokens = make([]block.Token, len(prompt), len(prompt)+min(answer, 4096))
	copy(s.tokens, prompt)
	return s
}

// tell wakes the reader.
func (s *seq) tell() {
	select {
	case s.notify <- struct{}{}:
	default:
	}
}

// digest returns the hash of block i, whose tokens must be there.
func (s *seq) digest(h hasher, size, i int) digest {
	for n := len(s.digests); n <= i; n++ {
		var parent digest
		if n > 0 {
			parent = s.digests[n-1]
		}
		s.digests = append(s.digests, h.next(parent, n, s.tokens[n*size:(n+1)*size], s.sp))
	}
	return s.digests[i]
}

// event is a change of a cache as its engine reports it.
type event struct {
	kind   eventKind
	blocks []digest
	parent digest
	first  int           // position of blocks[0] in its chain; above 0 there is a parent
	tokens []block.Token // of stores
	sp     space
}

type eventKind uint8

const (
	stored eventKind = iota
	removed
	cleared
)

// kvCache is the memory of one rank: a pool of blocks, some of them named by their content. It is owned
// by the rank.
type kvCache interface {
	// admit finds the cached prefix of a sequence that holds nothing and takes memory for as much of the
	// rest as budget tokens allow. It sets computed and grant. false: it does not fit now, nothing changed.
	admit(s *seq, budget int) bool
	// grow takes memory for the tokens up to upto. false: there is none.
	grow(s *seq, upto int) bool
	// prefilled is told at the end of a step that computed a part of a sequence's prompt.
	prefilled(s *seq)
	// release ends a sequence: keep says that what it computed stays as far as the engine's rules go.
	release(s *seq, keep bool)
	// reset empties the cache. false: memory is in use, nothing changed.
	reset() bool
	// wipe empties everything without events, as a death of the process does.
	wipe()
	// used counts the blocks held by sequences.
	used() int
	// take returns the events since the last call.
	take() []event
	// contents lists the cached blocks, parents before their children.
	contents() []Block
	// check verifies the invariants.
	check(running []*seq) error
}

// Block is one cached block, as Engine.Cached tells it.
type Block struct {
	Handle    uint64
	Parent    uint64 // of the block before it; meaningful if HasParent
	HasParent bool
	Tokens    []block.Token
	Adapter   string
	Salt      string
	Copies    int // blocks of the pool with this content; SGLang has one
}
