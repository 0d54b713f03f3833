package trace_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"testing"

	"github.com/kvroute/kvroute/internal/testtraces"
	"github.com/kvroute/kvroute/internal/trace"
)

// unpack returns the content of a big trace.
func unpack(b *testing.B, rel string) []byte {
	b.Helper()
	f, err := os.Open(testtraces.Path(b, rel))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		b.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		b.Fatal(err)
	}
	return data
}

var benchFiles = []struct{ name, rel string }{
	{"mooncake", "mooncake/conversation_trace.jsonl.gz"},
	{"chained", "ragpulse/ragpulse_chained.jsonl.gz"},
	{"ragpulse", "ragpulse/0_trace.jsonl.gz"},
	{"claude-code", "claude-code/small.jsonl.gz"},
	{"azure", "azure/AzureLLMInferenceTrace_conv.csv.gz"},
}

// BenchmarkRead measures the readers on unpacked data: MB/s of text.
func BenchmarkRead(b *testing.B) {
	for _, f := range benchFiles {
		b.Run(f.name, func(b *testing.B) {
			data := unpack(b, f.rel)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			var rec trace.Record
			for b.Loop() {
				r, _, err := trace.Open(bytes.NewReader(data), "", trace.Options{})
				for err == nil {
					err = r.Read(&rec)
				}
				if err != io.EOF {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLoad measures the way from the packed file to the workload.
func BenchmarkLoad(b *testing.B) {
	for _, f := range benchFiles {
		b.Run(f.name, func(b *testing.B) {
			data, err := os.ReadFile(testtraces.Path(b, f.rel))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := trace.Load([]trace.Source{{Name: f.name, R: bytes.NewReader(data)}}, trace.Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLoadClaudeFull loads all of claude-code/part-*: 55.8 million block references.
func BenchmarkLoadClaudeFull(b *testing.B) {
	var paths []string
	for _, p := range []string{"part-0", "part-1", "part-2"} {
		paths = append(paths, testtraces.Path(b, "claude-code/"+p+".jsonl.gz"))
	}
	b.ReportAllocs()
	for b.Loop() {
		var src []trace.Source
		for _, p := range paths {
			f, err := os.Open(p)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			src = append(src, trace.Source{Name: p, R: f})
		}
		w, err := trace.Load(src, trace.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if len(w.Requests) != 30138 {
			b.Fatalf("%d requests", len(w.Requests))
		}
	}
}
