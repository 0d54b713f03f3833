package fakeengine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvroute/kvroute/internal/block"
)

// Engine is a running stand-in. It is safe for concurrent use.
type Engine struct {
	cfg     Config
	wire    wire
	version version
	ranks   []*rank
	speak   *speaker
	faults  *faults
	handler http.Handler
	started time.Time

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	up     *life // nil while the engine is down
	addr   string
	events []string // endpoints bound, by rank
	replay []string
	closed bool
	turn   int    // counts requests, for ranks in turn
	ids    uint64 // counts them too, for their ids

	polled poll
}

// life is what ends with the process: listener and connections.
type life struct {
	server *http.Server
	ln     net.Listener
	mu     sync.Mutex
	conns  map[net.Conn]bool
	done   chan struct{}
}

// Start starts an engine. Close must be called.
func Start(cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("starting the engine: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	v, err := parseVersion(cfg.Version)
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, version: v, wire: wireOf(cfg.Dialect, v), faults: newFaults(cfg.Ranks, cfg.Seed), started: time.Now()}
	if cfg.EventForm != "" {
		e.wire.asMap = cfg.EventForm == FormMap
	}
	if cfg.Dialect == ATOM && !e.wire.numbers && cfg.Ranks > 1 && cfg.Events != "" {
		return nil, errors.New("starting the engine: this version of ATOM publishes all ranks on one port, which only the first gets")
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	if e.speak, err = newSpeaker(e.ctx, &e.cfg); err != nil {
		e.cancel()
		return nil, fmt.Errorf("starting the engine: %w", err)
	}
	e.polled.begin(&e.cfg)
	for i := range cfg.Ranks {
		var pub *publisher
		if cfg.Events != "" {
			enc := encoder{wire: e.wire, h: newHasher(&e.cfg, e.wire), size: cfg.BlockSize, rank: i}
			pub = newPublisher(enc, cfg.Topic, cfg.Buffer, e.faults)
		}
		r := newRank(i, &e.cfg, e.wire, pub)
		r.sample = e.sample
		if cfg.Dialect == TRTLLM && pub == nil {
			h := newHasher(&e.cfg, e.wire)
			r.polled = func(events []event) { e.polled.collect(&e.cfg, h, i, events) }
		}
		e.ranks = append(e.ranks, r)
	}
	e.handler = e.routes()
	e.faults.apply(&cfg.Faults)
	if err := e.open(); err != nil {
		e.cancel()
		return nil, fmt.Errorf("starting the engine: %w", err)
	}
	for _, r := range e.ranks {
		e.wg.Add(1)
		go func() {
			defer e.wg.Done()
			r.run(e.ctx)
		}()
	}
	return e, nil
}

func (e *Engine) sample(s *seq) block.Token {
	if e.cfg.Sample != nil {
		return e.cfg.Sample(s.tokens, s.prompt)
	}
	return e.speak.draw(s)
}

// open binds everything: sockets first, so that who can reach the API can subscribe.
func (e *Engine) open() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errors.New("the engine is closed")
	}
	if err := e.openSockets(); err != nil {
		return err
	}
	listen := e.cfg.Listen
	if e.addr != "" {
		listen = e.addr // the address of the life before
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return errors.Join(fmt.Errorf("listening: %w", err), e.closeSockets())
	}
	e.addr = ln.Addr().String()
	l := &life{ln: ln, conns: map[net.Conn]bool{}, done: make(chan struct{})}
	l.server = &http.Server{
		Handler: e.handler, ReadHeaderTimeout: time.Minute, ConnState: l.track,
		BaseContext: func(net.Listener) context.Context { return e.ctx },
	}
	e.up = l
	for _, r := range e.ranks {
		r.live()
	}
	go func() {
		defer close(l.done)
		l.server.Serve(ln) //nolint:errcheck // it ends when the life does
	}()
	return nil
}

// openSockets opens the publishers' sockets: rank r at the port plus r.
func (e *Engine) openSockets() error {
	if e.cfg.Events == "" {
		return nil
	}
	events, replay := e.cfg.Events, e.cfg.Replay
	if !e.wire.replay {
		replay = ""
	}
	if len(e.events) > 0 {
		events, replay = e.events[0], e.replay[0]
	}
	const tries = 32 // for consecutive free ports
	var err error
	for range tries {
		if err = e.tryPorts(events, replay); err == nil {
			return nil
		}
		if _, port, _ := splitEndpoint(events); port != 0 || e.cfg.Ranks == 1 {
			return err
		}
	}
	return err
}

func (e *Engine) tryPorts(events, replay string) error {
	var bound, answers []string
	for i, r := range e.ranks {
		at, ask := shift(events, i), shift(replay, i)
		if i > 0 { // the first rank knows the ports by now
			at, ask = shift(bound[0], i), shift(answers[0], i)
		}
		s, err := openSocket(at, ask, e.cfg.EventsDial, r.pub.replay)
		if err != nil {
			return errors.Join(err, e.closeSockets())
		}
		r.pub.attach(s)
		b, a := s.endpoints()
		bound, answers = append(bound, b), append(answers, a)
	}
	e.events, e.replay = bound, answers
	return nil
}

// shift is the endpoint of rank n: tcp ports go up, others get a suffix.
func shift(at string, n int) string {
	if at == "" || n == 0 {
		return at
	}
	host, port, err := splitEndpoint(at)
	switch {
	case err != nil:
		return at
	case port < 0:
		return fmt.Sprintf("%s_dp%d", at, n)
	}
	return fmt.Sprintf("tcp://%s:%d", host, port+n)
}

