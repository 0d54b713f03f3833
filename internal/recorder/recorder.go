// Package recorder writes the recording of a running pool: it takes the calls of a pool.Recorder, in
// memory and at once, and a goroutine of its own makes lines of them and writes files. A disk that cannot
// follow ends the recording, it never holds up the router.
package recorder

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// Options say where to write and how much.
type Options struct {
	Header record.Header // Part is the Recorder's own; Run "": a random one
	// Create opens the file of a part, counted from 1. See Files.
	Create func(part int) (io.WriteCloser, error)
	// MaxSize is the size in bytes after which the next file is begun, at the end of a line; 0: never.
	MaxSize int64
	// MaxPending is the memory in bytes for calls that wait to be written; 0: 64 MiB. Beyond it the
	// recording ends. As much again may be being written.
	MaxPending int
	// OnStop is called once, by the Recorder's goroutine, if the recording ends early; it must not call
	// Close. nil: nobody.
	OnStop func(error)
	// Blocks is the greatest number of blocks numbered at once; 0: 2^20. See record.Encoder.
	Blocks int
}

const (
	defaultPending = 64 << 20
	gather         = 10 * time.Millisecond // how long calls wait for others, so that few writes carry many
	hurry          = 1 << 20               // bytes of calls that do not wait
	writeSize      = 256 << 10
)

// ErrBehind says that the recording ended because writing it did not keep up.
var ErrBehind = errors.New("recording ended: the disk does not follow")

// Recorder implements pool.Recorder. Its calls may come from any goroutine, one at a time as the pool makes
// them; Stats and Close at any time. After the end of the recording calls do nothing.
type Recorder struct {
	opt  Options
	wake chan struct{} // there is something to write
	rush chan struct{} // there is much, or Close was called
	done chan struct{} // the goroutine has ended

	mu      sync.Mutex
	pending *batch // calls not yet taken by the goroutine
	spare   *batch
	closed  bool
	stopped error // why the recording ended early
	stats   Stats
}

// Stats says how far a recording is.
type Stats struct {
	record.Counts
	Part    int   // file being written
	Bytes   int64 // written, all files
	Pending int   // bytes of memory waiting to be written
	Err     error // why the recording ended early; nil: it goes on, or was closed
}

// batch is calls in order, in memory that is used again.
type batch struct {
	calls  []call
	hashes []block.Hash // of calls of the kind changed, in order
	picks  []pick
	used   int // of picks
	bytes  int
}

// kind is a method of pool.Recorder.
type kind uint8

const (
	changed kind = iota
	emptied
	join
	leave
	forget
	picked
	firstToken
	unbind
	release
	note
)

// call is one call; which fields count depends on the kind.
type call struct {
	kind    kind
	held    bool
	tier    index.Tier
	id      target.ID
	blocks  int        // changed: how many blocks, each after the one before where held
	parent  block.Hash // changed: of the first one
	handle  load.Handle
	at, out int64
	text    string
	cand    *score.Candidate
	pick    int // index into picks
}

// callBytes and pickBytes are about what one costs in memory, without its slices.
const (
	callBytes = 120
	pickBytes = 600
	termBytes = 360 // of one candidate, its terms and its share of a line
)

// pick is the arguments of Pick, copied.
type pick struct {
	req   score.Request
	cands []score.Candidate
	dec   score.Decision
}

// Start opens the first file, writes its heading and starts the goroutine. Close ends it.
func Start(opt Options) (*Recorder, error) {
	if opt.Create == nil || opt.Header.BlockSize < 1 {
		return nil, errors.New("a recording needs files and a block size")
	}
	if opt.Header.Run == "" {
		var id [8]byte
		rand.Read(id[:]) // never fails
		opt.Header.Run = hex.EncodeToString(id[:])
	}
	if opt.MaxPending <= 0 {
		opt.MaxPending = defaultPending
	}
	w := &writer{opt: &opt, enc: record.NewEncoder(opt.Header, opt.Blocks)}
	if err := w.next(); err != nil {
		return nil, err
	}
	if err := w.flush(); err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	r := &Recorder{
		opt: opt, wake: make(chan struct{}, 1), rush: make(chan struct{}, 1), done: make(chan struct{}),
		pending: &batch{}, spare: &batch{},
	}
	r.stats = w.stats()
	go r.work(w)
	return r, nil
}

// Close writes what is left, ends the recording and closes its file. It returns the error that ended the
// recording early, or that of ending it. Calls after the first wait as well and return the same.
func (r *Recorder) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	signal(r.wake)
	signal(r.rush)
	<-r.done
	return r.Stats().Err
}

// Stats says how far the recording is.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Pending, s.Err = r.pending.bytes, r.stopped
	return s
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// add puts a call into the queue; fill, if not nil, copies what belongs to it and returns its size.
func (r *Recorder) add(c call, fill func(b *batch, c *call) int) {
	r.mu.Lock()
	b := r.pending
	if r.closed || r.stopped != nil {
		r.mu.Unlock()
		return
	}
	b.bytes += callBytes + len(c.text)
	if fill != nil {
		b.bytes += fill(b, &c)
	}
	b.calls = append(b.calls, c)
	first, much := len(b.calls) == 1, b.bytes > hurry
	if b.bytes > r.opt.MaxPending {
		// This call is lost, and with it everything after: what follows would not make sense without it.
		b.calls = b.calls[:len(b.calls)-1]
		r.stopped = fmt.Errorf("%w: more than %d bytes wait to be written", ErrBehind, r.opt.MaxPending)
	}
	r.mu.Unlock()
	if first {
		signal(r.wake)
	}
	if much {
		signal(r.rush)
	}
}

