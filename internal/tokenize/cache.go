package tokenize

import (
	"bytes"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/kvroute/kvroute/internal/block"
)

// shards is how many parts each cache has, each with its own lock.
const shards = 16

// piece is a text that was encoded. It does not change. Its id is never used again, so that a chain
// behind a piece that is gone can never be taken for another one's.
type piece struct {
	id     uint64
	text   []byte
	tokens []block.Token
}

func (p *piece) size() int64 { return int64(len(p.text)+4*len(p.tokens)) + 192 }

// chainKey names a chain of blocks: what it starts with, and its last piece behind the chain before.
type chainKey struct {
	before  uint64 // id of the chain before; 0: none
	piece   uint64
	root    block.Hash
	size    int  // of a block
	special bool // the post-processor's tokens come first
}

// chain is the state of a chain after its last piece. It does not change.
type chain struct {
	id     uint64
	blocks []block.Hash // those that the last piece completed
	last   block.Hash
	rest   []block.Token
}

func (c *chain) size() int64 { return int64(8*len(c.blocks)+4*len(c.rest)) + 224 }

// lru is one shard: a map whose entries are also in a ring by use. It holds at most max bytes.
type lru[K comparable, V any] struct {
	mu      sync.Mutex
	max     int64
	bytes   int64
	entries map[K]*entry[K, V]
	ring    entry[K, V] // ring.next was used last, ring.prev longest ago
}

type entry[K comparable, V any] struct {
	prev, next *entry[K, V]
	key        K
	val        *V
	size       int64
}

func (l *lru[K, V]) init(maxBytes int64) {
	l.max = maxBytes
	l.entries = make(map[K]*entry[K, V])
	l.ring.prev, l.ring.next = &l.ring, &l.ring
}

func (l *lru[K, V]) unlink(e *entry[K, V]) { e.prev.next, e.next.prev = e.next, e.prev }

func (l *lru[K, V]) front(e *entry[K, V]) {
	e.prev, e.next = &l.ring, l.ring.next
	e.prev.next, e.next.prev = e, e
}

func (l *lru[K, V]) get(k K) *V {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[k]
	if e == nil {
		return nil
	}
	l.unlink(e)
	l.front(e)
	return e.val
}

// put stores a value in place of the one there is, and returns how many others had to go. What is larger
// than half of the shard is not stored, and put says so.
func (l *lru[K, V]) put(k K, v *V, size int64) (stored bool, evicted int64) {
	if size > l.max/2 {
		return false, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.entries[k]; old != nil {
		l.drop(old)
	}
	for l.bytes+size > l.max {
		l.drop(l.ring.prev)
		evicted++
	}
	e := &entry[K, V]{key: k, val: v, size: size}
	l.entries[k] = e
	l.front(e)
	l.bytes += size
	return true, evicted
}

func (l *lru[K, V]) drop(e *entry[K, V]) {
	l.unlink(e)
	delete(l.entries, e.key)
	l.bytes -= e.size
}

func (l *lru[K, V]) held() (n, size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.entries)), l.bytes
}

// cache keeps what was encoded and hashed.
type cache struct {
	seed   maphash.Seed
	ids    atomic.Uint64
	pieces [shards]lru[uint64, piece]
	chains [shards]lru[chainKey, chain]

	hits, misses, hitTokens, missTokens, chainHits, chainMisses, evicted atomic.Int64
}

// newCache makes a cache of about maxBytes, a quarter of it for chains.
func newCache(maxBytes int64) *cache {
	c := &cache{seed: maphash.MakeSeed()}
	for i := range shards {
		c.pieces[i].init(maxBytes / 4 * 3 / shards)
		c.chains[i].init(maxBytes / 4 / shards)
	}
	return c
}

// piece returns what is known of a text; nil if nothing. The hash only finds it: the texts are compared.
func (c *cache) piece(text []byte) (*piece, uint64) {
	h := maphash.Bytes(c.seed, text)
	if p := c.pieces[h%shards].get(h); p != nil && bytes.Equal(p.text, text) {
		c.hits.Add(1)
		c.hitTokens.Add(int64(len(p.tokens)))
		return p, h
	}
	c.misses.Add(1)
	return nil, h
}

// addPiece stores an encoded text under the hash that piece gave, and returns its id, 0 if it is too large.
func (c *cache) addPiece(h uint64, text []byte, tokens []block.Token) uint64 {
	c.missTokens.Add(int64(len(tokens)))
	p := &piece{id: c.ids.Add(1), text: bytes.Clone(text), tokens: append(make([]block.Token, 0, len(tokens)), tokens...)}
	stored, evicted := c.pieces[h%shards].put(h, p, p.size())
	c.evicted.Add(evicted)
	if !stored {
		return 0
	}
	return p.id
}

func (c *cache) chainShard(k chainKey) *lru[chainKey, chain] {
	x := (k.before*0x9e3779b97f4a7c15 ^ k.piece) * 0xbf58476d1ce4e5b9 // mixed: ids count up
	return &c.chains[x>>60%shards]
}

func (c *cache) chain(k chainKey) *chain {
	n := c.chainShard(k).get(k)
	if n == nil {
		c.chainMisses.Add(1)
	} else {
		c.chainHits.Add(1)
	}
	return n
}

// addChain stores the state of a chain and returns its id, 0 if it is too large.
func (c *cache) addChain(k chainKey, blocks []block.Hash, state *block.Chain) uint64 {
	n := &chain{
		id:     c.ids.Add(1),
		blocks: append([]block.Hash(nil), blocks...),
		last:   state.Last(),
		rest:   append([]block.Token(nil), state.Rest()...),
	}
	stored, evicted := c.chainShard(k).put(k, n, n.size())
	c.evicted.Add(evicted)
	if !stored {
		return 0
	}
	return n.id
}
