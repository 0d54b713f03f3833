package fit

import (
	"cmp"
	"slices"
)

// change is a request beginning or ending to decode on a worker.
type change struct {
	at       int64
	requests float64
	tokens   float64 // jump
	growth   float64 // tokens per ns from here on
	first    int
}

// sweep holds the integrals over time of a worker's requests and tokens at every change, so that means over any
// interval are differences.
type sweep struct {
	times            []int64
	requests, tokens []float64 // integrals up to times[i], x ns
	firsts           []int     // first tokens up to and with times[i]
}

// sweepRank takes the requests of one worker; those without an end last until the end.
func sweepRank(jobs []*job, end int64) *sweep {
	var changes []change
	for _, j := range jobs {
		// An answer that was not streamed, or failed, decodes from some time on that nobody saw: all of it counts.
		from, to, seen := j.first, j.done, 1
		if from < 0 {
			from, seen = j.decided, 0
		}
		if to < 0 {
			to = max(end, from)
		}
		if to <= from {
			continue
		}
		n, growth := float64(j.sequences), 0.0
		if j.output > 0 {
			growth = float64(j.output) / float64(to-from)
		}
		grown := growth * float64(to-from)
		changes = append(changes,
			change{from, n, float64(j.input), growth, seen},
			change{to, -n, -float64(j.input) - grown, -growth, 0})
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	s := &sweep{}
	var sumR, sumT, n, level, growth float64
	firsts, last := 0, int64(0)
	for i, c := range changes {
		if i > 0 {
			d := float64(c.at - last)
			sumR += float64(n * d)
			sumT += float64(level*d) + float64(float64(growth*d)*d)/2
			level += float64(growth * d)
		}
		last = c.at
		n += c.requests
		level += c.tokens
		growth += c.growth
		firsts += c.first
		if n == 0 { // no rest of rounding stays where nothing runs
			level, growth = 0, 0
		}
		if k := len(s.times); k > 0 && s.times[k-1] == c.at {
			s.requests, s.tokens, s.times = s.requests[:k-1], s.tokens[:k-1], s.times[:k-1]
			s.firsts = s.firsts[:k-1]
		}
		s.times = append(s.times, c.at)
		s.requests, s.tokens = append(s.requests, sumR), append(s.tokens, sumT)
		s.firsts = append(s.firsts, firsts)
	}
	return s
}

// at returns the integrals of requests and tokens up to a change's time, and the first tokens seen before it and at it.
func (s *sweep) at(t int64) (requests, tokens float64, firsts int) {
	i, ok := slices.BinarySearch(s.times, t)
	if !ok {
		return 0, 0, 0
	}
	return s.requests[i], s.tokens[i], s.firsts[i]
}
