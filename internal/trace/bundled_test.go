package trace_test

import (
	"bytes"
	"compress/gzip"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/testtraces"
	"github.com/kvroute/kvroute/internal/trace"
)

var update = flag.Bool("update", false, "write the traces in traces/ anew from the big ones")

// bundled are the traces in traces/, what is in them, and how each is made from a big one.
var bundled = []struct {
	file, from string
	maxBytes   int
	make       func(t *testing.T, from string) []byte // unpacked content
	requests   int
	sessions   int
	blocks     int
	format     string
}{
	{
		"traces/mooncake/conversation_15min.jsonl.gz", "mooncake/conversation_trace.jsonl.gz", 250 << 10,
		cutTo(trace.CutOptions{ToTime: 15 * time.Minute}), 2728, 0, 50939, trace.Mooncake,
	},
	{
		"traces/ragpulse/ragpulse_1500.jsonl.gz", "ragpulse/ragpulse_chained.jsonl.gz", 100 << 10,
		cutTo(trace.CutOptions{To: 1500}), 1500, 824, 12252, trace.Chained,
	},
	{"traces/claude-code/sessions12.jsonl.gz", "claude-code/small.jsonl.gz", 100 << 10, firstLines(12), 427, 12, 28648, trace.ClaudeCode},
	{"traces/lmcache-agent/miniswe_blocks64.jsonl.gz", "lmcache-agent/miniswe_blocks64.jsonl.gz", 10 << 10, firstLines(-1), 278, 13, 1926, trace.Chained},
	{"traces/azure/conv_5000.csv.gz", "azure/AzureLLMInferenceTrace_conv.csv.gz", 60 << 10, firstLines(5001), 5000, 0, 0, trace.Azure},
}

// cutTo makes a cut in Mooncake's form.
func cutTo(opt trace.CutOptions) func(t *testing.T, from string) []byte {
	return func(t *testing.T, from string) []byte {
		w, err := trace.Cut(load(t, from, trace.Options{}), opt)
		if err != nil {
			t.Fatal(err)
		}
		return save(t, w, trace.Mooncake, "")
	}
}

// firstLines keeps the first n lines as they are; all for -1.
func firstLines(n int) func(t *testing.T, from string) []byte {
	return func(t *testing.T, from string) []byte {
		data := content(t, from)
		if n < 0 {
			return data
		}
		return bytes.Join(bytes.SplitAfterN(data, []byte("\n"), n+1)[:n], nil)
	}
}

// content returns what is packed in a file.
func content(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if z.Name != "" || !z.ModTime.IsZero() {
		t.Errorf("%s: the gzip header has the name %q and the time %v, want neither", path, z.Name, z.ModTime)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestBundledCuts makes each bundled trace again and compares.
func TestBundledCuts(t *testing.T) {
	for _, b := range bundled {
		t.Run(b.file, func(t *testing.T) {
			want := b.make(t, testtraces.Path(t, b.from))
			path := testtraces.Bundled(b.file)
			if *update {
				var out bytes.Buffer
				z, err := trace.Packed(&out, "gzip")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := z.Write(want); err != nil {
					t.Fatal(err)
				}
				if err := z.Close(); err != nil {
					t.Fatal(err)
				}
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(content(t, path), want) {
				t.Errorf("%s is not the cut it should be (make it with go test ./internal/trace -run Bundled -update)", b.file)
			}
		})
	}
}

// TestBundledLoad checks what a clean checkout has.
func TestBundledLoad(t *testing.T) {
	for _, b := range bundled {
		t.Run(b.file, func(t *testing.T) {
			info, err := os.Stat(testtraces.Bundled(b.file))
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() > int64(b.maxBytes) {
				t.Errorf("%d bytes, want at most %d", info.Size(), b.maxBytes)
			}
			w := load(t, testtraces.Bundled(b.file), trace.Options{})
			if len(w.Requests) != b.requests || len(w.Sessions) != b.sessions || w.Forest.Len() != b.blocks || w.Format != b.format {
				t.Errorf("got %d requests, %d sessions, %d blocks, %s; want %d, %d, %d, %s",
					len(w.Requests), len(w.Sessions), w.Forest.Len(), w.Format, b.requests, b.sessions, b.blocks, b.format)
			}
		})
	}
}
