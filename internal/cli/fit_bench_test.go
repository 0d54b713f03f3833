package cli

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// hugeLog writes about size bytes of what SGLang prints for eight ranks, of which the busiest sets the step.
func hugeLog(w io.Writer, size int) error {
	rng := rand.New(rand.NewPCG(7, 7))
	b := bufio.NewWriterSize(w, 1<<20)
	var running, held [8]float64
	for k := range running {
		running[k], held[k] = 6, 300_000
	}
	at := time.Date(2026, 8, 4, 6, 0, 0, 0, time.UTC)
	const pool = 3_215_360
	n, _ := fmt.Fprintf(b, "[2026-08-04 05:59:50 DP0 TP0 EP0] max_total_num_tokens=%d, max_running_requests=256\n", pool)
	for n < size {
		for k := range running {
			running[k] = min(max(running[k]+0.6*rng.NormFloat64(), 1), 40)
			held[k] = min(max(held[k]+25_000*rng.NormFloat64(), 20_000), 1.5e6)
		}
		step := 0.018 + 1.46e-3*slices.Max(running[:]) + 1.52e-8*slices.Max(held[:])
		stamp := at.Format(time.DateTime)
		for k := range running {
			m, err := fmt.Fprintf(b, "[%s DP%d TP%d EP%d] Decode batch, #running-req: %d, #token: %d, token usage: %.2f, "+
				"pre-allocated usage: 0.00, #prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, cuda graph: True, "+
				"gen throughput (token/s): %.2f, #queue-req: 0\n", stamp, k, k, k, int(running[k]), int(held[k]), held[k]/pool,
				float64(int(running[k]))/(step*(1+0.01*rng.NormFloat64())))
			if err != nil {
				return err
			}
			n += m
		}
		at = at.Add(time.Duration(40 * step * 1e9))
	}
	return b.Flush()
}

// BenchmarkFitWholeLog runs the command on a log of FIT_LOG_MB (default 32) megabytes. Peak memory is that of the process:
// run it alone.
func BenchmarkFitWholeLog(b *testing.B) {
	megabytes := 32
	if s := os.Getenv("FIT_LOG_MB"); s != "" {
		var err error
		if megabytes, err = strconv.Atoi(s); err != nil {
			b.Fatal(err)
		}
	}
	path := filepath.Join(b.TempDir(), "decode.log")
	file, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	if err := hugeLog(file, megabytes*1e6); err != nil {
		b.Fatal(err)
	}
	if err := file.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(megabytes) * 1e6)
	for b.Loop() {
		var errs strings.Builder
		if code := Run(b.Context(), []string{"fit", path}, strings.NewReader(""), io.Discard, &errs); code != 0 {
			b.Fatalf("exit code %d: %s", code, errs.String())
		}
	}
	if status, err := os.ReadFile("/proc/self/status"); err == nil { // Linux only
		if _, rest, ok := strings.Cut(string(status), "VmHWM:"); ok {
			if kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64); err == nil {
				b.ReportMetric(kb/1024, "peak-MiB")
			}
		}
	}
}
