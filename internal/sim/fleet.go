package sim

import (
	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/trace"
)

// fleet is the engines' side of a run. What happens in it is reported to the run, at the current time.
type fleet interface {
	// next is the time of the next effect, engine.Forever if none is due.
	next() int64
	// finish brings about the effects due now.
	finish()
	// prefill hands request i to its first worker, decode to its second one, with its KV. They report
	// false if the request can never fit there.
	prefill(i int32) bool
	decode(i int32) bool
	// hits is the length of the leading run of a path that a worker holds.
	hits(worker int, leaf trace.NodeID) int
	// start lets workers begin new work, after everything else that happens now.
	start()
	// kill ends a worker and sets done of the requests in it.
	kill(worker int)
}

// Kinds of a serial fleet's events.
const (
	evPrefilled uint8 = iota
	evEnd
)

// serialFleet runs engine.Serial workers, whose clock counts microseconds.
type serialFleet struct {
	s       *run
	workers []*engine.Serial
	events  heap
	seq     uint64
}

func newSerialFleet(s *run) *serialFleet {
	f := &serialFleet{s: s}
	for w := range s.cfg.fleetSize() {
		f.workers = append(f.workers, engine.NewSerial(engine.SerialCost{
			PrefillUS: s.cfg.Serial.PrefillUSPerToken, DecodeUS: s.cfg.Serial.DecodeUSPerToken,
			Speed: engine.SpeedOf(s.speed(w)),
		}, s.w.Forest, s.cfg.Capacity))
	}
	return f
}

func (f *serialFleet) next() int64 {
	if len(f.events) == 0 {
		return engine.Forever
	}
	return f.events[0].at
}

func (f *serialFleet) push(at int64, i int32, kind uint8) {
	f.seq++
	f.events.push(event{at: at, key: f.seq, req: i, attempt: f.s.reqs[i].attempt, kind: kind})
}

func (f *serialFleet) finish() {
	e := f.events.pop()
	if f.s.reqs[e.req].attempt != e.attempt {
		return // sent again since
	}
	switch {
	case e.kind == evEnd:
		f.s.finished(e.req)
	case f.s.cfg.disaggregated():
		f.s.prefilled(e.req)
	default:
		f.s.firstToken(e.req)
	}
}

// touch puts a prompt into a worker's cache and tells the mirror.
func (f *serialFleet) touch(worker int, i int32) {
	hits, stored, evicted := f.workers[worker].Touch(f.s.w.Requests[i].Leaf)
	f.s.mirror.note(f.s.now, worker, false, stored)
	f.s.mirror.note(f.s.now, worker, true, evicted)
	f.s.admitted(i, worker, hits)
}

func (f *serialFleet) prefill(i int32) bool {
	s := f.s
	q, st := &s.w.Requests[i], &s.reqs[i]
	w := f.workers[st.worker[0]]
	hits := w.Hits(q.Leaf)
	start, finish := w.Prefill(s.now, q.Input-s.w.PrefixTokens(q, hits)+st.done)
	if st.start < 0 {
		st.start = start
	}
	st.from = finish
	f.touch(int(st.worker[0]), i)
	f.push(finish, i, evPrefilled)
	if !s.cfg.disaggregated() {
		st.until = w.Decode(finish, q.Output-st.done)
		f.push(st.until, i, evEnd)
	}
	return true
}

func (f *serialFleet) decode(i int32) bool {
	s := f.s
	st := &s.reqs[i]
	st.from = s.now
	st.until = f.workers[st.worker[1]].Decode(s.now, s.w.Requests[i].Output-st.done)
	f.touch(int(st.worker[1]), i)
	s.firstToken(i)
	f.push(st.until, i, evEnd)
	return true
}

func (f *serialFleet) hits(worker int, leaf trace.NodeID) int { return f.workers[worker].Hits(leaf) }

func (f *serialFleet) start() {}

func (f *serialFleet) kill(worker int) {
	s := f.s
	for i := range s.routed {
		st := &s.reqs[i]
		if !st.on(worker) || (st.phase == phasePrefill && s.cfg.disaggregated()) || s.now < st.from || st.until <= st.from {
			continue // nothing produced in this attempt
		}
		left := s.w.Requests[i].Output - st.done
		st.done += int64(float64(left) * (float64(s.now-st.from) / float64(st.until-st.from)))
	}
}

