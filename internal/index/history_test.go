package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/target"
)

// subject is what the fast index and the reference have in common.
type subject interface {
	View
	Join(t target.ID)
	Forget(t target.ID)
	Apply(op Op) (Result, error)
	Stats(t target.ID) Stats
	ContentHash(t target.ID) uint64
	Check() error
	holds(t target.ID, h block.Hash) tiers
	resolve(t target.ID, h Handle) (at block.Hash, rest []block.Token, ok bool)
}

func (x *naive) holds(t target.ID, h block.Hash) tiers {
	if nt := x.get(t); nt != nil {
		return nt.view[h]
	}
	return 0
}

func (x *naive) resolve(t target.ID, h Handle) (block.Hash, []block.Token, bool) {
	if p := x.targets[t].pages[h]; p != nil {
		return p.last, p.rest, true
	}
	return 0, nil, false
}

func (x *Index) holds(t target.ID, h block.Hash) tiers {
	m, id := x.mirror(t), x.byHash.find(&x.arena, mix(uint64(h)), uint64(h))
	if m == nil || id == 0 {
		return 0
	}
	if x.sets.get(x.arena.at(id)[fSet], t) == absent {
		return 0
	}
	if rf, ok := m.refs[id]; ok {
		return rf.tiers()
	}
	return tier(GPU)
}

func (x *Index) resolve(t target.ID, h Handle) (block.Hash, []block.Token, bool) {
	s := x.lookup(x.mirrors[t], h)
	if s.tiers == 0 {
		return 0, nil, false
	}
	at := x.placeAfter(s)
	return at.hash, at.rest, true
}

var implementations = []struct {
	name string
	make func(blockSize int, opt Options) subject
}{
	{"index", func(n int, opt Options) subject { return New(n, opt) }},
	{"naive", func(n int, opt Options) subject { return newNaive(n, opt) }},
}

// history drives an index and the reference with operations read from bytes. Prompts are 24 tokens of
// three thirds with two variants each, so they share beginnings; blocks have 4 tokens.
type history struct {
	bytes   []byte
	at      int
	fast    *Index
	slow    *naive
	got     Matches
	want    Matches
	targets int
	hashes  bool  // stores may carry hashes, and then no handle ever stands for the wrong content
	counted int   // 0: no store counts copies, 1: every one, 2: some
	sizes   []int // of pages
	seen    observed
	yields  int
	bad     string // what was wrong during a yield
}

const (
	historyBlock  = 4
	historyTokens = 24
)

func newHistory(data []byte) *history {
	h := &history{bytes: data, sizes: []int{4, 4, 4, 4, 1, 2, 3, 6, 8, 12}}
	opt := Options{}
	switch h.pick(3) {
	case 1:
		opt = Options{Limit: 10 + h.pick(40), HandleLimit: 10 + h.pick(100), OrphanLimit: 1 + h.pick(20)}
	case 2:
		opt = Options{OrphanLimit: 1 + h.pick(20)}
	}
	h.hashes = h.pick(2) == 0
	h.targets = []int{1, 3, 6, 70}[h.pick(4)]
	h.counted = h.pick(3)
	h.slow = newNaive(historyBlock, opt)
	opt.Observer, opt.Yield = &h.seen, h.yield
	h.fast = New(historyBlock, opt)
	h.fast.patience = 1
	return h
}

func (h *history) done() bool { return h.at >= len(h.bytes) }

func (h *history) pick(n int) int {
	if h.done() {
		return 0
	}
	h.at++
	return int(h.bytes[h.at-1]) % n
}

func prompt(v int) []block.Token {
	out := make([]block.Token, historyTokens)
	for i := range out {
		out[i] = block.Token(i*10 + v>>(i/8)&1)
	}
	return out
}

// name is the handle of the page of size tokens that ends the tokens: by content alone, by content and
// target, by content under a second name, or by position, in which case names clash.
func name(style int, t target.ID, tokens []block.Token, size int) Handle {
	switch h := Handle(block.Next(block.Hash(size), tokens)); style {
	case 0, 1, 2:
		return h
	case 3:
		return h + Handle(t)
	case 4:
		return h ^ 1
	default:
		return Handle(len(tokens) / size)
	}
}

// target picks one of the first few targets mostly, so that they come to hold the same blocks.
func (h *history) target() target.ID { return target.ID(h.pick(256) % h.targets) }

func (h *history) op() Op {
	op := Op{Target: h.target()}
	kind := h.pick(64)
	switch {
	case kind == 0:
		op.Kind = Clear
		return op
	case kind == 1:
		op.Kind = Epoch
		return op
	case kind < 26:
		op.Kind = Remove
	default:
		op.Kind = Store
		op.Counted = h.counted == 1 || h.counted == 2 && h.pick(2) == 0
	}
	if h.pick(4) == 0 {
		op.Tier = Tier(h.pick(int(NumTiers)))
	}
	if h.pick(8) == 0 {
		op.Namespace = 7
	}
	size := h.sizes[h.pick(len(h.sizes))]
	op.PageSize = size
	if size == historyBlock && h.pick(2) == 0 {
		op.PageSize = 0
	}
	style, tokens := h.pick(7), prompt(h.pick(8))
	if h.hashes {
		style %= 5
	}
	pages := historyTokens / size
	first := h.pick(pages)
	if h.pick(3) > 0 {
		first = 0
	}
	n := 1 + h.pick(pages-first)
	salt := size + 100*int(op.Namespace)
	for k := first; k < first+n; k++ {
		op.Handles = append(op.Handles, name(style, op.Target, tokens[:(k+1)*size], salt))
	}
	if op.Kind == Remove {
		return op
	}
	if first > 0 {
		op.HasParent, op.Parent = true, name(style, op.Target, tokens[:first*size], salt)
	}
	op.Tokens = tokens[first*size : (first+n)*size]
	switch h.pick(12) {
	case 0: // an offload event
		op.Tokens = nil
	case 1: // sizes that do not fit
		op.Handles = op.Handles[:n-1]
	case 2: // the same handle twice
		if !h.hashes {
			op.Handles[0] = op.Handles[n-1]
		}
	case 3: // tokens too many
		op.Tokens = tokens[first*size : min(historyTokens, (first+n)*size+1)]
	case 4, 5:
		if size == historyBlock && h.hashes {
			op.Hashes = block.AppendChain(nil, op.Namespace, tokens, historyBlock)[first : first+n]
			op.Tokens = nil
		}
	}
	return op
}

