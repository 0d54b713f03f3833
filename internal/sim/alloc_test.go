package sim_test

import (
	"context"
	"testing"

	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/sim"
)

// TestAllocations: what a run allocates grows with blocks and workers (pages, tables), not with events.
func TestAllocations(t *testing.T) {
	w := quarter(t)
	for _, model := range []string{sim.SerialEngine, sim.BatchEngine} {
		c := serial(8, 1000, score.LeastWork, 1)
		c.Engine = model
		got := testing.AllocsPerRun(1, func() {
			if _, err := sim.Run(context.Background(), w, c); err != nil {
				t.Error(err)
			}
		})
		if limit := float64(len(w.Requests)); got > limit {
			t.Errorf("%s: %v allocations for %v requests", model, got, limit)
		}
	}
}
