package fleet

import (
	"encoding/binary"
	"encoding/json"

	"github.com/kvroute/kvroute/internal/block"
)

// bytesPerToken is what a token is taken to be where there is no tokenizer.
const bytesPerToken = 4

// notTokenized is why decisions without a tokenizer are estimated.
const notTokenized = "approximate: no tokenizer, prefixes are compared by their bytes"

// rough makes block hashes of the bytes of the prompt, four to a token. They equal no engine's; they find
// prefixes that went to a worker before.
func (t *ticket) rough(root block.Hash) {
	t.req.Approximate = notTokenized
	if t.call.Multimodal {
		t.req.InputTokens = int64(len(t.call.Body)) / bytesPerToken
		return
	}
	text := promptBytes(t.call.Body)
	t.req.InputTokens = int64(len(text)) / bytesPerToken
	tokens := make([]block.Token, len(text)/bytesPerToken)
	for i := range tokens {
		tokens[i] = block.Token(binary.LittleEndian.Uint32(text[i*bytesPerToken:]))
	}
	t.req.Blocks = block.AppendChain(nil, root, tokens, t.req.BlockSize)
	if len(t.req.Blocks) == 0 {
		t.req.Unhashable = "the prompt has no complete block"
	}
}

// promptBytes returns what of a body the prompt is made of, in the order templates use: tools come before
// messages. The messages of a conversation's next turn begin with the bytes of this one's, but for the
// closing bracket.
func promptBytes(body []byte) []byte {
	var b struct {
		Tools    json.RawMessage `json:"tools"`
		Messages json.RawMessage `json:"messages"`
		Prompt   json.RawMessage `json:"prompt"`
	}
	if json.Unmarshal(body, &b) != nil {
		return nil
	}
	text := append([]byte(nil), b.Tools...)
	last := b.Messages
	if len(last) == 0 {
		last = b.Prompt
	}
	if n := len(last); n > 0 {
		last = last[:n-1]
	}
	return append(text, last...)
}
