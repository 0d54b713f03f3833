package trace

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Load reads sources, which together are one trace in the order given, and sorts the requests by
// arrival, stably. The earliest arrival becomes 0. Errors are *Error.
func Load(sources []Source, opt Options) (*Workload, error) {
	if len(sources) == 0 {
		return nil, &Error{File: opt.Name, Why: "no trace given"}
	}
	if opt.Name == "" {
		opt.Name = sources[0].Name
	}
	l := loader{
		opt: opt, sh: newShared(), b: newForestBuilder(), index: map[string]int32{},
		w: &Workload{Name: opt.Name},
	}
	for _, s := range sources {
		if err := l.source(s); err != nil {
			return nil, err
		}
	}
	w := l.w
	if len(w.Requests) == 0 {
		names := make([]string, len(sources))
		for i, s := range sources {
			names[i] = s.Name
		}
		e := &Error{File: strings.Join(names, ", "), Why: "there are no requests in it"}
		if w.Unfinished > 0 {
			e.Why = fmt.Sprintf("there are only requests in it whose answers have no known length (%d)", w.Unfinished)
			e.Hint = "streams tell theirs with serve --stream-usage"
		}
		return nil, e
	}
	w.Forest = l.b.finish()
	if !w.order(opt.Speedup) {
		return nil, &Error{
			File: opt.Name, Why: fmt.Sprintf("a speed-up of %v makes arrivals later than %v µs", opt.Speedup, int64(maxArrival)),
			Hint: "times are divided by it: above 1 is faster, below 1 slower",
		}
	}
	if opt.Limit > 0 && opt.Limit < len(w.Requests) {
		w = w.subset(func(i int) bool { return i < opt.Limit })
	}
	return w, nil
}

// loader is the state of Load.
type loader struct {
	opt   Options
	sh    *shared
	b     *forestBuilder
	w     *Workload
	index map[string]int32 // session numbers by name
}

// source reads one source to its end.
func (l *loader) source(s Source) error {
	opt := l.opt
	opt.Name = s.Name
	r, meta, err := open(s.R, opt.Format, opt, l.sh)
	if err != nil {
		return err
	}
	if l.w.Format == "" || l.w.Format == meta.Format {
		l.w.Format = meta.Format
	} else {
		l.w.Format = "mixed"
	}
	var rec Record
	for {
		err := r.Read(&rec)
		if err == io.EOF {
			if kv, ok := r.(*kvReader); ok {
				l.w.Unfinished += kv.unfinished
			}
			return nil
		}
		if err == nil {
			err = l.add(&rec)
		}
		if err != nil {
			return asError(err, s.Name, rec.Line)
		}
	}
}

// add takes over one record.
func (l *loader) add(rec *Record) error {
	w := l.w
	if len(w.Requests) >= math.MaxInt32 {
		return fmt.Errorf("more than %d requests", math.MaxInt32)
	}
	q := Request{Arrival: rec.Arrival, Input: rec.Input, Output: rec.Output, Leaf: NoNode, Session: -1}
	size := rec.BlockSize
	if rec.Even {
		q.Even, size = uint32(rec.BlockSize), evenBlock
	}
	if size != 0 {
		if w.BlockSize != 0 && w.BlockSize != size {
			return &Error{
				Why:  fmt.Sprintf("blocks of %d tokens here and of %d before", size, w.BlockSize),
				Hint: "traces with different block sizes cannot be one trace",
			}
		}
		w.BlockSize = size
	}
	if len(rec.Blocks) > 0 {
		leaf, err := l.b.add(rec)
		if err != nil {
			return err
		}
		q.Leaf = leaf
	}
	if rec.Session != "" {
		n, ok := l.index[rec.Session]
		if !ok {
			n = int32(len(w.Sessions))
			l.index[rec.Session] = n
			w.Sessions = append(w.Sessions, rec.Session)
		}
		q.Session = n
	}
	if rec.ID != "" && w.IDs == nil {
		w.IDs = make([]string, len(w.Requests))
	}
	if w.IDs != nil {
		w.IDs = append(w.IDs, rec.ID)
	}
	w.Requests = append(w.Requests, q)
	return nil
}

