//go:build unix

package tokenize_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
	"github.com/kvroute/kvroute/internal/tokenize/hf"
)

// benchModel is qwen3 where `make parity` has put it, else the tiny model.
func benchModel(b testing.TB) *hf.Model {
	b.Helper()
	if root := os.Getenv("KVROUTE_PARITY"); root != "" {
		return open(b, filepath.Join(root, "models", "qwen3"))
	}
	return openTiny(b)
}

// prose is text like that of real conversations, different for every seed: the words of this package's
// sources, shuffled.
type prose struct {
	words []string
	state uint64
}

func newProse(b testing.TB) *prose {
	b.Helper()
	p := &prose{state: 1}
	names, err := filepath.Glob("*.go")
	if err != nil {
		b.Fatal(err)
	}
	slices.Sort(names)
	for _, n := range names {
		text, err := os.ReadFile(n)
		if err != nil {
			b.Fatal(err)
		}
		p.words = append(p.words, strings.SplitAfter(string(text), " ")...)
	}
	return p
}

func (p *prose) text(n int) string {
	var b strings.Builder
	for b.Len() < n {
		p.state = p.state*6364136223846793005 + 1442695040888963407
		b.WriteString(p.words[p.state>>33%uint64(len(p.words))])
	}
	return b.String()
}

