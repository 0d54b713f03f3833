package score

import (
	"math"
	"slices"
)

// Constants of least-work. Costs are in tokens, the constants have no unit: nothing here depends on a
// model, an engine or a trace. docs/decision-quality.md has the runs they were chosen on.
const (
	// workQueue: each request of the fleet's mean queue makes this request's own uncached tokens count
	// once more, because the longer the queues, the more requests wait for what is computed twice.
	workQueue = 1.0
	// workHeld is what one held request costs, in mean misses of a pick: held requests decode, and the
	// target's prefill shares each step with them.
	workHeld = 0.05
	// workRecent is the share of recent misses that counts: a little memory of where prompts had to
	// be computed keeps new prefixes spread, so that later turns find room.
	workRecent = 0.12
	// workImage is the prefill of one image, in tokens: the formula's 48 blocks of 16.
	workImage = imageBlocks * 16
)

// leastWork is expected work left, in tokens:
//
//	cost = slow' × ((1 + n)×uncached + pending + 0.05×m×held) + 0.12×recent
//
//	uncached  prompt tokens the target would compute; lower-tier hits count in part
//	pending   uncached tokens of its requests without a first token
//	held      its requests not yet ended
//	recent    uncached tokens of what it was sent, aged by 0.97 a pick
//	n         requests without a first token, mean over the candidates
//	m         uncached tokens of a pick, mean over the recent ones: 0.03 × the sum of all recent
//	slow'     1 + (slow − 1)/(1 + 8n): how much slower than the fleet the target has proved to be, which
//	          matters less the more there is to queue behind (see pace)
//
// Equal costs go to fewer held requests, then to candidate order. Decode picks compute nothing; see
// leastContext.
func (s *Scorer) leastWork(req *Request, dec *Decision) {
	if req.Role == Decode {
		s.leastContext(dec)
		return
	}
	var waiting int64
	var recent float64
	for i := range dec.Terms {
		if t := &dec.Terms[i]; t.Eligible {
			waiting += t.Load.PendingRequests
			recent += t.Recent
		}
	}
	n := float64(waiting) / float64(s.choice.eligible)
	m := float64(recent * (1 - float64(recentDecay)))
	own, held := 1+float64(workQueue*n), float64(workHeld*m)
	s.slowness(dec)
	for i := range dec.Terms {
		t := &dec.Terms[i]
		if !t.Eligible {
			continue
		}
		work := float64(own*uncached(req, t)) + float64(t.Load.PendingTokens) + float64(held*float64(t.Load.HeldRequests))
		slow := 1 + (t.Slow-1)/(1+float64(paceGate*n))
		t.Cost = float64(slow*work) + float64(workRecent*t.Recent)
		t.Tie = float64(t.Load.HeldRequests)
	}
	dec.Picked, dec.TieRule = settle(dec.Terms, ByLoad)
}

// leastContext is least-work for decode: the input tokens the target would hold.
func (s *Scorer) leastContext(dec *Decision) {
	for i := range dec.Terms {
		t := &dec.Terms[i]
		t.Cost = float64(t.Load.HeldTokens + dec.Tokens)
		t.Tie = float64(t.Load.HeldRequests)
	}
	dec.Picked, dec.TieRule = settle(dec.Terms, ByLoad)
}

// workCharge is the winner's recency charge. A prompt of unknown length counts as one token, so that
// such prompts take turns.
func workCharge(req *Request, t *Terms) float64 {
	if req.InputTokens <= 0 && len(req.Images) == 0 {
		return unknownCharge
	}
	return uncached(req, t)
}

// uncached is the work of one request's prefill on a candidate, in tokens.
func uncached(req *Request, t *Terms) float64 {
	work := float64(max(req.InputTokens, 0) - t.HitTokens)
	if t.Hits > 0 && t.HitWeight != float64(t.Hits) {
		work += float64(float64(t.HitTokens) * (1 - t.HitWeight/float64(t.Hits)))
	}
	if missing := len(req.Images) - int(t.ImageHits); missing > 0 {
		work += float64(workImage * float64(missing))
	}
	return work
}

// Constants of learning how fast a target prefills.
const (
	paceKeep  = 0.98  // of what was learned, each first token: about the last 50 count
	pacePrior = 50000 // tokens at the fleet's pace that a target is credited with beforehand
	paceSteps = 2     // slowness moves in halves, so that noise does not move picks
	paceLimit = 2     // greatest slowness
	paceGate  = 8     // weight of the mean queue against slowness
)

// pace is what first tokens have told about one target: the time it had prefill to do and the tokens
// it did in that time. Nothing is known until busy and tokens are above zero.
type pace struct {
	since  int64   // ns: when its queue last moved
	busy   float64 // s
	tokens float64
}

// began notes that a target without queue got work.
func (p *pace) began(at int64) { p.since = at }

// did notes the first token of a request that had tokens to prefill.
func (p *pace) did(tokens, at int64) {
	elapsed := float64(max(at-p.since, 0)) / 1e9
	p.since = at
	p.tokens = float64(p.tokens*paceKeep) + float64(tokens)
	p.busy = float64(p.busy*paceKeep) + elapsed
}

// slowness sets Slow of every eligible term: its seconds a token over the median target's, 1 where
// unknown, never below 1 (a fast target shows in its short queue already).
func (s *Scorer) slowness(dec *Decision) {
	known := s.paces[:0]
	for i := range dec.Terms {
		t := &dec.Terms[i]
		if !t.Eligible {
			continue
		}
		t.Slow = 1
		if p := &s.mem[t.Candidate.Target].pace; p.tokens > 0 && p.busy > 0 {
			known = append(known, p.busy/p.tokens)
		}
	}
	s.paces = known
	if len(known) < 2 {
		return // nothing to be slower than
	}
	slices.Sort(known)
	h := len(known) / 2
	median := known[h]
	if len(known)%2 == 0 {
		median = (known[h-1] + known[h]) / 2
	}
	for i := range dec.Terms {
		t := &dec.Terms[i]
		if !t.Eligible {
			continue
		}
		p := &s.mem[t.Candidate.Target].pace
		x := (p.busy + float64(pacePrior*median)) / (p.tokens + pacePrior) / median
		t.Slow = math.Floor(float64(min(max(x, 1), paceLimit)*paceSteps)+0.5) / paceSteps
	}
}
