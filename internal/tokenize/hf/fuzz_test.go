//go:build cgo

package hf

import (
	"errors"
	"slices"
	"testing"
	"unicode/utf8"
)

// Whatever the text, both encoders agree, and nothing panics or ends the process.
func FuzzEncode(f *testing.F) {
	for _, s := range []string{"", "a", "Hello, world!\n", "<|im_start|>user\nx<|im_end|>", "\x00", "\xff", "你好 😀", "  \n\t ", "e\u0301", "<think>1234</think>"} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	m := openSmall(f, "qwen3", Options{MaxText: 1 << 16})
	ref, err := m.Reference()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte, special bool) {
		got, err := m.Encoder().Encode(nil, text, special)
		if !utf8.Valid(text) {
			if !errors.Is(err, ErrUTF8) {
				t.Errorf("%q: error %v, want ErrUTF8", text, err)
			}
			return
		}
		want, errRef := ref.Encode(nil, text, special)
		if err != nil && !errors.Is(err, ErrTooLarge) || (err == nil) != (errRef == nil) || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, error %v; want %v, error %v", text, got, err, want, errRef)
		}
	})
}

// Whatever the template and the variables, there is a text or one error, and nothing panics, hangs or
// ends the process.
func FuzzTemplate(f *testing.F) {
	const vars = `{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls": [{"a": 1.5}]}], "tools": [{"x": [1, true]}], "bos_token": "<s>"}`
	for _, s := range []string{
		"{{ messages[0].content }}", "{% for m in messages %}{{ m|tojson(indent=2) }}{{ m.content.split() }}{% endfor %}",
		"{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "{{ 'a' * 1000000 }}", "{% generation %}{{ 1/0 }}{% endgeneration %}",
		"{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}", "{{ strftime_now('%Y %j %+ %') }}", "{{ raise_exception(tools) }}",
		"{{ 'x'|indent(4)|truncate(3)|int }}{{ messages|map(attribute='content')|join(',') }}", "{{ messages[0].content.center(99999999) }}",
		"{%- if tools %}{{- tools|length }}{%- endif %}", "{{ '%s'|format(messages) }}{{ '{:>9}'.format('x') }}", "{{ messages[::-1] }}{{ [[[[[[[[1]]]]]]]] }}",
	} {
		f.Add(s, vars)
	}
	f.Add("{{ x }}", `{"x": [[1e309, "\ud83d"]]}`)
	f.Fuzz(func(t *testing.T, source, vars string) {
		tmpl, err := Compile(source, Options{MaxText: 1 << 16})
		if err != nil {
			return
		}
		text, err := tmpl.Render(nil, []byte(vars), oracleNow)
		if err == nil && !utf8.Valid(text) {
			t.Errorf("%q with %q: the render is not UTF-8: %q", source, vars, text)
		}
		again, errAgain := tmpl.Render(nil, []byte(vars), oracleNow)
		if (err == nil) != (errAgain == nil) || string(again) != string(text) {
			t.Errorf("%q with %q: renders differ: %q, %q; errors %v, %v", source, vars, text, again, err, errAgain)
		}
	})
}
