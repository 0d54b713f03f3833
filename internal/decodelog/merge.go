package decodelog

import (
	"container/heap"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
)

// merger hands samples of all sources over in the order of time.
type merger struct {
	ctx     context.Context
	st      *state
	sources []*source
	next    queue
	each    func(*Sample) error
	keep    int
	out     Sample
}

func (m *merger) raw() []*Counter {
	var all []*Counter
	for _, s := range m.sources {
		all = append(all, s.raw)
	}
	return all
}

// twice is the error of two sources of the same content, packed or not, whose lines would count twice; nil: there are none.
func (m *merger) twice() *Error {
	seen := map[string]string{}
	for _, s := range m.sources {
		if s.chain < 0 { // no sample is of it
			continue
		}
		sum := string(s.text.sum())
		if other, ok := seen[sum]; ok {
			return &Error{Place: Place{File: s.name}, Why: "holds the same as " + other + ", so that all lines count twice", Hint: "name each log once, packed or not"}
		}
		seen[sum] = s.name
	}
	return nil
}

func (m *merger) run() error {
	for {
		if err := m.gather(); err != nil {
			return err
		}
		for len(m.next) > 0 {
			s := m.next[0]
			if err := m.hand(s); err != nil {
				return err
			}
			if err := m.refill(s); err != nil {
				return err
			}
			if s.head < len(s.entries) {
				heap.Fix(&m.next, 0)
			} else {
				heap.Pop(&m.next)
			}
		}
		if err := m.wait(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// gather fills next with the sources that have samples.
func (m *merger) gather() error {
	m.next = m.next[:0]
	for _, s := range m.sources {
		if err := m.refill(s); err != nil {
			return err
		}
		if s.head < len(s.entries) {
			m.next = append(m.next, s)
		}
	}
	heap.Init(&m.next)
	return nil
}

// queue is a heap of sources that have samples.
type queue []*source

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].before(q[j]) }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push adds a source.
func (q *queue) Push(s any) { *q = append(*q, s.(*source)) }

// Pop takes the last one off.
func (q *queue) Pop() any {
	s := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return s
}

// before says whether the first sample of s comes before that of o. At the same time one that has begun comes first, so
// that a rotated file ends before the one that goes on with it begins.
func (s *source) before(o *source) bool {
	a, b := s.entries[s.head].At, o.entries[o.head].At
	switch begun := s.chain >= 0; {
	case a != b:
		return a < b
	case begun != (o.chain >= 0):
		return begun
	}
	return s.index < o.index
}

// wait is called when no source has a sample. io.EOF: all have ended.
func (m *merger) wait() error {
	idle := false
	for _, s := range m.sources {
		if s.idle {
			idle = true
			s.idle = false
			s.rest()
		}
	}
	if !idle {
		return io.EOF
	}
	if err := m.ctx.Err(); err != nil {
		return err
	}
	for _, s := range m.sources {
		if s.head < len(s.entries) { // rest had one
			return nil
		}
	}
	return m.st.opt.Idle(m.ctx, m.st.snapshot(m.sources))
}

// refill reads on until s has more samples than have to be kept back.
func (m *merger) refill(s *source) error {
	for !s.done && !s.idle && len(s.entries)-s.head <= m.keep {
		if err := s.advance(); err != nil {
			return err
		}
	}
	return nil
}

// hand gives the first sample of s away.
func (m *merger) hand(s *source) error {
	e := &s.entries[s.head]
	s.head++
	if s.chain < 0 {
		m.link(s, e.At)
	}
	s.end = max(s.end, e.At)
	if !m.st.resolve(s, e) {
		return nil
	}
	e.Source = s.chain
	m.st.saw(e.Rank)
	s.rankLog(e.Rank).given = true
	m.st.rep.Used++
	m.out = e.Sample
	return m.each(&m.out)
}

// link finds the source that s goes on from: one of the same name, but for numbers, dates and packing, that ended
// before. With several it is the one that ended last.
func (m *merger) link(s *source, at int64) {
	var from *source
	for _, d := range m.sources {
		if d.done && !d.taken && d.chain >= 0 && d.head == len(d.entries) && d.end <= at && stem(d.name) == stem(s.name) && s.goesOn(d) && (from == nil || d.end > from.end) {
			from = d
		}
	}
	s.chain = s.index
	if from != nil {
		s.chain, from.taken = from.chain, true
	}
}

// stem is a file's name without what rotation puts behind it.
func stem(name string) string {
	for {
		cut := strings.TrimRight(name, "0123456789-_.:T")
		switch ext := filepath.Ext(cut); ext {
		case ".gz", ".zst", ".log", ".txt", ".out", ".old", ".prev", ".previous":
			cut = strings.TrimSuffix(cut, ext)
		}
		if cut == name {
			return name
		}
		name = cut
	}
}
