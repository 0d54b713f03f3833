package score_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
)

// The seed's worked example, from numbers alone.
func TestExplainWorkedExample(t *testing.T) {
	cands := []score.ExplainCandidate{
		{Name: "W0", Hits: 8, Load: load.Load{ActiveBlocks: 6}},
		{Name: "W1", Hits: 0, Load: load.Load{ActiveBlocks: 1}},
	}
	d, err := score.Explain(config(score.KVAware), score.Request{ID: "stated"}, 10, cands)
	if err != nil {
		t.Fatal(err)
	}
	if d.Picked != 0 || d.Terms[0].Cost != 8 || d.Terms[1].Cost != 11 || d.TieRule != score.ByCost {
		t.Errorf("picked %d at %v against %v by %s, want 0 at 8 against 11 by cost", d.Picked, d.Terms[0].Cost, d.Terms[1].Cost, d.TieRule)
	}
	var table bytes.Buffer
	if err := d.Table(&table); err != nil {
		t.Fatal(err)
	}
	golden(t, "explain-worked-example.txt", table.Bytes())
}

// A decision explained from its own numbers is the decision: one code, whatever the source.
func TestExplainAgreesWithPick(t *testing.T) {
	for _, cfg := range []score.Config{config(score.KVAware, recent), config(score.LeastWork), config(score.Prefix), config(score.LeastLoad)} {
		for line := range bytes.Lines(history(t, cfg, 4)) {
			want, err := score.ParseDecision(bytes.TrimSpace(line))
			if err != nil {
				t.Fatal(err)
			}
			if want.Images > 0 || want.Weight != 1 && cfg.Policy == score.KVAware {
				continue // hints are not in the record, image keys are not either
			}
			var cands []score.ExplainCandidate
			learned := false
			for _, tm := range want.Terms {
				learned = learned || tm.Slow > 0
				cands = append(cands, score.ExplainCandidate{
					Name: tm.Candidate.Key, Role: tm.Candidate.Role, NoBlocks: tm.Candidate.BlockSize == 0,
					Hits: tm.Hits, Load: tm.Load, Recent: tm.Recent, Computed: tm.Computed,
				})
			}
			if learned {
				continue // paces cannot be stated
			}
			blocks := want.Terms[0].Blocks
			req := score.Request{ID: want.RequestID, Role: want.Role, TokensExact: want.TokensExact, InputTokens: blocks * 16, N: 1}
			got, err := score.Explain(cfg, req, blocks, cands)
			if err != nil {
				t.Fatal(err)
			}
			for i := range got.Terms {
				if want.Role == score.Decode && cfg.Policy == score.LeastWork {
					continue // samples are not in the record
				}
				if got.Terms[i].Cost != want.Terms[i].Cost {
					t.Fatalf("%s, decision %d: cost of %s = %v, want %v", cfg.Policy, want.Seq, cands[i].Name, got.Terms[i].Cost, want.Terms[i].Cost)
				}
			}
			if got.Picked != want.Picked || got.TieRule != want.TieRule {
				t.Fatalf("%s, decision %d: picked %d by %s, want %d by %s", cfg.Policy, want.Seq, got.Picked, got.TieRule, want.Picked, want.TieRule)
			}
		}
	}
}

