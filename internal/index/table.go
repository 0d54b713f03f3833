package index

import (
	"math/bits"
	"unsafe"
)

// table finds the entries of an arena by one of their keys. It stores ids only, four bytes each: seven
// bits of the hash beside the 26 of the id tell most strangers apart without a look at the arena.
//
// Keys are spread over shards, shards are arrays of buckets of one cache line. A key lies in its home
// bucket or, where that was full, in the next with room; each bucket counts the keys that went past it,
// so a search stops at the first bucket that nothing went past, and a removal leaves no marker behind.
//
// A bucket is a head and 15 slots. The head holds, from bit 0, the number of slots in use (4 bits), the
// seventh bit of the mark of each slot (those of slots 2, 4 ... 14, then of 1, 3 ... 15), and how many
// keys went past (13 bits, sticking at the largest). A slot holds six bits of mark and the id.
//
// Invariants:
//
//	T1  slots 1..n of a bucket are in use, n = head & 15; the others are zero.
//	T2  a bucket counts the keys whose home is at or before it and which lie after it, or maxPast.
//	T3  a shard has at least one bucket and is filled to 7/8 at most.
//	T4  a key is in shard address(mix(key)), under the mark of mix(key).
//
// Nothing is ever hashed anew as a whole: a shard grows by a sixth when it is full, and shards are
// split one at a time (linear hashing) to keep about shardKeys in each. The worst single insertion
// moves 2 x shardKeys ids. Memory is 4.27 bytes a slot at a load between 0.75 and 0.88.
//
// Callers mix the key once and pass the mixed form, m, along. Those with several keys look for them
// together, see batch.go.
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
	like  []likeness
	sink  uint32 // keeps touches from being optimised away
}

// shard is 16 bytes, so that those of millions of keys stay in the nearer caches: a slice would be 24
// and a counter.
type shard struct {
	first *bucket // of an array of size
	size  uint32
	n     uint32
}

type bucket [16]uint32

const (
	bucketKeys = 15
	shardKeys  = 512
	dirLen     = 256
	idBits     = 26
	idMask     = 1<<idBits - 1
	pastShift  = 19
	maxPast    = 1<<13 - 1
)

func newTable(at int) table {
	t := table{at: at, dir: []*[dirLen]shard{new([dirLen]shard)}, count: 1}
	t.dir[0][0].reset(1)
	return t
}

// Of a mixed key the low bits choose the shard, bits 20 to 26 mark the slot, the high half chooses the
// bucket.
const markShift = 20

func mark(m uint64) uint32 { return uint32(m>>markShift) << idBits } // as it stands in a slot

func seventh(m uint64) uint32 { return uint32(m >> (markShift + 6) & 1) }

func (t *table) shard(m uint64) *shard {
	i := int(m & (2<<t.level - 1))
	if i >= t.count {
		i -= 1 << t.level
	}
	return t.nth(i)
}

func (t *table) nth(i int) *shard { return &t.dir[uint(i)/dirLen][uint(i)%dirLen] }

func (s *shard) home(m uint64) uint32 { return uint32(m >> 32 * uint64(s.size) >> 32) }

// bucket returns the i-th bucket, i < s.size.
func (s *shard) bucket(i uint32) *bucket {
	return (*bucket)(unsafe.Add(unsafe.Pointer(s.first), uintptr(i)*unsafe.Sizeof(bucket{})))
}

func (s *shard) after(i uint32) uint32 {
	if i++; i == s.size {
		return 0
	}
	return i
}

func (s *shard) full() bool { return (s.n+1)*8 > s.size*bucketKeys*7 }

// like returns the slots that have the mark of a mixed key, and perhaps empty ones: bit j/2 for an even
// slot j, bit 32+j/2 for an odd one. It compares two slots at a time and never branches: the number of
// slots in use differs from bucket to bucket, so a loop over them is mispredicted nearly every time.
func (b *bucket) like(m uint64) uint64 {
	const both = 1<<32 | 1
	want := m >> markShift & 63 << idBits * both
	bit := m >> (markShift + 6) & 1
	equal := pair(b[0], b[1], want) >> 7
	equal |= pair(b[2], b[3], want) >> 6
	equal |= pair(b[4], b[5], want) >> 5
	equal |= pair(b[6], b[7], want) >> 4
	equal |= pair(b[8], b[9], want) >> 3
	equal |= pair(b[10], b[11], want) >> 2
	equal |= pair(b[12], b[13], want) >> 1
	equal |= pair(b[14], b[15], want)
	head := uint64(b[0])
	sevenths := head>>3&0xff | head>>11&0xff<<32
	return equal >> 24 &^ (sevenths ^ bit*0xff*both) &^ 1
}

