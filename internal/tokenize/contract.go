// Package tokenize turns the body of a request into the token ids and block hashes that the engine
// behind will compute for it: message preparation as the engine does it, chat template, encoder, and
// caches of what was tokenized before. Encoders and templates are behind interfaces; package hf has the
// real ones.
package tokenize

import (
	"context"
	"encoding/json"
	"time"

	"github.com/kvroute/kvroute/internal/block"
)

// Encoder turns text into token ids. It is safe for concurrent use.
type Encoder interface {
	// Encode appends the ids of text to dst. With addSpecial the tokenizer's post-processor adds what it
	// adds (BOS and the like). Text must be valid UTF-8 and may hold NUL.
	Encode(dst []block.Token, text []byte, addSpecial bool) ([]block.Token, error)
	// Name says what encodes, with its version: "fastokens 0.3.5", "tokenizers 0.23.2".
	Name() string
	// Added are the tokenizer's added tokens.
	Added() []AddedToken
	// NormalizerEmpty says that the tokenizer has no normalizer.
	NormalizerEmpty() bool
}

// AddedToken is an entry of added_tokens in tokenizer.json.
type AddedToken struct {
	ID         block.Token
	Content    string
	Special    bool
	Normalized bool
	LStrip     bool
	RStrip     bool
	SingleWord bool
}

// Template renders conversations. It is safe for concurrent use.
type Template interface {
	// Render appends the rendered text to dst. vars is a JSON object of the template's variables
	// (messages, tools, add_generation_prompt, bos_token, …), keys in order; now is what strftime_now sees.
	Render(dst []byte, vars []byte, now time.Time) ([]byte, error)
	// WantsParts says that the template iterates over the parts of a message's content itself.
	WantsParts() bool
}

// Prepare names how an engine prepares messages before it renders them.
type Prepare string

// The preparations. PrepareNone is transformers' apply_chat_template to the letter.
const (
	PrepareNone   Prepare = "none"
	PrepareVLLM   Prepare = "vllm"
	PrepareSGLang Prepare = "sglang"
)

// Endpoint is the schema of a request's body.
type Endpoint uint8

// The endpoints.
const (
	Chat        Endpoint = iota // /v1/chat/completions
	Completions                 // /v1/completions
)

// Variant is how one kind of worker makes tokens of a body. Workers with equal variants share the result.
type Variant struct {
	Prepare Prepare
	// Kwargs are the engine's own defaults for chat_template_kwargs, a JSON object; nil: none.
	Kwargs json.RawMessage
}

// Prompt is one sequence of tokens. Its slices are the caller's.
type Prompt struct {
	Tokens []block.Token
	Blocks []block.Hash // complete blocks at the asked size
}

// Result is what a body came to. A body may hold several prompts (a batch of /v1/completions).
type Result struct {
	Prompts []Prompt
	// Tokens is the number of input tokens of all prompts. If Exact is false it is an estimate:
	// string bytes / 4 without inline binary data.
	Tokens int64
	Exact  bool
	// Unhashable says why there are no tokens; "" if there are. It is one of the Reason constants.
	Unhashable string
	// Err is the error behind Unhashable, for logs; it never holds text of the prompt. May be nil.
	Err error
	// Multimodal says that the body has images, audio or files: its text tokens are not the engine's.
	Multimodal bool
	// Reused counts the tokens that came from the caches.
	Reused int64
	Text   []byte // rendered text, only if asked for
}

// Reasons why a body has no tokens. They are label values of metrics.
const (
	ReasonNoTokenizer = "no tokenizer"       // no model directory was given
	ReasonTemplate    = "template failed"    // the template raised an error or is missing
	ReasonEncode      = "encoding failed"    // the encoder refused
	ReasonBody        = "body not supported" // neither prompt nor messages in a form we know
	ReasonUTF8        = "invalid UTF-8"
	ReasonTooLarge    = "too large" // above Options.MaxText
	ReasonDeadline    = "deadline"  // took longer than the context allows
	ReasonBusy        = "busy"      // too many encodings at once
)

// Options of one tokenization.
type Options struct {
	Variant   Variant
	BlockSize int
	Root      block.Hash // root of the chains: block.Namespace(adapter, salt)
	Now       time.Time
	KeepText  bool
}

// Tokenizer is what the router asks. It is safe for concurrent use; *Model is the one there is, a nil
// *Model answers everything with ReasonNoTokenizer and an estimate.
type Tokenizer interface {
	Tokenize(ctx context.Context, ep Endpoint, body []byte, opt Options) Result
}
