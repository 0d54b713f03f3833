package sim

// event is something that happens at a time; equal times go by key, which the owner keeps unique or
// meaningful, so that order never depends on the heap.
type event struct {
	at      int64
	key     uint64
	req     int32
	attempt uint16
	kind    uint8
}

func (e *event) before(o *event) bool {
	return e.at < o.at || (e.at == o.at && e.key < o.key)
}

// heap is a 4-ary min-heap of events.
type heap []event

func (h *heap) push(e event) {
	s := append(*h, e)
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&s[up]) {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = e
	*h = s
}

func (h *heap) pop() event {
	s := *h
	top := s[0]
	last := s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	n := len(s)
	if n == 0 {
		return top
	}
	i := 0
	for {
		least := 4*i + 1
		if least >= n {
			break
		}
		for c, end := least+1, min(least+4, n); c < end; c++ {
			if s[c].before(&s[least]) {
				least = c
			}
		}
		if !s[least].before(&last) {
			break
		}
		s[i] = s[least]
		i = least
	}
	s[i] = last
	return top
}
