// Package replay sends recorded traffic through the scorer without a clock: one request after the
// other, each worker a prefix cache, a fixed number of requests in flight. It shows what a policy does
// to hits and spread, exactly and fast; times are for sim.
package replay

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/prefixcache"
	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/trace"
)

// Limits of Config.
const (
	MaxCapacity    = 1 << 31
	MaxOutstanding = 1 << 20
)

// Config says what to replay on. The zero value is not valid.
type Config struct {
	Workers     int                   // 1 to target.MaxTargets
	Capacity    int                   // blocks a worker's cache keeps; 0: without limit
	Outstanding int                   // K: the oldest of K outstanding requests is released before the next pick; 1: none is in flight
	Score       score.Config          //
	Decisions   io.Writer             // every decision, one JSON line each; nil: none
	Progress    func(done, total int) // called now and then, and at the end; nil: not
}

// Validate returns nil or score.FieldErrors with every fault, named by the flags that set the fields.
func (c *Config) Validate() error {
	var es score.FieldErrors
	between := func(field string, v, low, high int, hint string) {
		if v < low || v > high {
			es = append(es, &score.FieldError{Field: field, Value: strconv.Itoa(v), Reason: fmt.Sprintf("must be %d to %d", low, high), Hint: hint})
		}
	}
	between("workers", c.Workers, 1, target.MaxTargets, "")
	between("capacity", c.Capacity, 0, MaxCapacity, "0 is a cache without limit")
	between("outstanding", c.Outstanding, 1, MaxOutstanding, "1 releases each request before the next pick")
	return es.With(c.Score.Validate())
}

// progressEvery is how many requests pass between two looks at the context and the progress.
const progressEvery = 1024

// Run replays the workload:
//
//	pick a worker; its prefill counts as done at once
//	hits = leading blocks its cache holds
//	put the request in its cache; the router's mirror learns of it at once
//	while K requests are outstanding release the oldest
//
// so that K-1 are in flight at every pick but the first ones. Requests come in the workload's order;
// their times are seen by session affinity only.
func Run(ctx context.Context, w *trace.Workload, cfg Config) (*report.Run, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r, err := newRun(w, &cfg)
	if err != nil {
		return nil, err
	}
	for i := range w.Requests {
		if i%progressEvery == 0 {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if cfg.Progress != nil {
				cfg.Progress(i, len(w.Requests))
			}
		}
		if err := r.request(i); err != nil {
			return nil, fmt.Errorf("replaying request %d of %s: %w", i, w.Name, err)
		}
	}
	if cfg.Progress != nil {
		cfg.Progress(len(w.Requests), len(w.Requests))
	}
	return r.report(), nil
}

// run is the state of a replay, owned by one goroutine.
type run struct {
	w      *trace.Workload
	cfg    *Config
	caches []*prefixcache.LRU // what the workers really hold
	mirror *mirror            // what the router believes
	scorer *score.Scorer
	cands  []score.Candidate

	// outstanding is a ring of the reservations not yet released, oldest at head.
	outstanding []load.Handle
	head, held  int

	req    score.Request
	dec    score.Decision
	path   []block.Hash
	tokens []uint32
	line   []byte
	stored []trace.NodeID
	gone   []trace.NodeID

	requests, misses []int64
	hitBlocks        int64
	hitTokens        int64
	predicted        int64
	picks            *report.Picks
}

func newRun(w *trace.Workload, cfg *Config) (*run, error) {
	if w.Forest == nil { // made by hand, without blocks
		whole := *w
		whole.Forest = &trace.Forest{}
		w = &whole
	}
	r := &run{
		w: w, cfg: cfg, mirror: newMirror(w, cfg.Workers), picks: report.NewPicks(cfg.Workers),
		outstanding: make([]load.Handle, min(cfg.Outstanding, len(w.Requests)+1)),
		requests:    make([]int64, cfg.Workers), misses: make([]int64, cfg.Workers),
	}
	led := load.New()
	width := len(strconv.Itoa(cfg.Workers - 1)) // keys of equal width are in the order of their numbers
	for t := range cfg.Workers {
		led.Join(target.ID(t), 1)
		r.caches = append(r.caches, prefixcache.NewLRU(w.Forest, cfg.Capacity))
		r.cands = append(r.cands, score.Candidate{
			Target: target.ID(t), Key: fmt.Sprintf("w%0*d", width, t), Role: score.Mixed, BlockSize: max(1, w.BlockSize),
		})
	}
	var err error
	r.scorer, err = score.New(cfg.Score, r.mirror.idx, led)
	return r, err
}