// Changed is index.Observer's.
func (r *Recorder) Changed(t target.ID, h, parent block.Hash, tier index.Tier, held bool) {
	r.mu.Lock()
	if b := r.pending; len(b.calls) > 0 && r.stopped == nil && b.bytes < r.opt.MaxPending {
		c, last := &b.calls[len(b.calls)-1], len(b.hashes)-1
		if c.kind == changed && c.id == t && c.held == held && (!held || c.tier == tier && parent == b.hashes[last]) {
			c.blocks++
			b.hashes = append(b.hashes, h)
			b.bytes += 8
			much := b.bytes > hurry && b.bytes-8 <= hurry
			r.mu.Unlock()
			if much {
				signal(r.rush)
			}
			return
		}
	}
	r.mu.Unlock()
	r.add(call{kind: changed, id: t, blocks: 1, parent: parent, tier: tier, held: held}, func(b *batch, _ *call) int {
		b.hashes = append(b.hashes, h)
		return 8
	})
}

// Emptied is index.Observer's.
func (r *Recorder) Emptied(t target.ID) { r.add(call{kind: emptied, id: t}, nil) }

// Join is pool.Recorder's.
func (r *Recorder) Join(id target.ID, _ target.Key, c score.Candidate) {
	r.add(call{kind: join, id: id, cand: &c}, nil)
}

// Leave is pool.Recorder's.
func (r *Recorder) Leave(id target.ID) { r.add(call{kind: leave, id: id}, nil) }

// Forget is pool.Recorder's.
func (r *Recorder) Forget(id target.ID) { r.add(call{kind: forget, id: id}, nil) }

// Pick is pool.Recorder's.
func (r *Recorder) Pick(req *score.Request, cands []score.Candidate, dec *score.Decision) {
	r.add(call{kind: picked}, func(b *batch, c *call) int {
		if b.used == len(b.picks) {
			b.picks = append(b.picks, pick{})
		}
		c.pick = b.used
		b.used++
		return b.picks[c.pick].copy(req, cands, dec)
	})
}

// FirstToken is pool.Recorder's.
func (r *Recorder) FirstToken(h load.Handle, at int64) {
	r.add(call{kind: firstToken, handle: h, at: at}, nil)
}

// Unbind is pool.Recorder's.
func (r *Recorder) Unbind(h load.Handle) { r.add(call{kind: unbind, handle: h}, nil) }

// Release is pool.Recorder's.
func (r *Recorder) Release(h load.Handle, at, output int64) {
	r.add(call{kind: release, handle: h, at: at, out: output}, nil)
}

// Note is pool.Recorder's.
func (r *Recorder) Note(at int64, id target.ID, text string) {
	r.add(call{kind: note, id: id, at: at, text: text}, nil)
}

// copy takes the arguments over, into memory of an earlier pick where there is some, and returns their size.
func (p *pick) copy(req *score.Request, cands []score.Candidate, dec *score.Decision) int {
	old := p.req
	p.req = *req
	q := &p.req
	q.Blocks = append(old.Blocks[:0], req.Blocks...)
	q.Images = append(old.Images[:0], req.Images...)
	q.BlockTokens = keepNil(old.BlockTokens, req.BlockTokens)
	q.Lengths = keepNil(old.Lengths, req.Lengths)
	size := pickBytes + 8*(len(q.Blocks)+len(q.Images)+len(q.BlockTokens)+len(q.Lengths))
	q.More = nil
	for _, chain := range req.More {
		q.More = append(q.More, append([]block.Hash(nil), chain...))
		size += 8 * len(chain)
	}
	q.Variants = nil
	for _, v := range req.Variants {
		v.Blocks = append([]block.Hash(nil), v.Blocks...)
		v.Lengths = keepNil(nil, v.Lengths)
		more := v.More
		v.More = nil
		for _, chain := range more {
			v.More = append(v.More, append([]block.Hash(nil), chain...))
			size += 8 * len(chain)
		}
		size += 200 + 8*(len(v.Blocks)+len(v.Lengths))
		q.Variants = append(q.Variants, v)
	}
	p.cands = append(p.cands[:0], cands...)
	terms := p.dec.Terms
	p.dec = *dec
	p.dec.Terms = append(terms[:0], dec.Terms...)
	return size + termBytes*(len(cands)+len(dec.Terms))
}

// keepNil copies a slice and leaves nil nil.
func keepNil[T any](dst, src []T) []T {
	if src == nil {
		return nil
	}
	return append(dst[:0], src...)
}

// work is the goroutine.
func (r *Recorder) work(w *writer) {
	defer close(r.done)
	timer := time.NewTimer(gather)
	defer timer.Stop()
	for {
		<-r.wake
		timer.Reset(gather)
		select {
		case <-timer.C:
		case <-r.rush:
		}
		r.mu.Lock()
		b := r.pending
		r.pending, r.spare = r.spare, nil
		closed, behind := r.closed, r.stopped
		r.mu.Unlock()

		err := w.batch(b)
		if err == nil && (closed || behind != nil) {
			err = w.end(behind)
		}
		last := closed || behind != nil || err != nil
		if last {
			err = w.close(err)
		}
		b.calls, b.hashes, b.used, b.bytes = b.calls[:0], b.hashes[:0], 0, 0

		r.mu.Lock()
		r.stats, r.spare = w.stats(), b
		if r.stopped == nil && err != nil {
			r.stopped = fmt.Errorf("recording ended: %w", err)
		}
		stopped := r.stopped
		if last { // nothing more is taken
			r.closed, r.pending, r.spare = true, &batch{}, nil
		}
		r.mu.Unlock()
		if !last {
			continue
		}
		if stopped != nil && r.opt.OnStop != nil {
			r.opt.OnStop(stopped)
		}
		return
	}
}
