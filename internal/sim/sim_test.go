package sim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/sim"
	"github.com/kvroute/kvroute/internal/trace"
)

// hand makes a workload of blocks of 10 tokens by hand: each path is a string, one letter a block, and
// equal prefixes are equal blocks.
func hand(requests ...handRequest) *trace.Workload {
	w := &trace.Workload{Name: "hand", BlockSize: 10, Forest: &trace.Forest{}}
	nodes := map[string]trace.NodeID{}
	for _, r := range requests {
		leaf := trace.NoNode
		for k := 1; k <= len(r.path); k++ {
			n, ok := nodes[r.path[:k]]
			if !ok {
				n = trace.NodeID(len(w.Forest.Hash))
				nodes[r.path[:k]] = n
				w.Forest.Hash = append(w.Forest.Hash, block.Hash(len(nodes)*7919))
				w.Forest.Parent = append(w.Forest.Parent, leaf)
				w.Forest.Depth = append(w.Forest.Depth, uint32(k))
			}
			leaf = n
		}
		w.Requests = append(w.Requests, trace.Request{Arrival: r.at, Input: int64(10*len(r.path)) + r.tail, Output: r.out, Leaf: leaf, Session: -1})
	}
	w.Forest.Index()
	return w
}

type handRequest struct {
	at   int64 // µs
	path string
	out  int64
	tail int64 // tokens after the last whole block
}

// plain is a profile in which all is easy to add up: a step is 1,000 µs, a prefill token 10 µs.
func plain() *engine.Profile {
	return &engine.Profile{
		Name: "plain", Origin: "test", StepMS: 1, PrefillUS: 10, ChunkTokens: 1000, MaxRunning: 100,
		BlockSize: 10, KVTokens: 1000, TransferUS: 500, TransferUSPerKTok: 100_000,
	}
}

func batch(workers int, p *engine.Profile) sim.Config {
	c := serial(workers, 0, score.RoundRobin, 1)
	c.Engine, c.Profile = sim.BatchEngine, p
	return c
}

func TestBatchByHand(t *testing.T) {
	w := hand(handRequest{0, "abc", 3, 0}, handRequest{100, "abd", 2, 5})
	r := mustRun(t, w, batch(1, plain()))
	// 0: step of 30 tokens ends at 1,300. The second then hits two blocks, prefills 15: 1,300 + 1,150 = 2,450,
	// in which the first decodes its second token; both end with the next step, at 3,450.
	if got, want := r.Sim.TTFT.Sum, int64(1300+2350); got != want {
		t.Errorf("TTFT sum: got %d, want %d", got, want)
	}
	if got, want := r.Sim.MakespanUS, int64(3450); got != want {
		t.Errorf("makespan: got %d, want %d", got, want)
	}
	if got, want := r.Sim.ITL.Sum, int64((3450-1300)/2+1000); got != want {
		t.Errorf("ITL sum: got %d, want %d", got, want)
	}
	if got, want := r.Sim.Queue.Sum, int64(1200); got != want {
		t.Errorf("queue sum: got %d, want %d", got, want)
	}
	// The router picked for the second when the first had not been computed: it could not know.
	if r.HitBlocks != 2 || r.HitTokens != 20 || r.PredictedHitBlocks != 0 || r.Sim.Completed != 2 {
		t.Errorf("got %d hits (%d tokens), %d predicted, %d completed; want 2, 20, 0, 2", r.HitBlocks, r.HitTokens, r.PredictedHitBlocks, r.Sim.Completed)
	}
	if got := r.MissBlocksPerWorker[0]; got != 4 {
		t.Errorf("miss blocks: got %d, want 4", got)
	}
}

