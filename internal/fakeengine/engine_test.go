package fakeengine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// letters is a tokenizer for tests: a token for each byte; the roles of a chat become tokens too.
type letters struct{}

func (letters) Tokenize(_ context.Context, ep tokenize.Endpoint, body []byte, opt tokenize.Options) tokenize.Result {
	var a struct {
		Prompt   any
		Messages []struct{ Role, Content string }
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return tokenize.Result{Unhashable: tokenize.ReasonBody, Err: err}
	}
	var texts []string
	if ep == tokenize.Chat {
		var b strings.Builder
		for _, m := range a.Messages {
			b.WriteString("\x01" + m.Role + "\x02" + m.Content)
		}
		texts = []string{b.String()}
	} else {
		switch p := a.Prompt.(type) {
		case string:
			texts = []string{p}
		case []any:
			for _, x := range p {
				texts = append(texts, fmt.Sprint(x))
			}
		default:
			return tokenize.Result{Unhashable: tokenize.ReasonBody}
		}
	}
	res := tokenize.Result{Exact: true}
	for _, s := range texts {
		var ids []block.Token
		for i := range len(s) {
			ids = append(ids, block.Token(s[i]))
		}
		res.Prompts = append(res.Prompts, tokenize.Prompt{Tokens: ids, Blocks: block.AppendChain(nil, opt.Root, ids, opt.BlockSize)})
		res.Tokens += int64(len(ids))
	}
	return res
}

func start(t testing.TB, c Config) *Engine {
	t.Helper()
	e, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Check(); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return e
}

// client does not keep connections, so that none outlives a test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}

func call(t testing.TB, method, url string, body any, header ...string) (int, http.Header, []byte) {
	t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		r = bytes.NewReader(text)
	}
	req, err := http.NewRequest(method, url, r)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	out, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, out
}

type m = map[string]any

