package tinymodel_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvroute/kvroute/internal/tinymodel"
)

func read(t *testing.T, name string, into any) []byte {
	t.Helper()
	text, err := fs.ReadFile(tinymodel.FS(), name)
	if err != nil {
		t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return text
}

// TestFilesAgree holds the files against each other: an id in one means the same token in the other.
func TestFilesAgree(t *testing.T) {
	t.Parallel()
	var tok struct {
		Added []struct {
			ID      int
			Content string
			Special bool
		} `json:"added_tokens"`
		Normalizer    any
		PostProcessor any `json:"post_processor"`
		Model         struct {
			Vocab  map[string]int
			Merges [][2]string
		}
	}
	size := len(read(t, "tokenizer.json", &tok))
	var cfg struct {
		EOS   int `json:"eos_token_id"`
		Pad   int `json:"pad_token_id"`
		Vocab int `json:"vocab_size"`
	}
	size += len(read(t, "config.json", &cfg))
	var tc struct {
		EOS string `json:"eos_token"`
		Pad string `json:"pad_token"`
	}
	size += len(read(t, "tokenizer_config.json", &tc))
	size += len(read(t, "chat_template.jinja", nil))
	if size > 300_000 {
		t.Errorf("the model has %d bytes, want at most 300,000: it is part of the program", size)
	}
	ids := map[int]string{}
	for text, id := range tok.Model.Vocab {
		if other, twice := ids[id]; twice {
			t.Errorf("id %d is %q and %q", id, text, other)
		}
		ids[id] = text
	}
	for _, a := range tok.Added {
		ids[a.ID] = a.Content
	}
	for id := range tinymodel.VocabSize {
		if _, ok := ids[id]; !ok {
			t.Errorf("no token has id %d", id)
		}
	}
	if len(ids) != tinymodel.VocabSize || cfg.Vocab != tinymodel.VocabSize {
		t.Errorf("%d tokens, config.json says %d, want %d", len(ids), cfg.Vocab, tinymodel.VocabSize)
	}
	for _, m := range tok.Model.Merges {
		if _, ok := tok.Model.Vocab[m[0]+m[1]]; !ok {
			t.Errorf("merge %q makes no token", m)
		}
	}
	if ids[cfg.EOS] != tc.EOS || ids[cfg.Pad] != tc.Pad {
		t.Errorf("end is %q and %q, padding %q and %q: want one each", ids[cfg.EOS], tc.EOS, ids[cfg.Pad], tc.Pad)
	}
}

func TestWriteTo(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "model")
	for range 2 { // again: the same files are there
		if err := tinymodel.WriteTo(dir); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 {
		t.Fatalf("%d files written, %v, want 4", len(entries), err)
	}
	for _, e := range entries {
		got, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if want := read(t, e.Name(), nil); string(got) != string(want) {
			t.Errorf("%s differs from the embedded one", e.Name())
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tinymodel.WriteTo(dir); !errors.Is(err, fs.ErrExist) {
		t.Errorf("writing over another file: %v, want an error that it exists", err)
	}
	if err := tinymodel.WriteTo(filepath.Join(dir, "config.json")); err == nil {
		t.Error("writing into a file instead of a directory worked")
	}
}
