package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// files is what a model directory says, before anything is built from it.
type files struct {
	tokenizer  []byte            // tokenizer.json
	templates  map[string]string // by name; "default" is the one without a name
	config     tokenizerConfig
	special    []SpecialToken
	modelType  string
	archs      []string
	configFile string // the file templates came from, for errors
}

// tokenizerConfig is the part of tokenizer_config.json that matters here.
type tokenizerConfig struct {
	Class        string                     `json:"tokenizer_class"`
	ChatTemplate json.RawMessage            `json:"chat_template"`
	AddedTokens  map[string]json.RawMessage `json:"added_tokens_decoder"`
}

// specialNames are the named special tokens transformers hands to templates, in its order.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// readFiles reads the directory (or the tokenizer.json) at path.
func readFiles(path string, opt Options) (*files, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("loading model %s: %w", path, unwrapPath(err))
	}
	dir := path
	file := filepath.Join(path, "tokenizer.json")
	if !st.IsDir() {
		dir, file = filepath.Dir(path), path
	}
	f := &files{templates: map[string]string{}}
	if f.tokenizer, err = os.ReadFile(file); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("loading model %s: no tokenizer.json there (hint: a model's directory as downloaded has one; convert older formats with transformers' save_pretrained)", path)
		}
		return nil, fmt.Errorf("loading model %s: %w", path, unwrapPath(err))
	}
	var raw map[string]json.RawMessage
	for _, step := range []struct {
		name string
		into []any
	}{
		{"tokenizer_config.json", []any{&f.config, &raw}},
		{"config.json", []any{&struct {
			T *string   `json:"model_type"`
			A *[]string `json:"architectures"`
		}{&f.modelType, &f.archs}}},
	} {
		if err := readJSON(filepath.Join(dir, step.name), step.into...); err != nil {
			return nil, fmt.Errorf("loading model %s: %w", path, err)
		}
	}
	var legacy map[string]json.RawMessage
	if err := readJSON(filepath.Join(dir, "special_tokens_map.json"), &legacy); err != nil {
		return nil, fmt.Errorf("loading model %s: %w", path, err)
	}
	f.special = specialTokens(raw, legacy)
	if err := f.readTemplates(dir, opt.ChatTemplate); err != nil {
		return nil, fmt.Errorf("loading model %s: %w", path, err)
	}
	if err := f.mergeAddedTokens(); err != nil {
		return nil, fmt.Errorf("loading model %s: %w", path, err)
	}
	return f, nil
}

// unwrapPath drops the path of a *PathError, which the caller names already.
func unwrapPath(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// readJSON reads an optional JSON file into every destination.
func readJSON(file string, into ...any) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(file), unwrapPath(err))
	}
	for _, v := range into {
		if err := json.Unmarshal(data, v); err != nil {
			return fmt.Errorf("%s:%d: %w", filepath.Base(file), lineOf(data, err), err)
		}
	}
	return nil
}

// lineOf is the line of a JSON error, counting from 1.
func lineOf(data []byte, err error) int {
	var se *json.SyntaxError
	var te *json.UnmarshalTypeError
	var at int64
	switch {
	case errors.As(err, &se):
		at = se.Offset
	case errors.As(err, &te):
		at = te.Offset
	}
	return 1 + bytes.Count(data[:min(int(at), len(data))], []byte("\n"))
}

// specialTokens are the named tokens: of tokenizer_config.json, or where that has none of the older
// special_tokens_map.json. A token is a string or an object with its content.
func specialTokens(config, legacy map[string]json.RawMessage) []SpecialToken {
	var out []SpecialToken
	add := func(name string, raw json.RawMessage) {
		if text := tokenText(raw); text != "" {
			out = append(out, SpecialToken{Name: name, Text: text})
		}
	}
	for _, name := range specialNames {
		raw, ok := config[name]
		if !ok {
			raw = legacy[name]
		}
		add(name, raw)
	}
	var extra map[string]json.RawMessage
	if json.Unmarshal(config["extra_special_tokens"], &extra) == nil {
		names := make([]string, 0, len(extra))
		for name := range extra {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			add(name, extra[name])
		}
	}
	return out
}

func tokenText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var token struct{ Content string }
	if json.Unmarshal(raw, &token) == nil {
		return token.Content
	}
	return ""
}

// readTemplates finds the chat templates where transformers does: a file the user names, else
// chat_template.jinja with additional_chat_templates/NAME.jinja beside it, else chat_template in
// tokenizer_config.json (a string, or a list of named ones), else the processor's chat_template.json.
func (f *files) readTemplates(dir, override string) error {
	if override != "" {
		data, err := os.ReadFile(override)
		if err != nil {
			return fmt.Errorf("reading chat template %s: %w", override, unwrapPath(err))
		}
		f.templates["default"], f.configFile = string(data), override
		return nil
	}
	data, err := os.ReadFile(filepath.Join(dir, "chat_template.jinja"))
	if err == nil {
		f.templates["default"], f.configFile = string(data), "chat_template.jinja"
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("chat_template.jinja: %w", unwrapPath(err))
	}
	more, err := filepath.Glob(filepath.Join(dir, "additional_chat_templates", "*.jinja"))
	if err != nil {
		return fmt.Errorf("additional_chat_templates: %w", err)
	}
	for _, file := range more {
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("additional_chat_templates/%s: %w", filepath.Base(file), unwrapPath(err))
		}
		f.templates[strings.TrimSuffix(filepath.Base(file), ".jinja")] = string(data)
	}
	if len(f.templates) > 0 {
		return nil
	}
	if err := f.configTemplates(f.config.ChatTemplate, "tokenizer_config.json"); err != nil || len(f.templates) > 0 {
		return err
	}
	var processor struct {
		ChatTemplate json.RawMessage `json:"chat_template"`
	}
	if err := readJSON(filepath.Join(dir, "chat_template.json"), &processor); err != nil {
		return err
	}
	return f.configTemplates(processor.ChatTemplate, "chat_template.json")
}

