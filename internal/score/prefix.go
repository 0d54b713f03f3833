package score

const reasonBelowThreshold = "no target holds enough of the prompt"

// prefix takes the most leading hits (where targets make different prompts of a request, the fewest blocks
// to compute), then the least computed blocks so far, then candidate order.
// prefix-threshold does so only where the most hits reach the threshold's share of the request's
// blocks, and otherwise takes the least computed blocks. Hits count alike in every tier.
func (s *Scorer) prefix(dec *Decision) {
	byHits := true
	if s.cfg.Policy == PrefixThreshold {
		byHits = false
		for i := range dec.Terms {
			t := &dec.Terms[i]
			if t.Eligible && float64(t.Hits) >= float64(s.cfg.PrefixThreshold*float64(t.Blocks)) {
				byHits = true
				break
			}
		}
	}
	for i := range dec.Terms {
		t := &dec.Terms[i]
		t.Tie = float64(t.Computed)
		t.Cost = t.Tie
		if byHits {
			t.Cost = float64(t.Blocks - t.Hits)
		}
	}
	dec.Picked, dec.TieRule = settle(dec.Terms, ByComputed)
	if !byHits {
		dec.Reason = reasonBelowThreshold
	}
}
