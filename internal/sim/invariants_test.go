package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/testtraces"
	"github.com/kvroute/kvroute/internal/trace"
)

// randomWorkload has requests over a random forest, bunched in time.
func randomWorkload(r *rand.Rand) *trace.Workload {
	w := &trace.Workload{Name: "random", BlockSize: 8, Forest: &trace.Forest{}}
	f := w.Forest
	for i := range 1 + r.IntN(60) {
		parent, depth := trace.NoNode, uint32(1)
		if i > 0 && r.IntN(6) > 0 {
			parent = trace.NodeID(max(0, i-1-r.IntN(min(i, 3))))
			depth = f.Depth[parent] + 1
		}
		f.Hash = append(f.Hash, block.Hash(r.Uint64()|1))
		f.Parent = append(f.Parent, parent)
		f.Depth = append(f.Depth, depth)
	}
	f.Index()
	for s := range 5 {
		w.Sessions = append(w.Sessions, fmt.Sprint("s", s))
	}
	var at int64
	for range 1 + r.IntN(80) {
		if r.IntN(3) > 0 {
			at += r.Int64N(60_000)
		}
		q := trace.Request{Arrival: at, Leaf: trace.NoNode, Output: r.Int64N(30), Session: int32(r.IntN(6)) - 1}
		if r.IntN(12) > 0 {
			q.Leaf = trace.NodeID(r.IntN(f.Len()))
			q.Input = int64(f.Depth[q.Leaf])*8 - r.Int64N(8) + r.Int64N(2)*r.Int64N(20)
			if r.IntN(5) == 0 {
				q.Even = 1 + uint32(q.Input)/f.Depth[q.Leaf]
			}
		} else {
			q.Input = r.Int64N(20)
		}
		w.Requests = append(w.Requests, q)
	}
	return w
}

// randomConfig is a small fleet with random troubles.
func randomConfig(r *rand.Rand) Config {
	c := Config{
		Engine: []string{SerialEngine, BatchEngine}[r.IntN(2)], Serial: DefaultSerial(), Score: score.Defaults(),
		Routers: r.IntN(4), Capacity: []int{0, 12, 20, 40}[r.IntN(4)], Seed: r.Uint64(),
	}
	c.Score.Policy = score.Policies()[r.IntN(len(score.Policies()))]
	c.Profile = &engine.Profile{
		Name: "random", Origin: "test", StepMS: 2, RequestMS: 1, ContextMS: 5000, PrefillUS: 50,
		PrefillSquareUS: 100, ChunkTokens: 24, MaxRunning: 1 + r.IntN(8), BlockSize: 8, KVTokens: 8 * 40, TransferUS: 700, TransferUSPerKTok: 9000,
	}
	if r.IntN(2) == 0 {
		c.Workers = 1 + r.IntN(4)
	} else {
		c.PrefillWorkers, c.DecodeWorkers = 1+r.IntN(3), 1+r.IntN(3)
		if p := c.Score.Policy; p == score.KVAware || p == score.LeastWork {
			c.Score.DecodeInputDemand = score.DemandMode(r.IntN(3))
		}
	}
	if r.IntN(2) == 0 {
		c.EventDelay = time.Duration(r.IntN(100)) * time.Millisecond
	}
	if r.IntN(2) == 0 {
		c.Slow = []Slow{{r.IntN(c.fleetSize()), 0.25 + r.Float64()}}
	}
	for w := range c.fleetSize() {
		k := append(c.Kill, Kill{w, time.Duration(r.IntN(1_000_000)) * time.Microsecond})
		if try := c; r.IntN(3) == 0 {
			try.Kill = k
			if try.Validate() == nil {
				c.Kill = k
			}
		}
	}
	return c
}

// checker verifies, after every event, what must always hold in a run.
type checker struct {
	s    *run
	last int64
}

func (c *checker) check() error {
	s := c.s
	if s.now < c.last {
		return fmt.Errorf("clock went back from %d to %d", c.last, s.now)
	}
	c.last = s.now
	if got := s.fleet.next(); got < s.now {
		return fmt.Errorf("at %d an effect of %d is still to come", s.now, got)
	}
	inFlight, held := 0, int64(0)
	for i := range s.reqs {
		st := &s.reqs[i]
		arrival := s.w.Requests[i].Arrival * s.tick
		if i >= s.routed {
			if st.phase != phaseAway || st.first >= 0 {
				return fmt.Errorf("request %d has effects before it arrived", i)
			}
			continue
		}
		if st.phase != phaseAway {
			inFlight++
			held++
			if s.cfg.disaggregated() && st.phase == phasePrefill {
				held++ // it holds both legs
			}
		}
		if (st.start >= 0 && st.start < arrival) || (st.first >= 0 && (st.first < st.start || st.first > s.now)) {
			return fmt.Errorf("request %d arrived at %d, started at %d, has its first token at %d; now is %d", i, arrival, st.start, st.first, s.now)
		}
	}
	if inFlight+s.over() != s.routed {
		return fmt.Errorf("%d requests arrived, %d are in flight and %d over", s.routed, inFlight, s.over())
	}
	var booked int64
	for _, r := range s.routers {
		if err := r.led.Check(); err != nil {
			return err
		}
		for w := range s.cfg.fleetSize() {
			booked += r.led.Load(target.ID(w)).HeldRequests
		}
	}
	if booked != held {
		return fmt.Errorf("ledgers hold %d requests, %d are in flight", booked, held)
	}
	return c.caches()
}

