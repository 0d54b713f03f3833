package sim_test

import (
	"testing"

	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/sim"
)

// BenchmarkSim simulates an hour of Mooncake's conversations on 8 workers; the trace is in memory.
func BenchmarkSim(b *testing.B) {
	w := loadTrace(b, 1, "mooncake/conversation_trace.jsonl.gz")
	for _, model := range []string{sim.SerialEngine, sim.BatchEngine} {
		for _, policy := range []string{score.RoundRobin, score.KVAware, score.LeastWork} {
			b.Run("engine="+model+"/policy="+policy, func(b *testing.B) {
				c := serial(8, 5859, policy, 1)
				c.Engine = model
				b.ReportAllocs()
				for b.Loop() {
					mustRun(b, w, c)
				}
				b.ReportMetric(float64(len(w.Requests)*b.N)/b.Elapsed().Seconds(), "requests/s")
			})
		}
	}
}

// BenchmarkClaude reads and simulates all of Claude Code's sessions, 55.8 million block references.
func BenchmarkClaude(b *testing.B) {
	for b.Loop() {
		w := loadTrace(b, 1, "claude-code/part-0.jsonl.gz", "claude-code/part-1.jsonl.gz", "claude-code/part-2.jsonl.gz")
		mustRun(b, w, serial(8, 50000, score.LeastWork, 1))
	}
}
