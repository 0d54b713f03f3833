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
	// Clear empties a target (all tiers) and keeps its identity. Buffered orphans go too.
	Clear
	// Epoch empties a target and starts a new life of its cache: orphans and handles of the old one are void.
	Epoch
)

// Op is one change to the mirror of one target. A Store carries either Tokens (engine events: the
// index hashes them itself, at whatever page size the engine uses) or Hashes (simulators and
// recordings: one chained hash per handle, already at the index's block size). A Store with neither
// (an offload event) adds its tier to the handles that are known. The index keeps none of the slices.
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
	// Counted: a handle stored while it is in the tier is one more copy, which takes one more removal
	// from that tier. vLLM keeps several blocks of equal content and announces each. Without it a store is
	// idempotent. Other content for the handle, Clear and Epoch end the count. Content without handles
	// (see Result.ViewOnly) is not counted.
	Counted bool
}

// Options bound an index. Zero means the default, which is stated for each.
type Options struct {
	// Limit is the greatest number of memberships, (block, target) pairs, over all targets; default
	// 4 x MaxBlocks. At the limit, and at MaxBlocks distinct blocks, a new block is refused together
	// with the rest of its event, and counted: the mirror then knows less than the engine holds and
	// never more. Removals make room.
	Limit int
	// HandleLimit is the greatest number of engine handles over all targets (aliases and pages smaller
	// than a block make it larger than the number of memberships); default 16 x Limit. A handle beyond
	// it is refused like a block beyond Limit.
	HandleLimit int
	// OrphanLimit is the greatest number of blocks one target may have buffered until their parent
	// arrives; default 8192. At the limit the oldest event goes first, and is counted. Negative: no
	// buffer, every orphan is dropped.
	OrphanLimit int
	// Observer is told every change of what a target holds; nil: nobody.
	Observer Observer
	// Yield, if not nil, is called now and then while a target is being emptied (Clear, Epoch, Forget),
	// which takes a time in proportion to the whole index; no other operation calls it. Until the
	// emptying returns, the target counts as holding nothing and all others as they are: a Match, Stats
	// or ContentHash from within Yield is exact, so that a caller who keeps the index under a lock may
	// let readers in. Whatever changes the index has to wait.
	Yield func()
}

// MaxBlocks is the greatest number of distinct blocks an index holds.
const MaxBlocks = 1<<26 - 1

const defaultOrphanLimit = 8192

// Result says what one Op did.
type Result struct {
	Stored   int // blocks the target holds now and did not before
	Removed  int // blocks the target held before and does not now, whatever the reason
	Known    int // handles stored again in a tier they were in, as one more copy where that is counted
	Rebound  int // handles stored again with other content: the newer holds
	Unknown  int // handles to remove, or to store without content, that are not known (in that tier)
	ViewOnly int // blocks stored without a handle, because handles and tokens do not fit the page size
	Orphaned int // handles buffered because their parent is not known
	Adopted  int // buffered handles whose parent arrived
	Dropped  int // buffered handles given up at OrphanLimit, or removed before their parent came
	Refused  int // handles (or blocks without handle) refused at Limit or HandleLimit
	Conflict int // handles refused because their hash is known under another parent
}

// Add adds what another Op did.
func (r *Result) Add(o Result) {
	r.Stored += o.Stored
	r.Removed += o.Removed
	r.Known += o.Known
	r.Rebound += o.Rebound
	r.Unknown += o.Unknown
	r.ViewOnly += o.ViewOnly
	r.Orphaned += o.Orphaned
	r.Adopted += o.Adopted
	r.Dropped += o.Dropped
	r.Refused += o.Refused
	r.Conflict += o.Conflict
}

// Stats describes the mirror of one target.
type Stats struct {
	Joined  bool
	Blocks  int    // blocks held in any tier
	Handles int    // engine handles known
	Copies  int    // announcements of those that counted beyond the first, see Op.Counted
	Orphans int    // handles buffered until their parent arrives
	Holes   int    // blocks held whose parent is not
	Lower   int    // blocks held in no tier better than CPU
	Disk    int    // of them, those held in disk only
	Epoch   int    // how often the cache was emptied (Clear, Epoch) since the target joined
	Totals  Result // everything since the target joined
}

// Matches is the answer to one lookup, reused between lookups. Slices are indexed by target.ID and
// have one entry per target known to the index.
type Matches struct {
	// Hits is the length in blocks of the longest leading run the target holds in any tier.
	Hits []uint32
	// Lower counts, of those hits, the blocks that are in no better tier than CPU (Lower[CPU]) or
	// Disk (Lower[Disk]); Lower[GPU] is unused. Nil where all are zero.
	Lower [NumTiers][]uint32
	scratch
}

// View is what scoring may do with an index.
type View interface {
	// Match finds the longest leading run of chain for every target. It allocates only to grow dst.
	Match(chain []block.Hash, dst *Matches)
}

// Observer is told how the content of mirrors changes, block by block and in order, while an operation
// is applied. It must not use the index.
type Observer interface {
	// Changed: target t now holds block h (the one after parent; block.Root or a namespace for the
	// first) with tier as the nearest one, or does not hold it any more, with tier the last nearest one.
	// It is called for changes only. The parent need not be held by t, nor by anybody.
	Changed(t target.ID, h, parent block.Hash, tier Tier, held bool)
	// Emptied: t holds nothing any more, after Clear, Epoch or Forget of a target that had joined, even
	// if it held nothing before. Changed is not called for the blocks that went. It comes before the
	// first Yield.
	Emptied(t target.ID)
}
