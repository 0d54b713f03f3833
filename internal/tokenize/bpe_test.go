package tokenize_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tinymodel"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// bpe is a plain byte-level BPE, written from its definition for the tiny model: slow, and independent of
// the encoders it is compared with. With bos it adds a token in front, as a post-processor would.
type bpe struct {
	vocab   map[string]block.Token
	rank    map[[2]string]int
	added   []tokenize.AddedToken
	bytes   [256]string
	bos     bool
	encodes int
	mu      sync.Mutex
}

func newBPE(t testing.TB) *bpe {
	t.Helper()
	text, err := fs.ReadFile(tinymodel.FS(), "tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Added []struct {
			ID         block.Token
			Content    string
			Special    bool
			Normalized bool
			LStrip     bool
			RStrip     bool
			SingleWord bool `json:"single_word"`
		} `json:"added_tokens"`
		Model struct {
			Vocab  map[string]block.Token
			Merges [][2]string
		}
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	e := &bpe{vocab: doc.Model.Vocab, rank: map[[2]string]int{}}
	for i, m := range doc.Model.Merges {
		e.rank[m] = i
	}
	for _, a := range doc.Added {
		e.added = append(e.added, tokenize.AddedToken{
			ID: a.ID, Content: a.Content, Special: a.Special, Normalized: a.Normalized, LStrip: a.LStrip, RStrip: a.RStrip, SingleWord: a.SingleWord,
		})
	}
	// GPT-2's bytes as printable runes: those that print stand for themselves, the others follow 255.
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			r, next = next, next+1
		}
		e.bytes[b] = string(r)
	}
	return e
}

func (e *bpe) Name() string                 { return "plain bpe" }
func (e *bpe) Added() []tokenize.AddedToken { return e.added }
func (e *bpe) NormalizerEmpty() bool        { return true }

func (e *bpe) Encode(dst []block.Token, text []byte, addSpecial bool) ([]block.Token, error) {
	e.mu.Lock()
	e.encodes++
	e.mu.Unlock()
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("not UTF-8")
	}
	if addSpecial && e.bos {
		dst = append(dst, e.added[0].ID)
	}
	s := string(text)
	for start := 0; start < len(s); {
		at, length, id := len(s), 0, block.Token(0)
		for i := start; i < len(s) && length == 0; i++ {
			for _, a := range e.added {
				if strings.HasPrefix(s[i:], a.Content) && len(a.Content) > length {
					at, length, id = i, len(a.Content), a.ID
				}
			}
		}
		for rest := s[start:at]; rest != ""; {
			n := word(rest)
			dst = e.merge(dst, rest[:n])
			rest = rest[n:]
		}
		if length > 0 {
			dst = append(dst, id)
		}
		start = at + length
	}
	return dst, nil
}

func (e *bpe) merge(dst []block.Token, w string) []block.Token {
	parts := make([]string, len(w))
	for i := range len(w) {
		parts[i] = e.bytes[w[i]]
	}
	for {
		best, at := -1, 0
		for i := 0; i+1 < len(parts); i++ {
			if r, ok := e.rank[[2]string{parts[i], parts[i+1]}]; ok && (best < 0 || r < best) {
				best, at = r, i
			}
		}
		if best < 0 {
			break
		}
		parts[at] += parts[at+1]
		parts = slices.Delete(parts, at+1, at+2)
	}
	for _, p := range parts {
		dst = append(dst, e.vocab[p])
	}
	return dst
}

// word is the length of the first match of the tokenizer's pattern.
func word(s string) int {
	run := func(i int, in func(rune) bool) int {
		for i < len(s) {
			r, n := utf8.DecodeRuneInString(s[i:])
			if !in(r) {
				break
			}
			i += n
		}
		return i
	}
	other := func(r rune) bool { return !unicode.IsSpace(r) && !unicode.IsLetter(r) && !unicode.IsNumber(r) }
	newline := func(r rune) bool { return r == '\r' || r == '\n' }
	r, n := utf8.DecodeRuneInString(s)
	if r == '\'' {
		for _, t := range []string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"} {
			if len(s) >= len(t) && strings.EqualFold(s[:len(t)], t) {
				return len(t)
			}
		}
	}
	if unicode.IsLetter(r) {
		return run(0, unicode.IsLetter)
	}
	if !newline(r) && !unicode.IsNumber(r) {
		if end := run(n, unicode.IsLetter); end > n {
			return end
		}
	}
	if unicode.IsNumber(r) {
		return n
	}
	i := 0
	if r == ' ' {
		i = 1
	}
	if end := run(i, other); end > i {
		return run(end, newline)
	}
	end := run(0, unicode.IsSpace)
	if last := strings.LastIndexAny(s[:end], "\r\n"); last >= 0 {
		return last + 1
	}
	if end < len(s) {
		if _, last := utf8.DecodeLastRuneInString(s[:end]); end > last {
			return end - last
		}
	}
	return end
}

// chatML is a template in Go: what ChatML says, no more.
type chatML struct{}

func (chatML) WantsParts() bool { return false }
func (chatML) Source() string   { return "ChatML of message.content" }

func (chatML) Render(dst, vars []byte, _ time.Time) ([]byte, error) {
	var v struct {
		Messages []struct{ Role, Content string }
		Add      bool `json:"add_generation_prompt"`
	}
	if err := json.Unmarshal(vars, &v); err != nil {
		return nil, err
	}
	for _, m := range v.Messages {
		dst = fmt.Appendf(dst, "<|im_start|>%s\n%s<|im_end|>\n", m.Role, m.Content)
	}
	if v.Add {
		dst = append(dst, "<|im_start|>assistant\n"...)
	}
	return dst, nil
}
