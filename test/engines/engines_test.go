//go:build engines

// Package engines holds kvroute to real engines: vLLM and SGLang servers on the CPU, with a tiny model of random
// weights, that make engines (scripts/engines.sh) installs.
package engines

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/snapshot"
)

const (
	sequential = 120 // requests one after the other
	concurrent = 500
	clients    = 8
)

// TestEngines runs the whole suite for each kind that is installed.
func TestEngines(t *testing.T) {
	t.Cleanup(func() { printReport(t) })
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			need(t, k)
			engines := pair(t, k, 2)
			t.Run("tokens", func(t *testing.T) { testTokens(t, engines[0]) })
			t.Run("cached", func(t *testing.T) { testCached(t, engines) })
			t.Run("deaths", func(t *testing.T) { testDeaths(t, engines) })
			t.Run("round robin", func(t *testing.T) { testRoundRobin(t, engines) })
		})
	}
}

// need skips where a kind is not installed, unless ENGINES_REQUIRE=1.
func need(t *testing.T, k kind) {
	t.Helper()
	switch {
	case installed(k):
	case os.Getenv("ENGINES_REQUIRE") == "1":
		t.Fatalf("%s is not installed: make engines", k.name)
	default:
		t.Skipf("%s is not installed: make engines", k.name)
	}
}

// testCached holds predictions to the engine's cached_tokens, one by one and under concurrency, with one recording.
func testCached(t *testing.T, engines []*engine) {
	record := filepath.Join(t.TempDir(), "run.jsonl")
	r := serve(t, engines, "--record", record)
	t.Run("ready", func(t *testing.T) { testReady(t, r, engines) })
	t.Run("sequential", func(t *testing.T) { testSequential(t, r, engines) })
	t.Run("concurrent", func(t *testing.T) { testConcurrent(t, r, engines) })
	t.Run("mirrors", func(t *testing.T) { testMirrors(t, r, engines) })
	r.stop(t)
	t.Run("recording", func(t *testing.T) {
		out, err := exec.Command(binary(t), "replay", record, "--verify").CombinedOutput()
		if err != nil {
			t.Fatalf("replay --verify: %v\n%s", err, out)
		}
		t.Logf("replay --verify: %s", bytes.TrimSpace(out))
		note(engines[0].kind, "`replay --verify`", strings.TrimSpace(string(out)))
	})
}

// testReady looks at what the router believes of each worker at the start.
func testReady(t *testing.T, r *router, engines []*engine) {
	r.await(t, "comparison of tokens", time.Minute, func() bool {
		return !slices.ContainsFunc(r.workers(t), func(w snapshot.Worker) bool { return len(w.Parity) == 0 })
	})
	ws := r.workers(t)
	if len(ws) != len(engines) {
		t.Fatalf("%d workers, want %d", len(ws), len(engines))
	}
	for i, w := range ws {
		e := engines[i]
		if w.Trust != "trusted" || w.Health != "healthy" || w.Approximate {
			t.Errorf("%s: trust %s (%s), health %s, approximate %v", w.RouteKey, w.Trust, w.TrustReason, w.Health, w.Approximate)
		}
		if w.Engine != e.engine || w.PageSize == nil || *w.PageSize != e.block || w.PoolBlocks == nil || *w.PoolBlocks < int64(e.blocks)-1 {
			t.Errorf("%s: engine %s, block size %v, blocks %v; want %s, %d, %d", w.RouteKey, w.Engine, show(w.PageSize), show(w.PoolBlocks), e.engine, e.block, e.blocks)
		}
		for _, p := range w.Parity {
			if p.Verdict != "confirmed" {
				t.Errorf("%s: tokens of %s: %s, %s", w.RouteKey, p.Case, p.Verdict, p.Detail)
			}
		}
	}
}

func show[T any](p *T) string {
	if p == nil {
		return "unknown"
	}
	return fmt.Sprint(*p)
}

// result is one request, what the client saw of it and what had been predicted.
type result struct {
	request
	answer
	guess
}

// tally counts comparisons.
type tally struct {
	compared, equal, overtaken, incomparable, uncompared, unreported int
	byWhy                                                            map[string]int
	differences                                                      map[int64]int // reported - predicted, in tokens, of those not overtaken
	overtakenDiff                                                    map[int64]int // of those overtaken
	predicted, reported, prompt                                      int64
	worst                                                            []string
}

func newTally() *tally {
	return &tally{byWhy: map[string]int{}, differences: map[int64]int{}, overtakenDiff: map[int64]int{}}
}

