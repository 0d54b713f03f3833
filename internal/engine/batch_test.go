package engine

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/trace"
)

// journal is an Observer that writes everything down, block by block.
type journal struct {
	now   int64
	lines []string
	// Conservation of requests and causes.
	submitted, admitted, first, finished map[int32]int64
}

func newJournal() *journal {
	return &journal{submitted: map[int32]int64{}, admitted: map[int32]int64{}, first: map[int32]int64{}, finished: map[int32]int64{}}
}

func (l *journal) add(format string, args ...any) {
	l.lines = append(l.lines, fmt.Sprintf("%d ", l.now)+fmt.Sprintf(format, args...))
}

func (l *journal) Admitted(_ int, job int32, hits int, again bool) {
	l.add("admit %d hits %d again %v", job, hits, again)
	l.admitted[job] = l.now
}

func (l *journal) Stored(_ int, nodes []trace.NodeID) {
	for _, n := range nodes {
		l.add("store %d", n)
	}
}

func (l *journal) Evicted(_ int, nodes []trace.NodeID) {
	for _, n := range nodes {
		l.add("evict %d", n)
	}
}
func (l *journal) FirstToken(_ int, job int32) { l.add("first %d", job); l.first[job] = l.now }
func (l *journal) Finished(_ int, job int32)   { l.add("finish %d", job); l.finished[job] = l.now }
func (l *journal) Preempted(_ int, job int32)  { l.add("preempt %d", job) }

type model interface {
	Next() int64
	Finish()
	Submit(now int64, j Job) bool
	Start(now int64)
}

type arrival struct {
	at  int64
	job Job
}

// drive runs arrivals through a model and returns its journal. after is called when an instant is done.
func drive(t *testing.T, m model, l *journal, arrivals []arrival, after func() error) {
	t.Helper()
	for i := 0; i < len(arrivals) || m.Next() != Forever; {
		now := m.Next()
		if i < len(arrivals) {
			now = min(now, arrivals[i].at)
		}
		if now < l.now {
			t.Fatalf("clock went back from %d to %d", l.now, now)
		}
		l.now = now
		if m.Next() == now {
			m.Finish()
		}
		for ; i < len(arrivals) && arrivals[i].at == now; i++ {
			if m.Submit(now, arrivals[i].job) {
				l.submitted[arrivals[i].job.ID] = now
			} else {
				l.add("reject %d", arrivals[i].job.ID)
			}
		}
		m.Start(now)
		if after != nil {
			if err := after(); err != nil {
				t.Fatalf("at %d: %v\n%s", now, err, strings.Join(l.lines, "\n"))
			}
		}
	}
}

// randomForest has n blocks hung under one another at random, with or without tokens of their own.
func randomForest(r *rand.Rand, n int, size uint32, own bool) *trace.Forest {
	f := &trace.Forest{}
	for i := range n {
		parent, depth, cum := trace.NoNode, uint32(1), uint32(0)
		if i > 0 && r.IntN(8) > 0 {
			parent = trace.NodeID(max(0, i-1-r.IntN(min(i, 4))))
			depth = f.Depth[parent] + 1
			if own {
				cum = f.CumTokens[parent]
			}
		}
		f.Hash = append(f.Hash, block.Hash(r.Uint64()))
		f.Parent = append(f.Parent, parent)
		f.Depth = append(f.Depth, depth)
		if own {
			f.CumTokens = append(f.CumTokens, cum+1+r.Uint32N(size))
		}
	}
	return f
}

type scenario struct {
	cfg      BatchConfig
	arrivals []arrival
}

func randomScenario(seed uint64) scenario {
	r := rand.New(rand.NewPCG(seed, 7))
	size := 1 + r.Int64N(6)
	own := r.IntN(3) == 0
	f := randomForest(r, 1+r.IntN(40), uint32(size), own)
	maxRunning := 1 + r.IntN(6)
	s := scenario{cfg: BatchConfig{
		Cost: Cost{
			Step: 1 + r.Int64N(50), PerRequest: r.Int64N(5), PerContext: r.Int64N(3),
			PerPrefill: r.Int64N(4), PerPrefillSquare: r.Int64N(2),
		},
		Budget: int64(maxRunning) + r.Int64N(20), MaxRunning: maxRunning,
		Capacity: []int64{0, 5, 8, 12, 20, 40}[r.IntN(6)], BlockSize: size, Forest: f,
	}}
	var at int64
	for id := range int32(1 + r.IntN(30)) {
		at += r.Int64N(1 + r.Int64N(400))
		j := Job{ID: id, Leaf: trace.NoNode, Output: r.Int64N(1 + r.Int64N(40))}
		if r.IntN(10) > 0 {
			j.Leaf = trace.NodeID(r.IntN(len(f.Parent)))
			full := int64(f.Depth[j.Leaf]) * size
			if own {
				full = int64(f.CumTokens[j.Leaf])
			}
			// Some inputs end within the last block, some leave a tail without an id.
			j.Input = max(1, full-r.Int64N(size)+r.Int64N(2)*r.Int64N(2*size+1))
		} else {
			j.Input = r.Int64N(12)
		}
		if !own && j.Leaf != trace.NoNode && r.IntN(4) == 0 {
			j.Even = max(1, (j.Input+1)/int64(f.Depth[j.Leaf]))
		}
		switch r.IntN(6) {
		case 0:
			j.Transferred = true
			j.Done = 1
			j.Output += 2
		case 1:
			j.Done = min(j.Output, 1+r.Int64N(3))
			if j.Done == j.Output {
				j.Done = 0
			}
		}
		s.arrivals = append(s.arrivals, arrival{at, j})
	}
	return s
}