// TestInstant: what happens at one instant happens in the stated order.
func TestInstant(t *testing.T) {
	// Two arrivals at once share the first step: 60 tokens, 1,600 µs.
	r := mustRun(t, hand(handRequest{0, "abc", 1, 0}, handRequest{0, "xyz", 1, 0}), batch(1, plain()))
	if got, want := r.Sim.TTFT.Sum, int64(2*1600); got != want {
		t.Errorf("two at once: TTFT sum %d, want %d", got, want)
	}
	// A request that arrives when a step ends takes part in the next one, and hits what the step computed.
	r = mustRun(t, hand(handRequest{0, "abc", 5, 0}, handRequest{1300, "abcd", 1, 0}), batch(1, plain()))
	if r.Sim.TTFT.Max != 1300 || r.Sim.Queue.Max != 0 || r.PredictedHitBlocks != 3 || r.HitBlocks != 3 {
		t.Errorf("arrival at a step's end: got TTFT %d, queue %d, %d hits (%d predicted), want 1300, 0, 3, 3",
			r.Sim.TTFT.Max, r.Sim.Queue.Max, r.HitBlocks, r.PredictedHitBlocks)
	}
	// One that ends just then is not active any more: the peak is that of one request.
	w := hand(handRequest{0, "abc", 1, 0}, handRequest{1500 + 10_000, "xyz", 1, 0})
	if r = mustRun(t, w, serial(1, 0, score.RoundRobin, 1)); r.Sim.PeakActiveBlocks != 3 {
		t.Errorf("end and arrival at once: peak of %d active blocks, want 3", r.Sim.PeakActiveBlocks)
	}
	// A worker that dies when its request ends has ended it.
	c := serial(2, 0, score.RoundRobin, 1)
	c.Kill = []sim.Kill{{Worker: 0, At: 11_500 * time.Microsecond}}
	if r = mustRun(t, w, c); r.Sim.E2E.Max != 11_500 || r.RequestsPerWorker[0] != 1 {
		t.Errorf("death and end at once: got %d µs and %v picks, want 11500 and one on worker 0", r.Sim.E2E.Max, r.RequestsPerWorker)
	}
}

func TestTooLargeIsRejected(t *testing.T) {
	w := hand(handRequest{0, "abcdef", 1, 0}, handRequest{10, "ab", 100, 0}, handRequest{20, "ab", 1, 0})
	c := batch(1, plain())
	c.Capacity = 5
	r := mustRun(t, w, c)
	if r.Sim.Rejected != 2 || r.Sim.Completed != 1 || r.CapacityBlocks != 5 {
		t.Errorf("got %d rejected, %d completed of %d blocks; want 2, 1, 5", r.Sim.Rejected, r.Sim.Completed, r.CapacityBlocks)
	}
}

func TestDisaggregatedByHand(t *testing.T) {
	w := hand(handRequest{0, "abc", 3, 0}, handRequest{5000, "abd", 1, 0})
	c := batch(0, plain())
	c.PrefillWorkers, c.DecodeWorkers = 1, 1
	r := mustRun(t, w, c)
	// First: prefill ends at 1,300; transfer 500 + 30 tokens x 100 = 3,500; first token at 4,800, two
	// more steps: 6,800. Second: hits two blocks, prefill 1,100 to 6,100, and one token is all.
	if got, want := r.Sim.TTFT.Sum, int64(4800+1100); got != want {
		t.Errorf("TTFT sum: got %d, want %d", got, want)
	}
	if got, want := r.Sim.MakespanUS, int64(6800); got != want {
		t.Errorf("makespan: got %d, want %d", got, want)
	}
	if diff := cmp.Diff([]int64{2, 2}, r.RequestsPerWorker); diff != "" {
		t.Errorf("requests per worker (-want +got):\n%s", diff)
	}
	if r.HitBlocks != 2 || r.PredictedHitBlocks != 2 || r.Workers != 2 {
		t.Errorf("got %d hits, %d predicted, %d workers; want 2, 2, 2", r.HitBlocks, r.PredictedHitBlocks, r.Workers)
	}
	c.Engine, c.Profile = sim.SerialEngine, nil
	r = mustRun(t, w, c)
	// Serial, free transfer: 30 x 50, then 10 x 50.
	if got, want := r.Sim.TTFT.Sum, int64(1500+500); got != want {
		t.Errorf("serial TTFT sum: got %d, want %d", got, want)
	}
	if got, want := r.Sim.MakespanUS, int64(1500+3*10000); got != want {
		t.Errorf("serial makespan: got %d, want %d", got, want)
	}
}

func TestSlowWorker(t *testing.T) {
	w := hand(handRequest{0, "abc", 3, 0}, handRequest{0, "abd", 1, 0})
	for _, model := range []string{sim.SerialEngine, sim.BatchEngine} {
		c := batch(2, plain())
		c.Engine = model
		want := mustRun(t, w, c)
		c.Slow = []sim.Slow{{Worker: 0, Speed: 0.5}, {Worker: 1, Speed: 0.5}}
		got := mustRun(t, w, c)
		if got.Sim.E2E.Sum != 2*want.Sim.E2E.Sum || got.Sim.TTFT.Max != 2*want.Sim.TTFT.Max {
			t.Errorf("%s at half speed: got E2E %d and TTFT %d, want twice %d and %d", model, got.Sim.E2E.Sum, got.Sim.TTFT.Max, want.Sim.E2E.Sum, want.Sim.TTFT.Max)
		}
	}
}

