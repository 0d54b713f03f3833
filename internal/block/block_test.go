package block_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
)

// count returns n tokens first, first+1, ...
func count(first block.Token, n int) []block.Token {
	out := make([]block.Token, n)
	for i := range out {
		out[i] = first + block.Token(i)
	}
	return out
}

func hashes(t *testing.T, text string) []block.Hash {
	t.Helper()
	var out []block.Hash
	for _, f := range strings.Fields(text) {
		v, err := strconv.ParseUint(f, 16, 64)
		if err != nil {
			t.Fatalf("hash %q in a test table: %v", f, err)
		}
		out = append(out, block.Hash(v))
	}
	return out
}

var prompt = []block.Token{151644, 8948, 198, 2610, 525, 264, 10950, 17847, 13, 151645, 198, 151644, 872, 198, 9707, 151645}

func TestAppendChain(t *testing.T) {
	t.Parallel()
	multiples := make([]block.Token, 1000)
	for i := range multiples {
		multiples[i] = block.Token(uint64(i) * 2654435761)
	}
	const most = block.Token(1<<32 - 1)
	tests := []struct {
		name   string
		tokens []block.Token
		size   int
		want   string
	}{
		{"one block", []block.Token{1, 2, 3, 4}, 4, "341839abbe30be0b"},
		{"too short", []block.Token{1, 2, 3}, 4, ""},
		{"partial tail dropped", count(1, 10), 4, "341839abbe30be0b 37b6de0623bdb5ca"},
		{"four blocks", count(1, 16), 4, "341839abbe30be0b 37b6de0623bdb5ca 7bdf311365468d44 b3f5f98db5a37e0b"},
		{"default size", count(0, 64), 16, "24becc5361303c06 a075f13ea868eebb 31a2fe50c9411f2e 2fc7c838b38eccd6"},
		{"size 1", []block.Token{7, 8, 9}, 1, "eef32d3f0cdb0fe8 b5e3a077a6e85387 b6112a022f260aca"},
		{"largest ids", []block.Token{most, most, most, most}, 4, "2dae2d9ff1e44dbd"},
		{"size 64", count(0, 128), 64, "d45bfcbd13520815 dac428900c1952c7"},
		{"size 768", count(0, 768), 768, "b4c20709e20b34b6"},
		{"prompt, size 16", prompt, 16, "125f95e75b4dd315"},
		{"prompt, size 8", prompt, 8, "6e05af571efce9b2 5991d7db52be69b3"},
		{"prompt, size 4", prompt, 4, "373cee2351bd2f09 d3b2fdee1a3755f5 c0bf1b2f3a492811 2ff79d469038b9fe"},
		{"1 to 32", count(1, 32), 16, "73d57c846a7f6b4e dcb64a9b2a68aec4"},
		{"shared first block", append(count(1, 16), count(100, 16)...), 16, "73d57c846a7f6b4e 0ee8377ad290b26c"},
		{"no reuse at another position", append(count(17, 16), count(1, 16)...), 16, "46351e8ebe0b5ba2 727504a27022cb48"},
		{"62 blocks", multiples, 16, "62: b09b3cdd9c21faca ec7f01845b15af70"},
		{"size 0", count(1, 16), 0, ""},
		{"negative size", count(1, 16), -1, ""},
		{"no tokens", nil, 16, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := block.AppendChain(nil, block.Root, tt.tokens, tt.size)
			if text, ends := strings.CutPrefix(tt.want, "62: "); ends {
				if len(got) != 62 {
					t.Fatalf("AppendChain(%d tokens, size %d): %d blocks, want 62", len(tt.tokens), tt.size, len(got))
				}
				got, tt.want = []block.Hash{got[0], got[61]}, text
			}
			if diff := cmp.Diff(hashes(t, tt.want), got); diff != "" {
				t.Errorf("AppendChain(%v, size %d), -want +got:\n%s", tt.tokens, tt.size, diff)
			}
		})
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	tests := []struct {
		parent block.Hash
		tokens []block.Token
		want   string
	}{
		{1, count(1, 4), "815ae13bf802e599"},
		{1<<64 - 1, count(1, 4), "1f0fffe3488b7883"},
		{0, nil, "c77b3abb6f87acd9"},
		// The classes of input length of XXH3: 9 to 16 bytes, 17 to 128, 129 to 240, and above.
		{0, count(0, 1), "c4998f9169c2a4f0"},
		{0, count(0, 2), "e9f0fb052b3365c1"},
		{0, count(0, 3), "d7b5a464e554dbbf"},
		{0, count(0, 4), "4427fd6927219306"},
		{0, count(0, 6), "7273f8b6a622c1e2"},
		{0, count(0, 14), "7a282dc104cc8b52"},
		{0, count(0, 16), "24becc5361303c06"},
		{0, count(0, 30), "af4ebd3ee12c266e"},
		{0, count(0, 31), "b93cba226e40a6ed"},
		{0, count(0, 32), "d7fb8780eba34dea"},
		{0, count(0, 58), "fafa2374159ccad4"},
		{0, count(0, 59), "b39bab1c53b571b9"},
		{0, count(0, 64), "d45bfcbd13520815"},
		{0, count(0, 128), "2be4082dc62ebdd4"},
		{0, count(0, 254), "4d19a10b6cc4ae85"},
		{0, count(0, 255), "87144d710c323fda"},
		{0, count(0, 256), "97337cd1f3a109d7"},
		{0, count(0, 512), "81a4e1e418dddf1f"},
		{0, count(0, 768), "b4c20709e20b34b6"},
		{0, count(0, 1024), "ba9a4270c17b6db1"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("parent=%x/tokens=%d", tt.parent, len(tt.tokens)), func(t *testing.T) {
			t.Parallel()
			if got, want := block.Next(tt.parent, tt.tokens), hashes(t, tt.want)[0]; got != want {
				t.Errorf("Next(%#x, %d tokens) = %016x, want %016x", tt.parent, len(tt.tokens), got, want)
			}
		})
	}
}

