package vitals

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/snapshot"
)

// decision is one between the targets a and b, which costs a 1 and b 3.
func decision(picked int, tokens, hits int64) *score.Decision {
	d := &score.Decision{Policy: score.KVAware, Basis: score.BasisExact, Tokens: tokens, Picked: picked}
	for i, key := range []string{"a", "b"} {
		d.Terms = append(d.Terms, score.Terms{Candidate: score.Candidate{Key: key}, Cost: float64(1 + 2*i), HitTokens: hits, Eligible: true})
	}
	return d
}

// TestWindows holds rates, shares and histories against sums over everything that happened, at random times.
func TestWindows(t *testing.T) {
	type event struct {
		ms      int64
		key     string
		of, hit int64
	}
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 2))
		v := New()
		var all []event
		now := int64(1_700_000_000_000) + rng.Int64N(10_000)
		for range 400 {
			now += []int64{0, 3, 400, 2500, 30_000, 1_200_000}[min(rng.IntN(20), 5)]
			e := event{ms: now, key: []string{"a", "b"}[rng.IntN(2)], of: 1 + rng.Int64N(100)}
			e.hit = rng.Int64N(e.of + 1)
			all = append(all, e)
			v.Picked(now, &score.Request{Model: "m"}, decision(int(e.key[0]-'a'), e.of, e.hit), nil)
			at := now + rng.Int64N(5000)
			now = at
			s := snapshot.Snapshot{AtMS: at, Workers: []snapshot.Worker{{RouteKey: "a"}, {RouteKey: "b"}}}
			v.Fill(at, &s)
			sum := func(key string, span, from, to int64) (n, of, hit int64) {
				for _, e := range all {
					if b := e.ms / span; (key == "" || e.key == key) && b >= from && b <= to {
						n, of, hit = n+1, of+e.of, hit+e.hit
					}
				}
				return
			}
			sec := at / 1000
			n, _, _ := sum("", 1000, sec-10, sec-1)
			if got, want := s.Router.RequestRate, float64(n)/10; got != want {
				t.Fatalf("seed %d: %v requests a second, want %v", seed, got, want)
			}
			for _, c := range []struct {
				name string
				got  *float64
				key  string
				span int64
				n    int64
			}{
				{"1 min", s.Router.HitShare1m, "", 1000, 60},
				{"15 min", s.Router.HitShare15m, "", 10_000, 90},
				{"a", s.Workers[0].HitShare, "a", 1000, 60},
				{"b", s.Workers[1].HitShare, "b", 1000, 60},
			} {
				_, of, hit := sum(c.key, c.span, at/c.span-c.n, at/c.span)
				switch {
				case (of == 0) != (c.got == nil):
					t.Fatalf("seed %d, %s: got %v, want a share of %d tokens", seed, c.name, c.got, of)
				case of > 0 && *c.got != float64(hit)/float64(of):
					t.Fatalf("seed %d, %s: got %v, want %d of %d", seed, c.name, *c.got, hit, of)
				}
			}
			want := make([]uint32, snapshot.HistoryLength)
			for i := range want {
				b := at/2000 - int64(len(want)-i)
				n, _, _ := sum("a", 2000, b, b)
				want[i] = uint32(n)
			}
			if !slices.Equal(s.Workers[0].History, want) && s.Workers[0].Requests > 0 {
				t.Fatalf("seed %d: history %v, want %v", seed, s.Workers[0].History, want)
			}
		}
	}
}

