package tokenize

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"
)

// noting is a template that notes what it gets. Source and parts say what engines find out about it.
type noting struct {
	source string
	parts  bool
	got    []byte
}

func (n *noting) Render(dst, vars []byte, _ time.Time) ([]byte, error) {
	n.got = append([]byte{}, vars...)
	return append(dst, "the last text, It is one\ntwo CONTINUE_FINAL_MESSAGE_TAG and its end"...), nil
}
func (n *noting) WantsParts() bool { return n.parts }
func (n *noting) Source() string   { return n.source }

// canon prints a value with its order, strings decoded and printed anew.
func canon(t *testing.T, v *value) string {
	t.Helper()
	switch v.kind {
	case kindString:
		s, err := v.str()
		if err != nil {
			t.Fatal(err)
		}
		return string(appendQuoted(nil, s))
	case kindArray, kindObject:
		if v.nums > 0 {
			return strings.Join(strings.Fields(string(v.raw)), "")
		}
		var parts []string
		for i := range v.kids {
			p := canon(t, &v.kids[i])
			if v.kind == kindObject {
				p = string(appendQuoted(nil, v.kids[i].key)) + ":" + p
			}
			parts = append(parts, p)
		}
		if v.kind == kindObject {
			return "{" + strings.Join(parts, ",") + "}"
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	if string(v.raw) == "2.50" {
		return "2.5" // Python has read the number
	}
	return string(v.raw)
}

// variables prints the members of an object, one a line, sorted: the order of variables does not show.
func variables(t *testing.T, text []byte) string {
	t.Helper()
	v, err := parseJSON(text)
	if err != nil || v.kind != kindObject {
		t.Fatalf("variables are no JSON object: %v: %s", err, text)
	}
	var lines []string
	for i := range v.kids {
		lines = append(lines, string(v.kids[i].key)+" = "+canon(t, &v.kids[i]))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func jsonLines(t *testing.T, name string, each func(line []byte)) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "prepare", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		each(append([]byte{}, sc.Bytes()...))
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestPrepareAsEngines compares what templates get with what the engines' own code gave them
// (testdata/prepare holds the programs that asked).
func TestPrepareAsEngines(t *testing.T) {
	t.Parallel()
	type oneCase struct {
		Name     string          `json:"name"`
		Body     json.RawMessage `json:"body"`
		Defaults json.RawMessage `json:"defaults"`
	}
	var cases []oneCase
	jsonLines(t, "cases.jsonl", func(line []byte) {
		var c oneCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	})
	for _, engine := range []Prepare{PrepareVLLM, PrepareSGLang} {
		compared, i := 0, 0
		jsonLines(t, string(engine)+".jsonl", func(line []byte) {
			c := cases[i]
			i++
			var want map[string]json.RawMessage
			if err := json.Unmarshal(line, &want); err != nil {
				t.Fatal(err)
			}
			for _, kind := range []string{"string", "parts", "developer"} {
				w, ok := want[kind]
				if !ok {
					continue
				}
				var refused struct{ Error string }
				if err := json.Unmarshal(w, &refused); err == nil && refused.Error != "" {
					continue // nothing to equal: the engine answers with an error
				}
				compared++
				checkPrepared(t, engine, c.Name+"/"+kind, c.Body, c.Defaults, kind, w)
			}
		})
		if i != len(cases) || compared < 90 {
			t.Errorf("%s: %d of %d cases and %d results compared", engine, i, len(cases), compared)
		}
	}
}

func checkPrepared(t *testing.T, engine Prepare, name string, body, defaults []byte, kind string, want []byte) {
	t.Helper()
	tpl := &noting{parts: kind == "parts", source: "content"}
	if kind == "developer" {
		tpl.source += " == 'developer'"
	}
	m, err := New(nil, tpl, Meta{}, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	res := m.Tokenize(t.Context(), Chat, body, Options{Variant: Variant{Prepare: engine, Kwargs: defaults}, KeepText: true})
	if res.Unhashable != ReasonNoTokenizer {
		t.Errorf("%s: %s: %s: %v", engine, name, res.Unhashable, res.Err)
		return
	}
	var w map[string]json.RawMessage
	if err := json.Unmarshal(want, &w); err != nil {
		t.Fatal(err)
	}
	if p, ok := w["PREFIX"]; ok {
		var prefix string
		if err := json.Unmarshal(p, &prefix); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(string(res.Text), prefix) {
			t.Errorf("%s: %s: text %q does not end with %q", engine, name, res.Text, prefix)
		}
		delete(w, "PREFIX")
		if want, err = json.Marshal(w); err != nil {
			t.Fatal(err)
		}
	}
	// encoding/json sorts objects only at the top and escapes what canon prints plainly.
	if got, want := variables(t, tpl.got), variables(t, want); got != want {
		t.Errorf("%s: %s: the template gets\n%s\nwant\n%s", engine, name, got, want)
	}
}
