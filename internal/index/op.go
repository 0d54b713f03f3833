package index

import (
	"errors"
	"fmt"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// ErrOp is wrapped by the errors of Apply: the Op is not one, and nothing was changed.
var ErrOp = errors.New("not an index operation")

// validate refuses what no state of the index could make sense of.
func (op *Op) validate() error {
	switch {
	case op.Kind < Store || op.Kind > Epoch:
		return fmt.Errorf("applying to target %d: %w: kind %d", op.Target, ErrOp, op.Kind)
	case op.Tier >= NumTiers:
		return fmt.Errorf("applying to target %d: %w: tier %d, there are %d", op.Target, ErrOp, op.Tier, NumTiers)
	case op.PageSize < 0:
		return fmt.Errorf("applying to target %d: %w: page size %d", op.Target, ErrOp, op.PageSize)
	case len(op.Tokens) > 0 && len(op.Hashes) > 0:
		return fmt.Errorf("applying to target %d: %w: a store with tokens and with hashes", op.Target, ErrOp)
	}
	return nil
}

func unjoined(op *Op) error {
	return fmt.Errorf("applying to target %d: %w: the target has not joined", op.Target, ErrOp)
}

// empty tells a Store without content, which can only add its tier to handles that are known.
func (op *Op) empty() bool { return len(op.Tokens) == 0 && len(op.Hashes) == 0 }

// fits tells whether every handle of a Store can be given its page. If not, the content is indexed
// without handles: which handle means what cannot be known.
func (op *Op) fits(page int) bool {
	if len(op.Hashes) > 0 {
		return len(op.Hashes) == len(op.Handles)
	}
	return len(op.Tokens)/page == len(op.Handles)
}

// page is the number of tokens a handle stands for.
func (op *Op) page(blockSize int) int {
	if op.PageSize > 0 {
		return op.PageSize
	}
	return blockSize
}

// blocks is what an orphan counts against OrphanLimit: its memory is proportional to it.
func (op *Op) blocks(blockSize int) int {
	return max(len(op.Handles), len(op.Hashes), (len(op.Tokens)+blockSize-1)/blockSize)
}

// withDefaults fills in the bounds that are not set.
func (o Options) withDefaults() Options {
	if o.Limit <= 0 {
		o.Limit = 4 * MaxBlocks
	}
	if o.HandleLimit <= 0 {
		o.HandleLimit = 16 * o.Limit
	}
	if o.OrphanLimit == 0 {
		o.OrphanLimit = defaultOrphanLimit
	}
	return o
}

// tiers is a set of tiers, bit t for tier t.
type tiers uint8

func tier(t Tier) tiers { return 1 << t }

// best is the nearest tier of a set that is not empty.
func (m tiers) best() Tier {
	switch {
	case m&tier(GPU) != 0:
		return GPU
	case m&tier(CPU) != 0:
		return CPU
	}
	return Disk
}

// together is where a block lies whose parts lie in the sets of tiers a and b: wherever all parts
// are, or, if there is no such tier, in the farther of the two nearest.
func together(a, b tiers) tiers {
	if both := a & b; both != 0 {
		return both
	}
	return tier(max(a.best(), b.best()))
}

// contentTerm is the share of one block in one tier in the content hash, a sum of such terms.
func contentTerm(h block.Hash, m tiers) uint64 {
	var sum uint64
	for t := GPU; t < NumTiers; t++ {
		if m&tier(t) != 0 {
			sum += mix(uint64(h) + uint64(t+1)*0x9e3779b97f4a7c15)
		}
	}
	return sum
}

// mix spreads the bits of x (the finaliser of SplitMix64); it is a bijection.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// part names one page of a block made of several: the handle and what it stood for then. A handle
// stored again with other content is another part.
type part struct {
	handle Handle
	state  block.Hash // hash of the chain after the page and of the tokens left over
}

func slots(t target.ID) int { return int(t) + 1 }
