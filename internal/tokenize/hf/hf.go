// Package hf loads models as Hugging Face lays them out (tokenizer.json, tokenizer_config.json,
// chat_template.jinja, config.json) and gives their encoders and chat templates. The work is done by a
// small Rust archive (native/): fastokens where it proves equal to Hugging Face's tokenizers, which stays
// beside it as the reference, and minijinja made to render as Jinja2 does in transformers.
//
// It needs cgo and the archive, which `make setup` builds; without cgo, Open fails with [ErrNotBuilt].
package hf

import (
	"errors"
	"strconv"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

var (
	// ErrNotBuilt is what Open gives in a program built without cgo.
	ErrNotBuilt = errors.New("this program was built without cgo, so it has no tokenizers (build with CGO_ENABLED=1 after make setup)")
	// ErrTooLarge is wrapped by errors about texts above Options.MaxText.
	ErrTooLarge = errors.New("text too large")
	// ErrUTF8 is wrapped by errors about text that is not UTF-8.
	ErrUTF8 = errors.New("invalid UTF-8")
)

// Options of Open. The zero value is good.
type Options struct {
	// ChatTemplate is a file to take the chat template from instead of the model's own.
	ChatTemplate string
	// MaxText bounds one text in bytes, because an encoding cannot be interrupted; 0: 64 MiB. Text
	// without any word boundary takes up to half a second a megabyte, with the reference encoder
	// several seconds.
	MaxText int
	// Concurrent bounds the encodings and renders at once, because each holds an operating system
	// thread; more wait. 0: one a processor.
	Concurrent int
}

func (o Options) maxText() int {
	if o.MaxText > 0 {
		return o.MaxText
	}
	return 64 << 20
}

// CanaryText is encoded into Model.Canary, by which two tokenizers can be told apart at a glance.
const CanaryText = "Hello, world!\n你好，世界！<|im_start|>system\n<|endoftext|><|im_end|>🦄"

// SpecialToken is a named special token, a variable of chat templates.
type SpecialToken struct {
	Name string // bos_token, eos_token, unk_token, …
	Text string
}

// Model is a loaded model directory. It is safe for concurrent use; what it holds in native memory goes
// with it.
type Model struct {
	// Path is what Open was given.
	Path string
	// Digest is the first 16 hex digits of the SHA-256 of tokenizer.json.
	Digest string
	// Canary is CanaryText in ids, without special tokens.
	Canary []block.Token
	// VocabSize counts the ids, added tokens included.
	VocabSize int
	// BOS and EOS are the texts of these tokens; "" if the model has none.
	BOS, EOS string
	// Special are the named special tokens in transformers' order.
	Special []SpecialToken
	// TokenizerClass, ModelType and Architectures are the files' own words; empty if they have none.
	TokenizerClass string
	ModelType      string
	Architectures  []string
	// FastOff says why fastokens does not encode for this model; "" if it does.
	FastOff string
	// Warnings are what users should know about ids and renders of this model, one sentence each.
	Warnings []string

	encoder *encoder
	plain   *Template
	tools   *Template
	data    []byte // tokenizer.json as the encoders see it, for Reference
	opt     Options
	slots   chan struct{}
}

// Encoder is the encoder to use: the fast one, or the reference if the fast one is off.
func (m *Model) Encoder() tokenize.Encoder { return m.encoder }

// Template is the chat template, nil if the model has none. Models with several have another one for
// conversations with tools, see ToolTemplate.
func (m *Model) Template() tokenize.Template {
	if m.plain == nil {
		return nil
	}
	return m.plain
}

// ToolTemplate is the template for conversations with tools: the one named tool_use if the model has one,
// otherwise Template.
func (m *Model) ToolTemplate() tokenize.Template {
	if m.tools == nil {
		return m.Template()
	}
	return m.tools
}

// TemplateError is a render that failed. Error says what and where without quoting the prompt; Detail is
// the template's whole message, which may.
type TemplateError struct {
	What   string
	Detail string
	Line   int  // in the template; 0: unknown
	Raised bool // the template itself refused (raise_exception)
	// BadVars says that the variables were no JSON object.
	BadVars bool
}

func (e *TemplateError) Error() string {
	s := "rendering the chat template: "
	if e.Line > 0 {
		s += "line " + strconv.Itoa(e.Line) + ": "
	}
	return s + e.What
}
