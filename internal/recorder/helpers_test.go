package recorder_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/pool"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/recorder"
	"github.com/kvroute/kvroute/internal/replay"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

var _ pool.Recorder = (*recorder.Recorder)(nil)

const blockSize = 4

// disk keeps the files of a recording in memory.
type disk struct {
	mu    sync.Mutex
	files []*file
	fail  error // of the next Write
}

type file struct {
	d      *disk
	b      bytes.Buffer
	closed bool
}

func (d *disk) create(part int) (io.WriteCloser, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if part != len(d.files)+1 {
		return nil, fmt.Errorf("part %d after %d files", part, len(d.files))
	}
	d.files = append(d.files, &file{d: d})
	return d.files[part-1], nil
}

func (f *file) Write(p []byte) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.fail != nil {
		return 0, f.d.fail
	}
	return f.b.Write(p)
}

func (f *file) Close() error {
	if f.closed {
		return errors.New("closed twice")
	}
	f.closed = true
	return nil
}

// contents returns the files' bytes.
func (d *disk) contents() [][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out [][]byte
	for _, f := range d.files {
		out = append(out, bytes.Clone(f.b.Bytes()))
	}
	return out
}

// opened reads the headings of files and orders them.
func opened(tb testing.TB, files [][]byte) *replay.Recording {
	tb.Helper()
	var names []string
	var readers []*record.Reader
	for i, b := range files {
		name := fmt.Sprintf("part%d", i+1)
		r, err := record.Open(bytes.NewReader(b), name)
		if err != nil {
			tb.Fatal(err)
		}
		names, readers = append(names, name), append(readers, r)
	}
	rec, err := replay.OrderRecording(names, readers)
	if err != nil {
		tb.Fatal(err)
	}
	return rec
}

// verified makes the decisions again and wants all to be equal.
func verified(tb testing.TB, files [][]byte) *replay.Verification {
	tb.Helper()
	v, err := replay.Verify(context.Background(), opened(tb, files), nil)
	if err != nil {
		tb.Fatal(err)
	}
	if d := v.Difference; d != nil {
		tb.Fatalf("%s:%d: decision %d differs: %+v\nrecorded %s\nreplayed %s", d.File, d.Line, d.Seq, d.Terms, d.Recorded, d.Replayed)
	}
	return v
}

// world is a pool with clients, engines that tell of their caches, and everything that goes wrong.
type world struct {
	tb      testing.TB
	pool    *pool.Pool
	mu      sync.Mutex // guards what follows
	workers []*worker
	lives   target.Incarnation
	now     int64
	chains  [][]block.Token
	known   int64 // answers whose length was told
	unknown int64
	picks   int64
}

// worker is a target and what its engine sends.
type worker struct {
	id     target.ID
	role   score.Role
	page   int
	stored []index.Handle
	next   uint64
}

func header(cfg score.Config) record.Header {
	return record.Header{Run: "00000000000000aa", Program: "test", Model: "m", BlockSize: blockSize, Config: cfg}
}

func newWorld(tb testing.TB, cfg score.Config, rec pool.Recorder, workers int, rng *rand.Rand) *world {
	tb.Helper()
	p, err := pool.New(pool.Config{Score: cfg, BlockSize: blockSize, Index: index.Options{OrphanLimit: 64}, Recorder: rec})
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{tb: tb, pool: p, now: 1e9}
	for range 24 { // prompts that share their beginnings
		base := []block.Token{}
		if len(w.chains) > 0 && rng.IntN(3) > 0 {
			from := w.chains[rng.IntN(len(w.chains))]
			base = slices.Clone(from[:rng.IntN(len(from)+1)])
		}
		for range 1 + rng.IntN(60) {
			base = append(base, block.Token(rng.IntN(1000)))
		}
		w.chains = append(w.chains, base)
	}
	for i := range workers {
		w.join(i, rng)
	}
	return w
}

