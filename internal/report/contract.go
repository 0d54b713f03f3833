// Package report holds the results of replay and sim (schema kvroute.report/v1), counts what they have
// in common, prints them and judges them against thresholds. It draws nothing and runs nothing.
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
	Lost             int64 `json:"lost"`     // requests that were on killed workers twice; never finished
	Rejected         int64 `json:"rejected"` // requests larger than a worker's whole KV pool
}

// Kinds of runs in a sweep; a run outside of a sweep has none.
const (
	KindSwept     = "swept"     // a point the axes name
	KindDefault   = "default"   // the default scorer flags, added so that there is something to gain over
	KindReference = "reference" // round-robin or least-work, added to compare with
)

// Interval is the 5-95 % range of a metric over resampled traffic.
type Interval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Run is one policy with one set of flags over one trace.
type Run struct {
	Policy              string         `json:"policy"`
	Kind                string         `json:"kind,omitempty"` // a Kind constant; "" outside of sweeps
	Flags               map[string]any `json:"flags"`          // swept and set flags by name; encoding/json sorts the keys
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

	// Intervals has the spread of metrics over a sweep's repeats, by Metric.Field; nil where the run
	// was made once. HitBlocks and all other numbers are of the trace as it is, not of a resample.
	Intervals map[string]Interval `json:"intervals,omitempty"`

	// TTFTCurve is the distribution of TTFT as Curve makes it, for plots; nil where it was not kept.
	TTFTCurve []int64 `json:"-"`
}

// Verdicts of a recommendation.
const (
	VerdictBetter  = "better than the default"
	VerdictNoise   = "no difference beyond noise"
	VerdictDefault = "the default is best"
	VerdictOnce    = "noise unknown: one repeat"
)

// Recommendation is the end of a sweep: flags to paste, and what they gain over the default.
type Recommendation struct {
	Flags   map[string]any `json:"flags"`
	Metric  string         `json:"metric"`  // Metric.Field
	Gain    float64        `json:"gain"`    // share of the default's metric, positive is better
	Low     *float64       `json:"low"`     // 5-95 % interval of Gain over resampled traffic; null where unknown
	High    *float64       `json:"high"`    //
	Verdict string         `json:"verdict"` // a Verdict constant
}
