package engine

import (
	"sort"

	"github.com/kvroute/kvroute/internal/trace"
)

// Observer hears what a worker does, in order, at the worker's current time. It must not call the
// worker back. Slices are valid during the call only.
type Observer interface {
	// Admitted: the job got its memory. hits counts the leading blocks of its path that were cached;
	// again is true if it had been admitted before and was preempted since.
	Admitted(worker int, job int32, hits int, again bool)
	// Stored: blocks entered the cache, a chain, root first.
	Stored(worker int, nodes []trace.NodeID)
	// Evicted: blocks left the cache, each after its cached children.
	Evicted(worker int, nodes []trace.NodeID)
	// FirstToken: the end of the job's prefill, with its first token from this worker (if it is to produce
	// any). Once for each job that was not Transferred.
	FirstToken(worker int, job int32)
	// Finished: the last token; the job's memory has been released.
	Finished(worker int, job int32)
	// Preempted: the job lost its memory and waits again.
	Preempted(worker int, job int32)
}

// Job is one request as an engine sees it.
type Job struct {
	ID     int32
	Leaf   trace.NodeID // deepest block of the prompt's path, NoNode if it has none
	Input  int64        // prompt tokens
	Output int64        // tokens to produce in all
	Even   int64        // prompt tokens of each block where only an even split is known; 0: the forest says
	Done   int64        // tokens produced before, elsewhere
	// Transferred: the KV of Input+Done-1 tokens arrives with the job, so that it needs memory and no prefill.
	Transferred bool
}

// BatchConfig describes one worker.
type BatchConfig struct {
	Worker     int // number given to the Observer
	Cost       Cost
	Budget     int64 // tokens per step, decode and prefill together; at least MaxRunning
	MaxRunning int   // requests that hold memory
	Capacity   int64 // blocks, 0 without limit
	BlockSize  int64 // tokens of a private block, and of path blocks where the forest says no other
	Forest     *trace.Forest
	Stepwise   bool // simulate every step by itself: the same results, slowly, to check the skipping
}

type batchJob struct {
	Job
	held     trace.NodeID // pinned path
	heldLen  int64        // its depth
	leafLen  int64
	base     int64 // Input minus what the path's blocks can hold; negative: room left in the last one
	private  int64
	computed int64 // KV tokens present; kept up to date while prefilling only
	target   int64 // KV tokens that end the prefill
	grant    int64 // prefill tokens in the current step
	doneAt   int64 // step count after which the last token is out; decoding only
	growAt   int64 // step count at which another block is needed
	decoding bool
	again    bool // was preempted
	began    bool // FirstToken has been told
}

// Batch is one worker with continuous batching, in the manner of vLLM.
//
// A step decodes one token for each decoding request and spends what is left of the token budget on
// prefill, first come first served. Steps follow one another without a pause while there is work.
// Waiting requests are admitted in order while MaxRunning, the budget and the pool allow; the head of
// the queue blocks those behind it. Admission takes the memory of the whole prompt; cached leading
// blocks are shared. Computed blocks enter the cache at the end of the step that computes them. A
// decoding request that needs a block when none is free or evictable preempts the youngest running one
// (possibly itself), which loses its memory, goes to the front of the queue and computes prompt and
// answer so far again; no request is admitted in such a step.
//
// Runs of decode steps in which nothing else can happen are one event: their duration is a sum in closed
// form, equal to the steps' one by one. A request that arrives meanwhile cuts the run at the end of the
// step under way.
//
// The driver calls Finish when time reaches Next, Submit for arrivals, and then Start once for each
// instant at which it called either. Not safe for concurrent use.
type Batch struct {
	cfg     BatchConfig
	pool    pool
	obs     Observer
	jobs    []batchJob
	spare   []int32
	running []int32 // in order of admission
	waiting ring
	size    int64 // of a block

	steps   int64 // executed so far
	decodes int64 // requests decoding
	context int64 // their KV tokens plus one each: T of the next step

	runStart, runEnd int64 // the run under way; runEnd is Forever when idle
	runLen           int64

	stored, evicted []trace.NodeID
}