func (e *Engine) closeSockets() error {
	var errs []error
	for _, r := range e.ranks {
		if r.pub != nil {
			if s := r.pub.attach(nil); s != nil {
				errs = append(errs, s.close())
			}
		}
	}
	return errors.Join(errs...)
}

// track knows the open connections, for a crash.
func (l *life) track(c net.Conn, s http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch s {
	case http.StateNew:
		l.conns[c] = true
	case http.StateClosed, http.StateHijacked:
		delete(l.conns, c)
	}
}

// reset ends all connections as a dead process's kernel does.
func (l *life) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		cut(c)
	}
}

// cut resets a connection.
func cut(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0) //nolint:errcheck // then it is closed in the ordinary way
	}
	c.Close() //nolint:errcheck // it is to end, nothing else
}

// down ends the current life.
func (e *Engine) down() error {
	e.mu.Lock()
	l := e.up
	e.up = nil
	e.mu.Unlock()
	if l == nil {
		return nil
	}
	l.ln.Close() //nolint:errcheck // nothing is accepted any more
	l.reset()
	err := l.server.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // the listener, a moment ago
	}
	<-l.done
	return errors.Join(err, e.closeSockets())
}

// Crash ends the engine as kill -9 does: connections are reset, nothing listens. After the given time
// it comes back at the same addresses, with an empty cache and numbers from 0; 0: it does not.
func (e *Engine) Crash(away time.Duration) error {
	for _, r := range e.ranks {
		r.die()
	}
	err := e.down()
	e.polled.begin(&e.cfg)
	e.polled.begin(&e.cfg)
	if away > 0 {
		e.after(away, func() {
			for e.ctx.Err() == nil && e.open() != nil { // its port may be taken for a moment
				e.pause(20 * time.Millisecond)
			}
		})
	}
	return err
}

// Restart is a crash after which the engine is back at once; it returns when it listens again.
func (e *Engine) Restart() error {
	if err := e.Crash(0); err != nil {
		return err
	}
	var err error
	for range 100 {
		if err = e.open(); err == nil || !e.pause(20*time.Millisecond) {
			return err
		}
	}
	return err
}

// after runs f later, unless the engine is closed first.
func (e *Engine) after(d time.Duration, f func()) {
	e.wg.Add(1)
	go func() {
		defer e.wg.Done()
		if e.pause(d) {
			f()
		}
	}()
}

// pause waits. false: the engine was closed.
func (e *Engine) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-e.ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Close ends the engine and waits for everything it started.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.cancel()
	err := e.down()
	e.wg.Wait()
	return errors.Join(err, e.closeSockets())
}

// Fault applies a command.
func (e *Engine) Fault(f Fault) error {
	if err := f.validate(e.cfg.Ranks); err != nil {
		return fmt.Errorf("applying a fault: %w", err)
	}
	e.faults.apply(&f)
	if f.Clear {
		for i := range e.ranks {
			e.resume(i)
		}
	}
	if f.StallEvents != nil {
		for i := range e.ranks {
			if f.Rank != nil && *f.Rank != i {
				continue
			}
			if *f.StallEvents == 0 {
				e.resume(i)
			} else {
				e.after(time.Duration(*f.StallEvents), func() { e.resume(i) })
			}
		}
	}
	switch {
	case f.Exit != nil && *f.Exit:
		if e.cfg.Exit != nil {
			e.cfg.Exit()
		}
		return e.Crash(0)
	case f.Crash != nil:
		return e.Crash(time.Duration(f.Crash.For))
	case f.Restart != nil && *f.Restart:
		return e.Restart()
	}
	return nil
}

func (e *Engine) resume(i int) {
	e.faults.unstall(i)
	if p := e.ranks[i].pub; p != nil {
		p.resume()
	}
}

// URL is the address of the API.
func (e *Engine) URL() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return "http://" + e.addr
}

// Endpoints are the event and replay endpoints of a rank, "" where there is none.
func (e *Engine) Endpoints(rank int) (events, replay string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.events) == 0 {
		return "", ""
	}
	return e.events[rank], e.replay[rank]
}

// Cached lists the blocks that a rank's cache holds now, parents before children.
func (e *Engine) Cached(rank int) []Block {
	r := e.ranks[rank]
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kv.contents()
}

// Stats counts what the engine did, all ranks together.
func (e *Engine) Stats() Stats {
	var s Stats
	for _, r := range e.ranks {
		s.add(r.snapshot())
	}
	return s
}

// RankStats counts what one rank did.
func (e *Engine) RankStats(rank int) Stats { return e.ranks[rank].snapshot() }

// EventStats counts what the publisher of a rank did.
func (e *Engine) EventStats(rank int) EventStats {
	if p := e.ranks[rank].pub; p != nil {
		return p.snapshot()
	}
	return EventStats{}
}

// Check verifies the invariants of all caches.
func (e *Engine) Check() error {
	for i, r := range e.ranks {
		r.mu.Lock()
		err := r.kv.check(r.running)
		r.mu.Unlock()
		if err != nil {
			return fmt.Errorf("rank %d: %w", i, err)
		}
	}
	return nil
}

// ResetCache empties the caches of all ranks; it fails while requests run.
func (e *Engine) ResetCache() error {
	for _, r := range e.ranks {
		if err := r.reset(); err != nil {
			return fmt.Errorf("emptying the cache of rank %d: %w", r.number, err)
		}
	}
	return nil
}

// port is the port of an endpoint or address, 0 if there is none.
func port(at string) int {
	_, p, ok := cutLast(at, ":")
	if !ok {
		return 0
	}
	n, _ := strconv.Atoi(p)
	return n
}

func cutLast(s, sep string) (string, string, bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
