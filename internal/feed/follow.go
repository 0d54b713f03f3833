package feed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/target"
)

// Decoded is what the payload of one batch holds.
type Decoded struct {
	Ops      []index.Op     // in order; valid until the next call of the Decoder
	Rank     int            // data-parallel rank as the batch names it; meaningful if HasRank
	HasRank  bool           //
	PageSize int            // tokens per engine block; 0: the batch does not show it
	Skipped  map[string]int // events left out, by reason; may be kept by the Decoder
	Lost     int            // those of them that the mirror lacks now: they could not be read
}

// Decode turns a payload into operations on one target. An error means that nothing of the batch is used.
type Decode func(payload []byte) (Decoded, error)

// Config is one stream to follow.
type Config struct {
	Endpoint string
	Topic    string // prefix; empty: everything
	Replay   string // endpoint to ask for batches again; empty: there is none
	Target   target.ID
	Rank     int           // rank that the endpoint belongs to, target.NoRank where it has none
	Quiet    time.Duration // silence that ends a replay; default 2 s
	Limit    *Limiter      // of replays at once; nil: none
	Rules                  // Replay is set by the field of that name
}

const (
	defaultQuiet = 2 * time.Second
	// servedAtOnce is how many requests are counted before a waiting stream is woken for them.
	servedAtOnce = 4
)

// Limiter bounds how many replays run at once, as each holds up the engine that answers it.
type Limiter struct{ slots chan struct{} }

// NewLimiter allows n replays at once; a process should have one with 8.
func NewLimiter(n int) *Limiter { return &Limiter{make(chan struct{}, n)} }

func (l *Limiter) enter(ctx context.Context) error {
	if l == nil {
		return nil
	}
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Limiter) leave() {
	if l != nil {
		<-l.slots
	}
}

// Stream is a stream that is followed. Its methods are safe for concurrent use.
type Stream struct {
	cfg    Config
	via    Transport
	decode Decode
	sink   Sink
	done   chan struct{}
	err    error // why it ended; set before done is closed

	fetching bool // a replay runs; of the stream's goroutine

	mu sync.Mutex // held while a batch is applied; guards t, and calls of sink and decode
	t  *Tracker

	pub   sync.Mutex // guards what follows; no other lock is taken under it
	state State
	told  bool // Settled
	serve int  // requests served that the tracker was not told of
	work  []func(time.Time)
	kick  context.CancelFunc // ends the wait of the moment
}

// Follow follows a stream in a goroutine of its own until ctx is done. The mirror of cfg.Target must be
// empty, or, with cfg.Resume, as the snapshot left it. Nobody else may change it.
func Follow(ctx context.Context, cfg Config, via Transport, decode Decode, sink Sink) *Stream {
	if cfg.Quiet <= 0 {
		cfg.Quiet = defaultQuiet
	}
	cfg.Rules.Replay = cfg.Replay != ""
	s := &Stream{cfg: cfg, via: via, decode: decode, sink: sink, done: make(chan struct{})}
	s.t = NewTracker(cfg.Rules, time.Now())
	s.state = s.t.State()
	go func() {
		defer close(s.done)
		s.err = s.run(ctx)
	}()
	return s
}

// Wait waits until the stream has ended and says why: nil if ctx was done.
func (s *Stream) Wait() error {
	<-s.done
	return s.err
}

// State is what is known of the stream.
func (s *Stream) State() State {
	s.pub.Lock()
	defer s.pub.Unlock()
	return s.state
}

// Settled says whether all that could be learned of the engine's past is in the mirror, and if not, or if
// that is not all of it, why.
func (s *Stream) Settled() (bool, string) {
	s.pub.Lock()
	defer s.pub.Unlock()
	return s.told, s.state.Reason
}

// Served says that the worker answered n requests that had blocks to store. Many of them without
// events make the stream Silent.
func (s *Stream) Served(n int) {
	s.pub.Lock()
	defer s.pub.Unlock()
	s.serve += n
	if s.kick != nil && s.serve >= servedAtOnce {
		s.kick()
	}
}

// Drift says that predictions and the engine's own figures drift apart, and why; empty: they agree.
func (s *Stream) Drift(why string) { s.do(func(now time.Time) { s.t.Drift(now, why) }) }

// Restart empties the mirror and fetches all that the engine still has.
func (s *Stream) Restart(why string) {
	s.do(func(now time.Time) { s.clear(s.t.Restart(now, why)) })
}

// Snapshot calls f between two batches with the mark of the last one, so that f sees the mirror exactly as
// that left it; ok is false if the stream has no numbers to resume by. f must not call the Stream, and
// must not wait for a lock that Sink's methods are called under.
func (s *Stream) Snapshot(f func(at Resume, ok bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.t.Mark())
}

// do hands f to the stream's goroutine, which calls it under s.mu.
func (s *Stream) do(f func(time.Time)) {
	s.pub.Lock()
	defer s.pub.Unlock()
	s.work = append(s.work, f)
	if s.kick != nil {
		s.kick()
	}
}

