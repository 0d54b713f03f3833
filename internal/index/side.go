package index

// sideTable is the table of one target's handles that are not the primary handle of their block:
// handle -> entry id and the tiers in which the engine announced it. Twelve bytes a slot.
//
// Handles are spread over sideShards by hash, each shard probes linearly; a removal shifts back what
// follows, which is cheap here because the keys are at hand. A full shard grows by an eighth, so
// the load lies between 0.78 and 0.88 and the worst insertion moves the handles of one shard, 1/sideShards
// of the target's.
type sideTable struct {
	shards [sideShards]sideShard
	n      int
}

const sideShards = 256

type sideShard struct {
	keys []Handle
	vals []uint32 // 0: free; else tiers<<idBits | id
	n    int
}

func sideVal(id uint32, m tiers) uint32 { return uint32(m)<<idBits | id }

func (s *sideShard) home(m uint64) int { return int(m >> 32 * uint64(len(s.keys)) >> 32) }

// find returns the shard and slot of a handle, and its value, 0 if it is not there.
func (t *sideTable) find(h Handle) (s *sideShard, slot int, val uint32) {
	m := mix(uint64(h))
	s = &t.shards[m%sideShards]
	if len(s.keys) == 0 {
		return s, 0, 0
	}
	for i := s.home(m); s.vals[i] != 0; {
		if s.keys[i] == h {
			return s, i, s.vals[i]
		}
		if i++; i == len(s.keys) {
			i = 0
		}
	}
	return s, 0, 0
}

// get returns the entry and tiers of a handle; the tiers are empty if it is not there. A nil table is empty.
func (t *sideTable) get(h Handle) (id uint32, m tiers) {
	if t == nil {
		return 0, 0
	}
	_, _, v := t.find(h)
	return v & idMask, tiers(v >> idBits)
}

// touch brings the home of a handle, mixed, into the cache; see table.touch.
func (t *sideTable) touch(m uint64) uint32 {
	s := &t.shards[m%sideShards]
	if len(s.keys) == 0 {
		return 0
	}
	i := s.home(m)
	return s.vals[i] + uint32(s.keys[i])
}

// set changes the tiers of a handle that is there.
func (t *sideTable) set(h Handle, m tiers) {
	s, i, v := t.find(h)
	s.vals[i] = sideVal(v&idMask, m)
}

// insert adds a handle that is not there.
func (t *sideTable) insert(h Handle, id uint32, m tiers) {
	hash := mix(uint64(h))
	s := &t.shards[hash%sideShards]
	if (s.n+1)*8 > len(s.keys)*7 {
		s.grow()
	}
	s.put(hash, h, sideVal(id, m))
	t.n++
}

func (s *sideShard) put(hash uint64, h Handle, v uint32) {
	i := s.home(hash)
	for s.vals[i] != 0 {
		if i++; i == len(s.keys) {
			i = 0
		}
	}
	s.keys[i], s.vals[i] = h, v
	s.n++
}

func (s *sideShard) grow() {
	keys, vals := s.keys, s.vals
	fresh := append([]uint32(nil), make([]uint32, max(8, len(keys)*9/8+1))...)
	s.vals = fresh[:cap(fresh)]
	s.keys = make([]Handle, len(s.vals))
	s.n = 0
	for i, v := range vals {
		if v != 0 {
			s.put(mix(uint64(keys[i])), keys[i], v)
		}
	}
}

// remove takes out a handle that is there.
func (t *sideTable) remove(h Handle) {
	s, hole, _ := t.find(h)
	n := len(s.keys)
	for i := hole; ; {
		if i++; i == n {
			i = 0
		}
		if s.vals[i] == 0 {
			break
		}
		// What stands at i may move into the hole unless its home lies between the two.
		home := s.home(mix(uint64(s.keys[i])))
		if (i-home+n)%n >= (i-hole+n)%n {
			s.keys[hole], s.vals[hole] = s.keys[i], s.vals[i]
			hole = i
		}
	}
	s.keys[hole], s.vals[hole] = 0, 0
	s.n--
	t.n--
}
