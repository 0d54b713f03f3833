// Package snapshot is what a router tells of itself to those who watch it: plain data, versioned, the same in
// the admin API, in files and on the screen. It holds no text of prompts unless the router was told to show it.
//
// Times are Unix milliseconds by the router's clock, so that nothing changes while nothing happens and a
// watcher's own clock does not matter: ages are differences to AtMS. What is not known is nil.
package snapshot

import "encoding/json"

// Schema names the form of a Snapshot. Readers ignore fields they do not know.
const Schema = "kvroute.snapshot/v1"

// Snapshot is the whole state at one moment.
type Snapshot struct {
	Schema   string    `json:"schema"`
	Run      string    `json:"run"`        // names the router's process: another one after a restart
	Seq      uint64    `json:"seq"`        // of the last change that is in it, within the run
	AtMS     int64     `json:"at_unix_ms"` // when it was made
	Router   Router    `json:"router"`
	Workers  []Worker  `json:"workers"`  // one entry a target, by model, role and route key
	Cache    Cache     `json:"cache"`    // what is cached where
	Picks    []Pick    `json:"picks"`    // the latest decisions that were kept, oldest first
	Warnings []Warning `json:"warnings"` // newest first
}

// Router is what the header shows.
type Router struct {
	Version   string         `json:"version"`
	StartedMS int64          `json:"started_unix_ms"`
	Ready     bool           `json:"ready"`
	NotReady  []string       `json:"not_ready_because,omitempty"`
	Draining  bool           `json:"draining"`
	Policy    string         `json:"policy"`
	Flags     map[string]any `json:"flags"` // effective flags of the scorer
	BlockSize int            `json:"block_size"`

	InFlight    int64    `json:"in_flight"`
	Requests    uint64   `json:"requests_total"` // decided
	RequestRate float64  `json:"requests_per_s"` // over ten seconds
	InputTokens int64    `json:"input_tokens_total"`
	SavedTokens int64    `json:"saved_tokens_total"` // of them, cached where they were sent: as reported where engines report, else as predicted
	HitShare1m  *float64 `json:"hit_share_1m"`       // predicted cached tokens of input tokens, over the last minute; nil: no requests
	HitShare15m *float64 `json:"hit_share_15m"`
	DispatchP50 *float64 `json:"dispatch_p50_ms"` // the router's own time from a request's body to its dispatch, over the last minute
	DispatchP99 *float64 `json:"dispatch_p99_ms"`
	Kept        uint64   `json:"picks_kept_total"` // decisions that were kept to be shown, of Requests
	Watchers    int      `json:"watchers"`
	Text        bool     `json:"text"` // prefixes show text
}

// Worker is a target: a worker or one of its data-parallel ranks.
type Worker struct {
	WorkerID      string   `json:"worker_id"`
	RouteKey      string   `json:"route_key"` // worker, or worker#dp<rank>
	URL           string   `json:"url"`
	Model         string   `json:"model"`
	Role          string   `json:"role"`
	Engine        string   `json:"engine"`
	EngineVersion string   `json:"engine_version,omitempty"`
	Health        string   `json:"health"` // starting, healthy, unhealthy
	HealthReason  string   `json:"health_reason,omitempty"`
	Breaker       string   `json:"breaker,omitempty"` // closed, half-open, open
	Busy          bool     `json:"busy"`
	Trust         string   `json:"trust"` // of its events, see package feed
	TrustReason   string   `json:"trust_reason"`
	TrustSinceMS  *int64   `json:"trust_since_unix_ms"`
	Approximate   bool     `json:"approximate"` // the mirror is guessed from what was sent there
	BlockCount    int      `json:"block_count"` // blocks of the router's size in the mirror, all tiers
	LowerBlocks   int      `json:"lower_tier_block_count"`
	Tiers         [3]int   `json:"tier_block_counts"` // blocks by their nearest tier: GPU, CPU, disk
	PoolBlocks    *int64   `json:"engine_pool_blocks"`
	PageSize      *int     `json:"engine_block_size"` // tokens in a block of the engine's
	Fill          *float64 `json:"fill"`              // GPU tier's tokens of the pool's
	ContentHash   string   `json:"content_hash"`
	Orphans       int      `json:"orphans"`
	Holes         int      `json:"holes"`
	ActiveBlocks  int64    `json:"active_blocks"`
	PendingTokens int64    `json:"pending_tokens"`
	HeldRequests  int64    `json:"held_requests"`
	HeldTokens    int64    `json:"held_tokens"`

	Requests      uint64     `json:"requests_total"`
	RequestRate   float64    `json:"requests_per_s"`
	History       []uint32   `json:"requests_history"`   // requests in each of the last HistoryLength spans of HistorySpanMS, oldest first, the current one left out
	HitShare      *float64   `json:"hit_share_1m"`       // predicted
	ReportedShare *float64   `json:"reported_hit_share"` // cached tokens of prompt tokens as the engine says, over what was compared lately
	Stream        Stream     `json:"stream"`
	Parity        []Parity   `json:"parity"`
	Predictions   Prediction `json:"predictions"`
}

// Requests are counted in spans, for sparklines.
const (
	HistoryLength = 30
	HistorySpanMS = 2000
)

