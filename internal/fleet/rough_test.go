package fleet

import (
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
)

// TestRoughBlocksFollowConversations: the next turn begins with all complete blocks of this one, other tools
// or another adapter share nothing.
func TestRoughBlocksFollowConversations(t *testing.T) {
	turn := `[{"role":"user","content":"` + strings.Repeat("tell me about caches ", 40) + `"}`
	tools := []byte(`[{"type":"function","function":{"name":"f"}}]`)
	first, n := roughBlocks(block.Root, 16, tools, []byte(turn+`]`), nil)
	next, _ := roughBlocks(block.Root, 16, tools, []byte(turn+`,{"role":"assistant","content":"ok"},{"role":"user","content":"and more"}]`), nil)
	if len(first) < 10 || int64(len(first)) != n/16 {
		t.Fatalf("%d blocks of %d tokens", len(first), n)
	}
	for i, h := range first {
		if next[i] != h {
			t.Fatalf("block %d of %d differs in the next turn", i, len(first))
		}
	}
	for name, other := range map[string][]block.Hash{
		"other tools": func() []block.Hash { b, _ := roughBlocks(block.Root, 16, tools[:20], []byte(turn+`]`), nil); return b }(),
		"adapter": func() []block.Hash {
			b, _ := roughBlocks(block.Namespace("a", ""), 16, tools, []byte(turn+`]`), nil)
			return b
		}(),
	} {
		if other[0] == first[0] {
			t.Errorf("%s: shares the first block", name)
		}
	}
	for _, p := range []string{"", `"`, `"x"`} {
		if b, _ := roughBlocks(block.Root, 16, nil, nil, []byte(p)); len(b) != 0 {
			t.Errorf("prompt %q has %d blocks", p, len(b))
		}
	}
}

func BenchmarkRoughBlocks(b *testing.B) {
	body := []byte(`[{"role":"user","content":"` + strings.Repeat("tell me about caches ", 20000) + `"}]`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		roughBlocks(block.Root, 16, nil, body, nil)
	}
}
