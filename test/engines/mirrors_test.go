//go:build engines

package engines

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/feed/zmq"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/kvevent"
)

// content folds all that an engine's replay socket still has into an empty index, and returns the hash of what is
// in it then, and the number of the last batch.
func content(t *testing.T, e *engine, rank int) (hash string, seq uint64) {
	t.Helper()
	tr, err := zmq.New(zmq.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}()
	x := index.New(e.block, index.Options{})
	x.Join(0)
	var d kvevent.Decoder
	var b kvevent.Batch
	m := kvevent.NewMapper(0, kvevent.Dialect(e.engine), kvevent.CopiesByDialect)
	first := true
	err = tr.Replay(t.Context(), fmt.Sprintf("tcp://127.0.0.1:%d", e.replay+rank), 0, 10*time.Second, func(msg feed.Message) error {
		if first && msg.Seq > 1 {
			t.Fatalf("%s: the replay begins with number %d", e.id, msg.Seq)
		}
		first, seq = false, msg.Seq
		if err := d.Decode(msg.Payload, &b); err != nil {
			return err
		}
		for _, op := range m.Map(&b) {
			if _, err := x.Apply(op); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: replay: %v", e.id, err)
	}
	return fmt.Sprintf("%016x", x.ContentHash(0)), seq
}

// testMirrors compares the router's mirrors with what the engines' replay sockets say.
func testMirrors(t *testing.T, r *router, engines []*engine) {
	t.Helper()
	r.calm(t, 500*time.Millisecond)
	for i, e := range engines {
		want, seq := content(t, e, 0)
		w := r.workers(t)[i]
		if w.ContentHash != want || w.Trust != "trusted" || w.Stream.Sequence != nil && *w.Stream.Sequence != seq {
			t.Errorf("%s: content %s up to number %s, trust %s (%s); the engine's replay gives %s up to %d", e.id, w.ContentHash, show(w.Stream.Sequence), w.Trust, w.TrustReason, want, seq)
		}
		// What an engine that restarted published before it was found again counts as a gap that was filled.
		if w.Stream.Gaps > w.Stream.Restarts || w.Stream.Missing > 0 || w.Stream.Bad > 0 || len(w.Stream.Skipped) > 0 {
			t.Errorf("%s: %d gaps, %d batches missing, %d bad, skipped %v: nothing was to be lost", e.id, w.Stream.Gaps, w.Stream.Missing, w.Stream.Bad, w.Stream.Skipped)
		}
		t.Logf("%s: %d blocks, number %d, %d orphans, %d holes: equal to the replay: %v", e.id, w.BlockCount, seq, w.Orphans, w.Holes, w.ContentHash == want)
	}
}

// testDeaths kills an engine, and then the router, in the midst of traffic.
func testDeaths(t *testing.T, engines []*engine) {
	snapshot := filepath.Join(t.TempDir(), "mirrors")
	r := serve(t, engines, "--snapshot", snapshot, "--snapshot-interval", "1s", "--health-interval", "500ms")
	t.Run("engine", func(t *testing.T) {
		dead := engines[1]
		g := newTraffic(dead.kind, 3)
		var results []result
		var wg sync.WaitGroup
		wg.Go(func() { results = drive(t, r, g, 200, "die") })
		// Amid traffic: when the engine has taken some of it.
		before := r.workers(t)[1].Stream.Batches
		r.await(t, "traffic", time.Minute, func() bool {
			w := r.workers(t)[1]
			return w.Stream.Batches > before+20 && w.HeldRequests > 0
		})
		run(t, nil, "kill", dead.id)
		wg.Wait()
		failed, cut, moved := 0, 0, map[string]int{}
		for _, res := range results {
			moved[res.answer.worker]++
			switch {
			case res.leave > 0:
			case res.cut:
				cut++ // it had begun
			case res.status != 200 || res.err != nil:
				failed++
				t.Errorf("%s: status %d, error %v: %s", res.id, res.status, res.err, res.text)
			}
		}
		t.Logf("200 requests: %d were cut in the midst of their stream, %d failed before; by worker %v", cut, failed, moved)
		dead.start(t)
		r.await(t, "the engine's return", 2*time.Minute, func() bool {
			w := r.workers(t)[1]
			return w.Health == "healthy" && w.Trust == "trusted"
		})
		g = newTraffic(dead.kind, 4)
		c := newTally()
		for _, res := range drive(t, r, g, 60, "again") {
			c.add(t, &res)
		}
		t.Logf("afterwards: %v", c)
		note(dead.kind, "an engine killed amid 200 requests: failed before their first byte, cut after it", fmt.Sprintf("%d, %d", failed, cut))
		note(dead.kind, "after its restart: equal", fmt.Sprintf("%d of %d", c.equal, c.compared))
		if r.workers(t)[1].Stream.Restarts == 0 {
			t.Error("the restart was not noticed")
		}
		testMirrors(t, r, engines)
	})
	t.Run("router", func(t *testing.T) {
		drive(t, r, newTraffic(engines[0].kind, 7), 40, "before")
		r.calm(t, 300*time.Millisecond)
		time.Sleep(2500 * time.Millisecond) // two snapshots
		kept, err := os.ReadFile(snapshot)
		if err != nil {
			t.Fatal(err)
		}
		inSnapshot := r.workers(t)
		drive(t, r, newTraffic(engines[0].kind, 6), 40, "more") // which the snapshot does not know
		r.calm(t, 300*time.Millisecond)
		before := r.workers(t)
		r.kill(t)
		if err := os.WriteFile(snapshot, kept, 0o600); err != nil {
			t.Fatal(err)
		}
		r = serve(t, engines, "--snapshot", snapshot, "--snapshot-interval", "1s")
		compare := func(what string) {
			// SGLang is asked to generate a token where its /tokenize passes over tools: a router that starts
			// changes what is cached. So the engine's own word counts, and what was before only for the others.
			testMirrors(t, r, engines)
			after := r.workers(t)
			for i := range after {
				if engines[i].engine != "sglang" && after[i].ContentHash != before[i].ContentHash {
					t.Errorf("%s: %s has content %s; before it was %s", what, after[i].RouteKey, after[i].ContentHash, before[i].ContentHash)
				}
				note(engines[0].kind, "router killed and started "+what+": mirrors equal", fmt.Sprintf("%v", !t.Failed()))
				t.Logf("%s: %s: %d blocks, %d batches replayed", what, after[i].RouteKey, after[i].BlockCount, after[i].Stream.Replayed)
			}
		}
		compare("with a snapshot")
		for i, w := range r.workers(t) {
			from, to := inSnapshot[i].Stream.Sequence, before[i].Stream.Sequence
			if engines[i].engine == "sglang" {
				continue // with salts among the traffic its mirror is fetched anew
			}
			if from == nil || to == nil || w.Stream.Replayed == 0 || w.Stream.Replayed > *to-*from {
				t.Errorf("%s: %d batches replayed, want those after number %s up to %s", w.RouteKey, w.Stream.Replayed, show(from), show(to))
			}
		}
		r.kill(t)
		r = serve(t, engines)
		compare("without one")
	})
}

// testRoundRobin sends equal traffic to fresh caches under two policies.
func testRoundRobin(t *testing.T, engines []*engine) {
	type row struct {
		share    float64
		p50, p90 time.Duration
	}
	measure := func(policy string) row {
		for _, e := range engines {
			e.forget(t)
		}
		r := serve(t, engines, "--router-policy", policy)
		defer r.stop(t)
		g := newTraffic(engines[0].kind, 5)
		results := drive(t, r, g, 300, policy)
		var cached, prompt int64
		var first []time.Duration
		for _, res := range results {
			if res.leave > 0 || res.status != 200 || res.err != nil {
				continue
			}
			cached += res.answer.cached
			prompt += res.answer.prompt
			if res.body["stream"] == true {
				first = append(first, res.ttft)
			}
		}
		slices.Sort(first)
		return row{100 * float64(cached) / float64(prompt), first[len(first)/2], first[len(first)*9/10]}
	}
	other, ours := measure("round-robin"), measure("least-work")
	for i, w := range []row{other, ours} {
		name := []string{"round-robin", "least-work"}[i]
		note(engines[0].kind, name+": cached share of prompt tokens; TTFT p50, p90", fmt.Sprintf("%.1f %%; %d ms, %d ms", w.share, w.p50.Milliseconds(), w.p90.Milliseconds()))
		t.Logf("%-12s cached %5.1f %% of prompt tokens, TTFT p50 %4d ms, p90 %4d ms", name, w.share, w.p50.Milliseconds(), w.p90.Milliseconds())
	}
	if ours.share <= other.share {
		t.Errorf("least-work finds %.1f %% cached, round robin %.1f %%", ours.share, other.share)
	}
}