func (f *files) configTemplates(raw json.RawMessage, file string) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	f.configFile = file
	var one string
	if json.Unmarshal(raw, &one) == nil {
		f.templates["default"] = one
		return nil
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &named); err != nil {
		return fmt.Errorf("%s: chat_template is neither a string nor a list of named templates: %w", file, err)
	}
	for _, t := range named {
		f.templates[t.Name] = t.Template
	}
	return nil
}

// mergeAddedTokens appends to tokenizer.json what only tokenizer_config.json declares: transformers adds
// those tokens when it loads, so engines have them.
func (f *files) mergeAddedTokens() error {
	if len(f.config.AddedTokens) == 0 {
		return nil
	}
	var head struct {
		AddedTokens []struct {
			ID      uint32
			Content string
		} `json:"added_tokens"`
	}
	if err := json.Unmarshal(f.tokenizer, &head); err != nil {
		return fmt.Errorf("tokenizer.json:%d: %w", lineOf(f.tokenizer, err), err)
	}
	have := make(map[string]bool, len(head.AddedTokens))
	for _, t := range head.AddedTokens {
		have[t.Content] = true
	}
	missing := map[uint64]json.RawMessage{}
	var ids []uint64
	for key, raw := range f.config.AddedTokens {
		if have[tokenText(raw)] {
			continue
		}
		id, err := strconv.ParseUint(key, 10, 32)
		if err != nil {
			return fmt.Errorf("tokenizer_config.json: added_tokens_decoder: %q is not an id", key)
		}
		missing[id] = raw
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	var whole map[string]json.RawMessage
	if err := json.Unmarshal(f.tokenizer, &whole); err != nil {
		return fmt.Errorf("tokenizer.json:%d: %w", lineOf(f.tokenizer, err), err)
	}
	var list []json.RawMessage
	if raw := whole["added_tokens"]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &list); err != nil {
			return fmt.Errorf("tokenizer.json: added_tokens: %w", err)
		}
	}
	for _, id := range ids {
		token := addedToken{ID: uint32(id)}
		if err := json.Unmarshal(missing[id], &token); err != nil {
			return fmt.Errorf("tokenizer_config.json: added_tokens_decoder: %d: %w", id, err)
		}
		raw, err := json.Marshal(token)
		if err != nil {
			return fmt.Errorf("tokenizer_config.json: added_tokens_decoder: %d: %w", id, err)
		}
		list = append(list, raw)
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("merging added tokens: %w", err)
	}
	whole["added_tokens"] = raw
	if f.tokenizer, err = json.Marshal(whole); err != nil {
		return fmt.Errorf("merging added tokens: %w", err)
	}
	return nil
}

// addedToken is an entry of added_tokens as tokenizer.json wants it, every field there.
type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	Special    bool   `json:"special"`
	Normalized bool   `json:"normalized"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	SingleWord bool   `json:"single_word"`
}

// ownRenderers are the models whose engines render conversations with code of their own instead of the
// template: by prefix of model_type, or of an architecture.
var ownRenderers = []struct{ prefix, engines string }{
	{"deepseek_v32", "vLLM and SGLang"},
	{"DeepseekV32", "vLLM and SGLang"},
	{"deepseek_v4", "vLLM"},
	{"DeepseekV4", "vLLM"},
	{"gpt_oss", "vLLM"},
	{"GptOss", "vLLM"},
	{"cohere", "vLLM"},
	{"Cohere", "vLLM"},
	{"kimi", "vLLM"},
	{"Kimi", "vLLM"},
	{"mistral", "vLLM (with its tokenizer mode for Mistral)"},
	{"Mistral", "vLLM (with its tokenizer mode for Mistral)"},
	{"glm5", "SGLang"},
	{"Glm5", "SGLang"},
}

// rebuiltClasses are tokenizer classes that transformers 5 builds anew from the vocabulary instead of
// loading tokenizer.json, so that engines on it may have other ids.
var rebuiltClasses = []string{"LlamaTokenizer", "GPT2Tokenizer", "CodeLlamaTokenizer"}

// warnings say what of the directory is known to differ from what engines do.
func (f *files) warnings() []string {
	var out []string
	for _, r := range ownRenderers {
		if strings.HasPrefix(f.modelType, r.prefix) || slices.ContainsFunc(f.archs, func(a string) bool { return strings.HasPrefix(a, r.prefix) }) {
			out = append(out, fmt.Sprintf("%s renders conversations of this model with code of its own, not with the chat template: compare with the engine's /tokenize", r.engines))
			break
		}
	}
	if slices.Contains(rebuiltClasses, f.config.Class) {
		out = append(out, fmt.Sprintf("transformers 5 builds a %s anew instead of loading tokenizer.json: engines may have other ids, compare with their /tokenize", f.config.Class))
	}
	return out
}
