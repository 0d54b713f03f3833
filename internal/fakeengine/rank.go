package fakeengine

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/engine"
)

// rank is one data-parallel rank: a scheduler over one cache. One goroutine drives it, step by step;
// requests come and go under the lock.
//
// vLLM's steps mix decoding and chunks of prompts within a budget of tokens, and preempt the youngest
// when memory runs out. SGLang's steps either prefill or decode. Steps follow each other as long as
// there is work; their duration comes from the profile.
type rank struct {
	number int
	cfg    *Config
	wire   wire
	cost   engine.Cost
	sample func(s *seq) block.Token
	pub    *publisher    // nil: no events over ZeroMQ
	polled func([]event) // nil: no events to be fetched over HTTP

	mu      sync.Mutex
	kv      kvCache
	waiting []*seq
	running []*seq
	active  []*seq // of running, those that the step under way computes
	stats   Stats
	decodes int  // decode steps since the last publication (SGLang)
	flush   bool // publish now, also without work
	dead    bool // the process is said to be dead: nothing happens
	wake    chan struct{}
}

// Stats counts what a rank, or an engine, has done.
type Stats struct {
	Running, Waiting           int
	UsedBlocks                 int
	Requests, Finished         uint64 // sequences
	Aborted                    uint64 // whose client left
	Preemptions                uint64
	PromptTokens, CachedTokens uint64
	OutputTokens               uint64
	Steps                      uint64
}

func (s *Stats) add(o Stats) {
	s.Running += o.Running
	s.Waiting += o.Waiting
	s.UsedBlocks += o.UsedBlocks
	s.Requests += o.Requests
	s.Finished += o.Finished
	s.Aborted += o.Aborted
	s.Preemptions += o.Preemptions
	s.PromptTokens += o.PromptTokens
	s.CachedTokens += o.CachedTokens
	s.OutputTokens += o.OutputTokens
	s.Steps += o.Steps
}

func newRank(number int, c *Config, w wire, pub *publisher) *rank {
	r := &rank{number: number, cfg: c, wire: w, cost: c.Profile.Cost(), pub: pub, wake: make(chan struct{}, 1)}
	h := newHasher(c, w)
	if c.Dialect == SGLang {
		r.kv = newRadix(c, h)
		r.flush = true
	} else {
		r.kv = newPaged(c, w, h)
	}
	return r
}

// poke makes the driver look again.
func (r *rank) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// submit queues sequences, together.
func (r *rank) submit(seqs ...*seq) {
	r.mu.Lock()
	r.waiting = append(r.waiting, seqs...)
	r.stats.Requests += uint64(len(seqs))
	r.mu.Unlock()
	r.poke()
}

// abort ends a sequence whose client left. Its memory is free when the step under way ends.
func (r *rank) abort(s *seq) {
	r.mu.Lock()
	if !s.done && !s.aborted {
		s.aborted = true
		r.stats.Aborted++
	}
	r.mu.Unlock()
	r.poke()
}

// progress tells what a sequence has answered from token on: new tokens, whether it is done, and how
// much of the prompt was cached (-1: not known yet).
func (r *rank) progress(s *seq, from int) (answer []block.Token, done bool, cached int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(s.tokens[s.prompt+from:]), s.done, s.cached
}

// errBusy says that a cache in use cannot be emptied.
var errBusy = errors.New("requests are running")

// reset empties the cache. vLLM reports it with the next batch that has work, SGLang at once.
func (r *rank) reset() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	busy := len(r.running) > 0
	if r.cfg.Dialect == SGLang {
		busy = busy || len(r.waiting) > 0
	}
	if busy || !r.kv.reset() {
		return errBusy
	}
	if !r.wire.clears {
		r.kv.take() // this engine never says
	}
	if r.cfg.Dialect == SGLang {
		r.flush = true
		r.poke()
	}
	return nil
}

// die is the end of the process: what ran is lost, the cache is empty, numbers start again.
func (r *rank) die() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead = true
	for _, s := range slices.Concat(r.running, r.waiting) {
		s.done = true
		s.tell()
	}
	r.running, r.waiting, r.active = nil, nil, nil
	r.kv.wipe()
	if r.pub != nil {
		r.pub.restart()
	}
	r.decodes = 0
	r.flush = r.cfg.Dialect == SGLang
}

// live is the start of the process.
func (r *rank) live() {
	r.mu.Lock()
	r.dead = false
	r.mu.Unlock()
	r.poke()
}

// run drives the rank until ctx is done.
func (r *rank) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due time.Time // when the step under way ends
	for {
		r.mu.Lock()
		working := r.schedule()
		took := r.duration()
		r.mu.Unlock()
		if !working {
			r.publish(true)
			due = time.Time{}
			select {
			case <-ctx.Done():
				return
			case <-r.wake:
			}
			continue
		}
		if now := time.Now(); due.Before(now.Add(-took)) {
			due = now // steps that follow one another do not drift
		}
		due = due.Add(took)
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		} else if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		r.finish()
		r.mu.Unlock()
		r.publish(false)
	}
}

