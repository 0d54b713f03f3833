package decodelog

// nearShare is how near to a limit a step counts as near.
const nearShare = 0.2

// allowed says whether a step is within the limits, else why not, and keeps count of those at the limits. Prefill in
// between lengthens what is told as a step, whatever decode steps take, and is not counted.
func (st *state) allowed(step float64, prefill bool) (reason, bool) {
	count := func(n *int64) {
		if !prefill {
			*n++
		}
	}
	shortest, longest := &st.rep.Shortest, &st.rep.Longest
	switch {
	case !(step >= shortest.Step):
		count(&shortest.Beyond)
		return leftShort, false
	case !(step <= longest.Step):
		count(&longest.Beyond)
		return leftLong, false
	case step < shortest.Step/(1-nearShare):
		count(&shortest.Near)
	case step > longest.Step*(1-nearShare):
		count(&longest.Near)
	}
	return 0, true
}

// steady is for how many lines a share that is told has to be the same to be taken as the same in truth, too.
const steady = 20

// shares remembers whether a rank's share of the pool changes. The rounding of one that does not is the same in all
// lines and moves no slope; of one that does it is an error of its own in every line, uniform over a unit.
type shares struct {
	last  float64
	known bool
	left  int // lines for which the last change still counts
}

// change takes in the next share and says whether it changes.
func (s *shares) change(share float64) bool {
	if s.known && share != s.last {
		s.left = steady + 1
	}
	s.last, s.known = share, true
	s.left = max(s.left-1, 0)
	return s.left > 0
}

// noteUnused names inputs that gave nothing, as of a pattern that matches other files, too; empty ones are told already.
func (st *state) noteUnused(sources []*source) {
	n, first := 0, ""
	for _, s := range sources {
		if s.chain < 0 && s.raw.N > 0 {
			if n++; n == 1 {
				first = s.name
			}
		}
	}
	switch {
	case n == 1:
		st.note("%s has no line that can be used", first)
	case n > 1:
		st.note("%d inputs have no line that can be used, the first is %s", n, first)
	}
}

// goesOn says whether s can be what d was rotated to: some rank prints in both. Files of single ranks are named alike, too.
func (s *source) goesOn(d *source) bool {
	for _, e := range s.entries[s.head-1:] { // the first one is being handed over
		if d.printed(e.Rank) {
			return true
		}
	}
	return false
}

// printed says whether a rank gave a sample.
func (s *source) printed(rank int32) bool {
	i := int(rank) + 1
	return i < len(s.ranks) && s.ranks[i] != nil && s.ranks[i].given
}