// step does one thing to both and compares everything that can be seen.
func (h *history) step(t *testing.T) {
	t.Helper()
	var did any
	switch k := h.pick(40); {
	case k == 0:
		id := h.target()
		h.fast.Forget(id)
		h.slow.Forget(id)
		did = []any{"forget", id}
	case k < 3:
		id := h.target()
		h.fast.Join(id)
		h.slow.Join(id)
		did = []any{"join", id}
	default:
		op := h.op()
		if k > 3 { // else it may meet a target that has not joined
			h.fast.Join(op.Target)
			h.slow.Join(op.Target)
		}
		got, gotErr := h.fast.Apply(op)
		want, wantErr := h.slow.Apply(op)
		if got != want || (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("byte %d: Apply(%+v) =\n%+v, %v, want\n%+v, %v", h.at, op, got, gotErr, want, wantErr)
		}
		did = op
	}
	if h.bad != "" {
		t.Fatalf("byte %d, during %+v: %s", h.at, did, h.bad)
	}
	h.compare(t, did)
	h.compareObserved(t, did)
}

// yield is called while the index empties a target, which the reference has not done yet.
func (h *history) yield() {
	h.yields++
	id := h.fast.emptied.t
	for v := range 16 {
		chain := block.AppendChain(nil, block.Hash(v/8*7), prompt(v%8), historyBlock)
		h.fast.Match(chain, &h.got)
		h.slow.Match(chain, &h.want)
		for _, counts := range [][]uint32{h.want.Hits, h.want.Lower[CPU], h.want.Lower[Disk]} {
			if counts != nil {
				counts[id] = 0
			}
		}
		lower := func(m *Matches, t Tier) []uint32 {
			if m.Lower[t] == nil {
				return make([]uint32, len(m.Hits))
			}
			return m.Lower[t]
		}
		if !slices.Equal(h.got.Hits, h.want.Hits) || !slices.Equal(lower(&h.got, CPU), lower(&h.want, CPU)) ||
			!slices.Equal(lower(&h.got, Disk), lower(&h.want, Disk)) || len(h.seen.held[id]) != 0 {
			h.bad = fmt.Sprintf("while target %d is emptied, Match of prompt %d = %v lower %v, want %v lower %v; observed %d blocks",
				id, v, h.got.Hits, h.got.Lower, h.want.Hits, h.want.Lower, len(h.seen.held[id]))
		}
	}
}

func (h *history) compare(t *testing.T, did any) {
	t.Helper()
	if err := h.slow.Check(); err != nil {
		t.Fatalf("byte %d, after %+v: the reference: %v", h.at, did, err)
	}
	if err := h.fast.Check(); err != nil {
		t.Fatalf("byte %d, after %+v: %v", h.at, did, err)
	}
	for id := range target.ID(h.targets) {
		if got, want := h.fast.Stats(id), h.slow.Stats(id); got != want {
			t.Fatalf("byte %d, after %+v: Stats(%d) =\n%+v, want\n%+v", h.at, did, id, got, want)
		}
		if got, want := h.fast.ContentHash(id), h.slow.ContentHash(id); got != want {
			t.Fatalf("byte %d, after %+v: ContentHash(%d) = %x, want %x", h.at, did, id, got, want)
		}
	}
	for v := range 16 {
		chain := block.AppendChain(nil, block.Hash(v/8*7), prompt(v%8), historyBlock)
		for len(chain) >= 0 {
			h.fast.Match(chain, &h.got)
			h.slow.Match(chain, &h.want)
			if !slices.Equal(h.got.Hits, h.want.Hits) || !slices.EqualFunc(h.got.Lower[:], h.want.Lower[:], slices.Equal) {
				t.Fatalf("byte %d, after %+v: Match of %d blocks of prompt %d =\n%v lower %v, want\n%v lower %v",
					h.at, did, len(chain), v, h.got.Hits, h.got.Lower, h.want.Hits, h.want.Lower)
			}
			if len(chain) == 0 {
				break
			}
			chain = chain[:len(chain)-1-min(len(chain)-1, v%3)]
		}
	}
}

func TestHistories(t *testing.T) {
	yields, copies := 0, 0
	t.Parallel()
	histories := 400
	if testing.Short() {
		histories = 40
	}
	for seed := range histories {
		rng := rand.New(rand.NewPCG(uint64(seed), 5))
		data := make([]byte, 1500)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		h := newHistory(data)
		for !h.done() {
			h.step(t)
			for id := range target.ID(h.targets) {
				copies += h.fast.Stats(id).Copies
			}
		}
		yields += h.yields
	}
	if yields == 0 || copies == 0 {
		t.Errorf("the histories yield %d times and see %d copies, want some", yields, copies)
	}
}

func FuzzHistory(f *testing.F) {
	for seed := range 8 {
		rng := rand.New(rand.NewPCG(uint64(seed), 6))
		data := make([]byte, 200)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 2000 {
			t.Skip("longer histories find nothing that shorter ones do not")
		}
		h := newHistory(data)
		for !h.done() {
			h.step(t)
		}
	})
}
