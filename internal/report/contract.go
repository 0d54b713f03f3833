// Package report holds the results of replay and sim (schema kvroute.report/v1) and prints them.
package report

// Schema names the JSON document.
const Schema = "kvroute.report/v1"

// Trace describes the traffic a run was made on.
type Trace struct {
	Name             string `json:"name"`
	Requests         int64  `json:"requests"`
	Blocks           int64  `json:"blocks"`
	InputTokens      int64  `json:"input_tokens"`
	OutputTokens     int64  `json:"output_tokens"`
	CeilingHitBlocks int64  `json:"ceiling_hit_blocks"`
	CeilingHitTokens int64  `json:"ceiling_hit_tokens"`
}

// Dist is a distribution in µs; percentiles are nearest rank.
type Dist struct {
	Sum  int64   `json:"sum"`
	Mean float64 `json:"mean"`
	P50  int64   `json:"p50"`
	P90  int64   `json:"p90"`
	P99  int64   `json:"p99"`
	Max  int64   `json:"max"`
}

// Sim is what only a simulation knows.
type Sim struct {
	TTFT             Dist  `json:"ttft_us"`
	ITL              Dist  `json:"itl_us"`
	E2E              Dist  `json:"e2e_us"`
	Queue            Dist  `json:"queue_us"`
	MakespanUS       int64 `json:"makespan_us"`
	PeakActiveBlocks int64 `json:"peak_active_blocks"`
	Preemptions      int64 `json:"preemptions"`
	Completed        int64 `json:"completed"`
	Lost             int64 `json:"lost"` // requests of killed workers that were not sent again
}

// Run is one policy with one set of flags over one trace.
type Run struct {
	Policy              string         `json:"policy"`
	Flags               map[string]any `json:"flags"` // swept and set flags by name; encoding/json sorts the keys
	Workers             int            `json:"workers"`
	CapacityBlocks      int64          `json:"capacity_blocks"`
	HitBlocks           int64          `json:"hit_blocks"`
	HitRate             float64        `json:"hit_rate"`
	HitTokens           int64          `json:"hit_tokens"`
	TokenHitRate        float64        `json:"token_hit_rate"`
	RequestsPerWorker   []int64        `json:"requests_per_worker"`
	MissBlocksPerWorker []int64        `json:"miss_blocks_per_worker"`
	Imbalance           float64        `json:"imbalance"` // max/mean of requests per worker
	PicksDigest         string         `json:"picks_digest"`
	PredictedHitBlocks  int64          `json:"predicted_hit_blocks"`
	Sim                 *Sim           `json:"sim,omitempty"`
}

// Recommendation is the end of a sweep: flags to paste, and what they gain over the default.
type Recommendation struct {
	Flags  map[string]any `json:"flags"`
	Metric string         `json:"metric"`
	Gain   float64        `json:"gain"` // share of the default's metric, positive is better
	Low    float64        `json:"low"`
	High   float64        `json:"high"`
}
