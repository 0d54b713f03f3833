// Package index mirrors the KV caches of all targets and answers, for all of them at once, how long
// the leading run of a request's blocks is that each one holds.
package index

import (
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// Handle is an engine's own name of a cached block, opaque and meaningful within one target only.
// Signed integers are taken as two's complement; binary handles by their last eight bytes, big-endian.
type Handle uint64

// Tier is where a block lies. Lower values are nearer to the compute.
type Tier uint8

// The tiers, nearest first.
const (
	GPU Tier = iota
	CPU
	Disk
	NumTiers
)

// Kind says what an Op does.
type Kind uint8

const (
	// Store adds blocks to a target.
	Store Kind = iota + 1
	// Remove takes handles away from one tier of a target.
	Remove
	// Clear empties a target (all tiers) and keeps its identity.
	Clear
	// Epoch empties a target and starts a new life of its cache: orphans and handles of the old one are void.
	Epoch
)

// Op is one change to the mirror of one target. A Store carries either Tokens (engine events: the
// index hashes them itself, at whatever page size the engine uses) or Hashes (simulators and
// recordings: one chained hash per handle, already at the index's block size).
type Op struct {
	Kind      Kind
	Target    target.ID
	Tier      Tier
	Handles   []Handle
	Parent    Handle // engine handle of the block before the first one; meaningful if HasParent
	HasParent bool
	Namespace block.Hash // root of the chain for adapter and salt; block.Root where neither is set
	PageSize  int        // tokens per handle as the engine states it; 0: the index's block size
	Tokens    []block.Token
	Hashes    []block.Hash
}

// Matches is the answer to one lookup, reused between lookups. Slices are indexed by target.ID and
// have one entry per target known to the index.
type Matches struct {
	// Hits is the length in blocks of the longest leading run the target holds in any tier.
	Hits []uint32
	// Lower counts, of those hits, the blocks that are in no better tier than CPU (Lower[CPU]) or
	// Disk (Lower[Disk]); Lower[GPU] is unused. Nil where no target has lower-tier blocks.
	Lower [NumTiers][]uint32
	scratch
}

// View is what scoring may do with an index.
type View interface {
	// Match finds the longest leading run of chain for every target. It allocates only to grow dst.
	Match(chain []block.Hash, dst *Matches)
}

type scratch struct{}
