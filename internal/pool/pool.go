package pool

import (
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// Config is what a pool is made of.
type Config struct {
	Score     score.Config
	BlockSize int           // tokens per block of the mirrors, at least 1
	Index     index.Options // Observer and Yield are the pool's own and must be nil
	Recorder  Recorder      // nil: nothing is recorded
}

// Pool is the live state of one model's targets. It is safe for concurrent use.
//
// Two locks, taken in the order turn, mu. mu guards everything; whoever holds it sees every operation
// wholly done or not begun, with one exception: while a target is being emptied mu is let go between
// entries, and the target shows no hits from the first moment on. turn is held by writers of the index
// for a whole operation, so that nobody else changes the index while it is being emptied.
type Pool struct {
	turn sync.Mutex
	mu   sync.Mutex
	want atomic.Int32 // requests that wait for mu

	size    int
	index   *index.Index
	ledger  *load.Ledger
	scorer  *score.Scorer
	rec     Recorder
	watches watches

	slots   []slot            // by target.ID
	free    []target.ID       // forgotten IDs, to be used again
	cands   []score.Candidate // of all present targets, in route-key order
	scratch []score.Candidate
	dec     score.Decision // of Peek
	found   index.Matches  // of Holders
}

// slot is a target ID and who has it.
type slot struct {
	key     target.Key
	present bool // joined and not left
	used    bool // joined and not forgotten
	held    int  // reservations not yet released
	approx  *approx
}

// ErrFull says that there are target.MaxTargets targets.
var ErrFull = errors.New("too many targets")

// New makes an empty pool. It returns score.FieldErrors where cfg.Score is invalid.
func New(cfg Config) (*Pool, error) {
	if cfg.BlockSize < 1 {
		return nil, fmt.Errorf("block size %d: must be at least 1", cfg.BlockSize)
	}
	p := &Pool{size: cfg.BlockSize, ledger: load.New(), rec: cfg.Recorder, watches: watches{rec: cfg.Recorder, by: map[watched][]*Watch{}}}
	opt := cfg.Index
	opt.Yield = func() {
		p.mu.Unlock() // lets picks in
		p.mu.Lock()
	}
	opt.Observer = &p.watches
	p.index = index.New(cfg.BlockSize, opt)
	s, err := score.New(cfg.Score, p.index, p.ledger)
	if err != nil {
		return nil, err
	}
	p.scorer = s
	return p, nil
}

// BlockSize is the number of tokens of a block of the mirrors.
func (p *Pool) BlockSize() int { return p.size }

// Join adds a target with the given key. c's Target and Key are filled in. Where no engine events tell
// what the target caches, guess bounds a mirror of what was sent to it; nil: events do.
func (p *Pool) Join(key target.Key, c score.Candidate, guess *Guess) (target.ID, error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	id := target.ID(len(p.slots))
	if n := len(p.free); n > 0 {
		id = p.free[n-1]
		p.free = p.free[:n-1]
	} else if len(p.slots) == target.MaxTargets {
		return 0, fmt.Errorf("%w: %d", ErrFull, target.MaxTargets)
	} else {
		p.slots = append(p.slots, slot{})
	}
	s := slot{key: key, present: true, used: true}
	if guess != nil {
		s.approx = newApprox(*guess)
	}
	p.slots[id] = s
	c.Target, c.Key = id, key.RouteKey()
	at, _ := slices.BinarySearchFunc(p.cands, c, compare)
	p.cands = slices.Insert(p.cands, at, c)
	p.ledger.Join(id, key.Incarnation)
	if p.rec != nil {
		p.rec.Join(id, key, c)
	}
	p.index.Join(id)
	return id, nil
}

// compare orders by route key. Where a worker begins another life, both lives may be present for a moment,
// with the same key and IDs of their own.
func compare(a, b score.Candidate) int {
	if c := strings.Compare(a.Key, b.Key); c != 0 {
		return c
	}
	return int(a.Target) - int(b.Target)
}

// Leave takes a target out: it is no candidate any more and its mirror is gone. Its ID is used again once
// the last of its reservations is released.
func (p *Pool) Leave(id target.ID) {
	p.turn.Lock()
	defer p.turn.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if int(id) >= len(p.slots) || !p.slots[id].present {
		return
	}
	s := &p.slots[id]
	s.present, s.approx = false, nil
	p.cands = slices.DeleteFunc(p.cands, func(c score.Candidate) bool { return c.Target == id })
	p.ledger.Leave(id)
	if p.rec != nil {
		p.rec.Leave(id)
	}
	p.index.Forget(id)
	p.forgetIdle(id)
}

// forgetIdle gives up an ID that nobody needs any more.
func (p *Pool) forgetIdle(id target.ID) {
	s := &p.slots[id]
	if s.present || !s.used || s.held > 0 {
		return
	}
	p.scorer.Forget(id)
	if p.rec != nil {
		p.rec.Forget(id)
	}
	*s = slot{}
	p.free = append(p.free, id)
}

// Update changes what is known of a present target beside its key: page size, variant, doubt.
func (p *Pool) Update(id target.ID, change func(*score.Candidate)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.cands {
		if c := &p.cands[i]; c.Target == id {
			key := c.Key
			change(c)
			c.Target, c.Key = id, key
			return
		}
	}
}

// chunk is the most handles one hold of the lock applies: some 50 µs.
const chunk = 256

// Apply folds engine events into a target's mirror, in order, and adds up what they did. Events of a
// target that has left are ignored. Readers get in between operations, and between pieces of long ones.
func (p *Pool) Apply(id target.ID, ops []index.Op) (sum index.Result, err error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	for _, op := range ops {
		op.Target = id
		for more := true; more; {
			var piece index.Op
			piece, op, more = cut(op, p.size)
			r, e := p.applyOne(piece)
			sum.Add(r)
			if e != nil && err == nil {
				err = e
			}
			if p.want.Load() > 0 {
				// A mutex goes to whoever runs, which is us, until somebody has waited for a millisecond.
				runtime.Gosched()
			}
		}
	}
	return sum, err
}

func (p *Pool) applyOne(op index.Op) (index.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if int(op.Target) >= len(p.slots) || !p.slots[op.Target].present {
		return index.Result{}, nil
	}
	return p.index.Apply(op)
}

// cut takes the first chunk handles off a long operation. What it cannot cut stays whole.
func cut(op index.Op, size int) (head, rest index.Op, more bool) {
	n := len(op.Handles)
	if n <= chunk || op.Kind != index.Store && op.Kind != index.Remove {
		return op, op, false
	}
	head, rest = op, op
	head.Handles, rest.Handles = op.Handles[:chunk], op.Handles[chunk:]
	if op.Kind == index.Remove {
		return head, rest, true
	}
	page := op.PageSize
	if page == 0 {
		page = size
	}
	switch {
	case len(op.Tokens) == n*page:
		head.Tokens, rest.Tokens = op.Tokens[:chunk*page], op.Tokens[chunk*page:]
	case len(op.Hashes) == n && len(op.Tokens) == 0:
		head.Hashes, rest.Hashes = op.Hashes[:chunk], op.Hashes[chunk:]
	case len(op.Hashes) == 0 && len(op.Tokens) == 0:
	default:
		return op, op, false
	}
	if len(op.Tokens)+len(op.Hashes) > 0 {
		rest.Parent, rest.HasParent = op.Handles[chunk-1], true
	}
	return head, rest, true
}

// Pick chooses among the present targets of req's role that skip does not name, and books the request
// there, in one step. dec is overwritten. w, if not nil, watches the prefix counted on, until Unwatch. The
// error is score.ErrNoCandidates where no target is left.
func (p *Pool) Pick(req *score.Request, skip func(*score.Candidate) bool, dec *score.Decision, w *Watch) error {
	guess, err := p.pick(req, skip, dec, w)
	if err != nil || !guess {
		return err
	}
	return p.remember(&dec.PickedTerms().Candidate, req)
}

func (p *Pool) pick(req *score.Request, skip func(*score.Candidate) bool, dec *score.Decision, w *Watch) (guess bool, err error) {
	p.enter()
	defer p.mu.Unlock()
	cands := p.candidates(req, skip)
	if err := p.scorer.Pick(req, cands, dec); err != nil {
		return false, err
	}
	t := dec.PickedTerms()
	s := &p.slots[t.Candidate.Target]
	s.held++
	if p.rec != nil {
		p.rec.Pick(req, cands, dec)
	}
	if w != nil {
		p.watches.add(w, req, t)
	}
	return s.approx != nil, nil
}

// enter locks mu for a request, ahead of events.
func (p *Pool) enter() {
	p.want.Add(1)
	p.mu.Lock()
	p.want.Add(-1)
}

// Look is what a target's mirror and account hold now, and the hash of the mirror's content: see ContentHash.
func (p *Pool) Look(id target.ID) (index.Stats, load.Load, uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.index.Stats(id), p.ledger.Load(id), p.index.ContentHash(id)
}

// Holders calls each with every present target that holds leading blocks of chain, in route-key order. each must be
// short and must not call the pool.
func (p *Pool) Holders(chain []block.Hash, each func(routeKey string, blocks int)) {
	p.mu.Lock() // as events do: who watches is no request, and goes ahead of nobody
	defer p.mu.Unlock()
	p.index.Match(chain, &p.found)
	for i := range p.cands {
		if c := &p.cands[i]; int(c.Target) < len(p.found.Hits) && p.found.Hits[c.Target] > 0 {
			each(c.Key, int(p.found.Hits[c.Target]))
		}
	}
}

// Size is the size of the index.
func (p *Pool) Size() index.Size {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.index.Size()
}

// ContentHash is a hash of what a target's mirror holds; equal content, equal hash.
func (p *Pool) ContentHash(id target.ID) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.index.ContentHash(id)
}