func (c *tally) add(t *testing.T, r *result) {
	t.Helper()
	if r.status != 200 || r.err != nil && r.leave == 0 || r.cut {
		t.Errorf("%s (%s): status %d, error %v, cut %v: %s", r.id, r.what, r.status, r.err, r.cut, r.text)
		return
	}
	if r.leave > 0 {
		c.uncompared++ // it left before usage came
		return
	}
	if !r.guess.known && !r.said && r.answer.cached == 0 {
		c.unreported++ // vLLM 0.23 says null for nothing: only after it has reported once do we know that it does
		return
	}
	if r.answer.cached < 0 || !r.guess.known {
		t.Errorf("%s (%s): no comparison: cached %d, router's line %v", r.id, r.what, r.answer.cached, r.guess.known)
		return
	}
	if r.Reported != r.answer.cached {
		t.Errorf("%s (%s): the router read %d cached tokens, the client %d", r.id, r.what, r.Reported, r.answer.cached)
	}
	d := r.answer.cached - r.Predicted
	switch {
	case r.Outcome == "incomparable":
		c.incomparable++
		c.byWhy[r.Why]++
	case r.Outcome == "overtaken":
		c.overtaken++
		c.byWhy[r.Why]++
		c.overtakenDiff[d]++
	default:
		c.compared++
		c.differences[d]++
		if d == 0 {
			c.equal++
		} else if len(c.worst) < 12 {
			c.worst = append(c.worst, fmt.Sprintf("%s %s on %s: %d predicted, %d reported of %d", r.id, r.what, r.worker, r.Predicted, r.answer.cached, r.prompt))
		}
	}
	c.predicted += r.Predicted
	c.reported += r.answer.cached
	c.prompt += r.answer.prompt
}

func (c *tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d compared, %d equal (%s), %d overtaken, %d reported otherwise", c.compared, c.equal, percent(c.equal, c.compared), c.overtaken, c.incomparable)
	for _, why := range slices.Sorted(maps.Keys(c.byWhy)) {
		fmt.Fprintf(&b, ", %s %d", why, c.byWhy[why])
	}
	fmt.Fprintf(&b, "; %d left early, %d not reported; reported - predicted: %s, of overtaken: %s; cached %s of prompts", c.uncompared, c.unreported, counts(c.differences), counts(c.overtakenDiff), percent(int(c.reported), int(c.prompt)))
	for _, w := range c.worst {
		b.WriteString("\n  " + w)
	}
	return b.String()
}

// note puts the tally into the report.
func (c *tally) note(k kind, how string) {
	note(k, how+": equal", fmt.Sprintf("%d of %d (%s)", c.equal, c.compared, percent(c.equal, c.compared)))
	note(k, how+": overtaken", fmt.Sprint(c.overtaken))
	note(k, how+": reported otherwise", fmt.Sprint(c.incomparable))
	note(k, how+": left early, not reported", fmt.Sprintf("%d, %d", c.uncompared, c.unreported))
	note(k, how+": differences in tokens", counts(c.differences))
	note(k, how+": differences where overtaken", counts(c.overtakenDiff))
}

func percent(n, of int) string {
	if of == 0 {
		return "none"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(n)/float64(of))
}

func counts(m map[int64]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%+d: %d", k, m[k]))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// testSequential sends requests one after the other, each after the events of the one before have been read. Nothing
// can come between prediction and prefill, so that every prediction has to be true.
func testSequential(t *testing.T, r *router, engines []*engine) {
	g := newTraffic(engines[0].kind, 1)
	c := newTally()
	sorts := map[string]int{}
	for i := range sequential {
		if i == sequential/2 {
			for _, e := range engines {
				e.forget(t)
			}
			r.calm(t, 300*time.Millisecond)
		}
		q := g.next()
		sorts[q.what]++
		res := one(t, r, q, fmt.Sprintf("seq-%d", i))
		c.add(t, &res)
		r.calm(t, 100*time.Millisecond)
	}
	t.Logf("requests: %v", sorts)
	t.Log(c)
	c.note(engines[0].kind, "one after the other")
	if c.equal != c.compared {
		t.Errorf("%d of %d predictions differ from what the engine reports", c.compared-c.equal, c.compared)
	}
}

func one(t *testing.T, r *router, q request, id string) result {
	t.Helper()
	a := send(t.Context(), r.url, id, q)
	res := result{request: q, answer: a}
	if q.leave == 0 && a.err == nil {
		res.guess = r.guess(id)
	}
	return res
}

// testConcurrent is the same with many clients at once, which push each other's blocks out.
func testConcurrent(t *testing.T, r *router, engines []*engine) {
	g := newTraffic(engines[0].kind, 2)
	c := newTally()
	results := drive(t, r, g, concurrent, "con")
	for i := range results {
		c.add(t, &results[i])
	}
	t.Log(c)
	c.note(engines[0].kind, fmt.Sprintf("%d clients", clients))
	if c.compared < concurrent/4 {
		t.Errorf("only %d of %d requests could be compared", c.compared, concurrent)
	}
	if c.equal*100 < c.compared*99 {
		t.Errorf("%d of %d predictions differ from what the engine reports", c.compared-c.equal, c.compared)
	}
}

// drive sends n requests with several clients.
func drive(t *testing.T, r *router, g *traffic, n int, prefix string) []result {
	t.Helper()
	requests := make([]request, n)
	for i := range requests {
		requests[i] = g.next()
	}
	results := make([]result, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				results[i] = one(t, r, requests[i], fmt.Sprintf("%s-%d", prefix, i))
			}
		})
	}
	wg.Wait()
	return results
}

