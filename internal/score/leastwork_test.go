package score_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kvroute/kvroute/internal/load"
	"github.com/kvroute/kvroute/internal/score"
)

// naiveWork is the cost of least-work from its terms, as the formula is written.
func naiveWork(req *score.Request, terms []score.Terms) []float64 {
	n, sum := 0.0, 0.0
	for _, t := range terms {
		n += float64(t.Load.PendingRequests) / float64(len(terms))
		sum += t.Recent
	}
	m := 0.03 * sum
	var out []float64
	for _, t := range terms {
		uncached := float64(req.InputTokens - t.HitTokens)
		if t.Hits > 0 {
			uncached += float64(t.HitTokens) * (1 - t.HitWeight/float64(t.Hits))
		}
		uncached += 768 * float64(int64(len(req.Images))-t.ImageHits)
		slow := 1 + (t.Slow-1)/(1+8*n)
		out = append(out, slow*((1+n)*uncached+float64(t.Load.PendingTokens)+0.05*m*float64(t.Load.HeldRequests))+0.12*t.Recent)
	}
	return out
}

// Every cost against the formula, every pick the least of them, and recents as the history says.
func TestLeastWorkAgainstNaive(t *testing.T) {
	slowed := 0
	for seed := range uint64(6) {
		const targets = 4
		r := newRig(t, targets, config(score.LeastWork))
		rng := rand.New(rand.NewPCG(seed, 4))
		var recent [targets]float64
		var live []load.Handle
		at := int64(0)
		for step := range 400 {
			req := prompt(chain(rng.IntN(8), rng.IntN(30)))
			req.InputTokens += rng.Int64N(16)
			if rng.IntN(7) == 0 {
				req.Multimodal, req.Images = true, []uint64{rng.Uint64N(6), rng.Uint64N(6)}
			}
			at += rng.Int64N(2e8)
			req.At = at
			r.pick(req)
			want := naiveWork(&req, r.dec.Terms)
			best := 0
			for i, w := range want {
				if r.dec.Terms[i].Slow > 1 && r.dec.Terms[i].Load.PendingRequests > 0 {
					slowed++
				}
				if got := r.dec.Terms[i].Cost; abs(got-w) > 1e-6*(1+w) {
					t.Fatalf("seed %d step %d: cost of %d = %v, want %v", seed, step, i, got, w)
				}
				if r.dec.Terms[i].Cost < r.dec.Terms[best].Cost {
					best = i
				}
				if got := r.dec.Terms[i].Recent; got != recent[i] {
					t.Fatalf("seed %d step %d: recent of %d = %v, want %v", seed, step, i, got, recent[i])
				}
			}
			won := r.dec.PickedTerms()
			if won.Cost != r.dec.Terms[best].Cost {
				t.Fatalf("seed %d step %d: picked %d at %v, %d costs %v", seed, step, r.dec.Picked, won.Cost, best, r.dec.Terms[best].Cost)
			}
			for i := range recent {
				if recent[i] = float64(recent[i] * 0.97); recent[i] < 1e-3 {
					recent[i] = 0
				}
			}
			charge := float64(req.InputTokens - won.HitTokens)
			if won.HitWeight != float64(won.Hits) {
				charge += float64(float64(won.HitTokens) * (1 - won.HitWeight/float64(won.Hits)))
			}
			charge += 768 * float64(int64(len(req.Images))-won.ImageHits)
			if req.InputTokens == 0 && len(req.Images) == 0 {
				charge = 1
			}
			recent[r.dec.Picked] += charge
			r.view.add(won.Candidate.Target, req.Blocks...)
			live = append(live, r.dec.Handle)
			first, late := live[rng.IntN(len(live))], int64(0)
			if res, ok := r.led.Reservation(first); ok && res.Target == 2 {
				late = 3e9 // c takes its time
			}
			r.sc.FirstToken(first, at+late)
			for len(live) > 7 {
				i := rng.IntN(len(live))
				r.end(live[i], at)
				live = append(live[:i], live[i+1:]...)
			}
		}
	}
	if slowed == 0 {
		t.Error("no target was ever slow: that part of the formula was not tested")
	}
}

func abs(f float64) float64 { return max(f, -f) }

