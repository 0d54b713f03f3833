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
	// workDecode is what one held request costs a decode pick, in mean contexts of held requests.
	workDecode = 2.0
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
//	          matters less the more there is to queue behind (see pace); 1 where unknown
//
// Equal costs go to fewer held requests, then to candidate order. Decode picks compute nothing; see
// leastContext.
func (s *Scorer) leastWork(req *Request, dec *Decision) {
	if req.Role == Decode {
		s.leastContext(req, dec)
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
		slow := 1.0
		if t.Slow > 1 {
			slow += (t.Slow - 1) / (1 + float64(paceGate*n))
		}
		t.Cost = float64(slow*work) + float64(workRecent*t.Recent)
		t.Tie = float64(t.Load.HeldRequests)
	}
	dec.Picked, dec.TieRule = settle(dec.Terms, ByLoad)
}

// leastContext is least-work for decode, where a request is in every step of the target until it ends:
//
//	cost = held tokens + this request's tokens + 2×M×held requests
//
// M is the mean of tokens over the requests held by the candidates. It stands for the request weight W
// of --decode-input-demand, which has to be fitted to the engine: simulated on engines whose W is 3,000
// to 100,000, with contexts of 10,000 and 100,000 tokens, its mean ITL is within 1 % of the best W's, and
// tokens alone are up to 6 % worse. Equal costs go to fewer held requests, then to candidate order.
func (s *Scorer) leastContext(req *Request, dec *Decision) {
	var tokens, requests int64
	for i := range dec.Terms {
		if t := &dec.Terms[i]; t.Eligible {
			tokens += t.Load.HeldTokens
			requests += t.Load.HeldRequests
		}
	}
	each := 0.0
	if requests > 0 {
		each = float64(workDecode * (float64(tokens) / float64(requests)))
	}
	for i := range dec.Terms {
		t := &dec.Terms[i]
		if !t.Eligible {
			continue
		}
		t.Cost = float64(t.Load.HeldTokens+req.booked(t.Candidate.Variant)) + float64(each*float64(t.Load.HeldRequests))
		t.Tie = float64(t.Load.HeldRequests)
	}
	dec.Picked, dec.TieRule = settle(dec.Terms, ByLoad)
}

// workCharge is the winner's recency charge. A prompt of unknown length counts as one token, so that
// such prompts take turns.
func workCharge(req *Request, t *Terms) float64 {
	if req.input(t.Candidate.Variant) <= 0 && len(req.Images) == 0 {
		return unknownCharge
	}
	return uncached(req, t)
}

// uncached is the work of one request's prefill on a candidate, in tokens.
func uncached(req *Request, t *Terms) float64 {
	work := float64(max(req.input(t.Candidate.Variant), 0) - t.HitTokens)
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
	paceTokens = 256  // fewer tokens than this are mostly overhead and say nothing about speed
	paceSeen   = 8    // first tokens until a target's pace counts as known
	paceForget = 1.01 // what the best pace worsens by each first token, so that a target may become slow
	paceSteps  = 2    // slowness moves in halves, so that noise does not move picks
	paceLimit  = 2    // greatest slowness
	paceGate   = 8    // weight of the mean queue against slowness
)

// pace is what first tokens have told about one target: the best time a token it has shown lately.
// The best and not the mean, because work that this router did not send, or did not see end, can only
// make a first token later: a mean would call a target slow that others keep busy.
type pace struct {
	since int64   // ns: when its queue last moved
	best  float64 // s a token; meaningful once seen
	seen  int
}

// began notes that a target without queue got work.
func (p *pace) began(at int64) { p.since = at }

// did notes the first token of a request that had tokens to prefill.
func (p *pace) did(tokens, at int64) {
	elapsed := at - p.since
	p.since = at
	if tokens < paceTokens || elapsed <= 0 {
		return
	}
	now := float64(elapsed) / 1e9 / float64(tokens)
	if old := float64(p.best * paceForget); p.seen > 0 && old < now {
		now = old
	}
	p.best = now
	p.seen = min(p.seen+1, paceSeen)
}

func (p *pace) known() bool { return p.seen >= paceSeen }

// slowness sets Slow of every eligible term whose pace is known: its time a token over the median
// target's, never below 1 (a fast target shows in its short queue already). It stays 0, unknown, for
// the others, and for all while fewer than two are known: there is nothing to be slower than.
func (s *Scorer) slowness(dec *Decision) {
	known := s.paces[:0]
	for i := range dec.Terms {
		t := &dec.Terms[i]
		if p := s.paceOf(t); p != nil {
			known = append(known, p.best)
		}
	}
	s.paces = known
	if len(known) < 2 {
		return
	}
	slices.Sort(known)
	h := len(known) / 2
	median := known[h]
	if len(known)%2 == 0 {
		median = (known[h-1] + known[h]) / 2
	}
	for i := range dec.Terms {
		t := &dec.Terms[i]
		if p := s.paceOf(t); p != nil {
			x := min(max(p.best/median, 1), paceLimit)
			t.Slow = math.Floor(float64(x*paceSteps)+0.5) / paceSteps
		}
	}
}

// paceOf returns what is known of an eligible candidate's pace, or nil.
func (s *Scorer) paceOf(t *Terms) *pace {
	if !t.Eligible {
		return nil
	}
	if p := &s.mem[t.Candidate.Target].pace; p.known() {
		return p
	}
	return nil
}