// order sorts by arrival, moves the first to 0, divides times and numbers sessions by their first request.
// It returns false where a time divided would be above maxArrival.
func (w *Workload) order(speedup float64) bool {
	q := w.Requests
	byArrival := func(a, b Request) int {
		switch {
		case a.Arrival < b.Arrival:
			return -1
		case a.Arrival > b.Arrival:
			return 1
		}
		return 0
	}
	if !slices.IsSortedFunc(q, byArrival) {
		if w.IDs == nil {
			slices.SortStableFunc(q, byArrival)
		} else {
			w.sortWithIDs(byArrival)
		}
	}
	first := q[0].Arrival
	for i := range q {
		q[i].Arrival -= first
	}
	if !divideTimes(q, speedup) {
		return false
	}
	w.numberSessions()
	return true
}

func (w *Workload) sortWithIDs(cmp func(a, b Request) int) {
	perm := make([]int32, len(w.Requests))
	for i := range perm {
		perm[i] = int32(i)
	}
	slices.SortStableFunc(perm, func(a, b int32) int { return cmp(w.Requests[a], w.Requests[b]) })
	q, ids := make([]Request, len(perm)), make([]string, len(perm))
	for i, p := range perm {
		q[i], ids[i] = w.Requests[p], w.IDs[p]
	}
	w.Requests, w.IDs = q, ids
}

// divideTimes divides arrivals by an integer division: of milliseconds where all arrivals are whole
// milliseconds, of microseconds otherwise. It returns false where one would be above maxArrival.
func divideTimes(q []Request, speedup float64) bool {
	if speedup == 0 || speedup == 1 {
		return true
	}
	unit := int64(1000)
	for i := range q {
		if q[i].Arrival%1000 != 0 {
			unit = 1
			break
		}
	}
	whole := int64(0)
	if speedup == math.Trunc(speedup) && speedup >= 1 {
		whole = int64(speedup)
	}
	for i := range q {
		t := q[i].Arrival / unit
		if whole > 0 {
			t /= whole
		} else {
			x := float64(t) / speedup
			if x > maxArrival/float64(unit) {
				return false
			}
			t = int64(x)
		}
		q[i].Arrival = t * unit
	}
	return true
}

// numberSessions renumbers the sessions by their first request and drops those without any.
func (w *Workload) numberSessions() {
	if w.Sessions == nil {
		return
	}
	number := make([]int32, len(w.Sessions))
	for i := range number {
		number[i] = -1
	}
	var names []string
	for i := range w.Requests {
		s := &w.Requests[i].Session
		if *s < 0 {
			continue
		}
		if number[*s] < 0 {
			number[*s] = int32(len(names))
			names = append(names, w.Sessions[*s])
		}
		*s = number[*s]
	}
	w.Sessions = names
}

// subset returns the requests for which keep holds, with the blocks and sessions they use.
func (w *Workload) subset(keep func(i int) bool) *Workload {
	out := &Workload{Name: w.Name, Format: w.Format, BlockSize: w.BlockSize, Sessions: w.Sessions, Unfinished: w.Unfinished}
	for i := range w.Requests {
		if !keep(i) {
			continue
		}
		out.Requests = append(out.Requests, w.Requests[i])
		if w.IDs != nil {
			out.IDs = append(out.IDs, w.IDs[i])
		}
	}
	out.Forest = w.Forest.prune(out.Requests)
	out.numberSessions()
	return out
}

// prune returns the blocks that the requests use and points the requests at them.
func (f *Forest) prune(q []Request) *Forest {
	used := make([]bool, len(f.Hash))
	for i := range q {
		for n := q[i].Leaf; n != NoNode && !used[n]; n = f.Parent[n] {
			used[n] = true
		}
	}
	out, to := &Forest{}, make([]NodeID, len(f.Hash))
	for n, u := range used {
		if !u {
			continue
		}
		to[n] = NodeID(len(out.Hash))
		p := f.Parent[n]
		if p != NoNode {
			p = to[p]
		}
		out.Hash = append(out.Hash, f.Hash[n])
		out.Parent = append(out.Parent, p)
		out.Depth = append(out.Depth, f.Depth[n])
		if f.CumTokens != nil {
			out.CumTokens = append(out.CumTokens, f.CumTokens[n])
		}
	}
	for i := range q {
		if q[i].Leaf != NoNode {
			q[i].Leaf = to[q[i].Leaf]
		}
	}
	out.Index()
	return out
}
