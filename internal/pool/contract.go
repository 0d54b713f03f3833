// Package pool owns the live state of one model's workers: the mirror of their caches, the ledger of
// what is in flight, and the scorer that chooses between them. Everything that decides happens under
// one short lock, in one order, and that order is what a recording holds.
package pool

import (
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// Recorder is told everything that decisions depend on, in the order in which it took effect. Calls
// come under the pool's lock, one after the other: they must be short and must not call the pool.
type Recorder interface {
	index.Observer
	// Join and Leave: a target comes with its key, page size and role, and goes.
	Join(id target.ID, key target.Key, c score.Candidate)
	Leave(id target.ID)
	// Forget: everything about a target that has left is dropped, its ID may be used again.
	Forget(id target.ID)
	// Pick: a decision, with all that went into it.
	Pick(req *score.Request, cands []score.Candidate, dec *score.Decision)
	// FirstToken, Unbind and Release: what became of the reservation h.
	FirstToken(h load.Handle, at int64)
	Unbind(h load.Handle)
	// Release ends the request; output is the number of tokens of the answer, -1 if it is not known.
	Release(h load.Handle, at int64, output int64)
	// Note is free text about the run: a gap, a changed trust state. It decides nothing.
	Note(at int64, id target.ID, text string)
}