// TestAppendChainIsNext holds the fast path of the usual size against single steps.
func TestAppendChainIsNext(t *testing.T) {
	t.Parallel()
	tokens := count(1<<31-500, 1000)
	for _, size := range []int{15, 16, 17} {
		var want []block.Hash
		parent := block.Hash(77)
		for at := 0; at+size <= len(tokens); at += size {
			parent = block.Next(parent, tokens[at:at+size])
			want = append(want, parent)
		}
		got := block.AppendChain([]block.Hash{5}, 77, tokens, size)
		if diff := cmp.Diff(append([]block.Hash{5}, want...), got); diff != "" {
			t.Errorf("size %d, -want +got:\n%s", size, diff)
		}
	}
}

func TestNamespace(t *testing.T) {
	t.Parallel()
	if got := block.Namespace("", ""); got != block.Root {
		t.Errorf("Namespace of nothing = %016x, want the root %016x", got, block.Root)
	}
	words := []string{"", "a", "b", "ab", "ba", "abc", "\x00", "a\x00", "\x00a", "adapter", "salt", strings.Repeat("x", 300)}
	seen := make(map[block.Hash]string)
	for _, adapter := range words {
		for _, salt := range words {
			pair := fmt.Sprintf("(%q, %q)", adapter, salt)
			got := block.Namespace(adapter, salt)
			if again := block.Namespace(strings.Clone(adapter), strings.Clone(salt)); again != got {
				t.Errorf("Namespace%s = %016x and then %016x", pair, got, again)
			}
			if other, dup := seen[got]; dup {
				t.Errorf("Namespace%s = Namespace%s = %016x", pair, other, got)
			}
			seen[got] = pair
		}
	}
}

// TestNamespaceValues pins roots: they are written to recordings and must not change with the code.
func TestNamespaceValues(t *testing.T) {
	t.Parallel()
	tests := []struct{ adapter, salt, want string }{
		{"sql-lora", "", "99fae7df634b6d5f"},
		{"", "tenant-7", "cd70cae553ae5547"},
		{"sql-lora", "tenant-7", "6158ee7b671fb29d"},
	}
	for _, tt := range tests {
		if got, want := block.Namespace(tt.adapter, tt.salt), hashes(t, tt.want)[0]; got != want {
			t.Errorf("Namespace(%q, %q) = %016x, want %016x", tt.adapter, tt.salt, got, want)
		}
	}
}

