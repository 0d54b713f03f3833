package score

// turn picks in rotation: round-robin, and new sessions of the session policy. There is one counter
// per role, and candidates come sorted by route key, so that a target that comes or goes moves the
// rotation but never restarts it.
func (s *Scorer) turn(dec *Decision) {
	n := s.turns[dec.Role] % uint64(s.choice.eligible)
	dec.Picked, dec.TieRule = nth(dec.Terms, int(n)), ByTurn
}

// random picks uniformly.
func (s *Scorer) random(dec *Decision) {
	dec.Picked, dec.TieRule = nth(dec.Terms, s.draw(s.choice.eligible)), ByDraw
}

// powerOfTwo draws two different candidates and takes the one with less load (active blocks), the
// first drawn where both are equal.
func (s *Scorer) powerOfTwo(dec *Decision) {
	for i := range dec.Terms {
		dec.Terms[i].Cost = float64(dec.Terms[i].Load.ActiveBlocks)
	}
	n := s.choice.eligible
	if n == 1 {
		dec.Picked, dec.TieRule = nth(dec.Terms, 0), ByOnly
		return
	}
	a, b := s.draw(n), s.draw(n-1)
	if b >= a {
		b++ // the second draw is uniform over the others
	}
	a, b = nth(dec.Terms, a), nth(dec.Terms, b)
	dec.Picked, dec.TieRule = a, ByCost
	switch ca, cb := dec.Terms[a].Cost, dec.Terms[b].Cost; {
	case cb < ca:
		dec.Picked = b
	case ca == cb:
		dec.TieRule = ByDraw
	}
	for i := range dec.Terms {
		if t := &dec.Terms[i]; t.Eligible && i != a && i != b {
			t.Eligible, t.Note = false, noteNotSampled
		}
	}
}

// draw takes a number below n from the generator of this choice; commit keeps the generator's state.
func (s *Scorer) draw(n int) int {
	s.choice.drawn = true
	return s.choice.draws.intn(n)
}

// nth returns the index of the n-th eligible term, n below their number.
func nth(terms []Terms, n int) int {
	for i := range terms {
		if !terms[i].Eligible {
			continue
		}
		if n == 0 {
			return i
		}
		n--
	}
	return -1
}
