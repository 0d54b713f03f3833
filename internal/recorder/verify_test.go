package recorder_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvroute/kvroute/internal/recorder"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// configs is every policy, and what changes them.
func configs() []score.Config {
	var out []score.Config
	for i, name := range score.Policies() {
		c := score.Defaults()
		c.Policy, c.Seed = name, uint64(7+i)
		out = append(out, c)
	}
	half := 0.5
	c := score.Defaults()
	c.Policy, c.RecentWeight, c.PrefillOverlapWeight, c.SessionAffinity = score.KVAware, 1, &half, score.AffinityBoth
	c.DecodeInputDemand, c.DecodeRequestWeight = score.DemandShadow, 300
	out = append(out, c)
	c = score.Defaults()
	c.SessionAffinity, c.DecodeInputDemand = score.AffinityPrefill, score.DemandOn
	return append(out, c)
}

// TestVerifyRandomRuns is the claim of recordings: whatever happens to a pool, in whatever order its locks
// let it happen, the scorer decides the same again from what was recorded. One goroutine, or several.
func TestVerifyRandomRuns(t *testing.T) {
	t.Parallel()
	for i, cfg := range configs() {
		for _, clients := range []int{1, 6} {
			t.Run(fmt.Sprintf("%s-%d/clients=%d", cfg.Policy, i, clients), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(uint64(i), uint64(clients)))
				d := &disk{}
				rec, err := recorder.Start(recorder.Options{Header: header(cfg), Create: d.create, MaxSize: 100 << 10, Blocks: 500})
				if err != nil {
					t.Fatal(err)
				}
				w := newWorld(t, cfg, rec, 8, rng)
				run(w, clients, 600, uint64(i))
				if err := rec.Close(); err != nil {
					t.Fatal(err)
				}
				v := verified(t, d.contents())
				if int64(v.Decisions) != w.picks || v.Decisions < 300 || v.Parts < 2 || v.Changes < 500 || !v.Ended || v.Cut || v.Incomplete != "" || v.Foreign != 0 {
					t.Errorf("verified %+v, want %d decisions, several parts, ended and whole", v, w.picks)
				}
				checkTrace(t, w, d.contents())
			})
		}
	}
}

// run lets clients loose on a world.
func run(w *world, clients, requests int, seed uint64) {
	var wg sync.WaitGroup
	for c := range clients {
		rng := rand.New(rand.NewPCG(seed, uint64(100+c)))
		wg.Go(func() {
			var jobs []func() // what happens to requests in flight, in any order
			later := func(f func()) { jobs = append(jobs, f) }
			for range requests / clients {
				w.client(rng, later)
				if rng.IntN(6) == 0 {
					w.churn(rng)
				}
				for len(jobs) > 0 && rng.IntN(5) > 0 {
					k := rng.IntN(len(jobs))
					job := jobs[k]
					jobs[k] = jobs[len(jobs)-1]
					jobs = jobs[:len(jobs)-1]
					job()
				}
			}
			for len(jobs) > 0 {
				job := jobs[0]
				jobs = jobs[1:]
				job()
			}
		})
	}
	wg.Wait()
}

// checkTrace reads the recording as a trace: every request with a known answer is there, batches as one
// request for each prompt.
func checkTrace(t *testing.T, w *world, files [][]byte) {
	t.Helper()
	var sources []trace.Source
	for i, b := range files {
		sources = append(sources, trace.Source{Name: fmt.Sprint(i), R: bytes.NewReader(b)})
	}
	load, err := trace.Load(sources, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	whole := bytes.Count(bytes.Join(files, nil), []byte(`{"type":"request"`))
	if len(load.Requests) != whole || int64(whole) < w.known || int64(whole) > 3*w.known || w.known == 0 {
		t.Errorf("%d requests in the trace, %d in the file, %d had a known answer", len(load.Requests), whole, w.known)
	}
	if cut := bytes.Count(bytes.Join(files, nil), []byte(`{"type":"unfinished"`)); int64(cut) < w.unknown {
		t.Errorf("%d unfinished requests, want at least %d", cut, w.unknown)
	}
	if load.BlockSize != blockSize || load.Forest.Len() == 0 {
		t.Errorf("a trace of %d blocks of %d tokens, want some of %d", load.Forest.Len(), load.BlockSize, blockSize)
	}
	if err := load.Forest.Check(); err != nil {
		t.Error(err)
	}
	for _, s := range load.Sessions {
		if len(s) != 16 || bytes.Contains(files[0], []byte("user ")) {
			t.Fatalf("session %q: users' words must not be recorded", s)
		}
	}
}

// One goroutine, one seed: the same bytes.
func TestSameBytes(t *testing.T) {
	var first [][]byte
	for range 2 {
		d := &disk{}
		cfg := score.Defaults()
		rec, err := recorder.Start(recorder.Options{Header: header(cfg), Create: d.create, MaxSize: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, cfg, rec, 6, rand.New(rand.NewPCG(1, 2)))
		run(w, 1, 200, 3)
		if err := rec.Close(); err != nil {
			t.Fatal(err)
		}
		got := d.contents()
		if first == nil {
			first = got
			continue
		}
		if !bytes.Equal(bytes.Join(got, nil), bytes.Join(first, nil)) {
			t.Error("two runs of one seed differ")
		}
	}
}
