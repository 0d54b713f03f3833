package admin

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/vitals"
)

// HubConfig is what snapshots are made of.
type HubConfig struct {
	Fleet    *fleet.Fleet
	Vitals   *vitals.Vitals
	Data     func(worker string) router.WorkerState // nil: not known
	InFlight func() int64                           // requests whose answer has not ended; nil: not known
	Draining func() bool                            // nil: never
	Version  string
	Policy   string
	Flags    map[string]any         // effective flags of the scorer
	Text     bool                   // prefixes show text
	Troubles func() router.Troubles // nil: not known
	Facts    func() []vitals.Fact   // what is wrong beyond what fleet and router tell; nil: nothing
	Registry prometheus.Registerer  // nil: no metrics
	Now      func() time.Time       // nil: time.Now
}

// Hub makes snapshots of a router for all who watch it: one a moment, whoever asks. It holds nothing for a
// watcher: each gets what changed since what it was sent last, so that one that does not read costs nothing and is
// up to date with its next delta.
type Hub struct {
	cfg      HubConfig
	run      string
	started  time.Time
	watchers atomic.Int64
	m        *metrics
	frames   frames

	mu       sync.Mutex
	last     *snapshot.Snapshot
	made     time.Time
	nextTree time.Time
	cache    snapshot.Cache
	order    order
	states   []fleet.TargetState // memory of make
	outlines []snapshot.Worker   // the same
}

// NewHub makes a Hub. Run must be called for warnings to be noticed while nobody watches.
func NewHub(cfg HubConfig) *Hub {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	h := &Hub{cfg: cfg, run: rand.Text()[:12], started: cfg.Now()}
	h.m = newMetrics(h, cfg.Registry)
	return h
}

// Periods of what costs most.
const (
	lookEvery = time.Second            // for warnings
	treeEvery = time.Second            // the tree of prefixes
	treeEntry = 100 * time.Microsecond // and as much more for each holder of one of them: the tree is sent whole
)

func entries(ps []snapshot.Prefix) (n int) {
	for i := range ps {
		n += len(ps[i].Holders)
	}
	return n
}

// Run looks for what is wrong until ctx is done.
func (h *Hub) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.look()
		}
	}
}

// look looks for what is wrong, and gathers no more than that takes.
func (h *Hub) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.make(h.cfg.Now(), false)
	facts := h.cfg.Fleet.Facts()
	if h.cfg.Troubles != nil {
		facts = append(facts, requestFacts(h.cfg.Troubles())...)
	}
	if h.cfg.Facts != nil {
		facts = append(facts, h.cfg.Facts()...)
	}
	h.cfg.Vitals.Watch(s, facts...)
	warnings, errors := h.cfg.Vitals.Warnings()
	h.m.warnings.WithLabelValues("warning").Set(float64(warnings))
	h.m.warnings.WithLabelValues("error").Set(float64(errors))
}

// perTarget bounds what watching costs, whatever the size of the fleet: making a snapshot and telling what changed take
// some 8 µs a target, and no other is made before this time for each. Fleets of up to 125 do not feel it.
const perTarget = time.Millisecond

// Current returns a snapshot no older than maxAge, or than a large fleet allows, or an older one if nothing has changed
// since. With maxAge 0 it is of this moment. It must not be changed.
func (h *Hub) Current(maxAge time.Duration) *snapshot.Snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.cfg.Now()
	if h.last != nil && maxAge > 0 && now.Sub(h.made) < max(maxAge, perTarget*time.Duration(len(h.last.Workers))) {
		return h.last
	}
	s := h.make(now, true)
	h.m.snapshots.Inc()
	h.made = now
	if h.last != nil {
		s.Seq = h.last.Seq + 1
		d := snapshot.Diff(h.last, s)
		if d == nil {
			return h.last
		}
		h.frames.step(d)
	}
	h.last = s
	return s
}

// Fresh returns a snapshot of this moment.
func (h *Hub) Fresh() *snapshot.Snapshot {
	s := *h.Current(0)
	s.AtMS = h.cfg.Now().UnixMilli()
	return &s
}

