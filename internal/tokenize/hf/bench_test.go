//go:build cgo

package hf

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// benchModel is the model named by KVROUTE_BENCH_MODEL, or the stored small one.
func benchModel(b *testing.B) *Model {
	dir := os.Getenv("KVROUTE_BENCH_MODEL")
	if dir == "" {
		dir = smallModel(b, "qwen3")
	}
	m, err := Open(dir, Options{})
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// prose is n bytes of words; another salt gives other words.
func prose(n int, salt uint64) []byte {
	const words = "the router sends each request to the worker whose cache holds most of its prefix while load stays even across all of them func return error string value index block hash token 你好 größer naïve 12345 3.14"
	list := strings.Fields(words)
	var sb strings.Builder
	x := salt*2654435761 + 1
	for sb.Len() < n {
		x = x*6364136223846793005 + 1442695040888963407
		sb.WriteString(list[x>>33%uint64(len(list))])
		if salt > 0 && x>>60 < 4 {
			fmt.Fprintf(&sb, "%x", x>>40)
		}
		sb.WriteByte(" \n"[x>>63&(x>>62)&1])
	}
	return []byte(strings.ToValidUTF8(sb.String()[:n], "."))
}

func BenchmarkEncode(b *testing.B) {
	m := benchModel(b)
	ref, err := m.Reference()
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range []tokenize.Encoder{m.Encoder(), ref} {
		for _, size := range []int{16, 1 << 10, 100 << 10, 400 << 10} {
			name := fmt.Sprintf("%s/%dB", strings.Fields(e.Name())[0], size)
			b.Run(name+"/warm", func(b *testing.B) {
				text := prose(size, 0)
				var ids []block.Token
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if ids, err = e.Encode(ids[:0], text, false); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(name+"/cold", func(b *testing.B) {
				// Text no encoder has seen: each turn takes another piece of a long one.
				const pieces = 64
				texts := make([][]byte, pieces)
				salt, at := uint64(1), pieces
				var ids []block.Token
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if at == pieces {
						b.StopTimer()
						for i := range texts {
							texts[i] = prose(size, salt)
							salt++
						}
						at = 0
						b.StartTimer()
					}
					if ids, err = e.Encode(ids[:0], texts[at], false); err != nil {
						b.Fatal(err)
					}
					at++
				}
			})
		}
	}
}

func BenchmarkRender(b *testing.B) {
	m := benchModel(b)
	for _, c := range []struct{ messages, bytes int }{{4, 400}, {200, 400 << 10}} {
		type message struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		}
		vars := struct {
			Messages []message `json:"messages"`
			Prompt   bool      `json:"add_generation_prompt"`
		}{Prompt: true}
		for i := range c.messages {
			vars.Messages = append(vars.Messages, message{[]string{"user", "assistant"}[i%2], string(prose(c.bytes/c.messages, uint64(i)))})
		}
		raw, err := json.Marshal(vars)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("%dmessages/%dB", c.messages, c.bytes), func(b *testing.B) {
			var out []byte
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if out, err = m.Template().Render(out[:0], raw, oracleNow); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// An encoding that fits the caller's slice allocates nothing.
func TestEncodeAllocatesNothing(t *testing.T) {
	m := openSmall(t, "qwen3", Options{})
	text := prose(4000, 0)
	ids, err := m.Encoder().Encode(nil, text, false)
	if err != nil {
		t.Fatal(err)
	}
	ids = make([]block.Token, 0, 4000)
	if n := testing.AllocsPerRun(100, func() {
		if ids, err = m.Encoder().Encode(ids[:0], text, false); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
