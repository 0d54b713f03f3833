//go:build cgo

package fleet_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/fakeengine"
	"github.com/kvroute/kvroute/internal/feed"
	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// ask sends n conversations, one after the other.
func (s *stand) ask(n int, seed uint64) {
	s.t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		if status, body, err := s.post(context.Background(), "/v1/chat/completions", conversation(rng)); err != nil || status != 200 {
			s.t.Fatalf("request %d: status %d, %v: %s", i, status, err, body)
		}
	}
}

// metric returns the lines of /metrics that begin with a name.
func (s *stand) metric(prefix string) (lines []string) {
	s.t.Helper()
	resp, err := http.Get(s.url + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(all)) {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// TestSilentPublisherIsNoticed: an engine that serves and publishes nothing is no longer believed.
func TestSilentPublisherIsNoticed(t *testing.T) {
	s := newStand(t, options{engines: []fakeengine.Config{vllm(4000)}, fleet: func(c *fleet.Config) { c.SilentAfter = 4 }})
	on := true
	if err := s.engines[0].Fault(fakeengine.Fault{Silent: &on}); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	s.until("silence to be noticed", func() bool {
		c := conversation(rng)
		c.Messages[0].Content = text(rng, 80) // nobody has seen it
		if status, body, err := s.post(context.Background(), "/v1/chat/completions", c); err != nil || status != 200 {
			t.Fatalf("status %d, %v: %s", status, err, body)
		}
		return s.fleet.States()[0].Stream.Trust == feed.Silent
	})
	if lines := s.metric("kvroute_stream_trust{"); !contains(lines, `state="silent"`, " 1") {
		t.Errorf("metrics do not say so: %v", lines)
	}
}

func contains(lines []string, part, end string) bool {
	for _, l := range lines {
		if strings.Contains(l, part) && strings.HasSuffix(l, end) {
			return true
		}
	}
	return false
}

// shifted is another model's tokenizer: the same texts, other ids.
type shifted struct{ tokenize.Tokenizer }

func (s shifted) Tokenize(ctx context.Context, ep tokenize.Endpoint, body []byte, opt tokenize.Options) tokenize.Result {
	res := s.Tokenizer.Tokenize(ctx, ep, body, opt)
	for i := range res.Prompts {
		p := &res.Prompts[i]
		for k, id := range p.Tokens {
			p.Tokens[k] = (id*7 + 3) % 4000
		}
		p.Blocks = block.AppendChain(nil, opt.Root, p.Tokens, opt.BlockSize)
	}
	return res
}

// TestWrongTokenizerIsNoticed: a worker with another tokenizer than the router's is found out at start, and
// decisions for it are not exact.
func TestWrongTokenizerIsNoticed(t *testing.T) {
	tok, err := tiny()
	if err != nil {
		t.Fatal(err)
	}
	s := newStand(t, options{engines: []fakeengine.Config{vllm(500)}, speaks: func(int) tokenize.Tokenizer { return shifted{tok} }})
	s.until("the comparison", func() bool { return len(s.fleet.States()[0].Parity) > 0 })
	diverged := 0
	for _, p := range s.fleet.States()[0].Parity {
		if p.Verdict == "diverged" {
			diverged++
		}
	}
	if diverged < 5 {
		t.Errorf("parity: %+v, want most diverged", s.fleet.States()[0].Parity)
	}
	if lines := s.metric("infera_router_render_parity{"); !contains(lines, "worker_id=", " 0") {
		t.Errorf("metrics do not say so: %v", lines)
	}
	s.ask(1, 3)
	if lines := s.metric("kvroute_decisions_total{"); !contains(lines, `basis="estimated"`, " 1") {
		t.Errorf("decisions: %v, want one estimated", lines)
	}
}

// TestDriftIsNoticed: predictions that are wrong again and again cost the mirror its trust, though every
// event is in order.
func TestDriftIsNoticed(t *testing.T) {
	tok, err := tiny()
	if err != nil {
		t.Fatal(err)
	}
	// The engine's events are of other tokens than the prompts it is asked to compare.
	s := newStand(t, options{engines: []fakeengine.Config{vllm(4000)}, speaks: func(int) tokenize.Tokenizer { return afterParity{tok} }})
	s.until("the comparison", func() bool { return len(s.fleet.States()[0].Parity) > 0 })
	rng := rand.New(rand.NewPCG(6, 2))
	c := conversation(rng)
	s.until("drift to be noticed", func() bool {
		if status, body, err := s.post(context.Background(), "/v1/chat/completions", c); err != nil || status != 200 {
			t.Fatalf("status %d, %v: %s", status, err, body)
		}
		return s.fleet.States()[0].Stream.Trust == feed.Diverged
	})
	st := s.fleet.States()[0]
	if st.Stream.Reason == "" || !st.Predictions.Diverged || st.Predictions.Differing == 0 {
		t.Errorf("state %+v, reason %q", st.Predictions, st.Stream.Reason)
	}
	c.Messages = []message{{"user", "a short prompt that both make the same tokens of, again and again, as long as it takes to be believed"}}
	s.until("trust to come back", func() bool {
		if status, body, err := s.post(context.Background(), "/v1/chat/completions", c); err != nil || status != 200 {
			t.Fatalf("status %d, %v: %s", status, err, body)
		}
		return s.fleet.States()[0].Stream.Trust == feed.Trusted
	})
}

// afterParity makes other tokens only of long prompts, which the comparison at start has none of.
type afterParity struct{ tokenize.Tokenizer }

func (a afterParity) Tokenize(ctx context.Context, ep tokenize.Endpoint, body []byte, opt tokenize.Options) tokenize.Result {
	if bytes.Contains(body, []byte("mirror")) {
		return shifted(a).Tokenize(ctx, ep, body, opt)
	}
	return a.Tokenizer.Tokenize(ctx, ep, body, opt)
}

// TestPickLine: the line's first fields stand in the order that scripts read them in.
func TestPickLine(t *testing.T) {
	cfg := score.Defaults()
	cfg.Policy = score.KVAware
	s := newStand(t, options{engines: []fakeengine.Config{vllm(500)}, score: cfg})
	s.ask(1, 1)
	s.close()
	want := regexp.MustCompile(`msg=pick policy=kv-aware role=mixed retention=none request_id=\S+ picked=127\.0\.0\.1:\d+ cache_hits=0 request_blocks=\d+ active_blocks=0 w_overlap=1\.00 mm_images=0 mm_affinity_hits=0`)
	if !want.Match(s.log.Bytes()) {
		t.Errorf("no such line in the log:\n%s", s.log.String())
	}
}

// TestImagesAreFollowed: a repeated image is drawn to the worker that saw it, and text is not trusted.
func TestImagesAreFollowed(t *testing.T) {
	s := newStand(t, options{engines: []fakeengine.Config{vllm(500), vllm(500)}})
	body := map[string]any{"model": "tiny", "max_tokens": 1, "messages": []any{map[string]any{"role": "user", "content": []any{
		map[string]any{"type": "text", "text": "what is this?"},
		map[string]any{"type": "image_url", "image_url": map[string]any{"url": "https://example.com/cat.png"}},
	}}}}
	for range 3 {
		s.post(context.Background(), "/v1/chat/completions", body) //nolint:errcheck // the stand-in has no eyes; picks are what counts
	}
	s.close()
	log := s.log.String()
	if !strings.Contains(log, "mm_images=1 mm_affinity_hits=0 basis=affinity") || !strings.Contains(log, "mm_images=1 mm_affinity_hits=1 basis=affinity") {
		t.Errorf("picks:\n%s", log)
	}
}

// TestMetricsAreThere: what dashboards ask for exists and moves.
func TestMetricsAreThere(t *testing.T) {
	s := newStand(t, options{engines: []fakeengine.Config{vllm(500)}})
	s.ask(3, 4)
	s.settle()
	for _, name := range []string{
		"infera_router_picks_total{", "infera_router_pick_cache_hits_count{", "infera_router_pick_request_blocks_sum{", "infera_prefix_cache_blocks_total{",
		"infera_policy_cache_view_size{", "infera_active_workers{", "infera_requests_total{", "infera_router_worker_breaker_state{",
		"kvroute_decisions_total{", "kvroute_predictions_total{", "kvroute_tokenize_seconds_count", "kvroute_stream_batches_total{", "kvroute_worker_healthy{",
	} {
		moved := false
		for _, l := range s.metric(name) {
			moved = moved || !strings.HasSuffix(l, " 0")
		}
		if !moved && name != "infera_router_worker_breaker_state{" {
			t.Errorf("%s is not there, or 0: %v", name, s.metric(name))
		}
	}
	for _, name := range []string{"infera_policy_active_blocks{", "kvroute_held_requests{", "kvroute_pending_prefill_tokens{", "kvroute_stream_gaps_total{"} {
		if lines := s.metric(name); len(lines) != 1 || !strings.HasSuffix(lines[0], " 0") {
			t.Errorf("%s: %v, want one line with 0", name, lines)
		}
	}
}

// TestWarmStart: a second router starts from the first one's snapshot, checked against the engines; a mirror
// whose engine has restarted meanwhile is not taken.
func TestWarmStart(t *testing.T) {
	first := newStand(t, options{engines: []fakeengine.Config{vllm(500), vllm(500), sglang(500)}})
	first.ask(40, 5)
	first.settle()
	var file bytes.Buffer
	if n, err := first.fleet.WriteMirrors(&file); err != nil || n != 3 {
		t.Fatalf("%d mirrors written, %v; want 3", n, err)
	}
	first.ask(10, 6) // more than the snapshot has
	if err := first.engines[1].Restart(); err != nil {
		t.Fatal(err)
	}
	resume, err := fleet.ReadMirrors(&file)
	if err != nil {
		t.Fatal(err)
	}
	second := newStand(t, options{over: first, fleet: func(c *fleet.Config) { c.Resume = resume }})
	second.settle()
	if n := strings.Count(second.log.String(), "mirror loaded from the snapshot"); n != 3 {
		t.Errorf("%d mirrors were loaded, want 3", n)
	}
	blocks := map[string]int{}
	for _, st := range second.fleet.States() {
		blocks[st.WorkerID] = st.Blocks
		if st.WorkerID != second.specs[1].ID && st.Stream.Replayed > 30 {
			t.Errorf("%s: %d batches were replayed, want only those since the snapshot", st.WorkerID, st.Stream.Replayed)
		}
	}
	if n := blocks[second.specs[1].ID]; n != 0 {
		t.Errorf("the engine that restarted has %d blocks in the mirror", n)
	}
	if blocks[second.specs[0].ID] == 0 {
		t.Error("the engine that went on has no blocks in the mirror")
	}
}

// TestSaltedMirrorsAreFetchedAnew: SGLang's hashes leave the salt out. What tells blocks of two salts apart is
// not in a snapshot, so such a mirror is not taken from one.
func TestSaltedMirrorsAreFetchedAnew(t *testing.T) {
	first := newStand(t, options{engines: []fakeengine.Config{sglang(80), vllm(80)}})
	rng := rand.New(rand.NewPCG(9, 9))
	salted := func(n int) {
		for i := range n {
			c := conversation(rng)
			c.Salt = []string{"", "a", "b"}[i%3]
			if status, body, err := first.post(context.Background(), "/v1/chat/completions", c); err != nil || status != 200 {
				t.Fatalf("status %d, %v: %s", status, err, body)
			}
		}
	}
	salted(40)
	first.settle()
	var file bytes.Buffer
	if n, err := first.fleet.WriteMirrors(&file); err != nil || n != 1 {
		t.Fatalf("%d mirrors written, %v; want 1, vLLM's", n, err)
	}
	salted(40)
	resume, err := fleet.ReadMirrors(&file)
	if err != nil {
		t.Fatal(err)
	}
	second := newStand(t, options{over: first, fleet: func(c *fleet.Config) { c.Resume = resume }})
	second.settle()
}
