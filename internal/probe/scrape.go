package probe

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"
)

// Value is a number that may be unknown.
type Value struct {
	V     float64
	Known bool
}

// Load is what the metrics of one data-parallel rank say. All of it is some time old.
type Load struct {
	Rank    int
	HasRank bool  // the metrics have a label for it
	Running Value // requests being computed
	Waiting Value // requests in the queue
	Usage   Value // 0 to 1: share of the cache held by running requests (cached prefixes do not count)
	Queries Value // tokens looked up in the prefix cache since the start
	Hits    Value // tokens of them that were found
}

// meaning is where an engine says one of the numbers. Series of one rank are joined: added up, or the
// largest taken where each process of the rank says the same.
type meaning struct {
	to    func(*Load) *Value
	names []string // the first that is there
	add   bool
}

var vllmMeanings = []meaning{
	{to: func(l *Load) *Value { return &l.Running }, names: []string{"num_requests_running"}, add: true},
	{to: func(l *Load) *Value { return &l.Waiting }, names: []string{"num_requests_waiting"}, add: true},
	{to: func(l *Load) *Value { return &l.Usage }, names: []string{"kv_cache_usage_perc", "gpu_cache_usage_perc"}},
	{to: func(l *Load) *Value { return &l.Queries }, names: []string{"prefix_cache_queries_total", "prefix_cache_queries", "gpu_prefix_cache_queries_total"}, add: true},
	{to: func(l *Load) *Value { return &l.Hits }, names: []string{"prefix_cache_hits_total", "prefix_cache_hits", "gpu_prefix_cache_hits_total"}, add: true},
}

var sglangMeanings = []meaning{
	{to: func(l *Load) *Value { return &l.Running }, names: []string{"num_running_reqs"}},
	{to: func(l *Load) *Value { return &l.Waiting }, names: []string{"num_queue_reqs"}},
	{to: func(l *Load) *Value { return &l.Usage }, names: []string{"token_usage"}},
	{to: func(l *Load) *Value { return &l.Queries }, names: []string{"prompt_tokens_total"}, add: true},
	{to: func(l *Load) *Value { return &l.Hits }, names: []string{"cached_tokens_total"}, add: true},
}

// Scrape reads the engine's metrics, one Load a rank in the order of ranks. Numbers without a rank of their
// own stand in an entry without rank. An engine whose metrics are neither vLLM's nor SGLang's is an error.
func Scrape(ctx context.Context, client *http.Client, base *url.URL) ([]Load, error) {
	a := api{client: client, base: base}
	families, err := a.metrics(ctx)
	if err != nil {
		return nil, fmt.Errorf("scraping %s: %w", base.Host, err)
	}
	loads := collect(families, "vllm", "engine", vllmMeanings)
	if len(loads) == 0 {
		loads = collect(families, "sglang", "dp_rank", sglangMeanings)
	}
	if len(loads) == 0 {
		return nil, fmt.Errorf("scraping %s: GET /metrics has no load of vllm or sglang (SGLang needs --enable-metrics)", base.Host)
	}
	return loads, nil
}

func collect(families map[string]*dto.MetricFamily, prefix, rankLabel string, meanings []meaning) []Load {
	var loads []Load
	of := func(m *dto.Metric) *Load {
		rank, err := strconv.Atoi(label(m, rankLabel))
		has := err == nil && rank >= 0
		if !has {
			rank = 0
		}
		for i := range loads {
			if loads[i].HasRank == has && loads[i].Rank == rank {
				return &loads[i]
			}
		}
		loads = append(loads, Load{Rank: rank, HasRank: has})
		return &loads[len(loads)-1]
	}
	for _, mean := range meanings {
		for _, name := range mean.names {
			f := family(families, prefix, name)
			if f == nil {
				continue
			}
			for _, m := range f.Metric {
				v, ok := sample(m)
				if !ok {
					continue
				}
				to := mean.to(of(m))
				switch {
				case !to.Known:
					*to = Value{v, true}
				case mean.add:
					to.V += v
				default:
					to.V = max(to.V, v)
				}
			}
			break
		}
	}
	slices.SortFunc(loads, func(a, b Load) int {
		if a.HasRank != b.HasRank {
			return map[bool]int{true: 1, false: -1}[a.HasRank]
		}
		return cmp.Compare(a.Rank, b.Rank)
	})
	return loads
}

// sample is the number of a gauge or counter; one that is none (NaN, infinite) is not known.
func sample(m *dto.Metric) (float64, bool) {
	v := math.NaN()
	switch {
	case m.Gauge != nil:
		v = m.Gauge.GetValue()
	case m.Counter != nil:
		v = m.Counter.GetValue()
	case m.Untyped != nil:
		v = m.Untyped.GetValue()
	}
	return v, !math.IsNaN(v) && !math.IsInf(v, 0)
}
