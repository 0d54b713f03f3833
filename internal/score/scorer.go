package score

import (
	"errors"
	"fmt"

	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/target"
)

// ErrNoCandidates says that a pick had nothing to choose from: the list was empty, or none of its
// targets has joined the ledger.
var ErrNoCandidates = errors.New("no candidates")

// kind is a policy, decided once.
type kind uint8

const (
	kindLeastWork kind = iota
	kindKVAware        // least-load too, at weight 0
	kindRoundRobin
	kindRandom
	kindPowerOfTwo
	kindPrefix // prefix-threshold too
	kindSession
)

var kinds = map[string]kind{
	LeastWork: kindLeastWork, KVAware: kindKVAware, LeastLoad: kindKVAware, RoundRobin: kindRoundRobin, Random: kindRandom,
	PowerOfTwo: kindPowerOfTwo, Prefix: kindPrefix, PrefixThreshold: kindPrefix, Session: kindSession,
}

// Scorer chooses targets and remembers what choosing needs: recency charges, counters, images,
// sessions. Its decisions are a pure function of its Config, the view, and the sequence of calls with
// their arguments, times included; it has no clock and draws random numbers from Config.Seed alone.
//
// A Scorer is owned by one goroutine. Where several share one, a single lock around each call makes
// choosing and reserving one step, so that no two picks see the same load.
//
// Memory about a target is void once the ledger starts another life of it, or after Forget.
type Scorer struct {
	cfg        Config
	kind       kind
	view       index.View
	led        *load.Ledger
	given      []load.Load // explain: loads as stated instead of the ledger's
	weights    [3]float64  // base overlap weight by role
	seq        uint64
	match      index.Matches
	short      shortRun // what shortMatch is of
	shortMatch index.Matches
	mem        []memory  // by target
	recent     []float64 // by target: recency charges, policy's own unit
	turns      [3]uint64 // round-robin, and new sessions of the session policy, by role
	rng        stream
	bound      *bindings // nil: no sessions
	choice     choice
	paces      []float64 // scratch of slowness
}

// memory is what a scorer remembers of one target beside its recency charge.
type memory struct {
	life     uint32
	computed int64
	images   *imageLRU
	pace     pace
}

// choice is what a pick has worked out on the way and commit needs. It is scratch space.
type choice struct {
	eligible int
	session  Bound
	slot     uint32 // of the session's binding where session is BoundHit
	draws    stream // the generator after this choice's draws
	drawn    bool
}

// New makes a scorer for one model over a view of the caches and a ledger of the load, both of which
// other scorers may share. It returns the FieldErrors of an invalid cfg.
func New(cfg Config, view index.View, led *load.Ledger) (*Scorer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if view == nil || led == nil {
		return nil, errors.New("a scorer needs a view and a ledger")
	}
	s := &Scorer{cfg: cfg, kind: kinds[cfg.Policy], view: view, led: led}
	for role := range s.weights {
		s.weights[role] = cfg.OverlapWeight
	}
	if cfg.PrefillOverlapWeight != nil {
		s.weights[Prefill] = *cfg.PrefillOverlapWeight
	}
	if cfg.DecodeOverlapWeight != nil {
		s.weights[Decode] = *cfg.DecodeOverlapWeight
	}
	switch {
	case cfg.Policy == LeastLoad:
		s.weights = [3]float64{}
	case s.kind == kindRandom:
		s.rng = newStream(cfg.Seed, purposeRandom)
	case s.kind == kindPowerOfTwo:
		s.rng = newStream(cfg.Seed, purposePowerOfTwo)
	case s.kind == kindSession:
		s.bound = newBindings(bindCapacity, 0)
	}
	if cfg.SessionAffinity != AffinityOff {
		s.bound = newBindings(bindCapacity, bindTTL)
	}
	return s, nil
}

// Config returns the configuration the scorer was made with.
func (s *Scorer) Config() Config { return s.cfg }

// Pick chooses among cands, given in route-key order, books the request on the winner and commits
// what the policy remembers. dec is overwritten; its slices are used again. The error wraps
// ErrNoCandidates, and nothing was changed, where no candidate is eligible.
func (s *Scorer) Pick(req *Request, cands []Candidate, dec *Decision) error {
	if err := s.choose(req, cands, dec); err != nil {
		return err
	}
	s.seq++
	s.commit(req, dec)
	return nil
}

// Peek is Pick without any effect: nothing is booked or remembered, and the Handle is zero.
func (s *Scorer) Peek(req *Request, cands []Candidate, dec *Decision) error {
	return s.choose(req, cands, dec)
}

