// Package fleet knows the workers: it takes them from discovery, asks each what it is, follows its cache
// events, watches its health, and places requests on them through the pool of their model.
package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/pool"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/tokenize"
	"github.com/kvroute/kvroute/internal/vitals"
)

// Config is what a fleet is made of. Zero durations and counts mean the defaults.
type Config struct {
	Model           string // model of workers that do not say theirs; "": what the worker serves
	Score           score.Config
	BlockSize       int // tokens per block of the mirrors; default 16
	Index           index.Options
	Tokenizer       func(model string) tokenize.Tokenizer           // nil result: none for this model
	Transport       feed.Transport                                  // nil: events cannot be followed (the program was built without)
	Client          *http.Client                                    // to workers, for probes
	Recorder        func(model string, blockSize int) pool.Recorder // nil result: not recorded
	TokenizeTimeout time.Duration                                   // default 2 s
	HealthInterval  time.Duration                                   // default 10 s
	ProbeTimeout    time.Duration                                   // default 10 s
	Guess           pool.Guess                                      // mirrors of workers without events; default 65,536 blocks, 10 min
	SilentAfter     int                                             // requests without an event that make a stream silent; default 16
	Log             *slog.Logger
	Registry        prometheus.Registerer
	Resume          *Resume             // mirrors kept from an earlier run; nil: none
	OnLeave         func(worker string) // a worker has left; nil: nobody is told
	Vitals          *vitals.Vitals      // is told what happens; nil: an own one
	Text            bool                // tell Vitals the beginning of prompts too
}

func (c *Config) defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.TokenizeTimeout, 2*time.Second)
	set(&c.HealthInterval, 10*time.Second)
	set(&c.ProbeTimeout, 10*time.Second)
	set(&c.Guess.Age, 10*time.Minute)
	if c.Guess.Blocks == 0 {
		c.Guess.Blocks = 1 << 16
	}
	if c.BlockSize == 0 {
		c.BlockSize = 16
	}
	if c.SilentAfter == 0 {
		c.SilentAfter = 16
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Client == nil {
		c.Client = http.DefaultClient
	}
	if c.Vitals == nil {
		c.Vitals = vitals.New()
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
}

// Fleet is all workers of all models. It is safe for concurrent use.
type Fleet struct {
	cfg   Config
	log   *slog.Logger
	count *counters

	ctx  context.Context //nolint:containedctx // the fleet's own life; ended by Close
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.RWMutex
	specs   bool               // discovery has spoken
	workers map[string]*worker // by id
	sorted  []*worker          // the same, by id; made anew with every change, nil: not yet
	models  map[string]*model  // by name
	lives   map[string]target.Incarnation
	replays *feed.Limiter
	shared  shared
}

// replaysAtOnce bounds replays, each of which holds up the engine that answers it.
const replaysAtOnce = 8

// New makes a fleet without workers; Update gives it some.
func New(cfg Config) (*Fleet, error) {
	cfg.defaults()
	if err := cfg.Score.Validate(); err != nil {
		return nil, err
	}
	f := &Fleet{cfg: cfg, log: cfg.Log, count: newCounters(cfg.Registry), workers: map[string]*worker{}, models: map[string]*model{}, lives: map[string]target.Incarnation{}, replays: feed.NewLimiter(replaysAtOnce), shared: shared{by: map[string]*sharedStream{}}}
	f.ctx, f.stop = context.WithCancel(context.Background())
	cfg.Registry.MustRegister(f)
	return f, nil
}

// Update makes the workers be those of specs: new ones come, missing ones go, and one whose record changed
// in anything begins another life.
func (f *Fleet) Update(specs []discovery.Spec) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.specs = true
	wanted := make(map[string]discovery.Spec, len(specs))
	for _, s := range specs {
		wanted[s.ID] = s
	}
	for id, w := range f.workers {
		if s, ok := wanted[id]; ok && s.Equal(w.spec) {
			continue
		}
		delete(f.workers, id)
		f.sorted = nil
		f.log.Info("worker leaves", "worker", id)
		w.end()
		if f.cfg.OnLeave != nil {
			f.cfg.OnLeave(id)
		}
	}
	for _, s := range specs {
		if f.workers[s.ID] != nil {
			continue
		}
		f.lives[s.ID]++
		w := newWorker(f, s, f.lives[s.ID])
		f.workers[s.ID] = w
		f.sorted = nil
		f.log.Info("worker found", "worker", s.ID, "url", s.URL.Redacted(), "incarnation", uint32(w.life))
		f.wg.Go(w.run)
	}
}

