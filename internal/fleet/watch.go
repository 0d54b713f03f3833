package fleet

import (
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/tokenize"
	"github.com/kvroute/kvroute/internal/vitals"
)

// Size adds up the indexes of all models.
func (f *Fleet) Size() (s index.Size) {
	for _, m := range f.modelsNow() {
		o := m.pool.Size()
		s.Members += o.Members
		s.Handles += o.Handles
		s.Blocks += o.Blocks
		s.Sets += o.Sets
	}
	return s
}

// Holders tells which targets of a model hold how many leading blocks of a chain.
func (f *Fleet) Holders(name string, chain []block.Hash, each func(routeKey string, blocks int)) {
	f.mu.RLock()
	m := f.models[name]
	f.mu.RUnlock()
	if m != nil {
		m.pool.Holders(chain, each)
	}
}

func (f *Fleet) modelsNow() []*model {
	f.mu.RLock()
	defer f.mu.RUnlock()
	list := make([]*model, 0, len(f.models))
	for _, m := range f.models {
		list = append(list, m)
	}
	return list
}

// Bounds of what is kept of a prompt that may be shown.
const (
	textTokens = 1 << 16 // its first ones, some 4,000 blocks: what begins later has no text
	shownAt    = 192     // tokens that a line is made of
)

// decoder is a tokenizer that can tell what tokens say.
type decoder interface {
	Decode([]block.Token) (string, error)
}

// text tells what a request's prompt says, where it may be shown; nil elsewhere. It says exactly what the blocks asked
// for cover: their tokens decoded, or, without a tokenizer, the bytes of the body that they were made of.
func (t *ticket) text(variant int) vitals.Text {
	if !t.f.cfg.Text {
		return nil
	}
	size := t.req.BlockSize
	if t.m.tok == nil {
		all := roughText(t.call.Tools, t.call.Messages, t.call.Prompt)
		return func(from, to int) string {
			from *= size * bytesPerToken
			to = min(to*size*bytesPerToken, from+shownAt*bytesPerToken, len(all))
			if from >= to {
				return ""
			}
			return vitals.Clip(string(all[from:to]))
		}
	}
	d, ok := t.m.tok.(decoder)
	if !ok || variant >= len(t.tokens) {
		return nil
	}
	tokens := t.tokens[variant]
	return func(from, to int) string {
		from *= size
		to = min(to*size, from+shownAt, len(tokens))
		if from >= to {
			return ""
		}
		s, err := d.Decode(tokens[from:to])
		if err != nil {
			return ""
		}
		return vitals.Clip(s)
	}
}

// keepTokens keeps the tokens of a variant's first prompt, where they may be shown.
func (t *ticket) keepTokens(res *tokenize.Result) {
	if !t.f.cfg.Text {
		return
	}
	var own []block.Token
	if len(res.Prompts) > 0 {
		all := res.Prompts[0].Tokens
		own = append(own, all[:min(len(all), textTokens)]...)
	}
	t.tokens = append(t.tokens, own)
}