// FirstToken tells that a reservation's prefill is done, at the given time in ns: its work is pending
// no more, and the target's pace is learned from it. It reports false, and changes nothing, the second
// time and for handles that are unknown, released or of a former life.
func (s *Scorer) FirstToken(h load.Handle, at int64) bool {
	r, ok := s.led.Reservation(h)
	if !ok || !r.Waiting {
		return false
	}
	if m, ok := s.memoryOf(r.Target); ok {
		m.pace.did(r.PrefillTokens, at)
	}
	return s.led.FirstToken(h)
}

// Release ends a reservation at the given time in ns; a session's time to live starts then. It
// reports false, and changes nothing, for handles that are unknown, released or of a former life.
func (s *Scorer) Release(h load.Handle, at int64) bool {
	r, ok := s.led.Reservation(h)
	if !ok {
		return false
	}
	if m, ok := s.memoryOf(r.Target); ok && r.Waiting {
		m.pace.began(at) // it ended without a first token: that tells nothing about the pace
	}
	if s.bound != nil {
		s.bound.release(r.Tag, at)
	}
	return s.led.Release(h)
}

// memoryOf returns the memory of a target if it is about the present life.
func (s *Scorer) memoryOf(t target.ID) (m *memory, ok bool) {
	if int(t) >= len(s.mem) {
		return nil, false
	}
	m = &s.mem[t]
	return m, m.life == s.led.Life(t)
}

// Unbind drops the session binding that the reservation was made under, after a failure. A binding
// made since is not touched. The reservation itself stays.
func (s *Scorer) Unbind(h load.Handle) {
	if s.bound == nil {
		return
	}
	if r, ok := s.led.Reservation(h); ok {
		if slot, ok := s.bound.lease(r.Tag); ok {
			s.bound.drop(slot)
		}
	}
}

// Sessions returns the number of session bindings kept.
func (s *Scorer) Sessions() int {
	if s.bound == nil {
		return 0
	}
	return len(s.bound.byKey)
}

// Forget drops everything about a target that is gone, its reservations in the ledger included:
// handles become void, sessions bound to it invalid.
func (s *Scorer) Forget(t target.ID) {
	s.led.Forget(t)
	if int(t) < len(s.mem) {
		s.mem[t] = memory{}
		s.recent[t] = 0
	}
	if s.bound != nil {
		s.bound.dirty = true
	}
}

// choose fills dec with the terms of all candidates and the choice, changing nothing that a later
// choice depends on.
func (s *Scorer) choose(req *Request, cands []Candidate, dec *Decision) error {
	s.reset(req, dec)
	if len(cands) == 0 {
		return ErrNoCandidates
	}
	if err := req.check(cands); err != nil {
		return err
	}
	s.measure(req, cands, dec)
	if s.choice.eligible == 0 {
		return fmt.Errorf("%w: none of %d has joined the ledger, as %s", ErrNoCandidates, len(cands), cands[0].Key)
	}
	s.apply(req, dec)
	if req.Role == Decode && s.cfg.DecodeInputDemand != DemandOff {
		s.demand(req, dec)
	}
	if s.bound != nil {
		s.session(req, dec)
	}
	if v := dec.PickedTerms().Candidate.Variant; v > 0 {
		dec.Tokens, dec.TokensExact = req.booked(v), req.exact(v)
	}
	return nil
}

// reset gives dec everything that does not depend on the candidates.
func (s *Scorer) reset(req *Request, dec *Decision) {
	terms := dec.Terms[:0]
	*dec = Decision{
		Seq: s.seq + 1, RequestID: req.ID, Policy: s.cfg.Policy, Role: req.Role,
		Picked: -1, Suggested: -1, Original: -1,
		Tokens: req.booked(0), TokensExact: req.TokensExact, Images: len(req.Images), Terms: terms,
	}
	if s.kind == kindKVAware {
		dec.Weight = float64(s.weights[req.Role] * amplify(req.Retention))
	}
	s.choice, s.short = choice{draws: s.rng}, shortRun{}
}

// apply runs the policy: it sets Cost and Tie of the terms, and Picked, TieRule, Basis and Reason.
func (s *Scorer) apply(req *Request, dec *Decision) {
	switch s.kind {
	case kindKVAware:
		s.kvAware(req, dec)
	case kindLeastWork:
		s.leastWork(req, dec)
	case kindPrefix:
		s.prefix(dec)
	case kindRoundRobin, kindSession:
		s.turn(dec)
	case kindRandom:
		s.random(dec)
	case kindPowerOfTwo:
		s.powerOfTwo(dec)
	}
	s.setBasis(req, dec)
}