// answer is what tests read of an answer.
type answer struct {
	Choices []struct {
		Index   int
		Text    string
		Message struct{ Content string }
		Finish  string `json:"finish_reason"`
	}
	Usage struct {
		Prompt  int `json:"prompt_tokens"`
		Output  int `json:"completion_tokens"`
		Total   int `json:"total_tokens"`
		Details *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

func (a *answer) cached() int {
	if a.Usage.Details == nil {
		return 0
	}
	return a.Usage.Details.Cached
}

func complete(t testing.TB, e *Engine, body m, header ...string) answer {
	t.Helper()
	status, _, out := call(t, "POST", e.URL()+"/v1/completions", body, header...)
	if status != 200 {
		t.Fatalf("%v: status %d: %s", body, status, out)
	}
	var a answer
	if err := json.Unmarshal(out, &a); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	return a
}

func ids(from, n int) []block.Token {
	var out []block.Token
	for i := range n {
		out = append(out, block.Token(from+i))
	}
	return out
}

// TestPages asks every page of every dialect, and wants those of others to be missing.
func TestPages(t *testing.T) {
	pages := map[string]struct {
		method string
		body   any
		on     []Dialect
		want   string
	}{
		"/v1/models":          {"GET", nil, Dialects(), `"max_model_len"`},
		"/health":             {"GET", nil, Dialects(), ""},
		"/metrics":            {"GET", nil, Dialects(), "num_running_reqs|num_requests_running"},
		"/version":            {"GET", nil, []Dialect{VLLM, TRTLLM}, `"version"`},
		"/ping":               {"GET", nil, []Dialect{VLLM}, ""},
		"/server_info":        {"GET", nil, []Dialect{SGLang, ATOM}, `"page_size":16`},
		"/get_server_info":    {"GET", nil, []Dialect{SGLang}, `"internal_states"`},
		"/model_info":         {"GET", nil, []Dialect{SGLang}, `"is_generation":true`},
		"/kv_event_sources":   {"GET", nil, []Dialect{VLLM}, `{}`},
		"/kv_cache_events":    {"POST", m{}, []Dialect{TRTLLM}, `"num_blocks_per_cache_level":[4096,0]`},
		"/reset_prefix_cache": {"POST", nil, []Dialect{VLLM}, `{"success":true}`},
		"/flush_cache":        {"POST", nil, []Dialect{SGLang}, "Cache flushed."},
		"/tokenize":           {"POST", m{"prompt": "abc"}, []Dialect{VLLM, SGLang}, `"tokens":[97,98,99]`},
	}
	for _, d := range Dialects() {
		e := start(t, Config{Dialect: d, Tokenizer: letters{}})
		for path, p := range pages {
			status, header, out := call(t, p.method, e.URL()+path, p.body)
			if !slices.Contains(p.on, d) {
				if status != 404 || string(out) != `{"detail":"Not Found"}` {
					t.Errorf("%s %s: got %d %s, want 404", d, path, status, out)
				}
				continue
			}
			ok := false
			for _, w := range strings.Split(p.want, "|") {
				ok = ok || strings.Contains(string(out), w)
			}
			if status != 200 || !ok {
				t.Errorf("%s %s: got %d %s, want %s", d, path, status, out, p.want)
			}
			if ct := header.Get("Content-Type"); strings.HasPrefix(string(out), "{") && ct != "application/json" {
				t.Errorf("%s %s: content type %q", d, path, ct)
			}
			wrong := map[string]string{"GET": "POST", "POST": "GET"}[p.method]
			if status, _, out := call(t, wrong, e.URL()+path, nil); status != 405 {
				t.Errorf("%s %s %s: got %d %s, want 405", wrong, d, path, status, out)
			}
		}
	}
}

// TestBadRequests: each is refused in the dialect's schema.
func TestBadRequests(t *testing.T) {
	for _, d := range Dialects() {
		e := start(t, Config{Dialect: d, Tokenizer: letters{}, Capacity: 64})
		for _, tt := range []struct {
			name, path string
			body       any
			header     []string
			status     int
		}{
			{"no JSON", "/v1/completions", "{", nil, 400},
			{"empty", "/v1/completions", "", nil, 400},
			{"two values", "/v1/completions", `{"prompt":"a"} {}`, nil, 400},
			{"an array", "/v1/chat/completions", `[]`, nil, 400},
			{"wrong type", "/v1/completions", m{"prompt": "a", "max_tokens": "x"}, nil, 400},
			{"no prompt", "/v1/completions", m{}, nil, 400},
			{"no messages", "/v1/chat/completions", m{"prompt": "a"}, nil, 400},
			{"empty prompt", "/v1/completions", m{"prompt": ""}, nil, 400},
			{"no answer", "/v1/completions", m{"prompt": "a", "max_tokens": 0}, nil, 400},
			{"n 0", "/v1/completions", m{"prompt": "a", "n": 0}, nil, 400},
			{"too long", "/v1/completions", m{"prompt": ids(1, 2000), "max_tokens": 1}, nil, 400},
			{"no such rank", "/v1/completions", m{"prompt": "a"}, []string{"X-data-parallel-rank", "7"}, 400},
			{"no rank", "/v1/completions", m{"prompt": "a"}, []string{"X-data-parallel-rank", "x"}, 400},
		} {
			status, _, out := call(t, "POST", e.URL()+tt.path, tt.body, tt.header...)
			var flat struct {
				Object, Message, Type string
				Code                  int
				Error                 *struct {
					Message, Type string
					Code          int
				}
			}
			if err := json.Unmarshal(out, &flat); err != nil {
				t.Errorf("%s, %s: not JSON: %s", d, tt.name, out)
				continue
			}
			message, kind, code := flat.Message, flat.Type, flat.Code
			if d == VLLM || d == ATOM {
				if flat.Error == nil {
					t.Errorf("%s, %s: no error object: %s", d, tt.name, out)
					continue
				}
				message, kind, code = flat.Error.Message, flat.Error.Type, flat.Error.Code
			}
			if status != tt.status || code != status || message == "" || kind != "BadRequestError" {
				t.Errorf("%s, %s: got %d %s", d, tt.name, status, out)
			}
		}
		status, _, out := call(t, "POST", e.URL()+"/v1/completions", m{"prompt": "a", "model": "other"})
		if want := map[bool]int{true: 200, false: 404}[d == SGLang]; status != want {
			t.Errorf("%s, unknown model: got %d %s, want %d", d, status, out, want)
		}
	}
}

// TestAnswers: counts, samples, batches, and that streams say the same as whole answers.
func TestAnswers(t *testing.T) {
	for _, d := range Dialects() {
		t.Run(string(d), func(t *testing.T) {
			e := start(t, Config{Dialect: d, Tokenizer: letters{}})
			a := complete(t, e, m{"prompt": "hello there", "max_tokens": 7})
			if a.Usage.Prompt != 11 || a.Usage.Output != 7 || a.Usage.Total != 18 || len(a.Choices) != 1 || a.Choices[0].Finish != "length" {
				t.Errorf("got %+v", a)
			}
			if again := complete(t, e, m{"prompt": "hello there", "max_tokens": 7}); again.Choices[0].Text != a.Choices[0].Text {
				t.Errorf("the same prompt got %q, then %q", a.Choices[0].Text, again.Choices[0].Text)
			}
			b := complete(t, e, m{"prompt": []string{"one", "two two"}, "max_tokens": 3, "n": 2})
			if b.Usage.Prompt != 10 || b.Usage.Output != 12 || len(b.Choices) != 4 || b.Choices[0].Text == b.Choices[1].Text {
				t.Errorf("two prompts, two samples each: got %+v", b)
			}
			for _, ep := range []string{"/v1/completions", "/v1/chat/completions"} {
				body := m{"prompt": "tell me more", "messages": []m{{"role": "user", "content": "tell me more"}}, "max_tokens": 5, "n": 2}
				_, _, out := call(t, "POST", e.URL()+ep, body)
				var whole answer
				if err := json.Unmarshal(out, &whole); err != nil {
					t.Fatal(err)
				}
				body["stream"] = true
				body["stream_options"] = m{"include_usage": true}
				_, header, out := call(t, "POST", e.URL()+ep, body)
				if ct := header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
					t.Errorf("%s: content type %q", ep, ct)
				}
				texts, finish, usage := readStream(t, out)
				for i, c := range whole.Choices {
					if want := c.Text + c.Message.Content; texts[i] != want || want == "" || finish[i] != "length" {
						t.Errorf("%s, choice %d: streamed %q (%s), whole %q", ep, i, texts[i], finish[i], want)
					}
				}
				if usage == nil || usage.Usage.Output != 10 || usage.Usage.Prompt != whole.Usage.Prompt {
					t.Errorf("%s: usage at the end %+v, whole %+v", ep, usage, whole.Usage)
				}
			}
		})
	}
}

// readStream joins what a stream said, by choice.
func readStream(t testing.TB, out []byte) (texts, finish map[int]string, usage *answer) {
	t.Helper()
	texts, finish = map[int]string{}, map[int]string{}
	records := strings.Split(string(out), "\n\n")
	if n := len(records); n < 2 || records[n-2] != "data: [DONE]" || records[n-1] != "" {
		t.Fatalf("the stream does not end with [DONE]: %q", out)
	}
	for _, r := range records[:len(records)-2] {
		var c struct {
			Choices []struct {
				Index  int
				Text   string
				Delta  struct{ Content string }
				Finish string `json:"finish_reason"`
			}
			Usage *json.RawMessage
		}
		data, ok := strings.CutPrefix(r, "data: ")
		if !ok || json.Unmarshal([]byte(data), &c) != nil {
			t.Fatalf("bad record %q", r)
		}
		for _, x := range c.Choices {
			texts[x.Index] += x.Text + x.Delta.Content
			finish[x.Index] += x.Finish
		}
		if c.Usage != nil && string(*c.Usage) != "null" {
			usage = &answer{}
			if err := json.Unmarshal([]byte(data), usage); err != nil {
				t.Fatal(err)
			}
		}
	}
	return texts, finish, usage
}

// naiveCache predicts cached tokens by plain rules, block by block, with lists for everything.
type naiveCache struct {
	size  int
	order []string // free blocks of the pool, the next to be taken first; "" holds nothing
	first bool     // blocks without content are taken first
}

// request does what one request alone does to the pool and returns its cached tokens.
func (n *naiveCache) request(tokens []block.Token, answer int) int {
	key := func(i int) string { return fmt.Sprint(tokens[:i*n.size]) }
	hits := 0
	var held []string
	for i := 1; i*n.size <= len(tokens)-answer-1; i++ {
		at := slices.Index(n.order, key(i))
		if at < 0 {
			break
		}
		// Among equal blocks the one that was stored first is used; which one it is cannot be told
		// from the outside, except by what is evicted when.
		n.order = slices.Delete(n.order, at, at+1)
		held = append(held, key(i))
		hits++
	}
	known := len(tokens) - 1 // the last token of the answer is never computed
	for i := hits + 1; i <= (known+n.size-1)/n.size; i++ {
		n.order = n.order[1:]
		if i*n.size <= known {
			held = append(held, key(i))
		} else {
			held = append(held, "")
		}
	}
	for _, h := range slices.Backward(held) {
		if h == "" && n.first {
			n.order = slices.Insert(n.order, 0, h)
		} else {
			n.order = append(n.order, h)
		}
	}
	return hits * n.size
}

// TestCachedTokensNaive compares the cached tokens that random sequential requests get, on a cache that
// thrashes, with the naive model.
func TestCachedTokensNaive(t *testing.T) {
	for _, version := range []string{"0.32.0", "0.23.0"} {
		const size, capacity = 4, 24
		e := start(t, Config{Dialect: VLLM, Version: version, BlockSize: size, Capacity: capacity, MaxModelLen: 80})
		n := &naiveCache{size: size, order: make([]string, capacity-1), first: version == "0.32.0"}
		r := rand.New(rand.NewPCG(4, 7))
		hits := 0
		for i := range 600 {
			prompt := ids(100*r.IntN(4), 1+r.IntN(44))
			if k := r.IntN(len(prompt)); r.IntN(2) == 0 {
				prompt = append(prompt[:k:k], ids(1000+100*r.IntN(3), len(prompt)-k)...)
			}
			answer := 1 + r.IntN(9)
			got := complete(t, e, m{"prompt": prompt, "max_tokens": answer})
			want := n.request(append(slices.Clone(prompt), answered(e, prompt, answer)...), answer)
			if got.cached() != want {
				t.Fatalf("%s, request %d, %d tokens: %d cached, the naive model says %d", version, i, len(prompt), got.cached(), want)
			}
			hits += want
		}
		if hits < 600 {
			t.Errorf("%s: only %d cached tokens in all: too tame", version, hits)
		}
	}
}

// answered are the tokens that the engine answers with.
func answered(e *Engine, prompt []block.Token, n int) []block.Token {
	s := newSeq(prompt, n, space{}, promptSeed(prompt, 0, 0))
	for range n {
		s.tokens = append(s.tokens, e.sample(s))
	}
	return s.tokens[len(prompt):]
}

// TestConcurrentRequests: many clients on a small cache; everything is answered, counted, and the
// invariants hold.
func TestConcurrentRequests(t *testing.T) {
	for _, d := range Dialects() {
		t.Run(string(d), func(t *testing.T) {
			e := start(t, Config{Dialect: d, BlockSize: 4, Capacity: 40, MaxModelLen: 100, MaxSeqs: 6, Budget: 32, Ranks: 2})
			const clients, each = 8, 30
			var wg sync.WaitGroup
			for c := range clients {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(c), 1))
					for range each {
						prompt := append(ids(100*r.IntN(3), 1+r.IntN(40)), ids(1000*r.IntN(9), r.IntN(20))...)
						n := 1 + r.IntN(30)
						if a := complete(t, e, m{"prompt": prompt, "max_tokens": n}); a.Usage.Output != n || a.Usage.Prompt != len(prompt) {
							t.Errorf("%d tokens, %d wanted: got %+v", len(prompt), n, a.Usage)
						}
						if err := e.Check(); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			s := e.Stats()
			if s.Requests < clients*each || s.Finished != s.Requests || s.Running+s.Waiting != 0 || s.Aborted != 0 {
				t.Errorf("got %+v", s)
			}
			if one := e.RankStats(0).Requests; one == 0 || one == s.Requests {
				t.Errorf("rank 0 got %d of %d requests", one, s.Requests)
			}
		})
	}
}

// TestClientsThatLeave are counted, and their memory is given back; what they stored stays.
func TestClientsThatLeave(t *testing.T) {
	for _, d := range Dialects() {
		t.Run(string(d), func(t *testing.T) {
			e := start(t, Config{Dialect: d, Tokenizer: letters{}, TimeScale: 1, MaxModelLen: 20000})
			const n = 5
			for i := range n {
				ctx, cancel := context.WithCancel(context.Background())
				body := fmt.Sprintf(`{"prompt":"%s","max_tokens":10000,"stream":true}`, strings.Repeat(fmt.Sprint(i), 40))
				req, err := http.NewRequestWithContext(ctx, "POST", e.URL()+"/v1/completions", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := res.Body.Read(make([]byte, 10)); err != nil {
					t.Fatal(err)
				}
				cancel()
				res.Body.Close() //nolint:errcheck // cancelled
			}
			eventually(t, "5 aborted, nothing held", func() bool {
				s := e.Stats()
				return s.Aborted == n && s.Running+s.Waiting+s.UsedBlocks == 0
			})
			if got := len(e.Cached(0)); got < 2*n {
				t.Errorf("%d blocks are cached, want at least the 10 of the prompts", got)
			}
		})
	}
}

// eventually waits for something that happens by itself, without asserting how soon.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
