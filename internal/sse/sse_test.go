package sse

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const bound = 64

type seen struct {
	Data    string
	TooLong bool
}

// feed splits text at the cuts and returns the records and how many bytes were in whole ones.
func feed(text string, cuts ...int) (got []seen, whole int) {
	s := New(bound, func(r Record) { got = append(got, seen{string(r.Data), r.TooLong}) })
	at := 0
	for _, c := range append(cuts, len(text)) {
		chunk := []byte(text[at:c])
		if n := s.Feed(chunk); n > 0 {
			whole = at + n
		}
		for i := range chunk {
			chunk[i] = '#' // what is kept must have been copied
		}
		at = c
	}
	return got, whole
}

var streams = []struct {
	name, text string
	want       []seen
	rest       int // bytes behind the last whole record
}{
	{"usual", "data: a\n\ndata: b\n\ndata: [DONE]\n\n", []seen{{"a", false}, {"b", false}, {"[DONE]", false}}, 0},
	{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", []seen{{"a", false}, {"b", false}}, 0},
	{"CR", "data: a\r\rdata: b\r\r", []seen{{"a", false}, {"b", false}}, 0},
	{"mixed", "data: a\r\n\ndata: b\n\r\ndata: c\r\n\rdata: d\n\n", []seen{{"a", false}, {"b", false}, {"c", false}, {"d", false}}, 0},
	{"several lines", "data: a\ndata:  b\ndata\ndata:c\n\n", []seen{{"a\n b\n\nc", false}}, 0},
	{"comments and fields", ": ping\n\nevent: x\nid: 1\ndata: a\n: inside\nretry: 5\ndatax: no\n\n", []seen{{"a", false}}, 0},
	{"empty data", "data\n\ndata:\n\n", []seen{{"", false}, {"", false}}, 0},
	{"many empty lines", "\n\n\ndata: a\n\n\n\n", []seen{{"a", false}}, 0},
	{"byte order mark", "\ufeffdata: a\n\n", []seen{{"a", false}}, 0},
	{"unfinished", "data: a\n\ndata: b\n", []seen{{"a", false}}, 8},
	{"unfinished line", "data: a\n\ndat", []seen{{"a", false}}, 3},
	{"unfinished comment", "data: a\n\n: x", []seen{{"a", false}}, 3},
	{"comment", "data: a\n\n: x\n", []seen{{"a", false}}, 0},
	{"too long in one line", "data: " + strings.Repeat("x", 2*bound) + "\n\ndata: b\n\n", []seen{{"", true}, {"b", false}}, 0},
	{"too long in many", strings.Repeat("data: xxxxxxxxxx\n", bound) + "\ndata: b\n\n", []seen{{"", true}, {"b", false}}, 0},
	{"long comment", ":" + strings.Repeat("x", 2*bound) + "\ndata: b\n\n", []seen{{"b", false}}, 0},
	{"as long as may be", "data: " + strings.Repeat("x", bound-6) + "\n\n", []seen{{strings.Repeat("x", bound-6), false}}, 0},
}

func TestSplitterWhateverTheCuts(t *testing.T) {
	for _, tt := range streams {
		t.Run(tt.name, func(t *testing.T) {
			check := func(cuts ...int) {
				t.Helper()
				got, whole := feed(tt.text, cuts...)
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Fatalf("%q cut at %v (-want +got):\n%s", tt.text, cuts, d)
				}
				if rest := len(tt.text) - whole; rest != tt.rest {
					t.Fatalf("%q cut at %v: %d bytes behind the last record, want %d", tt.text, cuts, rest, tt.rest)
				}
			}
			if tt.name != "too long in one line" && tt.name != "long comment" {
				check() // uncut, the bound is on what is kept, so a long line may pass
			}
			for i := range len(tt.text) + 1 {
				check(i)
			}
			var every []int
			for i := range len(tt.text) {
				every = append(every, i)
			}
			check(every...)
		})
	}
}

// naive splits a whole text by the standard's words.
func naive(text string) (out []string) {
	text = strings.TrimPrefix(text, "\ufeff")
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(text, "\n")
	var data []string
	for _, l := range lines[:len(lines)-1] {
		if l == "" {
			if data != nil {
				out = append(out, strings.Join(data, "\n"))
			}
			data = nil
			continue
		}
		if k, v, _ := strings.Cut(l, ":"); k == "data" {
			data = append(data, strings.TrimPrefix(v, " "))
		}
	}
	return out
}

func FuzzSplitter(f *testing.F) {
	for _, s := range streams {
		f.Add([]byte(s.text), uint64(7))
	}
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var got []string
		s := New(1<<30, func(r Record) { got = append(got, string(r.Data)) })
		var kept bytes.Buffer // as a proxy does: whole records pass, the rest waits
		held := []byte{}
		for rest := text; len(rest) > 0; {
			n := 1 + rng.IntN(len(rest))
			chunk := bytes.Clone(rest[:n])
			rest = rest[n:]
			if k := s.Feed(chunk); k > 0 {
				kept.Write(held)
				kept.Write(chunk[:k])
				held = append(held[:0], chunk[k:]...)
			} else {
				held = append(held, chunk...)
			}
			if s.Between() != (len(held) == 0) {
				t.Fatalf("%q: between records: %v, but %q is held", text, s.Between(), held)
			}
		}
		if d := cmp.Diff(naive(string(text)), got); d != "" {
			t.Fatalf("%q seed %d (-want +got):\n%s", text, seed, d)
		}
		if all := kept.String() + string(held); all != string(text) {
			t.Fatalf("%q came out as %q", text, all)
		}
		if d := cmp.Diff(got, naive(kept.String())); d != "" {
			t.Fatalf("%q: whole records passed on do not hold the records (-all +passed):\n%s", text, d)
		}
	})
}

func TestSplitterKeepsWithinItsBound(t *testing.T) {
	s := New(bound, func(Record) {})
	for range 10000 {
		s.Feed([]byte("data: endless "))
	}
	for range 10000 {
		s.Feed([]byte("x\ndata: endless\n"))
	}
	if got := cap(s.line) + cap(s.buf); got > 8*bound {
		t.Errorf("splitter with a bound of %d keeps %d bytes", bound, got)
	}
}

func BenchmarkSplitter(b *testing.B) {
	chunk := []byte(`data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
	n := 0
	s := New(1<<20, func(Record) { n++ })
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		s.Feed(chunk)
	}
}

func TestSplitterDoesNotAllocate(t *testing.T) {
	s := New(1<<20, func(Record) {})
	chunks := [][]byte{[]byte("data: one\n\nda"), []byte("ta: two\n"), []byte("\n")}
	if got := testing.AllocsPerRun(100, func() {
		for _, c := range chunks {
			s.Feed(c)
		}
	}); got > 0 {
		t.Errorf("Feed allocates %v times a round, want 0", got)
	}
}
