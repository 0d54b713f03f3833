package pool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

func newPool(t testing.TB, cfg Config) *Pool {
	t.Helper()
	if cfg.Score.Policy == "" {
		cfg.Score = score.Defaults()
	}
	if cfg.BlockSize == 0 {
		cfg.BlockSize = 4
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func join(t testing.TB, p *Pool, name string, life target.Incarnation, g *Guess) target.ID {
	t.Helper()
	id, err := p.Join(target.Key{Worker: name, Rank: target.NoRank, Incarnation: life}, score.Candidate{BlockSize: 4}, g)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func chain(from, n int) []block.Hash {
	tokens := make([]block.Token, 4*n)
	for i := range tokens {
		tokens[i] = block.Token(from + i/4)
	}
	return block.AppendChain(nil, block.Root, tokens, 4)
}

func request(blocks []block.Hash) *score.Request {
	return &score.Request{Role: score.Mixed, Blocks: blocks, BlockSize: 4, InputTokens: int64(4 * len(blocks)), TokensExact: true, At: 1}
}

func store(hs []block.Hash) index.Op {
	return index.Op{Kind: index.Store, Handles: handles(hs), Hashes: hs}
}

func TestPickFollowsTheMirror(t *testing.T) {
	p := newPool(t, Config{})
	a, b := join(t, p, "a", 1, nil), join(t, p, "b", 1, nil)
	c := chain(100, 8)
	if r, err := p.Apply(b, []index.Op{store(c)}); err != nil || r.Stored != 8 {
		t.Fatalf("Apply = %+v, %v; want 8 stored", r, err)
	}
	var d score.Decision
	if err := p.Pick(request(c), nil, &d, nil); err != nil || d.PickedTerms().Candidate.Target != b || d.PickedTerms().Hits != 8 {
		t.Fatalf("picked %+v, %v; want b with 8 hits", d.PickedTerms(), err)
	}
	if _, ld, _ := p.Look(b); ld.HeldRequests != 1 {
		t.Errorf("b holds %d requests, want 1", ld.HeldRequests)
	}
	if !p.Release(d.Handle, 2, 5) || p.Release(d.Handle, 3, 5) {
		t.Error("a reservation must be released exactly once")
	}
	if err := p.Pick(request(c), func(c *score.Candidate) bool { return c.Target == b }, &d, nil); err != nil || d.PickedTerms().Candidate.Target != a {
		t.Errorf("with b left out: picked %+v, %v; want a", d.PickedTerms(), err)
	}
	if err := p.Pick(request(c), func(*score.Candidate) bool { return true }, &d, nil); !errors.Is(err, score.ErrNoCandidates) {
		t.Errorf("all left out: %v, want ErrNoCandidates", err)
	}
}

// TestLateReleaseAfterReturn: a worker leaves with a request in flight and another comes at its address. The
// late release counts for nobody, and the mirror of the former life is not inherited.
func TestLateReleaseAfterReturn(t *testing.T) {
	p := newPool(t, Config{})
	old := join(t, p, "a", 1, nil)
	c := chain(100, 4)
	if _, err := p.Apply(old, []index.Op{store(c)}); err != nil {
		t.Fatal(err)
	}
	var d score.Decision
	if err := p.Pick(request(c), nil, &d, nil); err != nil {
		t.Fatal(err)
	}
	p.Leave(old)
	fresh := join(t, p, "a", 2, nil)
	if fresh == old {
		t.Fatal("the ID was given away while a request was in flight")
	}
	var d2 score.Decision
	if err := p.Pick(request(c), nil, &d2, nil); err != nil || d2.PickedTerms().Hits != 0 {
		t.Errorf("the new life has %d hits (%v), want 0", d2.PickedTerms().Hits, err)
	}
	if !p.Release(d.Handle, 5, 1) {
		t.Error("the former life's reservation was lost")
	}
	if _, ld, _ := p.Look(fresh); ld.HeldRequests != 1 {
		t.Errorf("the new life holds %d requests, want its own 1", ld.HeldRequests)
	}
	p.Release(d2.Handle, 6, 1)
	if again := join(t, p, "b", 1, nil); again != old {
		t.Errorf("ID %d was not used again (got %d)", old, again)
	}
	if p.Held() != 0 {
		t.Errorf("%d reservations stay, want 0", p.Held())
	}
}

// TestLongOperations: long events are applied in pieces that come to the same.
func TestLongOperations(t *testing.T) {
	p := newPool(t, Config{})
	a, b := join(t, p, "a", 1, nil), join(t, p, "b", 1, nil)
	const n = 3*chunk + 7
	hs := make([]index.Handle, n)
	tokens := make([]block.Token, 4*n)
	for i := range tokens {
		tokens[i] = block.Token(7 * i)
		hs[i/4] = index.Handle(1000 + i/4)
	}
	full := index.Op{Kind: index.Store, Handles: hs, Tokens: tokens, PageSize: 4}
	if _, err := p.Apply(a, []index.Op{full}); err != nil {
		t.Fatal(err)
	}
	want := block.AppendChain(nil, block.Root, tokens, 4)
	if _, err := p.Apply(b, []index.Op{store(want)}); err != nil {
		t.Fatal(err)
	}
	if p.ContentHash(a) != p.ContentHash(b) {
		t.Error("tokens in pieces and hashes in pieces differ")
	}
	if _, err := p.Apply(a, []index.Op{{Kind: index.Remove, Handles: hs[5:]}}); err != nil {
		t.Fatal(err)
	}
	if st, _, _ := p.Look(a); st.Blocks != 5 {
		t.Errorf("%d blocks stay, want 5", st.Blocks)
	}
}

// TestGuessAgainstNaive holds the mirror of a target without events to a plain LRU.
func TestGuessAgainstNaive(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	g := Guess{Blocks: 20, Age: 50}
	p := newPool(t, Config{Score: func() score.Config { c := score.Defaults(); c.Policy = score.KVAware; return c }()})
	id := join(t, p, "a", 1, &g)
	type use struct {
		at, order int
	}
	naive := map[block.Hash]use{}
	now, order := int64(0), 0
	for step := range 3000 {
		now += int64(rng.IntN(8))
		c := chain(rng.IntN(6)*100, 1+rng.IntN(9))
		if k := rng.IntN(len(c)); k > 0 { // another ending
			c = append(slices.Clone(c[:k]), block.Next(c[k-1], []block.Token{block.Token(rng.IntN(4)), 1, 1, 1}))
		}
		want := 0
		for want < len(c) {
			if _, ok := naive[c[want]]; !ok {
				break
			}
			want++
		}
		req := request(c)
		req.At = now
		var d score.Decision
		if err := p.Pick(req, nil, &d, nil); err != nil {
			t.Fatal(err)
		}
		if got := int(d.PickedTerms().Hits); got != want {
			t.Fatalf("step %d: %d hits, want %d", step, got, want)
		}
		p.Release(d.Handle, now, 0)
		for i := len(c) - 1; i >= 0; i-- {
			order++
			naive[c[i]] = use{int(now), order}
		}
		for {
			var oldest block.Hash
			first := true
			for h, u := range naive {
				if first || u.order < naive[oldest].order {
					oldest, first = h, false
				}
			}
			if len(naive) <= g.Blocks && now-int64(naive[oldest].at) <= int64(g.Age) {
				break
			}
			delete(naive, oldest)
		}
		if st, _, _ := p.Look(id); st.Blocks != len(naive) || st.Orphans != 0 || st.Holes != 0 {
			t.Fatalf("step %d: mirror %+v, want %d blocks and no orphans or holes", step, st, len(naive))
		}
	}
}

// order is a recorder that notes that calls never overlap and what came in which order.
type order struct {
	t    *testing.T
	busy atomic.Bool
	n    int
}

func (o *order) in() func() {
	if !o.busy.CompareAndSwap(false, true) {
		o.t.Error("two calls of the recorder at once")
	}
	o.n++
	return func() { o.busy.Store(false) }
}

func (o *order) Changed(target.ID, block.Hash, block.Hash, index.Tier, bool) { o.in()() }
func (o *order) Emptied(target.ID)                                           { o.in()() }
func (o *order) Join(target.ID, target.Key, score.Candidate)                 { o.in()() }
func (o *order) Leave(target.ID)                                             { o.in()() }
func (o *order) Forget(target.ID)                                            { o.in()() }
func (o *order) Pick(*score.Request, []score.Candidate, *score.Decision)     { o.in()() }
func (o *order) FirstToken(load.Handle, int64)                               { o.in()() }
func (o *order) Unbind(load.Handle)                                          { o.in()() }
func (o *order) Release(load.Handle, int64, int64)                           { o.in()() }
func (o *order) Note(int64, target.ID, string)                               { o.in()() }

// TestManyAtOnce runs events, picks, joins and leaves side by side; at the end nothing is held.
func TestManyAtOnce(t *testing.T) {
	rec := &order{t: t}
	p := newPool(t, Config{Recorder: rec, Index: index.Options{OrphanLimit: 64}})
	var ids [4]target.ID
	for i := range ids {
		ids[i] = join(t, p, fmt.Sprint("w", i), 1, nil)
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(3, uint64(w)))
			for range 300 {
				c := chain(rng.IntN(5)*1000, 1+rng.IntN(40))
				op := store(c)
				switch rng.IntN(12) {
				case 0:
					op = index.Op{Kind: index.Clear}
				case 1, 2, 3:
					op = index.Op{Kind: index.Remove, Handles: handles(c[rng.IntN(len(c)):])}
				}
				if _, err := p.Apply(ids[w], []index.Op{op}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(4, uint64(w)))
			var d score.Decision
			for range 300 {
				if err := p.Pick(request(chain(rng.IntN(5)*1000, 1+rng.IntN(40))), nil, &d, nil); err != nil {
					t.Error(err)
					continue
				}
				if rng.IntN(2) == 0 {
					p.FirstToken(d.Handle, time.Now().UnixNano())
				}
				if rng.IntN(4) == 0 {
					p.Unbind(d.Handle)
				}
				if !p.Release(d.Handle, time.Now().UnixNano(), 3) {
					t.Error("a reservation was lost")
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 200 {
			id, err := p.Join(target.Key{Worker: "guest", Rank: target.NoRank, Incarnation: target.Incarnation(i)}, score.Candidate{BlockSize: 4}, &Guess{Blocks: 50})
			if err != nil {
				t.Error(err)
				return
			}
			p.Update(id, func(c *score.Candidate) { c.Doubt = "guest" })
			p.Leave(id)
		}
	})
	wg.Wait()
	if p.Held() != 0 {
		t.Errorf("%d reservations stay, want 0", p.Held())
	}
	if n := len(p.slots) - len(p.free); n != len(ids) {
		t.Errorf("%d targets are in use, want %d", n, len(ids))
	}
	if rec.n == 0 {
		t.Error("nothing was recorded")
	}
	if err := p.index.Check(); err != nil {
		t.Error(err)
	}
	if err := p.ledger.Check(); err != nil {
		t.Error(err)
	}
}
