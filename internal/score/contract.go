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
	ID           string
	Model        string
	Role         Role
	At           int64        // time in ns on the driver's clock; used for session expiry only
	Blocks       []block.Hash // at BlockSize; empty where unknown
	BlockSize    int
	InputTokens  int64 // prompt tokens; TokensKnown says whether exact
	TokensExact  bool
	N            int64    // samples asked for; values below 1 count as 1
	BlockTokens  []uint32 // cumulative tokens of the first i+1 blocks where blocks differ in size; nil: BlockSize each
	Session      string   // session id, "" none
	Retention    Retention
	Images       []uint64 // image keys (XXH3-64), in order; a request with Multimodal set never uses text overlap
	Multimodal   bool
	Unhashable   string // why Blocks is empty though the prompt has tokens; "" where it is not
}

// Candidate is a target the driver considers eligible. Candidates are given in route-key order.
type Candidate struct {
	Target    target.ID
	Key       string // route key
	Role      Role
	BlockSize int // 0: unknown; such a target never has hits and is charged the request's full blocks
}

// Terms are the parts of one candidate's cost, all of them, whatever the policy uses.
type Terms struct {
	Candidate Candidate
	Blocks    int64   // request blocks on this candidate
	Hits      int64   // leading blocks held, any tier
	HitWeight float64 // hits weighed by tier
	HitTokens int64   // tokens of the leading run
	Load      load.Load
	Recent    float64 // recency charge, policy's own unit (kv-aware: blocks; least-work: tokens)
	ImageHits int64
	Demand    float64 // projected decode demand where it was computed
	Cost      float64
	Eligible  bool // false: left out by the policy's own rule (session binding, power-of-two sample); reason in Note
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

// Decision is the full record of a choice: receipt, replay line, simulator trace and what explain prints.
type Decision struct {
	Seq        uint64
	RequestID  string
	Policy     string
	Role       Role
	Basis      Basis
	Reason     string
	Weight     float64 // overlap weight after role and hints
	TieRule    string  // the rule that settled it: "cost", "load", "order", ...
	Picked     int     // index into Terms
	Suggested  int     // shadow demand: what demand would have chosen; -1 none
	Terms      []Terms
	Handle     load.Handle // reservation made with the choice
}

// PickedTerms returns the chosen candidate's terms.
func (d *Decision) PickedTerms() *Terms { return &d.Terms[d.Picked] }
