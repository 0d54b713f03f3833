//go:build cgo

package zmq

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/target"
)

// engine is a PUB and a ROUTER in a thread of its own, as engines have them: it publishes what it is told
// to and answers replays in between.
type engine struct {
	t      *testing.T
	events string
	replay string
	newer  bool // answers have a topic frame
	mute   atomic.Bool

	mu     sync.Mutex
	do     []string // payloads to publish; "" counts a number and publishes nothing
	buffer [][]byte // payloads, by number
	stop   chan struct{}
	ended  chan struct{}
}

func startEngine(t *testing.T, events, replay string, newer bool) *engine {
	t.Helper()
	e := &engine{t: t, events: events, replay: replay, newer: newer, stop: make(chan struct{}), ended: make(chan struct{})}
	zctx, err := zmq4.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	zctx.SetRetryAfterEINTR(true)
	pub, err := zctx.NewSocket(zmq4.PUB)
	if err != nil {
		t.Fatal(err)
	}
	router, err := zctx.NewSocket(zmq4.ROUTER)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(pub.SetLinger(0), router.SetLinger(0), pub.SetSndhwm(100_000), router.SetSndhwm(100_000), pub.Bind(events), router.Bind(replay), router.SetRcvtimeo(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	e.events, _ = pub.GetLastEndpoint()
	e.replay, _ = router.GetLastEndpoint()
	go func() {
		defer close(e.ended)
		defer func() {
			if err := errors.Join(pub.Close(), router.Close(), zctx.Term()); err != nil {
				t.Error(err)
			}
		}()
		for {
			select {
			case <-e.stop:
				return
			default:
			}
			e.turn(pub, router)
		}
	}()
	t.Cleanup(e.kill)
	return e
}

func (e *engine) kill() {
	select {
	case <-e.stop:
	default:
		close(e.stop)
	}
	<-e.ended
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func (e *engine) turn(pub, router *zmq4.Socket) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.do {
		seq := uint64(len(e.buffer))
		if p == "" {
			p = fmt.Sprint("unheard ", seq)
		} else if _, err := pub.SendMessage("kv-events", number(seq), p); err != nil {
			e.t.Error(err)
		}
		e.buffer = append(e.buffer, []byte(p))
	}
	e.do = nil
	e.mu.Unlock()
	ask, err := router.RecvMessageBytes(0)
	e.mu.Lock()
	if err != nil || len(ask) != 3 || len(ask[1]) != 0 || len(ask[2]) != 8 || e.mute.Load() {
		return
	}
	send := func(topic string, seq uint64, payload []byte) {
		parts := []any{ask[0], ""}
		if e.newer {
			parts = append(parts, topic)
		}
		if _, err := router.SendMessage(append(parts, number(seq), payload)...); err != nil {
			e.t.Error(err)
		}
	}
	for seq := binary.BigEndian.Uint64(ask[2]); seq < uint64(len(e.buffer)); seq++ {
		send("kv-events", seq, e.buffer[seq])
	}
	send("", ^uint64(0), nil)
}

func (e *engine) publish(payloads ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.do = append(e.do, payloads...)
}

func TestReplay(t *testing.T) {
	for _, newer := range []bool{false, true} {
		t.Run(fmt.Sprint("topic frame ", newer), func(t *testing.T) {
			tr := newTransport(t, Options{})
			e := startEngine(t, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", newer)
			const n = 12_000 // more than the queues of sockets hold by default
			batches := make([]string, n)
			for i := range batches {
				batches[i] = fmt.Sprint("batch ", i)
			}
			e.publish(batches...) // at once, so that no replay comes in between
			for _, start := range []uint64{0, 11_990, n, n + 5} {
				endpoint := e.replay
				if start == 11_990 {
					endpoint = "tcp://localhost" + e.replay[strings.LastIndex(e.replay, ":"):]
				}
				next := start
				err := tr.Replay(within(t), endpoint, start, 5*time.Second, func(m feed.Message) error {
					if m.Seq != next || string(m.Payload) != fmt.Sprint("batch ", next) {
						t.Fatalf("got %+v, want number %d", m, next)
					}
					next++
					return nil
				})
				if err != nil || next != max(n, start) {
					t.Errorf("from %d: got up to %d, %v", start, next, err)
				}
			}
			enough := errors.New("enough")
			if err := tr.Replay(within(t), e.replay, 0, 5*time.Second, func(feed.Message) error { return enough }); !errors.Is(err, enough) {
				t.Errorf("got %v, want %v", err, enough)
			}
			e.mute.Store(true)
			if err := tr.Replay(within(t), e.replay, 0, 50*time.Millisecond, nil); err == nil || !strings.Contains(err.Error(), "no answer in 50ms") {
				t.Errorf("got %v from an engine that does not answer", err)
			}
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		err := newTransport(t, Options{}).Replay(within(t), "tcp://"+freePort(t), 0, 50*time.Millisecond, nil)
		if err == nil || !strings.Contains(err.Error(), "no connection in 50ms") {
			t.Errorf("got %v", err)
		}
	})
}

// list is a Sink that keeps what it is told; an operation's handles name its payload.
type list struct {
	mu   sync.Mutex
	have []string
	turn chan struct{}
}

func (l *list) Apply(ops []index.Op) index.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, op := range ops {
		if op.Kind == index.Epoch {
			l.have = nil
			continue
		}
		l.have = append(l.have, string(rune(op.Handles[0])))
	}
	select {
	case l.turn <- struct{}{}:
	default:
	}
	return index.Result{}
}

func (l *list) State(feed.State) {
	select {
	case l.turn <- struct{}{}:
	default:
	}
}

func (l *list) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.have, "")
}

func decodeRune(p []byte) (feed.Decoded, error) {
	r := []rune(string(p))[0]
	return feed.Decoded{Ops: []index.Op{{Kind: index.Store, Handles: []index.Handle{index.Handle(r)}}}}, nil
}

// TestFollowEngines follows real sockets through a warm start, a loss and a kill -9.
func TestFollowEngines(t *testing.T) {
	events, replay := "tcp://"+freePort(t), "tcp://"+freePort(t)
	tr := newTransport(t, Options{})
	e := startEngine(t, events, replay, true)
	e.publish("a", "b", "c")
	l := &list{turn: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	f := feed.Follow(ctx, feed.Config{Endpoint: events, Topic: "kv", Replay: replay, Rank: target.NoRank}, tr, decodeRune, l)
	is := func(want string) {
		t.Helper()
		deadline := time.After(limit)
		for l.text() != want || f.State().Trust != feed.Trusted {
			select {
			case <-l.turn:
			case <-deadline:
				t.Fatalf("got %q, %+v, want %q trusted", l.text(), f.State(), want)
			}
		}
	}
	is("abc")
	e.publish("d")
	is("abcd")
	e.publish("", "f") // e is never heard live
	is("abcduf")
	e.kill()
	e = startEngine(t, events, replay, true)
	e.publish("x")
	is("x")
	e.publish("y")
	is("xy")
	if st := f.State(); st.Restarts != 1 || st.Gaps < 1 || st.Missing != 0 {
		t.Errorf("got %+v", st)
	}
	cancel()
	if err := f.Wait(); err != nil {
		t.Error(err)
	}
}

// TestManyStreams holds what hundreds of streams cost: descriptors by the stream, threads not at all.
func TestManyStreams(t *testing.T) {
	const n = 64 * 8
	tr := newTransport(t, Options{})
	p := publish(t, "tcp://127.0.0.1:*", false)
	count := func(dir string) int {
		all, err := os.ReadDir("/proc/self/" + dir)
		if err != nil {
			t.Skip("no /proc here: ", err)
		}
		return len(all)
	}
	threads, fds := count("task"), count("fd")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ready, all sync.WaitGroup
	got := make([]atomic.Int64, n)
	for i := range n {
		s := subscribe(t, tr, p.at, "", false)
		ready.Add(1)
		all.Go(func() {
			for {
				m, err := s.Receive(ctx)
				switch {
				case err != nil:
					return
				case m.Event == feed.Connected:
					ready.Done()
				case m.Event == feed.Batch:
					got[i].Add(1)
				}
			}
		})
	}
	ready.Wait()
	t.Logf("%d streams: %d threads more, %.1f descriptors a stream (with the publisher's end)", n, count("task")-threads, float64(count("fd")-fds)/n)
	// Calls into libzmq that happen at once take a thread each; waiting takes none.
	if more := count("task") - threads; more > n/2 {
		t.Errorf("%d streams took %d threads", n, more)
	}
	if each := float64(count("fd")-fds) / n; each > 9 {
		t.Errorf("%d streams took %.1f descriptors each", n, each)
	}
	start := time.Now()
	deadline := start.Add(limit)
	for seq := uint64(0); ; seq++ {
		p.send("", seq, "x")
		heard := 0
		for i := range got {
			if got[i].Load() > 0 {
				heard++
			}
		}
		if heard == n {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("only %d of %d streams heard anything", heard, n)
		}
	}
	cancel()
	all.Wait()
}

func BenchmarkReceive(b *testing.B) {
	tr, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer tr.Close()
	zctx, err := zmq4.NewContext()
	if err != nil {
		b.Fatal(err)
	}
	pub, err := zctx.NewSocket(zmq4.PUB)
	if err != nil {
		b.Fatal(err)
	}
	if err := errors.Join(pub.SetSndhwm(0), pub.Bind("tcp://127.0.0.1:*")); err != nil {
		b.Fatal(err)
	}
	at, err := pub.GetLastEndpoint()
	if err != nil {
		b.Fatal(err)
	}
	s, err := tr.Subscribe(b.Context(), at, "", false)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Receive(b.Context()); err != nil {
		b.Fatal(err)
	}
	payload := make([]byte, 1000)
	done := make(chan struct{})
	var stop atomic.Bool
	var sent, read atomic.Int64
	go func() {
		defer close(done)
		for seq := uint64(0); !stop.Load(); seq++ {
			if sent.Load()-read.Load() > 10_000 {
				time.Sleep(time.Millisecond)
				continue
			}
			if _, err := pub.SendMessage("kv-events", number(seq), payload); err != nil {
				b.Error(err)
				return
			}
			sent.Add(1)
		}
	}()
	b.ReportAllocs()
	b.SetBytes(int64(len(payload)))
	for b.Loop() {
		if _, err := s.Receive(b.Context()); err != nil {
			b.Fatal(err)
		}
		read.Add(1)
	}
	stop.Store(true)
	<-done
	if err := errors.Join(pub.SetLinger(0), pub.Close(), zctx.Term()); err != nil {
		b.Error(err)
	}
}
