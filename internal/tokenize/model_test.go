package tokenize_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

func newModel(t testing.TB, enc tokenize.Encoder, tpl tokenize.Template, lim tokenize.Limits) *tokenize.Model {
	t.Helper()
	m, err := tokenize.New(enc, tpl, tokenize.Meta{}, lim)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// body prints a request with the members given in pairs.
func body(t testing.TB, members map[string]any) []byte {
	t.Helper()
	text, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// someText makes text of words, punctuation, scripts, special tokens and parts of them.
func someText(r *rand.Rand, n int) string {
	bits := []string{
		"the router ", "cache", " block", "\n", "\n\n", "  ", "\t", "é", "天氣", "😀", "'ll", "'S", " 123", "x=1;", "<|im_start|>", "<|im_end|>",
		"<|im_", "end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<|im_start|", "|>", "<", "\x00", " func(", ")\r\n", "ع ر", "ﬁ", "…", "_",
		"<think>", "<|<|im_start|>",
	}
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(bits[r.IntN(len(bits))])
	}
	return b.String()
}

// check compares one result with the plain way: the encoder on the whole text, and the hashes of all.
func check(t *testing.T, name string, enc tokenize.Encoder, res tokenize.Result, special bool, opt tokenize.Options) {
	t.Helper()
	if res.Unhashable != "" || !res.Exact || len(res.Prompts) != 1 {
		t.Fatalf("%s: %d prompts, exact %v, %s: %v", name, len(res.Prompts), res.Exact, res.Unhashable, res.Err)
	}
	want, err := enc.Encode(nil, res.Text, special)
	if err != nil {
		t.Fatal(err)
	}
	p := res.Prompts[0]
	if diff := cmp.Diff(want, p.Tokens); diff != "" {
		t.Fatalf("%s: tokens of %q, -want +got:\n%s", name, res.Text, diff)
	}
	if diff := cmp.Diff(block.AppendChain(nil, opt.Root, want, opt.BlockSize), p.Blocks, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%s: blocks of %d, -want +got:\n%s", name, opt.BlockSize, diff)
	}
	if res.Tokens != int64(len(want)) {
		t.Fatalf("%s: says %d tokens, has %d", name, res.Tokens, len(want))
	}
}

// TestCachedEqualsPlain grows, repeats and branches random conversations, over several block sizes,
// namespaces and cache sizes: whatever was remembered, tokens and blocks are those of the whole text.
func TestCachedEqualsPlain(t *testing.T) {
	t.Parallel()
	enc := newBPE(t)
	enc.bos = true
	for _, cacheBytes := range []int64{-1, 40_000, 1 << 20, 0} {
		r := rand.New(rand.NewPCG(7, uint64(cacheBytes)))
		m := newModel(t, enc, chatML{}, tokenize.Limits{CacheBytes: cacheBytes})
		var threads [][]message
		for range 4 {
			threads = append(threads, []message{{"system", someText(r, 600)}})
		}
		var reused int64
		for turn := range 200 {
			k := r.IntN(len(threads))
			th := append(threads[k][:len(threads[k]):len(threads[k])], message{[]string{"user", "assistant"}[turn%2], someText(r, r.IntN(400))})
			if r.IntN(8) == 0 {
				th = th[:1] // over again, with the same beginning
			}
			threads[k] = th
			opt := tokenize.Options{BlockSize: []int{1, 4, 16, 64, 1000}[r.IntN(5)], Root: block.Hash(r.IntN(2)), KeepText: true}
			name := fmt.Sprintf("cache %d, turn %d", cacheBytes, turn)
			if turn%5 == 4 {
				res := m.Tokenize(t.Context(), tokenize.Completions, body(t, map[string]any{"prompt": th[len(th)-1].Content + someText(r, 300)}), opt)
				check(t, name, enc, res, true, opt)
				continue
			}
			res := m.Tokenize(t.Context(), tokenize.Chat, body(t, map[string]any{"messages": th}), opt)
			check(t, name, enc, res, false, opt)
			reused += res.Reused
		}
		s := m.Stats()
		if s.PieceBytes+s.ChainBytes > max(cacheBytes, 0) && cacheBytes != 0 {
			t.Errorf("cache of %d bytes holds %d and %d", cacheBytes, s.PieceBytes, s.ChainBytes)
		}
		if (reused > 0) != (cacheBytes >= 0) {
			t.Errorf("cache of %d bytes: %d tokens reused", cacheBytes, reused)
		}
		if s.Requests != 200 || s.HitTokens < reused || s.Running != 0 || s.Waiting != 0 {
			t.Errorf("cache of %d bytes: stats %+v after 200 requests with %d tokens reused", cacheBytes, s, reused)
		}
		if cacheBytes == 40_000 && s.Evicted == 0 {
			t.Error("a small cache evicted nothing")
		}
	}
}

// TestRepeatEncodesNothing: a conversation seen before costs no encoding, its next turn only the new part.
func TestRepeatEncodesNothing(t *testing.T) {
	t.Parallel()
	enc := newBPE(t)
	m := newModel(t, enc, chatML{}, tokenize.Limits{})
	msgs := []message{{"system", strings.Repeat("You are a router. ", 40)}, {"user", strings.Repeat("What is a block? ", 40)}}
	opt := tokenize.Options{BlockSize: 16}
	first := m.Tokenize(t.Context(), tokenize.Chat, body(t, map[string]any{"messages": msgs}), opt)
	before := enc.encodes
	again := m.Tokenize(t.Context(), tokenize.Chat, body(t, map[string]any{"messages": msgs}), opt)
	if enc.encodes != before || again.Reused != again.Tokens {
		t.Errorf("a repeated conversation: %d encodings, %d of %d tokens reused", enc.encodes-before, again.Reused, again.Tokens)
	}
	if diff := cmp.Diff(first.Prompts, again.Prompts); diff != "" {
		t.Errorf("a repeated conversation differs:\n%s", diff)
	}
	msgs = append(msgs, message{"assistant", strings.Repeat("Sixteen tokens. ", 20)}, message{"user", "And a page?"})
	next := m.Tokenize(t.Context(), tokenize.Chat, body(t, map[string]any{"messages": msgs}), opt)
	if next.Reused < first.Tokens*9/10 {
		t.Errorf("the next turn reused %d of the %d tokens before it", next.Reused, first.Tokens)
	}
	short := func() tokenize.Result {
		return m.Tokenize(t.Context(), tokenize.Completions, []byte(`{"prompt":"one piece"}`), tokenize.Options{BlockSize: 1})
	}
	want := short().Prompts[0].Tokens[0]
	for range 3 {
		p := short().Prompts[0]
		if p.Tokens[0] != want {
			t.Fatalf("the first token of a prompt of one piece became %d", p.Tokens[0])
		}
		p.Tokens[0], p.Blocks[0] = 0, 0
	}
	// What a caller does with its slices is no concern of the caches.
	for i := range again.Prompts[0].Tokens {
		again.Prompts[0].Tokens[i] = 0
	}
	for i := range again.Prompts[0].Blocks {
		again.Prompts[0].Blocks[i] = 0
	}
	if diff := cmp.Diff(next.Prompts, m.Tokenize(t.Context(), tokenize.Chat, body(t, map[string]any{"messages": msgs}), opt).Prompts); diff != "" {
		t.Errorf("a result changed with an earlier one:\n%s", diff)
	}
}

func TestCompletionForms(t *testing.T) {
	t.Parallel()
	enc := newBPE(t)
	enc.bos = true
	m := newModel(t, enc, nil, tokenize.Limits{})
	ids := func(text string, special bool) []block.Token {
		out, err := enc.Encode(nil, []byte(text), special)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	tests := []struct {
		body string
		want [][]block.Token
	}{
		{`{"prompt":"a b\u00e9\n"}`, [][]block.Token{ids("a bé\n", true)}},
		{`{"prompt":""}`, [][]block.Token{ids("", true)}},
		{`{"prompt":["one","two"]}`, [][]block.Token{ids("one", true), ids("two", true)}},
		{`{"prompt":[1, 2 ,3]}`, [][]block.Token{{1, 2, 3}}},
		{`{"prompt":[[1,2],[4294967295]]}`, [][]block.Token{{1, 2}, {4294967295}}},
		{`{"prompt":["x",[7]]}`, [][]block.Token{ids("x", true), {7}}},
		{`{"prompt":"x","add_special_tokens":false}`, [][]block.Token{ids("x", false)}},
		{`{"prompt":"first","prompt":"last"}`, [][]block.Token{ids("last", true)}},
	}
	for _, tt := range tests {
		res := m.Tokenize(t.Context(), tokenize.Completions, []byte(tt.body), tokenize.Options{BlockSize: 2, Root: 5})
		if res.Unhashable != "" || !res.Exact {
			t.Errorf("%s: %s: %v", tt.body, res.Unhashable, res.Err)
			continue
		}
		var got [][]block.Token
		total := 0
		for _, p := range res.Prompts {
			got = append(got, p.Tokens)
			total += len(p.Tokens)
			if diff := cmp.Diff(block.AppendChain(nil, 5, p.Tokens, 2), p.Blocks, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s: blocks:\n%s", tt.body, diff)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || res.Tokens != int64(total) {
			t.Errorf("%s: %d tokens said, -want +got:\n%s", tt.body, res.Tokens, diff)
		}
	}
}

// failing is an encoder and template that fail.
type failing struct{ tokenize.Encoder }

var errBroken = errors.New("broken")

func (failing) Encode(dst []block.Token, text []byte, _ bool) ([]block.Token, error) {
	if len(text) > 3 {
		return nil, errBroken
	}
	return append(dst, make([]block.Token, len(text))...), nil
}
func (failing) Render([]byte, []byte, time.Time) ([]byte, error) { return nil, errBroken }
func (failing) WantsParts() bool                                 { return false }

func TestUnhashable(t *testing.T) {
	t.Parallel()
	enc := newBPE(t)
	good := newModel(t, enc, chatML{}, tokenize.Limits{MaxText: 1000})
	bad := newModel(t, failing{enc}, failing{}, tokenize.Limits{})
	bare := newModel(t, enc, nil, tokenize.Limits{})
	hi := `{"messages":[{"role":"user","content":"hi, all of you"}]}`
	done, cancel := context.WithCancel(t.Context())
	cancel()
	const chat, text = tokenize.Chat, tokenize.Completions
	tests := []struct {
		name   string
		m      *tokenize.Model
		ctx    context.Context
		ep     tokenize.Endpoint
		body   string
		reason string
		tokens int64
	}{
		{"no model", nil, t.Context(), chat, hi, tokenize.ReasonNoTokenizer, 4},
		{"template fails", bad, t.Context(), chat, hi, tokenize.ReasonTemplate, 4},
		{"no template", bare, t.Context(), chat, hi, tokenize.ReasonTemplate, 4},
		{"encoder fails", bad, t.Context(), text, `{"prompt":"some text"}`, tokenize.ReasonEncode, 2},
		{"not UTF-8", good, t.Context(), text, "{\"prompt\":\"\xff\xfe.....\"}", tokenize.ReasonUTF8, 5},
		{"half a pair", good, t.Context(), text, `{"prompt":"ab\ud800"}`, tokenize.ReasonUTF8, 1},
		{"not JSON", good, t.Context(), text, `{"prompt":`, tokenize.ReasonBody, 2},
		{"no object", good, t.Context(), text, `["prompt"]`, tokenize.ReasonBody, 2},
		{"no prompt", good, t.Context(), text, `{"x":1}`, tokenize.ReasonBody, 0},
		{"prompt of objects", good, t.Context(), text, `{"prompt":[{"a":"12345678"}]}`, tokenize.ReasonBody, 2},
		{"prompt of nothing", good, t.Context(), text, `{"prompt":[]}`, tokenize.ReasonBody, 0},
		{"id too large", good, t.Context(), text, `{"prompt":[4294967296,1]}`, tokenize.ReasonBody, 2},
		{"id negative", good, t.Context(), text, `{"prompt":[-1]}`, tokenize.ReasonBody, 1},
		{"id with a point", good, t.Context(), text, `{"prompt":[1.5]}`, tokenize.ReasonBody, 1},
		{"id huge", good, t.Context(), text, `{"prompt":[99999999999999999999999]}`, tokenize.ReasonBody, 1},
		{"no messages", good, t.Context(), chat, `{"messages":[]}`, tokenize.ReasonBody, 0},
		{"no role", good, t.Context(), chat, `{"messages":[{"content":"12345678"}]}`, tokenize.ReasonBody, 2},
		{"own template", good, t.Context(), chat, `{"messages":[{"role":"user","content":"hi"}],"chat_template":"x"}`, tokenize.ReasonBody, 1},
		{"too large", good, t.Context(), text, `{"prompt":"` + strings.Repeat("x", 1001) + `"}`, tokenize.ReasonTooLarge, 250},
		{"late", good, done, chat, hi, tokenize.ReasonDeadline, 4},
		{
			"inline data does not count", bare, t.Context(), chat,
			`{"messages":[{"role":"user","content":[{"type":"text","text":"12345678"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}]}]}`,
			tokenize.ReasonTemplate, (4 + 4 + 8 + 9 + 11 + 3) / 4,
		},
	}
	for _, tt := range tests {
		opt := tokenize.Options{BlockSize: 16, Variant: tokenize.Variant{Prepare: tokenize.PrepareNone}}
		res := tt.m.Tokenize(tt.ctx, tt.ep, []byte(tt.body), opt)
		if res.Unhashable != tt.reason || res.Tokens != tt.tokens || res.Exact || res.Prompts != nil || res.Err == nil {
			t.Errorf("%s: reason %q (%v), %d tokens, exact %v, %d prompts; want %q, %d tokens", tt.name, res.Unhashable, res.Err, res.Tokens, res.Exact, len(res.Prompts), tt.reason, tt.tokens)
		}
		if res.Err != nil && (strings.Contains(res.Err.Error(), "12345678") || strings.Contains(res.Err.Error(), "hi, all")) {
			t.Errorf("%s: the error %q tells of the prompt", tt.name, res.Err)
		}
	}
	var counted int64
	for _, r := range good.Stats().Unhashable {
		counted += r.Count
	}
	if counted != good.Stats().Requests {
		t.Errorf("%d reasons counted for %d failed requests", counted, good.Stats().Requests)
	}
}

func TestMultimodalIsNotExact(t *testing.T) {
	t.Parallel()
	m := newModel(t, newBPE(t), chatML{}, tokenize.Limits{})
	for _, p := range []tokenize.Prepare{tokenize.PrepareVLLM, tokenize.PrepareSGLang} {
		res := m.Tokenize(t.Context(), tokenize.Chat, []byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"What is it?"},
			{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`), tokenize.Options{Variant: tokenize.Variant{Prepare: p}, BlockSize: 4})
		if !res.Multimodal || res.Exact || res.Unhashable != "" || res.Tokens == 0 {
			t.Errorf("%s: an image: %+v", p, res)
		}
	}
}

func TestMultimodalBodies(t *testing.T) {
	t.Parallel()
	m := newModel(t, newBPE(t), chatML{}, tokenize.Limits{})
	const user = `"messages":[{"role":"user","content":"x"}]`
	for body, want := range map[string]bool{
		"{" + user + "}":                     false,
		"{" + user + `,"images":["u"]}`:      true,
		"{" + user + `,"images":[]}`:         false,
		"{" + user + `,"audio":{"voice":1}}`: true,
		"{" + user + `,"audio":{}}`:          false,
		"{" + user + `,"audio":null}`:        false,
	} {
		res := m.Tokenize(t.Context(), tokenize.Chat, []byte(body), tokenize.Options{BlockSize: 4})
		if res.Multimodal != want || res.Exact == want || res.Unhashable != "" {
			t.Errorf("%s: multimodal %v, exact %v, %q, want multimodal %v", body, res.Multimodal, res.Exact, res.Unhashable, want)
		}
	}
}

// stuck encodes when it is told to.
type stuck struct {
	*bpe
	entered chan struct{}
	leave   chan struct{}
}

func (s *stuck) Encode(dst []block.Token, text []byte, special bool) ([]block.Token, error) {
	if len(text) > 100 {
		s.entered <- struct{}{}
		<-s.leave
	}
	return s.bpe.Encode(dst, text, special)
}

// TestLimitsOfConcurrency: one works, one waits, a third is turned away; a deadline frees those that wait
// and those that work on something long, and a slot comes back when C does.
func TestLimitsOfConcurrency(t *testing.T) {
	t.Parallel()
	enc := &stuck{bpe: newBPE(t), entered: make(chan struct{}), leave: make(chan struct{})}
	m := newModel(t, enc, nil, tokenize.Limits{Concurrent: 1, Waiting: 1})
	long := body(t, map[string]any{"prompt": strings.Repeat("some words ", 6000)})
	opt := tokenize.Options{BlockSize: 16}
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan tokenize.Result, 2)
	ask := func(ctx context.Context) { results <- m.Tokenize(ctx, tokenize.Completions, long, opt) }
	go ask(ctx)
	<-enc.entered
	go ask(ctx)
	for m.Stats().Waiting == 0 { // no time passes: the other one runs until it waits
		runtime.Gosched()
	}
	if res := m.Tokenize(t.Context(), tokenize.Completions, long, opt); res.Unhashable != tokenize.ReasonBusy {
		t.Errorf("with one at work and one waiting: %q, want %q", res.Unhashable, tokenize.ReasonBusy)
	}
	cancel()
	for range 2 {
		if res := <-results; res.Unhashable != tokenize.ReasonDeadline || res.Tokens != int64(len("some words ")*6000/4) {
			t.Errorf("after the deadline: %q, %d tokens", res.Unhashable, res.Tokens)
		}
	}
	if s := m.Stats(); s.Running != 1 || s.Waiting != 0 {
		t.Errorf("%d run and %d wait, want the abandoned one only", s.Running, s.Waiting)
	}
	enc.leave <- struct{}{}
	var res tokenize.Result
	var wg sync.WaitGroup
	wg.Go(func() { res = m.Tokenize(t.Context(), tokenize.Completions, long, opt) })
	wg.Wait() // what was encoded in vain is remembered
	if res.Unhashable != "" || res.Reused != res.Tokens {
		t.Errorf("afterwards: %q, %d of %d tokens reused", res.Unhashable, res.Reused, res.Tokens)
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	enc := newBPE(t)
	m := newModel(t, enc, chatML{}, tokenize.Limits{CacheBytes: 1 << 18, Concurrent: 4})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(3, uint64(w%2)))
			msgs := []message{{"system", someText(r, 300)}}
			for range 15 {
				msgs = append(msgs, message{"user", someText(r, 200)})
				opt := tokenize.Options{BlockSize: 16, KeepText: true}
				res := m.Tokenize(context.Background(), tokenize.Chat, body(t, map[string]any{"messages": msgs}), opt)
				want, err := enc.Encode(nil, res.Text, false)
				if err != nil || !cmp.Equal(want, res.Prompts[0].Tokens) || !cmp.Equal(block.AppendChain(nil, 0, want, 16), res.Prompts[0].Blocks) {
					t.Errorf("worker %d: tokens or blocks differ, %v", w, err)
				}
			}
		})
	}
	wg.Wait()
}

func FuzzTokenize(f *testing.F) {
	for _, s := range []string{
		`{"messages":[{"role":"user","content":"hi"}]}`, `{"prompt":"x"}`, `{"prompt":[1,2]}`, `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}],"tools":[{"type":"function","function":{"name":"f"}}]}`,
		`{"messages":[{"role":"developer","content":[{"type":"text","text":"a"}]},{"role":"system","content":"x-anthropic-billing-header\nb"}]}`,
		`{"messages":[{"role":"assistant","content":[{"type":"text","text":"a"}]}],"continue_final_message":true,"add_generation_prompt":false}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url"}]}],"reasoning":{"effort":1},"chat_template_kwargs":{"a":null}}`,
	} {
		f.Add([]byte(s), uint8(0))
	}
	m := newModel(f, newBPE(f), chatML{}, tokenize.Limits{CacheBytes: 1 << 16, MaxText: 1 << 16})
	f.Fuzz(func(t *testing.T, body []byte, how uint8) {
		opt := tokenize.Options{
			BlockSize: int(how>>4) + 1, KeepText: true,
			Variant: tokenize.Variant{Prepare: []tokenize.Prepare{tokenize.PrepareNone, tokenize.PrepareVLLM, tokenize.PrepareSGLang}[how%3]},
		}
		for _, ep := range []tokenize.Endpoint{tokenize.Chat, tokenize.Completions} {
			res := m.Tokenize(t.Context(), ep, body, opt)
			if (res.Unhashable == "") != (res.Err == nil) || (res.Unhashable == "") != (len(res.Prompts) > 0) || res.Exact && res.Unhashable != "" || res.Tokens < 0 {
				t.Fatalf("%q: contradicts itself: %+v", body, res)
			}
			var sum int64
			for _, p := range res.Prompts {
				sum += int64(len(p.Tokens))
				if !cmp.Equal(block.AppendChain(nil, 0, p.Tokens, opt.BlockSize), p.Blocks, cmpopts.EquateEmpty()) {
					t.Fatalf("%q: blocks are not those of the tokens", body)
				}
			}
			if res.Unhashable == "" && sum != res.Tokens {
				t.Fatalf("%q: %d tokens, says %d", body, sum, res.Tokens)
			}
		}
	})
}
