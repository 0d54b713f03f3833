package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/kvroute/kvroute/internal/block"
)

// Outcome is what a comparison of token ids came to.
type Outcome uint8

// The outcomes.
const (
	Unknown   Outcome = iota // could not be compared; Detail says why
	Confirmed                // equal
	Diverged                 // not equal; Detail says where
)

// String names an outcome.
func (o Outcome) String() string {
	return [...]string{"unknown", "confirmed", "diverged"}[o]
}

// Verdict is the comparison of one probe.
type Verdict struct {
	Case    string // name of the probe
	Outcome Outcome
	Detail  string
	// At is the first position that differs, Ours and Theirs are the lengths; with Diverged only.
	At, Ours, Theirs int
}

// Local makes tokens here.
type Local struct {
	// Body makes the tokens of a request to path, /v1/chat/completions or /v1/completions, as the router
	// does for this engine.
	Body func(ctx context.Context, path string, body []byte) ([]block.Token, error)
	// Text encodes plain text. Nil: only bodies are compared.
	Text func(ctx context.Context, text string, addSpecial bool) ([]block.Token, error)
}

// Canary is a text whose token ids tell tokenizers apart: line breaks, other scripts, what may or may not
// be special tokens, and a character beyond 16 bits. It is the one that Infera's workers report.
const Canary = "Hello, world!\n你好，世界！<|im_start|>system\n<|endoftext|><|im_end|>🦄"

const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
)

// probeCase is one request body without the model, in parts that the engine's /tokenize takes as well.
type probeCase struct {
	name string
	path string
	body string // JSON object
}

const probeTools = `"tools":[{"type":"function","function":{"name":"get_weather","description":"Current weather of a place.","parameters":{"type":"object","properties":{"city":{"type":"string","description":"City & country"},"unit":{"type":"string","enum":["C","F"]}},"required":["city"]}}}]`

// probeCases are what requests are made of that engines and templates treat differently.
var probeCases = []probeCase{
	{"text", completionsPath, `{"prompt":"The quick brown fox.\n\n  Zwölf Boxkämpfer jagen Viktor; 你好，世界 🦄 12345 <|im_start|>x"}`},
	{"chat", chatPath, `{"messages":[{"role":"system","content":"You are terse."},{"role":"user","content":"Bonjour, ça va ?  "},{"role":"assistant","content":"Oui."},{"role":"user","content":"\n1 + 1 = <b>?</b> \"quoted\" 你好"}]}`},
	{"no system", chatPath, `{"messages":[{"role":"user","content":"Hi"}]}`},
	{"parts", chatPath, `{"messages":[{"role":"user","content":[{"type":"text","text":"first"},{"type":"text","text":"second"}]}]}`},
	{"tools", chatPath, `{"messages":[{"role":"user","content":"Weather in Oslo?"}],` + probeTools + `}`},
	{"tool results", chatPath, `{"messages":[{"role":"user","content":"Weather in Oslo?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_000000001","type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Oslo\", \"unit\": \"C\"}"}}]},{"role":"tool","tool_call_id":"call_000000001","content":"{\"temp\": 4.0}"},{"role":"user","content":"Thanks"}],` + probeTools + `}`},
	{"reasoning", chatPath, `{"messages":[{"role":"user","content":"2 + 2?"},{"role":"assistant","reasoning_content":"It is simple.","content":"4"},{"role":"user","content":"And 3 + 3?"}]}`},
	{"no thinking", chatPath, `{"messages":[{"role":"user","content":"2 + 2?"}],"chat_template_kwargs":{"enable_thinking":false,"thinking":false}}`},
}

// Parity sends a fixed set of prompts and conversations through the engine's own tokenization and compares
// with ours: a completion, conversations with and without system message, parts, tools, tool results,
// reasoning, template arguments, and the canary. What the engine cannot be asked is Unknown. The engine
// tokenizes only, unless its /tokenize lacks something: then it generates one token.
//
// The error is that of a context that ended; what was compared before it comes along.
func Parity(ctx context.Context, client *http.Client, base *url.URL, engine, model string, local Local) ([]Verdict, error) {
	a := api{client: client, base: base}
	var all []Verdict
	for _, c := range probeCases {
		all = append(all, a.compareCase(ctx, engine, model, c, local))
		if err := ctx.Err(); err != nil {
			return all, fmt.Errorf("comparing tokens with %s: %w", base.Host, err)
		}
	}
	if local.Text != nil {
		v := Verdict{Case: "canary"}
		ours, err := local.Text(ctx, Canary, false)
		theirs, theirErr := a.tokenize(ctx, map[string]any{"model": model, "prompt": Canary, "add_special_tokens": false})
		v.compare(ours, err, theirs, theirErr)
		all = append(all, v)
	}
	if err := ctx.Err(); err != nil {
		return all, fmt.Errorf("comparing tokens with %s: %w", base.Host, err)
	}
	return all, nil
}

// Worst is the outcome of them all: Diverged if any is, else Confirmed if any is.
func Worst(all []Verdict) Outcome {
	worst := Unknown
	for _, v := range all {
		worst = max(worst, v.Outcome)
	}
	return worst
}