func TestEventDelay(t *testing.T) {
	// The second request comes after the first one's blocks are stored, and before or after the router knows.
	w := hand(handRequest{0, "abc", 1, 0}, handRequest{100_000, "abc", 1, 0})
	// An event that comes in at the instant of a pick is heard. Serial stores at once, batch after a step of 1,300 µs.
	exact := map[string]time.Duration{sim.SerialEngine: 100 * time.Millisecond, sim.BatchEngine: 98_700 * time.Microsecond}
	for _, model := range []string{sim.SerialEngine, sim.BatchEngine} {
		for _, tc := range []struct {
			delay     time.Duration
			predicted int64
		}{{0, 3}, {50 * time.Millisecond, 3}, {200 * time.Millisecond, 0}, {exact[model], 3}, {exact[model] + time.Microsecond, 0}} {
			c := batch(1, plain())
			c.Engine, c.EventDelay = model, tc.delay
			r := mustRun(t, w, c)
			if r.PredictedHitBlocks != tc.predicted || r.HitBlocks != 3 {
				t.Errorf("%s, delay %v: got %d predicted and %d true hits, want %d and 3", model, tc.delay, r.PredictedHitBlocks, r.HitBlocks, tc.predicted)
			}
		}
	}
}

func TestKillSerial(t *testing.T) {
	// Worker 0 has the first request (prefill to 1,500, 10 tokens) and dies at 36.5 ms with 3 tokens out. Worker 1
	// computes 30 + 3 tokens and the 7 that are left.
	w := hand(handRequest{0, "abc", 10, 0}, handRequest{10, "x", 1, 0})
	c := serial(2, 0, score.RoundRobin, 1)
	c.Kill = []sim.Kill{{Worker: 0, At: 36_500 * time.Microsecond}}
	r := mustRun(t, w, c)
	if got, want := r.Sim.MakespanUS, int64(36_500+33*50+7*10_000); got != want {
		t.Errorf("makespan: got %d, want %d", got, want)
	}
	if got, want := r.Sim.TTFT.Max, int64(1500); got != want {
		t.Errorf("TTFT: got %d, want %d: the client had its first token before", got, want)
	}
	if diff := cmp.Diff([]int64{1, 2}, r.RequestsPerWorker); diff != "" {
		t.Errorf("requests per worker (-want +got):\n%s", diff)
	}
	// A second death loses it.
	c = serial(3, 0, score.RoundRobin, 1)
	c.Kill = []sim.Kill{{Worker: 0, At: 36_500 * time.Microsecond}, {Worker: 1, At: 37 * time.Millisecond}, {Worker: 2, At: time.Hour}}
	if _, err := sim.Run(context.Background(), w, c); err == nil || !strings.Contains(err.Error(), "no worker would be left") {
		t.Errorf("killing everyone: got %v", err)
	}
	c.Kill = c.Kill[:2]
	if r = mustRun(t, w, c); r.Sim.Lost+r.Sim.Completed != 2 {
		t.Errorf("got %d lost and %d completed of 2", r.Sim.Lost, r.Sim.Completed)
	}
}

func TestKillBatch(t *testing.T) {
	w := hand(handRequest{0, "abc", 10, 0}, handRequest{10, "x", 1, 0})
	c := batch(2, plain())
	c.Kill = []sim.Kill{{Worker: 0, At: 4500 * time.Microsecond}}
	r := mustRun(t, w, c)
	// First token at 1,300, steps end at 2,300, 3,300, 4,300: four tokens out. 34 to compute, five steps.
	if got, want := r.Sim.MakespanUS, int64(4500+1340+5*1000); got != want {
		t.Errorf("makespan: got %d, want %d", got, want)
	}
	if got, want := r.Sim.TTFT.Max, int64(1300); got != want {
		t.Errorf("TTFT: got %d, want %d", got, want)
	}
}

// TestRouters: routers that do not talk know less of the load; one router is the plain case.
func TestRouters(t *testing.T) {
	w := quarter(t)
	w.Requests = w.Requests[:2000]
	base := serial(8, 2000, score.LeastWork, 1)
	one := mustRun(t, w, base)
	base.Routers = 1
	if diff := cmp.Diff(one, mustRun(t, w, base)); diff != "" {
		t.Errorf("1 router and 0 differ:\n%s", diff)
	}
	base.Routers = 3
	three := mustRun(t, w, base)
	if three.PicksDigest == one.PicksDigest || three.Sim.Completed != 2000 {
		t.Errorf("3 routers: same picks as one, or %d of 2000 completed", three.Sim.Completed)
	}
}

