package engine

import (
	"github.com/kvroute/kvroute/internal/trace"
)

// naive is the batch model again, one step at a time, with a list for the LRU order and a set of
// holders for each block. It shares no code with Batch.
type naive struct {
	cfg     BatchConfig
	obs     Observer
	holders map[trace.NodeID]map[*naiveJob]bool // cached blocks
	lru     []trace.NodeID                      // cached blocks without holders, least recently released first
	waiting []*naiveJob
	running []*naiveJob
	busy    bool
	end     int64
}

type naiveJob struct {
	Job
	path     []trace.NodeID // root first
	tokens   []int64        // prompt tokens up to and including path[i]
	held     int            // leading blocks held
	private  int64
	kv       int64 // tokens with KV
	target   int64
	grant    int64
	decoding bool
	again    bool
	began    bool
}

func (n *naive) Next() int64 {
	if n.busy {
		return n.end
	}
	return Forever
}

func (n *naive) blocksFor(j *naiveJob, done int64) int64 {
	room := int64(len(j.path)) * n.cfg.BlockSize
	if (n.cfg.Forest.CumTokens != nil || j.Even > 0) && len(j.path) > 0 {
		room = j.tokens[len(j.path)-1]
	}
	var c int64
	for over := j.Input + done - room; over > 0; over -= n.cfg.BlockSize {
		c++
	}
	return c
}

func (n *naive) Submit(now int64, job Job) bool {
	j := &naiveJob{Job: job}
	for b := job.Leaf; b != trace.NoNode; b = n.cfg.Forest.Parent[b] {
		j.path = append([]trace.NodeID{b}, j.path...)
	}
	for i, b := range j.path {
		t := int64(i+1) * n.cfg.BlockSize
		if n.cfg.Forest.CumTokens != nil {
			t = int64(n.cfg.Forest.CumTokens[b])
		}
		if job.Even > 0 {
			t = int64(i+1) * job.Even
		}
		j.tokens = append(j.tokens, min(t, job.Input))
	}
	if n.cfg.Capacity > 0 && int64(len(j.path))+n.blocksFor(j, max(j.Output-1, j.Done)) > n.cfg.Capacity {
		return false
	}
	n.waiting = append(n.waiting, j)
	return true
}

func (n *naive) free() int64 {
	if n.cfg.Capacity == 0 {
		return 1 << 40
	}
	f := n.cfg.Capacity - int64(len(n.holders))
	for _, j := range n.running {
		f -= j.private
	}
	return f
}

func (n *naive) hold(j *naiveJob, b trace.NodeID) (isNew bool) {
	h, ok := n.holders[b]
	if !ok {
		h = make(map[*naiveJob]bool)
		n.holders[b] = h
	}
	if len(h) == 0 {
		for i, x := range n.lru {
			if x == b {
				n.lru = append(n.lru[:i:i], n.lru[i+1:]...)
				break
			}
		}
	}
	h[j] = true
	return !ok
}

func (n *naive) drop(j *naiveJob) {
	for i := j.held - 1; i >= 0; i-- {
		b := j.path[i]
		delete(n.holders[b], j)
		if len(n.holders[b]) == 0 {
			n.lru = append(n.lru, b)
		}
	}
	j.held, j.private, j.grant = 0, 0, 0
}

// take makes room for c blocks and gives them to j.
func (n *naive) take(j *naiveJob, c int64) {
	for n.free() < c {
		b := n.lru[0]
		n.lru = n.lru[1:]
		delete(n.holders, b)
		n.obs.Evicted(n.cfg.Worker, []trace.NodeID{b})
	}
	j.private += c
}

func (n *naive) publish(j *naiveJob) {
	for j.held < len(j.path) && j.tokens[j.held] <= j.kv {
		b := j.path[j.held]
		j.held++
		j.private--
		if n.hold(j, b) {
			n.obs.Stored(n.cfg.Worker, []trace.NodeID{b})
		}
	}
}

func (n *naive) Finish() {
	n.busy = false
	var kept []*naiveJob
	for _, j := range n.running {
		switch {
		case j.decoding:
			j.kv++
			j.Done++
		case j.grant > 0:
			j.kv += j.grant
			j.grant = 0
			n.publish(j)
			if j.kv == j.target {
				j.Done++
				j.decoding = true
				if !j.began {
					j.began = true
					n.obs.FirstToken(n.cfg.Worker, j.ID)
				}
			}
		}
		if j.decoding && j.Done >= j.Output {
			n.drop(j)
			n.obs.Finished(n.cfg.Worker, j.ID)
			continue
		}
		kept = append(kept, j)
	}
	n.running = kept
}

func (n *naive) Start(now int64) {
	if n.busy || len(n.running)+len(n.waiting) == 0 {
		return
	}
	preempted := false
	for i := 0; i < len(n.running); i++ {
		j := n.running[i]
		if !j.decoding {
			continue
		}
		for int64(j.held)+j.private < int64(len(j.path))+n.blocksFor(j, j.Done) {
			if n.free() > 0 || len(n.lru) > 0 {
				n.take(j, 1)
				continue
			}
			last := n.running[len(n.running)-1]
			n.running = n.running[:len(n.running)-1]
			n.drop(last)
			last.decoding, last.again, last.Transferred = false, true, false
			n.waiting = append([]*naiveJob{last}, n.waiting...)
			n.obs.Preempted(n.cfg.Worker, last.ID)
			preempted = true
			if last == j {
				break
			}
		}
	}
	budget := n.cfg.Budget
	for _, j := range n.running {
		if j.decoding {
			budget--
		}
	}
	for _, j := range n.running {
		if !j.decoding {
			j.grant = min(budget, j.target-j.kv)
			budget -= j.grant
		}
	}
	for !preempted && len(n.waiting) > 0 && budget > 0 && len(n.running) < n.cfg.MaxRunning {
		j := n.waiting[0]
		hits := 0
		var wake int64
		for hits < len(j.path) && n.holders[j.path[hits]] != nil {
			if len(n.holders[j.path[hits]]) == 0 {
				wake++
			}
			hits++
		}
		need := int64(len(j.path)-hits) + n.blocksFor(j, j.Done)
		if n.free()+int64(len(n.lru))-wake < need {
			break
		}
		n.waiting = n.waiting[1:]
		for ; j.held < hits; j.held++ {
			n.hold(j, j.path[j.held])
		}
		n.take(j, need)
		n.running = append(n.running, j)
		n.obs.Admitted(n.cfg.Worker, j.ID, hits, j.again)
		if j.Transferred {
			j.began = true
			j.kv = j.Input
			n.publish(j)
			j.kv = j.Input + j.Done - 1
			j.decoding = true
			budget--
			continue
		}
		j.target = max(1, j.Input+j.Done)
		j.kv = 0
		if hits > 0 {
			j.kv = min(j.tokens[hits-1], j.target-1)
		}
		j.grant = min(budget, j.target-j.kv)
		budget -= j.grant
	}
	var r, t, p, s int64
	for _, j := range n.running {
		if j.decoding {
			r++
			t += j.Input + j.Done
		}
		p += j.grant
		s += (j.kv+j.grant)*(j.kv+j.grant) - j.kv*j.kv
		if j.grant == 0 && !j.decoding && budget > 0 {
			panic("naive: work left out")
		}
	}
	c := n.cfg.Cost
	n.end = now + c.Step + c.PerRequest*r + c.PerContext*t + c.PerPrefill*p + c.PerPrefillSquare*s
	n.busy = true
}
