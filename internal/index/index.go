package index

import (
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// Index mirrors the caches of all targets. It is owned by one goroutine; see Shared.
type Index struct{ n *naive }

// New makes an index over blocks of blockSize tokens.
func New(blockSize int, opt Options) *Index { return &Index{newNaive(blockSize, opt)} }

// Join makes a target known, empty. A target that has joined is left as it is.
func (x *Index) Join(t target.ID) { x.n.Join(t) }

// Forget removes a target with all it holds.
func (x *Index) Forget(t target.ID) { x.n.Forget(t) }

// Apply folds one operation into the mirror of its target. An error (ErrOp) means that nothing changed.
func (x *Index) Apply(op Op) (Result, error) { return x.n.Apply(op) }

// Match finds the longest leading run of chain for every target. It allocates only to grow dst.
func (x *Index) Match(chain []block.Hash, dst *Matches) { x.n.Match(chain, dst) }

// Stats describes the mirror of one target.
func (x *Index) Stats(t target.ID) Stats { return x.n.Stats(t) }

// ContentHash depends on which blocks a target holds in which tiers, and on nothing else.
func (x *Index) ContentHash(t target.ID) uint64 { return x.n.ContentHash(t) }

// Check verifies the invariants.
func (x *Index) Check() error { return x.n.Check() }