// caches compares the mirror with the workers' caches.
func (c *checker) caches() error {
	s := c.s
	if v, ok := s.mirror.view.(*indexView); ok {
		if err := v.Check(); err != nil {
			return err
		}
	}
	for w := range s.cfg.fleetSize() {
		if s.mirror.dead[w] {
			continue
		}
		var cached int64
		switch f := s.fleet.(type) {
		case *serialFleet:
			cached = f.workers[w].Cached()
			if err := f.workers[w].Check(); err != nil {
				return err
			}
		case *batchFleet:
			cached = f.workers[w].Cached()
			if !f.marked[w] { // between events of an instant a worker may wait for start
				if err := f.workers[w].Check(); err != nil {
					return err
				}
			}
		}
		if got := s.mirror.view.blocks(w); s.mirror.delay == 0 && got != cached {
			return fmt.Errorf("the mirror has %d blocks of worker %d, which has %d", got, w, cached)
		}
	}
	return nil
}

// TestInvariants runs random fleets, with every invariant checked after every event and every batch run
// repeated step by step.
func TestInvariants(t *testing.T) {
	rounds := uint64(400)
	if testing.Short() {
		rounds = 160
	}
	var lost, rejected, preempted, resent int64
	for seed := range rounds {
		r, again := runTwice(t, seed)
		lost += r.Lost
		rejected += r.Rejected
		preempted += r.Preemptions
		resent += again
	}
	if testing.Short() {
		return // too few runs to have seen everything
	}
	if lost == 0 || rejected == 0 || preempted == 0 || resent == 0 {
		t.Errorf("runs too tame: %d lost, %d rejected, %d preempted, %d sent again", lost, rejected, preempted, resent)
	}
}

// FuzzInvariants is TestInvariants with the fuzzer's choice of runs.
func FuzzInvariants(f *testing.F) {
	f.Add(uint64(3))
	f.Fuzz(func(t *testing.T, seed uint64) { runTwice(t, seed) })
}

// runTwice makes a random run as it is, and step by step with the live index, and compares the reports.
func runTwice(t *testing.T, seed uint64) (result *report.Sim, resent int64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 11))
	w, c := randomWorkload(r), randomConfig(r)
	var reports [2]*report.Run
	for k, h := range []hooks{{}, {stepwise: true, view: newIndexView}} {
		s, err := newRun(w, c, h)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		ch := checker{s: s}
		s.after = ch.check
		if reports[k], err = s.run(context.Background()); err != nil {
			t.Fatalf("seed %d, %+v: %v", seed, c, err)
		}
		for i := range s.reqs {
			resent += int64(s.reqs[i].attempt)
		}
	}
	if diff := cmp.Diff(reports[1], reports[0]); diff != "" {
		t.Fatalf("seed %d, %+v: step by step (-) and skipping (+) differ:\n%s", seed, c, diff)
	}
	return reports[0].Sim, resent
}

// loadPiece reads the first n requests of Mooncake's conversations.
func loadPiece(t *testing.T, n int) *trace.Workload {
	t.Helper()
	const rel = "traces/mooncake/conversation_15min.jsonl.gz"
	f, err := os.Open(testtraces.Bundled(rel))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := trace.Load([]trace.Source{{Name: rel, R: f}}, trace.Options{Limit: n})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestStepwiseOnRealTraffic: skipping changes nothing on a piece of Mooncake's hour either.
func TestStepwiseOnRealTraffic(t *testing.T) {
	w := loadPiece(t, 1500)
	c := Config{Workers: 4, Engine: BatchEngine, Capacity: 600, Score: score.Defaults(), Routers: 2, EventDelay: 250 * time.Millisecond, Slow: []Slow{{1, 0.5}}}
	var reports [2]*report.Run
	for k := range 2 {
		s, err := newRun(w, c, hooks{stepwise: k == 1})
		if err != nil {
			t.Fatal(err)
		}
		if reports[k], err = s.run(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(reports[1], reports[0]); diff != "" {
		t.Errorf("step by step (-) and skipping (+) differ:\n%s", diff)
	}
	if reports[0].Sim.Preemptions == 0 {
		t.Error("no preemption: the pool is too large to test anything")
	}
}

// TestRouterDoesNotSeeOutputs: requests that all arrive before anything ends are placed alike, whatever
// their answers' lengths.
func TestRouterDoesNotSeeOutputs(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 5))
		w, c := randomWorkload(r), randomConfig(r)
		c.Kill = nil
		c.Capacity = 1000 // nothing is too large for it: a rejection may depend on the answer's length
		var digests [2]string
		for k := range 2 {
			for i := range w.Requests {
				w.Requests[i].Arrival = 0
				w.Requests[i].Output = 1 + int64(k)*r.Int64N(20)
				w.Requests[i].Input = max(w.Requests[i].Input, 1)
			}
			s, err := newRun(w, c, hooks{})
			if err != nil {
				t.Fatal(err)
			}
			rep, err := s.run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			digests[k] = rep.PicksDigest
		}
		if digests[0] != digests[1] {
			t.Fatalf("seed %d, %+v: picks depend on the outputs: %v", seed, c, digests)
		}
	}
}
