package prefixcache

import (
	"fmt"
	"os"
	"testing"

	"github.com/kvroute/kvroute/internal/testtraces"
	"github.com/kvroute/kvroute/internal/trace"
)

// BenchmarkLRU sends a trace through one cache: a hit count and a touch for each request.
func BenchmarkLRU(b *testing.B) {
	for _, f := range []struct {
		name, rel string
		capacity  int
	}{
		{"mooncake", "mooncake/conversation_trace.jsonl.gz", 5859},
		{"mooncake", "mooncake/conversation_trace.jsonl.gz", 0},
		{"claude-small", "claude-code/small.jsonl.gz", 10000},
		{"claude-small", "claude-code/small.jsonl.gz", 50000},
	} {
		b.Run(fmt.Sprintf("%s/capacity=%d", f.name, f.capacity), func(b *testing.B) {
			file, err := os.Open(testtraces.Path(b, f.rel))
			if err != nil {
				b.Fatal(err)
			}
			defer file.Close()
			w, err := trace.Load([]trace.Source{{Name: f.rel, R: file}}, trace.Options{})
			if err != nil {
				b.Fatal(err)
			}
			refs := 0
			for i := range w.Requests {
				refs += w.BlocksOf(&w.Requests[i])
			}
			b.ReportAllocs()
			for b.Loop() {
				c := NewLRU(w.Forest, f.capacity)
				for i := range w.Requests {
					c.Hits(w.Requests[i].Leaf)
					c.Touch(w.Requests[i].Leaf, nil, nil)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(w.Requests)), "ns/request")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(refs), "ns/block")
		})
	}
}
