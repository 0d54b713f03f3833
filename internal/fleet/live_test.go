//go:build cgo

package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/fakeengine"
	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/router"
)

func vllm(capacity int) fakeengine.Config {
	return fakeengine.Config{Dialect: fakeengine.VLLM, Capacity: capacity, MaxSeqs: 64}
}

func sglang(capacity int) fakeengine.Config {
	return fakeengine.Config{Dialect: fakeengine.SGLang, Capacity: capacity, MaxSeqs: 64}
}

// TestSequentialPredictionsAreExact: one request after the other on caches that thrash; what is predicted is
// what the engine reports, each time, and mirrors are caches.
func TestSequentialPredictionsAreExact(t *testing.T) {
	for _, tc := range []struct {
		name    string
		engines []fakeengine.Config
	}{
		{"vllm", []fakeengine.Config{vllm(80), vllm(80)}},
		{"vllm 0.23", []fakeengine.Config{{Dialect: fakeengine.VLLM, Version: "0.23.0", Capacity: 80}, {Dialect: fakeengine.VLLM, Version: "0.23.0", Capacity: 80}}},
		{"sglang", []fakeengine.Config{sglang(80), sglang(80)}},
		{"vllm page 32", []fakeengine.Config{{Dialect: fakeengine.VLLM, Capacity: 40, BlockSize: 32}, {Dialect: fakeengine.VLLM, Capacity: 40, BlockSize: 32}}},
		{"ranks", []fakeengine.Config{{Dialect: fakeengine.VLLM, Capacity: 80, Ranks: 2}}},
		{"ranks that say a wrong block size", []fakeengine.Config{{Dialect: fakeengine.VLLM, Capacity: 80, Ranks: 2, ReportBlockSize: 32}}},
		{"both", []fakeengine.Config{vllm(80), sglang(80)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStand(t, options{engines: tc.engines})
			rng := rand.New(rand.NewPCG(1, 1))
			n := 120
			for i := range n {
				c := conversation(rng)
				if rng.IntN(8) == 0 {
					c.Salt = "tenant"
				}
				if rng.IntN(8) == 0 {
					c.N = 2
				}
				s.settle()
				status, body, err := s.post(context.Background(), "/v1/chat/completions", c)
				if err != nil || status != 200 {
					t.Fatalf("request %d: status %d, %v: %s", i, status, err, body)
				}
			}
			var all fleet.PredictionState
			for _, st := range s.fleet.States() {
				p := st.Predictions
				all.Compared += p.Compared
				all.Differing += p.Differing
				all.Overtaken += p.Overtaken
				all.Predicted += p.Predicted
				all.Reported += p.Reported
				all.Incomparable += p.Incomparable
			}
			// Requests for two samples cannot be compared.
			if all.Differing > 0 || all.Overtaken > 0 || all.Compared < uint64(n)*7/10 || all.Reported == 0 || all.Predicted != all.Reported {
				t.Errorf("predictions: %+v; want at least %d compared, all equal, and hits among them", all, n*7/10)
			}
		})
	}
}

// TestRecordedRunIsReplayed is the project's central claim: what a live router decided, with concurrent
// clients, aborts, retries, an engine that dies and comes back, and lost events, is decided again from the
// recording, byte for byte.
func TestRecordedRunIsReplayed(t *testing.T) {
	s := newStand(t, options{
		engines: []fakeengine.Config{vllm(100), sglang(100), vllm(100)}, record: true,
		fleet: func(c *fleet.Config) { c.SilentAfter = 1 << 20 },
	})
	var served, refused, aborted atomic.Int64
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(w)))
			for range 60 {
				c := conversation(rng)
				c.Stream = rng.IntN(2) == 0
				ctx, cancel := context.WithCancel(context.Background())
				if rng.IntN(6) == 0 {
					time.AfterFunc(time.Duration(rng.IntN(3000))*time.Microsecond, cancel)
				}
				session := []string{"X-Dynamo-Session-ID", "s" + string(rune('a'+rng.IntN(6)))}
				status, _, err := s.post(ctx, "/v1/chat/completions", c, session...)
				switch {
				case err != nil && ctx.Err() != nil:
					aborted.Add(1)
				case err == nil && status == 200:
					served.Add(1)
				default:
					refused.Add(1)
				}
				cancel()
			}
		})
	}
	wg.Go(func() {
		drop, lose, dup := 3, 1, 2
		for i := range 6 {
			time.Sleep(15 * time.Millisecond)
			if err := s.engines[i%3].Fault(fakeengine.Fault{DropEvents: &drop, LoseEvents: &lose, DuplicateEvents: &dup, Errors: &fakeengine.Errors{Status: 503, Count: 2}}); err != nil {
				t.Error(err)
			}
		}
		if err := s.engines[0].Crash(30 * time.Millisecond); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Millisecond)
		s.fleet.Update(s.specs[:2]) // the third leaves with requests in flight
		time.Sleep(10 * time.Millisecond)
		s.fleet.Update(s.specs)
	})
	wg.Wait()
	s.until("no reservations", func() bool { return s.held() == 0 })
	v := s.verify()
	if v.Decisions < 400 || served.Load() < 300 || aborted.Load() == 0 {
		t.Errorf("%d decisions, %d served, %d refused, %d aborted: too little happened", v.Decisions, served.Load(), refused.Load(), aborted.Load())
	}
}

