package decodelog

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// seeds are all quoted lines and what else readers are known to meet.
func seeds(f *testing.F) {
	text, err := os.ReadFile("testdata/lines.md")
	if err != nil {
		f.Fatal(err)
	}
	for i, block := range strings.Split(string(text), "```\n") {
		if i%2 == 1 {
			f.Add([]byte(block))
		}
	}
	for _, s := range []string{
		"", "\x00", "\xff\xfe", "\x1f\x8b\x08", "PK\x03\x04", "# scraped_at 1767225600\nvllm:num_requests_running 1\n# EOF\n",
		"Mon Nov 30 05:26:37 UTC 2026\nvllm:inter_token_latency_seconds_sum{engine=\"0\"} 1e3 1767225600000\n",
		"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\n1767225600\n", "GPU KV cache size: 1,234 tokens\n", "Maximum concurrency for 32,768 tokens per request: 3.41x\n",
		"Speculative metrics: System efficiency: 0.5, Number of speculative tokens: 4\n", "\x1b[31mDecode batch\x1b[0m [3], #running-req: 1\x1b", "max_total_num_tokens=", "[DP1 TP1] Decode batch. #gpu token: 1e9\n",
		"12-31 23:59:59 2 Engines Aggregated: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 9 tokens/s, Running: 3 reqs, GPU KV cache usage: 3%\n",
	} {
		f.Add([]byte(s))
	}
}

func checkSample(t *testing.T, s *Sample) {
	t.Helper()
	for name, v := range map[string]float64{"step": s.Step, "running": s.Running, "held": s.Held, "accept": s.Accept, "weight": s.Weight} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			t.Fatalf("%s is %v in %+v", name, v, *s)
		}
	}
	if s.Step < minStep || s.Step > maxStep || s.Running == 0 || s.Accept < 1 {
		t.Fatalf("sample %+v is none", *s)
	}
	if s.Rank < NoRank || s.Rank > maxRank {
		t.Fatalf("rank %d", s.Rank)
	}
}

// FuzzLine: no line makes the parser panic or yield what is not a number.
func FuzzLine(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, line []byte) {
		before := bytes.Clone(line)
		s := &source{st: newState(Options{}), name: "log"}
		s.lr.line = 1
		for range 2 { // the second time with what the first one left behind
			if err := s.line(line); err != nil {
				var e *Error
				if !errors.As(err, &e) || e.Why == "" {
					t.Fatalf("error %#v", err)
				}
			}
		}
		if !bytes.Equal(before, line) {
			t.Fatal("the line was changed")
		}
		for i := range s.entries {
			e := &s.entries[i]
			if s.st.resolve(s, e) {
				checkSample(t, &e.Sample)
			}
		}
	})
}

// FuzzRead: no input makes the reader panic, and how it is cut into reads does not show.
func FuzzRead(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var got [2][]Sample
		var errs [2]string
		var reps [2]*Report
		for i := range got {
			src := Source{"log", bytes.NewReader(data)}
			if i == 1 {
				src.R = iotest.OneByteReader(src.R)
			}
			rep, err := Read(context.Background(), []Source{src}, Options{}, func(s *Sample) error {
				checkSample(t, s)
				got[i] = append(got[i], *s)
				return nil
			})
			reps[i] = rep
			if err != nil {
				errs[i] = err.Error()
			} else if rep.Used == 0 {
				t.Fatal("nothing was used, without an error")
			}
		}
		if errs[0] != errs[1] || !cmp.Equal(got[0], got[1]) {
			t.Fatalf("whole: %q, %v\nby bytes: %q, %v", errs[0], got[0], errs[1], got[1])
		}
		if errs[0] == "" && !cmp.Equal(reps[0], reps[1]) {
			t.Fatalf("reports differ:\n%s", cmp.Diff(reps[0], reps[1]))
		}
	})
}
