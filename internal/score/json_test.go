package score_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got with testdata/name.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got), -update rewrites it:\n%s", path, diff)
	}
}

// history runs random traffic of every kind through a scorer and returns its decisions, one a line.
func history(tb testing.TB, cfg score.Config, seed uint64) []byte {
	r := newRig(tb, 5, cfg)
	r.cands[4].BlockSize = 0
	rng := rand.New(rand.NewPCG(seed, 9))
	var out []byte
	var live []load.Handle
	for i := range 300 {
		req := prompt(chain(rng.IntN(9), rng.IntN(25)))
		req.ID = fmt.Sprintf("r%d", i)
		req.Role = score.Role(rng.IntN(3))
		req.At = int64(i) * 1e8
		req.N = rng.Int64N(3)
		req.TokensExact = rng.IntN(4) > 0
		req.Retention = score.Retention(rng.IntN(4))
		if rng.IntN(2) == 0 {
			req.Session = fmt.Sprint(rng.IntN(12))
		}
		if rng.IntN(6) == 0 {
			req.Multimodal, req.Images = true, []uint64{rng.Uint64N(5)}
		}
		r.pick(req)
		out = append(r.dec.AppendJSON(out), '\n')
		r.view.add(r.dec.PickedTerms().Candidate.Target, req.Blocks...)
		live = append(live, r.dec.Handle)
		if rng.IntN(2) == 0 {
			r.sc.FirstToken(live[rng.IntN(len(live))], req.At+rng.Int64N(1e9))
		}
		if len(live) > 8 {
			j := rng.IntN(len(live))
			r.sc.Release(live[j], req.At+1e9)
			live = append(live[:j], live[j+1:]...)
		}
		if rng.IntN(60) == 0 {
			gone := target.ID(rng.IntN(5))
			r.sc.Forget(gone)
			r.led.Join(gone, 1)
		}
	}
	return out
}

// Same input, same bytes; every decision survives writing and reading; each line is plain JSON.
func TestDecisionsRepeatAndRoundTrip(t *testing.T) {
	cfgs := []score.Config{config(score.KVAware, recent, affinity(score.AffinityBoth), demand(score.DemandShadow, 100))}
	for _, p := range score.Policies() {
		cfgs = append(cfgs, config(p))
	}
	for i, cfg := range cfgs {
		t.Run(fmt.Sprint(i, cfg.Policy), func(t *testing.T) {
			first := history(t, cfg, 1)
			if again := history(t, cfg, 1); !bytes.Equal(first, again) {
				t.Error("two runs over the same input differ")
			}
			for line := range bytes.Lines(first) {
				line = bytes.TrimSuffix(line, []byte("\n"))
				d, err := score.ParseDecision(line)
				if err != nil {
					t.Fatalf("ParseDecision(%s): %v", line, err)
				}
				if back := d.AppendJSON(nil); !bytes.Equal(back, line) {
					t.Fatalf("read and written again:\n%s\nwant\n%s", back, line)
				}
				var any map[string]any
				if err := json.Unmarshal(line, &any); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestDecisionFieldsSurvive(t *testing.T) {
	r := newRig(t, 3, config(score.KVAware, recent, affinity(score.AffinityBoth), demand(score.DemandOn, 7)))
	r.cands[1].Key = "w\"1\"\n\x7f\xff#dp0 ü"
	r.cands[0].PageSize, r.cands[0].Doubt = 32, "events \"lost\""
	r.cands[2].Variant = 1
	req := prompt(chain(1, 4))
	req.Variants = []score.Variant{{Blocks: chain(2, 6), InputTokens: 96}}
	req.ID, req.Session, req.Role, req.Images = "id\\1", "s", score.Decode, []uint64{1, 2}
	r.pick(req)
	r.pick(req)
	want := r.dec
	want.Handle = load.Handle{}
	got, err := score.ParseDecision(r.dec.AppendJSON(nil))
	if err != nil {
		t.Fatal(err)
	}
	want.Terms = append([]score.Terms(nil), want.Terms...)
	want.Terms[1].Candidate.Key = strings.ToValidUTF8(want.Terms[1].Candidate.Key, "\ufffd")
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(load.Handle{})); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestParseDecisionRejects(t *testing.T) {
	r := newRig(t, 2, config(score.KVAware))
	r.pick(prompt(chain(1, 4)))
	good := string(r.dec.AppendJSON(nil))
	for _, tc := range []struct{ name, line, want string }{
		{"empty", "", "unexpected EOF"},
		{"cut", good[:len(good)/2], "unexpected EOF"},
		{"not an object", "[]", "cannot unmarshal"},
		{"trailing text", good + "{}", "more text"},
		{"unknown field", strings.Replace(good, `"seq"`, `"sequence"`, 1), "sequence"},
		{"pick out of range", strings.Replace(good, `"picked_index":0`, `"picked_index":2`, 1), "none of its 2 candidates"},
		{"pick without name", strings.Replace(good, `"picked":"a"`, `"picked":"b"`, 1), "none of its 2 candidates"},
		{"suggested out of range", strings.Replace(good, `"suggested":-1`, `"suggested":-2`, 1), "suggested"},
		{"unknown role", strings.Replace(good, `"role":"mixed"`, `"role":"boss"`, 1), `"boss"`},
		{"candidate role", strings.Replace(good, `"target":0,"role":"mixed"`, `"target":0,"role":"x"`, 1), `candidate "a"`},
		{"misses", strings.Replace(good, `"misses":4`, `"misses":3`, 1), "3 misses"},
		{"target number", strings.Replace(good, `"target":0`, `"target":99999`, 1), "beyond the limit"},
		{"page size", strings.Replace(good, `"block_size":16`, `"block_size":16,"page_size":-1`, 1), "page size -1"},
		{"no number", strings.Replace(good, `"hits":0`, `"hits":null`, 1), `candidate 0: field "hits" is missing`},
		{"no candidate", `{"seq":4,"candidates":[null]}`, "decision 4"},
		{"no candidates", `{"seq":4,"role":"mixed"}`, "decision 4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := score.ParseDecision([]byte(tc.line)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want one with %q", err, tc.want)
			}
		})
	}
}

// TestParseDecisionNeedsEveryField takes one field out at a time: none may read as zero.
func TestParseDecisionNeedsEveryField(t *testing.T) {
	r := newRig(t, 2, config(score.KVAware))
	r.pick(prompt(chain(1, 4)))
	good := r.dec.AppendJSON(nil)
	var whole map[string]any
	if err := json.Unmarshal(good, &whole); err != nil {
		t.Fatal(err)
	}
	tried := 0
	without := func(m map[string]any, where string) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			value := m[name]
			delete(m, name)
			line, err := json.Marshal(whole)
			if err != nil {
				t.Fatal(err)
			}
			m[name] = value
			if _, err := score.ParseDecision(line); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("without %s of the %s: error %v, want one that names it", name, where, err)
			}
			tried++
		}
	}
	without(whole, "decision")
	without(whole["candidates"].([]any)[1].(map[string]any), "second candidate")
	if line, err := json.Marshal(whole); err != nil || tried < 35 {
		t.Errorf("%v, %d fields tried", err, tried)
	} else if _, err := score.ParseDecision(line); err != nil {
		t.Errorf("with every field: %v", err)
	}
}

