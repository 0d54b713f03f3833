package fleet

import (
	"bytes"
	"fmt"
	"strings"
	"sync"

	"github.com/kvroute/kvroute/internal/pool"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/tokenize"
)

type targetID = target.ID

// model is one served model: a pool, and how its prompts become tokens.
type model struct {
	name string
	pool *pool.Pool
	tok  tokenize.Tokenizer // nil: none; prompts are compared by their bytes

	mu       sync.RWMutex
	variants []tokenize.Variant // by score.Candidate.Variant; they are few and never taken away
	targets  map[targetID]*tgt  // present ones
	adapters map[string]int     // how many workers serve it

	untokenized map[string]uint64 // requests without tokens, by reason
}

func newModel(f *Fleet, name string) (*model, error) {
	m := &model{name: name, targets: map[targetID]*tgt{}, adapters: map[string]int{}}
	if f.cfg.Tokenizer != nil {
		m.tok = f.cfg.Tokenizer(name)
	}
	cfg := pool.Config{Score: f.cfg.Score, BlockSize: f.cfg.BlockSize, Index: f.cfg.Index}
	if f.cfg.Recorder != nil {
		cfg.Recorder = f.cfg.Recorder(name, f.cfg.BlockSize)
	}
	p, err := pool.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("model %q: %w", name, err)
	}
	m.pool = p
	if m.tok == nil {
		f.log.Warn("no tokenizer for this model: prompts are compared by their bytes and caches guessed from what was sent where (approximate)", "model", name)
	}
	return m, nil
}

// variant numbers a way to make tokens of a body; equal ways have equal numbers. Without a tokenizer there is
// one way only.
func (m *model) variant(v tokenize.Variant) int {
	if m.tok == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, o := range m.variants {
		if o.Prepare == v.Prepare && bytes.Equal(o.Kwargs, v.Kwargs) {
			return i
		}
	}
	m.variants = append(m.variants, v)
	return len(m.variants) - 1
}

// variantsNow are all variants, by number. They are never changed, only added to.
func (m *model) variantsNow() []tokenize.Variant {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.variants
}

// adapt counts the adapters of a worker that comes (by 1) or goes (by -1).
func (m *model) adapt(names []string, by int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range names {
		if m.adapters[n] += by; m.adapters[n] <= 0 {
			delete(m.adapters, n)
		}
	}
}

func (m *model) hasAdapter(name string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.adapters[name] > 0
}

func (m *model) target(id targetID) *tgt {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.targets[id]
}

// choosing calls choose with a filter that leaves out targets whose worker does not serve, and those the caller
// does not want. The targets stay as they are meanwhile, so that the filter, which runs under the pool's
// lock for every candidate, needs none of its own. The lock order is m.mu, then the pool's.
func (m *model) choosing(skip func(worker string) bool, choose func(skip func(*score.Candidate) bool) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return choose(func(c *score.Candidate) bool {
		g := m.targets[c.Target]
		if g == nil || !g.worker.serves() {
			return true
		}
		return skip != nil && skip(g.worker.spec.ID)
	})
}

// whyNone says what became of a model's workers when none is left.
func (m *model) whyNone(skip func(worker string) bool) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	total, down, left := 0, 0, 0
	seen := map[string]bool{}
	for _, g := range m.targets {
		if seen[g.worker.spec.ID] {
			continue
		}
		seen[g.worker.spec.ID] = true
		total++
		switch {
		case !g.worker.serves():
			down++
		case skip != nil && skip(g.worker.spec.ID):
			left++
		}
	}
	var parts []string
	if down > 0 {
		parts = append(parts, fmt.Sprintf("%d do not answer", down))
	}
	if left > 0 {
		parts = append(parts, fmt.Sprintf("%d were tried or are at their limit", left))
	}
	if total == 0 {
		return "it has no workers"
	}
	return fmt.Sprintf("of %d workers %s", total, strings.Join(parts, ", "))
}