// Watch counts a watcher until leave is called; not ok: there are too many.
func (h *Hub) Watch() (leave func(), ok bool) {
	if h.watchers.Add(1) > MaxWatchers {
		h.watchers.Add(-1)
		h.m.refused.Inc()
		return nil, false
	}
	return sync.OnceFunc(func() { h.watchers.Add(-1) }), true
}

// MaxWatchers bounds those who watch at once.
const MaxWatchers = 64

// Watchers is how many there are.
func (h *Hub) Watchers() int { return int(h.watchers.Load()) }

// Explain returns the full record of a decision that is still kept.
func (h *Hub) Explain(_ context.Context, id uint64) ([]byte, error) {
	record, ok := h.cfg.Vitals.Explain(id)
	if !ok {
		return nil, fmt.Errorf("decision %d is not kept any more: the last %d are", id, snapshot.MaxPicks)
	}
	return record, nil
}

// ended says whether streams should end, so that the router can.
func (h *Hub) ended() bool {
	return h.cfg.Draining != nil && h.cfg.Draining() && (h.cfg.InFlight == nil || h.cfg.InFlight() == 0)
}

// make builds a snapshot: the states alone, which is what warnings are made of, or the whole. The caller holds h.mu.
func (h *Hub) make(now time.Time, whole bool) *snapshot.Snapshot {
	f := h.cfg.Fleet
	s := &snapshot.Snapshot{Schema: snapshot.Schema, Run: h.run, Seq: 1, AtMS: now.UnixMilli()}
	ready, why := f.Ready()
	s.Router = snapshot.Router{
		Version: h.cfg.Version, StartedMS: h.started.UnixMilli(), Ready: ready, NotReady: why, Policy: h.cfg.Policy, Flags: h.cfg.Flags,
		BlockSize: f.BlockSize(), Watchers: h.Watchers(), Text: h.cfg.Text,
	}
	if ready {
		s.Router.NotReady = nil
	}
	if h.cfg.InFlight != nil {
		s.Router.InFlight = h.cfg.InFlight()
	}
	if h.cfg.Draining != nil && h.cfg.Draining() {
		s.Router.Draining, s.Router.Ready = true, false
	}
	h.states = f.AppendStates(h.states[:0])
	states := h.states
	if whole {
		s.Workers = make([]snapshot.Worker, len(states))
	} else { // nobody keeps it
		h.outlines = slices.Grow(h.outlines[:0], len(states))[:len(states)]
		s.Workers = h.outlines
	}
	for to, from := range h.order.of(states) {
		if whole {
			s.Workers[to] = entry(&states[from], h.cfg.Data, f.BlockSize())
		} else {
			s.Workers[to] = outline(&states[from], h.cfg.Data)
		}
	}
	if !whole {
		return s
	}
	h.cfg.Vitals.Fill(s.AtMS, s)
	if !now.Before(h.nextTree) {
		size := f.Size()
		h.cache = snapshot.Cache{Held: int64(size.Members), Distinct: int64(min(size.Blocks, size.Members))}
		h.cache.Prefixes, h.cache.Sampled = h.cfg.Vitals.Prefixes(f.Holders)
		if h.cache.Prefixes == nil {
			h.cache.Prefixes = []snapshot.Prefix{}
		}
		h.nextTree = now.Add(treeEvery + treeEntry*time.Duration(entries(h.cache.Prefixes)))
	}
	s.Cache = h.cache
	return s
}

// order is the places of states in a snapshot, made anew only where the targets are other ones.
type order struct {
	names [][3]string // of states: model, role, route key
	at    []int       // by place in the snapshot, the place among the states
}

func (o *order) of(states []fleet.TargetState) []int {
	same := len(states) == len(o.names)
	for i := 0; same && i < len(states); i++ {
		same = o.names[i] == nameOf(&states[i])
	}
	if same {
		return o.at
	}
	o.names, o.at = make([][3]string, len(states)), make([]int, len(states))
	for i := range states {
		o.names[i], o.at[i] = nameOf(&states[i]), i
	}
	slices.SortStableFunc(o.at, func(a, b int) int { return snapshot.Compare(o.names[a], o.names[b]) })
	return o.at
}

func nameOf(s *fleet.TargetState) [3]string { return [3]string{s.Model, s.Role, s.RouteKey} }
