package tokenize

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvroute/kvroute/internal/block"
)

// specials are the tokens that the post-processor puts around a text (BOS and the like).
type specials struct {
	before, after []block.Token
	known         bool // they are the same around every text; otherwise texts are encoded whole
}

// findSpecials finds out what surrounds the tokens of a text when special tokens are asked for.
func findSpecials(enc Encoder) (specials, error) {
	var s specials
	for i, text := range []string{"a", "b c", ""} {
		inner, err := enc.Encode(nil, []byte(text), false)
		if err != nil {
			return s, fmt.Errorf("encoding %q with %s: %w", text, enc.Name(), err)
		}
		outer, err := enc.Encode(nil, []byte(text), true)
		if err != nil {
			return s, fmt.Errorf("encoding %q with special tokens and %s: %w", text, enc.Name(), err)
		}
		if i == 0 {
			at := index(outer, inner)
			if at < 0 {
				return s, nil
			}
			s = specials{slices.Clone(outer[:at]), slices.Clone(outer[at+len(inner):]), true}
		}
		if !slices.Equal(outer, slices.Concat(s.before, inner, s.after)) {
			s.known = false
			return s, nil
		}
	}
	return s, nil
}

// index finds part in whole; -1 if it is not there.
func index(whole, part []block.Token) int {
	for at := 0; at+len(part) <= len(whole); at++ {
		if slices.Equal(whole[at:at+len(part)], part) {
			return at
		}
	}
	return -1
}

// run is the tokenization of one prompt: its tokens so far and the state of its chain.
type run struct {
	m      *Model
	out    Prompt
	size   int
	chain  *block.Chain // nil until something has to be hashed
	last   block.Hash   // state of the chain while it comes from the cache
	rest   []block.Token
	key    chainKey
	linked bool // key.before names the chain so far, so that the next one can be looked up
	reused int64
}

func (m *Model) newRun(opt *Options, special bool) *run {
	return &run{
		m: m, size: opt.BlockSize, last: opt.Root, linked: true,
		key: chainKey{root: opt.Root, size: opt.BlockSize, special: special},
	}
}

// hash appends the tokens' blocks.
func (r *run) hash(tokens []block.Token) {
	if r.size < 1 {
		return
	}
	if r.chain == nil {
		r.chain = block.NewChain(r.last, r.size)
		r.chain.Reset(r.last, r.rest)
	}
	r.out.Blocks = r.chain.Append(r.out.Blocks, tokens)
}

// add appends tokens that no cache knows.
func (r *run) add(tokens []block.Token) {
	r.out.Tokens = append(r.out.Tokens, tokens...)
	r.hash(tokens)
}

// addPiece appends the tokens of one piece of text, encoded or remembered, and then its blocks likewise.
func (r *run) addPiece(text []byte) error {
	c := r.m.cache
	from := len(r.out.Tokens)
	p, h := c.piece(text)
	var id uint64
	if p != nil {
		r.out.Tokens = append(r.out.Tokens, p.tokens...)
		r.reused += int64(len(p.tokens))
		id = p.id
	} else {
		var err error
		if r.out.Tokens, err = r.m.enc.Encode(r.out.Tokens, text, false); err != nil {
			return &refusal{ReasonEncode, err}
		}
		id = c.addPiece(h, text, r.out.Tokens[from:])
	}
	r.link(id, r.out.Tokens[from:], p != nil)
	return nil
}

// link continues the chain with a piece. Only a known piece can have a known chain.
func (r *run) link(id uint64, tokens []block.Token, known bool) {
	if r.size < 1 {
		return
	}
	if r.linked = r.linked && id != 0; !r.linked {
		r.hash(tokens)
		return
	}
	r.key.piece = id
	if known {
		if n := r.m.cache.chain(r.key); n != nil {
			r.out.Blocks = append(r.out.Blocks, n.blocks...)
			r.last, r.rest, r.chain = n.last, n.rest, nil
			r.key.before = n.id
			return
		}
	}
	from := len(r.out.Blocks)
	r.hash(tokens)
	r.key.before = r.m.cache.addChain(r.key, r.out.Blocks[from:], r.chain)
	r.linked = r.key.before != 0
}

// text tokenizes a prompt. Between pieces it looks whether somebody still waits for it.
func (m *Model) text(ctx context.Context, text []byte, special bool, opt *Options) (*run, error) {
	r := m.newRun(opt, special)
	if special && !m.specials.known {
		tokens, err := m.enc.Encode(nil, text, true)
		if err != nil {
			return nil, &refusal{ReasonEncode, err}
		}
		r.linked = false
		r.add(tokens)
		return r, nil
	}
	r.out.Tokens = make([]block.Token, 0, len(text)/3+len(m.specials.before)+16)
	if r.size > 0 {
		r.out.Blocks = make([]block.Hash, 0, len(text)/3/r.size+1)
	}
	if special {
		r.add(m.specials.before)
	}
	from := 0
	cuts := m.split.cuts(make([]int, 0, 64), text)
	for i := 0; i <= len(cuts); i++ {
		to := len(text)
		if i < len(cuts) {
			to = cuts[i]
		}
		if ctx.Err() != nil {
			return nil, &refusal{ReasonDeadline, ctx.Err()}
		}
		if to > from {
			if err := r.addPiece(text[from:to]); err != nil {
				return nil, err
			}
		}
		from = to
	}
	if special {
		r.linked = false
		r.add(m.specials.after)
	}
	return r, nil
}

// suffix appends what SGLang encodes apart from the rendered prompt and joins to it: with special tokens,
// but without a second BOS.
func (r *run) suffix(text []byte) error {
	tokens, err := r.m.enc.Encode(nil, text, true)
	if err != nil {
		return &refusal{ReasonEncode, err}
	}
	if len(tokens) > 0 && r.m.bosKnown && tokens[0] == r.m.bos {
		tokens = tokens[1:]
	}
	r.linked = false
	r.add(tokens)
	return nil
}

// ids reads a prompt of token ids.
func (m *Model) ids(v *value, opt *Options) (*run, error) {
	r := m.newRun(opt, false)
	r.linked = false
	tokens := make([]block.Token, 0, v.nums)
	for i, raw := 1, v.raw; i < len(raw)-1; i++ {
		if c := raw[i]; c == ' ' || c == ',' || c == '\n' || c == '\t' || c == '\r' {
			continue
		}
		var id uint64
		start := i
		for ; raw[i] >= '0' && raw[i] <= '9' && id <= 1<<32; i++ {
			id = id*10 + uint64(raw[i]-'0')
		}
		if c := raw[i]; i == start || c != ',' && c != ']' && c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return nil, unsupported("token %d of a prompt is no token id", len(tokens))
		}
		if id > 1<<32-1 || m.meta.Vocab > 0 && id >= uint64(m.meta.Vocab) {
			return nil, &refusal{ReasonBody, errors.New("a token id is not in the vocabulary")}
		}
		tokens = append(tokens, block.Token(id))
	}
	r.add(tokens)
	return r, nil
}
