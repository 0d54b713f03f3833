//go:build cgo

package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

func openSmall(t testing.TB, name string, opt Options) *Model {
	t.Helper()
	m, err := Open(smallModel(t, name), opt)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// editTokenizer changes the tokenizer.json of a model directory.
func editTokenizer(t testing.TB, dir string, edit func(map[string]any)) {
	t.Helper()
	file := filepath.Join(dir, "tokenizer.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var tok map[string]any
	if err := json.Unmarshal(data, &tok); err != nil {
		t.Fatal(err)
	}
	edit(tok)
	if data, err = json.Marshal(tok); err != nil {
		t.Fatal(err)
	}
	write(t, file, string(data))
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestOpenTellsAboutTheModel(t *testing.T) {
	m := openSmall(t, "qwen3", Options{})
	if m.EOS != "<|im_end|>" || m.BOS != "" {
		t.Errorf("EOS %q, BOS %q; want <|im_end|> and none", m.EOS, m.BOS)
	}
	if len(m.Digest) != 16 || len(m.Canary) == 0 || m.VocabSize == 0 || m.Template() == nil {
		t.Errorf("digest %q, canary %v, vocabulary %d, template %v", m.Digest, m.Canary, m.VocabSize, m.Template())
	}
	text, err := m.Decode(m.Canary)
	if err != nil || text != CanaryText {
		t.Errorf("decoding the canary: %q, error %v", text, err)
	}
	added := m.Encoder().Added()
	at := slices.IndexFunc(added, func(a tokenize.AddedToken) bool { return a.Content == "<|im_start|>" })
	if at < 0 || !added[at].Special || added[at].Normalized || added[at].LStrip || added[at].RStrip || added[at].SingleWord {
		t.Fatalf("added tokens %v, want <|im_start|> special and nothing else", added)
	}
	ids, err := m.Encoder().Encode([]block.Token{7}, []byte("<|im_start|>"), false)
	if err != nil || !slices.Equal(ids, []block.Token{7, added[at].ID}) {
		t.Errorf("encoding <|im_start|> after 7: %v, error %v; want [7 %d]", ids, err, added[at].ID)
	}
	if m.Encoder().NormalizerEmpty() {
		t.Error("the NFC normalizer is not seen")
	}
	if !openSmall(t, "deepseek_v3", Options{}).Encoder().NormalizerEmpty() {
		t.Error("a sequence of no normalizers is not seen as none")
	}
	byFile, err := Open(filepath.Join(m.Path, "tokenizer.json"), Options{})
	if err != nil || byFile.Digest != m.Digest || byFile.Template() == nil {
		t.Errorf("opening the file instead of its folder: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(t *testing.T, dir string)
		want []string
	}{
		{"no folder", func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) }, []string{"no such file"}},
		{"no tokenizer.json", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "tokenizer.json"))) }, []string{"no tokenizer.json", "hint"}},
		{"tokenizer.json cut short", func(t *testing.T, dir string) {
			data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
			must(t, err)
			write(t, filepath.Join(dir, "tokenizer.json"), string(data[:len(data)/2]))
		}, []string{"tokenizer.json"}},
		{"tokenizer.json no object", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "tokenizer.json"), "[]")
			must(t, os.Remove(filepath.Join(dir, "tokenizer_config.json")))
		}, []string{"tokenizer.json", "not a JSON object"}},
		{"tokenizer.json without a model", func(t *testing.T, dir string) {
			editTokenizer(t, dir, func(tok map[string]any) { delete(tok, "model") })
		}, []string{"tokenizer.json", "model"}},
		{"config no JSON", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "tokenizer_config.json"), "{\n\n\"a\": x}")
		}, []string{"tokenizer_config.json:3"}},
		{"template of a wrong kind", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "tokenizer_config.json"), `{"chat_template": 3}`)
		}, []string{"tokenizer_config.json", "chat_template"}},
		{"template no Jinja", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "chat_template.jinja"), "{% for x in %}")
		}, []string{"chat_template.jinja", "syntax error"}},
		{"template not UTF-8", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "chat_template.jinja"), "\xff")
		}, []string{"chat_template.jinja", "UTF-8"}},
		{"added token without an id", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "tokenizer_config.json"), `{"added_tokens_decoder": {"x": {"content": "<new>"}}}`)
		}, []string{"tokenizer_config.json", `"x"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := smallModel(t, "qwen3")
			c.edit(t, dir)
			_, err := Open(dir, Options{})
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range append(c.want, dir) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestTruncationAndPaddingAreCleared(t *testing.T) {
	dir := smallModel(t, "qwen3")
	editTokenizer(t, dir, func(tok map[string]any) {
		tok["truncation"] = map[string]any{"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
		tok["padding"] = map[string]any{
			"strategy": map[string]any{"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": nil,
			"pad_id": 0, "pad_type_id": 0, "pad_token": "!",
		}
	})
	m, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	plain := openSmall(t, "qwen3", Options{})
	for _, text := range []string{"a", "one two three four five six seven eight nine ten"} {
		want, err := plain.Encoder().Encode(nil, []byte(text), true)
		must(t, err)
		got, err := m.Encoder().Encode(nil, []byte(text), true)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, error %v; want %v", text, got, err, want)
		}
	}
}

func TestFastEncoderIsLeftOutWhereItDiffers(t *testing.T) {
	dir := smallModel(t, "qwen3")
	editTokenizer(t, dir, func(tok map[string]any) {
		tok["added_tokens"].([]any)[0].(map[string]any)["single_word"] = true
	})
	m, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if m.FastOff == "" || m.Encoder().Name() != "tokenizers 0.23.2" {
		t.Errorf("encoder %s, fast off %q; want the reference and a reason", m.Encoder().Name(), m.FastOff)
	}
	ref, err := m.Reference()
	must(t, err)
	text := []byte("a<|endoftext|>b <|endoftext|> c")
	got, err := m.Encoder().Encode(nil, text, false)
	must(t, err)
	want, err := ref.Encode(nil, text, false)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, error %v; want %v", got, err, want)
	}
}

// Tokens only tokenizer_config.json declares are in the engines' tokenizers too.
func TestAddedTokensOfTheConfigAreMerged(t *testing.T) {
	dir := smallModel(t, "qwen3")
	plain := openSmall(t, "qwen3", Options{})
	id := plain.VocabSize
	write(t, filepath.Join(dir, "tokenizer_config.json"), fmt.Sprintf(`{"added_tokens_decoder": {"%d":
		{"content": "<|new|>", "special": true, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false}}}`, id))
	m, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.Encoder().Encode(nil, []byte("<|new|>"), false)
	if err != nil || !slices.Equal(got, []block.Token{block.Token(id)}) {
		t.Errorf("got %v, error %v; want [%d]", got, err, id)
	}
}

func TestTemplatesAreFoundWhereTransformersLooks(t *testing.T) {
	const config = `{"chat_template": [{"name": "default", "template": "list"}, {"name": "tool_use", "template": "list tools"}]}`
	for _, c := range []struct {
		name        string
		files       map[string]string
		override    string
		plain, tool string
	}{
		{"string", map[string]string{"tokenizer_config.json": `{"chat_template": "string"}`}, "", "string", "string"},
		{"list", map[string]string{"tokenizer_config.json": config}, "", "list", "list tools"},
		{"file", map[string]string{"tokenizer_config.json": config, "chat_template.jinja": "file"}, "", "file", "file"},
		{"more files", map[string]string{"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "file tools"}, "", "file", "file tools"},
		{"processor", map[string]string{"chat_template.json": `{"chat_template": "processor"}`}, "", "processor", "processor"},
		{"override", map[string]string{"chat_template.jinja": "file", "mine.jinja": "mine"}, "mine.jinja", "mine", "mine"},
		{"none", nil, "", "", ""},
		{"null", map[string]string{"tokenizer_config.json": `{"chat_template": null}`}, "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := smallModel(t, "deepseek_v3")
			must(t, os.Remove(filepath.Join(dir, "tokenizer_config.json")))
			for file, text := range c.files {
				write(t, filepath.Join(dir, file), text)
			}
			var opt Options
			if c.override != "" {
				opt.ChatTemplate = filepath.Join(dir, c.override)
			}
			m, err := Open(dir, opt)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range []struct {
				what string
				got  tokenize.Template
				want string
			}{{"template", m.Template(), c.plain}, {"tool template", m.ToolTemplate(), c.tool}} {
				if x.got == nil || x.want == "" {
					if x.got != nil || x.want != "" {
						t.Errorf("%s is %v, want %q", x.what, x.got, x.want)
					}
					continue
				}
				got, err := x.got.Render(nil, []byte("{}"), oracleNow)
				if err != nil || string(got) != x.want {
					t.Errorf("%s renders %q, error %v; want %q", x.what, got, err, x.want)
				}
			}
		})
	}
}

func TestSpecialTokensOfAllForms(t *testing.T) {
	dir := smallModel(t, "qwen3")
	write(t, filepath.Join(dir, "tokenizer_config.json"), `{"eos_token": {"content": "<e>"}, "bos_token": null,
		"pad_token": "<p>", "extra_special_tokens": {"image_token": "<i>"}, "additional_special_tokens": ["<x>"]}`)
	write(t, filepath.Join(dir, "special_tokens_map.json"), `{"unk_token": "<u>", "eos_token": "<old>", "bos_token": "<old>"}`)
	m, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []SpecialToken{{"eos_token", "<e>"}, {"unk_token", "<u>"}, {"pad_token", "<p>"}, {"image_token", "<i>"}}
	if !slices.Equal(m.Special, want) {
		t.Errorf("special tokens %v, want %v", m.Special, want)
	}
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct{ config, tokenizer, want string }{
		{`{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}`, `{"tokenizer_class": "Qwen2Tokenizer"}`, ""},
		{`{"model_type": "gpt_oss"}`, `{}`, "code of its own"},
		{`{"architectures": ["DeepseekV32ForCausalLM"]}`, `{}`, "vLLM and SGLang"},
		{`{}`, `{"tokenizer_class": "GPT2Tokenizer"}`, "anew"},
	} {
		dir := smallModel(t, "qwen3")
		write(t, filepath.Join(dir, "config.json"), c.config)
		write(t, filepath.Join(dir, "tokenizer_config.json"), c.tokenizer)
		m, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(m.Warnings, "; ")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s %s: warnings %q, want %q", c.config, c.tokenizer, got, c.want)
		}
	}
}

func TestLimits(t *testing.T) {
	m := openSmall(t, "qwen3", Options{MaxText: 1000})
	ref, err := m.Reference()
	must(t, err)
	long, bad := bytes.Repeat([]byte("a"), 1001), []byte("a\xffb")
	for _, e := range []tokenize.Encoder{m.Encoder(), ref} {
		if ids, err := e.Encode(nil, long[:1000], false); err != nil || len(ids) == 0 {
			t.Errorf("%s: a text of the limit: %d ids, error %v", e.Name(), len(ids), err)
		}
		if _, err := e.Encode(nil, long, false); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: a text above the limit: error %v", e.Name(), err)
		}
		if _, err := e.Encode(nil, bad, false); !errors.Is(err, ErrUTF8) {
			t.Errorf("%s: invalid UTF-8: error %v", e.Name(), err)
		}
	}
	for _, c := range []struct {
		vars []byte
		want error
	}{{long, ErrTooLarge}, {bad, ErrUTF8}} {
		if _, err := m.Template().Render(nil, c.vars, oracleNow); !errors.Is(err, c.want) {
			t.Errorf("rendering %.10q: error %v, want %v", c.vars, err, c.want)
		}
	}
	if _, err := m.Template().Render(nil, []byte("{}"), time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)); err == nil {
		t.Error("no error about the year 12000")
	}
}

// An error says what and where; only its detail may quote the conversation.
func TestTemplateErrorsKeepThePrompt(t *testing.T) {
	for _, c := range []struct{ source, what, detail string }{
		{"\n{{ raise_exception('no ' + messages[0].content) }}", "line 2: the template raised", "no secret"},
		{"{{ messages[0].content.x.y }}", "line 1: undefined value", ""},
		{"{{ messages[0].content|int('z')|round }}", "line 1: invalid operation", ""},
		{"{{ messages[0].content.nope() }}", "unknown method", "nope"},
		{"{% macro f() %}{{ raise_exception(messages[0].content) }}{% endmacro %}{{ f() }}", "raised", "secret"},
		{"{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}", "fuel", ""},
		{"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "line 1", ""},
		{"{{ 'a' * 100000000000 }}", "line 1", ""},
	} {
		tmpl, err := Compile(c.source, Options{})
		if err != nil {
			t.Errorf("%q: %v", c.source, err)
			continue
		}
		dst, err := tmpl.Render([]byte("kept"), []byte(`{"messages": [{"content": "secret"}]}`), oracleNow)
		var te *TemplateError
		if !errors.As(err, &te) || string(dst) != "kept" {
			t.Errorf("%q: error %v, text %q; want a TemplateError and nothing appended", c.source, err, dst)
			continue
		}
		if !strings.Contains(te.Error(), c.what) || strings.Contains(te.Error(), "secret") || !strings.Contains(te.Detail, c.detail) {
			t.Errorf("%q: error %q, detail %q; want %q and no secret, %q", c.source, te, te.Detail, c.what, c.detail)
		}
		if te.Raised != strings.Contains(c.source, "raise_exception") {
			t.Errorf("%q: raised %t", c.source, te.Raised)
		}
	}
}

func TestVariablesAreReadAsPythonReadsJSON(t *testing.T) {
	for _, c := range []struct{ vars, want string }{
		{`{"x": 1}`, "1"},
		{`{"x": -0}`, "0"},
		{`{"x": -0.0}`, "-0.0"},
		{`{"x": 1.0}`, "1.0"},
		{`{"x": 1E5}`, "100000.0"},
		{`{"x": 1e22}`, "1e+22"},
		{`{"x": 1e400}`, "inf"},
		{`{"x": 9223372036854775808}`, "9223372036854775808"},
		{`{"x": 12345678901234567890123}`, "12345678901234567890123"},
		{`{"x": "\ud83d\ude00\u0000\/"}`, "😀\x00/"},
		{`{"x": {"b": 1, "a": 2, "b": 3}}`, "{'b': 3, 'a': 2}"},
		{" \n{\t\"x\" : [ ] } ", "[]"},
		{`{"x": "` + "\u2028" + `"}`, "\u2028"},
		{`{"x": "\ud83d"}`, ""},
		{`{"x": "\ude00"}`, ""},
		{`{"x": "\ud83dx"}`, ""},
		{`{"x": 01}`, ""},
		{`{"x": 1.}`, ""},
		{`{"x": .5}`, ""},
		{`{"x": +1}`, ""},
		{`{"x": 1e}`, ""},
		{`{"x": "a` + "\n" + `"}`, ""},
		{`{"x": "\q"}`, ""},
		{`{"x": "\u12"}`, ""},
		{`{"x": 1,}`, ""},
		{`{"x" 1}`, ""},
		{`{x: 1}`, ""},
		{`{"x": 1} y`, ""},
		{`{"x": tru}`, ""},
		{`[1]`, ""},
		{`"x"`, ""},
		{``, ""},
		{`{"x": "abc`, ""},
		{`{"x": ` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}`, ""},
		{`{"x": 123456789012345678901234567890123456789012345678901234567890}`, ""},
	} {
		tmpl, err := Compile("{{ x }}", Options{})
		must(t, err)
		got, err := tmpl.Render(nil, []byte(c.vars), oracleNow)
		var te *TemplateError
		if c.want == "" {
			if !errors.As(err, &te) || !te.BadVars {
				t.Errorf("%.60s: got %q, error %v; want one about the variables", c.vars, got, err)
			}
		} else if err != nil || string(got) != c.want {
			t.Errorf("%.60s: got %q, error %v; want %q", c.vars, got, err, c.want)
		}
	}
}

func TestWantsParts(t *testing.T) {
	for _, c := range []struct {
		source       string
		vllm, sglang bool
	}{
		{"{% for message in messages %}{{ message.content }}{% endfor %}", false, false},
		{"{% for message in messages %}{% for c in message['content'] %}{{ c }}{% endfor %}{% endfor %}", true, true},
		{"{% for m in messages[1:] %}{% for c in m.content|list %}{{ c }}{% endfor %}{% endfor %}", true, true},
		{"{% set ms = messages %}{% set xs = ms[1:] %}{% for turn in xs %}{% for c in turn.content %}{% endfor %}{% endfor %}", true, false},
		{"{% for message in other %}{% for c in message.content %}{% endfor %}{% endfor %}", false, true},
		{"{% macro f(message) %}{% for c in message.content %}{{ c }}{% endfor %}{% endmacro %}{% for message in messages %}{{ f(message) }}{% endfor %}", true, true},
		{"{% for i, m in messages|enumerate %}{% for c in m.content %}{% endfor %}{% endfor %}", false, true},
		{"{{ messages[0].content }} image", false, true},
		{"{% if true %}{% for message in messages %}{% if x %}{% else %}{% for c in message.content %}{% endfor %}{% endif %}{% endfor %}{% endif %}", true, true},
	} {
		tmpl, err := Compile(c.source, Options{})
		if err != nil {
			t.Errorf("%s: %v", c.source, err)
			continue
		}
		vllm, sglang := tmpl.WantsPartsFor(tokenize.PrepareVLLM), tmpl.WantsPartsFor(tokenize.PrepareSGLang)
		if vllm != c.vllm || sglang != c.sglang || tmpl.WantsParts() != c.vllm {
			t.Errorf("%s: vLLM %t, SGLang %t; want %t, %t", c.source, vllm, sglang, c.vllm, c.sglang)
		}
	}
}

func TestTemplateVariables(t *testing.T) {
	m := openSmall(t, "qwen3", Options{})
	want := []string{"add_generation_prompt", "enable_thinking", "messages", "tools"}
	for _, w := range want {
		if !slices.Contains(m.plain.Variables(), w) {
			t.Errorf("variables %v lack %s", m.plain.Variables(), w)
		}
	}
}

func TestFloatsAsPythonWritesThem(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0.0", 1: "1.0", -1.5: "-1.5", 0.1: "0.1", 1e15: "1000000000000000.0", 1e16: "1e+16", 1.25e16: "1.25e+16",
		123456789.125: "123456789.125", 1e-4: "0.0001", 9.99e-5: "9.99e-05", 1e-7: "1e-07", 5e-324: "5e-324",
		1.7976931348623157e308: "1.7976931348623157e+308", 1e100: "1e+100", 2.0 / 3: "0.6666666666666666",
	} {
		if got := floatRepr(v); got != want {
			t.Errorf("%g: got %s, want %s", v, got, want)
		}
	}
}

// Encodings and renders from many goroutines are those of one, and stay within the bound.
func TestConcurrentUse(t *testing.T) {
	m := openSmall(t, "qwen3", Options{Concurrent: 2})
	vectors := readVectors[encodeVector](t, "testdata/vectors/encode-qwen3.jsonl.gz")
	renders := readVectors[renderVector](t, "testdata/vectors/render-qwen3.jsonl.gz")
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := g; i < len(vectors); i += 8 {
				v := &vectors[i]
				got, err := m.Encoder().Encode(nil, []byte(strings.Repeat(v.Text, v.Times)), v.Special)
				if err != nil || !v.equal(got) {
					t.Errorf("%.60q: %d ids, error %v", v.Text, len(got), err)
				}
			}
			for i := g; i < len(renders); i += 8 {
				v := &renders[i]
				if v.Text == nil {
					continue
				}
				got, err := m.Template().Render(nil, v.vars(t), oracleNow)
				if err != nil || string(got) != *v.Text {
					t.Errorf("%s: error %v, got %.100q", v.Conversation, err, got)
				}
			}
		})
	}
	wg.Wait()
}
