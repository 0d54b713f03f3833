package fleet

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// counters are the metrics that calls move. Names starting with infera_ are those of the router whose
// dashboards our users have; the rest is ours.
type counters struct {
	picks           *prometheus.CounterVec   // role, worker_id
	hits            *prometheus.HistogramVec // role
	blocks          *prometheus.HistogramVec // role
	hitSum          *prometheus.CounterVec   // role
	blockSum        *prometheus.CounterVec   // role
	decisions       *prometheus.CounterVec   // model, basis, reason
	untokenized     *prometheus.CounterVec   // model, reason
	tokenizeSeconds prometheus.Histogram
	promptTokens    *prometheus.CounterVec // model, origin
	predictions     *prometheus.CounterVec // worker_id, outcome
	predictedTokens *prometheus.CounterVec // worker_id
	reportedTokens  *prometheus.CounterVec // worker_id
	parity          *prometheus.GaugeVec   // worker_id, model
}

// blockBuckets are the bounds of histograms over blocks.
var blockBuckets = []float64{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192}

func newCounters(reg prometheus.Registerer) *counters {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	hist := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"role"})
		reg.MustRegister(h)
		return h
	}
	c := &counters{
		picks:       vec("infera_router_picks_total", "Picks, by role and chosen target.", "role", "worker_id"),
		hits:        hist("infera_router_pick_cache_hits", "Blocks of the request that the chosen target is believed to hold.", blockBuckets),
		blocks:      hist("infera_router_pick_request_blocks", "Complete blocks of the request.", blockBuckets),
		hitSum:      vec("infera_prefix_cache_blocks_hit_total", "Predicted hits of chosen targets, in blocks.", "role"),
		blockSum:    vec("infera_prefix_cache_blocks_total", "Blocks of requests.", "role"),
		decisions:   vec("kvroute_decisions_total", "Decisions by what they rest on, and why where that is not everything.", "model", "basis", "reason"),
		untokenized: vec("kvroute_requests_without_tokens_total", "Requests that could not be tokenized, by reason; they are routed by load.", "model", "reason"),
		tokenizeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kvroute_tokenize_seconds", Help: "Time to make tokens and block hashes of a request.", Buckets: prometheus.ExponentialBuckets(16e-6, 4, 10),
		}),
		promptTokens:    vec("kvroute_prompt_tokens_total", "Prompt tokens, by where they came from: encoded, reused (from the router's caches), estimated.", "model", "origin"),
		predictions:     vec("kvroute_predictions_total", "Predicted cached tokens against those the engine reported: equal, differing, overtaken (by what happened in between), incomparable (the engine reports something else), unreported.", "worker_id", "outcome"),
		predictedTokens: vec("kvroute_predicted_cached_tokens_total", "Cached tokens predicted, of requests whose engine reported them.", "worker_id"),
		reportedTokens:  vec("kvroute_reported_cached_tokens_total", "Cached tokens that engines reported.", "worker_id"),
	}
	c.parity = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "infera_router_render_parity", Help: "Whether the worker makes the tokens we make: 1 confirmed, 0 diverged, -1 unknown.",
	}, []string{"worker_id", "model"})
	reg.MustRegister(c.tokenizeSeconds, c.parity)
	return c
}

func (c *counters) tokenized(model string, r *tokenize.Result) {
	if r.Unhashable != "" {
		c.untokenized.WithLabelValues(model, r.Unhashable).Inc()
	}
	switch {
	case !r.Exact:
		c.promptTokens.WithLabelValues(model, "estimated").Add(float64(r.Tokens))
	default:
		c.promptTokens.WithLabelValues(model, "reused").Add(float64(r.Reused))
		c.promptTokens.WithLabelValues(model, "encoded").Add(float64(max(r.Tokens-r.Reused, 0)))
	}
}

func (c *counters) picked(model string, d *score.Decision) {
	t, role := d.PickedTerms(), d.Role.String()
	c.picks.WithLabelValues(role, t.Candidate.Key).Inc()
	c.hits.WithLabelValues(role).Observe(float64(t.Hits))
	c.blocks.WithLabelValues(role).Observe(float64(t.Blocks))
	c.hitSum.WithLabelValues(role).Add(float64(t.Hits))
	c.blockSum.WithLabelValues(role).Add(float64(t.Blocks))
	c.decisions.WithLabelValues(model, string(d.Basis), d.Reason).Inc()
}

// forget drops the series of a target that has left.
func (c *counters) forget(key string) {
	for _, v := range []*prometheus.CounterVec{c.picks, c.predictions, c.predictedTokens, c.reportedTokens} {
		v.DeletePartialMatch(prometheus.Labels{"worker_id": key})
	}
}

