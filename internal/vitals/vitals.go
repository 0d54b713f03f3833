// Package vitals keeps what a router shows of itself: rates and shares over sliding windows, histories for
// sparklines, the latest decisions, the prefixes that requests share, and warnings.
//
// It is told what happens as it happens and has no clock of its own: times are handed in, so that a player of
// recordings drives it as the live router does. Its memory is bounded, whatever the traffic; what one call costs
// does not depend on how many there are, and nothing is computed that nobody looks at.
package vitals

import (
	"math"
	"strconv"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/snapshot"
)

// Spans of the rings.
const (
	second     = 1000
	rateSpans  = 10
	shareSpans = 60
	longSpan   = 10 * second
	longSpans  = 90 // 15 minutes
	// ringLength holds a minute and the history with the pair that is under way.
	ringLength = 2*snapshot.HistoryLength + 4
)

// keptPerSecond bounds the decisions kept, so that what a watcher is sent does not grow with the traffic.
const keptPerSecond = 50

// Vitals is safe for concurrent use. Its lock is held for short, bounded times and no other is taken under it.
type Vitals struct {
	mu      sync.Mutex
	all     ring // requests, input tokens, predicted hits
	long    ring // the same, for 15 minutes
	delays  delays
	targets map[string]*vitals

	requests    uint64
	inputTokens int64
	savedTokens int64

	picks   [snapshot.MaxPicks]kept // by kept number modulo its length
	kept    uint64
	tail    []snapshot.Pick // those of picks that were handed out, and older ones
	handed  uint64          // kept when they were
	budget  float64         // decisions that may be kept now
	spentAt int64           // ms

	chains   [chainsKept]chain
	chained  uint64
	warnings warnings
}

// vitals are those of one target.
type vitals struct {
	requests uint64
	ring     ring // requests, input tokens, predicted hits
	blocks   ring // stored and removed
	reported ring // prompt tokens and cached ones as the engine reports
	stored   uint64
	removed  uint64
	clears   uint64
	shown    struct{ ring, blocks, reported shown }
}

// kept is a decision with its short form.
type kept struct {
	short snapshot.Pick
	dec   score.Decision
}

// New makes empty Vitals.
func New() *Vitals {
	return &Vitals{
		all: newRing(second, ringLength), long: newRing(longSpan, longSpans+1), targets: map[string]*vitals{},
		budget: keptPerSecond, warnings: newWarnings(),
	}
}

func (v *Vitals) of(key string) *vitals {
	t := v.targets[key]
	if t == nil {
		t = &vitals{ring: newRing(second, ringLength), blocks: newRing(second, ringLength), reported: newRing(second, ringLength)}
		v.targets[key] = t
	}
	return t
}

// Forget drops what is known of a target that has left.
func (v *Vitals) Forget(key string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.targets, key)
}

// Text tells the beginning of what a run of a prompt's blocks says, in a form fit to be shown: see Clip. It is called at
// any time, without a lock.
type Text func(from, to int) string

// Picked takes a decision, and what its prompt says where that may be shown, else nil. The blocks of the request are
// kept and must not change; dec is copied.
func (v *Vitals) Picked(ms int64, req *score.Request, dec *score.Decision, text Text) {
	t := dec.PickedTerms()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.requests++
	v.inputTokens += dec.Tokens
	of := v.of(t.Candidate.Key)
	of.requests++
	for _, r := range [3]*ring{&v.all, &v.long, &of.ring} {
		count(r.now(ms), dec.Tokens, t.HitTokens)
	}
	v.sample(ms, req, t.Candidate.Variant, text)
	if !v.allowed(ms) {
		return
	}
	k := &v.picks[v.kept%uint64(len(v.picks))]
	v.kept++
	terms := append(k.dec.Terms[:0], dec.Terms...)
	k.dec = *dec
	k.dec.Terms = terms
	k.short = shorten(v.requests, ms, req, dec)
}

func count(s *slot, tokens, hits int64) {
	s.n++
	s.of += tokens
	s.hit += min(hits, tokens)
}

// allowed spends one of keptPerSecond.
func (v *Vitals) allowed(ms int64) bool {
	if ms > v.spentAt {
		v.budget = math.Min(keptPerSecond, v.budget+float64(ms-v.spentAt)*keptPerSecond/second)
		v.spentAt = ms
	}
	if v.budget < 1 {
		return false
	}
	v.budget--
	return true
}

func shorten(id uint64, ms int64, req *score.Request, d *score.Decision) snapshot.Pick {
	t := d.PickedTerms()
	p := snapshot.Pick{
		ID: id, AtMS: ms, RequestID: d.RequestID, Model: req.Model, Role: d.Role.String(), Basis: string(d.Basis), Reason: d.Reason,
		Tokens: d.Tokens, Blocks: t.Blocks, Hits: t.Hits, RouteKey: t.Candidate.Key, Rule: string(d.TieRule), Cost: t.Cost, Candidates: len(d.Terms),
	}
	if req.Session != "" {
		p.Session = strconv.FormatUint(xxh3.HashString(req.Session), 16)
	}
	best := -1
	for i := range d.Terms {
		if o := &d.Terms[i]; i != d.Picked && o.Eligible && (best < 0 || o.Cost < d.Terms[best].Cost) {
			best = i
		}
	}
	if best >= 0 {
		p.RunnerUp = d.Terms[best].Candidate.Key
		if margin := d.Terms[best].Cost - t.Cost; d.Policy == score.LeastWork || d.Policy == score.KVAware {
			p.Margin = &margin
		}
	}
	return p
}

