package index

// batchLen is how many keys a table looks for at a time: enough to overlap their cache misses, few
// enough that what the first of them fetched is still near when the last has been dealt with.
const batchLen = 32

// probe is a key looked for in a table, the key mixed, and the id found for it, 0: none.
type probe struct {
	key, mixed uint64
	id         uint32
}

// aims are the home buckets of a batch. They live on the stack, where a pointer costs no write barrier,
// and are void once the table changes.
type aims [batchLen]*bucket

// Looking for a batch takes four steps, each a loop of its own over all keys. A loop that waits for no
// memory but what it loads itself has as many misses under way at once as the processor can; one loop
// over all steps would wait for each key three times in a row: shard, bucket, entry.

// aim mixes the keys and works out where they belong.
func (t *table) aim(ps []probe, at *aims) {
	for i := range ps {
		p := &ps[i]
		m := mix(p.key)
		p.mixed = m
		s := t.shard(m)
		at[i%batchLen] = s.bucket(s.home(m))
	}
}

// touch brings the first n buckets into the cache. The sum only keeps it from being optimised away.
func (at *aims) touch(n int) (sum uint32) {
	for _, b := range at[:n] {
		sum += b[0]
	}
	return sum
}

// settle finds the entries of the keys: first whatever has their marks, which is a stranger for one key
// in ten, then, without a look at any key in between, what has their keys.
func (t *table) settle(a *arena, ps []probe, at *aims) {
	var sum uint32
	for i := range ps {
		if b := at[i%batchLen]; b[0]>>pastShift != 0 {
			s := t.shard(ps[i].mixed)
			sum += s.bucket(s.after(s.home(ps[i].mixed)))[0]
		}
	}
	t.sink += sum
	t.like = t.like[:0]
	for i := range ps {
		ps[i].id = 0
		b := at[i%batchLen]
		for c := b.like(ps[i].mixed); c != 0; c &= c - 1 {
			t.like = append(t.like, likeness{b.slot(c) & idMask, uint32(i)})
		}
		if b[0]>>pastShift != 0 {
			t.beyond(ps[i].mixed, uint32(i))
		}
	}
	for _, l := range t.like {
		if p := &ps[l.probe]; l.id != 0 && a.at(l.id).key(t.at) == p.key {
			p.id = l.id // at most one entry has the key
		}
	}
}

// likeness is an entry that may have the key of a probe.
type likeness struct{ id, probe uint32 }

// beyond lists what has the mark of a key past its home bucket.
func (t *table) beyond(m uint64, probe uint32) {
	s := t.shard(m)
	i := s.home(m)
	for range s.size - 1 {
		i = s.after(i)
		b := s.bucket(i)
		for c := b.like(m); c != 0; c &= c - 1 {
			t.like = append(t.like, likeness{b.slot(c) & idMask, probe})
		}
		if b[0]>>pastShift == 0 {
			return
		}
	}
}
