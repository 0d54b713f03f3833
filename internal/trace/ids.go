package trace

import (
	"encoding/binary"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/zeebo/xxh3"
)

// chain returns the hash of the block with this id after parent: XXH3-64(LE64(parent) || LE64(id)).
// Hashes of ids and of tokens never meet in one trace.
func chain(parent block.Hash, id uint64) block.Hash {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(parent))
	binary.LittleEndian.PutUint64(b[8:], id)
	return block.Hash(xxh3.Hash(b[:]))
}

// noID stands for the predecessor of first blocks.
const noID = -1

// idEntry is what is known of a chained id: its predecessor and the hash of the path that ends in it.
type idEntry struct {
	prev int64 // id before it, noID for first blocks
	hash block.Hash
}

// idTable maps the chained ids of one scope (a trace, or a session) to their paths. In chained forms
// an id has one predecessor only, so that the id alone tells the whole path.
//
// Ids are mostly dense from 0, so small ones are looked up in a list; entries of former scopes are
// told apart by their scope number, which makes reset cheap.
type idTable struct {
	dense []idEntry
	scope []uint32 // scope in which dense[i] was set
	now   uint32
	count int // ids known in this scope
	other map[int64]idEntry
}

// reset forgets all ids.
func (t *idTable) reset() {
	t.now++
	if t.now == 0 { // the scope number wrapped around
		clear(t.scope)
		t.now = 1
	}
	t.count = 0
	clear(t.other)
}

// add returns the hash of id after prev (whose hash is parent). If id is known after another
// predecessor it returns that one and false.
func (t *idTable) add(id, prev int64, parent block.Hash) (h block.Hash, known int64, ok bool) {
	if id < int64(len(t.dense)) && t.scope[id] == t.now {
		e := &t.dense[id]
		return e.hash, e.prev, e.prev == prev
	}
	return t.addSlow(id, prev, parent)
}

func (t *idTable) addSlow(id, prev int64, parent block.Hash) (block.Hash, int64, bool) {
	if id >= int64(len(t.dense)) {
		if e, ok := t.other[id]; ok {
			return e.hash, e.prev, e.prev == prev
		}
		t.grow(id)
	}
	e := idEntry{prev, chain(parent, uint64(id))}
	t.count++
	if id < int64(len(t.dense)) {
		t.dense[id], t.scope[id] = e, t.now
	} else {
		if t.other == nil {
			t.other = map[int64]idEntry{}
		}
		t.other[id] = e
	}
	return e.hash, prev, true
}

// grow lengthens the list to hold id, if it stays within a small multiple of the ids seen.
func (t *idTable) grow(id int64) {
	if id >= int64(8*t.count+1<<16) {
		return
	}
	n := max(2*len(t.dense), int(id)+1, 1<<12)
	dense, scope := make([]idEntry, n), make([]uint32, n)
	copy(dense, t.dense)
	copy(scope, t.scope)
	t.dense, t.scope = dense, scope
	if t.now == 0 {
		t.now = 1
	}
	for k, e := range t.other { // order does not show: each goes to its own place
		if k < int64(n) {
			t.dense[k], t.scope[k] = e, t.now
			delete(t.other, k)
		}
	}
}
