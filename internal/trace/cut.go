package trace

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/zeebo/xxh3"
)

// CutOptions says which requests to keep: those that fit all that is set.
type CutOptions struct {
	From, To         int           // requests by arrival, from 0, To not included; To 0: to the end
	FromTime, ToTime time.Duration // arrivals since the start, ToTime not included; ToTime 0: to the end
	Sessions         []string      // these sessions only
	FirstSessions    int           // the first sessions by their first request; 0: all
	MaxInput         int64         // sessions (or requests outside of any) with a longer prompt are left out; 0: none
	MinLen, MaxLen   int           // sessions with fewer or more requests are left out; 0: no bound
}

// Cut returns the requests that fit opt, with the blocks and sessions they use. The first arrives at 0.
// It is an error if none is left, or a session named is not there.
func Cut(w *Workload, opt CutOptions) (*Workload, error) {
	if opt.From < 0 || opt.To < 0 || opt.To != 0 && opt.To <= opt.From {
		return nil, &Error{File: w.Name, Why: fmt.Sprintf("requests %d to %d are no range", opt.From, opt.To)}
	}
	if opt.FromTime < 0 || opt.ToTime < 0 || opt.ToTime != 0 && opt.ToTime <= opt.FromTime {
		return nil, &Error{File: w.Name, Why: fmt.Sprintf("times %v to %v are no range", opt.FromTime, opt.ToTime)}
	}
	bySession := len(opt.Sessions) > 0 || opt.FirstSessions > 0
	if len(w.Sessions) == 0 && (bySession || opt.MinLen > 0 || opt.MaxLen > 0) {
		return nil, &Error{File: w.Name, Why: "there are no sessions to go by", Hint: "cut this trace by requests or by time"}
	}
	keep, err := w.sessionsKept(opt)
	if err != nil {
		return nil, err
	}
	out := w.subset(func(i int) bool {
		q := &w.Requests[i]
		at := time.Duration(q.Arrival) * time.Microsecond
		switch {
		case i < opt.From, opt.To != 0 && i >= opt.To:
			return false
		case at < opt.FromTime, opt.ToTime != 0 && at >= opt.ToTime:
			return false
		case q.Session >= 0:
			return keep[q.Session]
		}
		return !bySession && (opt.MaxInput == 0 || q.Input <= opt.MaxInput)
	})
	if len(out.Requests) == 0 {
		return nil, &Error{
			File: w.Name, Why: "no request is left after the cut",
			Hint: fmt.Sprintf("the trace has %d requests over %v and %d sessions", len(w.Requests), w.Duration(), len(w.Sessions)),
		}
	}
	out.order(1)
	return out, nil
}

// Duration returns the time from the first arrival to the last.
func (w *Workload) Duration() time.Duration {
	if len(w.Requests) == 0 {
		return 0
	}
	return time.Duration(w.Requests[len(w.Requests)-1].Arrival) * time.Microsecond
}

// sessionsKept returns which sessions fit.
func (w *Workload) sessionsKept(opt CutOptions) ([]bool, error) {
	keep := make([]bool, len(w.Sessions))
	if len(opt.Sessions) == 0 {
		for i := range keep {
			keep[i] = true
		}
	}
	for _, name := range opt.Sessions {
		k := slices.Index(w.Sessions, name)
		if k < 0 {
			return nil, &Error{
				File: w.Name, Why: fmt.Sprintf("there is no session %q", name),
				Hint: fmt.Sprintf("the trace has %d sessions", len(w.Sessions)),
			}
		}
		keep[k] = true
	}
	count := make([]int, len(w.Sessions))
	for i := range w.Requests {
		q := &w.Requests[i]
		if q.Session < 0 {
			continue
		}
		count[q.Session]++
		if opt.MaxInput != 0 && q.Input > opt.MaxInput {
			keep[q.Session] = false
		}
	}
	left := opt.FirstSessions
	for i, n := range count {
		if n < opt.MinLen || opt.MaxLen != 0 && n > opt.MaxLen {
			keep[i] = false
		}
		if keep[i] && opt.FirstSessions > 0 {
			keep[i] = left > 0
			left--
		}
	}
	return keep, nil
}