// duration is how long the step under way takes.
func (r *rank) duration() time.Duration {
	if r.cfg.TimeScale == 0 || len(r.active) == 0 {
		return 0
	}
	ticks := float64(r.cost.Step)
	for _, s := range r.active {
		if !s.prefill {
			ticks += float64(r.cost.PerRequest) + float64(r.cost.PerContext)*float64(s.computed)
			continue
		}
		from, to := float64(s.computed-s.grant), float64(s.computed)
		ticks += float64(r.cost.PerPrefill)*float64(s.grant) + float64(r.cost.PerPrefillSquare)*(to*to-from*from)
	}
	ns := ticks / (float64(engine.TicksPerMicrosecond) / 1e3) * r.cfg.TimeScale
	return time.Duration(math.Min(ns, float64(time.Hour)))
}

// schedule chooses what the next step computes. false: there is nothing to do.
func (r *rank) schedule() bool {
	if r.dead {
		return false
	}
	r.drop()
	r.active = r.active[:0]
	budget := int(r.cfg.Budget)
	if r.cfg.Dialect == SGLang {
		r.prefillOnly(budget)
		if len(r.active) == 0 {
			r.decode(budget)
		}
	} else if budget, preempted := r.decode(budget); !preempted {
		r.admit(budget)
	}
	return len(r.active) > 0
}

// drop removes sequences whose client has left.
func (r *rank) drop() {
	left := func(s *seq) bool {
		if !s.aborted {
			return false
		}
		r.kv.release(s, true)
		s.done = true
		s.tell()
		return true
	}
	r.running = slices.DeleteFunc(r.running, left)
	r.waiting = slices.DeleteFunc(r.waiting, left)
}

// decode continues the running sequences, oldest first, and preempts the youngest where memory is out.
func (r *rank) decode(budget int) (rest int, preempted bool) {
	for i := 0; i < len(r.running) && budget > 0; i++ {
		s := r.running[i]
		n := min(len(s.tokens)-s.computed, budget)
		for i < len(r.running) && !r.kv.grow(s, s.computed+n) {
			victim := r.running[len(r.running)-1]
			r.running = r.running[:len(r.running)-1]
			r.kv.release(victim, false)
			r.waiting = slices.Insert(r.waiting, 0, victim)
			r.stats.Preemptions++
			preempted = true
		}
		if i == len(r.running) {
			break // it was its own victim
		}
		r.grant(s, n)
		budget -= n
	}
	return budget, preempted
}

// grant makes n tokens of s part of the step.
func (r *rank) grant(s *seq, n int) {
	s.prefill = s.computed < s.prompt || n > 1
	s.computed += n
	s.grant = n
	r.active = append(r.active, s)
}

// admit starts waiting sequences in order; the first that does not fit stops those behind it.
func (r *rank) admit(budget int) {
	for len(r.waiting) > 0 && budget > 0 && len(r.running) < r.cfg.MaxSeqs {
		s := r.waiting[0]
		if !r.kv.admit(s, budget) {
			return
		}
		r.waiting = slices.Delete(r.waiting, 0, 1)
		r.running = append(r.running, s)
		if s.cached < 0 {
			s.cached = s.computed
			r.stats.PromptTokens += uint64(s.prompt)
			r.stats.CachedTokens += uint64(s.cached)
		}
		n := s.grant
		r.grant(s, n)
		s.prefill = true
		budget -= n
	}
}

// prefillOnly continues a prompt that was cut, then admits. Nothing decodes in such a step.
func (r *rank) prefillOnly(budget int) {
	for _, s := range r.running {
		rest := len(s.tokens) - s.computed
		if rest <= 1 && s.computed >= s.prompt {
			continue
		}
		n := min(rest, budget)
		if n < rest {
			n -= n % r.cfg.BlockSize
		}
		if n == 0 || !r.kv.grow(s, s.computed+n) {
			continue
		}
		r.grant(s, n)
		s.prefill = true
		budget -= n
	}
	r.admit(budget)
}

// finish ends the step: sequences whose tokens are all computed get their next one, or end.
func (r *rank) finish() {
	r.stats.Steps++
	prefilled := false
	for _, s := range r.active {
		if s.prefill {
			r.kv.prefilled(s)
			prefilled = true
		}
		if s.computed < len(s.tokens) {
			continue // more of the prompt to come
		}
		if len(s.tokens)-s.prompt < s.max {
			s.tokens = append(s.tokens, r.sample(s))
			r.stats.OutputTokens++
		}
		if len(s.tokens)-s.prompt >= s.max {
			s.done = true
			r.stats.Finished++
			r.kv.release(s, true)
		}
		s.tell()
	}
	r.running = slices.DeleteFunc(r.running, func(s *seq) bool { return s.done })
	if r.cfg.Dialect != SGLang {
		r.flush = true
		return
	}
	// SGLang publishes with its statistics: after a prefill, and every 40 steps of decoding.
	if r.decodes++; prefilled || r.decodes >= 40 {
		r.flush, r.decodes = true, 0
	}
}

// publish sends what has happened, if it is time to. Only the driver calls it. An idle SGLang sends
// what is left; an idle vLLM keeps it for its next step with work.
func (r *rank) publish(idle bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if idle && r.cfg.Dialect == SGLang {
		r.flush = true
	}
	if !r.flush || r.dead {
		return
	}
	r.flush = false
	events := r.kv.take()
	switch {
	case len(events) == 0:
	case r.pub != nil:
		r.pub.publish(events)
	case r.polled != nil:
		r.polled(events)
	}
}

// snapshot counts what the rank has done.
func (r *rank) snapshot() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Running, s.Waiting, s.UsedBlocks = len(r.running), len(r.waiting), r.kv.used()
	return s
}
