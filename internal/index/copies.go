package index

import "math"

// copies counts, by tier, how many more times than once a handle was announced by stores that are Counted.
type copies [NumTiers]uint32

// copied notes one more copy of a handle that is in the tier. As a handle has at most one entry, copies
// take no more memory than handles do.
func (m *mirror) copied(h Handle, t Tier) {
	if m.copies == nil {
		m.copies = map[Handle]copies{}
	}
	if c := m.copies[h]; c[t] < math.MaxUint32 {
		c[t]++
		m.copies[h] = c
		m.spare++
	}
}

// uncopied takes one copy beyond the first away, if there is one.
func (m *mirror) uncopied(h Handle, t Tier) bool {
	if len(m.copies) == 0 {
		return false
	}
	c := m.copies[h]
	if c[t] == 0 {
		return false
	}
	m.spare--
	if c[t]--; c == (copies{}) {
		delete(m.copies, h)
	} else {
		m.copies[h] = c
	}
	return true
}

// forgetCopies is for a handle that comes to mean something else, or nothing.
func (m *mirror) forgetCopies(h Handle) {
	if len(m.copies) == 0 {
		return
	}
	for _, n := range m.copies[h] {
		m.spare -= int(n)
	}
	delete(m.copies, h)
}
