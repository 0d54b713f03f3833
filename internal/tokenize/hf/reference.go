//go:build cgo

package hf

import (
	"bytes"
	"fmt"
	"runtime"

	"github.com/daulet/tokenizers"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// Reference is Hugging Face's own encoder, through github.com/daulet/tokenizers, in memory of its own:
// what the encoder in use is compared with. It loads the model again.
func (m *Model) Reference() (tokenize.Encoder, error) {
	t, err := tokenizers.FromBytes(m.data)
	if err != nil {
		return nil, fmt.Errorf("loading model %s: tokenizer.json: %w", m.Path, err)
	}
	r := &reference{encoder: *m.encoder, daulet: t}
	r.encoder.reference = true
	r.encoder.name = "tokenizers 0.23.2"
	runtime.AddCleanup(r, func(t *tokenizers.Tokenizer) { _ = t.Close() }, t)
	return r, nil
}

// reference encodes through daulet's interface, whose texts end at the first NUL, and texts with a NUL
// through ours, over the same encoder.
type reference struct {
	encoder
	daulet *tokenizers.Tokenizer
}

// Encode implements tokenize.Encoder.
func (r *reference) Encode(dst []block.Token, text []byte, addSpecial bool) ([]block.Token, error) {
	if bytes.IndexByte(text, 0) >= 0 {
		return r.encoder.Encode(dst, text, addSpecial)
	}
	if err := check(text, r.maxText); err != nil {
		return dst, fmt.Errorf("encoding text: %w", err)
	}
	r.slots <- struct{}{}
	defer func() { <-r.slots }()
	e, err := r.daulet.EncodeWithOptionsErr(string(text), addSpecial)
	runtime.KeepAlive(r)
	if err != nil {
		return dst, fmt.Errorf("encoding %d bytes with %s: %w", len(text), r.name, err)
	}
	return append(dst, e.IDs...), nil
}
