package score

import "github.com/kvroute/kvroute/internal/target"

// session replaces the choice by the target the session is bound to, if it is bound.
func (s *Scorer) session(req *Request, dec *Decision) {
	if !s.binds(req) {
		if s.kind == kindSession {
			dec.Reason = reasonNoSession
		}
		return
	}
	slot, found := s.bound.find(bindKey{req.Session, req.Role}, req.At, s.led)
	if found == BoundHit {
		at := s.bound.slots[slot].target
		i := 0
		for i < len(dec.Terms) && (dec.Terms[i].Candidate.Target != at || !s.joined(&dec.Terms[i])) {
			i++
		}
		if i < len(dec.Terms) {
			s.follow(dec, i)
			s.choice.slot = slot
		} else {
			found = BoundInvalid
		}
	}
	s.choice.session, dec.Session = found, found
}

// joined tells a candidate that a policy left out of its sample from one the ledger does not know.
func (s *Scorer) joined(t *Terms) bool { return t.Eligible || t.Note != noteNotJoined }

// follow makes term i, the session's target, the choice.
func (s *Scorer) follow(dec *Decision, i int) {
	dec.Picked, dec.TieRule = i, BySession
	dec.Basis, dec.Reason = BasisAffinity, ""
	dec.Suggested, dec.Original = -1, -1
	s.choice.drawn = false
	for j := range dec.Terms {
		t := &dec.Terms[j]
		if j == i {
			if !t.Eligible {
				t.Eligible, t.Note = true, ""
			}
		} else if t.Eligible {
			t.Eligible, t.Note = false, noteUnbound
		}
	}
}

// binds reports whether the request's session is, or would be, bound.
func (s *Scorer) binds(req *Request) bool {
	if req.Session == "" {
		return false
	}
	return s.kind == kindSession || s.cfg.SessionAffinity == AffinityBoth ||
		s.cfg.SessionAffinity == AffinityPrefill && req.Role == Prefill
}

// keepSession takes a lease on the session's binding, made now if need be, and returns its tag.
func (s *Scorer) keepSession(req *Request, dec *Decision, id target.ID) (tag uint64) {
	if s.choice.session == BoundHit {
		return s.bound.use(s.choice.slot)
	}
	tag, ok := s.bound.bind(bindKey{req.Session, req.Role}, id, s.mem[id].life, req.At, s.led)
	if !ok {
		dec.Session, dec.Reason = BoundFull, reasonFull
	}
	return tag
}
