//go:build engines

package engines

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestRanks serves one engine with two data-parallel ranks, each with a cache and an event stream of its own. Prompts
// that begin alike have to go to the rank that has the beginning, which only the engine's cached tokens can show.
func TestRanks(t *testing.T) {
	flags := map[string][]string{"vllm": {"--data-parallel-size", "2"}, "sglang": {"--dp-size", "2"}}
	t.Cleanup(func() { printReport(t) })
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			need(t, k)
			base := ports(t, 6)
			e := &engine{kind: k, id: fmt.Sprintf("test-ranks-%d-%s", base, k.name), http: base, pub: base + 1, replay: base + 3}
			e.env = []string{"SGLANG_CPU_OMP_THREADS_BIND=0|0"} // else it wants a NUMA node for each rank
			e.endWith(t)
			e.start(t, flags[k.engine]...)
			testRanks(t, e)
		})
	}
}

func testRanks(t *testing.T, e *engine) {
	const prefixes, blocks = 10, 6
	r := serve(t, []*engine{e})
	ws := r.workers(t)
	if len(ws) != 2 || ws[0].RouteKey == ws[1].RouteKey {
		t.Fatalf("%d targets, want one for each rank", len(ws))
	}
	for _, w := range ws {
		if w.Trust != "trusted" {
			t.Errorf("%s: trust %s (%s)", w.RouteKey, w.Trust, w.TrustReason)
		}
	}
	rng := rand.New(rand.NewPCG(7, 7))
	ids := make([][]int, prefixes)
	for i := range ids {
		for range (blocks + 1) * e.block {
			ids[i] = append(ids[i], 100+rng.IntN(100_000))
		}
	}
	ask := func(i, round int) answer {
		prompt := append(slices.Clone(ids[i]), 200+round, 300+i)
		a := send(t.Context(), r.url, fmt.Sprintf("rank-%d-%d", i, round), request{path: textPath, body: map[string]any{
			"model": modelName, "prompt": prompt, "max_tokens": 2, "temperature": 0,
		}})
		if a.status != 200 || a.err != nil {
			t.Fatalf("status %d, error %v: %s", a.status, a.err, a.text)
		}
		r.calm(t, 100*time.Millisecond)
		return a
	}
	homes := map[string]int{}
	at := make([]string, prefixes)
	for i := range prefixes {
		a := ask(i, 0)
		at[i] = a.worker
		homes[a.worker]++
	}
	if len(homes) != 2 {
		t.Errorf("prompts went to %v, want both ranks", homes)
	}
	// In another order, so that no turn-taking could find them.
	hits := map[string]int64{}
	for round := 1; round <= 2; round++ {
		for _, i := range rng.Perm(prefixes) {
			a := ask(i, round)
			if want := int64((blocks + 1) * e.block); a.worker != at[i] || a.cached != want {
				t.Errorf("prompt %d: %d of %d tokens cached on %s, where %s has them", i, a.cached, want, a.worker, at[i])
			}
			hits[a.worker] += a.cached
		}
	}
	if !t.Failed() {
		note(e.kind, "two data-parallel ranks: prompts on each; repeated ones on the rank that has them, all cached there", fmt.Sprintf("%d and %d; 20 of 20", homes[ws[0].RouteKey], homes[ws[1].RouteKey]))
	}
	t.Logf("prompts by rank: %v; cached tokens of repeated ones by rank: %v", homes, hits)
	for rank, w := range r.workers(t) {
		want, seq := content(t, e, rank)
		if w.ContentHash != want {
			t.Errorf("%s: content %s, the replay of rank %d up to %d gives %s", w.RouteKey, w.ContentHash, rank, seq, want)
		}
	}
}