// locked calls f, and what was handed over by do, under s.mu, and publishes what came of it. What was
// handed over waits for a replay to end, which it could not ask for otherwise.
func (s *Stream) locked(f func(now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.pub.Lock()
	var work []func(time.Time)
	var serve int
	if !s.fetching {
		work, serve = s.work, s.serve
		s.work, s.serve = nil, 0
	}
	s.pub.Unlock()
	if serve > 0 {
		s.t.Served(now, serve)
	}
	for _, g := range work {
		g(now)
	}
	if f != nil {
		f(now)
	}
	state, old := s.t.State(), State{}
	settled, _ := s.t.Settled()
	s.pub.Lock()
	old, s.state, s.told = s.state, state, settled
	s.pub.Unlock()
	if old.Trust != state.Trust || old.Reason != state.Reason {
		s.sink.State(state)
	}
}

func (s *Stream) run(ctx context.Context) (err error) {
	s.locked(nil)
	sub, err := s.via.Subscribe(ctx, s.cfg.Endpoint, s.cfg.Topic, s.cfg.Bind)
	if err != nil {
		s.locked(func(now time.Time) { s.t.Disconnected(now, err.Error()) })
		return fmt.Errorf("following %s: %w", s.cfg.Endpoint, err)
	}
	defer func() { err = errors.Join(err, sub.Close()) }()
	var held *Message // told to wait
	for ctx.Err() == nil {
		var start uint64
		var fetch, blocked bool
		var next time.Time
		s.locked(func(now time.Time) {
			s.t.Tick(now)
			start, fetch = s.t.Want(now)
			blocked, next = s.t.Blocked(), s.t.Next()
		})
		switch {
		case fetch:
			s.fetch(ctx, start)
		case blocked:
			s.pause(ctx, next)
		case held != nil:
			held = s.live(held)
		default:
			m, ok, err := s.receive(ctx, sub, next)
			if err != nil {
				s.locked(func(now time.Time) { s.t.Disconnected(now, err.Error()) })
				return fmt.Errorf("following %s: %w", s.cfg.Endpoint, err)
			}
			if ok {
				held = s.handle(&m)
			}
		}
	}
	return nil
}

// waitable derives a context that ends at next, if that is not zero, or when somebody hands work over.
func (s *Stream) waitable(ctx context.Context, next time.Time) (context.Context, context.CancelFunc) {
	var cancel context.CancelFunc
	if next.IsZero() {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithDeadline(ctx, next)
	}
	s.pub.Lock()
	defer s.pub.Unlock()
	if s.kick = cancel; len(s.work) > 0 || s.serve >= servedAtOnce {
		cancel()
	}
	return ctx, cancel
}

func (s *Stream) pause(ctx context.Context, next time.Time) {
	wait, cancel := s.waitable(ctx, next)
	defer cancel()
	<-wait.Done()
}

// receive waits for a message. Not ok: time or somebody brought something else to do, or ctx is done.
func (s *Stream) receive(ctx context.Context, sub Subscription, next time.Time) (Message, bool, error) {
	wait, cancel := s.waitable(ctx, next)
	defer cancel()
	m, err := sub.Receive(wait)
	switch {
	case err == nil:
		return m, true, nil
	case wait.Err() != nil && errors.Is(err, wait.Err()):
		return Message{}, false, nil
	}
	return Message{}, false, err
}

// handle does what a message asks for, and returns it if it has to wait.
func (s *Stream) handle(m *Message) (held *Message) {
	if m.Event == Batch {
		return s.live(m)
	}
	s.locked(func(now time.Time) {
		switch m.Event {
		case Connected:
			s.clear(s.t.Connected(now))
		case Disconnected:
			s.t.Disconnected(now, m.Reason)
		case Garbled:
			s.t.Garbled(now, m.Reason)
		}
	})
	return nil
}

func (s *Stream) live(m *Message) (held *Message) {
	s.locked(func(now time.Time) {
		step := s.t.Live(now, markOf(m), m.HasSeq)
		s.clear(step)
		switch step.Do {
		case Apply:
			s.apply(now, m, false)
		case Wait:
			held = m
		}
	})
	return held
}

func markOf(m *Message) Mark { return Mark{m.Seq, xxh3.Hash(m.Payload)} }

// clear empties the mirror if the step says so.
func (s *Stream) clear(step Step) {
	if step.Clear {
		s.sink.Apply([]index.Op{{Kind: index.Epoch, Target: s.cfg.Target}})
	}
}

// apply folds one batch into the mirror.
func (s *Stream) apply(now time.Time, m *Message, replayed bool) {
	d, err := s.decode(m.Payload)
	o := Outcome{Err: err, Replayed: replayed}
	if err == nil {
		o.Ops, o.PageSize, o.Skipped, o.Lost = len(d.Ops), d.PageSize, d.Skipped, d.Lost
		if d.HasRank && s.cfg.Rank != target.NoRank && d.Rank != s.cfg.Rank {
			// The socket is believed: it cannot be mistaken about whose it is.
			s.t.skip("rank in the batch is not that of its endpoint (applied)", 1)
		}
		for i := range d.Ops {
			o.Cleared = o.Cleared || d.Ops[i].Kind == index.Clear || d.Ops[i].Kind == index.Epoch
		}
		if len(d.Ops) > 0 {
			o.Result = s.sink.Apply(d.Ops)
		}
	}
	s.t.Applied(now, o)
}

// fetch makes one replay, and applies what it brings while it runs.
func (s *Stream) fetch(ctx context.Context, start uint64) {
	s.fetching = true
	err := s.cfg.Limit.enter(ctx)
	if err == nil {
		err = s.via.Replay(ctx, s.cfg.Replay, start, s.cfg.Quiet, func(m Message) (err error) {
			s.locked(func(now time.Time) {
				var step Step
				step, err = s.t.Replayed(now, markOf(&m))
				s.clear(step)
				if step.Do == Apply {
					s.apply(now, &m, true)
				}
			})
			return err
		})
		s.cfg.Limit.leave()
	}
	if ctx.Err() == nil {
		s.locked(func(now time.Time) { s.clear(s.t.Fetched(now, err)) })
	}
	s.fetching = false
}
