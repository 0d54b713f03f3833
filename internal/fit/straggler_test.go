package fit_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/decodelog"
	"github.com/kvroute/kvroute/internal/fit"
	"github.com/kvroute/kvroute/internal/plantedlog"
)

// A rank that takes 1.5 times as long as the others for the same work, so that they wait for it, is found. Where
// there is none, none is.
func TestStragglers(t *testing.T) {
	seeds, tried, factors := 1, planes[1:2], []float64{1, 1.5, 3}
	if long {
		seeds, tried, factors = 8, planes, []float64{1, 1.2, 1.5, 2, 3}
	}
	var cells []cell
	for i, plane := range tried {
		for _, ranks := range []int{2, 8} {
			for _, factor := range factors {
				for _, independent := range []bool{false, true} {
					p := plane
					p.Noise, p.Ranks, p.Straggler, p.Independent = 0.02, ranks, factor, independent
					name := fmt.Sprintf("plane %d, %d ranks, independent %v, factor %g", i+1, ranks, independent, factor)
					cells = append(cells, cell{name, plantedlog.SGLang, p, plantedlog.Design{Even: true}})
				}
			}
		}
	}
	var found, slow, wrong, alike int
	for i, o := range run(t, cells, seeds) {
		honest(t, cells[i], o)
		n := o.codes[fit.CodeStraggler]
		switch factor := cells[i].truth.Straggler; {
		case factor == 1:
			wrong, alike = wrong+n, alike+seeds
		case factor >= 1.5:
			found, slow = found+n, slow+seeds
			if s := o.first.Spread.Straggler; s >= 0 && o.first.Ranks[s].Rank != 0 {
				t.Errorf("%s: rank %d is named, it is rank 0", cells[i].name, o.first.Ranks[s].Rank)
			}
		}
	}
	t.Logf("found %d of %d stragglers, and %d in %d logs without one", found, slow, wrong, alike)
	if 100*found < 98*slow || 50*wrong > alike {
		t.Errorf("found %d of %d stragglers, want 98 %%, and %d in %d logs without one, want 2 %% at most", found, slow, wrong, alike)
	}
}

// A straggler is called by what its lines and the files are called.
func TestStragglerIsNamed(t *testing.T) {
	p := planes[1]
	p.Noise, p.Ranks, p.Straggler = 0.02, 2, 2
	var log bytes.Buffer
	if err := plantedlog.Write(&log, plantedlog.SGLangMillis, p, plantedlog.Design{Even: true}, 1); err != nil {
		t.Fatal(err)
	}
	var split [2]string
	for _, line := range strings.SplitAfter(log.String(), "\n") {
		for i := range split {
			if strings.Contains(line, fmt.Sprintf(" DP%d ", i)) {
				split[i] += line
			}
		}
	}
	noRank := strings.NewReplacer("DP0 ", "", "DP1 TP1", "TP0")
	for _, tt := range []struct {
		name string
		logs []string
		want string
	}{
		{"one file", []string{log.String()}, "load of rank 0 explains"},
		{"a file for each", split[:], "load of rank 0 of 0.log explains"},
		{"a file for each, no ranks", []string{noRank.Replace(split[0]), noRank.Replace(split[1])}, "load of 0.log explains"},
	} {
		var sources []decodelog.Source
		for i, l := range tt.logs {
			sources = append(sources, decodelog.Source{Name: fmt.Sprintf("%d.log", i), R: strings.NewReader(l)})
		}
		f := fit.New(fit.Options{Draws: 20})
		report, err := decodelog.Read(context.Background(), sources, decodelog.Options{}, func(s *decodelog.Sample) error { f.Add(s); return nil })
		if err != nil {
			t.Fatal(err)
		}
		f.Describe(report)
		text := "none"
		for _, r := range f.Result().Reasons {
			if r.Code == fit.CodeStraggler {
				text = r.Text
			}
		}
		if !strings.Contains(text, tt.want) {
			t.Errorf("%s: straggler: %q, want %q", tt.name, text, tt.want)
		}
	}
}

// A few lines of a rank tell nothing of how fast it is.
func TestAFewSlowLinesAreNoStraggler(t *testing.T) {
	for _, lines := range []int{4, 200} {
		samples := exact(0.018, 5e-4, 1.5e-8, 200, 2)
		for i := range lines {
			s := samples[2*i]
			s.Rank, s.Step = 2, 1.4*s.Step
			samples = append(samples, s)
		}
		slices.SortStableFunc(samples, func(x, y decodelog.Sample) int { return cmp.Compare(x.At, y.At) })
		r := fitSamples(samples, fit.Options{})
		if got, want := has(r, fit.CodeStraggler), lines == 200; got != want {
			t.Errorf("%d slow lines: a straggler told %v, want %v: %+v", lines, got, want, r.Reasons)
		}
	}
}
