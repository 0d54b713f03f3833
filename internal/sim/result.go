package sim

import (
	"fmt"

	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/trace"
)

// result gathers what a run reports.
type result struct {
	capacity  int64
	requests  []int64 // picks by worker
	misses    []int64 // blocks each worker had to compute, or to be sent
	hitBlocks int64
	hitTokens int64
	predicted int64
	peak      int64
	makespan  int64 // ticks
	preempted int64
	lost      int
	rejected  int
	picks     *report.Picks

	ttft, itl, e2e, queue []int64 // µs, of completed requests
}

func newResult(requests, workers int) result {
	times := make([]int64, 4*requests)
	cut := func(k int) []int64 { return times[k*requests : k*requests : (k+1)*requests] }
	return result{
		requests: make([]int64, workers), misses: make([]int64, workers), picks: report.NewPicks(workers),
		ttft: cut(0), itl: cut(1), e2e: cut(2), queue: cut(3),
	}
}

// over counts the requests whose fate is settled.
func (r *result) over() int { return len(r.ttft) + r.lost + r.rejected }

// complete books a request that ended at time now.
func (r *result) complete(q *trace.Request, st *reqState, now, tick int64, model string) {
	arrival := q.Arrival * tick
	r.makespan = max(r.makespan, now)
	r.ttft = append(r.ttft, (st.first-arrival)/tick)
	r.e2e = append(r.e2e, (now-arrival)/tick)
	r.queue = append(r.queue, (st.start-arrival)/tick)
	intervals := q.Output // serial: each token takes its time, the first one too
	if model == BatchEngine {
		intervals-- // the first token comes with the prefill
	}
	if intervals > 0 {
		r.itl = append(r.itl, (now-st.first)/tick/intervals)
	}
}

// report turns the result into a report.
func (s *run) report() (*report.Run, error) {
	if s.over() != len(s.reqs) {
		return nil, fmt.Errorf("simulating trace %s: %d of %d requests never ended: the virtual clock ran out (the fleet is overloaded beyond measure)",
			s.w.Name, len(s.reqs)-s.over(), len(s.reqs))
	}
	var blocks, input int64
	for i := range s.w.Requests {
		q := &s.w.Requests[i]
		blocks += int64(s.w.BlocksOf(q))
		input += q.Input
	}
	imbalance := report.Imbalance(s.requests)
	if p := s.cfg.PrefillWorkers; p > 0 {
		imbalance = max(report.Imbalance(s.requests[:p]), report.Imbalance(s.requests[p:]))
	}
	completed := int64(len(s.ttft))
	run := &report.Run{
		Policy: s.cfg.Score.Policy, Workers: s.cfg.fleetSize(), CapacityBlocks: s.capacity,
		HitBlocks: s.hitBlocks, HitRate: report.Ratio(s.hitBlocks, blocks),
		HitTokens: s.hitTokens, TokenHitRate: report.Ratio(s.hitTokens, input),
		RequestsPerWorker: s.requests, MissBlocksPerWorker: s.misses, Imbalance: imbalance,
		PicksDigest: s.picks.Sum(), PredictedHitBlocks: s.predicted,
		Sim: &report.Sim{
			TTFT: report.NewDist(s.ttft), ITL: report.NewDist(s.itl), E2E: report.NewDist(s.e2e), Queue: report.NewDist(s.queue),
			MakespanUS: s.makespan / s.tick, PeakActiveBlocks: s.peak, Preemptions: s.preempted,
			Completed: completed, Lost: int64(s.lost), Rejected: int64(s.rejected),
		},
	}
	run.TTFTCurve = report.Curve(s.ttft) // sorted by NewDist
	return run, nil
}
