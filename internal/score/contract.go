// Package score chooses a target for a request. One scorer stands under serve, sim and replay.
package score

import (
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/target"
)

// Policy names, as users type them (--router-policy).
const (
	LeastWork       = "least-work"
	KVAware         = "kv-aware"
	RoundRobin      = "round-robin"
	Random          = "random"
	LeastLoad       = "least-load"
	PowerOfTwo      = "power-of-two"
	Prefix          = "prefix"
	PrefixThreshold = "prefix-threshold"
	Session         = "session"
)

// Role is the part a target plays, and the part of a request being placed.
type Role uint8

// The roles. Aggregated workers are Mixed.
const (
	Mixed Role = iota
	Prefill
	Decode
)

// DemandMode is --decode-input-demand.
type DemandMode uint8

// Demand modes.
const (
	DemandOff DemandMode = iota
	DemandShadow
	DemandOn
)

// Affinity is --session-affinity.
type Affinity uint8

// Session affinity modes.
const (
	AffinityOff Affinity = iota
	AffinityPrefill
	AffinityBoth
)

// Retention is a client's cache hint (infera-router reference 18.2): it scales the overlap weight of kv-aware.
type Retention uint8

// Retention hints. NoHint scales by 1 like Short; Explicit None dampens by 0.1; Long amplifies by 2.
const (
	NoHint Retention = iota
	RetainNone
	RetainShort
	RetainLong
)

// Config is everything that decides; two scorers with equal Config and equal inputs decide alike.
// The zero value is not valid; start from Defaults().
type Config struct {
	Policy               string
	OverlapWeight        float64
	PrefillOverlapWeight *float64 // nil: OverlapWeight
	DecodeOverlapWeight  *float64 // nil: OverlapWeight
	RecentWeight         float64  // kv-aware only: weight of the recency term, 1 = Infera's shipped behaviour
	PrefixThreshold      float64  // prefix-threshold only: share of the request's blocks
	DecodeInputDemand    DemandMode
	DecodeRequestWeight  float64 // W, tokens per held request
	SessionAffinity      Affinity
	TierWeights          [3]float64 // hit weight of GPU, CPU, Disk blocks
	Seed                 uint64     // random and power-of-two
}

// Request is what the scorer may know of a request. It never sees text or bodies, nor the true output length.
type Request struct {
	ID          string
	Model       string
	Role        Role
	At          int64        // time in ns on the driver's clock; used for session expiry only
	Blocks      []block.Hash // at BlockSize; empty where unknown
	BlockSize   int
	InputTokens int64 // prompt tokens; TokensKnown says whether exact
	TokensExact bool
	N           int64    // samples asked for; values below 1 count as 1
	BlockTokens []uint32 // cumulative tokens of the first i+1 blocks where blocks differ in size; nil: BlockSize each
	Session     string   // session id, "" none
	Retention   Retention
	Images      []uint64 // image keys (XXH3-64), in order; a request with Multimodal set never uses text overlap
	Multimodal  bool
	Unhashable  string // why Blocks is empty though the prompt has tokens; "" where it is not

	// More are further prompts of the same request (a batch): their hits and misses are added. They
	// belong to Blocks in every way; InputTokens counts all prompts. BlockTokens are those of Blocks.
	More [][]block.Hash
	// LastComputed: engines reuse whole pages of their cache only, and compute the last token of every
	// prompt even if all of it is cached. So of a leading run of r tokens in a prompt of n,
	// min(r, n-1)/page pages of page tokens are hits, page being the candidate's, and so many whole blocks
	// as lie within these. Simulations on block traces, and requests with BlockTokens, leave it false.
	LastComputed bool
	// Lengths are the tokens of the prompts, of Blocks and of each of More, needed with LastComputed.
	Lengths []int64
	// Approximate says why the mirrors do not come from engine events ("" they do): the basis is estimated.
	Approximate string
	// Variants are the same request as other workers make tokens of it. A candidate with Variant k > 0 is
	// measured, and booked, by Variants[k-1], one with 0 by the request itself.
	Variants []Variant
}

// Variant is a request as some of its candidates tokenize it (another chat template preparation).
type Variant struct {
	Blocks      []block.Hash
	More        [][]block.Hash
	Lengths     []int64
	InputTokens int64
	TokensExact bool
	Unhashable  string
}