func FuzzParseDecision(f *testing.F) {
	for line := range bytes.Lines(history(f, config(score.LeastWork, affinity(score.AffinityPrefill)), 2)) {
		if f.Add(bytes.TrimSpace(line)); bytes.Contains(line, []byte(`"seq":20,`)) {
			break
		}
	}
	r := newRig(f, 2, config(score.LeastWork))
	r.cands[0].Doubt, r.cands[0].PageSize, r.cands[1].Variant = "lost", 1, 1
	req := prompt(chain(1, 4))
	req.Variants = []score.Variant{{InputTokens: 5}}
	r.pick(req)
	line := string(r.dec.AppendJSON(nil))
	f.Add([]byte(line))
	f.Add([]byte(strings.Replace(strings.Replace(line, `"tie":0`, `"tie":1e-9`, 1), `"recent":0`, `"recent":-0.0`, 1)))
	f.Fuzz(func(t *testing.T, line []byte) {
		d, err := score.ParseDecision(line)
		if err != nil {
			return
		}
		once := d.AppendJSON(nil)
		again, err := score.ParseDecision(once)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v\n%s", err, once)
		}
		if twice := again.AppendJSON(nil); !bytes.Equal(once, twice) {
			t.Fatalf("not canonical:\n%s\n%s", once, twice)
		}
		if err := d.Table(&bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
	})
}

// Golden decision records: their form is a promise to scripts and recordings.
func TestGoldenRecords(t *testing.T) {
	lines := bytes.SplitAfterN(history(t, config(score.KVAware, recent, affinity(score.AffinityBoth), demand(score.DemandShadow, 100)), 3), []byte("\n"), 13)
	golden(t, "decisions-kv-aware.jsonl", bytes.Join(lines[:12], nil))
	lines = bytes.SplitAfterN(history(t, config(score.LeastWork), 3), []byte("\n"), 13)
	golden(t, "decisions-least-work.jsonl", bytes.Join(lines[:12], nil))
}
