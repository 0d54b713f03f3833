package fakeengine

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/kvevent"
)

// TestHashes: the chains of tokens 1 to 8 in blocks of 4, computed elsewhere (sha256sum over bytes laid
// out by hand).
func TestHashes(t *testing.T) {
	toks := []block.Token{1, 2, 3, 4, 5, 6, 7, 8}
	for _, tt := range []struct {
		d    Dialect
		want [2]string
		wire [2]uint64
	}{
		{
			SGLang,
			[2]string{"cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72", "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6"},
			[2]uint64{1<<64 - 3488128144981237669, 5674439469042975057},
		},
		{
			VLLM,
			[2]string{"c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb", "24125b23e68883b5c2141db2959d48433fe6bde2f26bd914efad121d154ab2d6"},
			[2]uint64{2164874634404590027, 17270480062156288726},
		},
	} {
		c := Config{Dialect: tt.d}.withDefaults()
		h := newHasher(&c, wireOf(tt.d, version{9, 9, 9}))
		var d digest
		for i := range 2 {
			d = h.next(d, i, toks[4*i:4*i+4], space{})
			if got := hex.EncodeToString(d[:]); got != tt.want[i] {
				t.Errorf("%s, block %d: got %s, want %s", tt.d, i, got, tt.want[i])
			}
			if got := h.handle(d); got != tt.wire[i] {
				t.Errorf("%s, block %d on the wire: got %d, want %d", tt.d, i, got, tt.wire[i])
			}
		}
	}
}

// TestRealHashes computes the hashes of recorded stores from their tokens.
func TestRealHashes(t *testing.T) {
	text, err := os.ReadFile("../kvevent/testdata/real-engines.json")
	if err != nil {
		t.Fatal(err)
	}
	var frames []struct {
		Engine  string
		Payload string `json:"payload_hex"`
	}
	if err := json.Unmarshal(text, &frames); err != nil {
		t.Fatal(err)
	}
	checked := map[Dialect]int{}
	for _, f := range frames {
		payload, err := hex.DecodeString(f.Payload)
		if err != nil {
			t.Fatal(err)
		}
		dialect := VLLM
		if f.Engine[0] == 's' || f.Engine[0] == 'S' {
			dialect = SGLang
		}
		c := Config{Dialect: dialect}.withDefaults()
		h := newHasher(&c, wireOf(dialect, version{9, 9, 9}))
		var dec kvevent.Decoder
		var b kvevent.Batch
		if err := dec.Decode(payload, &b); err != nil {
			t.Fatal(err)
		}
		for _, e := range b.Events {
			if e.Kind != kvevent.Stored || e.HasParent {
				continue
			}
			var d digest
			for i, want := range e.Handles {
				d = h.next(d, i, e.Tokens[i*e.PageSize:(i+1)*e.PageSize], space{})
				if got := index.Handle(h.handle(d)); got != want {
					t.Fatalf("%s, block %d: got %d, the engine sent %d", f.Engine, i, got, want)
				}
				checked[dialect]++
			}
		}
	}
	if checked[VLLM] < 40 || checked[SGLang] < 40 {
		t.Errorf("checked %v blocks, want 40 of each engine", checked)
	}
}

// TestAtomHash: XXH64 over tokens as 64 bits, by hand: the parent stands in front except for a root.
func TestAtomHash(t *testing.T) {
	h := atomHash{}
	a := h.next(digest{}, 0, []block.Token{1, 2}, space{})
	b := h.next(digest{9}, 0, []block.Token{1, 2}, space{}) // a root has no parent
	if a != b {
		t.Errorf("the hash of a root depends on a parent: %x, %x", a, b)
	}
	if c := h.next(a, 1, []block.Token{1, 2}, space{}); c == a {
		t.Error("the parent is not part of the hash")
	}
	if d := h.next(digest{}, 0, []block.Token{1, 2}, space{salt: "s"}); d == a {
		t.Error("the salt is not part of the hash")
	}
}