func TestChainCutsDoNotMatter(t *testing.T) {
	t.Parallel()
	tokens := count(3, 1000)
	for _, size := range []int{1, 2, 3, 16, 59, 64, 300, 1000, 1001} {
		want := block.AppendChain(nil, 9, tokens, size)
		for _, page := range []int{1, 2, 7, 16, 64, 999, 1000} {
			c := block.NewChain(9, size)
			var got []block.Hash
			for at := 0; at < len(tokens); at += page {
				got = c.Append(got, tokens[at:min(at+page, len(tokens))])
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("size %d in pieces of %d, -want +got:\n%s", size, page, diff)
			}
			if diff := cmp.Diff(tokens[len(want)*size:], c.Rest()); diff != "" {
				t.Errorf("rest at size %d in pieces of %d, -want +got:\n%s", size, page, diff)
			}
			d := block.NewChain(0, size)
			d.Reset(9, tokens)
			if d.Last() != c.Last() || !cmp.Equal(d.Rest(), c.Rest()) {
				t.Errorf("Reset with all tokens at size %d: %016x %v, want %016x %v", size, d.Last(), d.Rest(), c.Last(), c.Rest())
			}
		}
	}
}

func TestNoAllocations(t *testing.T) {
	tokens := count(0, 8192)
	dst := make([]block.Hash, 0, len(tokens))
	for _, size := range []int{1, 16, 58, 59, 64, 768, 5000} {
		c := block.NewChain(0, size)
		if got := testing.AllocsPerRun(100, func() {
			block.AppendChain(dst, 0, tokens, size)
			c.Append(dst, tokens[:777])
			c.Reset(5, tokens[:19])
		}); got != 0 {
			t.Errorf("size %d: %v allocations a run, want 0", size, got)
		}
	}
	if got := testing.AllocsPerRun(100, func() { block.Namespace("adapter", "salt") }); got != 0 {
		t.Errorf("Namespace: %v allocations a run, want 0", got)
	}
}

func FuzzChain(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8}, uint64(0), uint16(4), uint16(3))
	f.Add(make([]byte, 300), uint64(1<<63), uint16(59), uint16(7))
	f.Fuzz(func(t *testing.T, data []byte, parent uint64, size, page uint16) {
		size, page = size%1100+1, page%300+1
		tokens := make([]block.Token, len(data))
		for i, b := range data {
			tokens[i] = block.Token(b) * 0x01010101
		}
		want := block.AppendChain(nil, block.Hash(parent), tokens, int(size))
		c := block.NewChain(block.Hash(parent), int(size))
		var got []block.Hash
		for at := 0; at < len(tokens); at += int(page) {
			got = c.Append(got, tokens[at:min(at+int(page), len(tokens))])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d tokens, size %d, page %d, -want +got:\n%s", len(tokens), size, page, diff)
		}
		if len(want) != len(tokens)/int(size) {
			t.Errorf("%d tokens, size %d: %d blocks", len(tokens), size, len(want))
		}
	})
}

func BenchmarkChain(b *testing.B) {
	for _, size := range []int{4, 16, 64, 768} {
		b.Run(fmt.Sprintf("blocks=4096/size=%d", size), func(b *testing.B) {
			tokens := count(0, 4096*size)
			dst := make([]block.Hash, 0, 4096)
			b.ReportAllocs()
			for b.Loop() {
				dst = block.AppendChain(dst[:0], 0, tokens, size)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4096, "ns/block")
		})
	}
}

func BenchmarkIncremental(b *testing.B) {
	for _, page := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("blocks=4096/size=16/page=%d", page), func(b *testing.B) {
			tokens := count(0, 4096*16)
			dst := make([]block.Hash, 0, 4096)
			c := block.NewChain(0, 16)
			b.ReportAllocs()
			for b.Loop() {
				c.Reset(0, nil)
				dst = dst[:0]
				for at := 0; at < len(tokens); at += page {
					dst = c.Append(dst, tokens[at:at+page])
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4096, "ns/block")
		})
	}
}
