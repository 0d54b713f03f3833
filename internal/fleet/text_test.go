//go:build cgo

package fleet_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/admin"
	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/fakeengine"
	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/tinymodel"
	"github.com/kvroute/kvroute/internal/tokenize"
	"github.com/kvroute/kvroute/internal/tokenize/hf"
	"github.com/kvroute/kvroute/internal/vitals"
)

// readable is the embedded model, which can tell what tokens say.
type readable struct {
	*tokenize.Model
	words *hf.Model
}

func (r readable) Decode(ids []block.Token) (string, error) { return r.words.Decode(ids) }

func newReadable(t *testing.T) readable {
	t.Helper()
	m, err := tiny()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "model")
	if err := tinymodel.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	words, err := hf.Open(dir, hf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return readable{m, words}
}

// TestTextOfPrefixes: a prefix shows what its own blocks say, whatever follows in the requests that have it, and only
// to those who may see it. Nothing of it is recorded or logged.
func TestTextOfPrefixes(t *testing.T) {
	tok := newReadable(t)
	for _, tt := range []struct {
		name       string
		text, toks bool
	}{{"with tokens", true, true}, {"by bytes", true, false}, {"not to be shown", false, true}, {"by bytes, not to be shown", false, false}} {
		t.Run(tt.name, func(t *testing.T) {
			v := vitals.New()
			s := newStand(t, options{engines: []fakeengine.Config{vllm(2000)}, record: true, fleet: func(c *fleet.Config) {
				c.Vitals, c.Text = v, tt.text
				c.Tokenizer = func(string) tokenize.Tokenizer {
					if tt.toks {
						return tok
					}
					return nil
				}
			}})
			hub := admin.NewHub(admin.HubConfig{Fleet: s.fleet, Vitals: v, Text: tt.text})
			rules := "SYSTEM: the launch code is seven " + strings.Repeat("and seven ", 90)
			for _, end := range []string{"ALPHA asks for tea", "BETA asks for wine", "ALPHA asks for tea"} {
				c := map[string]any{"model": "", "max_tokens": 3, "messages": []any{
					map[string]any{"role": "system", "content": rules},
					map[string]any{"role": "user", "content": end + strings.Repeat(" and more of it", 30)},
				}}
				if status, body, err := s.post(context.Background(), "/v1/chat/completions", c); err != nil || status != 200 {
					t.Fatalf("status %d, %v: %s", status, err, body)
				}
			}
			snap := hub.Fresh()
			root, kids := parts(t, snap.Cache.Prefixes)
			if !tt.text {
				data, err := json.Marshal(snap)
				if err != nil {
					t.Fatal(err)
				}
				if root.Text != "" || strings.Contains(string(data), "launch") || strings.Contains(string(data), "ALPHA") {
					t.Errorf("text is in the snapshot: %s", data)
				}
			} else {
				if !strings.Contains(root.Text, "SYSTEM: the launch code is seven and seven") || strings.Contains(root.Text, "ALPHA") || len([]rune(root.Text)) > 161 {
					t.Errorf("the common prefix says %q", root.Text)
				}
				for i, want := range []string{"ALPHA", "BETA"} {
					other := []string{"BETA", "ALPHA"}[i]
					if k := kids[i]; !strings.Contains(k.Text, want+" asks for") || strings.Contains(k.Text, other) || strings.Contains(k.Text, "launch") {
						t.Errorf("the prefix that ends with %s says %q", want, k.Text)
					}
				}
			}
			s.close()
			recorded, err := os.ReadFile(s.file)
			if err != nil {
				t.Fatal(err)
			}
			for what, all := range map[string]string{"recording": string(recorded), "log": s.log.String()} {
				if len(all) < 100 || strings.Contains(all, "launch") || strings.Contains(all, "ALPHA") {
					t.Errorf("the %s of %d bytes has text of prompts", what, len(all))
				}
			}
		})
	}
}

// parts returns the prefix that all have, and the two that follow it, the hotter one first.
func parts(t *testing.T, ps []snapshot.Prefix) (root snapshot.Prefix, kids []snapshot.Prefix) {
	t.Helper()
	if len(ps) != 3 || ps[0].Uses != 3 || ps[0].Parent != "" || ps[1].Uses != 2 || ps[1].Parent != ps[0].Hash || ps[2].Parent != ps[0].Hash {
		t.Fatalf("prefixes %+v, want one that all have and two that follow it", ps)
	}
	return ps[0], ps[1:]
}
