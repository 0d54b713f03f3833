package fleet

import (
	"sync"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/pool"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/score"
)

// lease is a reservation on a target, and the prediction that was made with it.
type lease struct {
	t      *ticket
	target *tgt
	dec    score.Decision
	before prediction
	once   sync.Once
}

// Target implements router.Lease.
func (l *lease) Target() router.Target {
	g := l.target
	return router.Target{Worker: g.worker.spec.ID, RouteKey: g.key, URL: g.worker.url, Rank: g.rank, Engine: g.worker.engine()}
}

// Decision implements router.Lease.
func (l *lease) Decision() *score.Decision { return &l.dec }

// FirstToken implements router.Lease.
func (l *lease) FirstToken() {
	l.t.m.pool.FirstToken(l.dec.Handle, time.Now().UnixNano())
	l.target.prefilled(&l.before)
}

// Unbind implements router.Lease.
func (l *lease) Unbind() { l.t.m.pool.Unbind(l.dec.Handle) }

// Release implements router.Lease. Calls after the first do nothing.
func (l *lease) Release(o router.Outcome) {
	l.once.Do(func() {
		l.target.prefilled(&l.before)
		l.t.m.pool.Release(l.dec.Handle, time.Now().UnixNano(), o.CompletionTokens)
		l.target.ended(l, o)
	})
}

// prediction is what a pick said about one target's cache, kept until the engine says how it was.
type prediction struct {
	tokens int64        // predicted cached tokens
	chain  []block.Hash // of the request, as its target hashes it
	hits   int
	watch  pool.Watch // of the last block counted on
	useful int        // blocks of the chain that can be cached: the last token is always computed
	clean  bool
	why    string // why the engine may rightly say otherwise
	unlike string // why what the engine reports is not what was predicted; "": it is
}

// next is the block whose being cached would make the prediction too small.
func (p *prediction) next() (h block.Hash, ok bool) {
	if p.hits >= p.useful {
		return 0, false
	}
	return p.chain[p.hits], true
}

// computes says whether the request behind o will store block h, which is the one after i others.
func (p *prediction) computes(i int, h block.Hash) bool { return i < len(p.chain) && p.chain[i] == h }

// Why a prediction may be overtaken by what happens between the pick and the prefill.
const (
	overtakenByEviction = "eviction"  // the mirror lost the end of the prefix in between
	overtakenByInFlight = "in flight" // another request was computing the next block
)

// notExact is why predictions are not held against reports where the prompt or the mirror is estimated.
const notExact = "not exact"

// predict notes what was predicted for a request and who else is under way on the target.
func (g *tgt) predict(p *prediction, t *ticket, term *score.Terms) {
	p.tokens, p.hits, p.clean = term.HitTokens, int(term.Hits), true
	v := term.Candidate.Variant
	p.chain = t.req.Blocks
	if v > 0 && v <= len(t.req.Variants) {
		p.chain = t.req.Variants[v-1].Blocks
	}
	p.useful = min(len(p.chain), int((t.length(v)-1)/int64(max(t.req.BlockSize, 1))))
	// A mirror that has diverged is compared on, so that it can be believed again.
	doubtful := term.Candidate.Doubt != "" && term.Candidate.Doubt != doubtOf(feed.Diverged)
	if p.unlike = g.worker.countsOtherwise(&t.req, v); p.unlike == "" && (!t.exact || doubtful || term.Candidate.BlockSize == 0) {
		p.unlike = notExact
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	// Either of two may reach the engine first.
	for o := range g.pending {
		if h, ok := p.next(); ok && o.computes(p.hits, h) {
			p.inFlight()
		}
		if h, ok := o.next(); ok && p.computes(o.hits, h) {
			o.inFlight()
		}
	}
	g.pending[p] = struct{}{}
}

func (p *prediction) inFlight() {
	if p.clean {
		p.clean, p.why = false, overtakenByInFlight
	}
}

// prefilled tells that the target computed a request: what it finds cached is settled.
func (g *tgt) prefilled(p *prediction) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.pending, p)
}

// Drift is judged over a window of comparisons that nothing overtook.
const (
	driftWindow = 64
	driftLeast  = 16   // comparisons before a judgement
	driftBad    = 0.10 // share of wrong ones above which a mirror counts as diverged
	driftGood   = 0.05 // and below which it is believed again
)

// drift compares predicted with reported cached tokens of one target.
type drift struct {
	wrong     [driftWindow]bool
	n, next   int
	bad       int
	diverged  bool
	predicted int64 // sums over all comparisons
	reported  int64
	compared  uint64
	overtaken uint64
	unlike    uint64
	differing uint64
}

// note takes one comparison and says whether the judgement changed.
func (d *drift) note(predicted, reported int64, clean, equal bool) (changed bool) {
	if !clean {
		d.overtaken++
		return false
	}
	d.predicted += predicted
	d.reported += reported
	d.compared++
	if !equal {
		d.differing++
	}
	if d.n == driftWindow && d.wrong[d.next] {
		d.bad--
	}
	d.wrong[d.next] = !equal
	if !equal {
		d.bad++
	}
	d.next = (d.next + 1) % driftWindow
	d.n = min(d.n+1, driftWindow)
	share := float64(d.bad) / float64(d.n)
	switch {
	case !d.diverged && d.n >= driftLeast && share > driftBad:
		d.diverged = true
		return true
	case d.diverged && share < driftGood:
		d.diverged = false
		return true
	}
	return false
}

// reset forgets the window, after the mirror was built anew.
func (d *drift) reset() { d.n, d.next, d.bad, d.diverged = 0, 0, 0, false }