// NewBatch returns an idle worker. The configuration is taken as valid.
func NewBatch(cfg BatchConfig, obs Observer) *Batch {
	return &Batch{cfg: cfg, pool: newPool(cfg.Forest, cfg.Capacity), obs: obs, size: cfg.BlockSize, runEnd: Forever}
}

// Next is the time of the next call to Finish, Forever while idle.
func (b *Batch) Next() int64 { return b.runEnd }

// Waiting counts the requests without memory.
func (b *Batch) Waiting() int { return b.waiting.n }

// Running counts the requests that hold memory.
func (b *Batch) Running() int { return len(b.running) }

// Submit hands a job to the worker. It reports false, and keeps nothing, if prompt and answer together
// could never fit into the pool.
func (b *Batch) Submit(now int64, j Job) bool {
	bj := batchJob{Job: j, held: trace.NoNode}
	bj.base = j.Input
	if j.Leaf != trace.NoNode {
		bj.leafLen = int64(b.cfg.Forest.Depth[j.Leaf])
		covered := bj.leafLen * b.size
		if j.Even > 0 || b.cfg.Forest.CumTokens != nil {
			covered = b.tokensTo(&bj, j.Leaf, bj.leafLen) // blocks of odd sizes have no room left
		}
		bj.base -= covered
	}
	if bj.leafLen+b.privateFor(&bj, max(j.Output-1, j.Done)) > b.pool.capacity {
		return false
	}
	var slot int32
	if n := len(b.spare); n > 0 {
		slot = b.spare[n-1]
		b.spare = b.spare[:n-1]
		b.jobs[slot] = bj
	} else {
		slot = int32(len(b.jobs))
		b.jobs = append(b.jobs, bj)
	}
	// Others waiting means that the head is blocked until the run under way ends, or that the run is
	// a single step; only the first in the queue cuts a run short.
	if b.waiting.n == 0 {
		b.cut(now)
	}
	b.waiting.pushBack(slot)
	return true
}

// privateFor is the number of blocks outside the path that hold the KV of done answer tokens.
func (b *Batch) privateFor(j *batchJob, done int64) int64 {
	if t := j.base + done; t > 0 {
		return (t + b.size - 1) / b.size
	}
	return 0
}

// cut ends the run under way at the end of the step that time now falls into.
func (b *Batch) cut(now int64) {
	if b.runEnd == Forever || b.runLen <= 1 {
		return
	}
	k := 1 + int64(sort.Search(int(b.runLen-1), func(i int) bool {
		return addSat(b.runStart, b.cfg.Cost.decode(int64(i)+1, b.decodes, b.context)) >= now
	}))
	b.runLen = k
	b.runEnd = addSat(b.runStart, b.cfg.Cost.decode(k, b.decodes, b.context))
}

// Finish ends the run under way, at time Next.
func (b *Batch) Finish() {
	b.steps += b.runLen
	b.context += b.decodes * b.runLen
	b.runEnd = Forever
	kept := b.running[:0]
	for _, slot := range b.running {
		j := &b.jobs[slot]
		switch {
		case j.decoding && j.growAt < b.steps:
			b.settle(j)
		case j.grant > 0:
			b.prefilled(j)
		}
		if j.decoding && j.doneAt <= b.steps {
			b.stopDecoding(j)
			b.release(j)
			id := j.ID
			b.spare = append(b.spare, slot)
			b.obs.Finished(b.cfg.Worker, id)
			continue
		}
		kept = append(kept, slot)
	}
	b.running = kept
}

// prefilled books the step's prefill tokens of j and makes it decode once all are there.
func (b *Batch) prefilled(j *batchJob) {
	j.computed += j.grant
	j.grant = 0
	b.publish(j)
	if j.computed < j.target {
		return
	}
	j.Done++
	if !j.began {
		j.began = true
		b.obs.FirstToken(b.cfg.Worker, j.ID)
	}
	b.startDecoding(j)
}

