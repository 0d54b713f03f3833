package score_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// recents reads the recency charges as they stand after the last pick.
func (r *rig) recents() []float64 {
	r.tb.Helper()
	var dec score.Decision
	req := prompt(nil)
	if err := r.sc.Peek(&req, r.cands, &dec); err != nil {
		r.tb.Fatalf("Peek: %v", err)
	}
	var out []float64
	for _, t := range dec.Terms {
		out = append(out, t.Recent)
	}
	return out
}

// near compares with values printed to six digits.
func near(got, want []float64) bool {
	return slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) <= 5e-7 })
}

// Golden decisions D1 to D3: picks of serial traffic with the recency charges after each.
func TestGoldenRecency(t *testing.T) {
	distinct := func(i int) []block.Hash { return chain(i, 4) }
	same := func(int) []block.Hash { return chain(0, 4) }
	none := func(int) []block.Hash { return nil }
	for _, tc := range []struct {
		name  string
		chain func(i int) []block.Hash
		picks string
		want  [][]float64
	}{
		{"D1 six distinct prompts", distinct, "ababab", [][]float64{
			{4, 0}, {3.88, 4}, {7.7636, 3.88}, {7.530692, 7.7636}, {11.304771, 7.530692}, {10.965628, 11.304771},
		}},
		{"D2 one prompt five times", same, "abaaa", [][]float64{
			{4, 0}, {3.88, 4}, {3.7636, 3.88}, {3.650692, 3.7636}, {3.541171, 3.650692},
		}},
		{"D3 no blocks five times", none, "ababa", [][]float64{
			{1, 0}, {0.97, 1}, {1.9409, 0.97}, {1.882673, 1.9409}, {2.826193, 1.882673},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 2, config(score.KVAware, recent))
			for i, want := range tc.want {
				if got := r.serve(prompt(tc.chain(i))); got != tc.picks[i:i+1] {
					t.Errorf("pick %d = %s, want %c", i, got, tc.picks[i])
				}
				if got := r.recents(); !near(got, want) {
					t.Errorf("recents after pick %d = %v, want %v", i, got, want)
				}
			}
		})
	}
}

func TestGoldenD4Sessions(t *testing.T) {
	r := newRig(t, 2, config(score.KVAware, weight(20), recent))
	var picks strings.Builder
	for turn := range 3 {
		for session := range 3 {
			picks.WriteString(r.serve(prompt(chain(session, 3+3*turn))))
		}
	}
	if got := picks.String(); got != "abaabaaba" {
		t.Errorf("picks = %s, want aba aba aba", got)
	}
	if got := r.recents(); !near(got, []float64{15.987067, 7.989827}) {
		t.Errorf("recents = %v, want 15.987067, 7.989827", got)
	}
}

// busy books n distinct blocks on a target.
func (r *rig) busy(t target.ID, n int) { r.led.Reserve(t, load.Demand{Blocks: chain(900+int(t), n)}) }

// Golden decisions D5 to D7, the first of them the seed's worked example: a holds 8 of 10 blocks.
func TestGoldenWorkedExample(t *testing.T) {
	ten := chain(1, 10)
	for _, tc := range []struct {
		name      string
		active    int // on a; b has 1
		weight    float64
		retention score.Retention
		pick      string
		costs     [2]float64
		charge    float64
	}{
		{"D5 worked example", 6, 1, score.NoHint, "a", [2]float64{8, 11}, 2},
		{"D6 weight 0", 12, 0, score.NoHint, "b", [2]float64{12, 1}, 10},
		{"D6 weight 0.1", 12, 0.1, score.NoHint, "b", [2]float64{12.2, 2}, 10},
		{"D6 weight 1", 12, 1, score.NoHint, "b", [2]float64{14, 11}, 10},
		{"D7 long", 12, 1, score.RetainLong, "a", [2]float64{16, 21}, 2},
		{"D7 none", 12, 1, score.RetainNone, "b", [2]float64{12.2, 2}, 10},
		{"D7 short", 12, 1, score.RetainShort, "b", [2]float64{14, 11}, 10},
	} {
		for _, recency := range []float64{0, 1} {
			t.Run(fmt.Sprintf("%s/recency=%v", tc.name, recency), func(t *testing.T) {
				r := newRig(t, 2, config(score.KVAware, weight(tc.weight), func(c *score.Config) { c.RecentWeight = recency }))
				r.view.add(0, ten[:8]...)
				r.busy(0, tc.active)
				r.busy(1, 1)
				req := prompt(ten)
				req.Retention = tc.retention
				if got := r.pick(req); got != tc.pick {
					t.Errorf("pick = %s, want %s", got, tc.pick)
				}
				for i, want := range tc.costs {
					if got := r.dec.Terms[i].Cost; math.Abs(got-want) > 1e-12 {
						t.Errorf("cost of %s = %v, want %v", r.dec.Terms[i].Candidate.Key, got, want)
					}
				}
				want := []float64{0, 0}
				want[r.dec.Picked] = tc.charge * recency
				if got := r.recents(); !near(got, want) {
					t.Errorf("recents = %v, want %v", got, want)
				}
			})
		}
	}
}

// Golden decision D8: hits end at the first block missing.
func TestGoldenD8HoleInThePrefix(t *testing.T) {
	r := newRig(t, 2, config(score.KVAware, recent))
	ten := chain(1, 10)
	r.view.add(0, ten[:2]...)
	r.view.add(0, ten[3:]...)
	r.view.add(1, ten[:3]...)
	if got := r.pick(prompt(ten)); got != "b" {
		t.Errorf("pick = %s, want b", got)
	}
	if a, b := r.dec.Terms[0].Hits, r.dec.Terms[1].Hits; a != 2 || b != 3 {
		t.Errorf("hits = %d, %d; want 2, 3", a, b)
	}
	if got := r.recents(); !near(got, []float64{0, 7}) {
		t.Errorf("recents = %v, want 0, 7", got)
	}
}

// Golden decisions D9, D9b and D10: images draw their requests back.
func TestGoldenImages(t *testing.T) {
	const A, B, C = 1, 2, 3
	for _, tc := range []struct {
		name   string
		weight float64
		images [][]uint64
		want   string
	}{
		{"D9", 1, [][]uint64{{A}, {B}, {A}, {B}, {A}, {B}}, "ababab"},
		{"D9b", 1, [][]uint64{{A, B}, {A}, {B}, {C}}, "aaab"},
		{"D10 weight 0", 0, [][]uint64{{A}, {A}, {A}}, "aba"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 2, config(score.KVAware, weight(tc.weight), recent))
			got := ""
			for _, images := range tc.images {
				req := prompt(chain(1, 3)) // the same text: it must not matter
				req.Multimodal, req.Images = true, images
				got += r.serve(req)
			}
			if got != tc.want {
				t.Errorf("picks = %s, want %s", got, tc.want)
			}
		})
	}
}

// Golden decision D11: the ranks of one worker are targets of their own.
func TestGoldenD11Ranks(t *testing.T) {
	r := newRig(t, 2, config(score.KVAware, recent))
	for rank := range r.cands {
		r.cands[rank].Key = target.Key{Worker: "a", Rank: rank}.RouteKey()
	}
	got := ""
	for i := range 3 {
		got += r.serve(prompt(chain(i, 4))) + " "
	}
	if got != "a#dp0 a#dp1 a#dp0 " {
		t.Errorf("picks = %s, want a#dp0 a#dp1 a#dp0", got)
	}
}