func TestExplainTiersAndImages(t *testing.T) {
	cands := []score.ExplainCandidate{
		{Name: "gpu", Hits: 5}, {Name: "cpu", Hits: 6, CPUHits: 6}, {Name: "disk", Hits: 8, DiskHits: 8}, {Name: "odd\x1b[31m", NoBlocks: true, Hits: 9},
	}
	d, err := score.Explain(config(score.KVAware), score.Request{}, 10, cands)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{5, 5.2, 6.8, 10} {
		if got := d.Terms[i].Cost; math.Abs(got-want) > 1e-12 {
			t.Errorf("cost of %s = %v, want %v", cands[i].Name, got, want)
		}
	}
	var table bytes.Buffer
	if err := d.Table(&table); err != nil {
		t.Fatal(err)
	}
	golden(t, "explain-tiers.txt", table.Bytes())
	req := score.Request{Multimodal: true, Images: []uint64{1, 2}}
	d, err = score.Explain(config(score.KVAware), req, 10, []score.ExplainCandidate{{Name: "cold"}, {Name: "warm", ImageHits: 1, Load: load.Load{ActiveBlocks: 7}}})
	if err != nil || d.Picked != 1 || d.Terms[0].Cost != 96 || d.Terms[1].Cost != 55 {
		t.Errorf("images: %v, %+v; want the warm one at 55 against 96", err, d)
	}
	// What is stated counts, whichever the images are.
	req.Images = []uint64{1, 1, 2}
	d, err = score.Explain(config(score.KVAware), req, 10, []score.ExplainCandidate{{Name: "w", ImageHits: 1}})
	if err != nil || d.Terms[0].ImageHits != 1 || !slices.Equal(req.Images, []uint64{1, 1, 2}) {
		t.Errorf("the same image twice: %v, %d image hits, want 1 as stated", err, d.Terms[0].ImageHits)
	}
	req.Images = make([]uint64, 300)
	_, err = score.Explain(config(score.KVAware), req, 10, []score.ExplainCandidate{{Name: "w", ImageHits: 300}})
	if err == nil || !strings.Contains(err.Error(), "256") {
		t.Errorf("more image hits than a target remembers: error %v, want the limit", err)
	}
}

// TestTableIsHarmless: records come from files, and nothing in them may act on a terminal.
func TestTableIsHarmless(t *testing.T) {
	const evil = "x\x1b[31m\n\u009b2J"
	d, err := score.Explain(config(score.KVAware), score.Request{}, 10, []score.ExplainCandidate{{Name: evil}, {Name: "w"}})
	if err != nil {
		t.Fatal(err)
	}
	plain := d
	d.Policy, d.Basis, d.Reason, d.TieRule, d.Session = evil, evil, evil, evil, evil
	d.Terms = slices.Clone(d.Terms)
	d.Terms[0].Note = evil
	var got, want bytes.Buffer
	if err := errors.Join(d.Table(&got), plain.Table(&want)); err != nil {
		t.Fatal(err)
	}
	if i := strings.IndexFunc(got.String(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' }); i >= 0 {
		t.Errorf("a control character at byte %d of %q", i, got.String())
	}
	if g, w := strings.Count(got.String(), "\n"), strings.Count(want.String(), "\n"); g != w {
		t.Errorf("got %d lines, want %d:\n%s", g, w, got.String())
	}
}

// What candidates hold and what they can use of it differ; what is in doubt says so.
func TestExplainLastComputedAndDoubt(t *testing.T) {
	req := score.Request{LastComputed: true, Approximate: "no events"}
	d, err := score.Explain(config(score.KVAware), req, 10, []score.ExplainCandidate{
		{Name: "block", Hits: 10, CPUHits: 2, DiskHits: 1, Doubt: "silent"}, {Name: "page", Hits: 10, PageSize: 32}, {Name: "part", Hits: 5, CPUHits: 2, PageSize: 32},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		hits   int64
		weight float64
	}{{9, 7 + 2*0.8}, {8, 8}, {4, 3 + 0.8}} {
		if got := d.Terms[i]; got.Hits != want.hits || math.Abs(got.HitWeight-want.weight) > 1e-12 {
			t.Errorf("%s: %d hits weighing %v, want %d weighing %v", got.Candidate.Key, got.Hits, got.HitWeight, want.hits, want.weight)
		}
	}
	if d.Picked != 0 || d.Basis != score.BasisEstimated || d.Reason != "silent" {
		t.Errorf("picked %d, basis %s (%s); want 0, estimated (silent)", d.Picked, d.Basis, d.Reason)
	}
	var table bytes.Buffer
	if err := d.Table(&table); err != nil {
		t.Fatal(err)
	}
	golden(t, "explain-doubt.txt", table.Bytes())
}

func TestExplainRejects(t *testing.T) {
	ok := []score.ExplainCandidate{{Name: "w"}}
	for _, tc := range []struct {
		name   string
		blocks int64
		c      score.ExplainCandidate
		want   string
	}{
		{"negative blocks", -1, ok[0], "must be from 0"},
		{"too many blocks", score.MaxExplainBlocks + 1, ok[0], "must be from 0"},
		{"hits above blocks", 5, score.ExplainCandidate{Name: "w", Hits: 6}, `candidate "w": 6 hits`},
		{"negative hits", 5, score.ExplainCandidate{Name: "w", Hits: -1}, "negative"},
		{"negative load", 5, score.ExplainCandidate{Name: "w", Load: load.Load{HeldTokens: -1}}, "negative"},
		{"absurd load", 5, score.ExplainCandidate{Name: "w", Load: load.Load{HeldTokens: 1 << 60}}, "above"},
		{"tiers above hits", 5, score.ExplainCandidate{Name: "w", Hits: 3, CPUHits: 2, DiskHits: 2}, "more than its 3 hits"},
		{"image hits", 5, score.ExplainCandidate{Name: "w", ImageHits: 1}, "1 image hits, of 0 images"},
		{"negative page", 5, score.ExplainCandidate{Name: "w", PageSize: -1}, "pages of -1"},
		{"NaN recency", 5, score.ExplainCandidate{Name: "w", Recent: math.NaN()}, "negative"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := score.Explain(score.Defaults(), score.Request{}, tc.blocks, []score.ExplainCandidate{tc.c})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want one with %q", err, tc.want)
			}
		})
	}
	if _, err := score.Explain(score.Defaults(), score.Request{}, 3, nil); !errors.Is(err, score.ErrNoCandidates) {
		t.Errorf("no candidates: %v", err)
	}
	bad := score.Defaults()
	bad.Policy = "best"
	if _, err := score.Explain(bad, score.Request{}, 3, ok); err == nil {
		t.Error("an unknown policy was taken")
	}
}

