package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/cli"
)

// tinyDir writes the tiny model with the program itself.
func tinyDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tiny")
	code, stdout, stderr := run(t, "model", "write", dir)
	if code != 0 || stdout != dir+"\n" || stderr != "" {
		t.Fatalf("model write: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	return dir
}

// tokenizeIn runs tokenize with something on stdin, or skips where no tokenizer is built in.
func tokenizeIn(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(context.Background(), append([]string{"tokenize"}, args...), strings.NewReader(stdin), &out, &errs)
	if strings.Contains(errs.String(), "built without cgo") {
		t.Skip(errs.String())
	}
	return code, out.String(), errs.String()
}

type tokenizedDoc struct {
	Schema  string
	Text    *string
	IDs     []block.Token `json:"token_ids"`
	Blocks  []string      `json:"block_hashes"`
	Basis   string
	Encoder string
	Prompts []struct {
		IDs []block.Token `json:"token_ids"`
	}
	Error string
}

func TestTokenizeText(t *testing.T) {
	dir := tinyDir(t)
	vectors, err := os.ReadFile(filepath.Join("..", "tinymodel", "testdata", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Texts []struct {
			Text string
			IDs  []block.Token
		}
	}
	if err := json.Unmarshal(vectors, &v); err != nil {
		t.Fatal(err)
	}
	for _, x := range v.Texts[:8] {
		code, stdout, stderr := tokenizeIn(t, "", "--model-path", dir, "--text", x.Text, "--block-size", "2", "-o", "json")
		var doc tokenizedDoc
		if err := json.Unmarshal([]byte(stdout), &doc); err != nil || code != 0 || stderr != "" {
			t.Fatalf("%q: exit code %d, %v: %s", x.Text, code, err, stderr)
		}
		var blocks []string
		for _, h := range block.AppendChain(nil, block.Root, x.IDs, 2) {
			blocks = append(blocks, fmt.Sprintf("%016x", uint64(h)))
		}
		want := tokenizedDoc{Schema: "kvroute.tokenize/v1", Text: &x.Text, IDs: x.IDs, Blocks: append([]string{}, blocks...), Basis: "exact", Encoder: doc.Encoder}
		if diff := cmp.Diff(want, doc); diff != "" || doc.Encoder == "" {
			t.Errorf("%q: encoder %q, -want +got:\n%s", x.Text, doc.Encoder, diff)
		}
	}
	code, stdout, _ := tokenizeIn(t, "", "--model-path", dir, "--text", "a\x07b")
	if code != 0 || !strings.Contains(stdout, "| a?b\n") || !strings.Contains(stdout, "exact") {
		t.Errorf("table of a text with a bell: exit code %d:\n%s", code, stdout)
	}
}

func TestTokenizeRequests(t *testing.T) {
	dir := tinyDir(t)
	lines := `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}

{"prompt":[1,2,3]}
nonsense
{"prompt":["a","b"]}
{"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false}`
	for prepare, joined := range map[string]string{"vllm": "a\nb", "sglang": "a b"} {
		code, stdout, stderr := tokenizeIn(t, lines, "--model-path", dir, "--request", "-", "--prepare", prepare, "-o", "jsonl")
		if code != 0 || stderr != "" {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		var docs []tokenizedDoc
		for _, line := range strings.Split(strings.TrimSpace(stdout), "\n") {
			var d tokenizedDoc
			if err := json.Unmarshal([]byte(line), &d); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			docs = append(docs, d)
		}
		if len(docs) != 5 {
			t.Fatalf("%d answers to 5 lines:\n%s", len(docs), stdout)
		}
		if want := "<|im_start|>user\n" + joined + "<|im_end|>\n<|im_start|>assistant\n"; docs[0].Text == nil || *docs[0].Text != want {
			t.Errorf("%s: text of parts in\n%s\nwant %q", prepare, stdout, want)
		}
		if docs[1].Text != nil || !cmp.Equal(docs[1].IDs, []block.Token{1, 2, 3}) {
			t.Errorf("%s: ids: %+v", prepare, docs[1])
		}
		if docs[2].Error == "" || docs[2].IDs != nil {
			t.Errorf("%s: nonsense: %+v", prepare, docs[2])
		}
		if len(docs[3].Prompts) != 2 || docs[3].Prompts[0].IDs == nil {
			t.Errorf("%s: batch: %+v", prepare, docs[3])
		}
		// SGLang does not know add_generation_prompt.
		if strings.HasSuffix(*docs[4].Text, "assistant\n") != (prepare == "sglang") {
			t.Errorf("%s: without a generation prompt: %q", prepare, *docs[4].Text)
		}
	}
}

func TestTokenizeTextOnly(t *testing.T) {
	template := filepath.Join(tinyDir(t), "chat_template.jinja")
	code, stdout, stderr := tokenizeIn(t, `{"messages":[{"role":"user","content":"x"}]}`, "--chat-template", template, "--request", "-", "-o", "jsonl")
	if want := `{"text":"<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"}` + "\n"; code != 0 || stdout != want {
		t.Errorf("without a model: exit code %d, %q (%s), want %q", code, stdout, stderr, want)
	}
}

func TestTokenizeFaults(t *testing.T) {
	dir := tinyDir(t)
	empty := t.TempDir()
	tests := []struct {
		stdin string
		args  string
		code  int
		want  string
	}{
		{"", "", 2, "nothing to tokenize"},
		{"", "--text x --request -", 2, "one prompt at a time"},
		{"", "--request - --add-special-tokens", 2, "--add-special-tokens without --text"},
		{"", "--text x --prepare vlm", 2, "did you mean vllm"},
		{"", "--text x --block-size 0", 2, "--block-size"},
		{"", "--request " + empty + "/none", 2, "no such file"},
		{"{", "--request - --model-path " + dir, 2, "not JSON at byte 1"},
		{`{"messages":[{"role":"user","content":"x"}]}`, "--request -", 1, "no chat template"},
		{`{"prompt":[1]}`, "--request -", 2, "add --model-path DIR"},
		{"", "--text x --model-path " + empty, 2, "no tokenizer.json"},
		{"", "--text x --model-path " + empty + "/none", 2, "no model"},
		{"", "--request - --chat-template " + empty + "/none", 2, "cannot read chat template"},
	}
	for _, tt := range tests {
		code, stdout, stderr := tokenizeIn(t, tt.stdin, strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(stderr, tt.want) || stdout != "" {
			t.Errorf("tokenize %s: exit code %d, want %d; stderr %q, want %q in it; stdout %q", tt.args, code, tt.code, stderr, tt.want, stdout)
		}
	}
}

func TestModelWriteFaults(t *testing.T) {
	dir := tinyDir(t)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "no directory"},
		{[]string{dir, dir}, 2, "unexpected argument"},
		{[]string{dir}, 2, "will not overwrite"},
		{[]string{filepath.Join(dir, "config.json")}, 1, "cannot write the model"},
	} {
		code, stdout, stderr := run(t, append([]string{"model", "write"}, tt.args...)...)
		if code != tt.code || !strings.Contains(stderr, tt.want) || stdout != "" {
			t.Errorf("model write %q: exit code %d, want %d; stderr %q, want %q in it", tt.args, code, tt.code, stderr, tt.want)
		}
	}
}
