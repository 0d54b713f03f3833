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
		slow := 1 + max(t.Slow-1, 0)/(1+8*n)
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
			session := rng.IntN(8)
			if rng.IntN(3) == 0 {
				session = 100 + step // new, so that there is something to prefill
			}
			req := prompt(chain(session, rng.IntN(80)))
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

func TestLeastWorkDecode(t *testing.T) {
	type held struct{ tokens, requests int64 } // tokens each
	for _, tc := range []struct {
		name string
		held [3]held
		cost [3]float64 // beside the request's own tokens
		pick string
		rule score.Rule
	}{
		{"idle", [3]held{}, [3]float64{0, 0, 0}, "a", score.ByOrder},
		{"tokens", [3]held{{1500, 2}, {500, 2}, {1000, 2}}, [3]float64{7000, 5000, 6000}, "b", score.ByCost},
		{"requests", [3]held{{250, 4}, {2000, 1}, {3000, 1}}, [3]float64{9000, 4000, 5000}, "b", score.ByCost},
		{"one idle", [3]held{{10, 1}, {10, 1}, {}}, [3]float64{30, 30, 0}, "c", score.ByCost},
		{"tokens unknown", [3]held{{0, 3}, {0, 1}, {0, 2}}, [3]float64{0, 0, 0}, "b", score.ByLoad},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 3, config(score.LeastWork))
			for i, h := range tc.held {
				for range h.requests {
					r.led.Reserve(r.cands[i].Target, load.Demand{Tokens: h.tokens})
				}
			}
			req := prompt(chain(1, 10))
			req.Role = score.Decode
			if got := r.pick(req); got != tc.pick || r.dec.TieRule != tc.rule {
				t.Errorf("picked %s by %s, want %s by %s", got, r.dec.TieRule, tc.pick, tc.rule)
			}
			for i, want := range tc.cost {
				if got := r.dec.Terms[i].Cost - 160; got != want {
					t.Errorf("cost of %s beside its own tokens = %v, want %v", r.cands[i].Key, got, want)
				}
			}
			if got := r.led.Load(r.dec.PickedTerms().Candidate.Target).PendingTokens; got != 0 {
				t.Errorf("a decode pick has %d tokens of prefill pending, want 0", got)
			}
		})
	}
}

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
	if got := slow(); got != 0 {
		t.Errorf("slowness in a new life = %v, want 0: unknown", got)
	}
}

