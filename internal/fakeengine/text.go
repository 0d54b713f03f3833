package fakeengine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// Vocabulary is the text of token ids, from a tokenizer.json with byte-level tokens. It is read-only.
type Vocabulary struct {
	text  map[block.Token]string
	words []word // tokens that stand for a word with a space before it
}

// word is one token and its text.
type word struct {
	id   block.Token
	text string
}

// ReadVocabulary reads the vocabulary of a tokenizer.json. Only byte-level tokenizers (GPT-2's way of
// writing bytes as letters) are understood.
func ReadVocabulary(tokenizerJSON []byte) (*Vocabulary, error) {
	var f struct {
		Added []struct {
			ID      block.Token `json:"id"`
			Content string      `json:"content"`
		} `json:"added_tokens"`
		Decoder json.RawMessage `json:"decoder"`
		Model   struct {
			Vocab map[string]block.Token `json:"vocab"`
		} `json:"model"`
	}
	if err := json.Unmarshal(tokenizerJSON, &f); err != nil {
		return nil, fmt.Errorf("reading a vocabulary: %w", err)
	}
	if !strings.Contains(string(f.Decoder), `"ByteLevel"`) {
		return nil, errors.New("reading a vocabulary: the tokenizer is not a byte-level one")
	}
	bytes := byteLetters()
	v := &Vocabulary{text: make(map[block.Token]string, len(f.Model.Vocab))}
	for letters, id := range f.Model.Vocab {
		var b []byte
		for _, r := range letters {
			c, ok := bytes[r]
			if !ok {
				return nil, fmt.Errorf("reading a vocabulary: token %d has a letter %q that stands for no byte", id, r)
			}
			b = append(b, c)
		}
		v.text[id] = string(b)
		if isWord(b) {
			v.words = append(v.words, word{id, string(b)})
		}
	}
	for _, a := range f.Added {
		v.text[a.ID] = a.Content
	}
	slices.SortFunc(v.words, func(a, b word) int { return int(a.id) - int(b.id) })
	return v, nil
}

// byteLetters maps the letters that byte-level tokenizers write to the bytes they stand for: printable
// Latin-1 stands for itself, the others were given letters from 256 on, in order.
func byteLetters() map[rune]byte {
	m := make(map[rune]byte, 256)
	next := rune(256)
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae && b <= 0xff {
			m[rune(b)] = byte(b)
			continue
		}
		m[next] = byte(b)
		next++
	}
	return m
}

// isWord: a space and then small letters, so that words in a row are tokens in a row.
func isWord(b []byte) bool {
	if len(b) < 3 || b[0] != ' ' {
		return false
	}
	for _, c := range b[1:] {
		if c < 'a' || c > 'z' {
			return false
		}
	}
	return true
}

// Decode returns the text of ids. Bytes that are not UTF-8 become U+FFFD.
func (v *Vocabulary) Decode(ids []block.Token) (string, error) {
	var b strings.Builder
	for _, id := range ids {
		t, ok := v.text[id]
		if !ok {
			return "", fmt.Errorf("decoding: there is no token %d", id)
		}
		b.WriteString(t)
	}
	return strings.ToValidUTF8(b.String(), string(utf8.RuneError)), nil
}

// speaker draws answers: words of the vocabulary that the tokenizer reads back as the same tokens, so
// that a conversation's next turn holds the tokens that were generated.
type speaker struct {
	words []word
	seed  uint64
	texts map[block.Token]string
}

// candidates bounds how many words of a vocabulary are tried; maxWords how many are kept.
const (
	candidates = 4096
	maxWords   = 512
)

// newSpeaker looks for words. Without a vocabulary or a tokenizer answers are made of bare numbers.
func newSpeaker(ctx context.Context, c *Config) (*speaker, error) {
	sp := &speaker{seed: c.Seed, texts: map[block.Token]string{}}
	if c.Vocabulary == nil || c.Tokenizer == nil {
		return sp, nil
	}
	before, err := encode(ctx, c, "")
	if err != nil {
		return nil, err
	}
	step := max(1, len(c.Vocabulary.words)/candidates)
	for i := 0; i < len(c.Vocabulary.words) && len(sp.words) < maxWords; i += step {
		w := c.Vocabulary.words[i]
		got, err := encode(ctx, c, w.text+w.text)
		if err != nil {
			return nil, err
		}
		if want := append(slices.Clip(before), w.id, w.id); slices.Equal(got, want) {
			sp.words = append(sp.words, w)
			sp.texts[w.id] = w.text
		}
	}
	if len(sp.words) == 0 {
		return nil, errors.New("looking for words to answer with: the tokenizer reads none of its vocabulary's back")
	}
	return sp, nil
}

// encode tokenizes plain text as a completion's prompt.
func encode(ctx context.Context, c *Config, text string) ([]block.Token, error) {
	body, err := json.Marshal(map[string]string{"prompt": text})
	if err != nil {
		return nil, err
	}
	res := c.Tokenizer.Tokenize(ctx, tokenize.Completions, body, tokenize.Options{BlockSize: c.BlockSize})
	if res.Unhashable != "" || len(res.Prompts) != 1 {
		return nil, fmt.Errorf("tokenizing a word: %s: %w", res.Unhashable, errors.Join(res.Err))
	}
	return res.Prompts[0].Tokens, nil
}

// draw is the next token of a sequence: a hash of the seed, the sequence's own, and the position.
func (sp *speaker) draw(s *seq) block.Token {
	n := mix(sp.seed^s.seed, uint64(len(s.tokens)-s.prompt))
	if len(sp.words) == 0 {
		return block.Token(1000 + n%30000)
	}
	return sp.words[n%uint64(len(sp.words))].id
}

// text is what a token of an answer reads as.
func (sp *speaker) text(c *Config, id block.Token) string {
	if t, ok := sp.texts[id]; ok {
		return t
	}
	if c.Vocabulary != nil {
		if t, err := c.Vocabulary.Decode([]block.Token{id}); err == nil {
			return t
		}
	}
	return fmt.Sprintf(" t%d", id)
}