// TestBatchEqualsNaive compares the skipping model, the same one step at a time, and the naive one.
func TestBatchEqualsNaive(t *testing.T) {
	rounds := uint64(4000)
	if testing.Short() {
		rounds = 300
	}
	var skipped, preempted, rejected int
	for seed := range rounds {
		want, long := againstNaive(t, seed)
		skipped += long
		for _, line := range want.lines {
			preempted += strings.Count(line, "preempt")
			rejected += strings.Count(line, "reject")
		}
	}
	if skipped == 0 || preempted == 0 || rejected == 0 {
		t.Errorf("scenarios too tame: %d runs of several steps, %d preemptions, %d rejections", skipped, preempted, rejected)
	}
}

// FuzzBatch is TestBatchEqualsNaive with the fuzzer's choice of scenarios.
func FuzzBatch(f *testing.F) {
	f.Add(uint64(12))
	f.Fuzz(func(t *testing.T, seed uint64) { againstNaive(t, seed) })
}

// againstNaive compares the models on one scenario and returns its journal and how many runs of several
// steps there were.
func againstNaive(t *testing.T, seed uint64) (want *journal, skipped int) {
	t.Helper()
	s := randomScenario(seed)
	want = newJournal()
	drive(t, &naive{cfg: s.cfg, obs: want, holders: map[trace.NodeID]map[*naiveJob]bool{}}, want, s.arrivals, nil)
	for _, stepwise := range []bool{true, false} {
		got := newJournal()
		s.cfg.Stepwise = stepwise
		b := NewBatch(s.cfg, got)
		drive(t, b, got, s.arrivals, func() error {
			if b.runLen > 1 {
				skipped++
			}
			return b.Check()
		})
		compareJournals(t, fmt.Sprintf("seed %d, stepwise %v, %+v", seed, stepwise, s.cfg), got, want)
		checkCauses(t, seed, got, s)
	}
	return want, skipped
}

func compareJournals(t *testing.T, what string, got, want *journal) {
	t.Helper()
	for i := range max(len(got.lines), len(want.lines)) {
		g, w := "(end)", "(end)"
		if i < len(got.lines) {
			g = got.lines[i]
		}
		if i < len(want.lines) {
			w = want.lines[i]
		}
		if g != w {
			t.Fatalf("%s: line %d: got %q, want %q; before that:\n%s", what, i, g, w, strings.Join(want.lines[max(0, i-20):i], "\n"))
		}
	}
}

// checkCauses: each accepted request is admitted, has its first token and ends, in this order.
func checkCauses(t *testing.T, seed uint64, l *journal, s scenario) {
	t.Helper()
	for _, a := range s.arrivals {
		id := a.job.ID
		sub, ok := l.submitted[id]
		if !ok {
			continue
		}
		end, ok := l.finished[id]
		if !ok {
			t.Fatalf("seed %d: request %d never finished", seed, id)
		}
		if l.admitted[id] < sub || end < l.admitted[id] {
			t.Fatalf("seed %d: request %d: submitted %d, admitted %d, finished %d", seed, id, sub, l.admitted[id], end)
		}
		first, ok := l.first[id]
		if ok == a.job.Transferred || (ok && (first < sub || end < first)) {
			t.Fatalf("seed %d: request %d with %d tokens before: submitted %d, first %d (%v), finished %d", seed, id, a.job.Done, sub, first, ok, end)
		}
	}
}

// TestStepTime follows one request by hand.
func TestStepTime(t *testing.T) {
	l := newJournal()
	b := NewBatch(BatchConfig{
		Cost:   Cost{Step: 1000, PerRequest: 100, PerContext: 1, PerPrefill: 10, PerPrefillSquare: 1},
		Budget: 8, MaxRunning: 4, BlockSize: 4, Forest: &trace.Forest{},
	}, l)
	drive(t, b, l, []arrival{{50, Job{ID: 3, Leaf: trace.NoNode, Input: 12, Output: 4}}}, b.Check)
	// Two prefill steps (8 tokens, then 4), then three decode steps at 13, 14 and 15 tokens.
	first := int64(50) + 1000 + 80 + 64 + 1000 + 40 + (144 - 64)
	end := first + 3*1100 + 13 + 14 + 15
	if l.first[3] != first || l.finished[3] != end {
		t.Errorf("got first token at %d and end at %d, want %d and %d\n%s", l.first[3], l.finished[3], first, end, strings.Join(l.lines, "\n"))
	}
}

func TestKillKeepsTokens(t *testing.T) {
	l := newJournal()
	b := NewBatch(BatchConfig{Cost: Cost{Step: 10}, Budget: 8, MaxRunning: 1, BlockSize: 4, Forest: &trace.Forest{}}, l)
	b.Submit(0, Job{ID: 1, Leaf: trace.NoNode, Input: 8, Output: 100})
	b.Submit(0, Job{ID: 2, Leaf: trace.NoNode, Input: 8, Output: 100})
	b.Start(0)
	b.Finish() // at 10: first token
	b.Start(10)
	got := b.Kill(35, nil) // two more steps have ended
	if len(got) != 2 || got[0].ID != 1 || got[0].Done != 3 || got[1].ID != 2 || got[1].Done != 0 || b.Next() != Forever {
		t.Errorf("got %+v, next %d; want job 1 with 3 tokens, job 2 with none, never", got, b.Next())
	}
}

func TestSaturation(t *testing.T) {
	c := Cost{Step: 1 << 40, PerRequest: 1 << 40, PerContext: 1 << 40}
	if got := c.decode(1<<31, 1<<20, 1<<40); got != Forever {
		t.Errorf("got %d, want it to stop at Forever", got)
	}
	if got := addSat(Forever, Forever); got != Forever {
		t.Errorf("got %d, want Forever", got)
	}
}