// Stream is the event stream of a target.
type Stream struct {
	Sequence    *uint64           `json:"sequence"`
	LastEventMS *int64            `json:"last_event_unix_ms"`
	Batches     uint64            `json:"batches"`
	Replayed    uint64            `json:"replayed"`
	Gaps        uint64            `json:"gaps"`
	Missing     uint64            `json:"missing"`
	Restarts    uint64            `json:"restarts"`
	Bad         uint64            `json:"bad"`
	Skipped     map[string]uint64 `json:"skipped_events,omitempty"`
	Stored      uint64            `json:"stored_blocks_total"`
	Removed     uint64            `json:"removed_blocks_total"`
	Clears      uint64            `json:"clears_total"`
	Refused     uint64            `json:"refused_blocks_total"`     // not taken into the mirror, because the index is full
	Dropped     uint64            `json:"dropped_blocks_total"`     // given up, because the block they hang on never came
	Conflicts   uint64            `json:"conflicting_blocks_total"` // known under another parent: not taken
	StoredHist  []uint32          `json:"stored_history"`           // blocks in each span, as Worker.History
	RemovedHist []uint32          `json:"removed_history"`
}

// Parity is one comparison of our tokens with the engine's.
type Parity struct {
	Case    string `json:"case"`
	Verdict string `json:"verdict"` // confirmed, diverged, unknown
	Detail  string `json:"detail,omitempty"`
}

// Prediction compares predicted cached tokens with those the engine reported.
type Prediction struct {
	Compared     uint64 `json:"compared"`
	Differing    uint64 `json:"differing"`
	Overtaken    uint64 `json:"overtaken"`
	Incomparable uint64 `json:"incomparable"`
	Predicted    int64  `json:"predicted_tokens"`
	Reported     int64  `json:"reported_tokens"`
	Diverged     bool   `json:"diverged"`
}

// Cache is what all mirrors hold together.
type Cache struct {
	Held     int64    `json:"held_blocks"`     // summed over targets
	Distinct int64    `json:"distinct_blocks"` // what is left of it without duplicates
	Prefixes []Prefix `json:"prefixes"`        // the tree of the prefixes that recent requests share, each after its parent, hottest first among siblings
	Sampled  int      `json:"requests_sampled"`
}

// Prefix is a run of blocks that some recent requests have in common: a node of the tree.
type Prefix struct {
	Hash    string   `json:"hash"`             // of its last block: names the whole prefix
	Parent  string   `json:"parent,omitempty"` // "": it begins with the first block
	Model   string   `json:"model"`
	From    int      `json:"from_block"` // blocks before it
	Blocks  int      `json:"blocks"`     // its own
	Uses    int      `json:"uses"`       // of the requests sampled
	LastMS  int64    `json:"last_use_unix_ms"`
	Holders []Holder `json:"holders"` // targets that hold some of its own blocks, by route key
	Text    string   `json:"text,omitempty"`
}

// Holder is a target that holds the beginning of a Prefix.
type Holder struct {
	RouteKey string `json:"route_key"`
	Blocks   int    `json:"blocks"` // of the prefix's own, from its first on
}

// Pick is a decision, shortened. Where requests come faster than they can be read some are kept, and counted.
type Pick struct {
	ID         uint64   `json:"id"` // counts decisions of all models, from 1
	AtMS       int64    `json:"at_unix_ms"`
	RequestID  string   `json:"request_id"`
	Model      string   `json:"model"`
	Role       string   `json:"role"`
	Session    string   `json:"session,omitempty"` // a hash of the session's id
	Basis      string   `json:"basis"`             // exact, estimated, affinity, load-only
	Reason     string   `json:"reason,omitempty"`
	Tokens     int64    `json:"input_tokens"`
	Blocks     int64    `json:"request_blocks"`
	Hits       int64    `json:"cache_hits"`
	RouteKey   string   `json:"picked"`
	Rule       string   `json:"tie_rule"`
	Cost       float64  `json:"cost"`
	RunnerUp   string   `json:"runner_up,omitempty"`
	Margin     *float64 `json:"margin"` // cost of the runner-up less Cost; nil: no runner-up, or a policy without costs
	Candidates int      `json:"candidates"`
}

// Warning is something an operator should know, in words.
type Warning struct {
	ID       string `json:"id"` // the same for the same thing going on
	AtMS     int64  `json:"at_unix_ms"`
	Severity string `json:"severity"` // warning, error
	Kind     string `json:"kind"`     // gap, silent, parity, breaker, imbalance, health, ...
	RouteKey string `json:"route_key,omitempty"`
	Text     string `json:"text"`
	OverMS   *int64 `json:"over_unix_ms"` // nil: it goes on
}

// Delta is what changed from one Snapshot to a later one of the same run.
type Delta struct {
	Run     string   `json:"run"`
	From    uint64   `json:"from"` // Seq of the snapshot it applies to
	Seq     uint64   `json:"seq"`
	AtMS    int64    `json:"at_unix_ms"`
	Router  *Router  `json:"router,omitempty"`
	Workers []Worker `json:"workers,omitempty"` // new and changed ones, whole
	// Changes are the fields that differ, as JSON, of workers that the snapshot has, by route key; see Shorten.
	Changes  map[string]json.RawMessage `json:"changes,omitempty"`
	Gone     []string                   `json:"gone,omitempty"` // route keys
	Cache    *Cache                     `json:"cache,omitempty"`
	Picks    []Pick                     `json:"picks,omitempty"` // new ones
	Warnings []Warning                  `json:"warnings,omitempty"`
	// WarningsChanged says that Warnings is the whole new list, be it empty.
	WarningsChanged bool `json:"warnings_changed,omitempty"`
}

// MaxPicks is how many decisions a Snapshot keeps.
const MaxPicks = 500
