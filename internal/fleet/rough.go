package fleet

import (
	"context"
	"encoding/binary"
	"sync"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
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
		var none *tokenize.Model // estimates without inline binary data
		t.req.InputTokens = none.Tokenize(context.Background(), t.call.Endpoint, t.call.Body, tokenize.Options{}).Tokens
		return
	}
	t.req.Blocks, t.req.InputTokens = roughBlocks(root, t.req.BlockSize, t.call.Tools, t.call.Messages, t.call.Prompt)
	if len(t.req.Blocks) == 0 {
		t.req.Unhashable = "the prompt has no complete block"
	}
}

// roughTokens is memory for the bytes of a prompt as tokens.
var roughTokens = sync.Pool{New: func() any { return new([]block.Token) }}

// roughBlocks hashes the parts of a body that make the prompt, in the order templates use them: tools come
// before messages. The messages of a conversation's next turn begin with the bytes of this one's, but for
// the closing bracket, which is left out.
func roughBlocks(root block.Hash, size int, tools, messages, prompt []byte) (blocks []block.Hash, tokens int64) {
	buf := roughTokens.Get().(*[]block.Token)
	defer roughTokens.Put(buf)
	all := (*buf)[:0]
	for _, part := range roughParts(tools, messages, prompt) {
		for i := 0; i < len(part); i += bytesPerToken {
			all = append(all, block.Token(binary.LittleEndian.Uint32(part[i:])))
		}
	}
	*buf = all
	blocks = make([]block.Hash, 0, len(all)/size)
	return block.AppendChain(blocks, root, all, size), int64(len(all))
}

// roughParts are the bytes that make the tokens: each part begins a token, so that no part moves another.
func roughParts(tools, messages, prompt []byte) [2][]byte {
	last := messages
	if len(last) == 0 {
		last = prompt
	}
	last = last[:max(len(last)-1, 0)]
	whole := func(p []byte) []byte { return p[:len(p)/bytesPerToken*bytesPerToken] }
	return [2][]byte{whole(tools), whole(last)}
}

// roughText is a copy of the beginning of them.
func roughText(tools, messages, prompt []byte) (all []byte) {
	for _, part := range roughParts(tools, messages, prompt) {
		all = append(all, part[:min(len(part), textTokens*bytesPerToken-len(all))]...)
	}
	return all
}