// publish enters the blocks of j that are computed by now into the cache.
func (b *Batch) publish(j *batchJob) {
	if j.held == j.Leaf {
		return
	}
	f := b.cfg.Forest
	end, depth := j.Leaf, j.leafLen
	if j.computed < j.Input {
		for end != j.held && b.tokensTo(j, end, depth) > j.computed {
			end = f.Parent[end]
			depth--
		}
	}
	if end == j.held {
		return
	}
	b.stored = b.stored[:0]
	b.pool.publish(j.held, end, depth-j.heldLen, &b.stored)
	j.private -= depth - j.heldLen
	j.held, j.heldLen = end, depth
	if len(b.stored) > 0 {
		b.obs.Stored(b.cfg.Worker, b.stored)
	}
}

// tokensTo is the number of prompt tokens of j in its path down to n, at the given depth.
func (b *Batch) tokensTo(j *batchJob, n trace.NodeID, depth int64) int64 {
	t := depth * b.size
	if j.Even > 0 {
		t = depth * j.Even
	} else if c := b.cfg.Forest.CumTokens; c != nil {
		t = int64(c[n])
	}
	return min(t, j.Input)
}

// startDecoding: j has Done tokens out, the last of them without KV.
func (b *Batch) startDecoding(j *batchJob) {
	j.decoding = true
	j.doneAt = b.steps + max(0, j.Output-j.Done)
	b.planGrowth(j)
	b.decodes++
	b.context += j.Input + j.Done
}

// produced is how many tokens of a decoding job are out after the steps executed so far.
func (b *Batch) produced(j *batchJob) int64 {
	return max(j.Output, j.Done) - (j.doneAt - b.steps)
}

// planGrowth finds the step before which j needs one more block: a step with g tokens out needs room
// for the KV of prompt and g answer tokens.
func (b *Batch) planGrowth(j *batchJob) {
	full := j.private*b.size - j.base // answer tokens the present blocks hold
	j.growAt = b.steps + full + 1 - b.produced(j)
}

func (b *Batch) stopDecoding(j *batchJob) {
	j.Done = b.produced(j)
	j.decoding = false
	b.decodes--
	b.context -= j.Input + j.Done
}

// release gives all memory of j back.
func (b *Batch) release(j *batchJob) {
	b.pool.unpin(j.held)
	b.pool.drop(j.private)
	j.held, j.heldLen, j.private = trace.NoNode, 0, 0
}

// Start schedules the next run, if the worker is idle and has work.
func (b *Batch) Start(now int64) {
	if b.runEnd != Forever || len(b.running)+b.waiting.n == 0 {
		return
	}
	b.evicted = b.evicted[:0]
	preempted := b.grow()
	budget := b.cfg.Budget - b.decodes
	var tokens, square int64
	give := func(j *batchJob) {
		n := min(j.target-j.computed, budget)
		j.grant = n
		budget -= n
		tokens += n
		square += n * (2*j.computed + n)
	}
	for _, slot := range b.running {
		if j := &b.jobs[slot]; !j.decoding && budget > 0 {
			give(j)
		}
	}
	for !preempted && b.waiting.n > 0 && budget > 0 && len(b.running) < b.cfg.MaxRunning {
		j := b.admit()
		if j == nil {
			break
		}
		if j.decoding {
			budget--
		} else {
			give(j)
		}
	}
	b.flushEvicted()
	b.plan(now, tokens, square, preempted)
}

// plan sets the length and the end of the run that has just been scheduled.
func (b *Batch) plan(now, tokens, square int64, preempted bool) {
	b.runStart = now
	b.runLen = 1
	if tokens == 0 && !preempted && !b.cfg.Stepwise {
		b.runLen = max(1, b.quiet())
	}
	b.runEnd = addSat(now, addSat(b.cfg.Cost.decode(b.runLen, b.decodes, b.context), b.cfg.Cost.prefill(tokens, square)))
}