// TestSameBytes: two runs of every kind give the same report and the same decisions.
func TestSameBytes(t *testing.T) {
	w := quarter(t)
	w.Requests = w.Requests[:1500]
	for _, tc := range variants() {
		t.Run(tc.name, func(t *testing.T) {
			var reports, decisions [2][]byte
			for k := range 2 {
				var out bytes.Buffer
				c := tc.cfg
				c.Decisions = &out
				r := mustRun(t, w, c)
				data, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				reports[k], decisions[k] = data, out.Bytes()
				lines := bytes.Count(out.Bytes(), []byte("\n"))
				var picks int64
				for _, n := range r.RequestsPerWorker {
					picks += n
				}
				if int64(lines) != picks {
					t.Errorf("%d decisions written, %d picks made", lines, picks)
				}
				if r.Sim.Completed+r.Sim.Lost+r.Sim.Rejected != int64(len(w.Requests)) {
					t.Errorf("%d completed, %d lost, %d rejected of %d", r.Sim.Completed, r.Sim.Lost, r.Sim.Rejected, len(w.Requests))
				}
				if line, _, _ := bytes.Cut(out.Bytes(), []byte("\n")); len(line) > 0 {
					if _, err := score.ParseDecision(line); err != nil {
						t.Errorf("decision does not read back: %v", err)
					}
				}
			}
			if !bytes.Equal(reports[0], reports[1]) || !bytes.Equal(decisions[0], decisions[1]) {
				t.Error("two runs differ")
			}
		})
	}
}

type variant struct {
	name string
	cfg  sim.Config
}

// variants are runs in which everything a simulation can do happens.
func variants() []variant {
	var out []variant
	for _, model := range []string{sim.SerialEngine, sim.BatchEngine} {
		for _, policy := range []string{score.LeastWork, score.KVAware, score.Random, score.PowerOfTwo} {
			c := serial(6, 1500, policy, 1)
			c.Engine = model
			c.Seed = 42
			out = append(out, variant{model + "/" + policy, c})
			c.Routers = 3
			c.EventDelay = 250 * time.Millisecond
			c.Slow = []sim.Slow{{Worker: 3, Speed: 0.5}}
			c.Kill = []sim.Kill{{Worker: 1, At: 100 * time.Second}, {Worker: 2, At: 200 * time.Second}}
			out = append(out, variant{model + "/" + policy + "/adverse", c})
			c.Workers, c.PrefillWorkers, c.DecodeWorkers = 0, 4, 3
			c.Kill = []sim.Kill{{Worker: 1, At: 100 * time.Second}, {Worker: 5, At: 200 * time.Second}}
			out = append(out, variant{model + "/" + policy + "/disaggregated", c})
		}
	}
	return out
}