// MergeOptions says how to put traces together.
type MergeOptions struct {
	Shift  []time.Duration // start of each trace; missing: 0
	Shared bool            // equal blocks and sessions of different traces are the same ones; else each trace keeps to itself
}

// Merge puts traces that run at the same time together. Their block sizes must agree, where they have
// blocks. Requests of equal arrival keep the order of the traces.
func Merge(ws []*Workload, opt MergeOptions) (*Workload, error) {
	if len(ws) == 0 {
		return nil, &Error{Why: "no trace given"}
	}
	out := &Workload{Name: ws[0].Name, Format: ws[0].Format}
	l := loader{w: out, b: newForestBuilder(), index: map[string]int32{}}
	var rec Record
	var tokens []uint32
	for k, w := range ws {
		if w.Format != out.Format {
			out.Format = "mixed"
		}
		root := block.Root
		if k > 0 && !opt.Shared {
			root = mergeRoot(k)
			clear(l.index)
		}
		shift := int64(0)
		if k < len(opt.Shift) {
			shift = int64(opt.Shift[k] / time.Microsecond)
		}
		if w.BlockSize != 0 && out.BlockSize != 0 && w.BlockSize != out.BlockSize {
			return nil, &Error{
				File: w.Name, Why: fmt.Sprintf("it has blocks of %d tokens, %s has %d", w.BlockSize, ws[0].Name, out.BlockSize),
				Hint: "traces with different block sizes cannot be merged",
			}
		}
		for i := range w.Requests {
			tokens = w.record(i, &rec, tokens)
			if rec.Arrival += shift; rec.Arrival > maxArrival {
				return nil, &Error{
					File: w.Name, Why: fmt.Sprintf("a shift of %v makes arrivals later than %v µs", opt.Shift[k], int64(maxArrival)),
				}
			}
			if root != block.Root {
				for j, h := range rec.Blocks {
					rec.Blocks[j] = chain(root, uint64(h))
				}
			}
			if err := l.add(&rec); err != nil {
				return nil, asError(err, w.Name, 0)
			}
		}
	}
	if len(out.Requests) == 0 {
		return nil, &Error{Why: "there are no requests in the traces"}
	}
	out.Forest = l.b.finish()
	out.uniqueSessions()
	out.order(1)
	return out, nil
}

// mergeRoot sets the blocks of the k-th trace apart.
func mergeRoot(k int) block.Hash {
	var b [16]byte
	copy(b[:], "merge   ")
	binary.LittleEndian.PutUint64(b[8:], uint64(k))
	return block.Hash(xxh3.Hash(b[:]))
}

// uniqueSessions tells sessions of the same name apart.
func (w *Workload) uniqueSessions() {
	seen := make(map[string]bool, len(w.Sessions))
	for i, name := range w.Sessions {
		for k := i; seen[name]; k++ {
			name = fmt.Sprintf("%s#%d", w.Sessions[i], k)
		}
		seen[name] = true
		w.Sessions[i] = name
	}
}

// record fills rec with request i, as a reader would have given it. The blocks are in rec's own memory.
func (w *Workload) record(i int, rec *Record, tokens []uint32) []uint32 {
	q := &w.Requests[i]
	*rec = Record{
		Arrival: q.Arrival, Input: q.Input, Output: q.Output, Blocks: w.Path(q.Leaf, rec.Blocks[:0]),
		BlockSize: w.BlockSize, Line: i + 1,
	}
	switch {
	case q.Even != 0:
		rec.Even, rec.BlockSize = true, int(q.Even)
	case w.Forest.CumTokens != nil && q.Leaf != NoNode:
		tokens = w.Forest.tokens(q.Leaf, tokens)
		rec.BlockTokens = tokens
	case w.Forest.CumTokens != nil:
		rec.BlockTokens = []uint32{}
	}
	if q.Session >= 0 {
		rec.Session = w.Sessions[q.Session]
	}
	if w.IDs != nil {
		rec.ID = w.IDs[i]
	}
	return tokens
}