// quiet is the number of steps until something happens that others can see or that depends on order:
// a request ends, or a block is needed that is not free. Blocks taken from the free ones on the way are
// booked when the run ends (settle).
func (b *Batch) quiet() int64 {
	done, grow := Forever, Forever
	for _, slot := range b.running {
		if j := &b.jobs[slot]; j.decoding {
			done, grow = min(done, j.doneAt), min(grow, j.growAt)
		}
	}
	if grow >= done {
		return done - b.steps
	}
	var need int64
	for _, slot := range b.running {
		if j := &b.jobs[slot]; j.decoding && j.growAt < done {
			need += b.privateFor(j, b.produced(j)+done-b.steps-1) - j.private
		}
	}
	if need <= b.pool.free {
		return done - b.steps
	}
	return grow - b.steps
}

// settle books the blocks that j took during the run that has just ended.
func (b *Batch) settle(j *batchJob) {
	if n := b.privateFor(j, b.produced(j)-1) - j.private; n > 0 {
		b.pool.alloc(n, nil)
		j.private += n
		b.planGrowth(j)
	}
}

// grow gives a block to each decoding job that needs one before the next step, oldest first, and
// preempts from the youngest where there is none. It reports whether it preempted.
func (b *Batch) grow() (preempted bool) {
	for i := 0; i < len(b.running); i++ {
		j := &b.jobs[b.running[i]]
		if !j.decoding || j.growAt > b.steps || j.doneAt <= b.steps {
			continue
		}
		for b.pool.available() < 1 && i < len(b.running) {
			b.preemptLast()
			preempted = true
		}
		if i >= len(b.running) {
			break // j itself was the youngest
		}
		b.pool.alloc(1, &b.evicted)
		j.private++
		b.planGrowth(j)
	}
	return preempted
}

func (b *Batch) preemptLast() {
	b.flushEvicted()
	slot := b.running[len(b.running)-1]
	b.running = b.running[:len(b.running)-1]
	j := &b.jobs[slot]
	if j.decoding {
		b.stopDecoding(j)
	}
	b.release(j)
	j.grant, j.again, j.Transferred = 0, true, false
	b.waiting.pushFront(slot)
	b.obs.Preempted(b.cfg.Worker, j.ID)
}

// admit moves the head of the queue into the batch, or returns nil if the pool has no room for it.
func (b *Batch) admit() *batchJob {
	slot := b.waiting.front()
	j := &b.jobs[slot]
	hit, below := trace.NoNode, int64(0)
	if j.Leaf != trace.NoNode {
		hit, below = b.pool.hit(j.Leaf)
	}
	need := below + b.privateFor(j, j.Done)
	if need > b.pool.free && need > b.pool.available()-b.pool.evictableOn(hit) {
		return nil
	}
	b.waiting.popFront()
	b.pool.pin(hit, &b.stored)
	b.pool.alloc(need, &b.evicted)
	b.flushEvicted()
	j.held, j.heldLen, j.private = hit, j.leafLen-below, need
	b.running = append(b.running, slot)
	b.obs.Admitted(b.cfg.Worker, j.ID, int(j.heldLen), j.again)
	if j.Transferred {
		j.began = true
		j.computed = j.Input
		b.publish(j)
		b.startDecoding(j)
		return j
	}
	j.target = j.Input + j.Done
	// The last position is computed even if its KV is there: its output is the next token.
	j.computed = min(j.target-1, b.heldTokens(j))
	if j.computed < 0 {
		j.computed = 0
		j.target = 1 // an empty prompt still costs a step
	}
	return j
}

// heldTokens is the number of tokens in the pinned path.
func (b *Batch) heldTokens(j *batchJob) int64 {
	if j.held == trace.NoNode {
		return 0
	}
	return b.tokensTo(j, j.held, j.heldLen)
}

func (b *Batch) flushEvicted() {
	if len(b.evicted) > 0 {
		b.obs.Evicted(b.cfg.Worker, b.evicted)
		b.evicted = b.evicted[:0]
	}
}
