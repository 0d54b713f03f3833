package tracestats_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kvroute/kvroute/internal/testtraces"
	"github.com/kvroute/kvroute/internal/trace"
	"github.com/kvroute/kvroute/internal/tracestats"
)

// files are the sources of the traces of testdata/trace-stats.json by name.
var files = map[string][]string{
	"mooncake-conversation": {"mooncake/conversation_trace.jsonl.gz"},
	"ragpulse":              {"ragpulse/ragpulse_chained.jsonl.gz"},
	"claude-small":          {"claude-code/small.jsonl.gz"},
	"claude-full":           {"claude-code/part-0.jsonl.gz", "claude-code/part-1.jsonl.gz", "claude-code/part-2.jsonl.gz"},
	"miniswe-blocks64":      {"lmcache-agent/miniswe_blocks64.jsonl.gz"},
	"azure-conv":            {"azure/AzureLLMInferenceTrace_conv.csv.gz"},
}

// formats maps the reader names of testdata/trace-stats.json to ours.
var formats = map[string]string{"mooncake512": trace.Mooncake, "chained": trace.Chained, "claude": trace.ClaudeCode, "azure": trace.Azure}

// load reads big traces that together are one.
func load(tb testing.TB, opt trace.Options, rel ...string) *trace.Workload {
	tb.Helper()
	var src []trace.Source
	for _, r := range rel {
		p := testtraces.Path(tb, r)
		f, err := os.Open(p)
		if err != nil {
			tb.Fatal(err)
		}
		defer f.Close()
		src = append(src, trace.Source{Name: p, R: f})
	}
	w, err := trace.Load(src, opt)
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// TestPublishedNumbers compares every number of basic, infinite and single_lru with the independent
// script's, digit for digit and key for key.
func TestPublishedNumbers(t *testing.T) {
	data, err := os.ReadFile(testtraces.Bundled("testdata/trace-stats.json"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Traces []map[string]any `json:"traces"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Traces) != len(files) {
		t.Fatalf("%d traces in the file, want %d", len(doc.Traces), len(files))
	}
	for _, want := range doc.Traces {
		name := want["name"].(string)
		t.Run(name, func(t *testing.T) {
			if name == "claude-full" && testing.Short() {
				t.Skip("55.8 million block references: not with -short")
			}
			w := load(t, trace.Options{Speedup: want["speedup"].(float64)}, files[name]...)
			w.Name = name
			var caps []int
			list, _ := want["single_lru"].([]any)
			for _, row := range list {
				caps = append(caps, int(row.(map[string]any)["cap"].(float64)))
			}
			js, err := json.Marshal(tracestats.Of(w, caps))
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal(js, &got); err != nil {
				t.Fatal(err)
			}
			want["format"] = formats[want["format"].(string)]
			for _, key := range []string{"name", "format", "basic", "infinite", "single_lru"} {
				if d := cmp.Diff(want[key], got[key]); d != "" {
					t.Errorf("%s (-want +got):\n%s", key, d)
				}
			}
		})
	}
}
