package engine

// ring is a double-ended queue of slots.
type ring struct {
	buf  []int32 // length a power of two
	head int
	n    int
}

func (r *ring) grow() {
	if r.n < len(r.buf) {
		return
	}
	buf := make([]int32, max(16, 2*len(r.buf)))
	for i := range r.n {
		buf[i] = r.buf[(r.head+i)&(len(r.buf)-1)]
	}
	r.buf, r.head = buf, 0
}

func (r *ring) pushBack(v int32) {
	r.grow()
	r.buf[(r.head+r.n)&(len(r.buf)-1)] = v
	r.n++
}

func (r *ring) pushFront(v int32) {
	r.grow()
	r.head = (r.head - 1) & (len(r.buf) - 1)
	r.buf[r.head] = v
	r.n++
}

func (r *ring) front() int32 { return r.buf[r.head] }

func (r *ring) popFront() int32 {
	v := r.buf[r.head]
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.n--
	return v
}