// run sends n new prompts to a fleet whose targets prefill at the given rates (tokens/s), one after
// the other on each, and returns the last decision.
func (r *rig) run(n int, rates []float64, gap int64) {
	free := make([]int64, len(rates)) // when each target is idle again
	type done struct {
		at int64
		h  load.Handle
	}
	var queue []done
	at := int64(0)
	for i := range n {
		at += gap
		for len(queue) > 0 && queue[0].at <= at {
			r.sc.FirstToken(queue[0].h, queue[0].at)
			r.end(queue[0].h, queue[0].at)
			queue = queue[1:]
		}
		req := prompt(chain(1000+i, 40+i%17))
		req.At = at
		r.pick(req)
		w := r.dec.Picked
		free[w] = max(free[w], at) + int64(float64(req.InputTokens)/rates[w]*1e9)
		queue = append(queue, done{free[w], r.dec.Handle})
		for j := len(queue) - 1; j > 0 && queue[j].at < queue[j-1].at; j-- {
			queue[j], queue[j-1] = queue[j-1], queue[j]
		}
	}
}

// A target at half speed is found out from its first tokens, equal ones are not suspected.
func TestSlowTargetsAreLearned(t *testing.T) {
	even := newRig(t, 4, config(score.LeastWork))
	even.run(600, []float64{20000, 20000, 20000, 20000}, 1e7)
	for _, tm := range even.dec.Terms {
		if tm.Slow != 1 {
			t.Errorf("equal targets: slowness of %s = %v, want 1", tm.Candidate.Key, tm.Slow)
		}
	}
	r := newRig(t, 4, config(score.LeastWork))
	r.run(600, []float64{20000, 20000, 10000, 20000}, 1e7)
	for i, tm := range r.dec.Terms {
		if want := i == 2; (tm.Slow > 1) != want || tm.Slow > 2 {
			t.Errorf("slowness of %s = %v, want above 1 and at most 2: %v", tm.Candidate.Key, tm.Slow, want)
		}
	}
	slow := func() float64 {
		var dec score.Decision
		req := prompt(nil)
		if err := r.sc.Peek(&req, r.cands, &dec); err != nil {
			t.Fatal(err)
		}
		return dec.Terms[2].Slow
	}
	r.led.Join(2, 9)
	if got := slow(); got != 1 {
		t.Errorf("slowness in a new life = %v, want 1: unknown", got)
	}
}

// The pace, step by step: what is slow is a target's seconds a token over the median's, with 50,000
// tokens at the median's pace beforehand, in halves from 1 to 2.
func TestPace(t *testing.T) {
	type step struct {
		target int   // where the request goes; all prompts have 16,000 tokens and hit nothing
		start  int64 // ms
		first  int64 // ms; 0: it ends without a first token at end
		end    int64 // ms
	}
	for _, tc := range []struct {
		name  string
		steps []step
		want  [3]float64
	}{
		{"nothing known", nil, [3]float64{1, 1, 1}},
		{"one known", []step{{0, 0, 5000, 5000}}, [3]float64{1, 1, 1}},
		// Paces 1, 1 and 9 s a prompt: median 1 s; c: (9 + 50/16)/(16 + 50)*16 = 2.94, at most 2.
		{"far slower", []step{{0, 0, 1000, 1000}, {1, 1000, 2000, 2000}, {2, 2000, 11000, 11000}}, [3]float64{1, 1, 2}},
		// c 2.5 s: (2.5 + 3.125)/66*16 = 1.36, in halves 1.5. At 2 s it is 1.24, so 1.
		{"a little slower", []step{{0, 0, 1000, 1000}, {1, 1000, 2000, 2000}, {2, 2000, 4500, 4500}}, [3]float64{1, 1, 1.5}},
		{"within the dead band", []step{{0, 0, 1000, 1000}, {1, 1000, 2000, 2000}, {2, 2000, 4000, 4000}}, [3]float64{1, 1, 1}},
		// Median 9 s; a is faster, which is no slowness below 1.
		{"one faster", []step{{0, 0, 1000, 1000}, {1, 1000, 10000, 10000}, {2, 10000, 19000, 19000}}, [3]float64{1, 1, 1}},
		// Two known, 1 s and 3 s: the median lies between, 2 s; c: (3 + 6.25)/66*16/2 = 1.12, so 1; a 5 s: 1.27.
		{"even number", []step{{0, 0, 1000, 1000}, {2, 1000, 4000, 4000}}, [3]float64{1, 1, 1}},
		// 1 s and three times 9 s: median 5 s; c: (26.46 + 15.625)/97.05*16/5 = 1.39, so 1.5. Over the upper of the two it were 1.
		{"even number, far", []step{{0, 0, 1000, 1000}, {2, 1000, 10000, 10000}, {2, 10000, 19000, 19000}, {2, 19000, 28000, 28000}}, [3]float64{1, 1, 1.5}},
		// Idle time between requests is not counted.
		{"idle between", []step{{0, 0, 1000, 1000}, {1, 0, 1000, 1000}, {2, 0, 1000, 1000}, {2, 60000, 61000, 61000}}, [3]float64{1, 1, 1}},
		// A request that ends without a first token teaches nothing, nor does the time it took.
		{"abort", []step{{0, 0, 1000, 1000}, {1, 0, 1000, 1000}, {2, 0, 0, 60000}, {2, 60000, 61000, 61000}}, [3]float64{1, 1, 1}},
		{"clock runs back", []step{{0, 0, 1000, 1000}, {1, 0, 1000, 1000}, {2, 5000, 1000, 5000}, {2, 5000, 14000, 14000}}, [3]float64{1, 1, 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 3, config(score.LeastWork))
			all := r.cands
			for i, s := range tc.steps {
				r.cands = all[s.target : s.target+1]
				req := prompt(chain(i, 1000))
				req.At = s.start * 1e6
				r.pick(req)
				if s.first > 0 {
					r.sc.FirstToken(r.dec.Handle, s.first*1e6)
				}
				r.end(r.dec.Handle, s.end*1e6)
			}
			r.cands = all
			r.pick(prompt(chain(99, 10)))
			for i, want := range tc.want {
				if got := r.dec.Terms[i].Slow; got != want {
					t.Errorf("slowness of %s = %v, want %v", all[i].Key, got, want)
				}
			}
		})
	}
}