// Held is the number of reservations not yet released, over all targets, those that have left included.
func (p *Pool) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for i := range p.slots {
		n += p.slots[i].held
	}
	return n
}

// candidates lists whom a request may go to, in route-key order, in memory used by the next call again.
func (p *Pool) candidates(req *score.Request, skip func(*score.Candidate) bool) []score.Candidate {
	p.scratch = p.scratch[:0]
	for i := range p.cands {
		c := &p.cands[i]
		if c.Role == req.Role && (skip == nil || !skip(c)) {
			p.scratch = append(p.scratch, *c)
		}
	}
	return p.scratch
}

// Peek is Pick without any effect. show gets the decision and must not keep it.
func (p *Pool) Peek(req *score.Request, skip func(*score.Candidate) bool, show func(*score.Decision)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.scorer.Peek(req, p.candidates(req, skip), &p.dec); err != nil {
		return err
	}
	show(&p.dec)
	return nil
}

// FirstToken tells that the prefill behind a reservation is done, at the time in ns.
func (p *Pool) FirstToken(h load.Handle, at int64) bool {
	p.enter()
	defer p.mu.Unlock()
	ok := p.scorer.FirstToken(h, at)
	if ok && p.rec != nil {
		p.rec.FirstToken(h, at)
	}
	return ok
}

