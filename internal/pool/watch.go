package pool

import (
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// Watch tells whether the prefix that a pick counted on went from the target's mirror afterwards. It looks
// at the last block of the run of hits: engines let go of the ends of prefixes first.
type Watch struct {
	at   watched
	lost bool
	set  bool
}

// watched names a block on a target.
type watched struct {
	target target.ID
	hash   block.Hash
}

// watches are the blocks that picks wait for, and the pool's own observer of its index.
type watches struct {
	rec Recorder // nil: nothing is recorded
	by  map[watched][]*Watch
}

// Changed implements index.Observer.
func (w *watches) Changed(t target.ID, h, parent block.Hash, tier index.Tier, held bool) {
	if w.rec != nil {
		w.rec.Changed(t, h, parent, tier, held)
	}
	if held || len(w.by) == 0 {
		return
	}
	for _, x := range w.by[watched{t, h}] {
		x.lost = true
	}
}

// Emptied implements index.Observer.
func (w *watches) Emptied(t target.ID) {
	if w.rec != nil {
		w.rec.Emptied(t)
	}
	for at, all := range w.by {
		if at.target == t {
			for _, x := range all {
				x.lost = true
			}
		}
	}
}

// add begins to watch what a decision counts on; there is nothing to watch without hits.
func (w *watches) add(x *Watch, req *score.Request, t *score.Terms) {
	*x = Watch{}
	chain := req.Blocks
	if v := t.Candidate.Variant; v > 0 {
		chain = req.Variants[v-1].Blocks
	}
	n := min(t.Hits, int64(len(chain)))
	if n <= 0 {
		return
	}
	x.at, x.set = watched{t.Candidate.Target, chain[n-1]}, true
	w.by[x.at] = append(w.by[x.at], x)
}

// Lost says whether the prefix was lost by now.
func (p *Pool) Lost(x *Watch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return x.lost
}

// Unwatch ends a watch and says whether the prefix was lost meanwhile. Later calls say the same.
func (p *Pool) Unwatch(x *Watch) (lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !x.set {
		return x.lost
	}
	x.set = false
	rest := p.watches.by[x.at]
	for i, o := range rest {
		if o == x {
			rest[i] = rest[len(rest)-1]
			rest[len(rest)-1] = nil
			rest = rest[:len(rest)-1]
			break
		}
	}
	if len(rest) == 0 {
		delete(p.watches.by, x.at)
	} else {
		p.watches.by[x.at] = rest
	}
	return x.lost
}