// TestKeptDecisions: under load some are kept, all are counted, and what is kept can be explained.
func TestKeptDecisions(t *testing.T) {
	v := New()
	req := &score.Request{Model: "m", Session: "secret session"}
	for i := range int64(20_000) {
		d := decision(0, 10, 5)
		d.Seq, d.RequestID = uint64(i+1), fmt.Sprint("r", i+1)
		v.Picked(1_000_000+i, req, d, nil) // a thousand a second
	}
	var s snapshot.Snapshot
	v.Fill(1_020_000, &s)
	if s.Router.Requests != 20_000 || s.Router.Kept < 1000 || s.Router.Kept > 1100 || len(s.Picks) != snapshot.MaxPicks {
		t.Errorf("%d requests, %d kept, %d shown; want 20000, some %d, %d", s.Router.Requests, s.Router.Kept, len(s.Picks), 20*keptPerSecond, snapshot.MaxPicks)
	}
	margin := 2.0
	p := s.Picks[len(s.Picks)-1]
	want := snapshot.Pick{
		ID: p.ID, AtMS: p.AtMS, RequestID: fmt.Sprint("r", p.ID), Model: "m", Role: "mixed", Session: p.Session, Basis: "exact", Tokens: 10,
		RouteKey: "a", Cost: 1, RunnerUp: "b", Margin: &margin, Candidates: 2,
	}
	if d := cmp.Diff(want, p); d != "" || p.Session == "" || strings.Contains(p.Session, "secret") {
		t.Errorf("short form (-want +got):\n%s", d)
	}
	record, ok := v.Explain(p.ID)
	if d, err := score.ParseDecision(record); !ok || err != nil || d.RequestID != p.RequestID || len(d.Terms) != 2 {
		t.Errorf("explained: %v, %v: %s", ok, err, record)
	}
	if _, ok := v.Explain(s.Picks[0].ID - 1); ok {
		t.Error("a decision was explained that is not shown")
	}
}

// TestPicksHandedOut: a snapshot has the latest decisions that were kept, however many came since the one before, and
// what was handed out stays as it was.
func TestPicksHandedOut(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	v := New()
	now := int64(1_000_000)
	type shot struct {
		picks []snapshot.Pick
		last  int
	}
	var shots []shot
	made := 0
	for range 60 {
		for range []int{0, 1, 7, 300, 499, 500, 501, 1300}[rng.IntN(8)] {
			made++
			now += 20 // all are kept
			v.Picked(now, &score.Request{}, decision(0, 10, 5), nil)
		}
		var s snapshot.Snapshot
		v.Fill(now, &s)
		shots = append(shots, shot{s.Picks, made})
	}
	for i, s := range shots {
		if n := min(s.last, snapshot.MaxPicks); s.picks == nil || len(s.picks) != n {
			t.Fatalf("snapshot %d has %d decisions, want %d of %d", i, len(s.picks), n, s.last)
		}
		for k := range s.picks {
			if want := uint64(s.last - len(s.picks) + 1 + k); s.picks[k].ID != want {
				t.Fatalf("snapshot %d: decision %d at %d, want %d", i, s.picks[k].ID, k, want)
			}
		}
	}
}

// TestPrefixTree holds the tree against what each prefix's definition says of it.
func TestPrefixTree(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		v := New()
		var chains [][]block.Hash
		for range 1 + rng.IntN(60) {
			var c []block.Hash
			if len(chains) > 0 && rng.IntN(4) > 0 {
				o := chains[rng.IntN(len(chains))]
				c = slices.Clone(o[:rng.IntN(len(o)+1)])
			}
			for range rng.IntN(6) {
				c = append(c, block.Hash(rng.Uint64()))
			}
			if len(c) == 0 {
				continue
			}
			chains = append(chains, c)
			d := decision(0, int64(len(c))*16, 0)
			v.Picked(int64(len(chains)), &score.Request{Model: "m", Blocks: c}, d, func(from, to int) string { return fmt.Sprint(c[from:to]) })
		}
		nodes, sampled := v.Prefixes(func(_ string, chain []block.Hash, each func(string, int)) {
			each("all", len(chain))
			each("some", len(chain)/2)
		})
		if sampled != len(chains) {
			t.Fatalf("seed %d: %d sampled, want %d", seed, sampled, len(chains))
		}
		seen := map[string]snapshot.Prefix{"": {}}
		for _, n := range nodes {
			p, ok := seen[n.Parent]
			if !ok || n.From != p.From+p.Blocks || n.Blocks < 1 {
				t.Fatalf("seed %d: node %+v does not follow its parent %+v", seed, n, p)
			}
			seen[n.Hash] = n
			uses, last := 0, int64(0)
			for i, c := range chains {
				// Through it goes what has its first block: all blocks are of one origin.
				if j := slices.IndexFunc(c, func(h block.Hash) bool { return hexHash(h) == n.Hash }); j == n.From+n.Blocks-1 || through(chains, c, n) {
					uses++
					last = int64(i + 1)
				}
			}
			if n.Uses != uses || n.LastMS != last || n.Text != textOf(chains, n) {
				t.Fatalf("seed %d: %+v, want %d uses, the last at %d", seed, n, uses, last)
			}
			want := []snapshot.Holder{{RouteKey: "all", Blocks: n.Blocks}}
			if half := (n.From+n.Blocks)/2 - n.From; half > 0 {
				want = append(want, snapshot.Holder{RouteKey: "some", Blocks: half})
			}
			if d := cmp.Diff(want, n.Holders); d != "" {
				t.Fatalf("seed %d: holders (-want +got):\n%s", seed, d)
			}
		}
		if len(nodes) > MaxPrefixes || len(nodes) == 0 && len(chains) > 0 {
			t.Fatalf("seed %d: %d nodes of %d chains", seed, len(nodes), len(chains))
		}
	}
}