// Unbind lets the session of a reservation go elsewhere, after its target failed.
func (p *Pool) Unbind(h load.Handle) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scorer.Unbind(h)
	if p.rec != nil {
		p.rec.Unbind(h)
	}
}

// Release ends a reservation; output is the number of tokens of the answer, -1 if it is not known. It
// reports false, and changes nothing, where the handle was released before.
func (p *Pool) Release(h load.Handle, at, output int64) bool {
	p.enter()
	defer p.mu.Unlock()
	r, known := p.ledger.Reservation(h)
	if !p.scorer.Release(h, at) || !known {
		return false
	}
	if p.rec != nil {
		p.rec.Release(h, at, output)
	}
	p.slots[r.Target].held--
	p.forgetIdle(r.Target)
	return true
}

// Note puts a remark about a target into the recording.
func (p *Pool) Note(at int64, id target.ID, text string) {
	if p.rec == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rec.Note(at, id, text)
}

// remember notes what a request will leave in the cache of a target without events.
func (p *Pool) remember(c *score.Candidate, req *score.Request) error {
	id := c.Target
	chains := append([][]block.Hash{req.Blocks}, req.More...)
	if c.Variant > 0 {
		v := &req.Variants[c.Variant-1] // the scorer has refused numbers that are not there
		chains = append([][]block.Hash{v.Blocks}, v.More...)
	}
	p.turn.Lock()
	defer p.turn.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.slots[id].approx
	if a == nil || req.Multimodal {
		return nil
	}
	apply := func(op index.Op) error {
		op.Target = id
		_, err := p.index.Apply(op)
		return err
	}
	for _, chain := range chains {
		if err := a.touch(chain, req.At, apply); err != nil {
			return err
		}
	}
	return nil
}

// Export gives the mirror of a target; see index.Index.Export. Picks go on meanwhile, events wait.
func (p *Pool) Export(id target.ID, each func(*index.Record) error) error {
	p.turn.Lock()
	defer p.turn.Unlock()
	return p.index.Export(id, each) // under turn nobody changes the index, and picks only read it
}

// Import fills the empty mirror of a target; see index.Index.Import.
func (p *Pool) Import(id target.ID, records iter.Seq2[*index.Record, error]) (index.Result, error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.index.Import(id, records)
}