func (r *run) request(i int) error {
	q := &r.w.Requests[i]
	r.describe(i)
	if err := r.scorer.Pick(&r.req, r.cands, &r.dec); err != nil {
		return err
	}
	picked := r.dec.PickedTerms()
	t := int(picked.Candidate.Target)
	r.scorer.FirstToken(r.dec.Handle, r.req.At)
	if r.cfg.Decisions != nil {
		r.line = append(r.dec.AppendJSON(r.line[:0]), '\n')
		if _, err := r.cfg.Decisions.Write(r.line); err != nil {
			return fmt.Errorf("writing the decision: %w", err)
		}
	}
	hits := r.caches[t].Hits(q.Leaf)
	r.requests[t]++
	r.misses[t] += int64(r.w.BlocksOf(q) - hits)
	r.hitBlocks += int64(hits)
	r.hitTokens += r.w.PrefixTokens(q, hits)
	r.predicted += picked.Hits
	r.picks.Add(t)

	r.stored, r.gone = r.stored[:0], r.gone[:0]
	r.caches[t].Touch(q.Leaf, &r.stored, &r.gone)
	if err := r.mirror.store(t, r.stored); err != nil {
		return err
	}
	if err := r.mirror.remove(t, r.gone); err != nil {
		return err
	}
	r.hold(r.dec.Handle)
	return nil
}

// hold appends a reservation, and releases the oldest ones until fewer than K are left.
func (r *run) hold(h load.Handle) {
	r.outstanding[(r.head+r.held)%len(r.outstanding)] = h
	r.held++
	for r.held >= r.cfg.Outstanding {
		r.scorer.Release(r.outstanding[r.head], r.req.At)
		r.head = (r.head + 1) % len(r.outstanding)
		r.held--
	}
}

// describe fills r.req with what a router may know of request i. Its output length is not in it.
func (r *run) describe(i int) {
	q := &r.w.Requests[i]
	r.path = r.w.Path(q.Leaf, r.path[:0])
	r.req = score.Request{
		Model: "replay", At: q.Arrival * 1000, Blocks: r.path, BlockSize: max(1, r.w.BlockSize),
		InputTokens: q.Input, TokensExact: true, N: 1,
	}
	if q.Even != 0 {
		r.req.BlockSize = int(q.Even)
	} else if r.w.Forest.CumTokens != nil {
		r.tokens = r.w.Forest.PathTokens(q.Leaf, r.tokens[:0])
		r.req.BlockTokens = r.tokens
	}
	if q.Session >= 0 {
		r.req.Session = r.w.Sessions[q.Session]
	}
	if r.cfg.Decisions != nil {
		if r.w.IDs != nil {
			r.req.ID = r.w.IDs[i]
		}
		if r.req.ID == "" {
			r.req.ID = strconv.Itoa(i)
		}
	}
}

func (r *run) report() *report.Run {
	blocks, input := r.hitBlocks, int64(0)
	for _, n := range r.misses {
		blocks += n
	}
	for i := range r.w.Requests {
		input += r.w.Requests[i].Input
	}
	return &report.Run{
		Policy: r.cfg.Score.Policy, Workers: r.cfg.Workers, CapacityBlocks: int64(r.cfg.Capacity),
		HitBlocks: r.hitBlocks, HitRate: report.Ratio(r.hitBlocks, blocks),
		HitTokens: r.hitTokens, TokenHitRate: report.Ratio(r.hitTokens, input),
		RequestsPerWorker: r.requests, MissBlocksPerWorker: r.misses, Imbalance: report.Imbalance(r.requests),
		PicksDigest: r.picks.Sum(), PredictedHitBlocks: r.predicted,
	}
}
