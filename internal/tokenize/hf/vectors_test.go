//go:build cgo

package hf

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tokenize"
)

// The vectors are what testdata/oracle.py wrote down of Python's packages. Small ones are stored beside
// it; `make parity` makes full ones for whole models and names their folder in KVROUTE_PARITY.

// oracleNow is the time the oracle pretends.
var oracleNow = time.Date(2024, 7, 6, 15, 4, 5, 123456000, time.UTC)

// readVectors reads JSON lines, gzipped or not.
func readVectors[T any](t testing.TB, file string) []T {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(file, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			t.Fatal(err)
		}
	}
	var rows []T
	s := bufio.NewScanner(r)
	s.Buffer(nil, 64<<20)
	for n := 1; s.Scan(); n++ {
		var row T
		if err := json.Unmarshal(s.Bytes(), &row); err != nil {
			t.Fatalf("%s:%d: %v", file, n, err)
		}
		rows = append(rows, row)
	}
	if err := s.Err(); err != nil || len(rows) == 0 {
		t.Fatalf("%s: %d rows, error %v", file, len(rows), err)
	}
	return rows
}

// smallModel unpacks a model stored under testdata/small.
func smallModel(t testing.TB, name string) string {
	t.Helper()
	dir := t.TempDir()
	src := filepath.Join("testdata", "small", name)
	files, err := os.ReadDir(src)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(src, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		to := f.Name()
		if plain, ok := strings.CutSuffix(to, ".gz"); ok {
			r, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			if data, err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
			to = plain
		}
		if err := os.WriteFile(filepath.Join(dir, to), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

type encodeVector struct {
	Text    string
	Times   int
	Special bool
	N       int
	IDs     []block.Token
	SHA256  string
}

func (v *encodeVector) equal(ids []block.Token) bool {
	if len(ids) != v.N {
		return false
	}
	if v.SHA256 == "" {
		return fmt.Sprint(ids) == fmt.Sprint(v.IDs) || len(ids) == 0
	}
	raw := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		raw = binary.LittleEndian.AppendUint32(raw, id)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]) == v.SHA256
}

// checkEncodings compares both encoders of the model with the vectors, and counts.
func checkEncodings(t *testing.T, m *Model, vectors []encodeVector) {
	t.Helper()
	ref, err := m.Reference()
	if err != nil {
		t.Fatal(err)
	}
	encoders := []tokenize.Encoder{m.Encoder(), ref}
	if m.FastOff != "" {
		encoders = encoders[1:]
	}
	for _, e := range encoders {
		var wrong int
		var buf []block.Token
		for _, v := range vectors {
			text := []byte(strings.Repeat(v.Text, v.Times))
			got, err := e.Encode(buf[:0], text, v.Special)
			if err != nil {
				t.Fatalf("%s: encoding %.60q: %v", e.Name(), v.Text, err)
			}
			buf = got
			if !v.equal(got) {
				if wrong++; wrong <= 5 {
					t.Errorf("%s: %.200q x %d, special %t:\n got %d %v\nwant %d %v", e.Name(), v.Text, v.Times, v.Special, len(got), got[:min(len(got), 40)], v.N, v.IDs[:min(len(v.IDs), 40)])
				}
			}
		}
		t.Logf("%s: %d of %d encodings equal", e.Name(), len(vectors)-wrong, len(vectors))
	}
}

type renderVector struct {
	Template, Conversation string
	Vars                   json.RawMessage
	Text                   *string
	Error                  string
}

// vars are the variables as the oracle serialised them: a string of JSON.
func (v *renderVector) vars(t testing.TB) []byte {
	var s string
	if err := json.Unmarshal(v.Vars, &s); err != nil {
		t.Fatal(err)
	}
	return []byte(s)
}

// checkRenders compares renders; where Python raised in the template, an error is wanted.
func checkRenders(t *testing.T, templates map[string]*Template, vectors []renderVector) {
	t.Helper()
	equal, refused, wrong, total := 0, 0, 0, 0
	for _, v := range vectors {
		tmpl := templates[v.Template]
		if tmpl == nil || v.Vars == nil {
			continue
		}
		total++
		got, err := tmpl.Render(nil, v.vars(t), oracleNow)
		switch {
		case v.Text == nil && err != nil:
			refused++
		case v.Text != nil && err == nil && string(got) == *v.Text:
			equal++
		default:
			wrong++
			want := "error " + v.Error
			if v.Text != nil {
				want = *v.Text
			}
			var te *TemplateError
			if errors.As(err, &te) {
				err = fmt.Errorf("%w (%s)", err, te.Detail)
			}
			t.Errorf("%s, %s: error %v\n got %s\nwant %s", v.Template, v.Conversation, err, around(string(got), want), around(want, string(got)))
		}
	}
	if total == 0 {
		t.Error("no renders to compare")
	}
	t.Logf("%d renders: %d equal, %d refused by both, %d wrong", total, equal, refused, wrong)
}

// around is the part of a where it begins to differ from b.
func around(a, b string) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	from := max(0, i-60)
	return fmt.Sprintf("byte %d: %q", i, a[from:min(len(a), i+120)])
}