// Candidate is a target the driver considers eligible. Candidates are given in route-key order.
type Candidate struct {
	Target    target.ID
	Key       string // route key
	Role      Role
	BlockSize int // 0: unknown; such a target never has hits and is charged the request's full blocks
	PageSize  int // tokens per block of the engine's cache, for Request.LastComputed; 0: BlockSize
	Variant   int // which of Request.Variants the target makes of the request; 0: the request itself
	// Doubt says why the target's mirror is not to be believed fully; "" it is. Hits count all the same,
	// but a decision for the target has the basis estimated.
	Doubt string
}

// Terms are the parts of one candidate's cost, all of them, whatever the policy uses.
type Terms struct {
	Candidate Candidate
	Blocks    int64   // request blocks charged on this candidate; 0 for multimodal requests, whose text hashes mean nothing
	Hits      int64   // leading blocks held, any tier
	HitWeight float64 // hits weighed by tier
	HitTokens int64   // tokens of the leading run
	Load      load.Load
	Recent    float64 // recency charge, policy's own unit (kv-aware: blocks; least-work: tokens); 0 where the policy keeps none
	Computed  int64   // blocks the target had to compute so far, by the scorer's own count
	ImageHits int64   // of the request's images, those the target was sent lately
	Slow      float64 // least-work: slowness against the fleet, 1 = not slower; 0: unknown, null in JSON
	Demand    float64 // projected decode demand where it was computed
	Cost      float64 // what the policy minimises, before ties; 0 for policies without a cost
	Tie       float64 // what equal costs are settled by, lower wins; then candidate order
	Eligible  bool    // false: left out by the policy's own rule (session binding, power-of-two sample); reason in Note
	Note      string
}

// Basis says what the choice rests on.
type Basis string

// The bases.
const (
	BasisExact     Basis = "exact"
	BasisEstimated Basis = "estimated"
	BasisAffinity  Basis = "affinity"
	BasisLoadOnly  Basis = "load-only"
)

// Rule names what settled a choice.
type Rule string

// The rules. Costs are settled by cost, then the tie value, then order.
const (
	ByCost     Rule = "cost"     // one candidate had the lowest cost
	ByLoad     Rule = "load"     // lowest costs were equal, the lesser load won
	ByHeld     Rule = "held"     // all equal and the request books no blocks: fewer held requests won
	ByComputed Rule = "computed" // prefix policies: equal, the target that computed fewer blocks won
	ByOrder    Rule = "order"    // all equal, the first in candidate order won
	ByOnly     Rule = "only"     // one candidate was eligible
	ByTurn     Rule = "turn"     // round-robin, and new sessions of the session policy
	ByDraw     Rule = "draw"     // random, and ties of power-of-two
	BySession  Rule = "session"  // the session was bound to the target
	ByDemand   Rule = "demand"   // lowest projected decode demand
)

// Bound says what session affinity found.
type Bound string

// Session outcomes. Full means that no binding could be made: every one is in use.
const (
	BoundNone    Bound = ""
	BoundNew     Bound = "new"
	BoundHit     Bound = "hit"
	BoundExpired Bound = "expired"
	BoundInvalid Bound = "invalid"
	BoundFull    Bound = "full"
)

// Decision is the full record of a choice: receipt, replay line, simulator trace and what explain prints.
type Decision struct {
	Seq         uint64 // 1 for a scorer's first pick
	RequestID   string
	Policy      string
	Role        Role
	Basis       Basis
	Reason      string
	Weight      float64 // overlap weight after role and hints
	TieRule     Rule    // the rule that settled it
	Picked      int     // index into Terms
	Suggested   int     // decode demand on or shadow: what demand chooses; -1 none
	Original    int     // decode demand on or shadow: what the policy alone chooses; -1 none
	Tokens      int64   // input tokens times samples, as booked
	TokensExact bool
	Images      int
	Session     Bound
	Terms       []Terms
	Handle      load.Handle // reservation made with the choice; not part of the JSON form
}

// PickedTerms returns the chosen candidate's terms.
func (d *Decision) PickedTerms() *Terms { return &d.Terms[d.Picked] }
