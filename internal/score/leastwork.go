package score

// Constants of least-work. All in tokens; docs/decision-quality.md has the runs they were chosen on.
const (
	// workPending is the share of the target's pending prefill that stands in front of a new request.
	workPending = 0.5
	// workRecent is the share of recent misses that counts as work: a little memory of where prompts
	// had to be computed keeps new prefixes spread, so that later turns find room.
	workRecent = 0.05
	// workImage is the prefill of one image, in tokens: the formula's 48 blocks of 16.
	workImage = imageBlocks * 16
)

// leastWork is expected work left, in tokens:
//
//	cost = uncached + 0.5×pending + 0.05×recent
//
// uncached: prompt tokens the target would compute, lower-tier hits counting in part; pending: the
// uncached tokens of its requests without a first token; recent: the tokens it had to compute lately,
// aged by 0.97 a pick. Decode picks compute nothing: there the cost is the context held, this
// request's included. Equal costs go to fewer held tokens, then to candidate order.
func (s *Scorer) leastWork(req *Request, dec *Decision) {
	for i := range dec.Terms {
		t := &dec.Terms[i]
		if req.Role == Decode {
			t.Cost = float64(t.Load.HeldTokens + dec.Tokens)
			t.Tie = float64(t.Load.HeldRequests)
			continue
		}
		t.Cost = uncached(req, t) + float64(workPending*float64(t.Load.PendingTokens)) + float64(workRecent*t.Recent)
		t.Tie = float64(t.Load.HeldTokens)
	}
	dec.Picked, dec.TieRule = settle(dec.Terms, ByLoad)
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