func (w *world) join(i int, rng *rand.Rand) {
	w.lives++
	role := score.Role(0)
	if i%4 == 3 {
		role = score.Prefill
	} else if i%4 == 2 {
		role = score.Decode
	}
	var guess *pool.Guess
	if rng.IntN(5) == 0 {
		guess = &pool.Guess{Blocks: 40, Age: 3e9}
	}
	size := blockSize
	if rng.IntN(8) == 0 {
		size = 0
	}
	key := target.Key{Worker: fmt.Sprintf("http://w%d", i), Rank: target.NoRank, Incarnation: w.lives}
	id, err := w.pool.Join(key, score.Candidate{Role: role, BlockSize: size}, guess)
	if err != nil {
		w.tb.Error(err)
		return
	}
	for len(w.workers) <= i {
		w.workers = append(w.workers, nil)
	}
	w.workers[i] = &worker{id: id, role: role, page: []int{1, 2, 4, 8}[rng.IntN(4)]}
}

// request makes a random request.
func (w *world) request(rng *rand.Rand) *score.Request {
	tokens := w.chains[rng.IntN(len(w.chains))]
	tokens = tokens[:rng.IntN(len(tokens)+1)]
	req := &score.Request{
		ID: fmt.Sprintf("req-%d\"\x01ü", rng.IntN(500)), Model: "m", Role: score.Role(rng.IntN(3)), At: w.now, BlockSize: blockSize,
		Blocks: block.AppendChain(nil, block.Root, tokens, blockSize), InputTokens: int64(len(tokens)), TokensExact: rng.IntN(8) > 0,
		N: int64(rng.IntN(4)), Retention: score.Retention(rng.IntN(4)),
	}
	if rng.IntN(2) == 0 {
		req.Session = fmt.Sprintf("user %d", rng.IntN(12))
	}
	switch rng.IntN(12) {
	case 0:
		req.Multimodal, req.Images = true, []uint64{uint64(rng.IntN(9)), rng.Uint64()}
	case 1:
		req.Blocks, req.Unhashable, req.TokensExact = nil, "template <failed>", false
	case 2:
		req.Blocks = block.AppendChain(nil, block.Namespace("", "salt"), tokens, blockSize)
	case 3:
		more := w.chains[rng.IntN(len(w.chains))]
		req.More = [][]block.Hash{block.AppendChain(nil, block.Root, more, blockSize), nil}
		req.Lengths = []int64{int64(len(tokens)), int64(len(more)), 2}
		req.InputTokens += int64(len(more)) + 2
	case 4:
		req.LastComputed, req.Lengths = true, []int64{int64(len(tokens))}
	case 5:
		req.Approximate = "no events"
	}
	if len(req.Lengths) == 0 {
		req.Lengths = []int64{req.InputTokens}
	}
	other := w.chains[rng.IntN(len(w.chains))]
	req.Variants = []score.Variant{{
		Blocks: block.AppendChain(nil, block.Root, other, blockSize), InputTokens: int64(len(other)), TokensExact: true, Lengths: []int64{int64(len(other))},
	}}
	if len(req.More) > 0 {
		req.Variants[0].More, req.Variants[0].Lengths = [][]block.Hash{nil, nil}, []int64{int64(len(other)), 1, 1}
	}
	return req
}

// client sends one request, with retries, and ends it somehow.
func (w *world) client(rng *rand.Rand, later func(func())) {
	w.mu.Lock()
	w.now += int64(rng.IntN(4e8))
	req := w.request(rng)
	w.mu.Unlock()
	var skip []target.ID
	for try := 0; try < 3; try++ {
		var dec score.Decision
		left := func(c *score.Candidate) bool { return slices.Contains(skip, c.Target) }
		err := w.pool.Pick(req, left, &dec, nil)
		if errors.Is(err, score.ErrNoCandidates) {
			return
		}
		if err != nil {
			w.tb.Error(err)
			return
		}
		h, t := dec.Handle, dec.PickedTerms().Candidate.Target
		w.mu.Lock()
		w.picks++
		at := w.now
		w.mu.Unlock()
		if rng.IntN(5) == 0 { // the worker fails, the request goes elsewhere
			w.pool.Unbind(h)
			w.release(h, at, -1, req.Role)
			skip = append(skip, t)
			continue
		}
		w.engine(rng, t, req)
		later(func() {
			if rng.IntN(6) > 0 {
				w.pool.FirstToken(h, at+1000+rng.Int64N(1e9))
				w.pool.FirstToken(h, at+2000)
			}
			later(func() {
				output := rng.Int64N(100) - 10
				w.release(h, at+rng.Int64N(5e9), max(output, -1), req.Role)
				if rng.IntN(4) == 0 {
					w.pool.Release(h, at, 7)
				}
			})
		})
		return
	}
}

