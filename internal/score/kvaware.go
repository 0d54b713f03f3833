package score

// Constants of the kv-aware formula, infera-router reference 4.2.
const (
	longAmplifier = 2.0
	noneDampener  = 0.1
	imageBlocks   = 48.0 // an image not held counts like this many blocks to prefill
	recentDecay   = 0.97 // of every recency charge, each pick
	recentFloor   = 1e-3 // smaller charges are dropped
	unknownCharge = 1.0  // recency charge of a request without blocks
)

// amplify is the factor of a client's cache hint on the overlap weight.
func amplify(r Retention) float64 {
	switch r {
	case RetainLong:
		return longAmplifier
	case RetainNone:
		return noneDampener
	}
	return 1
}

// kvAware is the published formula,
//
//	overlap_weight × (request_blocks − hits) + active_blocks
//
// with image affinity and, at a recency weight above 0, Infera's recency term:
//
//	cost = w×(blocks − hits) + w_mm×(images not held) + (active + recent)
//
// Equal costs go to the lesser load (active + recent), then, for requests that book no blocks, to fewer
// held requests, then to candidate order. Products are rounded
// before they are added (no fused multiply-add), so that every machine gets the same cost. w is 0 for
// multimodal requests, w_mm is 48 w, for prefill and mixed targets only.
func (s *Scorer) kvAware(req *Request, dec *Decision) {
	w, wmm := dec.Weight, 0.0
	if req.Role != Decode {
		wmm = float64(dec.Weight * imageBlocks)
	}
	if req.Multimodal {
		w = 0
	}
	images := float64(len(req.Images))
	for i := range dec.Terms {
		t := &dec.Terms[i]
		t.Tie = float64(t.Load.ActiveBlocks) + float64(s.cfg.RecentWeight*t.Recent)
		t.Cost = float64(w*(float64(t.Blocks)-t.HitWeight)) + float64(wmm*(images-float64(t.ImageHits))) + t.Tie
	}
	dec.Picked, dec.TieRule = settle(dec.Terms, ByLoad)
	if dec.TieRule == ByOrder && dec.PickedTerms().Blocks == 0 {
		dec.Picked, dec.TieRule = fewestHeld(dec.Terms, dec.Picked)
	}
}

// fewestHeld settles full ties of requests that book no blocks, which the formula's load does not see:
// without it a fleet whose prompts cannot be hashed would send them all to its first target.
func fewestHeld(terms []Terms, first int) (picked int, rule Rule) {
	picked = first
	tied, alike := 0, 0 // candidates that tie with the first, and those of them that hold as few as picked
	for i := first; i < len(terms); i++ {
		t := &terms[i]
		if !t.Eligible || t.Cost != terms[first].Cost || t.Tie != terms[first].Tie {
			continue
		}
		tied++
		switch least := terms[picked].Load.HeldRequests; {
		case t.Load.HeldRequests < least:
			picked, alike = i, 1
		case t.Load.HeldRequests == least:
			alike++
		}
	}
	if alike == 1 && tied > 1 {
		return picked, ByHeld
	}
	return picked, ByOrder
}

// kvCharge is the winner's recency charge: the blocks it has to compute, 1 where they are unknown.
func kvCharge(t *Terms) float64 {
	if t.Blocks == 0 {
		return unknownCharge
	}
	return max(float64(t.Blocks)-t.HitWeight, 0)
}