// renew begins another life of a worker whose record is as it was, but not the engine behind it.
func (f *Fleet) renew(w *worker) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := w.spec.ID
	if f.workers[id] != w { // discovery was faster
		return
	}
	w.end()
	f.lives[id]++
	n := newWorker(f, w.spec, f.lives[id])
	f.workers[id] = n
	f.sorted = nil
	f.wg.Go(n.run)
}

// Close ends all work for the workers. Reservations stay releasable.
func (f *Fleet) Close() {
	f.stop()
	f.wg.Wait()
}

// modelFor returns the model of a name, making it if there is none.
func (f *Fleet) modelFor(name string) (*model, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.models[name]; m != nil {
		return m, nil
	}
	m, err := newModel(f, name)
	if err != nil {
		return nil, err
	}
	f.models[name] = m
	return m, nil
}

// model finds whom a request's model field means: a model, or an adapter of one.
func (f *Fleet) model(name string) (m *model, adapter string, ok bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if m := f.models[name]; m != nil {
		return m, "", true
	}
	for _, m := range f.models {
		if m.hasAdapter(name) {
			return m, name, true
		}
	}
	if name == "" && len(f.models) == 1 {
		for _, m := range f.models {
			return m, "", true
		}
	}
	return nil, "", false
}

// all returns the workers by id, in a slice that must not be changed.
func (f *Fleet) all() []*worker {
	f.mu.RLock()
	ws := f.sorted
	f.mu.RUnlock()
	if ws != nil {
		return ws
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sorted == nil {
		f.sorted = make([]*worker, 0, len(f.workers))
		for _, w := range f.workers {
			f.sorted = append(f.sorted, w)
		}
		slices.SortFunc(f.sorted, func(a, b *worker) int { return strings.Compare(a.spec.ID, b.spec.ID) })
	}
	return f.sorted
}

// Models implements router.Fleet: the entries of all workers, each id once, fields as the worker gave them.
func (f *Fleet) Models() []json.RawMessage {
	var list []json.RawMessage
	seen := map[string]bool{}
	for _, w := range f.all() {
		for _, e := range w.modelEntries() {
			if !seen[e.ID] {
				seen[e.ID] = true
				list = append(list, e.Raw)
			}
		}
	}
	return list
}

// Ready implements router.Fleet: every model that has workers has one that serves, and the mirror of each
// worker that serves is either complete or known not to be.
func (f *Fleet) Ready() (ok bool, why []string) {
	f.mu.RLock()
	told := f.specs
	f.mu.RUnlock()
	if !told {
		return false, []string{"discovery has not answered yet"}
	}
	ws := f.all()
	if len(ws) == 0 {
		return false, []string{"there are no workers"}
	}
	serving := 0
	for _, w := range ws {
		health, reason := w.healthNow()
		switch {
		case health == Healthy:
			serving++
			for _, g := range w.targetsNow() {
				if settled, what := g.settled(); !settled {
					why = append(why, fmt.Sprintf("%s: %s", g.key, what))
				}
			}
		case health == Starting:
			why = append(why, fmt.Sprintf("%s: %s", w.spec.ID, reason))
		}
	}
	if serving == 0 {
		return false, append(why, "no worker serves")
	}
	return len(why) == 0, why
}

// ActiveWorkers implements router.Counter.
func (f *Fleet) ActiveWorkers() int {
	n := 0
	for _, w := range f.all() {
		if w.serves() {
			n++
		}
	}
	return n
}
