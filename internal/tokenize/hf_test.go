package tokenize_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/tinymodel"
	"github.com/kvroute/kvroute/internal/tokenize"
	"github.com/kvroute/kvroute/internal/tokenize/hf"
)

// open loads a model directory with the real encoders, or skips the test where they are not built.
func open(t testing.TB, dir string) *hf.Model {
	t.Helper()
	m, err := hf.Open(dir, hf.Options{})
	if errors.Is(err, hf.ErrNotBuilt) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func openTiny(t testing.TB) *hf.Model {
	t.Helper()
	dir := t.TempDir()
	if err := tinymodel.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

// modelOf puts a loaded model behind the caches.
func modelOf(t testing.TB, m *hf.Model, lim tokenize.Limits) *tokenize.Model {
	t.Helper()
	meta := tokenize.Meta{ToolTemplate: m.ToolTemplate()}
	for _, s := range m.Special {
		meta.Special = append(meta.Special, tokenize.Special{Name: s.Name, Text: s.Text})
	}
	out, err := tokenize.New(m.Encoder(), m.Template(), meta, lim)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// vectors are what Python made of the tiny model (internal/tinymodel/vectors.py).
type vectors struct {
	Texts []struct {
		Text string
		IDs  []block.Token
	}
	Chats []struct {
		Body json.RawMessage
		Text string
	}
}

func readVectors(t *testing.T) vectors {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "tinymodel", "testdata", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestPlainBPEAsPython holds the encoder of these tests to Python's.
func TestPlainBPEAsPython(t *testing.T) {
	t.Parallel()
	enc := newBPE(t)
	for _, v := range readVectors(t).Texts {
		got, err := enc.Encode(nil, []byte(v.Text), false)
		if err != nil {
			t.Fatal(err)
		}
		if !(len(got) == 0 && len(v.IDs) == 0) && !cmp.Equal(got, v.IDs) {
			t.Errorf("%q: %v, want %v", v.Text, got, v.IDs)
		}
	}
}

// TestTinyModel: the encoders, the plain BPE and Python agree about the tiny model, and its renders are
// those of transformers.
func TestTinyModel(t *testing.T) {
	t.Parallel()
	loaded := openTiny(t)
	if loaded.FastOff != "" {
		t.Errorf("the fast encoder is off: %s", loaded.FastOff)
	}
	ref, err := loaded.Reference()
	if err != nil {
		t.Fatal(err)
	}
	plain := newBPE(t)
	if diff := cmp.Diff(plain.Added(), loaded.Encoder().Added()); diff != "" {
		t.Errorf("added tokens, -file +encoder:\n%s", diff)
	}
	v := readVectors(t)
	var texts []string
	for _, x := range v.Texts {
		texts = append(texts, x.Text)
		got, err := ref.Encode(nil, []byte(x.Text), false)
		if err != nil || len(got)+len(x.IDs) > 0 && !cmp.Equal(got, x.IDs) {
			t.Errorf("%s: %q: %v (%v), want Python's %v", ref.Name(), x.Text, got, err, x.IDs)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		texts = append(texts, someText(r, r.IntN(400)))
	}
	for _, text := range texts {
		want, err := plain.Encode(nil, []byte(text), false)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []tokenize.Encoder{loaded.Encoder(), ref} {
			got, err := e.Encode(nil, []byte(text), false)
			if err != nil || len(got)+len(want) > 0 && !cmp.Equal(got, want) {
				t.Errorf("%s: %q: %v (%v), want %v", e.Name(), text, got, err, want)
			}
		}
	}
	m := modelOf(t, loaded, tokenize.Limits{})
	for _, x := range v.Chats {
		body := x.Body
		var fields map[string]any
		if err := json.Unmarshal(body, &fields); err != nil {
			t.Fatal(err)
		}
		if _, ok := fields["add_generation_prompt"]; !ok { // transformers' default is off, ours is on
			fields["add_generation_prompt"] = false
			body = append([]byte(`{"add_generation_prompt":false,`), body[1:]...)
		}
		if think, ok := fields["enable_thinking"]; ok {
			body = fmt.Appendf(nil, `{"chat_template_kwargs":{"enable_thinking":%v},%s`, think, body[1:])
		}
		res := m.Tokenize(t.Context(), tokenize.Chat, body, tokenize.Options{Variant: tokenize.Variant{Prepare: tokenize.PrepareNone}, KeepText: true, BlockSize: 16})
		if res.Err != nil {
			t.Errorf("%s: %v", body, res.Err)
			continue
		}
		if diff := cmp.Diff(x.Text, string(res.Text)); diff != "" {
			t.Errorf("%s: text, -transformers +ours:\n%s", body, diff)
		}
	}
}

// TestSegmentsOfRealModels: for every model at hand, conversations and completions through the caches,
// in pieces, give the tokens of the reference encoder on the whole text.
func TestSegmentsOfRealModels(t *testing.T) {
	t.Parallel()
	dirs := map[string]string{"tiny": ""}
	if root := os.Getenv("KVROUTE_PARITY"); root != "" {
		entries, err := os.ReadDir(filepath.Join(root, "models"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			dirs[e.Name()] = filepath.Join(root, "models", e.Name())
		}
	} else {
		t.Log("KVROUTE_PARITY is not set: only the tiny model is tested (make parity fetches real ones)")
	}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) {
			var loaded *hf.Model
			if dir == "" {
				loaded = openTiny(t)
			} else {
				loaded = open(t, dir)
			}
			segments(t, loaded)
		})
	}
}

func segments(t *testing.T, loaded *hf.Model) {
	ref, err := loaded.Reference()
	if err != nil {
		t.Fatal(err)
	}
	m := modelOf(t, loaded, tokenize.Limits{CacheBytes: 8 << 20})
	r := rand.New(rand.NewPCG(9, 9))
	var added []string
	for _, a := range ref.Added() {
		added = append(added, a.Content)
	}
	text := func(n int) string {
		s := someText(r, n)
		for range r.IntN(4) {
			if len(added) > 0 {
				at := r.IntN(len(s) + 1)
				for at < len(s) && s[at]&0xc0 == 0x80 {
					at++
				}
				s = s[:at] + added[r.IntN(len(added))] + s[at:]
			}
		}
		return s
	}
	var prompts int
	var msgs []message
	long := ""
	for turn := range 150 {
		opt := tokenize.Options{BlockSize: 16, KeepText: true, Now: time.Unix(1e9, 0)}
		if turn%10 == 0 {
			msgs, long = nil, ""
		}
		msgs = append(msgs, message{[]string{"user", "assistant"}[len(msgs)%2], text(r.IntN(500))})
		if loaded.Template() != nil && len(msgs)%2 == 1 {
			res := m.Tokenize(t.Context(), tokenize.Chat, body(t, map[string]any{"messages": msgs}), opt)
			if res.Unhashable == "" {
				check(t, fmt.Sprintf("turn %d", turn), ref, res, false, opt)
				prompts++
			} else if res.Unhashable != tokenize.ReasonTemplate {
				t.Errorf("turn %d: %s: %v", turn, res.Unhashable, res.Err)
			}
		}
		long += text(r.IntN(300))
		res := m.Tokenize(t.Context(), tokenize.Completions, body(t, map[string]any{"prompt": long}), opt)
		check(t, fmt.Sprintf("turn %d, text", turn), ref, res, true, opt)
		prompts++
	}
	s := m.Stats()
	t.Logf("%s: %d prompts, %d pieces remembered, %.0f %% of the tokens reused", loaded.Encoder().Name(), prompts, s.Pieces, 100*float64(s.HitTokens)/float64(s.HitTokens+s.MissTokens))
}