// TestStored runs the stored vectors: small tokenizers of real makes, their real templates.
func TestStored(t *testing.T) {
	for _, name := range []string{"qwen3", "deepseek_v3"} {
		t.Run(name, func(t *testing.T) {
			m, err := Open(smallModel(t, name), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if m.FastOff != "" {
				t.Errorf("fastokens is off: %s", m.FastOff)
			}
			checkEncodings(t, m, readVectors[encodeVector](t, "testdata/vectors/encode-"+name+".jsonl.gz"))
			checkRenders(t, map[string]*Template{name: m.plain}, readVectors[renderVector](t, "testdata/vectors/render-"+name+".jsonl.gz"))
		})
	}
}

// parityDir is where make parity left its files.
func parityDir(t testing.TB) string {
	dir := os.Getenv("KVROUTE_PARITY")
	if dir == "" {
		t.Skip("KVROUTE_PARITY is not set (make parity fetches real models and runs this)")
	}
	return dir
}

func TestParityEncode(t *testing.T) {
	dir := parityDir(t)
	files, err := filepath.Glob(filepath.Join(dir, "vectors", "encode-*.jsonl"))
	if err != nil || len(files) < 8 {
		t.Fatalf("found %d files of vectors, want at least 8 (error %v)", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "encode-"), ".jsonl")
		t.Run(name, func(t *testing.T) {
			m, err := Open(filepath.Join(dir, "models", name), Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s; fast off: %q", m.Encoder().Name(), m.FastOff)
			checkEncodings(t, m, readVectors[encodeVector](t, file))
		})
	}
}

func TestParityRender(t *testing.T) {
	dir := parityDir(t)
	vectors := readVectors[renderVector](t, filepath.Join(dir, "vectors", "renders.jsonl"))
	templates := map[string]*Template{}
	for _, v := range vectors {
		if templates[v.Template] != nil {
			continue
		}
		var source string
		if data, err := os.ReadFile(filepath.Join(dir, "templates", v.Template+".jinja")); err == nil {
			source = string(data)
		} else {
			f, err := readFiles(filepath.Join(dir, "models", v.Template), Options{})
			if err != nil {
				t.Fatal(err)
			}
			source = f.templates["default"]
		}
		tmpl, err := Compile(source, Options{})
		if err != nil {
			t.Fatalf("%s: %v", v.Template, err)
		}
		templates[v.Template] = tmpl
	}
	t.Logf("%d templates", len(templates))
	checkRenders(t, templates, vectors)
}

// knownSnippets are the snippets that render otherwise, by their text, with the reason.
var knownSnippets = map[string]string{
	"{{ s is sequence }} {{ l is sequence }} {{ m is sequence }} {{ i is sequence }} {{ n is sequence }} {{ missing is sequence }} {{ range(3) is sequence }}": "a range is not told from other iterators",
	"{% for x in n %}{% endfor %}":                  "Python raises, we loop over nothing",
	"{{ none < 1 }}":                                "Python raises, we compare",
	"{{ 'a' < 1 }}":                                 "Python raises, we compare",
	"{{ self is defined }}":                         "there are no blocks here to refer to",
	"{{ f ~ '' }} {{ f2 ~ 'x' }} {{ fsmall ~ '' }}": "~ writes floats beyond 1e16 and below 1e-4 without an exponent",
}

func TestSnippets(t *testing.T) {
	var data struct{ Vars json.RawMessage }
	raw, err := os.ReadFile("testdata/snippets.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &data); err != nil {
		t.Fatal(err)
	}
	type snippet struct {
		Template string
		Text     *string
		Error    string
	}
	file := "testdata/vectors/snippets.jsonl"
	if dir := os.Getenv("KVROUTE_PARITY"); dir != "" {
		file = filepath.Join(dir, "vectors", "snippets.jsonl")
	}
	for _, s := range readVectors[snippet](t, file) {
		tmpl, err := Compile(s.Template, Options{})
		var got []byte
		if err == nil {
			got, err = tmpl.Render(nil, data.Vars, oracleNow)
		}
		var te *TemplateError
		if errors.As(err, &te) {
			err = fmt.Errorf("%w (%s)", err, te.Detail)
		}
		same := s.Text == nil && err != nil || s.Text != nil && err == nil && string(got) == *s.Text
		_, known := knownSnippets[s.Template]
		switch {
		case same && known:
			t.Errorf("%q renders as in Python now: take it off the list", s.Template)
		case !same && !known:
			want := "error " + s.Error
			if s.Text != nil {
				want = fmt.Sprintf("%q", *s.Text)
			}
			t.Errorf("%q: error %v\n got %q\nwant %s", s.Template, err, got, want)
		}
	}
}