// testTokens compares our tokens with the engine's for the requests of the other tests.
func testTokens(t *testing.T, e *engine) {
	var requests []request
	for seed := range uint64(2) {
		g := newTraffic(e.kind, seed+1)
		for range sequential {
			requests = append(requests, g.next())
		}
	}
	ours := tokenize(t, e, requests)
	compared := 0
	for i, q := range requests {
		theirs, ok := theirTokens(t, e, q)
		if !ok {
			continue
		}
		compared++
		if !slices.Equal(ours[i], theirs) {
			t.Errorf("%s: %d tokens here, %d there: %v", q.what, len(ours[i]), len(theirs), q.body)
		}
	}
	if !t.Failed() {
		note(e.kind, "requests with equal tokens", fmt.Sprintf("%d of %d", compared, compared))
	}
	e.forget(t) // SGLang had to generate for some
}

// tokenize has kvroute make the tokens of requests; those of a batch are joined.
func tokenize(t *testing.T, e *engine, requests []request) [][]int {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bodies.jsonl")
	var bodies bytes.Buffer
	for _, q := range requests {
		data, err := json.Marshal(q.body)
		if err != nil {
			t.Fatal(err)
		}
		bodies.Write(append(data, '\n'))
	}
	if err := os.WriteFile(file, bodies.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary(t), "tokenize", "--model-path", modelDir(t, e.kind), "--prepare", e.engine, "--request", file, "-o", "jsonl")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kvroute tokenize: %v\n%s", err, stderr.Bytes())
	}
	type part struct {
		Tokens []int `json:"token_ids"`
	}
	var all [][]int
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var doc struct {
			part
			Prompts []part
			Error   json.RawMessage
		}
		if err := d.Decode(&doc); err != nil {
			t.Fatal(err)
		}
		if doc.Error != nil {
			t.Fatalf("a request has no tokens: %s", doc.Error)
		}
		tokens := doc.Tokens
		for _, p := range doc.Prompts {
			tokens = append(tokens, p.Tokens...)
		}
		all = append(all, tokens)
	}
	if len(all) != len(requests) {
		t.Fatalf("%d answers to %d requests", len(all), len(requests))
	}
	return all
}

// theirTokens asks the engine; not ok: there is nothing to ask, as the request has ids.
func theirTokens(t *testing.T, e *engine, q request) (tokens []int, ok bool) {
	t.Helper()
	ask := func(path string, body map[string]any) {
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		var answer struct {
			Tokens  []int
			Choices []struct {
				Tokens []int `json:"prompt_token_ids"`
			}
		}
		if err := json.Unmarshal(e.post(t, path, string(data)), &answer); err != nil {
			t.Fatal(err)
		}
		if len(answer.Choices) > 0 {
			answer.Tokens = answer.Choices[0].Tokens
		}
		if len(answer.Tokens) == 0 {
			t.Fatalf("%s: %s gives no tokens", q.what, path)
		}
		tokens = append(tokens, answer.Tokens...)
	}
	body := map[string]any{"model": modelName}
	for _, f := range []string{"messages", "tools", "prompt"} {
		if v, given := q.body[f]; given {
			body[f] = v
		}
	}
	switch prompt := q.body["prompt"].(type) {
	case []int:
		return nil, false
	case []any:
		for _, p := range prompt {
			body["prompt"] = p
			ask("/tokenize", body)
		}
	default:
		if e.engine == "sglang" && body["messages"] != nil { // its /tokenize passes over tools
			body["max_tokens"], body["return_token_ids"] = 1, true
			ask(chatPath, body)
			break
		}
		ask("/tokenize", body)
	}
	return tokens, true
}