// chat makes a conversation of about n bytes in messages of 2 KB.
func (p *prose) chat(n int) []message {
	msgs := []message{{"system", p.text(min(n/4, 4000))}}
	for size := len(msgs[0].Content); size < n; size += len(msgs[len(msgs)-1].Content) {
		msgs = append(msgs, message{[]string{"assistant", "user"}[len(msgs)%2], p.text(min(n-size, 2000))})
	}
	return msgs
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

var benchSizes = []struct {
	name string
	n    int
}{{"1KB", 1 << 10}, {"100KB", 100 << 10}, {"400KB", 400 << 10}}

// BenchmarkTokenize is a whole request: body, preparation, render, encoding, hashes. Warm, it was seen
// before; cold, every text in it is new.
func BenchmarkTokenize(b *testing.B) {
	loaded := benchModel(b)
	p := newProse(b)
	opt := tokenize.Options{BlockSize: 16, Variant: tokenize.Variant{Prepare: tokenize.PrepareVLLM}}
	for _, size := range benchSizes {
		for _, how := range []string{"warm", "cold"} {
			b.Run(how+"/"+size.name, func(b *testing.B) {
				m := modelOf(b, loaded, tokenize.Limits{})
				req := body(b, map[string]any{"messages": p.chat(size.n)})
				res := m.Tokenize(b.Context(), tokenize.Chat, req, opt)
				b.SetBytes(int64(len(req)))
				b.ReportAllocs()
				for b.Loop() {
					if how == "cold" {
						b.StopTimer()
						req = body(b, map[string]any{"messages": p.chat(size.n)})
						b.StartTimer()
					}
					res = m.Tokenize(b.Context(), tokenize.Chat, req, opt)
				}
				if !res.Exact {
					b.Fatal(res.Err)
				}
				b.ReportMetric(float64(res.Tokens), "tokens")
			})
		}
	}
}

// BenchmarkParts are the steps of a request one by one, without caches.
func BenchmarkParts(b *testing.B) {
	loaded := benchModel(b)
	ref, err := loaded.Reference()
	if err != nil {
		b.Fatal(err)
	}
	p := newProse(b)
	for _, size := range benchSizes {
		msgs := p.chat(size.n)
		vars := body(b, map[string]any{"messages": msgs, "tools": nil, "add_generation_prompt": true})
		text, err := loaded.Template().Render(nil, vars, time.Time{})
		if err != nil {
			b.Fatal(err)
		}
		tokens, err := ref.Encode(nil, text, false)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("render/"+size.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				text, err = loaded.Template().Render(text[:0], vars, time.Time{})
			}
		})
		for _, e := range []tokenize.Encoder{loaded.Encoder(), ref} {
			b.Run(fmt.Sprintf("encode/%s/%s", strings.Fields(e.Name())[0], size.name), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					tokens, err = e.Encode(tokens[:0], text, false)
				}
			})
		}
		b.Run("hash/"+size.name, func(b *testing.B) {
			dst := make([]block.Hash, 0, len(tokens)/16+1)
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				dst = block.AppendChain(dst[:0], 0, tokens, 16)
			}
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// growing asks for a conversation of 100,000 tokens of which 95 % were there before, n times with new
// ends, and returns the least CPU time of one request and of the full way: render, encode with the
// reference, hash. Tokens and blocks must be equal.
func growing(t testing.TB, n int) (ours, full time.Duration, tokens int64) {
	loaded := benchModel(t)
	ref, err := loaded.Reference()
	if err != nil {
		t.Fatal(err)
	}
	m := modelOf(t, loaded, tokenize.Limits{})
	p := newProse(t)
	opt := tokenize.Options{BlockSize: 16, Variant: tokenize.Variant{Prepare: tokenize.PrepareVLLM}}
	per := float64(len(p.text(40_000))) / float64(m.Tokenize(t.Context(), tokenize.Completions, body(t, map[string]any{"prompt": p.text(40_000)}), opt).Tokens)
	msgs := p.chat(int(per * 95_000))
	if res := m.Tokenize(t.Context(), tokenize.Chat, body(t, map[string]any{"messages": msgs}), opt); !res.Exact {
		t.Fatal(res.Err)
	}
	ours, full = time.Hour, time.Hour
	for range n {
		next := append(slices.Clone(msgs), message{"user", p.text(int(per * 2500))}, message{"assistant", p.text(int(per * 2400))}, message{"user", p.text(100)})
		req := body(t, map[string]any{"messages": next})
		vars := body(t, map[string]any{"messages": next, "tools": nil, "add_generation_prompt": true})
		start := cpuTime()
		res := m.Tokenize(t.Context(), tokenize.Chat, req, opt)
		ours = min(ours, cpuTime()-start)
		start = cpuTime()
		text, err := loaded.Template().Render(nil, vars, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		want, err := ref.Encode(nil, text, false)
		blocks := block.AppendChain(nil, 0, want, 16)
		full = min(full, cpuTime()-start)
		if err != nil || !slices.Equal(want, res.Prompts[0].Tokens) || !slices.Equal(blocks, res.Prompts[0].Blocks) {
			t.Fatalf("tokens or blocks differ (%v, %v)", err, res.Err)
		}
		if share := float64(res.Reused) / float64(res.Tokens); share < 0.94 || share > 0.97 {
			t.Fatalf("%.3f of %d tokens repeat, want 0.95", share, res.Tokens)
		}
		tokens = res.Tokens
	}
	return ours, full, tokens
}

func BenchmarkGrowingConversation(b *testing.B) {
	for b.Loop() {
		ours, full, tokens := growing(b, 5)
		b.ReportMetric(float64(ours.Microseconds())/1000, "cpu-ms/request")
		b.ReportMetric(float64(full.Microseconds())/1000, "cpu-ms/full")
		b.ReportMetric(float64(full)/float64(ours), "times-less")
		b.ReportMetric(float64(tokens), "tokens")
	}
}

// TestGrowingConversationCost: the next turn of a long conversation costs a twentieth of doing it all.
func TestGrowingConversationCost(t *testing.T) {
	if testing.Short() {
		t.Skip("compares CPU times")
	}
	ours, full, tokens := growing(t, 5)
	t.Logf("%d tokens: %v of CPU a request, %v in full: %.0f times less", tokens, ours, full, float64(full)/float64(ours))
	if raceEnabled {
		return // Go code is slowed down, C code is not
	}
	if full < 20*ours {
		t.Errorf("a request takes %v of CPU, everything anew %v: less than 20 times as much", ours, full)
	}
}
