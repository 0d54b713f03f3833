package report_test

import (
	"testing"

	"github.com/kvroute/kvroute/internal/report"
)

// The interactivity that 90 % of the requests reach is that of the ITL which 90 % do not exceed.
func TestInteractivity(t *testing.T) {
	m, err := report.MetricNamed("interactivity_p90")
	if err != nil {
		t.Fatal(err)
	}
	run := report.Run{Sim: &report.Sim{Completed: 1, ITL: report.Dist{P50: 20_000, P90: 40_000}}}
	if v, ok := m.Value(&run); !ok || v != 25 || m.Field != "interactivity_p90_tokens_per_s" || m.Better != report.Higher {
		t.Errorf("%+v: got %v, %v, want 25 tokens/s", m, v, ok)
	}
	run.Sim.ITL = report.Dist{}
	if v, ok := m.Value(&run); ok {
		t.Errorf("without a time between tokens: got %v, want that it is not known", v)
	}
	th, err := report.ParseThresholds("interactivity_p90<20tok/s")
	if err != nil || th[0].Limit != 20 {
		t.Errorf("got %+v, %v, want a limit of 20", th, err)
	}
}
