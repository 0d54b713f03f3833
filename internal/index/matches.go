package index

// scratch is the working memory of a lookup, kept between lookups.
type scratch struct {
	lowerBuf [NumTiers][]uint32
	mask     []uint64
	todo     []span
}

// span is a stretch of positions in which some targets stop holding the chain; id is the entry at lo.
type span struct {
	lo, hi int32
	id     uint32
}

// reset prepares the answer for n targets: nothing held.
func (m *Matches) reset(n int) {
	if cap(m.Hits) < n {
		m.Hits = make([]uint32, n)
	}
	m.Hits = m.Hits[:n]
	clear(m.Hits)
	m.Lower = [NumTiers][]uint32{}
}

// lower returns the counts of a tier, zero at first.
func (m *Matches) lower(t Tier) []uint32 {
	if m.Lower[t] == nil {
		n := len(m.Hits)
		if cap(m.lowerBuf[t]) < n {
			m.lowerBuf[t] = make([]uint32, n)
		}
		m.Lower[t] = m.lowerBuf[t][:n]
		clear(m.Lower[t])
	}
	return m.Lower[t]
}