// batchFleet runs engine.Batch workers, whose clock counts picoseconds.
type batchFleet struct {
	s       *run
	workers []*engine.Batch
	due     heap // (time, worker); an entry counts if it is its worker's next time
	dirty   []int32
	marked  []bool
}

func newBatchFleet(s *run, p *engine.Profile, capacity, blockSize int64) *batchFleet {
	n := s.cfg.fleetSize()
	f := &batchFleet{s: s, marked: make([]bool, n)}
	for w := range n {
		f.workers = append(f.workers, engine.NewBatch(engine.BatchConfig{
			Worker: w, Cost: p.Cost().Scale(s.speed(w)), Budget: p.ChunkTokens, MaxRunning: p.MaxRunning,
			Capacity: capacity, BlockSize: blockSize, Forest: s.w.Forest,
			Stepwise: s.stepwise,
		}, (*observer)(s)))
	}
	return f
}

func (f *batchFleet) next() int64 {
	for len(f.due) > 0 {
		if e := &f.due[0]; f.workers[e.key].Next() == e.at {
			return e.at
		}
		f.due.pop()
	}
	return engine.Forever
}

func (f *batchFleet) finish() {
	e := f.due.pop()
	f.workers[e.key].Finish()
	f.mark(int32(e.key))
}

func (f *batchFleet) mark(worker int32) {
	if !f.marked[worker] {
		f.marked[worker] = true
		f.dirty = append(f.dirty, worker)
	}
}

func (f *batchFleet) wake(worker int32) {
	if at := f.workers[worker].Next(); at != engine.Forever {
		f.due.push(event{at: at, key: uint64(worker)})
	}
}

func (f *batchFleet) prefill(i int32) bool {
	q, st := &f.s.w.Requests[i], &f.s.reqs[i]
	job := engine.Job{ID: i, Leaf: q.Leaf, Input: q.Input, Output: q.Output, Even: int64(q.Even), Done: st.done}
	if f.s.cfg.disaggregated() {
		job.Output = st.done + 1 // the rest is for the decode worker
	}
	return f.submit(st.worker[0], job)
}

func (f *batchFleet) decode(i int32) bool {
	q, st := &f.s.w.Requests[i], &f.s.reqs[i]
	return f.submit(st.worker[1], engine.Job{
		ID: i, Leaf: q.Leaf, Input: q.Input, Output: q.Output, Even: int64(q.Even),
		Done: st.done, Transferred: true,
	})
}

func (f *batchFleet) submit(worker int32, job engine.Job) bool {
	b := f.workers[worker]
	before := b.Next()
	if !b.Submit(f.s.now, job) {
		return false
	}
	if b.Next() != before {
		f.wake(worker)
	}
	f.mark(worker)
	return true
}

func (f *batchFleet) hits(worker int, leaf trace.NodeID) int { return f.workers[worker].Hits(leaf) }

func (f *batchFleet) start() {
	for _, w := range f.dirty {
		f.marked[w] = false
		if f.workers[w].Next() == engine.Forever {
			f.workers[w].Start(f.s.now)
			f.wake(w)
		}
	}
	f.dirty = f.dirty[:0]
}

func (f *batchFleet) kill(worker int) {
	for _, j := range f.workers[worker].Kill(f.s.now, nil) {
		f.s.reqs[j.ID].done = j.Done
	}
}

// observer passes on what a batch worker does.
type observer run

func (o *observer) Admitted(worker int, job int32, hits int, again bool) {
	if !again {
		s := (*run)(o)
		s.admitted(job, worker, hits)
		if s.reqs[job].phase == phaseDecode {
			s.firstToken(job)
		}
	}
}

func (o *observer) Stored(worker int, nodes []trace.NodeID) {
	o.mirror.note(o.now, worker, false, nodes)
}

func (o *observer) Evicted(worker int, nodes []trace.NodeID) {
	o.mirror.note(o.now, worker, true, nodes)
}

func (o *observer) FirstToken(_ int, job int32) {
	if s := (*run)(o); !s.cfg.disaggregated() {
		s.firstToken(job)
	}
}

func (o *observer) Finished(_ int, job int32) {
	s := (*run)(o)
	if s.cfg.disaggregated() && s.reqs[job].phase == phasePrefill {
		s.reqs[job].done++
		s.prefilled(job)
		return
	}
	s.finished(job)
}

func (o *observer) Preempted(int, int32) { o.preempted++ }