func TestTableFolds(t *testing.T) {
	for _, name := range []string{"w", strings.Repeat("n", 60), strings.Repeat("n", 90)} {
		cands := make([]score.ExplainCandidate, 3)
		for i := range cands {
			cands[i].Name, cands[i].Hits, cands[i].Recent, cands[i].Computed = fmt.Sprint(name, i), int64(i), 1234.567, 4321
			cands[i].Load = load.Load{ActiveBlocks: 100, PendingTokens: 5000, PendingRequests: 3, HeldTokens: 9000, HeldRequests: 4}
		}
		dec, err := score.Explain(config(score.LeastWork), score.Request{ID: "r", BlockSize: 16, InputTokens: 160, TokensExact: true, N: 1}, 10, cands)
		if err != nil {
			t.Fatal(err)
		}
		var table bytes.Buffer
		if err := dec.Table(&table); err != nil {
			t.Fatal(err)
		}
		got := table.String()
		for line := range strings.Lines(got) {
			line = strings.TrimSuffix(line, "\n")
			if len(name) < 60 && len(line) > 80 || strings.TrimRight(line, " ") != line {
				t.Errorf("a line of %d columns or with blanks at its end: %q", len(line), line)
			}
		}
		for _, term := range []string{"hits", "pending", "requests", "recent", "computed", "cost"} {
			if !strings.Contains(got, term) {
				t.Errorf("no %s in:\n%s", term, got)
			}
		}
		if n := strings.Count(got, "*"); n < 2 {
			t.Errorf("the table is not folded, or a part lacks the mark:\n%s", got)
		}
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestTable(t *testing.T) {
	r := newRig(t, 3, config(score.LeastWork, demand(score.DemandShadow, 10), affinity(score.AffinityBoth)))
	r.view.add(1, chain(1, 6)...)
	r.holding(0, 3, 900, 2)
	req := sessionReq("s", score.Decode, 0)
	r.pick(req)
	var table bytes.Buffer
	if err := r.dec.Table(&table); err != nil {
		t.Fatal(err)
	}
	golden(t, "table-decode.txt", table.Bytes())
	if err := r.dec.Table(failingWriter{}); err == nil {
		t.Error("a write error was swallowed")
	}
}
