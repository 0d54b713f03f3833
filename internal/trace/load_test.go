package trace_test

import (
	"os"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/testtraces"
	"github.com/kvroute/kvroute/internal/trace"
)

// load reads one file of the checkout or of the big traces.
func load(tb testing.TB, path string, opt trace.Options) *trace.Workload {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	w, err := trace.Load([]trace.Source{{Name: path, R: f}}, opt)
	if err != nil {
		tb.Fatal(err)
	}
	if err := w.Forest.Check(); err != nil {
		tb.Fatal(err)
	}
	return w
}

func TestLoadGolden(t *testing.T) {
	w := load(t, testtraces.Bundled("traces/golden/sessions80-serial.jsonl.gz"), trace.Options{})
	blocks := 0
	for i := range w.Requests {
		blocks += w.BlocksOf(&w.Requests[i])
	}
	if len(w.Requests) != 436 || blocks != 7624 || len(w.Sessions) != 80 || w.BlockSize != 16 || w.Format != trace.Chained {
		t.Fatalf("got %d requests, %d blocks, %d sessions, block size %d, format %s; want 436, 7624, 80, 16, chained",
			len(w.Requests), blocks, len(w.Sessions), w.BlockSize, w.Format)
	}
}

// TestUnfinishedAreCounted: requests whose answers have no known length are left out, and said to be.
func TestUnfinishedAreCounted(t *testing.T) {
	const cut = `{"type":"unfinished","t":7,"in":40}` + "\n"
	w := loadBytes(t, trace.Options{Limit: 1}, kvHead+cut+kvLine+"\n"+cut, kvHead+cut+kvLine+"\n")
	if len(w.Requests) != 1 || w.Unfinished != 3 {
		t.Errorf("%d requests, %d unfinished, want 1 and 3", len(w.Requests), w.Unfinished)
	}
	_, err := trace.Load([]trace.Source{{Name: "cut.jsonl", R: strings.NewReader(kvHead + cut)}}, trace.Options{})
	if want := "cut.jsonl: there are only requests in it whose answers have no known length (1)"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
