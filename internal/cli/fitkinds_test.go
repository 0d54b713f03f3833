package cli

import (
	"bytes"
	"compress/gzip"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/testtraces"
)

// runFit runs fit in this process. Intervals are not what these tests are about.
func runFit(t *testing.T, ctx context.Context, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(ctx, append([]string{"fit", "--bootstrap", "20"}, args...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// oneFault wants one line that says what, where and why, then a hint, and nothing else anywhere.
func oneFault(t *testing.T, what string, code, want int, stdout, stderr string) {
	t.Helper()
	lines := strings.SplitAfter(stderr, "\n")
	if code != want || stdout != "" || len(lines) != 3 || !strings.HasPrefix(lines[0], "kvroute: cannot fit: ") || !strings.HasPrefix(lines[1], "hint: ") || lines[2] != "" {
		t.Errorf("%s: exit code %d, want %d; stdout %q; stderr %q, want one line and a hint", what, code, want, stdout, stderr)
	}
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

const (
	sglangLine = "[2026-01-01 00:00:05 TP0] Decode batch, #running-req: 4, #token: 400, token usage: 0.50, cuda graph: True, gen throughput (token/s): 100.0, #queue-req: 0\n"
	vllmLine   = "INFO 08-01 10:00:00 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 120.0 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.5%, Prefix cache hit rate: 40.0%\n"
)

// TestFitOfEveryEngine: whatever engine is asked for, a file of another kind is the wrong input (exit code 2) and a
// damaged one work that failed (1), each told in one line with a hint.
func TestFitOfEveryEngine(t *testing.T) {
	dir := t.TempDir()
	metric := "vllm:num_requests_running{engine=\"0\"} 1.0\n"
	damaged := []byte(gzipped(t, strings.Repeat(sglangLine, 5000)))
	copy(damaged[len(damaged)/2:], "damaged")
	kinds := []struct{ name, text string }{
		{"sglang", sglangLine},
		{"vllm", vllmLine},
		{"metrics", "# scraped_at 1767225600\n" + metric + "# scraped_at 1767225605\n" + metric},
		{"recording", ""},
		{"words", "INFO: Started server\nINFO: Stopped\n"},
		{"empty", ""},
		{"binary", strings.Repeat("\x7fELF\x02\x01\x00\x03\n", 40)},
		{"zip", "PK\x03\x04" + strings.Repeat("x", 40)},
		{"lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"},
		{"utf16", "\xff\xfeh\x00i\x00"},
		{"trace", `{"timestamp":0,"input_length":10,"output_length":3,"hash_ids":[1]}` + "\n"},
		{"damaged", string(damaged)},
	}
	paths := map[string]string{}
	for _, k := range kinds {
		paths[k.name] = writeFile(t, filepath.Join(dir, k.name), k.text)
	}
	paths["recording"] = testtraces.Bundled("traces/golden/recording.jsonl.gz")
	for _, engine := range []string{"auto", "sglang", "vllm", "atom", "kvroute"} {
		for _, k := range kinds {
			code, stdout, stderr := runFit(t, context.Background(), "--engine", engine, paths[k.name])
			what := "--engine " + engine + " on " + k.name
			switch {
			case k.name == "sglang" && (engine == "auto" || engine == "sglang"), k.name == "vllm" && (engine == "auto" || engine == "vllm"):
				if code != exitThreshold || !strings.Contains(stderr, "the fit is refused: bins of 3s with decode steps: 1, ") {
					t.Errorf("%s: exit code %d, stderr %q; want a fit that is refused for one bin", what, code, stderr)
				}
			case k.name == "damaged" && engine != "kvroute": // the first line, which is whole, is not that of a recording
				oneFault(t, what, code, exitFailed, stdout, stderr)
				if !strings.Contains(stderr, "corrupt") {
					t.Errorf("%s: stderr %q does not say that it is corrupt", what, stderr)
				}
			default:
				oneFault(t, what, code, exitUsage, stdout, stderr)
			}
			if !strings.Contains(stderr, k.name) && code != exitThreshold {
				t.Errorf("%s: stderr %q does not name the file", what, stderr)
			}
		}
	}
}
