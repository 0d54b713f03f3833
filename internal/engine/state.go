package engine

import (
	"fmt"
	"sort"

	"github.com/kvroute/kvroute/internal/trace"
)

// Cached is the number of blocks in the cache.
func (b *Batch) Cached() int64 { return b.pool.cached }

// Hits returns how many leading blocks of the path to leaf are cached.
func (b *Batch) Hits(leaf trace.NodeID) int {
	if leaf == trace.NoNode {
		return 0
	}
	_, below := b.pool.hit(leaf)
	return int(int64(b.cfg.Forest.Depth[leaf]) - below)
}

// Kill drops all state of the worker and appends what it had in flight to dst, running first, with the
// tokens produced so far in Done. The worker must not be used afterwards, but for Next.
func (b *Batch) Kill(now int64, dst []Job) []Job {
	if b.runEnd != Forever {
		// Steps that ended before now have produced their tokens.
		n := int64(sort.Search(int(b.runLen), func(i int) bool {
			return addSat(b.runStart, b.cfg.Cost.decode(int64(i)+1, b.decodes, b.context)) > now
		}))
		if b.runLen > 1 {
			b.steps += n
		}
	}
	for _, slot := range b.running {
		j := &b.jobs[slot]
		if j.decoding {
			j.Done = b.produced(j)
		}
		dst = append(dst, j.Job)
	}
	for b.waiting.n > 0 {
		dst = append(dst, b.jobs[b.waiting.popFront()].Job)
	}
	b.runEnd = Forever
	b.running = b.running[:0]
	return dst
}

// Check verifies the worker's invariants; tests call it after every event.
func (b *Batch) Check() error {
	held := make([]trace.NodeID, 0, len(b.running))
	var private, decodes, context int64
	for _, slot := range b.running {
		j := &b.jobs[slot]
		if j.held != trace.NoNode {
			held = append(held, j.held)
		}
		private += j.private
		if j.decoding {
			decodes++
			context += j.Input + b.produced(j)
		}
		if j.private < 0 || (!j.decoding && j.computed > j.target) {
			return fmt.Errorf("batch: job %d has %d private blocks, %d of %d tokens", j.ID, j.private, j.computed, j.target)
		}
	}
	if private != b.pool.private || decodes != b.decodes || context != b.context {
		return fmt.Errorf("batch: jobs hold %d private blocks, %d decode, %d context tokens; counted %d, %d, %d",
			private, decodes, context, b.pool.private, b.decodes, b.context)
	}
	if len(b.running) > b.cfg.MaxRunning {
		return fmt.Errorf("batch: %d running, limit %d", len(b.running), b.cfg.MaxRunning)
	}
	if b.runEnd == Forever && len(b.running)+b.waiting.n > 0 {
		return fmt.Errorf("batch: idle with %d running and %d waiting", len(b.running), b.waiting.n)
	}
	return b.pool.check(held)
}
