package score

// demand projects the input tokens every decode candidate would hold,
//
//	held tokens + this request's tokens × n + W × held requests,
//
// and suggests the least; equal ones go to the lesser original load, then to candidate order. Mode on
// follows the suggestion, shadow only notes it. Estimated token counts take part like exact ones.
func (s *Scorer) demand(req *Request, dec *Decision) {
	best := -1
	rule := ByDemand
	for i := range dec.Terms {
		t := &dec.Terms[i]
		t.Demand = float64(t.Load.HeldTokens+req.booked(t.Candidate.Variant)) + float64(s.cfg.DecodeRequestWeight*float64(t.Load.HeldRequests))
		switch {
		case !t.Eligible:
		case best < 0 || t.Demand < dec.Terms[best].Demand:
			best, rule = i, ByDemand
		case t.Demand > dec.Terms[best].Demand:
		case t.Tie < dec.Terms[best].Tie:
			best, rule = i, ByLoad
		case t.Tie == dec.Terms[best].Tie:
			rule = ByOrder
		case rule == ByDemand:
			rule = ByLoad
		}
	}
	dec.Suggested, dec.Original = best, dec.Picked
	if s.cfg.DecodeInputDemand != DemandOn {
		return
	}
	if s.choice.eligible > 1 {
		dec.TieRule = rule
	}
	dec.Picked = best
	dec.Basis, dec.Reason = BasisExact, ""
	if !req.exact(dec.Terms[best].Candidate.Variant) {
		dec.Basis = BasisEstimated
	}
}