func (s *stand) held() (n int64) {
	for _, st := range s.fleet.States() {
		n += st.HeldRequests
	}
	return n
}

// TestAbortsAndChurnLeaveNothing: a thousand clients that leave at random points, two hundred joins and
// leaves; in the end ledger, goroutines and descriptors are where they were.
func TestAbortsAndChurnLeaveNothing(t *testing.T) {
	aborts, turns := 1000, 200
	if testing.Short() {
		aborts, turns = 200, 40
	}
	cfg := vllm(2000)
	cfg.TimeScale = 0.02
	s := newStand(t, options{engines: []fakeengine.Config{cfg, cfg, cfg}})
	run := func(n int) {
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(3, uint64(w)))
				for range n / 16 {
					c := conversation(rng)
					c.Stream, c.MaxTokens = rng.IntN(3) > 0, 200
					ctx, cancel := context.WithCancel(context.Background())
					time.AfterFunc(time.Duration(rng.IntN(20000))*time.Microsecond, cancel)
					s.post(ctx, "/v1/chat/completions", c) //nolint:errcheck // most of them fail, as is wanted
					cancel()
				}
			})
		}
		wg.Wait()
	}
	settled := func() (goroutines, files int) {
		s.until("all released", func() bool { return s.held() == 0 && s.running() == 0 })
		http.DefaultClient.CloseIdleConnections()
		s.until("connections to close", func() bool { runtime.GC(); return runtime.NumGoroutine() < 400 })
		return runtime.NumGoroutine(), descriptors(t)
	}
	run(64) // pools and caches fill
	time.Sleep(50 * time.Millisecond)
	g0, f0 := settled()
	run(aborts)
	for i := range turns {
		s.fleet.Update(s.specs[:1+i%3])
	}
	s.fleet.Update(s.specs)
	s.until("all back", func() bool { ok, _ := s.fleet.Ready(); return ok && s.fleet.ActiveWorkers() == 3 })
	const slack = 40 // keep-alive connections and timers come and go
	var g1, f1 int
	s.until("the base line", func() bool { g1, f1 = settled(); return g1 <= g0+slack && f1 <= f0+slack })
	t.Logf("goroutines %d -> %d, descriptors %d -> %d", g0, g1, f0, f1)
	for i, e := range s.engines {
		if err := e.Check(); err != nil {
			t.Errorf("engine %d: %v", i, err)
		}
	}
}

func (s *stand) running() (n int) {
	for _, e := range s.engines {
		st := e.Stats()
		n += st.Running + st.Waiting
	}
	return n
}

// TestBurstSpreads: many long prompts at once over idle workers go to each in equal parts, as choosing and
// booking are one step.
func TestBurstSpreads(t *testing.T) {
	cfg := vllm(60000)
	cfg.TimeScale = 1000 // nothing ends meanwhile
	s := newStand(t, options{engines: []fakeengine.Config{cfg, cfg, cfg, cfg}, router: func(c *router.Config) { c.MaxInFlight = 1000 }})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(9, uint64(i)))
			status, body, err := s.post(ctx, "/v1/completions", map[string]any{"model": "tiny", "prompt": text(rng, 3000), "max_tokens": 1})
			if err == nil && status != 200 {
				t.Errorf("status %d: %s", status, body)
			}
		})
	}
	s.until("all picked", func() bool { return s.held() == 100 })
	for _, st := range s.fleet.States() {
		if st.HeldRequests < 24 || st.HeldRequests > 26 {
			t.Errorf("%s holds %d requests, want about 25", st.RouteKey, st.HeldRequests)
		}
	}
	cancel()
	wg.Wait()
}

// TestWithoutEvents: caches are guessed, prefixes are followed all the same, and everything says so.
func TestWithoutEvents(t *testing.T) {
	s := newStand(t, options{engines: []fakeengine.Config{vllm(500), vllm(500)}, noEvent: true, router: func(c *router.Config) { c.Explain = true }})
	c := conversation(rand.New(rand.NewPCG(4, 4)))
	for range 4 {
		if status, body, err := s.post(context.Background(), "/v1/chat/completions", c); err != nil || status != 200 {
			t.Fatalf("status %d, %v: %s", status, err, body)
		}
	}
	var cached uint64
	for _, e := range s.engines {
		cached += e.Stats().CachedTokens
	}
	if cached == 0 {
		t.Error("the same prompt four times hit nothing")
	}
	for _, st := range s.fleet.States() {
		if !st.Approximate || st.Stream.Trust.String() != "no-events" || st.Stream.Reason == "" {
			t.Errorf("%s: approximate %v, trust %s (%q)", st.RouteKey, st.Approximate, st.Stream.Trust, st.Stream.Reason)
		}
	}
}