// A queue is worked off in the time since its last first token, not since each request's arrival; an
// abort in the middle takes its time along. A late first token of a former life teaches nothing.
func TestPaceOfQueues(t *testing.T) {
	r := newRig(t, 2, config(score.LeastWork))
	all := r.cands
	send := func(target int, at int64) load.Handle {
		r.cands = all[target : target+1]
		req := prompt(chain(int(at)*2+target, 1000))
		req.At = at * 1e6
		r.pick(req)
		return r.dec.Handle
	}
	slow := func(target int) float64 {
		r.cands = all
		var dec score.Decision
		req := prompt(nil)
		if err := r.sc.Peek(&req, r.cands, &dec); err != nil {
			t.Fatal(err)
		}
		return dec.Terms[target].Slow
	}
	for target := range 2 {
		a, b, c := send(target, 1), send(target, 2), send(target, 3)
		r.sc.FirstToken(a, 1001e6)
		if target == 1 {
			r.end(b, 100_001e6) // hangs for 99 s
		} else {
			r.end(b, 1001e6)
		}
		if target == 1 {
			r.sc.FirstToken(c, 101_001e6)
		} else {
			r.sc.FirstToken(c, 2001e6)
		}
	}
	if a, b := slow(0), slow(1); a != 1 || b != 1 {
		t.Errorf("slowness = %v, %v; want 1, 1: both took a second a prompt", a, b)
	}
	old := send(1, 200_000)
	r.led.Join(1, 2)
	r.sc.FirstToken(old, 900_000e6)
	send(1, 900_000)
	r.sc.FirstToken(r.dec.Handle, 901_000e6)
	if got := slow(1); got != 1 {
		t.Errorf("slowness in the new life = %v, want 1", got)
	}
}

// Times that do not move, as in replays without a clock, or that run backwards teach nothing.
func TestPaceNeedsTime(t *testing.T) {
	for _, jump := range []int64{0, -1e9} {
		r := newRig(t, 2, config(score.LeastWork))
		for i := range 50 {
			req := prompt(chain(i, 50))
			req.At = 5e9
			r.pick(req)
			r.sc.FirstToken(r.dec.Handle, 5e9+jump)
			r.end(r.dec.Handle, 5e9)
			for _, tm := range r.dec.Terms {
				if tm.Slow != 1 {
					t.Fatalf("jump %d: slowness of %s = %v, want 1", jump, tm.Candidate.Key, tm.Slow)
				}
			}
		}
	}
}

// Requests that end without a first token say nothing about the pace.
func TestAbortsTeachNothing(t *testing.T) {
	r := newRig(t, 2, config(score.LeastWork))
	for i := range 200 {
		req := prompt(chain(i, 50))
		req.At = int64(i) * 1e9
		r.pick(req)
		if r.dec.Picked == 0 {
			r.sc.FirstToken(r.dec.Handle, req.At+1e7)
		}
		r.end(r.dec.Handle, req.At+9e8) // b hangs until it is given up
	}
	for _, tm := range r.dec.Terms {
		if tm.Slow != 1 {
			t.Errorf("slowness of %s = %v, want 1", tm.Candidate.Key, tm.Slow)
		}
	}
}
