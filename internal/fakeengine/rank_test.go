package fakeengine

import (
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/engine"
)

func testRank(t *testing.T, c Config) *rank {
	t.Helper()
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	v, err := parseVersion(c.Version)
	if err != nil {
		t.Fatal(err)
	}
	r := newRank(0, &c, wireOf(c.Dialect, v), nil)
	r.sample = func(s *seq) block.Token { return block.Token(len(s.tokens)) + block.Token(s.seed)*1000 }
	return r
}

// TestPreemption: when answers outgrow the memory, the youngest lose theirs, compute again, and end with
// the same answer.
func TestPreemption(t *testing.T) {
	for _, d := range Dialects() {
		// Each prompt has 2 blocks and ends with 7; four of them fit at first and not at the end.
		r := testRank(t, Config{Dialect: d, BlockSize: 4, Capacity: 17, MaxModelLen: 40, MaxSeqs: 4, Budget: 64})
		var seqs []*seq
		for i := range 4 {
			seqs = append(seqs, newSeq(ids(100*i, 8), 20, space{}, uint64(i+1)))
		}
		r.submit(seqs...)
		drive(t, r)
		for i, s := range seqs {
			if !s.done || len(s.tokens) != 28 || s.cached != 0 {
				t.Fatalf("%s, sequence %d: done %v, %d tokens, %d cached", d, i, s.done, len(s.tokens), s.cached)
			}
			for k := 8; k < 28; k++ {
				if want := block.Token(k) + block.Token(i+1)*1000; s.tokens[k] != want {
					t.Fatalf("%s, sequence %d: token %d is %d, want %d", d, i, k, s.tokens[k], want)
				}
			}
		}
		if s := r.snapshot(); s.Preemptions == 0 || s.UsedBlocks != 0 || s.Finished != 4 {
			t.Errorf("%s: got %+v", d, s)
		}
	}
}

// TestSteps: how long steps take, by hand.
func TestSteps(t *testing.T) {
	for _, tt := range []struct {
		d    Dialect
		want []int64 // µs
	}{
		// Prompts of 6 and 3 tokens in steps of 5: 5; 1 and 3, when both answer first; then one of each.
		{VLLM, []int64{1000 + 5*10 + 25, 1000 + 4*10 + 11 + 9, 1000 + 2*100 + 7 + 4, 0}},
		// SGLang cuts prompts at pages of 4, and decodes in steps of its own.
		{SGLang, []int64{1000 + 4*10 + 16, 1000 + 5*10 + 20 + 9, 1000 + 2*100 + 7 + 4, 0}},
	} {
		p := &engine.Profile{
			Name: "test", Origin: "test", StepMS: 1, RequestMS: 0.1, ContextMS: 1000, PrefillUS: 10, PrefillSquareUS: 1e6,
			ChunkTokens: 5, MaxRunning: 4, BlockSize: 4, KVTokens: 400,
		}
		r := testRank(t, Config{Dialect: tt.d, BlockSize: 4, Capacity: 100, Profile: p, TimeScale: 1})
		r.submit(newSeq(ids(1, 6), 2, space{}, 1), newSeq(ids(50, 3), 2, space{}, 2))
		for i, want := range tt.want {
			r.schedule()
			if got := r.duration().Microseconds(); got != want {
				t.Errorf("%s, step %d: %d µs, want %d", tt.d, i, got, want)
			}
			r.finish()
		}
	}
}

// TestConfig refuses what cannot work, and says what.
func TestConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"dialect":      {Dialect: "other"},
		"version":      {Version: "new"},
		"event form":   {EventForm: "list"},
		"block size":   {BlockSize: -1},
		"capacity":     {Capacity: 1},
		"model length": {Capacity: 10, MaxModelLen: 145},
		"budget":       {Budget: 3, MaxSeqs: 4},
		"time scale":   {TimeScale: -1},
		"replay":       {Replay: "tcp://127.0.0.1:0"},
		"events":       {Events: "udp://x:1"},
		"faults":       {Faults: Fault{Errors: &Errors{Status: 200}}},
	} {
		e, err := Start(c)
		if err == nil {
			t.Errorf("%s: started", name)
			e.Close() //nolint:errcheck // the test has failed
			continue
		}
		if want := name + ": "; !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %q, want %q in it", name, err, want)
		}
	}
}