// Dispatched takes the router's own time from a request's body to its dispatch, in ns.
func (v *Vitals) Dispatched(ms, ns int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.delays.add(ms, float64(ns))
}

// Ended takes what the end of a request tells: the prompt's tokens, those cached as was predicted, and as the engine
// reported, -1 where it did not.
func (v *Vitals) Ended(ms int64, key string, prompt, predicted, reported int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if reported < 0 {
		v.savedTokens += predicted
		return
	}
	v.savedTokens += reported
	if t := v.targets[key]; t != nil && prompt > 0 { // else it has left
		count(t.reported.now(ms), prompt, reported)
	}
}

// Applied takes what an event changed in a target's mirror.
func (v *Vitals) Applied(ms int64, key string, r *index.Result, cleared bool) {
	if r.Stored == 0 && r.Removed == 0 && !cleared {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	t := v.of(key)
	s := t.blocks.now(ms)
	s.n += uint32(min(r.Stored, math.MaxInt32))
	s.removed += uint32(min(r.Removed, math.MaxInt32))
	t.stored += uint64(r.Stored)
	t.removed += uint64(r.Removed)
	if cleared {
		t.clears++
	}
}

// Fill writes what is known into a snapshot whose workers are there already. It keeps nothing of s.
func (v *Vitals) Fill(ms int64, s *snapshot.Snapshot) {
	v.mu.Lock()
	defer v.mu.Unlock()
	r := &s.Router
	r.Requests, r.InputTokens, r.SavedTokens, r.Kept = v.requests, v.inputTokens, v.savedTokens, v.kept
	r.RequestRate = rate(&v.all, ms)
	r.HitShare1m = v.all.sum(ms, shareSpans, true).share()
	r.HitShare15m = v.long.sum(ms, longSpans, true).share()
	r.DispatchP50, r.DispatchP99 = v.delays.quantile(ms, 0.5), v.delays.quantile(ms, 0.99)
	for i := range s.Workers {
		w := &s.Workers[i]
		t := v.targets[w.RouteKey]
		if t == nil {
			w.History, w.Stream.StoredHist, w.Stream.RemovedHist = nothing, nothing, nothing
			continue
		}
		x := &t.shown
		t.ring.show(ms, &x.ring)
		t.blocks.show(ms, &x.blocks)
		t.reported.show(ms, &x.reported)
		w.Requests, w.RequestRate, w.HitShare, w.History = t.requests, x.ring.rate, x.ring.share, x.ring.history
		w.ReportedShare = x.reported.share
		w.Stream.StoredHist, w.Stream.RemovedHist = x.blocks.history, x.blocks.removals
		w.Stream.Stored, w.Stream.Removed, w.Stream.Clears = t.stored, t.removed, t.clears
	}
	s.Picks = v.latest()
	s.Warnings = v.warnings.list()
}

// latest returns the short forms of the decisions kept. What was handed out stays as it is: new ones are put behind
// it, in memory that it cannot reach.
func (v *Vitals) latest() []snapshot.Pick {
	size := uint64(len(v.picks))
	from := max(v.handed, v.kept-min(v.kept, size))
	if from > v.handed {
		v.tail = nil // some went by unseen: the ones before them are too old
	}
	if n := v.kept - from; uint64(cap(v.tail)-len(v.tail)) < n {
		last := v.tail[len(v.tail)-int(min(uint64(len(v.tail)), size)):]
		v.tail = append(make([]snapshot.Pick, 0, 3*size), last...)
	}
	for i := from; i < v.kept; i++ {
		v.tail = append(v.tail, v.picks[i%size].short)
	}
	v.handed = v.kept
	if v.tail == nil {
		v.tail = []snapshot.Pick{}
	}
	n := len(v.tail)
	return v.tail[n-int(min(uint64(n), size)) : n : n]
}

// nothing is the history of a target that nothing happened to.
var nothing = make([]uint32, snapshot.HistoryLength)

// rate is requests a second over whole seconds, so that it does not move between them.
func rate(r *ring, ms int64) float64 {
	return math.Round(float64(r.sum(ms, rateSpans, false).n)/rateSpans*10) / 10
}

// Explain returns the full record of a decision that is still kept.
func (v *Vitals) Explain(id uint64) (record []byte, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := min(v.kept, uint64(len(v.picks)))
	for i := v.kept - n; i < v.kept; i++ {
		if k := &v.picks[i%uint64(len(v.picks))]; k.short.ID == id {
			return k.dec.AppendJSON(nil), true
		}
	}
	return nil, false
}

func delayClass(ns float64) int {
	if ns <= delayLeast {
		return 0
	}
	return min(int(math.Ceil(4*math.Log2(ns/delayLeast))), delayClasses-1)
}

func delayBound(k int) float64 { return delayLeast * math.Exp2(float64(k)/4) }
