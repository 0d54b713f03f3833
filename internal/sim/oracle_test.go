package sim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/sim"
	"github.com/kvroute/kvroute/internal/testtraces"
	"github.com/kvroute/kvroute/internal/trace"
)

// oracleRow is one row of traces[].sim in testdata/trace-stats.json, made by an independent script.
type oracleRow struct {
	Policy     string   `json:"policy"`
	Weight     *float64 `json:"weight"`
	Workers    int      `json:"workers"`
	Cap        int      `json:"cap"`
	HitBlocks  int64    `json:"hit_blocks"`
	HitTokens  int64    `json:"hit_tokens"`
	TTFTSum    int64    `json:"ttft_sum_us"`
	TTFTP50    int64    `json:"ttft_p50_us"`
	TTFTP90    int64    `json:"ttft_p90_us"`
	TTFTP99    int64    `json:"ttft_p99_us"`
	TTFTMax    int64    `json:"ttft_max_us"`
	Makespan   int64    `json:"makespan_us"`
	Peak       int64    `json:"peak_active_blocks"`
	Requests   []int64  `json:"requests_per_worker"`
	MissBlocks []int64  `json:"miss_blocks_per_worker"`
}

type oracleTrace struct {
	Name    string      `json:"name"`
	Speedup float64     `json:"speedup"`
	Sim     []oracleRow `json:"sim"`
}

func oracle(tb testing.TB) []oracleTrace {
	tb.Helper()
	data, err := os.ReadFile(testtraces.Bundled("testdata/trace-stats.json"))
	if err != nil {
		tb.Fatal(err)
	}
	var doc struct{ Traces []oracleTrace }
	if err := json.Unmarshal(data, &doc); err != nil {
		tb.Fatal(err)
	}
	return doc.Traces
}

var oracleFiles = map[string]string{
	"mooncake-conversation": "mooncake/conversation_trace.jsonl.gz",
	"ragpulse":              "ragpulse/ragpulse_chained.jsonl.gz",
	"claude-small":          "claude-code/small.jsonl.gz",
}

func loadTrace(tb testing.TB, speedup float64, rels ...string) *trace.Workload {
	tb.Helper()
	var paths []string
	for _, rel := range rels {
		paths = append(paths, testtraces.Path(tb, rel))
	}
	return loadFiles(tb, speedup, paths...)
}

// quarter is the first 15 minutes of Mooncake's conversations, which lie in the repository.
func quarter(tb testing.TB) *trace.Workload {
	tb.Helper()
	return loadFiles(tb, 1, testtraces.Bundled("traces/mooncake/conversation_15min.jsonl.gz"))
}

func loadFiles(tb testing.TB, speedup float64, paths ...string) *trace.Workload {
	tb.Helper()
	var sources []trace.Source
	for _, rel := range paths {
		f, err := os.Open(rel)
		if err != nil {
			tb.Fatal(err)
		}
		defer f.Close()
		sources = append(sources, trace.Source{Name: rel, R: f})
	}
	w, err := trace.Load(sources, trace.Options{Speedup: speedup})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

func serial(workers, capacity int, policy string, weight float64) sim.Config {
	c := sim.Config{Workers: workers, Capacity: capacity, Engine: sim.SerialEngine, Serial: sim.DefaultSerial(), Score: score.Defaults()}
	c.Score.Policy = policy
	c.Score.OverlapWeight = weight
	return c
}

func mustRun(tb testing.TB, w *trace.Workload, c sim.Config) *report.Run {
	tb.Helper()
	r, err := sim.Run(context.Background(), w, c)
	if err != nil {
		tb.Fatalf("%+v: %v", c, err)
	}
	return r
}

// TestOracle: every discrete-event row of the published statistics, digit for digit.
func TestOracle(t *testing.T) {
	rows := 0
	for _, tr := range oracle(t) {
		rows += len(tr.Sim)
		if len(tr.Sim) == 0 {
			continue
		}
		t.Run(tr.Name, func(t *testing.T) {
			w := loadTrace(t, tr.Speedup, oracleFiles[tr.Name])
			for _, want := range tr.Sim {
				name, policy, weight := fmt.Sprintf("%d workers, %s", want.Workers, want.Policy), score.RoundRobin, 1.0
				if want.Policy == "cost" {
					policy, weight = score.KVAware, *want.Weight
					name += fmt.Sprintf(" %v", weight)
				}
				r := mustRun(t, w, serial(want.Workers, want.Cap, policy, weight))
				got := oracleRow{
					want.Policy, want.Weight, r.Workers, int(r.CapacityBlocks), r.HitBlocks, r.HitTokens,
					r.Sim.TTFT.Sum, r.Sim.TTFT.P50, r.Sim.TTFT.P90, r.Sim.TTFT.P99, r.Sim.TTFT.Max, r.Sim.MakespanUS,
					r.Sim.PeakActiveBlocks, r.RequestsPerWorker, r.MissBlocksPerWorker,
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
				if r.PredictedHitBlocks != r.HitBlocks {
					t.Errorf("%s: without delay the mirror predicted %d hits, the caches had %d", name, r.PredictedHitBlocks, r.HitBlocks)
				}
				if r.Sim.Completed != int64(len(w.Requests)) || r.Sim.Lost+r.Sim.Rejected != 0 {
					t.Errorf("%s: %d of %d requests completed, %d lost, %d rejected", name, r.Sim.Completed, len(w.Requests), r.Sim.Lost, r.Sim.Rejected)
				}
			}
		})
	}
	if rows != 48 {
		t.Fatalf("got %d rows to compare with, want 48", rows)
	}
}
