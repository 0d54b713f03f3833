package pool

import (
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
)

// Guess bounds the mirror of a target that sends no events. Such a mirror is made of what was sent
// there, not of what is there.
type Guess struct {
	Blocks int           // the most blocks believed to be cached, the oldest go first
	Age    time.Duration // how long a prefix is believed to stay after its last use; 0: for ever
}

// approx is an LRU of blocks by hash. Blocks of one use are ordered leaf to root, so that a block is never
// older than what follows it and what goes first is always a leaf.
type approx struct {
	guess Guess
	at    map[block.Hash]int32
	nodes []node // nodes[0] is the head of the ring: next is the oldest, prev the newest
	free  int32
	ids   []int32 // of touch
}

// node is a block that is believed to be cached. follow is the node that came after it in the last prompt
// that had both, 0 if there was none: a guess, to be checked by its hash, that saves looking for nearly all
// blocks of a prompt seen before.
type node struct {
	hash       block.Hash
	used       int64 // ns
	prev, next int32
	follow     int32 // unused on the free list
}

const unused = -1

func newApprox(g Guess) *approx {
	return &approx{guess: g, at: map[block.Hash]int32{}, nodes: make([]node, 1)}
}

func (a *approx) unlink(i int32) {
	n := &a.nodes[i]
	a.nodes[n.prev].next, a.nodes[n.next].prev = n.next, n.prev
}

// newest puts node i last in line to go.
func (a *approx) newest(i int32) {
	last := a.nodes[0].prev
	a.nodes[i].prev, a.nodes[i].next = last, 0
	a.nodes[last].next, a.nodes[0].prev = i, i
}

// touch notes that a prompt was sent, and applies what that changes.
func (a *approx) touch(chain []block.Hash, at int64, apply func(index.Op) error) error {
	if len(chain) > a.guess.Blocks {
		chain = chain[:a.guess.Blocks]
	}
	known := a.find(chain)
	after := int32(0)
	for i := len(chain) - 1; i >= 0; i-- {
		h, n := chain[i], a.ids[i]
		if n == 0 {
			n = a.at[h] // of a chain that holds a block twice, which only hand-made ones do
		}
		if n != 0 {
			a.unlink(n)
		} else {
			n = a.alloc()
			a.nodes[n] = node{hash: h}
			a.at[h] = n
		}
		if after != 0 {
			a.nodes[n].follow = after
		}
		a.nodes[n].used = at
		a.newest(n)
		after = n
	}
	if known < len(chain) {
		op := index.Op{Kind: index.Store, Hashes: chain[known:], Handles: handles(chain[known:])}
		if known > 0 {
			op.Parent, op.HasParent = index.Handle(chain[known-1]), true
		}
		if err := apply(op); err != nil {
			return err
		}
	}
	return a.shrink(at, apply)
}

// find puts the nodes of a chain into ids, 0 where a block has none, and returns how many at its beginning
// have one.
func (a *approx) find(chain []block.Hash) (known int) {
	a.ids = a.ids[:0]
	last := int32(0)
	for i, h := range chain {
		n := a.nodes[last].follow // 0 for the head of the ring
		if n == 0 || a.nodes[n].hash != h || a.nodes[n].follow == unused {
			n = a.at[h]
		}
		if n != 0 && known == i {
			known++
		}
		a.ids = append(a.ids, n)
		last = n
	}
	return known
}

// shrink drops what is too much or too old.
func (a *approx) shrink(at int64, apply func(index.Op) error) error {
	var gone []block.Hash
	for i := a.nodes[0].next; i != 0; i = a.nodes[0].next {
		n := &a.nodes[i]
		if len(a.at) <= a.guess.Blocks && (a.guess.Age == 0 || at-n.used <= int64(a.guess.Age)) {
			break
		}
		gone = append(gone, n.hash)
		delete(a.at, n.hash)
		a.unlink(i)
		n.next, n.follow = a.free, unused
		a.free = i
	}
	if len(gone) == 0 {
		return nil
	}
	return apply(index.Op{Kind: index.Remove, Handles: handles(gone)})
}

func (a *approx) alloc() int32 {
	if i := a.free; i != 0 {
		a.free = a.nodes[i].next
		return i
	}
	a.nodes = append(a.nodes, node{})
	return int32(len(a.nodes) - 1)
}

func handles(chain []block.Hash) []index.Handle {
	hs := make([]index.Handle, len(chain))
	for i, h := range chain {
		hs[i] = index.Handle(h)
	}
	return hs
}
