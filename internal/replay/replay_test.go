package replay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/replay"
	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/testtraces"
	"github.com/kvroute/kvroute/internal/trace"
)

func load(tb testing.TB, paths ...string) *trace.Workload {
	tb.Helper()
	var sources []trace.Source
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			tb.Fatal(err)
		}
		defer f.Close()
		sources = append(sources, trace.Source{Name: path, R: f})
	}
	w, err := trace.Load(sources, trace.Options{Name: "test"})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// text makes a workload from lines in Mooncake's form.
func text(tb testing.TB, lines ...string) *trace.Workload {
	tb.Helper()
	w, err := trace.Load([]trace.Source{{Name: "text", R: strings.NewReader(strings.Join(lines, "\n") + "\n")}}, trace.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

func policy(name string) score.Config {
	cfg := score.Defaults()
	cfg.Policy = name
	return cfg
}

func run(tb testing.TB, w *trace.Workload, cfg replay.Config) *report.Run {
	tb.Helper()
	r, err := replay.Run(context.Background(), w, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// check holds what is true of every replay.
func check(tb testing.TB, w *trace.Workload, cfg replay.Config, r *report.Run) {
	tb.Helper()
	var requests, misses, blocks int64
	for i := range w.Requests {
		blocks += int64(w.BlocksOf(&w.Requests[i]))
	}
	for t := range r.RequestsPerWorker {
		requests += r.RequestsPerWorker[t]
		misses += r.MissBlocksPerWorker[t]
	}
	if requests != int64(len(w.Requests)) {
		tb.Errorf("%d requests on workers, want %d", requests, len(w.Requests))
	}
	if r.HitBlocks+misses != blocks {
		tb.Errorf("%d hits and %d misses, want %d blocks in all", r.HitBlocks, misses, blocks)
	}
	if r.PredictedHitBlocks != r.HitBlocks {
		tb.Errorf("predicted %d hits, had %d: the mirror is exact in a replay", r.PredictedHitBlocks, r.HitBlocks)
	}
	if r.Imbalance < 1 || len(r.RequestsPerWorker) != cfg.Workers || r.Policy != cfg.Score.Policy || r.CapacityBlocks != int64(cfg.Capacity) {
		tb.Errorf("run %+v does not fit its configuration", r)
	}
}

func TestGoldenSimulation(t *testing.T) {
	kv := func(weight, recent float64) score.Config {
		cfg := policy(score.KVAware)
		cfg.OverlapWeight, cfg.RecentWeight = weight, recent
		return cfg
	}
	rr := policy(score.RoundRobin)
	for _, c := range []struct {
		order      string
		workers, k int
		cfg        score.Config
		split      []int64
		hits       int64
		digest     string
	}{
		{"serial", 1, 1, rr, []int64{436}, 5993, "d7a1771bd52e8e7d"},
		{"inter16", 1, 8, kv(1, 1), []int64{436}, 5993, "d7a1771bd52e8e7d"},
		{"serial", 2, 1, rr, []int64{218, 218}, 4602, "9055e88693442e98"},
		{"serial", 2, 1, kv(0, 1), []int64{150, 286}, 4716, "082699837d8b11ae"},
		{"serial", 2, 1, kv(0.1, 1), []int64{222, 214}, 4689, "a4382839130b1269"},
		{"serial", 2, 1, kv(1, 1), []int64{219, 217}, 5980, "ec34bd634033a744"},
		{"serial", 2, 1, kv(20, 1), []int64{224, 212}, 5990, "ce80ed0755bf341c"},
		{"serial", 2, 1, kv(1, 0), []int64{436, 0}, 5993, "d7a1771bd52e8e7d"},
		{"serial", 2, 1, kv(20, 0), []int64{436, 0}, 5993, "d7a1771bd52e8e7d"},
		{"serial", 4, 1, kv(1, 0), []int64{436, 0, 0, 0}, 5993, "d7a1771bd52e8e7d"},
		{"serial", 4, 1, kv(20, 0), []int64{436, 0, 0, 0}, 5993, "d7a1771bd52e8e7d"},
		{"serial", 2, 8, kv(1, 1), []int64{214, 222}, 4810, "f227012b422dc477"},
		{"serial", 2, 8, kv(1, 0), []int64{210, 226}, 5486, "8eaa98c0d294ae18"},
		{"serial", 4, 1, kv(1, 1), []int64{108, 108, 110, 110}, 5964, "d47386b0ceec76b7"},
		{"serial", 4, 1, kv(20, 1), []int64{198, 185, 53, 0}, 5987, "62580387592e0242"},
		{"serial", 4, 8, kv(1, 1), []int64{106, 109, 107, 114}, 3744, "47f93a8e1aa7c22a"},
		{"serial", 4, 8, kv(1, 0), []int64{111, 116, 104, 105}, 3809, "e416a99dd6568fbc"},
		{"inter16", 2, 1, rr, []int64{218, 218}, 5837, "9055e88693442e98"},
		{"inter16", 2, 8, kv(1, 1), []int64{216, 220}, 5663, "d34d8ba2761ed4c2"},
		{"inter16", 4, 1, rr, []int64{109, 109, 109, 109}, 5620, "393b0730c6d106d1"},
		{"inter16", 4, 1, kv(1, 1), []int64{114, 107, 110, 105}, 5947, "c3915e0d8f3f4a54"},
		{"inter16", 4, 8, kv(0, 1), []int64{105, 100, 123, 108}, 4141, "b84c566353c5c136"},
		{"inter16", 4, 8, kv(0.1, 1), []int64{106, 116, 112, 102}, 4360, "b9f37a1ad24e7e90"},
		{"inter16", 4, 8, kv(1, 1), []int64{110, 107, 109, 110}, 5148, "e2b29c3eca9762a3"},
		{"inter16", 4, 8, kv(20, 1), []int64{124, 111, 113, 88}, 5984, "56f6d5f10d0cee03"},
		{"inter16", 4, 8, kv(1, 0), []int64{111, 107, 112, 106}, 5506, "39c82b7a336bf9ef"},
		{"inter16", 4, 8, kv(20, 0), []int64{203, 157, 76, 0}, 5987, "5ee7e037e2922fdc"},
	} {
		name := fmt.Sprintf("%s/workers=%d/K=%d/%s/w=%v/recent=%v", c.order, c.workers, c.k, c.cfg.Policy, c.cfg.OverlapWeight, c.cfg.RecentWeight)
		t.Run(name, func(t *testing.T) {
			w := load(t, testtraces.Bundled("traces/golden/sessions80-"+c.order+".jsonl.gz"))
			cfg := replay.Config{Workers: c.workers, Outstanding: c.k, Score: c.cfg}
			r := run(t, w, cfg)
			check(t, w, cfg, r)
			if r.HitBlocks != c.hits || r.PicksDigest != c.digest || !slices.Equal(r.RequestsPerWorker, c.split) {
				t.Errorf("got %d hits, %s, split %v; want %d, %s, %v", r.HitBlocks, r.PicksDigest, r.RequestsPerWorker, c.hits, c.digest, c.split)
			}
			if blocks := r.HitBlocks + sum(r.MissBlocksPerWorker); blocks != 7624 {
				t.Errorf("%d blocks, want 7,624", blocks)
			}
		})
	}
}

func sum(ns []int64) (s int64) {
	for _, n := range ns {
		s += n
	}
	return s
}

// TestLeastWorkQuality pins what the default policy promises where the formula's best weight changes
// from setting to setting: nearly all hits there are, evenly spread, with nothing tuned.
func TestLeastWorkQuality(t *testing.T) {
	for _, c := range []struct {
		order      string
		workers, k int
	}{{"serial", 2, 1}, {"serial", 4, 1}, {"serial", 4, 8}, {"inter16", 2, 8}, {"inter16", 4, 1}, {"inter16", 4, 8}} {
		w := load(t, testtraces.Bundled("traces/golden/sessions80-"+c.order+".jsonl.gz"))
		cfg := replay.Config{Workers: c.workers, Outstanding: c.k, Score: score.Defaults()}
		if cfg.Score.Policy != score.LeastWork {
			t.Fatalf("the default policy is %s", cfg.Score.Policy)
		}
		r := run(t, w, cfg)
		check(t, w, cfg, r)
		t.Logf("%s, %d workers, K=%d: %.2f %% of blocks, busiest/mean %.3f", c.order, c.workers, c.k, 100*r.HitRate, r.Imbalance)
		if r.HitRate < 0.780 || r.Imbalance > 1.10 {
			t.Errorf("%s, %d workers, K=%d: %.2f %% of blocks and busiest/mean %.3f, want at least 78.0 %% and at most 1.10",
				c.order, c.workers, c.k, 100*r.HitRate, r.Imbalance)
		}
	}
}

// timelessRow is one row of traces[].timeless in testdata/trace-stats.json, made by an independent script.
type timelessRow struct {
	Workers    int     `json:"workers"`
	Cap        int     `json:"cap"`
	Policy     string  `json:"policy"`
	HitBlocks  int64   `json:"hit_blocks"`
	HitTokens  int64   `json:"hit_tokens"`
	Requests   []int64 `json:"requests_per_worker"`
	MissBlocks []int64 `json:"miss_blocks_per_worker"`
}

var oracleFiles = map[string][]string{
	"mooncake-conversation": {"mooncake/conversation_trace.jsonl.gz"},
	"ragpulse":              {"ragpulse/ragpulse_chained.jsonl.gz"},
	"claude-small":          {"claude-code/small.jsonl.gz"},
	"claude-full":           {"claude-code/part-0.jsonl.gz", "claude-code/part-1.jsonl.gz", "claude-code/part-2.jsonl.gz"},
	"miniswe-blocks64":      {"lmcache-agent/miniswe_blocks64.jsonl.gz"},
}

var oraclePolicies = map[string]string{
	"rr": score.RoundRobin, "prefix": score.Prefix, "aware50": score.PrefixThreshold, "session": score.Session,
}

func TestTimelessOracle(t *testing.T) {
	data, err := os.ReadFile(testtraces.Bundled("testdata/trace-stats.json"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Traces []struct {
			Name     string        `json:"name"`
			Timeless []timelessRow `json:"timeless"`
		} `json:"traces"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, tr := range doc.Traces {
		rows += len(tr.Timeless)
	}
	if rows != 95 {
		t.Fatalf("%d rows in the oracle, want 95", rows)
	}
	for _, tr := range doc.Traces {
		if len(tr.Timeless) == 0 {
			continue
		}
		t.Run(tr.Name, func(t *testing.T) {
			if tr.Name == "claude-full" && testing.Short() {
				t.Skip("55.8 million blocks: not with -short")
			}
			files := oracleFiles[tr.Name]
			if files == nil {
				t.Fatalf("no file known for trace %s", tr.Name)
			}
			var paths []string
			for _, f := range files {
				paths = append(paths, testtraces.Path(t, f))
			}
			w := load(t, paths...)
			for _, row := range tr.Timeless {
				name, ok := oraclePolicies[row.Policy]
				if !ok {
					t.Fatalf("policy %q of the oracle is not known", row.Policy)
				}
				cfg := replay.Config{Workers: row.Workers, Capacity: row.Cap, Outstanding: 1, Score: policy(name)}
				r := run(t, w, cfg)
				check(t, w, cfg, r)
				got := timelessRow{
					Workers: r.Workers, Cap: int(r.CapacityBlocks), Policy: row.Policy, HitBlocks: r.HitBlocks,
					HitTokens: r.HitTokens, Requests: r.RequestsPerWorker, MissBlocks: r.MissBlocksPerWorker,
				}
				if diff := cmp.Diff(row, got); diff != "" {
					t.Errorf("%s with %d workers of %d blocks (-oracle +got):\n%s", name, row.Workers, row.Cap, diff)
				}
			}
		})
	}
}

// TestNaive replays with a router made of maps and lists, written from the rules and nothing else.
func TestNaive(t *testing.T) {
	w := load(t, testtraces.Bundled("traces/golden/sessions80-inter16.jsonl.gz"))
	for _, capacity := range []int{0, 40, 200} {
		for _, k := range []int{1, 3} {
			cfg := replay.Config{Workers: 3, Capacity: capacity, Outstanding: k, Score: policy(score.KVAware)}
			r := run(t, w, cfg)
			check(t, w, cfg, r)
			if want := naiveKVAware(w, 3, capacity, k, 1); !slices.Equal(r.RequestsPerWorker, want.requests) || r.HitBlocks != want.hits {
				t.Errorf("capacity %d, K=%d: got %d hits, %v; want %d, %v", capacity, k, r.HitBlocks, r.RequestsPerWorker, want.hits, want.requests)
			}
		}
	}
}

type naiveResult struct {
	requests []int64
	hits     int64
}

// naiveKVAware is the formula with caches as lists, most recent first, and sets rebuilt at every pick.
func naiveKVAware(w *trace.Workload, workers, capacity, k int, weight float64) naiveResult {
	res := naiveResult{requests: make([]int64, workers)}
	caches := make([][]uint64, workers)
	type flight struct {
		worker int
		blocks []uint64
	}
	var inFlight []flight
	for i := range w.Requests {
		var blocks []uint64
		for _, h := range w.Path(w.Requests[i].Leaf, nil) {
			blocks = append(blocks, uint64(h))
		}
		best, bestCost, bestActive, bestHits := -1, 0.0, 0, 0
		for t := range workers {
			active := map[uint64]bool{}
			for _, f := range inFlight {
				if f.worker == t {
					for _, b := range f.blocks {
						active[b] = true
					}
				}
			}
			hits := 0
			for hits < len(blocks) && slices.Contains(caches[t], blocks[hits]) {
				hits++
			}
			cost := weight*float64(len(blocks)-hits) + float64(len(active))
			if best < 0 || cost < bestCost || cost == bestCost && len(active) < bestActive {
				best, bestCost, bestActive, bestHits = t, cost, len(active), hits
			}
		}
		res.requests[best]++
		res.hits += int64(bestHits)
		for j := len(blocks) - 1; j >= 0; j-- {
			c := slices.DeleteFunc(caches[best], func(b uint64) bool { return b == blocks[j] })
			caches[best] = append([]uint64{blocks[j]}, c...)
		}
		if capacity > 0 && len(caches[best]) > capacity {
			caches[best] = caches[best][:capacity]
		}
		inFlight = append(inFlight, flight{best, blocks})
		for len(inFlight) >= k {
			inFlight = inFlight[1:]
		}
	}
	return res
}

func TestDecisions(t *testing.T) {
	w := load(t, testtraces.Bundled("traces/golden/sessions80-inter16.jsonl.gz"))
	for _, name := range score.Policies() {
		var first, second bytes.Buffer
		cfg := replay.Config{Workers: 4, Capacity: 300, Outstanding: 4, Score: policy(name), Decisions: &first}
		r := run(t, w, cfg)
		cfg.Decisions = &second
		again := run(t, w, cfg)
		if diff := cmp.Diff(r, again); diff != "" {
			t.Errorf("%s: another result the second time:\n%s", name, diff)
		}
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Errorf("%s: other decisions the second time", name)
		}
		lines := bytes.Split(bytes.TrimSpace(first.Bytes()), []byte("\n"))
		if len(lines) != len(w.Requests) {
			t.Fatalf("%s: %d decisions, want %d", name, len(lines), len(w.Requests))
		}
		picks := report.NewPicks(4)
		requests := make([]int64, 4)
		for i, line := range lines {
			d, err := score.ParseDecision(line)
			if err != nil {
				t.Fatalf("%s: line %d: %v", name, i+1, err)
			}
			if len(d.Terms) != 4 || d.Policy != name {
				t.Fatalf("%s: line %d: %d candidates of policy %s", name, i+1, len(d.Terms), d.Policy)
			}
			picks.Add(d.Picked)
			requests[d.Picked]++
		}
		if picks.Sum() != r.PicksDigest || !slices.Equal(requests, r.RequestsPerWorker) {
			t.Errorf("%s: the decisions do not add up to the report", name)
		}
	}
}

// TestOutstanding holds that K-1 requests are in flight at a pick: with distinct prompts and weight 0,
// least load goes around K workers, as the oldest of K is free again just in time.
func TestOutstanding(t *testing.T) {
	var lines []string
	for i := range 12 {
		lines = append(lines, fmt.Sprintf(`{"timestamp":%d,"input_length":512,"output_length":1,"hash_ids":[%d]}`, i, i))
	}
	w := text(t, lines...)
	for k, want := range map[int][]int64{
		1: {12, 0, 0, 0, 0},
		2: {6, 6, 0, 0, 0},
		3: {4, 4, 4, 0, 0},
		5: {3, 3, 2, 2, 2},
	} {
		r := run(t, w, replay.Config{Workers: 5, Outstanding: k, Score: policy(score.LeastLoad)})
		if !slices.Equal(r.RequestsPerWorker, want) {
			t.Errorf("K=%d: got %v, want %v", k, r.RequestsPerWorker, want)
		}
	}
}

// A workload made by hand need not have a forest.
func TestWithoutForest(t *testing.T) {
	w := &trace.Workload{Name: "made", Requests: []trace.Request{{Leaf: trace.NoNode, Session: -1, Input: 5}}}
	r := run(t, w, replay.Config{Workers: 2, Outstanding: 1, Score: score.Defaults()})
	if w.Forest != nil || r.RequestsPerWorker[0] != 1 {
		t.Errorf("%+v, want one request, and the workload unchanged", r)
	}
}

func TestWithoutBlocks(t *testing.T) {
	w, err := trace.Load([]trace.Source{{Name: "azure.csv", R: strings.NewReader(
		"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n")}}, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range score.Policies() {
		r := run(t, w, replay.Config{Workers: 2, Capacity: 10, Outstanding: 1, Score: policy(name)})
		if r.HitBlocks != 0 || r.HitRate != 0 || sum(r.MissBlocksPerWorker) != 0 || sum(r.RequestsPerWorker) != 2 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestUnequalBlocks(t *testing.T) {
	// Blocks of their own sizes: hit tokens follow them, not an average.
	w := text(t,
		`{"timestamp":0,"input_length":100,"output_length":1,"hash_ids":[0,1],"block_tokens":[70,30]}`,
		`{"timestamp":1,"input_length":90,"output_length":1,"hash_ids":[0,2],"block_tokens":[70,20]}`)
	r := run(t, w, replay.Config{Workers: 1, Outstanding: 1, Score: score.Defaults()})
	if r.HitBlocks != 1 || r.HitTokens != 70 {
		t.Errorf("%d hit blocks, %d hit tokens; want 1 and 70", r.HitBlocks, r.HitTokens)
	}
}

func TestValidate(t *testing.T) {
	good := replay.Config{Workers: 2, Outstanding: 1, Score: score.Defaults()}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	bad := good
	bad.Workers, bad.Capacity, bad.Outstanding, bad.Score.Policy = 0, -1, 0, "best"
	_, err := replay.Run(context.Background(), text(t, `{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[0]}`), bad)
	var es score.FieldErrors
	if !errors.As(err, &es) || len(es) != 4 {
		t.Fatalf("error %v, want all four faults", err)
	}
	for i, field := range []string{"workers", "capacity", "outstanding", "router-policy"} {
		if es[i].Field != field {
			t.Errorf("fault %d is of %s, want %s", i, es[i].Field, field)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestErrorsAndCancelling(t *testing.T) {
	w := load(t, testtraces.Bundled("traces/golden/sessions80-serial.jsonl.gz"))
	cfg := replay.Config{Workers: 2, Outstanding: 1, Score: score.Defaults(), Decisions: full{}}
	if _, err := replay.Run(context.Background(), w, cfg); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("a decision that cannot be written: %v", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := errors.New("stop")
	cancel(stop)
	cfg.Decisions = nil
	if _, err := replay.Run(ctx, w, cfg); !errors.Is(err, stop) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestProgress(t *testing.T) {
	w := load(t, testtraces.Bundled("traces/golden/sessions80-serial.jsonl.gz"))
	last, calls := -1, 0
	run(t, w, replay.Config{Workers: 2, Outstanding: 1, Score: score.Defaults(), Progress: func(done, total int) {
		if done < last || total != 436 {
			t.Errorf("progress %d of %d after %d", done, total, last)
		}
		last, calls = done, calls+1
	}})
	if last != 436 || calls < 2 {
		t.Errorf("last progress %d after %d calls", last, calls)
	}
}

func BenchmarkReplay(b *testing.B) {
	w := load(b, testtraces.Path(b, "mooncake/conversation_trace.jsonl.gz"))
	for _, name := range []string{score.LeastWork, score.KVAware, score.RoundRobin, score.Prefix} {
		b.Run("conversation/workers=8/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				run(b, w, replay.Config{Workers: 8, Capacity: 5859, Outstanding: 8, Score: policy(name)})
			}
			b.ReportMetric(float64(len(w.Requests)*b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
