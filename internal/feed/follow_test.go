package feed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/target"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wire carries messages between a test and a Stream: a Transport without a network.
type wire struct {
	live chan Message

	mu       sync.Mutex
	engine   *modelEngine // answers replays; nil: nobody does
	wait     time.Duration
	running  int
	most     int
	opened   int
	closed   int
	refusing error
}

func newWire() *wire { return &wire{live: make(chan Message, 1000)} }

func (w *wire) Subscribe(context.Context, string, string, bool) (Subscription, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refusing != nil {
		return nil, w.refusing
	}
	w.opened++
	return w, nil
}

func (w *wire) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed++
	return nil
}

func (w *wire) Receive(ctx context.Context) (Message, error) {
	select {
	case m := <-w.live:
		return m, nil
	case <-ctx.Done():
		return Message{}, ctx.Err()
	}
}

func (w *wire) Replay(ctx context.Context, _ string, start uint64, quiet time.Duration, each func(Message) error) error {
	w.mu.Lock()
	w.running++
	w.most = max(w.most, w.running)
	wait, e := w.wait, w.engine
	var answer []Message
	if e != nil {
		answer = append(answer, e.buffer...)
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.running--
		w.mu.Unlock()
	}()
	if e == nil {
		wait = quiet
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait):
	}
	if e == nil {
		return errNoAnswer
	}
	for _, m := range answer {
		if m.Seq >= start {
			if err := each(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// sink is a mirror.
type sink struct {
	t  *testing.T
	mu sync.Mutex
	x  *index.Index
	st []State
}

func newSink(t *testing.T) *sink {
	s := &sink{t: t, x: index.New(1, index.Options{})}
	s.x.Join(0)
	return s
}

func (s *sink) Apply(ops []index.Op) (sum index.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, op := range ops {
		r, err := s.x.Apply(op)
		if err != nil {
			s.t.Error(err)
		}
		sum.Stored += r.Stored
		sum.Removed += r.Removed
	}
	return sum
}

func (s *sink) State(st State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st = append(s.st, st)
}

func (s *sink) hash() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.x.ContentHash(0)
}

// decoder decodes what a model engine publishes. The payload "bad" is not readable.
func (w *wire) decoder() Decode {
	return func(payload []byte) (Decoded, error) {
		if string(payload) == "bad" {
			return Decoded{}, errors.New("bad payload")
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return Decoded{Ops: w.engine.ops[string(payload)], HasRank: true, Rank: 3, PageSize: 1}, nil
	}
}

func (w *wire) step() Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.engine.step()
}

func modelOf(seed uint64) *modelEngine {
	return newModelEngine(&random{rand.New(rand.NewPCG(seed, 9)), 1 << 30}, 0, 1<<20)
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w, s := newWire(), newSink(t)
		w.engine = modelOf(1)
		for range 20 {
			w.step() // a warm engine
		}
		f := Follow(ctx, Config{Endpoint: "here", Replay: "there", Rank: target.NoRank}, w, w.decoder(), s)
		is := func(want Trust, settled bool) {
			t.Helper()
			synctest.Wait()
			if got := f.State(); got.Trust != want {
				t.Fatalf("got %v (%s), want %v", got.Trust, got.Reason, want)
			}
			if ok, why := f.Settled(); ok != settled {
				t.Fatalf("Settled: got %v (%s), want %v", ok, why, settled)
			}
			if want == Trusted && s.hash() != w.engine.truth.ContentHash(0) {
				t.Fatal("trusted, but the mirror is not what the engine holds")
			}
		}
		is(Connecting, false)
		w.wait = time.Second
		w.live <- Message{Event: Connected}
		is(Warming, false)
		w.live <- w.step()          // comes while the replay runs
		time.Sleep(5 * time.Second) // the first check is over, too
		is(Trusted, true)
		for range 50 {
			w.live <- w.step()
		}
		is(Trusted, true)
		w.step() // lost
		w.live <- w.step()
		is(Resync, true)
		time.Sleep(time.Second)
		is(Trusted, true)

		w.live <- Message{Event: Disconnected, Reason: "killed"}
		is(Resync, true)
		w.mu.Lock()
		w.engine.restart()
		w.mu.Unlock()
		w.step()
		w.live <- Message{Event: Connected}
		time.Sleep(10 * time.Second)
		is(Trusted, true)
		if st := f.State(); st.Restarts != 1 || st.Gaps != 1 || st.Missing != 0 || st.PageSize != 1 || len(st.Skipped) != 0 {
			t.Errorf("got %+v", st)
		}

		f.Restart("because")
		time.Sleep(2 * time.Second)
		is(Trusted, true)
		w.live <- Message{Event: Connected}
		is(Resync, true)
		before := f.State().Replayed
		f.Restart("in the middle of a replay")
		time.Sleep(5 * time.Second)
		is(Trusted, true)
		if n := f.State().Replayed - before; n < uint64(len(w.engine.buffer)) {
			t.Errorf("%d batches were replayed, want all %d: the restart was forgotten", n, len(w.engine.buffer))
		}
		f.Drift("far apart")
		is(Diverged, true)
		f.Drift("")
		is(Trusted, true)
		f.Snapshot(func(at Resume, ok bool) {
			if !ok || !at.Exact || at.Last != markOf(&w.engine.buffer[len(w.engine.buffer)-1]) {
				t.Errorf("Snapshot: got %+v, %v", at, ok)
			}
		})

		f.Served(20)
		time.Sleep(5 * time.Second)
		is(Silent, true)
		w.live <- Message{Seq: w.engine.next, HasSeq: true, Payload: []byte("bad")}
		is(Silent, true)
		cancel()
		if err := f.Wait(); err != nil {
			t.Error(err)
		}
		if w.opened != 1 || w.closed != 1 {
			t.Errorf("%d subscriptions opened, %d closed, want 1 and 1", w.opened, w.closed)
		}
		for i, st := range s.st {
			if i > 0 && st.Trust == s.st[i-1].Trust && st.Reason == s.st[i-1].Reason {
				t.Errorf("told twice of %v (%s)", st.Trust, st.Reason)
			}
		}
	})
}