// pair has the highest bit of the lower half set if the mark of slot even is the wanted one, and
// likewise of the upper half for slot odd.
func pair(even, odd uint32, want uint64) uint64 {
	const tops = 1<<63 | 1<<31
	return (tops - (uint64(even)|uint64(odd)<<32^want)>>1&(tops-tops>>6)) & tops
}

// slot returns the first of the slots that like gave.
func (b *bucket) slot(c uint64) uint32 { return b[slotOf(c)] }

func slotOf(c uint64) uint32 {
	k := uint32(bits.TrailingZeros64(c))
	return (k<<1 | k>>5) & 15
}

// seventhAt is where the head keeps the seventh bit of a slot.
func seventhAt(j uint32) uint32 { return 3 + j>>1 + j&1<<3 }

// find returns the id of the entry with the key, 0 if there is none.
func (t *table) find(a *arena, m, key uint64) uint32 {
	s := t.shard(m)
	mk, bit := mark(m), seventh(m)
	i := s.home(m)
	for range s.size {
		b := s.bucket(i)
		head := b[0]
		for j := uint32(1); j <= head&15; j++ { // for one key that is there, sooner done than like
			if slot := b[j&15]; slot&^idMask == mk && head>>seventhAt(j)&1 == bit {
				if id := slot & idMask; a.at(id).key(t.at) == key {
					return id
				}
			}
		}
		if b[0]>>pastShift == 0 {
			return 0
		}
		i = s.after(i)
	}
	return 0
}

// insert adds an entry whose key is not in the table.
func (t *table) insert(a *arena, m uint64, id uint32) {
	s := t.shard(m)
	if s.full() {
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
	b := s.bucket(i)
	for b[0]&15 == bucketKeys {
		if b[0]>>pastShift < maxPast {
			b[0] += 1 << pastShift
		}
		i = s.after(i)
		b = s.bucket(i)
	}
	b[0]++
	j := b[0] & 15
	b[j] = mark(m) | id
	b[0] = b[0]&^(1<<seventhAt(j)) | seventh(m)<<seventhAt(j)
	s.n++
}

// remove takes out an entry that is in the table.
func (t *table) remove(m uint64, id uint32) {
	s := t.shard(m)
	want := mark(m) | id
	for i := s.home(m); ; i = s.after(i) {
		b := s.bucket(i)
		for c := b.like(m); c != 0; c &= c - 1 {
			if j := slotOf(c); b[j] == want {
				b.clear(j)
				s.n--
				t.n--
				return
			}
		}
		if b[0]>>pastShift < maxPast {
			b[0] -= 1 << pastShift // it went past here
		}
	}
}

// clear frees a slot by moving the last one there.
func (b *bucket) clear(j uint32) {
	n := b[0] & 15
	b[j] = b[n]
	b[n] = 0
	b[0] = b[0]&^(1<<seventhAt(j)) | b[0]>>seventhAt(n)&1<<seventhAt(j)
	b[0]--
}

// grow gives a full shard a sixth more buckets, rounded up to what the allocator hands out anyway.
func (t *table) grow(a *arena, s *shard) {
	t.gather(a, s)
	s.reset(max(int(s.size)+1, int(s.size)*7/6))
	for i, m := range t.mixed {
		s.put(m, t.ids[i])
	}
}

// split moves about half the keys of the next shard in turn to a new one.
func (t *table) split(a *arena) {
	if t.count%dirLen == 0 {
		t.dir = append(t.dir, new([dirLen]shard))
	}
	from, to := t.nth(t.count-1<<t.level), t.nth(t.count)
	t.gather(a, from)
	moves := 0
	for _, m := range t.mixed {
		moves += int(m >> t.level & 1)
	}
	to.reset(bucketsFor(moves))
	from.reset(bucketsFor(len(t.mixed) - moves))
	t.count++
	if t.count == 2<<t.level {
		t.level++
	}
	for i, m := range t.mixed {
		t.shard(m).put(m, t.ids[i])
	}
}

// gather collects the ids of a shard and, in a loop of its own so that the cache misses overlap, their
// mixed keys.
func (t *table) gather(a *arena, s *shard) {
	t.ids, t.mixed = t.ids[:0], t.mixed[:0]
	for i := range s.size {
		b := s.bucket(i)
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

// reset makes a shard empty, with at least n buckets.
func (s *shard) reset(n int) {
	fresh := append([]bucket(nil), make([]bucket, n)...)
	fresh = fresh[:cap(fresh)]
	*s = shard{first: &fresh[0], size: uint32(len(fresh))}
}
