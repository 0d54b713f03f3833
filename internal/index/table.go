package index

// table finds the entries of an arena by one of their keys. It stores ids only, four bytes each: six
// bits of the hash beside the 26 of the id tell most strangers apart without a look at the arena.
//
// Keys are spread over shards, shards are arrays of buckets of one cache line. A key lies in its home
// bucket or, where that was full, in the next with room; each bucket counts the keys that went past it,
// so a search stops at the first bucket that nothing went past, and a removal leaves no marker behind.
//
// Invariants:
//
//	T1  slots 1..n of a bucket are in use, n = word 0 & 15; the others are not.
//	T2  word 0 >> 4 is the number of keys whose home is at or before the bucket and which lie after it.
//	T3  a shard has at least one bucket and is filled to 7/8 at most.
//	T4  a key is in shard address(mix(key)).
//
// Nothing is ever hashed anew as a whole: a shard grows by a sixth when it is full, and shards are
// split one at a time (linear hashing) to keep about shardKeys in each. The worst single insertion
// moves 2 x shardKeys ids. Memory is 4.27 bytes a slot at a load between 0.76 and 0.88.
//
// Measured and left: open addressing by slots with backward-shift deletion (at this load each removal
// looks at 5 to 12 entries all over the arena, one cache miss each, to learn where they belong);
// markers of removal (they pile up in steady state); Go's map (17 to 34 bytes an entry).
type table struct {
	at    int // which key of an entry: fHash or fHandle
	dir   []*[dirLen]shard
	n     int
	count int      // number of shards
	level uint     // 1<<level <= count < 2<<level
	ids   []uint32 // of the shard being rearranged
	mixed []uint64 // their keys, mixed
}

type shard struct {
	buckets []bucket
	n       int
}

type bucket [16]uint32

const (
	bucketKeys = 15
	shardKeys  = 512
	dirLen     = 256
	idBits     = 26
	idMask     = 1<<idBits - 1
)

func newTable(at int) table {
	t := table{at: at, dir: []*[dirLen]shard{new([dirLen]shard)}, count: 1}
	t.dir[0][0].buckets = make([]bucket, 1)
	return t
}

// Of a mixed key the low bits choose the shard, the next six mark the slot, the high half the bucket.
const markShift = 20

func mark(m uint64) uint32 { return uint32(m>>markShift) &^ idMask } // as it stands in a slot

func (t *table) address(m uint64) int {
	i := int(m & (2<<t.level - 1))
	if i >= t.count {
		i -= 1 << t.level
	}
	return i
}

func (t *table) shard(i int) *shard { return &t.dir[i/dirLen][i%dirLen] }

func (s *shard) home(m uint64) int { return int(m >> 32 * uint64(len(s.buckets)) >> 32) }

// touch brings the bucket of a key into the cache; several in a row overlap their misses.
func (t *table) touch(key uint64) uint32 {
	m := mix(key)
	s := t.shard(t.address(m))
	return s.buckets[s.home(m)][0]
}

// find returns the id of the entry with the key, 0 if there is none.
func (t *table) find(a *arena, key uint64) uint32 {
	m := mix(key)
	s := t.shard(t.address(m))
	mk := mark(m)
	for i, seen := s.home(m), 0; seen < len(s.buckets); seen++ {
		b := &s.buckets[i]
		head := b[0]
		for _, slot := range b[1 : 1+head&15] {
			if slot&^idMask == mk {
				if id := slot & idMask; a.at(id).key(t.at) == key {
					return id
				}
			}
		}
		if head>>4 == 0 {
			return 0
		}
		if i++; i == len(s.buckets) {
			i = 0
		}
	}
	return 0
}

// insert adds an entry whose key is not in the table.
func (t *table) insert(a *arena, key uint64, id uint32) {
	m := mix(key)
	s := t.shard(t.address(m))
	if s.n+1 > len(s.buckets)*bucketKeys*7/8 {
		t.grow(a, s)
	}
	s.put(m, id)
	t.n++
	if t.n > t.count*shardKeys {
		t.split(a)
	}
}

func (s *shard) put(m uint64, id uint32) {
	i := s.home(m)
	for s.buckets[i][0]&15 == bucketKeys {
		s.buckets[i][0] += 1 << 4
		if i++; i == len(s.buckets) {
			i = 0
		}
	}
	b := &s.buckets[i]
	b[0]++
	b[b[0]&15] = mark(m) | id
	s.n++
}

// remove takes out an entry that is in the table.
func (t *table) remove(key uint64, id uint32) {
	m := mix(key)
	s := t.shard(t.address(m))
	want := mark(m) | id
	for i := s.home(m); ; {
		b := &s.buckets[i]
		n := b[0] & 15
		for j := uint32(1); j <= n; j++ {
			if b[j] == want {
				b[j] = b[n]
				b[n] = 0
				b[0]--
				s.n--
				t.n--
				return
			}
		}
		b[0] -= 1 << 4 // it went past here
		if i++; i == len(s.buckets) {
			i = 0
		}
	}
}

// grow gives a full shard a sixth more buckets, rounded up to what the allocator hands out anyway.
func (t *table) grow(a *arena, s *shard) {
	t.gather(a, s)
	s.size(max(len(s.buckets)+1, len(s.buckets)*7/6))
	for i, m := range t.mixed {
		s.put(m, t.ids[i])
	}
}

// split moves about half the keys of the next shard in turn to a new one.
func (t *table) split(a *arena) {
	if t.count%dirLen == 0 {
		t.dir = append(t.dir, new([dirLen]shard))
	}
	from, to := t.shard(t.count-1<<t.level), t.shard(t.count)
	t.gather(a, from)
	moves := 0
	for _, m := range t.mixed {
		moves += int(m >> t.level & 1)
	}
	to.size(bucketsFor(moves))
	from.size(bucketsFor(len(t.mixed) - moves))
	t.count++
	if t.count == 2<<t.level {
		t.level++
	}
	for i, m := range t.mixed {
		t.shard(t.address(m)).put(m, t.ids[i])
	}
}

// gather collects the ids of a shard and, in a loop of its own so that the cache misses overlap, their
// mixed keys.
func (t *table) gather(a *arena, s *shard) {
	t.ids, t.mixed = t.ids[:0], t.mixed[:0]
	for i := range s.buckets {
		b := &s.buckets[i]
		for _, slot := range b[1 : 1+b[0]&15] {
			t.ids = append(t.ids, slot&idMask)
		}
	}
	for _, id := range t.ids {
		t.mixed = append(t.mixed, a.at(id).key(t.at))
	}
	for i, key := range t.mixed {
		t.mixed[i] = mix(key)
	}
}

// bucketsFor is how many buckets hold n keys and the next one.
func bucketsFor(n int) int { return (n+1)*8/(7*bucketKeys) + 1 }

// size makes a shard empty, with at least n buckets.
func (s *shard) size(n int) {
	fresh := append([]bucket(nil), make([]bucket, n)...)
	s.buckets, s.n = fresh[:cap(fresh)], 0
}