// TestFollowWithoutAnswer holds that a dead replay socket costs attempts, not the stream.
func TestFollowWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w, s := newWire(), newSink(t)
		e := modelOf(2)
		decode := func(p []byte) (Decoded, error) {
			return Decoded{Ops: e.ops[string(p)], HasRank: true, Rank: 1}, nil
		}
		f := Follow(ctx, Config{Endpoint: "here", Replay: "there", Rank: 0}, w, decode, s)
		e.step() // before anybody listens
		w.live <- Message{Event: Connected}
		w.live <- e.step()
		start := time.Now()
		for {
			if ok, why := f.Settled(); ok {
				if !strings.Contains(why, errNoAnswer.Error()) {
					t.Errorf("settled because %q", why)
				}
				break
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("settled after %v", took)
		}
		w.live <- e.step()
		synctest.Wait()
		if st := f.State(); st.Trust != Warming || !strings.Contains(st.Reason, errNoAnswer.Error()) || st.Batches != 2 || len(st.Skipped) != 1 {
			t.Errorf("got %+v, want warming because of the replay, and ranks that differ counted", st)
		}
		cancel()
		if err := f.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestReplaysAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWire()
		w.engine, w.wait = modelOf(3), time.Second
		limit := NewLimiter(8)
		var all []*Stream
		for range 50 {
			all = append(all, Follow(ctx, Config{Replay: "there", Limit: limit, Rank: target.NoRank}, w, w.decoder(), newSink(t)))
			w.live <- Message{Event: Connected}
		}
		synctest.Wait()
		time.Sleep(3500 * time.Millisecond)
		w.mu.Lock()
		if w.most != 8 {
			t.Errorf("%d replays ran at once, want 8", w.most)
		}
		w.mu.Unlock()
		cancel() // while many wait for their turn
		for _, f := range all {
			if err := f.Wait(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestFollowCannotSubscribe(t *testing.T) {
	w, s := newWire(), newSink(t)
	w.refusing = errors.New("no such thing")
	f := Follow(t.Context(), Config{Endpoint: "here"}, w, nil, s)
	if err := f.Wait(); !errors.Is(err, w.refusing) || !strings.Contains(err.Error(), "following here") {
		t.Errorf("got %v", err)
	}
	if st := f.State(); st.Trust != Connecting || !strings.Contains(st.Reason, "no such thing") {
		t.Errorf("got %+v", st)
	}
}

func TestDemux(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWire()
		d := NewDemux(w, "here", "kv@", true)
		done := make(chan error)
		go func() { done <- d.Run(ctx) }()
		w.live <- Message{Event: Connected}
		synctest.Wait()
		var subs []Subscription
		var vias []Transport
		for _, topic := range []string{"kv@a@m", "kv@b@m"} {
			via := d.Route(func(m *Message) bool { return m.Topic == topic })
			sub, err := via.Subscribe(ctx, "", "", false)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := via.Subscribe(ctx, "", "", false); err == nil {
				t.Error("a route was followed twice")
			}
			subs, vias = append(subs, sub), append(vias, via)
		}
		payload := []byte("shared memory")
		for seq := range uint64(5) {
			for _, topic := range []string{"kv@b@m", "kv@c@m", "kv@a@m"} {
				w.live <- Message{Topic: topic, Seq: seq, HasSeq: true, Payload: payload}
			}
		}
		w.live <- Message{Event: Connected}
		synctest.Wait()
		clear(payload)
		for i, sub := range subs {
			want := []Event{Connected, Batch, Batch, Batch, Batch, Batch, Connected}
			for j, ev := range want {
				m, err := sub.Receive(ctx)
				if err != nil || m.Event != ev || ev == Batch && (m.Seq != uint64(j-1) || string(m.Payload) != "shared memory" || m.Topic[3] != "ab"[i]) {
					t.Fatalf("stream %d, message %d: got %+v, %v, want event %d", i, j, m, err, ev)
				}
			}
		}
		if n, topic := d.Unclaimed(); n != 5 || topic != "kv@c@m" {
			t.Errorf("Unclaimed: got %d, %q", n, topic)
		}
		// A stream that does not read loses batches beyond its bound, not turns of the connection.
		for seq := range uint64(demuxQueue + 100) {
			w.live <- Message{Topic: "kv@a@m", Seq: seq, HasSeq: true}
		}
		w.live <- Message{Event: Connected}
		synctest.Wait()
		n := 0
		for {
			m, err := subs[0].Receive(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if m.Event == Connected {
				break
			}
			n++
		}
		if n != demuxQueue {
			t.Errorf("got %d batches, want %d", n, demuxQueue)
		}
		d.Drop(vias[0])
		w.live <- Message{Topic: "kv@a@m"}
		synctest.Wait()
		if n, topic := d.Unclaimed(); n != 6 || topic != "kv@a@m" {
			t.Errorf("Unclaimed after Drop: got %d, %q", n, topic)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := subs[1].Receive(ctx); err != nil {
			t.Error("what is queued is given out first:", err)
		}
		if _, err := subs[1].Receive(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
}

func TestFrames(t *testing.T) {
	number := binary.BigEndian.AppendUint64(nil, 7)
	ones := bytes.Repeat([]byte{0xff}, 8)
	b := func(parts ...string) (out [][]byte) {
		for _, p := range parts {
			out = append(out, []byte(p))
		}
		return out
	}
	for _, tt := range []struct {
		name    string
		replay  bool
		parts   [][]byte
		topic   string
		payload string
		end     bool
		err     string
	}{
		{name: "live", parts: b("kv", string(number), "x"), topic: "kv", payload: "x"},
		{name: "live, long payload frame of eight", parts: b("kv", string(number), "12345678"), topic: "kv", payload: "12345678"},
		{name: "live, nothing", parts: nil, err: "0 frames"},
		{name: "live, four", parts: b("", "", "", ""), err: "4 frames"},
		{name: "live, short number", parts: b("", "1234", ""), err: "4 bytes"},
		{name: "old replay", replay: true, parts: b("", string(number), "x"), payload: "x"},
		{name: "new replay", replay: true, parts: b("", "kv", string(number), "x"), topic: "kv", payload: "x"},
		{name: "new replay, no topic", replay: true, parts: b("", "", string(number), "x"), payload: "x"},
		{name: "old end", replay: true, parts: b("", string(ones), ""), end: true},
		{name: "new end", replay: true, parts: b("", "", string(ones), ""), end: true},
		{name: "replay, two", replay: true, parts: b(string(number), "x"), err: "2 frames"},
		{name: "replay, first not empty", replay: true, parts: b("kv", string(number), "x"), err: "2 bytes, want 0"},
		{name: "replay, short number", replay: true, parts: b("", "kv", "x"), err: "2 bytes, want 8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parse := func(p [][]byte) (Message, bool, error) { m, err := ParseLive(p); return m, false, err }
			if tt.replay {
				parse = ParseReplay
			}
			m, end, err := parse(tt.parts)
			if tt.err != "" {
				if !errors.Is(err, ErrFrames) || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got %v, want an error with %q", err, tt.err)
				}
				return
			}
			if err != nil || end != tt.end || m.Topic != tt.topic || string(m.Payload) != tt.payload || !end && (m.Seq != 7 || !m.HasSeq) {
				t.Errorf("got %+v, end %v, %v", m, end, err)
			}
		})
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("kv"), []byte("12345678"), []byte("payload"), []byte{}, uint8(3))
	f.Add([]byte{}, []byte("kv"), bytes.Repeat([]byte{0xff}, 8), []byte{}, uint8(4))
	f.Fuzz(func(t *testing.T, a, b, c, d []byte, n uint8) {
		parts := [][]byte{a, b, c, d}[:n%5]
		if m, err := ParseLive(parts); err == nil && (m.HasSeq != (len(parts) == 3) || !bytes.Equal(m.Payload, parts[len(parts)-1])) {
			t.Errorf("live %q: got %+v", parts, m)
		}
		m, end, err := ParseReplay(parts)
		if err == nil && !end && (!m.HasSeq || !bytes.Equal(m.Payload, parts[len(parts)-1])) {
			t.Errorf("replay %q: got %+v", parts, m)
		}
	})
}