// Gauges, read from the targets when they are asked for.
var (
	perTarget = []string{"worker_id"}
	descs     = struct {
		workers, active, pending, held, heldTokens, view, lower, orphans, holes, refused, dropped, conflicts, trust, lastSeq, batches, gaps, missing, bad, restarts, skipped, healthy *prometheus.Desc
	}{
		workers:    desc("infera_active_workers", "Workers that serve.", "disagg_mode", "model"),
		healthy:    desc("kvroute_worker_healthy", "Whether a worker answers: 1 yes, 0 no.", perTarget...),
		active:     desc("infera_policy_active_blocks", "Distinct prompt blocks in flight.", perTarget...),
		pending:    desc("kvroute_pending_prefill_tokens", "Uncached tokens of requests without a first token.", perTarget...),
		held:       desc("kvroute_held_requests", "Requests in flight.", perTarget...),
		heldTokens: desc("kvroute_held_tokens", "Input tokens of requests in flight.", perTarget...),
		view:       desc("infera_policy_cache_view_size", "Blocks in the mirror of a target's cache.", perTarget...),
		lower:      desc("kvroute_mirror_lower_blocks", "Blocks of the mirror that are in no tier better than host memory.", perTarget...),
		orphans:    desc("kvroute_mirror_orphans", "Engine blocks whose parent is not known.", perTarget...),
		holes:      desc("kvroute_mirror_holes", "Blocks of the mirror whose parent is gone.", perTarget...),
		refused:    desc("kvroute_mirror_refused_blocks_total", "Blocks not taken into the mirror because the index is full.", perTarget...),
		dropped:    desc("kvroute_mirror_dropped_blocks_total", "Blocks given up because their parent never came.", perTarget...),
		conflicts:  desc("kvroute_mirror_conflicting_blocks_total", "Blocks not taken because they are known under another parent.", perTarget...),
		trust:      desc("kvroute_stream_trust", "State of a target's event stream: 1 for the one it is in.", "worker_id", "state"),
		lastSeq:    desc("kvroute_stream_sequence", "Number of the last batch applied.", perTarget...),
		batches:    desc("kvroute_stream_batches_total", "Batches applied.", perTarget...),
		gaps:       desc("kvroute_stream_gaps_total", "Times that batches were missing.", perTarget...),
		missing:    desc("kvroute_stream_missing_batches_total", "Batches that never came.", perTarget...),
		bad:        desc("kvroute_stream_bad_batches_total", "Batches that could not be read.", perTarget...),
		restarts:   desc("kvroute_stream_restarts_total", "Restarts of the publisher.", perTarget...),
		skipped:    desc("kvroute_stream_skipped_events_total", "Events left out, by reason.", "worker_id", "reason"),
	}
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (f *Fleet) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, ch) }

// Collect implements prometheus.Collector.
func (f *Fleet) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	type key struct{ mode, model string }
	serving := map[key]int{}
	seen := map[string]bool{}
	for _, s := range f.States() {
		k := s.RouteKey
		if s.Health == Healthy && !seen[s.WorkerID] {
			serving[key{s.Role, s.Model}]++
		}
		seen[s.WorkerID] = true
		gauge(descs.healthy, boolean(s.Health == Healthy), k)
		if !s.Joined {
			continue
		}
		gauge(descs.active, float64(s.ActiveBlocks), k)
		gauge(descs.pending, float64(s.PendingTokens), k)
		gauge(descs.held, float64(s.HeldRequests), k)
		gauge(descs.heldTokens, float64(s.HeldTokens), k)
		gauge(descs.view, float64(s.Blocks), k)
		gauge(descs.lower, float64(s.LowerBlocks), k)
		gauge(descs.orphans, float64(s.Orphans), k)
		gauge(descs.holes, float64(s.Holes), k)
		count(descs.refused, uint64(s.Refused), k)
		count(descs.dropped, uint64(s.Dropped), k)
		count(descs.conflicts, uint64(s.Conflicts), k)
		for st := range feed.NumTrust {
			gauge(descs.trust, boolean(st == s.Stream.Trust), k, st.String())
		}
		if s.Stream.HasSeq {
			gauge(descs.lastSeq, float64(s.Stream.Seq), k)
		}
		count(descs.batches, s.Stream.Batches, k)
		count(descs.gaps, s.Stream.Gaps, k)
		count(descs.missing, s.Stream.Missing, k)
		count(descs.bad, s.Stream.Bad, k)
		count(descs.restarts, s.Stream.Restarts, k)
		for why, n := range s.Stream.Skipped {
			count(descs.skipped, n, k, why)
		}
	}
	for k, n := range serving {
		gauge(descs.workers, float64(n), k.mode, k.model)
	}
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