// textOf is what a node's own blocks say, by any chain that has them.
func textOf(chains [][]block.Hash, n snapshot.Prefix) string {
	end := n.From + n.Blocks
	for _, c := range chains {
		if len(c) >= end && hexHash(c[end-1]) == n.Hash {
			return fmt.Sprint(c[n.From:end])
		}
	}
	return "nobody has it"
}

// through says whether c ends within node n: it agrees with a chain that has all of n.
func through(chains [][]block.Hash, c []block.Hash, n snapshot.Prefix) bool {
	if len(c) <= n.From {
		return false
	}
	for _, o := range chains {
		if end := n.From + n.Blocks; len(o) >= end && hexHash(o[end-1]) == n.Hash && c[n.From] == o[n.From] {
			return true
		}
	}
	return false
}

func TestClip(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "a\x1b[31mb\nc\u202ed\x9b": "a [31mb c d\ufffd", "\xff": "\ufffd", strings.Repeat("é", 161): strings.Repeat("é", 160) + "…",
	} {
		if got := Clip(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// TestWarnings walks a worker through troubles and back.
func TestWarnings(t *testing.T) {
	v := New()
	now := int64(1_000_000)
	say := func(change func(*snapshot.Worker)) string {
		now += 1000
		s := snapshot.Snapshot{AtMS: now, Router: snapshot.Router{Ready: true}}
		for _, key := range []string{"a", "b", "c"} {
			s.Workers = append(s.Workers, snapshot.Worker{RouteKey: key, Health: "healthy", Trust: "trusted", Breaker: "closed", PageSize: new(int), HeldRequests: 5, HeldTokens: 100})
		}
		change(&s.Workers[0])
		v.Watch(&s)
		v.Fill(now, &s)
		var out []string
		for _, w := range s.Warnings {
			over := ""
			if w.OverMS != nil {
				over = " over"
			}
			out = append(out, w.Kind+over)
		}
		return strings.Join(out, ", ")
	}
	well := func(*snapshot.Worker) {}
	for i, tt := range []struct {
		change func(*snapshot.Worker)
		times  int
		want   string
	}{
		{well, 1, ""},
		{func(w *snapshot.Worker) { w.Trust, w.TrustReason = "gap", "3 batches were lost" }, 2, "gap"},
		{well, 1, "gap over"},
		{func(w *snapshot.Worker) { w.Stream.Gaps = 1 }, 1, "gap over, gap over"}, // began and ended between two looks
		{func(w *snapshot.Worker) { w.Stream.Gaps = 1; w.Breaker = "open" }, 1, "breaker, gap over, gap over"},
		{func(w *snapshot.Worker) { w.Stream.Gaps = 1; w.HeldTokens = 301 }, 29, "breaker over, gap over, gap over"},
		{func(w *snapshot.Worker) { w.Stream.Gaps = 1; w.HeldTokens = 301 }, 3, "imbalance, breaker over, gap over, gap over"},
		{func(w *snapshot.Worker) { w.Stream.Gaps = 1; w.HeldTokens = 250 }, 1, "imbalance, breaker over, gap over, gap over"},
		{func(w *snapshot.Worker) { w.Stream.Gaps = 1; w.HeldTokens = 199 }, 1, "imbalance over, breaker over, gap over, gap over"},
		{func(w *snapshot.Worker) { w.Stream.Gaps = 1; w.Trust = "resync" }, 9, "imbalance over, breaker over, gap over, gap over"},
		{func(w *snapshot.Worker) { w.Stream.Gaps = 1; w.Trust = "resync" }, 3, "stream, imbalance over, breaker over, gap over, gap over"},
	} {
		got := ""
		for range tt.times {
			got = say(tt.change)
		}
		if got != tt.want {
			t.Errorf("step %d: got %q, want %q", i, got, tt.want)
		}
	}
}

func TestForgottenTarget(t *testing.T) {
	v := New()
	v.Picked(1000, &score.Request{}, decision(0, 10, 5), nil)
	v.Applied(1000, "a", &index.Result{Stored: 3, Removed: 1}, true)
	s := snapshot.Snapshot{Workers: []snapshot.Worker{{RouteKey: "a"}}}
	v.Fill(1001, &s)
	if w := s.Workers[0]; w.Requests != 1 || w.Stream.Stored != 3 || w.Stream.Removed != 1 || w.Stream.Clears != 1 {
		t.Errorf("got %+v", w)
	}
	v.Forget("a")
	v.Ended(2000, "a", 10, 5, 5)
	s = snapshot.Snapshot{Workers: []snapshot.Worker{{RouteKey: "a"}}}
	v.Fill(2001, &s)
	if w := s.Workers[0]; w.Requests != 0 || w.HitShare != nil || len(v.targets) != 0 {
		t.Errorf("the next life of the target begins with %+v", w)
	}
}

// steady is a decision over 64 candidates as it comes again and again.
func steady() (*score.Request, *score.Decision) {
	d := decision(0, 16_000, 8000)
	for i := range 62 {
		d.Terms = append(d.Terms, score.Terms{Candidate: score.Candidate{Key: fmt.Sprint("w", i)}, Eligible: true, Cost: 9})
	}
	return &score.Request{Model: "m", Blocks: make([]block.Hash, 1000)}, d
}

func TestPickedAllocatesNothing(t *testing.T) {
	v := New()
	req, d := steady()
	ms := int64(1_000_000)
	for range 2 * snapshot.MaxPicks { // until every place has memory
		ms += 20
		v.Picked(ms, req, d, nil)
	}
	if n := testing.AllocsPerRun(1000, func() { ms += 2; v.Picked(ms, req, d, nil) }); n != 0 {
		t.Errorf("%v allocations a decision, want 0", n)
	}
}

// BenchmarkPicked: 500 and 5,000 decisions a second, over 64 candidates.
func BenchmarkPicked(b *testing.B) {
	for _, every := range []int64{1000, 10_000} {
		b.Run(fmt.Sprintf("rate=%d", 500*every/1000), func(b *testing.B) {
			v := New()
			req, d := steady()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				v.Picked(1_000_000+int64(i)*2000/every, req, d, nil)
			}
		})
	}
}

// BenchmarkFill is what a snapshot costs beside the fleet's own figures.
func BenchmarkFill(b *testing.B) {
	v := New()
	req, d := steady()
	for i := range int64(1000) {
		v.Picked(1_000_000+i*20, req, d, nil)
	}
	s := snapshot.Snapshot{}
	for i := range 64 {
		s.Workers = append(s.Workers, snapshot.Worker{RouteKey: fmt.Sprint("w", i)})
	}
	b.ReportAllocs()
	for b.Loop() {
		v.Fill(1_021_000, &s)
	}
}
