package tokenize

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
)

// TestPieceComparesTexts: two texts with one hash are two texts.
func TestPieceComparesTexts(t *testing.T) {
	t.Parallel()
	c := newCache(1 << 20)
	_, h := c.piece([]byte("one text"))
	if id := c.addPiece(h, []byte("two text"), []block.Token{2}); id == 0 {
		t.Fatal("a small piece was not stored")
	}
	if p, _ := c.piece([]byte("one text")); p != nil {
		t.Errorf("the tokens of another text with the same hash were found: %q", p.text)
	}
	c.addPiece(h, []byte("one text"), []block.Token{1})
	if p, _ := c.piece([]byte("one text")); p == nil || p.tokens[0] != 1 {
		t.Errorf("a text stored over another one was not found: %+v", p)
	}
	if n, _ := c.pieces[h%shards].held(); n != 1 {
		t.Errorf("%d entries with one hash", n)
	}
}

// TestLRU: the longest unused goes first, and what is held never exceeds the bound.
func TestLRU(t *testing.T) {
	t.Parallel()
	var l lru[int, int]
	l.init(100)
	put := func(k int, size int64) bool {
		stored, _ := l.put(k, &k, size)
		if n, b := l.held(); b > 100 || n != int64(len(l.entries)) {
			t.Fatalf("%d entries hold %d bytes of 100", n, b)
		}
		return stored
	}
	for k := range 3 {
		put(k, 30)
	}
	if l.get(0) == nil {
		t.Fatal("0 is gone too early")
	}
	put(3, 40)
	if l.get(1) != nil || l.get(0) == nil || l.get(2) == nil || l.get(3) == nil {
		t.Error("not the longest unused one went")
	}
	if put(4, 51) || l.get(4) != nil {
		t.Error("more than half of the bound was stored")
	}
	put(3, 10)
	if n, b := l.held(); n != 3 || b != 70 {
		t.Errorf("%d entries with %d bytes after one was replaced, want 3 with 70", n, b)
	}
}

func TestCuts(t *testing.T) {
	t.Parallel()
	pad := strings.Repeat("x", minPiece)
	tok := func(content string, change ...func(*AddedToken)) AddedToken {
		a := AddedToken{Content: content, Special: true}
		for _, f := range change {
			f(&a)
		}
		return a
	}
	plain := func(a *AddedToken) { a.Special = false }
	norm := func(a *AddedToken) { a.Normalized = true }
	lstrip := func(a *AddedToken) { a.LStrip = true }
	rstrip := func(a *AddedToken) { a.RStrip = true }
	single := func(a *AddedToken) { a.SingleWord = true }
	tests := []struct {
		name       string
		added      []AddedToken
		normalizer bool
		text       string
		want       []int
	}{
		{"special", []AddedToken{tok("<a>")}, false, pad + "<a>" + pad + "<a>", []int{64, 131}},
		{"not at the start, nor too soon", []AddedToken{tok("<a>")}, false, "<a>" + pad[:59] + "<a>x<a>" + pad, []int{66}},
		{"not special", []AddedToken{tok("<a>", plain)}, false, pad + "<a>", nil},
		{"normalized, no normalizer", []AddedToken{tok("<a>", norm)}, false, pad + "<a>", []int{64}},
		{"normalized", []AddedToken{tok("<a>", norm)}, true, pad + "<a>", nil},
		{"strips to the left", []AddedToken{tok("<a>", lstrip)}, false, pad + "<a>", nil},
		{"strips to the right", []AddedToken{tok("<a>", rstrip)}, false, pad + "<a>", []int{64}},
		{"single word", []AddedToken{tok("<a>", single)}, false, pad + "<a>", nil},
		{"letter beside a single word", []AddedToken{tok("ab"), tok("<w>", single)}, false, pad + "ab", nil},
		{"longest first", []AddedToken{tok("<a", plain), tok("<a>b")}, false, pad + "<a>b", []int{64}},
		{"longest that is there", []AddedToken{tok("<a>"), tok("<a>bcd")}, false, pad + "<a>bc", []int{64}},
		{"inside of another", []AddedToken{tok("<a>"), tok("x<a>y", plain)}, false, pad + "<a>y" + pad + "<a>", []int{132}},
		{"another one ends with its beginning", []AddedToken{tok("<a>"), tok("b<")}, false, pad + "<a>", nil},
		{"several first bytes", []AddedToken{tok("<a>"), tok("[b]")}, false, pad + "[b]" + pad + "<a>", []int{64, 131}},
		{"not normalized ones first", []AddedToken{tok("a<", norm, plain), tok("<b>")}, false, pad + "a<b>", nil},
		{"between", []AddedToken{tok("<n>", norm), tok("[r]")}, false, pad + "<n>" + pad + "[r]" + pad + "<n>", []int{64, 131, 198}},
		{"none", nil, false, pad, nil},
	}
	for _, tt := range tests {
		s := newSplitter(tt.added, !tt.normalizer)
		if diff := cmp.Diff(tt.want, s.cuts(nil, []byte(tt.text))); diff != "" {
			t.Errorf("%s: cuts of %q, -want +got:\n%s", tt.name, tt.text, diff)
		}
	}
}

// TestTextLen: the length of a string is that of its decoded text.
func TestTextLen(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`""`, `"abc"`, `"a\nb"`, `"\u0041\u00e9\u4e2d"`, `"\ud83d\ude00x"`, `"\\\"\/"`, `"é天😀"`} {
		v, err := parseJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		s, err := v.str()
		if err != nil {
			t.Fatal(err)
		}
		if got := textLen(&v); got != int64(len(s)) {
			t.Errorf("textLen(%s) = %d, want %d", text, got, len(s))
		}
	}
	if v, err := parseJSON(fmt.Appendf(nil, "%q", "data:image/png;base64,AAAA")); err != nil || textLen(&v) != 0 {
		t.Errorf("inline data counts (%v)", err)
	}
}