// The pace, run by run: what is slow is a target's best time a token lately over the median target's,
// in halves from 1 to 2, and unknown (0) before eight first tokens of prompts of 256 tokens or more.
func TestPace(t *testing.T) {
	type serve struct {
		target int
		times  int   // prompts, one after the other
		blocks int   // of 16 tokens each; nothing is cached
		took   int64 // ms from pick to first token; 0: they end without one after a minute
	}
	of := func(target, times int, took int64) serve { return serve{target, times, 1000, took} }
	for _, tc := range []struct {
		name   string
		served []serve
		want   [3]float64
	}{
		{"nothing known", nil, [3]float64{}},
		{"one known", []serve{of(0, 8, 5000)}, [3]float64{}},
		{"seven are too few", []serve{of(0, 8, 1000), of(1, 7, 9000)}, [3]float64{}},
		{"short prompts say nothing", []serve{of(0, 8, 1000), {1, 20, 15, 9000}}, [3]float64{}},
		{"256 tokens do", []serve{of(0, 8, 1000), {1, 8, 16, 16}}, [3]float64{1, 1, 0}},
		{"equal", []serve{of(0, 8, 1000), of(1, 8, 1000), of(2, 8, 1000)}, [3]float64{1, 1, 1}},
		{"far slower", []serve{of(0, 8, 1000), of(1, 8, 1000), of(2, 8, 9000)}, [3]float64{1, 1, 2}},
		{"a little slower", []serve{of(0, 8, 1000), of(1, 8, 1000), of(2, 8, 1400)}, [3]float64{1, 1, 1.5}},
		{"within the dead band", []serve{of(0, 8, 1000), of(1, 8, 1000), of(2, 8, 1200)}, [3]float64{1, 1, 1}},
		// Median 9 s; a is faster, which is no slowness below 1.
		{"one faster", []serve{of(0, 8, 1000), of(1, 8, 9000), of(2, 8, 9000)}, [3]float64{1, 1, 1}},
		// Two known, 1 s and 3 s: the median lies between, 2 s, and 3 s is 1.5 of it.
		{"even number", []serve{of(0, 8, 1000), of(2, 8, 3000)}, [3]float64{1, 0, 1.5}},
		// The best counts: what others send to c makes it late but once in a while, not slow.
		{"kept busy by others", []serve{of(0, 9, 1000), of(1, 9, 1000), of(2, 7, 5000), of(2, 1, 1000), of(2, 20, 5000)}, [3]float64{1, 1, 1}},
		// It worsens by a hundredth each: after 60 slow ones a target that was fast has become slow.
		{"becomes slow", []serve{of(0, 8, 1000), of(1, 8, 1000), of(2, 8, 1000), of(2, 60, 5000)}, [3]float64{1, 1, 2}},
		{"recovers at once", []serve{of(0, 8, 1000), of(1, 8, 1000), of(2, 8, 5000), of(2, 1, 1000)}, [3]float64{1, 1, 1}},
		{"aborts teach nothing", []serve{of(0, 8, 1000), of(1, 8, 1000), of(2, 8, 1000), of(2, 50, 0)}, [3]float64{1, 1, 1}},
		{"aborts alone stay unknown", []serve{of(0, 8, 1000), of(1, 8, 1000), of(2, 50, 0)}, [3]float64{1, 1, 0}},
		{"clock runs back", []serve{of(0, 8, 1000), of(1, 8, 1000), of(2, 8, -1000)}, [3]float64{1, 1, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, 3, config(score.LeastWork))
			all := r.cands
			at, prompts := int64(1e12), 0
			for _, s := range tc.served {
				r.cands = all[s.target : s.target+1]
				for range s.times {
					prompts++
					req := prompt(chain(prompts, s.blocks))
					req.At = at
					r.pick(req)
					took := s.took * 1e6
					if took != 0 {
						r.sc.FirstToken(r.dec.Handle, at+took)
					} else {
						took = 60e9
					}
					r.end(r.dec.Handle, at+took)
					at += took + 5e9 // idle time between requests is not counted
				}
			}
			r.cands = all
			r.pick(prompt(chain(1<<20, 10)))
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
		var queue []load.Handle
		for i := range int64(10) {
			queue = append(queue, send(target, 1+i))
		}
		at := int64(1)
		for i, h := range queue {
			if at += 1000; i == 4 && target == 1 {
				at += 99_000
				r.end(h, at*1e6) // hangs for 100 s and is given up
				continue
			}
			r.sc.FirstToken(h, at*1e6)
		}
	}
	if a, b := slow(0), slow(1); a != 1 || b != 1 {
		t.Errorf("slowness = %v, %v; want 1, 1: both took a second a prompt", a, b)
	}
	old := send(1, 200_000)
	r.led.Join(1, 2)
	r.sc.FirstToken(old, 900_000e6)
	for i := range int64(7) {
		h := send(1, 900_000+1000*i)
		r.sc.FirstToken(h, (901_000+1000*i)*1e6)
		r.end(h, (901_000+1000*i)*1e6)
	}
	if got := slow(1); got != 0 {
		t.Errorf("slowness in the new life = %v, want 0: seven first tokens are too few", got)
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
				if tm.Slow != 0 {
					t.Fatalf("jump %d: slowness of %s = %v, want 0: unknown", jump, tm.Candidate.Key, tm.Slow)
				}
			}
		}
	}
}
