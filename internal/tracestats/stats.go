// Package tracestats measures a trace: its size and shape, and what a prefix cache can reach on it.
//
// Names and rules of the numbers are those of testdata/trace-stats.json; every one is a count, or a
// quotient of counts rounded as stated.
package tracestats

import (
	"math"
	"slices"

	"github.com/kvroute/kvroute/internal/prefixcache"
	"github.com/kvroute/kvroute/internal/trace"
)

// Stats is what is known of one trace.
type Stats struct {
	Name      string    `json:"name"`
	Format    string    `json:"format"`
	Basic     Basic     `json:"basic"`
	Infinite  *Infinite `json:"infinite,omitempty"`   // nil: the trace has no blocks
	SingleLRU []LRU     `json:"single_lru,omitempty"` // one a capacity asked for
}

// Basic is size and shape. Percentiles are nearest rank; means are rounded to 3 decimals.
type Basic struct {
	Requests         int      `json:"requests"`
	Sessions         int      `json:"sessions"`
	FirstMs          int64    `json:"first_ms"`
	LastMs           int64    `json:"last_ms"`
	RateRPS          *float64 `json:"rate_rps"` // requests per second from first to last arrival, 4 decimals; nil: no time passes
	InputTokens      int64    `json:"input_tokens"`
	InputMean        float64  `json:"input_mean"`
	InputMin         int64    `json:"input_min"`
	InputP50         int64    `json:"input_p50"`
	InputP90         int64    `json:"input_p90"`
	InputP99         int64    `json:"input_p99"`
	InputMax         int64    `json:"input_max"`
	OutputTokens     int64    `json:"output_tokens"`
	OutputMean       float64  `json:"output_mean"`
	OutputP50        int64    `json:"output_p50"`
	OutputP90        int64    `json:"output_p90"`
	OutputP99        int64    `json:"output_p99"`
	OutputMax        int64    `json:"output_max"`
	BlocksTotal      int64    `json:"blocks_total"`
	BlocksUnique     int64    `json:"blocks_unique"`
	BlocksP50        int64    `json:"blocks_p50"`
	BlocksMax        int64    `json:"blocks_max"`
	ParentViolations int      `json:"parent_violations"` // always 0: readers refuse ids with two predecessors
}

// Infinite is one cache without a limit. The second half counts requests from n/2 on, in a cache that
// all requests fill.
type Infinite struct {
	HitBlocks         int64 `json:"hit_blocks"`
	TotalBlocks       int64 `json:"total_blocks"`
	HitTokens         int64 `json:"hit_tokens"`
	TotalTokens       int64 `json:"total_tokens"`
	HitBlocks2ndHalf  int64 `json:"hit_blocks_2nd_half"`
	TotalBlocks2nd    int64 `json:"total_blocks_2nd_half"`
	HitTokens2ndHalf  int64 `json:"hit_tokens_2nd_half"`
	TotalTokens2nd    int64 `json:"total_tokens_2nd_half"`
	RequestsFullyHeld int64 `json:"requests_fully_cached"`
}

// LRU is one cache of Cap blocks.
type LRU struct {
	Cap              int   `json:"cap"`
	HitBlocks        int64 `json:"hit_blocks"`
	HitTokens        int64 `json:"hit_tokens"`
	HitBlocks2ndHalf int64 `json:"hit_blocks_2nd_half"`
	HitTokens2ndHalf int64 `json:"hit_tokens_2nd_half"`
}

// Of measures w, with one LRU cache for each capacity in blocks (0: unlimited).
func Of(w *trace.Workload, capacities []int) *Stats {
	s := &Stats{Name: w.Name, Format: w.Format, Basic: basic(w)}
	if s.Basic.BlocksTotal == 0 {
		return s
	}
	inf := run(w, 0)
	s.Infinite = &inf
	for _, c := range capacities {
		s.AddLRU(w, c)
	}
	return s
}

