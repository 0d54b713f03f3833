package sim_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/replay"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/sim"
	"github.com/kvroute/kvroute/internal/testtraces"
)

// TestSimEqualsReplay: on engines that take no time every request is over when the next one comes, and a
// simulation is a replay with nothing in flight: the same decisions, byte for byte.
func TestSimEqualsReplay(t *testing.T) {
	w := loadFiles(t, 1, testtraces.Bundled("traces/claude-code/sessions12.jsonl.gz"))
	for _, policy := range score.Policies() {
		c := serial(5, 20000, policy, 1)
		c.Serial = sim.SerialParams{}
		var simulated, replayed bytes.Buffer
		c.Decisions = &simulated
		got := mustRun(t, w, c)
		want, err := replay.Run(context.Background(), w, replay.Config{Workers: 5, Capacity: 20000, Outstanding: 1, Score: c.Score, Decisions: &replayed})
		if err != nil {
			t.Fatal(err)
		}
		got.Sim, got.TTFTCurve = nil, nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: replay (-) and sim (+) differ:\n%s", policy, diff)
		}
		if !bytes.Equal(simulated.Bytes(), replayed.Bytes()) {
			s, _, _ := bytes.Cut(simulated.Bytes(), []byte("\n"))
			r, _, _ := bytes.Cut(replayed.Bytes(), []byte("\n"))
			t.Errorf("%s: decisions differ; the first ones are\n%s\n%s", policy, s, r)
		}
	}
}
