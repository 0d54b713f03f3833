package router

import (
	"sync"
	"time"
)

// health keeps what the router has seen of each worker: its breaker, whether it is busy, and how many
// requests are on it. Invariants: H1 inFlight is the number of claims not yet returned. H2 at most one
// claim holds a worker's probe. H3 a breaker is closed, or has opened at least once since it was.
type health struct {
	cfg          BreakerConfig
	maxPerWorker int
	onState      func(worker string, s breakerState, tripped bool) // called under the lock

	mu      sync.Mutex
	workers map[string]*worker
}

type breakerState uint8

// States, as numbers of the metric infera_router_worker_breaker_state.
const (
	closed breakerState = iota
	halfOpen
	open
)

func (s breakerState) String() string { return [...]string{"closed", "half-open", "open"}[s] }

// probeExpiry is how long a probe may be out before another may be sent: one that never ends must not
// keep a worker out for good.
const probeExpiry = time.Minute

type worker struct {
	id       string
	gone     bool // forgotten; claims that are still out change nothing
	inFlight int
	state    breakerState
	fails    int           // in a row
	cooldown time.Duration // of the next opening
	until    time.Time     // open until
	probe    *claim
	probeAt  time.Time
	busy     time.Time // avoided until
	life     uint64    // grows with every change of state: what comes back from before is not counted
}

// claim is the right to send one request to a worker. It must be returned once.
type claim struct {
	h        *health
	w        *worker
	life     uint64
	returned bool
}

// verdict is what a worker's part in a request says of it.
type verdict uint8

const (
	neutral verdict = iota // nothing: the request's own fault, the client left, the worker was busy
	success
	failure
)

func newHealth(cfg BreakerConfig, maxPerWorker int, onState func(string, breakerState, bool)) *health {
	return &health{cfg: cfg, maxPerWorker: maxPerWorker, onState: onState, workers: make(map[string]*worker)}
}

func (h *health) worker(id string) *worker {
	w := h.workers[id]
	if w == nil {
		w = &worker{id: id, cooldown: h.cfg.Cooldown}
		h.workers[id] = w
		h.onState(id, closed, false)
	}
	return w
}

// standing is how a worker looks to a request that seeks one.
type standing uint8

const (
	good     standing = iota
	doubtful          // its breaker is open or its probe is out, or it is busy: only if there is nobody else
	full              // it has as many requests as it may have
)

func (h *health) standing(id string, now time.Time) standing {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.workers[id]
	if w == nil {
		return good
	}
	return h.look(w, now)
}

func (h *health) look(w *worker, now time.Time) standing {
	switch {
	case h.maxPerWorker > 0 && w.inFlight >= h.maxPerWorker:
		return full
	case w.state == open && now.Before(w.until),
		w.state == halfOpen && w.probe != nil && now.Before(w.probeAt.Add(probeExpiry)),
		now.Before(w.busy):
		return doubtful
	}
	return good
}

// claim takes the worker for a request, nil where another request was faster. Only now is the probe of a
// breaker taken, not when workers are compared. With force a doubtful worker is taken too.
func (h *health) claim(id string, now time.Time, force bool) *claim {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.worker(id)
	s := h.look(w, now)
	if s == full || s == doubtful && !force {
		return nil
	}
	if w.state == open {
		h.change(w, halfOpen, false)
	}
	c := &claim{h: h, w: w, life: w.life}
	if w.state == halfOpen && (w.probe == nil || !now.Before(w.probeAt.Add(probeExpiry))) {
		w.probe, w.probeAt = c, now
	}
	w.inFlight++
	return c
}

func (h *health) change(w *worker, s breakerState, tripped bool) {
	if w.state == s {
		return
	}
	w.state = s
	w.life++
	if !w.gone {
		h.onState(w.id, s, tripped)
	}
}

// alive says that the worker has begun to answer. It ends a probe well, but on parole: until an answer
// came to its end, the next failure opens the breaker again, for longer.
func (c *claim) alive() {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	w := c.w
	if w.state == halfOpen && c.life == w.life {
		c.h.change(w, closed, false)
		w.probe, w.fails = nil, c.h.cfg.Threshold-1
		c.life = w.life
	}
}

// busy says that the worker turned the request away for want of room; after is how long it asked for, 0 if
// it did not say.
func (c *claim) busy(now time.Time, after time.Duration) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	d := c.h.cfg.BusyPenalty
	if after > 0 {
		d = min(after, max(c.h.cfg.MaxBusy, d))
	}
	if t := now.Add(d); t.After(c.w.busy) {
		c.w.busy = t
	}
}

// end returns the claim. Further calls do nothing.
func (c *claim) end(now time.Time, v verdict) {
	h, w := c.h, c.w
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.returned {
		return
	}
	c.returned = true
	w.inFlight--
	probe := w.probe == c
	if probe {
		w.probe = nil
	}
	if c.life != w.life || h.cfg.Threshold <= 0 {
		return // the state has changed since: this says nothing about what it is now
	}
	switch {
	case v == success && w.state == halfOpen:
		h.change(w, closed, false)
		fallthrough
	case v == success:
		w.fails, w.cooldown = 0, h.cfg.Cooldown
	case v == failure && w.state == halfOpen && probe:
		h.open(w, now, false)
	case v == failure && w.state == closed:
		if w.fails++; w.fails >= h.cfg.Threshold {
			h.open(w, now, true)
		}
	}
}

// open opens a breaker; the cool-down doubles until an answer came to its end.
func (h *health) open(w *worker, now time.Time, tripped bool) {
	w.until = now.Add(w.cooldown)
	w.cooldown = min(2*w.cooldown, h.cfg.MaxCooldown)
	h.change(w, open, tripped)
}

// gone reports whether the worker has been forgotten since.
func (c *claim) gone() bool {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	return c.w.gone
}

// forget drops a worker that has left.
func (h *health) forget(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.workers[id]; w != nil {
		w.gone = true
		w.life++ // claims that are out belong to the former life
		delete(h.workers, id)
	}
}

// inFlight counts the claims that are out, for tests and the admin API.
func (h *health) inFlight() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.workers {
		n += w.inFlight
	}
	return n
}

// budget bounds retries of all requests together.
type budget struct {
	ratio, burst float64
	mu           sync.Mutex
	tokens       float64
	at           time.Time
}

func newBudget(c RetryConfig, now time.Time) *budget {
	return &budget{ratio: c.Ratio, burst: float64(c.Burst), tokens: float64(c.Burst), at: now}
}

// request allows for the retries of one more request.
func (b *budget) request() {
	b.mu.Lock()
	b.tokens = min(b.tokens+b.ratio, b.burst)
	b.mu.Unlock()
}

// take takes one retry.
func (b *budget) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := now.Sub(b.at).Seconds(); d > 0 {
		b.tokens = min(b.tokens+d, b.burst)
		b.at = now
	}
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
