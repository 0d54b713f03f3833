package index

import "github.com/kvroute/kvroute/internal/block"

// entry is one block that some target holds, or that such a block descends from (a ghost). Its number
// in the arena is its id; id 0 stands for the root of all chains. 28 bytes, hence no 64-bit fields.
//
//	0, 1  block hash, low and high half
//	2, 3  primary handle, meaningful while a target holds the block through it (see sets.go)
//	4     id of the parent block, 0 for a first block; link of the free list in a free entry
//	5     set of the targets that hold the block (see sets.go)
//	6     children: 0 none, else the id of the only one, or fanTag and how many
type entry [7]uint32

const (
	fHash   = 0
	fHandle = 2
	fParent = 4
	fSet    = 5
	fKid    = 6
)

// fanTag marks a block with several children, or that had several since it last had none. How many
// children each target holds is then in Index.fans.
const fanTag = 1 << 31

func (e *entry) hash() block.Hash { return block.Hash(e.key(fHash)) }

func (e *entry) handle() Handle { return Handle(e.key(fHandle)) }

func (e *entry) key(at int) uint64 { return uint64(e[at]) | uint64(e[at+1])<<32 }

func (e *entry) setKey(at int, v uint64) { e[at], e[at+1] = uint32(v), uint32(v>>32) }

// chunkBits makes chunks of 4096 entries, 112 KiB: exactly fourteen pages of the allocator.
const (
	chunkBits = 12
	chunkLen  = 1 << chunkBits
)

// arena holds the entries. It grows by whole chunks and never moves an entry. Freed entries are used
// again last in, first out, so that a run of blocks evicted together is stored together again.
type arena struct {
	chunks []*[chunkLen]entry
	next   uint32 // ids from here on have never been used
	free   uint32 // head of the free list, 0: none
	live   int
}

func newArena() arena { return arena{next: 1} }

func (a *arena) at(id uint32) *entry { return &a.chunks[id>>chunkBits][id&(chunkLen-1)] }

// alloc returns a cleared entry, or 0 if there are MaxBlocks.
func (a *arena) alloc() uint32 {
	id := a.free
	if id != 0 {
		e := a.at(id)
		a.free = e[fParent]
		*e = entry{}
	} else {
		if a.next > MaxBlocks {
			return 0
		}
		id = a.next
		if int(id>>chunkBits) == len(a.chunks) {
			a.chunks = append(a.chunks, new([chunkLen]entry))
		}
		a.next++
	}
	a.live++
	return id
}

func (a *arena) release(id uint32) {
	e := a.at(id)
	*e = entry{}
	e[fParent] = a.free
	a.free = id
	a.live--
}
