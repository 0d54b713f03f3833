package fakeengine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// Vocabulary knows the text of token ids; it is what /detokenize answers with.
type Vocabulary interface {
	Decode(ids []block.Token) (string, error)
}

// word is one token and its text.
type word struct {
	id   block.Token
	text string
}

// isWord: a space and then small letters, so that words in a row are tokens in a row.
func isWord(s string) bool {
	if len(s) < 3 || s[0] != ' ' {
		return false
	}
	return strings.Trim(s[1:], "abcdefghijklmnopqrstuvwxyz") == ""
}

// speaker draws answers: words of the vocabulary that the tokenizer reads back as the same tokens, so
// that a conversation's next turn holds the tokens that were generated.
type speaker struct {
	words []word
	seed  uint64
	texts map[block.Token]string
}

// maxTried bounds how many ids are looked at, maxWords how many words are kept.
const (
	maxTried = 8192
	maxWords = 512
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
	for id := block.Token(0); id < maxTried && len(sp.words) < maxWords; id++ {
		text, err := c.Vocabulary.Decode([]block.Token{id})
		if err != nil {
			break // there are no more
		}
		if !isWord(text) {
			continue
		}
		got, err := encode(ctx, c, text+text)
		if err != nil {
			return nil, err
		}
		if want := append(slices.Clip(before), id, id); slices.Equal(got, want) {
			sp.words = append(sp.words, word{id, text})
			sp.texts[id] = text
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
