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

// kvAware is the seed's formula,
//
//	overlap_weight × (request_blocks − hits) + active_blocks
//
// with image affinity and, at a recency weight above 0, Infera's recency term:
//
//	cost = w×(blocks − hits) + w_mm×(images not held) + (active + recent)
//
// Equal costs go to the lesser load (active + recent), then to candidate order. Products are rounded
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
}

// kvCharge is the winner's recency charge: the blocks it has to compute, 1 where they are unknown.
func kvCharge(t *Terms) float64 {
	if t.Blocks == 0 {
		return unknownCharge
	}
	return max(float64(t.Blocks)-t.HitWeight, 0)
}