func (a *api) compareCase(ctx context.Context, engine, model string, c probeCase, local Local) Verdict {
	v := Verdict{Case: c.name}
	var body map[string]any
	if err := json.Unmarshal([]byte(c.body), &body); err != nil {
		v.Detail = err.Error()
		return v
	}
	body["model"] = model
	sent, err := json.Marshal(body)
	if err != nil {
		v.Detail = err.Error()
		return v
	}
	ours, ourErr := local.Body(ctx, c.path, sent)
	theirs, theirErr := a.theirTokens(ctx, engine, c, body)
	v.compare(ours, ourErr, theirs, theirErr)
	return v
}

// compare fills in the outcome. An engine that refuses a conversation refuses it as a request too, so
// nothing is lost where only one side does.
func (v *Verdict) compare(ours []block.Token, ourErr error, theirs []block.Token, theirErr error) {
	switch {
	case theirErr != nil && ourErr != nil && status(theirErr) == http.StatusBadRequest:
		v.Outcome, v.Detail = Confirmed, "both refuse it"
		return
	case theirErr != nil:
		v.Detail = theirErr.Error()
		return
	case ourErr != nil:
		v.Detail = "not tokenized here: " + ourErr.Error()
		return
	}
	n := 0
	for n < len(ours) && n < len(theirs) && ours[n] == theirs[n] {
		n++
	}
	if n == len(ours) && n == len(theirs) {
		v.Outcome, v.Detail = Confirmed, fmt.Sprintf("%d tokens", n)
		return
	}
	v.Outcome, v.At, v.Ours, v.Theirs = Diverged, n, len(ours), len(theirs)
	v.Detail = fmt.Sprintf("token %d differs: %s here, %s there (%d and %d tokens)", n, tokenAt(ours, n), tokenAt(theirs, n), len(ours), len(theirs))
}

func tokenAt(ts []block.Token, n int) string {
	if n >= len(ts) {
		return "the end"
	}
	return fmt.Sprint(ts[n])
}

// theirTokens asks the engine.
func (a *api) theirTokens(ctx context.Context, engine string, c probeCase, body map[string]any) ([]block.Token, error) {
	if c.path == completionsPath {
		return a.tokenize(ctx, map[string]any{"model": body["model"], "prompt": body["prompt"]})
	}
	ts, err := a.tokenize(ctx, body)
	switch {
	case engine == VLLM && err == nil:
		return ts, nil
	case engine == VLLM && status(err) == http.StatusBadRequest:
		return nil, err // it knows conversations: this one is refused
	case err == nil && a.reads(ctx, body, ts):
		return ts, nil
	case err != nil && (status(err) == 0 || status(err) >= 500):
		return nil, err
	}
	return a.generate(ctx, c.path, body)
}

// reads tells whether /tokenize looks at all of a body. Other engines' versions pass over tools and template
// arguments in silence, and then their answer proves nothing: it has to be another without them.
func (a *api) reads(ctx context.Context, body map[string]any, answer []block.Token) bool {
	plain := map[string]any{"model": body["model"], "messages": body["messages"]}
	if len(plain) == len(body) {
		return true
	}
	without, err := a.tokenize(ctx, plain)
	return err == nil && !slices.Equal(without, answer)
}

// errNoTokens: an answer without token ids.
var errNoTokens = errors.New("the answer has no token ids")

// tokenize asks POST /tokenize.
func (a *api) tokenize(ctx context.Context, body map[string]any) ([]block.Token, error) {
	sent, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("POST /tokenize: %w", err)
	}
	data, err := a.do(ctx, http.MethodPost, "/tokenize", sent)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Tokens []block.Token `json:"tokens"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("POST /tokenize: %w", err)
	}
	if answer.Tokens == nil {
		return nil, fmt.Errorf("POST /tokenize: %w", errNoTokens)
	}
	return answer.Tokens, nil
}

// generate has the engine answer the request with one token and tell what it made of the prompt.
func (a *api) generate(ctx context.Context, path string, body map[string]any) ([]block.Token, error) {
	ask := map[string]any{"max_tokens": 1, "temperature": 0, "return_token_ids": true}
	for k, v := range body {
		ask[k] = v
	}
	sent, err := json.Marshal(ask)
	if err != nil {
		return nil, fmt.Errorf("POST %s: %w", path, err)
	}
	data, err := a.do(ctx, http.MethodPost, path, sent)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Tokens  []block.Token `json:"prompt_token_ids"` // vLLM
		Choices []struct {
			Tokens []block.Token `json:"prompt_token_ids"` // SGLang
		} `json:"choices"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("POST %s: %w", path, err)
	}
	switch {
	case answer.Tokens != nil:
		return answer.Tokens, nil
	case len(answer.Choices) > 0 && answer.Choices[0].Tokens != nil:
		return answer.Choices[0].Tokens, nil
	}
	return nil, fmt.Errorf("POST %s with return_token_ids: %w", path, errNoTokens)
}