// AddLRU measures one more LRU cache of capacity blocks on w, which s is of: for callers that want to stop,
// or tell how far they are, in between. It does nothing where w has no blocks.
func (s *Stats) AddLRU(w *trace.Workload, capacity int) {
	if s.Infinite == nil {
		return
	}
	r := run(w, capacity)
	s.SingleLRU = append(s.SingleLRU, LRU{
		Cap: capacity, HitBlocks: r.HitBlocks, HitTokens: r.HitTokens,
		HitBlocks2ndHalf: r.HitBlocks2ndHalf, HitTokens2ndHalf: r.HitTokens2ndHalf,
	})
}

// Ceiling returns the leading blocks and tokens of w that one cache without limit holds: what no
// router can pass.
func Ceiling(w *trace.Workload) (blocks, tokens int64) {
	r := run(w, 0)
	return r.HitBlocks, r.HitTokens
}

// run sends all requests through one cache.
func run(w *trace.Workload, capacity int) Infinite {
	var r Infinite
	c := prefixcache.NewLRU(w.Forest, capacity)
	for i := range w.Requests {
		q := &w.Requests[i]
		hits, blocks := c.Hits(q.Leaf), w.BlocksOf(q)
		tokens := w.PrefixTokens(q, hits)
		c.Touch(q.Leaf, nil, nil)
		r.HitBlocks += int64(hits)
		r.TotalBlocks += int64(blocks)
		r.HitTokens += tokens
		r.TotalTokens += q.Input
		if hits == blocks && blocks > 0 {
			r.RequestsFullyHeld++
		}
		if i < len(w.Requests)/2 {
			continue
		}
		r.HitBlocks2ndHalf += int64(hits)
		r.TotalBlocks2nd += int64(blocks)
		r.HitTokens2ndHalf += tokens
		r.TotalTokens2nd += q.Input
	}
	return r
}

func basic(w *trace.Workload) Basic {
	n := len(w.Requests)
	b := Basic{Requests: n, Sessions: len(w.Sessions)}
	if n == 0 {
		return b
	}
	in, out, blocks := make([]int64, n), make([]int64, n), make([]int64, n)
	for i := range w.Requests {
		q := &w.Requests[i]
		in[i], out[i], blocks[i] = q.Input, q.Output, int64(w.BlocksOf(q))
		b.InputTokens += in[i]
		b.OutputTokens += out[i]
		b.BlocksTotal += blocks[i]
	}
	for _, v := range [][]int64{in, out, blocks} {
		slices.Sort(v)
	}
	first, last := w.Requests[0].Arrival, w.Requests[n-1].Arrival
	b.FirstMs, b.LastMs = first/1000, last/1000
	if b.LastMs > b.FirstMs {
		rate := rounded(float64(n)/float64(float64(b.LastMs-b.FirstMs)/1000), 1e4)
		b.RateRPS = &rate
	}
	b.InputMean, b.OutputMean = rounded(float64(b.InputTokens)/float64(n), 1e3), rounded(float64(b.OutputTokens)/float64(n), 1e3)
	b.InputMin, b.InputMax, b.OutputMax, b.BlocksMax = in[0], in[n-1], out[n-1], blocks[n-1]
	b.InputP50, b.InputP90, b.InputP99 = nearest(in, 50), nearest(in, 90), nearest(in, 99)
	b.OutputP50, b.OutputP90, b.OutputP99 = nearest(out, 50), nearest(out, 90), nearest(out, 99)
	b.BlocksP50 = nearest(blocks, 50)
	b.BlocksUnique = int64(w.Forest.Len())
	return b
}

// nearest returns the ceil(p/100*n)-th smallest of sorted values.
func nearest(v []int64, p int) int64 {
	return v[max((p*len(v)+99)/100, 1)-1]
}

func rounded(x, unit float64) float64 { return math.Round(float64(x*unit)) / unit }
