package replay

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sort"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
)

// Comparison is what another configuration decides on a recording.
type Comparison struct {
	Extent  Extent
	Trace   report.Trace  // Requests are decisions
	Runs    [2]report.Run // recorded, replayed; Flags are the caller's
	Changes report.Changes
}

// Compare makes every decision of a recording anew under cfg. Requests, candidates, events and the times
// of first tokens and ends are the recorded ones; the load is that of the decisions made now. decisions,
// if not nil, gets each of them as a JSON line.
func Compare(ctx context.Context, r *Recording, cfg score.Config, decisions io.Writer, progress func(records int)) (*Comparison, error) {
	f, err := newFold(cfg)
	if err != nil {
		return nil, err
	}
	c := &comparison{numbers: map[string]int{}, moves: map[[2]int]int64{}, seen: map[block.Hash]struct{}{}}
	f.decided = func(rec *record.Record) (uint64, error) {
		was, err := score.ParseDecision(rec.JSON)
		if err != nil {
			return 0, damaged(rec, "%v", err)
		}
		if decisions != nil {
			f.line = append(f.dec.AppendJSON(f.line[:0]), '\n')
			if _, err := decisions.Write(f.line); err != nil {
				return 0, fmt.Errorf("writing the decision: %w", err)
			}
		}
		c.add(&rec.Req, &was, &f.dec)
		return was.Seq, nil
	}
	f.released = func(rec *record.Record) { c.trace.OutputTokens += max(rec.Output, 0) }
	if err := f.run(ctx, r, progress); err != nil {
		return nil, err
	}
	return c.result(r, f), nil
}

// comparison adds up decisions.
type comparison struct {
	trace   report.Trace
	names   []string // of workers, as first seen
	numbers map[string]int
	sides   [2]side
	changed int64
	moves   map[[2]int]int64
	seen    map[block.Hash]struct{} // every block so far: what one cache without limit would hold
}

// side is one way of deciding.
type side struct {
	picks                   []int // workers as first seen
	requests, misses        []int64
	hits, hitTokens, missed int64
	pending, held, active   int64
}

func (c *comparison) number(name string) int {
	n, ok := c.numbers[name]
	if !ok {
		n = len(c.names)
		c.numbers[name] = n
		c.names = append(c.names, name)
	}
	return n
}

func (c *comparison) add(req *score.Request, was, now *score.Decision) {
	for i := range was.Terms { // every worker there was gets its number
		c.number(was.Terms[i].Candidate.Key)
	}
	from, to := c.sides[0].add(c, was), c.sides[1].add(c, now)
	if from != to {
		c.changed++
		c.moves[[2]int{from, to}]++
	}
	t := &c.trace
	t.Requests++
	t.InputTokens += max(req.InputTokens, 0)
	for _, chain := range append([][]block.Hash{req.Blocks}, req.More...) {
		t.Blocks += int64(len(chain))
		// A block stands for all before it, so what was seen of a chain is its beginning.
		known := sort.Search(len(chain), func(i int) bool { _, ok := c.seen[chain[i]]; return !ok })
		t.CeilingHitBlocks += int64(known)
		t.CeilingHitTokens += min(int64(known)*int64(max(req.BlockSize, 0)), max(req.InputTokens, 0))
		for _, h := range chain[known:] {
			c.seen[h] = struct{}{}
		}
	}
}

func (s *side) add(c *comparison, d *score.Decision) int {
	t := d.PickedTerms()
	n := c.number(t.Candidate.Key)
	for len(s.requests) < len(c.names) {
		s.requests, s.misses = append(s.requests, 0), append(s.misses, 0)
	}
	s.picks = append(s.picks, n)
	s.requests[n]++
	s.misses[n] += t.Blocks - t.Hits
	s.hits += t.Hits
	s.hitTokens += t.HitTokens
	s.missed += t.Blocks - t.Hits
	s.pending += t.Load.PendingTokens
	s.held += t.Load.HeldRequests
	s.active += t.Load.ActiveBlocks
	return n
}

// result puts the workers in the order of their names.
func (c *comparison) result(r *Recording, f *fold) *Comparison {
	order := make([]int, len(c.names)) // new number -> as first seen
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(c.names[a], c.names[b]) })
	place := make([]int, len(order))
	names := make([]string, len(order))
	for i, n := range order {
		place[n], names[i] = i, c.names[n]
	}
	out := &Comparison{Extent: f.extent, Trace: c.trace}
	out.Runs[0] = c.run(&c.sides[0], order, place, report.KindRecorded, r.Header.Config.Policy)
	out.Runs[1] = c.run(&c.sides[1], order, place, report.KindReplayed, f.cfg.Policy)
	out.Changes = report.Changes{
		Run: r.Header.Run, Program: r.Header.Program, Model: r.Header.Model, Parts: f.extent.Parts, Missing: f.extent.missing(),
		Workers: names, Decisions: c.trace.Requests, Changed: c.changed, Share: report.Ratio(c.changed, c.trace.Requests),
		Moves: []report.Move{}, Caveat: report.Caveat,
		Recorded: c.forecast(&c.sides[0], out.Runs[0].Imbalance), Replayed: c.forecast(&c.sides[1], out.Runs[1].Imbalance),
	}
	out.Changes.Complete = out.Changes.Missing == ""
	for m, n := range c.moves {
		out.Changes.Moves = append(out.Changes.Moves, report.Move{From: c.names[m[0]], To: c.names[m[1]], Count: n})
	}
	slices.SortFunc(out.Changes.Moves, func(a, b report.Move) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	return out
}

func (c *comparison) run(s *side, order, place []int, kind, policy string) report.Run {
	run := report.Run{
		Policy: policy, Kind: kind, Workers: len(order), HitBlocks: s.hits, HitRate: report.Ratio(s.hits, s.hits+s.missed),
		HitTokens: s.hitTokens, TokenHitRate: report.Ratio(s.hitTokens, c.trace.InputTokens), PredictedHitBlocks: s.hits,
	}
	for _, n := range order {
		var requests, misses int64
		if n < len(s.requests) {
			requests, misses = s.requests[n], s.misses[n]
		}
		run.RequestsPerWorker = append(run.RequestsPerWorker, requests)
		run.MissBlocksPerWorker = append(run.MissBlocksPerWorker, misses)
	}
	run.Imbalance = report.Imbalance(run.RequestsPerWorker)
	picks := report.NewPicks(max(1, len(order)))
	for _, n := range s.picks {
		picks.Add(place[n])
	}
	run.PicksDigest = picks.Sum()
	return run
}

func (c *comparison) forecast(s *side, imbalance float64) report.Forecast {
	n := c.trace.Requests
	return report.Forecast{
		HitBlocks: s.hits, HitTokens: s.hitTokens, MissBlocks: s.missed, Imbalance: imbalance,
		PendingTokens: report.Ratio(s.pending, n), HeldRequests: report.Ratio(s.held, n), ActiveBlocks: report.Ratio(s.active, n),
	}
}

// missing says in what way a recording is not whole; "" where it is.
func (x *Extent) missing() string {
	switch {
	case x.Incomplete != "":
		return x.Incomplete
	case x.Cut:
		return "the last record breaks off: the router was killed, or still writes"
	case !x.Ended:
		return "there is no end: the router was killed, or still writes"
	case x.Foreign > 0:
		return fmt.Sprintf("%d records are of types that this program does not know", x.Foreign)
	}
	return ""
}

// Missing says in what way the recording is not whole; "" where it is.
func (v *Verification) Missing() string { return v.missing() }