func (w *world) release(h load.Handle, at, output int64, role score.Role) {
	if !w.pool.Release(h, at, output) || role == score.Prefill {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if output < 0 {
		w.unknown++
	} else {
		w.known++
	}
}

// engine sends events of the kinds engines send, in order or not, whole or not.
func (w *world) engine(rng *rand.Rand, t target.ID, req *score.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.workers, func(x *worker) bool { return x != nil && x.id == t })
	if i < 0 {
		return
	}
	x := w.workers[i]
	var ops []index.Op
	if rng.IntN(20) == 0 {
		ops = append(ops, index.Op{Kind: index.Clear + index.Kind(rng.IntN(2))})
		x.stored = nil
	}
	tokens := w.chains[rng.IntN(len(w.chains))]
	n := len(tokens) / x.page
	hs := make([]index.Handle, n)
	for k := range hs {
		x.next++
		hs[k] = index.Handle(x.next)
	}
	x.stored = append(x.stored, hs...)
	tier := index.Tier(max(rng.IntN(6)-3, 0))
	if cut := rng.IntN(n + 1); cut > 0 && cut < n { // two events, the second perhaps first, or alone
		first := index.Op{Kind: index.Store, Tier: tier, Handles: hs[:cut], Tokens: tokens[:cut*x.page], PageSize: x.page}
		second := index.Op{Kind: index.Store, Tier: tier, Handles: hs[cut:], Tokens: tokens[cut*x.page : n*x.page], PageSize: x.page, Parent: hs[cut-1], HasParent: true}
		switch rng.IntN(4) {
		case 0:
			ops = append(ops, second, first)
		case 1:
			ops = append(ops, second)
		default:
			ops = append(ops, first, second)
		}
	} else {
		ops = append(ops, index.Op{Kind: index.Store, Tier: tier, Handles: hs, Tokens: tokens[:n*x.page], PageSize: x.page, Counted: rng.IntN(2) == 0})
	}
	if len(x.stored) > 0 && rng.IntN(2) == 0 {
		from := rng.IntN(len(x.stored))
		ops = append(ops, index.Op{Kind: index.Remove, Tier: tier, Handles: slices.Clone(x.stored[from:min(from+5, len(x.stored))])})
	}
	if rng.IntN(3) == 0 && n > 0 {
		ops = append(ops, index.Op{Kind: index.Store, Tier: index.CPU, Handles: hs[:1]}) // offloaded
	}
	if _, err := w.pool.Apply(t, ops); err != nil {
		w.tb.Error(err)
	}
}

// churn lets a worker die, come back, be doubted or change its ways.
func (w *world) churn(rng *rand.Rand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := rng.IntN(len(w.workers))
	x := w.workers[i]
	if x == nil {
		w.join(i, rng)
		return
	}
	switch rng.IntN(5) {
	case 0:
		w.pool.Leave(x.id)
		w.workers[i] = nil
	case 1:
		w.pool.Update(x.id, func(c *score.Candidate) { c.Doubt = []string{"", "gap", "silent \"x\""}[rng.IntN(3)] })
	case 2:
		w.pool.Update(x.id, func(c *score.Candidate) { c.PageSize = []int{0, 1, 8, 16}[rng.IntN(4)] })
	case 3:
		w.pool.Update(x.id, func(c *score.Candidate) { c.Variant = rng.IntN(2) })
	case 4:
		w.pool.Note(w.now, x.id, "gap of 3 events")
	}
}
