package load_test

import (
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/target"
)

// naiveLedger is the definition written out: every reservation of the present life of a target is
// kept whole, and loads are recounted from them each time.
type naiveLedger struct {
	inc   map[target.ID]target.Incarnation
	held  map[int]*naiveReservation
	nextN int
}

type naiveReservation struct {
	target  target.ID
	demand  load.Demand
	waiting bool
}

func newNaive() *naiveLedger {
	return &naiveLedger{inc: map[target.ID]target.Incarnation{}, held: map[int]*naiveReservation{}}
}

func (n *naiveLedger) join(t target.ID, inc target.Incarnation) {
	if old, ok := n.inc[t]; ok && old != inc {
		n.forget(t)
	}
	n.inc[t] = inc
}

func (n *naiveLedger) forget(t target.ID) {
	delete(n.inc, t)
	for k, r := range n.held {
		if r.target == t {
			delete(n.held, k)
		}
	}
}

// reserve returns 0 where nothing is booked.
func (n *naiveLedger) reserve(t target.ID, d load.Demand) int {
	if _, ok := n.inc[t]; !ok {
		return 0
	}
	n.nextN++
	n.held[n.nextN] = &naiveReservation{target: t, demand: d, waiting: true}
	return n.nextN
}

func (n *naiveLedger) firstToken(k int) bool {
	r := n.held[k]
	if r == nil || !r.waiting {
		return false
	}
	r.waiting = false
	return true
}

func (n *naiveLedger) release(k int) bool {
	if n.held[k] == nil {
		return false
	}
	delete(n.held, k)
	return true
}

func (n *naiveLedger) load(t target.ID) load.Load {
	var l load.Load
	distinct := map[block.Hash]bool{}
	for _, r := range n.held {
		if r.target != t {
			continue
		}
		l.HeldRequests++
		l.HeldTokens += r.demand.Tokens
		if r.waiting {
			l.PendingRequests++
			l.PendingTokens += r.demand.PrefillTokens
		}
		for _, chain := range append([][]block.Hash{r.demand.Blocks}, r.demand.More...) {
			for _, b := range chain {
				distinct[b] = true
			}
		}
	}
	l.ActiveBlocks = int64(len(distinct))
	return l
}
