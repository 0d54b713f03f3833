package tracestats_test

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/kvroute/kvroute/internal/testtraces"
	"github.com/kvroute/kvroute/internal/trace"
	"github.com/kvroute/kvroute/internal/tracestats"
)

// TestResampleKeepsTheCeiling checks that what is drawn twice does not hit its own copy: then the
// share of hits of the draws would lie far above that of the trace.
func TestResampleKeepsTheCeiling(t *testing.T) {
	for _, rel := range []string{
		"traces/mooncake/conversation_15min.jsonl.gz", "traces/claude-code/sessions12.jsonl.gz",
		"traces/ragpulse/ragpulse_1500.jsonl.gz", "traces/lmcache-agent/miniswe_blocks64.jsonl.gz",
	} {
		f, err := os.Open(testtraces.Bundled(rel))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w, err := trace.Load([]trace.Source{{Name: rel, R: f}}, trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		rate := func(w *trace.Workload) float64 {
			s := tracestats.Of(w, nil)
			return float64(s.Infinite.HitBlocks) / float64(s.Infinite.TotalBlocks)
		}
		mean, n := 0.0, 20
		for seed := range n {
			mean += rate(w.Resample(rand.New(rand.NewPCG(uint64(seed), 5)).Uint64)) / float64(n)
		}
		if want := rate(w); math.Abs(mean-want) > 0.03 {
			t.Errorf("%s: %.3f of blocks hit in %d draws, %.3f in the trace", rel, mean, n, want)
		} else {
			t.Logf("%s: %.3f in %d draws, %.3f in the trace", rel, mean, n, want)
		}
	}
}
