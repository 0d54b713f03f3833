package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var jsonTexts = []string{
	`{}`, `[]`, ` { "a" : [ 1 , -2.5e+3 , "x" ] , "a" : null } `, `"\u00e9\ud83d\ude00\n\"\\\/"`, `[1,2,3]`, `[1,[2],"3"]`, `[1,2`, `[1,]`, `{"a"}`,
	`{"a":}`, `{,}`, `01`, `-`, `1.`, `1e`, `tru`, `nul`, `"a`, "\"a\nb\"", `"\x"`, `"\u12"`, `"\ud800"`, `"\ud800\u0041"`, `"\udc00"`, ``, ` `, `1 2`, `{"a":1,}`,
	`[true,false,null]`, `{"k":"` + strings.Repeat("long text ", 40) + `\t"}`, `[` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `]`,
	`[-0,0.0,1E5]`, `{"\u0061":1}`, "\"\x7f\u00e9\u4e2d\"",
}

// checkJSON holds the parser against encoding/json: both accept the same texts and read the same values.
func checkJSON(t *testing.T, text []byte) {
	t.Helper()
	v, err := parseJSON(text)
	if errors.Is(err, errTooDeep) {
		return
	}
	lone := errors.Is(err, errLoneSurrogate) // in a key, which encoding/json replaces
	if (err == nil) != json.Valid(text) && !lone {
		t.Fatalf("parseJSON(%q) = %v, encoding/json says valid=%v", text, err, json.Valid(text))
	}
	if err != nil {
		return
	}
	walkJSON(t, &v)
	first, second := bytes.Clone(text), append([]byte(nil), text...)
	moved, err := parseJSON(first)
	if err != nil {
		t.Fatalf("parseJSON(%q) the second time: %v", text, err)
	}
	moved.move(moved.raw, second[bytes.Index(text, moved.raw):])
	clear(first)
	if diff := cmp.Diff(v, moved, cmp.AllowUnexported(value{})); diff != "" {
		t.Fatalf("parseJSON(%q) and moved (-want +got):\n%s", text, diff)
	}
}

func walkJSON(t *testing.T, v *value) {
	t.Helper()
	if !json.Valid(v.raw) {
		t.Fatalf("raw text %q of a value is not JSON", v.raw)
	}
	switch v.kind {
	case kindString:
		var want string
		if err := json.Unmarshal(v.raw, &want); err != nil {
			t.Fatal(err)
		}
		got, err := v.str()
		if err != nil {
			if !strings.ContainsRune(want, utf8.RuneError) {
				t.Fatalf("str(%q): %v", v.raw, err)
			}
			return
		}
		if string(got) != want {
			t.Fatalf("str(%q) = %q, want %q", v.raw, got, want)
		}
		var again string
		if err := json.Unmarshal(appendQuoted(nil, got), &again); err != nil || again != want {
			t.Fatalf("appendQuoted(%q) reads back as %q, %v", got, again, err)
		}
	case kindArray:
		var want []json.RawMessage
		if err := json.Unmarshal(v.raw, &want); err != nil {
			t.Fatal(err)
		}
		if n := len(v.kids) + v.nums; n != len(want) || v.nums > 0 && len(v.kids) > 0 {
			t.Fatalf("%q has %d children and %d numbers, want %d", v.raw, len(v.kids), v.nums, len(want))
		}
		for i := range v.kids {
			if !bytes.Equal(v.kids[i].raw, bytes.TrimSpace(want[i])) {
				t.Fatalf("child %d of %q is %q, want %q", i, v.raw, v.kids[i].raw, want[i])
			}
			walkJSON(t, &v.kids[i])
		}
	case kindObject:
		var want map[string]json.RawMessage
		if err := json.Unmarshal(v.raw, &want); err != nil {
			t.Fatal(err)
		}
		for i := range v.kids {
			key := string(v.kids[i].key)
			if got := v.get(key); !bytes.Equal(got.raw, bytes.TrimSpace(want[key])) {
				t.Fatalf("member %q of %q is %q, want %q", key, v.raw, got.raw, want[key])
			}
			walkJSON(t, &v.kids[i])
		}
	}
}

func TestParseJSON(t *testing.T) {
	t.Parallel()
	for _, text := range jsonTexts {
		checkJSON(t, []byte(text))
	}
}

func TestPlainRun(t *testing.T) {
	t.Parallel()
	for c := range 256 {
		for at := range 20 {
			text := []byte(strings.Repeat("\u00ff!z", 8))
			text[at] = byte(c)
			want := len(text)
			if c < 0x20 || c == '"' || c == '\\' {
				want = at
			}
			if got := plainRun(text); got != want {
				t.Errorf("plainRun with byte %#x at %d = %d, want %d", c, at, got, want)
			}
		}
	}
}

func FuzzParseJSON(f *testing.F) {
	for _, text := range jsonTexts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if utf8.Valid(text) {
			checkJSON(t, text)
		}
	})
}