func TestValidate(t *testing.T) {
	good := serial(4, 0, score.LeastWork, 1)
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		change func(*sim.Config)
		want   string
	}{
		{"no workers", func(c *sim.Config) { c.Workers = 0 }, "--workers 0: a fleet needs at least one worker"},
		{"negative workers", func(c *sim.Config) { c.Workers = -1 }, "--workers -1: must be 0 to"},
		{"too many", func(c *sim.Config) { c.Workers = 1 << 20 }, "--workers 1048576: must be 0 to 16384"},
		{"both kinds", func(c *sim.Config) { c.PrefillWorkers, c.DecodeWorkers = 1, 1 }, "cannot be combined"},
		{"prefill only", func(c *sim.Config) { c.Workers, c.PrefillWorkers = 0, 1 }, "--decode-workers 0: --prefill-workers needs decode workers"},
		{"decode only", func(c *sim.Config) { c.Workers, c.DecodeWorkers = 0, 1 }, "--prefill-workers 0: --decode-workers needs prefill workers"},
		{"engine", func(c *sim.Config) { c.Engine = "vllm" }, `--engine "vllm": no such engine model`},
		{"capacity", func(c *sim.Config) { c.Capacity = -1 }, "--capacity -1"},
		{"prefill time", func(c *sim.Config) { c.Serial.PrefillUSPerToken = -1 }, "--prefill-us-per-token -1"},
		{"decode time", func(c *sim.Config) { c.Serial.DecodeUSPerToken = math.MaxInt64 }, "--decode-us-per-token 9223372036854775807"},
		{"routers", func(c *sim.Config) { c.Routers = -1 }, "--routers -1"},
		{"delay", func(c *sim.Config) { c.EventDelay = -time.Second }, "--event-delay -1s"},
		{"slow index", func(c *sim.Config) { c.Slow = []sim.Slow{{4, 0.5}} }, "--slow-worker 4:0.5: there is no worker 4: they are numbered 0 to 3"},
		{"slow zero", func(c *sim.Config) { c.Slow = []sim.Slow{{1, 0}} }, "--slow-worker 1:0: speed must be"},
		{"slow NaN", func(c *sim.Config) { c.Slow = []sim.Slow{{1, math.NaN()}} }, "--slow-worker 1:NaN: speed must be"},
		{"slow twice", func(c *sim.Config) { c.Slow = []sim.Slow{{1, 1}, {1, 2}} }, "has a speed already"},
		{"kill index", func(c *sim.Config) { c.Kill = []sim.Kill{{-1, 0}} }, "--kill-worker -1@0s: there is no worker -1"},
		{"kill twice", func(c *sim.Config) { c.Kill = []sim.Kill{{1, 0}, {1, 0}} }, "killed already"},
		{"kill before", func(c *sim.Config) { c.Kill = []sim.Kill{{1, -1}} }, "must not be negative"},
		{"kill all", func(c *sim.Config) { c.Kill = []sim.Kill{{0, 0}, {1, 0}, {2, 0}, {3, 0}} }, "no worker would be left"},
		{"kill the prefill role", func(c *sim.Config) {
			c.Workers, c.PrefillWorkers, c.DecodeWorkers = 0, 1, 2
			c.Kill = []sim.Kill{{0, time.Second}, {2, 0}}
		}, "--kill-worker 0@1s: no prefill worker would be left"},
		{"kill a role", func(c *sim.Config) {
			c.Workers, c.PrefillWorkers, c.DecodeWorkers = 0, 2, 1
			c.Kill = []sim.Kill{{2, 0}}
		}, "no decode worker would be left"},
		{"profile", func(c *sim.Config) { c.Profile = &engine.Profile{Name: "x"} }, "--profile x: origin: is missing"},
		{"weight", func(c *sim.Config) { c.Score.OverlapWeight = math.NaN() }, "--kv-overlap-weight NaN"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := good
			tc.change(&c)
			_, err := sim.Run(context.Background(), hand(handRequest{0, "a", 1, 0}), c)
			var fields score.FieldErrors
			if err == nil || !errors.As(err, &fields) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want field errors with %q", err, tc.want)
			}
		})
	}
}

func TestBadWorkloads(t *testing.T) {
	if _, err := sim.Run(context.Background(), hand(), serial(1, 0, score.LeastWork, 1)); err == nil || !strings.Contains(err.Error(), "no requests") {
		t.Errorf("empty trace: got %v", err)
	}
	c := batch(1, plain())
	if _, err := sim.Run(context.Background(), hand(handRequest{1 << 60, "a", 1, 0}), c); err == nil || !strings.Contains(err.Error(), "longer than 80 days") {
		t.Errorf("long trace: got %v", err)
	}
	if _, err := sim.Run(context.Background(), hand(handRequest{0, "a", 1 << 50, 0}), batch(1, plain())); err != nil {
		t.Errorf("an answer that can never fit is no error: %v", err)
	}
	c.Capacity = 1 << 31
	if _, err := sim.Run(context.Background(), hand(handRequest{0, "a", 1 << 34, 0}), c); err == nil || !strings.Contains(err.Error(), "virtual clock ran out") {
		t.Errorf("endless answer: got %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := sim.Run(ctx, hand(handRequest{0, "a", 1, 0}), c); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}

// failWriter fails after some bytes.
type failWriter struct{ left int }

func (f *failWriter) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, errors.New("disk full")
	}
	return len(p), nil
}

func TestDecisionsDiskFull(t *testing.T) {
	c := serial(1, 0, score.LeastWork, 1)
	c.Decisions = &failWriter{}
	if _, err := sim.Run(context.Background(), hand(handRequest{0, "a", 1, 0}), c); err == nil || !strings.Contains(err.Error(), "writing decisions: disk full") {
		t.Errorf("got %v", err)
	}
}
