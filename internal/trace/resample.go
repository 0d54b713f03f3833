package trace

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/zeebo/xxh3"
)

// timeBlocks is the number of blocks of time a trace without sessions is resampled by. Few long ones:
// most reuse happens within a block, and a cut between two loses the rest.
const timeBlocks = 20

// Resample draws a new workload of the same shape: the sessions, or timeBlocks equal blocks of time where
// there are none (of requests, where all of them arrive at once), are drawn with replacement, and the k-th draw starts where the k-th one of w started.
// random gives 64 uniform bits a call.
//
// A session drawn twice must not hit the blocks of its own copy, so later copies get their own blocks,
// except those it shares with others. Requests outside of sessions stay, where there are sessions. The
// forest is a new one of the blocks in use.
func (w *Workload) Resample(random func() uint64) *Workload {
	unit, units := w.units()
	n := len(units)
	private := w.privateBlocks(unit, n)
	out := &Workload{Name: w.Name, Format: w.Format, BlockSize: w.BlockSize}
	f := &Forest{
		Hash: slices.Clone(w.Forest.Hash), Parent: slices.Clone(w.Forest.Parent),
		Depth: slices.Clone(w.Forest.Depth), CumTokens: slices.Clone(w.Forest.CumTokens),
	}
	drawn := make([]bool, n)
	copies := make([]NodeID, len(w.Forest.Hash)) // of private blocks, for the current draw
	for slot := range n {
		u, _ := bits.Mul64(random(), uint64(n))
		src := &units[u]
		copied := drawn[u]
		if copied {
			f.copyBlocks(private[u], copies, uint64(slot))
		}
		drawn[u] = true
		session := int32(-1)
		if len(w.Sessions) > 0 {
			session = int32(slot)
			name := w.Sessions[u]
			if copied {
				name = fmt.Sprintf("%s~%d", name, slot)
			}
			out.Sessions = append(out.Sessions, name)
		}
		for _, i := range src.requests {
			q := w.Requests[i]
			if copied && q.Leaf != NoNode && len(private[u]) > 0 && contains(private[u], q.Leaf) {
				q.Leaf = copies[q.Leaf]
			}
			q.Arrival += units[slot].start - src.start
			q.Session = session
			out.take(w, q, i)
		}
	}
	for i, u := range unit {
		if u < 0 {
			out.take(w, w.Requests[i], int32(i))
		}
	}
	if len(out.Requests) == 0 { // every draw was a block of time in which nothing arrives
		return w
	}
	out.Forest = f.prune(out.Requests)
	out.uniqueSessions() // the name made for a copy may be another session's
	out.order(1)
	return out
}

// take appends a request and its id.
func (w *Workload) take(from *Workload, q Request, i int32) {
	w.Requests = append(w.Requests, q)
	if from.IDs != nil {
		w.IDs = append(w.IDs, from.IDs[i])
	}
}

// resampleUnit is what is drawn: a session or a block of time.
type resampleUnit struct {
	start    int64
	requests []int32
}

// units returns the unit of each request (-1: none, it stays) and the units.
func (w *Workload) units() ([]int32, []resampleUnit) {
	unit := make([]int32, len(w.Requests))
	if len(w.Sessions) > 0 {
		units := make([]resampleUnit, len(w.Sessions))
		for i := range w.Requests {
			q := &w.Requests[i]
			unit[i] = q.Session
			if q.Session < 0 {
				continue
			}
			u := &units[q.Session]
			if len(u.requests) == 0 {
				u.start = q.Arrival
			}
			u.requests = append(u.requests, int32(i))
		}
		return unit, units
	}
	units := make([]resampleUnit, timeBlocks)
	if len(w.Requests) == 0 {
		return unit, units
	}
	each := (w.Requests[len(w.Requests)-1].Arrival + 1) / timeBlocks
	for k := range units {
		units[k].start = int64(k) * each
	}
	for i := range w.Requests {
		k := i * timeBlocks / len(w.Requests) // without times, as many requests each
		if each > 0 {
			k = int(min(w.Requests[i].Arrival/each, timeBlocks-1))
		}
		unit[i] = int32(k)
		units[k].requests = append(units[k].requests, int32(i))
	}
	return unit, units
}

// privateBlocks returns, for each unit, the blocks that no other request uses, parents first.
func (w *Workload) privateBlocks(unit []int32, n int) [][]NodeID {
	const (
		free = -2
		many = -1
	)
	f := w.Forest
	user := make([]int32, len(f.Hash))
	for i := range user {
		user[i] = free
	}
	for i := range w.Requests {
		for b := w.Requests[i].Leaf; b != NoNode; b = f.Parent[b] {
			// All that is above a block of this unit is known to be used by it already; all that is
			// above a block of many is of many.
			if user[b] == many || user[b] == unit[i] && unit[i] >= 0 {
				break
			}
			if user[b] == free && unit[i] >= 0 {
				user[b] = unit[i]
			} else {
				user[b] = many
			}
		}
	}
	private := make([][]NodeID, n)
	for b, u := range user {
		if u >= 0 {
			private[u] = append(private[u], NodeID(b))
		}
	}
	return private
}

// copyBlocks appends copies of blocks, which come parents first, and notes them in copies.
func (f *Forest) copyBlocks(blocks []NodeID, copies []NodeID, mark uint64) {
	for _, b := range blocks {
		n := NodeID(len(f.Hash))
		copies[b] = n
		p := f.Parent[b]
		if p != NoNode && contains(blocks, p) {
			p = copies[p]
		}
		f.Hash = append(f.Hash, copyHash(f.Hash[b], mark))
		f.Parent = append(f.Parent, p)
		f.Depth = append(f.Depth, f.Depth[b])
		if f.CumTokens != nil {
			f.CumTokens = append(f.CumTokens, f.CumTokens[b])
		}
	}
}

// copyHash names the copy of a block made for a draw. The longer input keeps it apart from chain.
func copyHash(h block.Hash, draw uint64) block.Hash {
	var b [24]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(h))
	copy(b[8:16], "copy    ")
	binary.LittleEndian.PutUint64(b[16:], draw)
	return block.Hash(xxh3.Hash(b[:]))
}

// contains tells whether the ascending list has b.
func contains(list []NodeID, b NodeID) bool {
	_, ok := slices.BinarySearch(list, b)
	return ok
}