// Reasons of a basis.
const (
	reasonNoCaches   = "the policy does not look at caches"
	reasonNoBlocks   = "the prompt has no complete block"
	reasonMultimodal = "multimodal: text hashes are not used"
	reasonWeightZero = "overlap weight is 0"
	reasonNoSession  = "request has no session"
	reasonFull       = "every session binding is in use"
)

func (s *Scorer) setBasis(req *Request, dec *Decision) {
	usesCaches := s.kind == kindKVAware || s.kind == kindLeastWork || s.kind == kindPrefix
	usesImages := s.kind != kindPrefix && req.Role != Decode && len(req.Images) > 0
	c := &dec.PickedTerms().Candidate
	unhashable, blocks := req.unhashable(c.Variant), req.blocks(c.Variant)
	switch {
	case !usesCaches:
		dec.Basis, dec.Reason = BasisLoadOnly, reasonNoCaches
	case s.kind == kindKVAware && dec.Weight == 0:
		dec.Basis, dec.Reason = BasisLoadOnly, reasonWeightZero
	case req.Multimodal && usesImages:
		dec.Basis, dec.Reason = BasisAffinity, reasonMultimodal
	case req.Multimodal:
		dec.Basis, dec.Reason = BasisLoadOnly, reasonMultimodal
	case blocks == 0 && unhashable != "":
		dec.Basis, dec.Reason = BasisLoadOnly, unhashable
	case blocks == 0:
		dec.Basis, dec.Reason = BasisLoadOnly, reasonNoBlocks
	case c.Doubt != "":
		dec.Basis, dec.Reason = BasisEstimated, c.Doubt
	case req.Approximate != "":
		dec.Basis, dec.Reason = BasisEstimated, req.Approximate
	case !req.exact(c.Variant):
		dec.Basis = BasisEstimated
	default:
		dec.Basis = BasisExact
	}
}

// settle picks the eligible candidate with the least (Cost, Tie), the first one on a full tie, and
// names the rule that decided; tieRule is the policy's name for its tie value.
func settle(terms []Terms, tieRule Rule) (picked int, rule Rule) {
	picked, eligible := -1, 0
	for i := range terms {
		t := &terms[i]
		if !t.Eligible {
			continue
		}
		eligible++
		if picked < 0 {
			picked, rule = i, ByCost
			continue
		}
		best := &terms[picked]
		switch {
		case t.Cost < best.Cost:
			picked, rule = i, ByCost
		case t.Cost > best.Cost:
		case t.Tie < best.Tie:
			picked, rule = i, tieRule
		case t.Tie == best.Tie:
			rule = ByOrder
		case rule == ByCost:
			rule = tieRule
		}
	}
	if eligible == 1 {
		rule = ByOnly
	}
	return picked, rule
}

// commit remembers the choice and books it.
func (s *Scorer) commit(req *Request, dec *Decision) {
	t := dec.PickedTerms()
	id := t.Candidate.Target
	m := &s.mem[id]
	s.charge(req, t, id)
	m.computed += t.Blocks - t.Hits
	if req.Role != Decode {
		m.touchImages(req.Images)
	}
	if s.choice.drawn {
		s.rng = s.choice.draws
	}
	if dec.TieRule == ByTurn {
		s.turns[req.Role]++
	}
	d := load.Demand{Tokens: dec.Tokens}
	v := t.Candidate.Variant
	if !req.Multimodal {
		d.Blocks, d.More = req.prompt(v, 0), req.more(v)
	}
	if t.Load.PendingRequests == 0 {
		m.pace.began(req.At)
	}
	if req.Role != Decode {
		d.PrefillTokens = max(req.input(v), 0) - t.HitTokens
	}
	if s.choice.session != BoundNone {
		d.Tag = s.keepSession(req, dec, id)
	}
	dec.Handle = s.led.Reserve(id, d)
}

// charge ages every recency charge by one pick and charges the winner.
func (s *Scorer) charge(req *Request, t *Terms, id target.ID) {
	var amount float64
	switch {
	case s.kind == kindKVAware && s.cfg.RecentWeight > 0:
		amount = kvCharge(t)
	case s.kind == kindLeastWork && req.Role != Decode: // decode picks compute nothing
		amount = workCharge(req, t)
	default:
		return
	}
	for i, r := range s.recent {
		if r != 0 {
			if r = float64(r * recentDecay); r < recentFloor {
				r = 0
			}
			s.recent[i] = r
		}
	}
	s.recent[id] += amount
}