// TestReturnOfAnotherWorker: a worker goes and another comes at its address; nothing is inherited.
func TestReturnOfAnotherWorker(t *testing.T) {
	s := newStand(t, options{engines: []fakeengine.Config{vllm(500)}})
	c := conversation(rand.New(rand.NewPCG(5, 5)))
	if status, body, err := s.post(context.Background(), "/v1/chat/completions", c); err != nil || status != 200 {
		t.Fatalf("status %d, %v: %s", status, err, body)
	}
	s.settle()
	if s.fleet.States()[0].Blocks == 0 {
		t.Fatal("nothing was mirrored")
	}
	s.fleet.Update(nil)
	if err := s.engines[0].Restart(); err != nil {
		t.Fatal(err)
	}
	s.fleet.Update(s.specs)
	s.until("ready", func() bool { ok, _ := s.fleet.Ready(); return ok })
	if n := s.fleet.States()[0].Blocks; n != 0 {
		t.Errorf("the new worker has %d blocks of the old one", n)
	}
}

// TestStreamUsage: predictions are held against the usage that ends a stream.
func TestStreamUsage(t *testing.T) {
	s := newStand(t, options{engines: []fakeengine.Config{vllm(500)}})
	c := conversation(rand.New(rand.NewPCG(6, 6)))
	c.Stream, c.Options = true, &usageOpt{true}
	for range 2 {
		if status, body, err := s.post(context.Background(), "/v1/chat/completions", c); err != nil || status != 200 {
			t.Fatalf("status %d, %v: %s", status, err, body)
		}
		s.settle()
	}
	if p := s.fleet.States()[0].Predictions; p.Compared != 2 || p.Differing != 0 || p.Reported == 0 {
		t.Errorf("predictions %+v, want 2 compared, none differing", p)
	}
	var list struct{ Data []json.RawMessage }
	resp, err := http.Get(s.url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list.Data) != 1 {
		t.Errorf("models: %v, %v; want one", list.Data, err)
	}
}

// TestEnginesThatDial: engines that connect to the router's endpoint are told apart by topic, and an engine
// that is polled is followed as well.
func TestEnginesThatDial(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	dial := func(topic string) fakeengine.Config {
		c := vllm(500)
		c.EventsDial, c.Topic, c.Events, c.Replay = true, topic, fmt.Sprintf("tcp://127.0.0.1:%d", port), "tcp://127.0.0.1:0"
		return c
	}
	polled := fakeengine.Config{Dialect: fakeengine.TRTLLM, Capacity: 500}
	s := newStand(t, options{
		engines: []fakeengine.Config{dial("kv@a"), dial("kv@b"), polled}, noEvent: true,
		spec: func(i int, e *fakeengine.Engine) string {
			if i == 2 {
				return e.URL() + ",engine=trtllm,events=poll"
			}
			_, replay := e.Endpoints(0)
			return fmt.Sprintf("%s,events=tcp://*:%d,replay=%s,topic=kv@%c", e.URL(), port, replay, 'a'+i)
		},
	})
	rng := rand.New(rand.NewPCG(8, 8))
	for i := range 30 {
		if status, body, err := s.post(context.Background(), "/v1/chat/completions", conversation(rng)); err != nil || status != 200 {
			t.Fatalf("request %d: status %d, %v: %s", i, status, err, body)
		}
	}
	s.settle()
	for _, st := range s.fleet.States() {
		if st.Blocks == 0 || st.Approximate {
			t.Errorf("%s: %d blocks, approximate %v", st.RouteKey, st.Blocks, st.Approximate)
		}
	}
}

// TestAnotherEngineAtTheSameAddress: an engine dies and one with other blocks comes at its address, in less
// time than it takes to be noticed as gone.
func TestAnotherEngineAtTheSameAddress(t *testing.T) {
	s := newStand(t, options{engines: []fakeengine.Config{vllm(500)}})
	c := conversation(rand.New(rand.NewPCG(5, 5)))
	if status, body, err := s.post(context.Background(), "/v1/chat/completions", c); err != nil || status != 200 {
		t.Fatalf("status %d, %v: %s", status, err, body)
	}
	s.settle()
	size := 32
	if err := s.engines[0].Fault(fakeengine.Fault{BlockSize: &size}); err != nil {
		t.Fatal(err)
	}
	if err := s.engines[0].Restart(); err != nil {
		t.Fatal(err)
	}
	s.until("the worker to be known anew", func() bool {
		st := s.fleet.States()
		return len(st) == 1 && st[0].Joined && st[0].PageSize == size && st[0].Health == fleet.Healthy
	})
	s.until("the old life to be over", func() bool { return s.fleet.States()[0].Stream.Trust.String() == "trusted" })
	if n := s.fleet.States()[0].Blocks; n != 0 {
		t.Errorf("the new life has %d blocks of the old one", n)
	}
}
