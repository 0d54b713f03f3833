package plantedlog

import (
	"math"
	"math/rand/v2"
)

// prefillToken is what a token of a prompt takes on a mixed server, s.
const prefillToken = 50e-6

// printer sees the simulation go by.
type printer interface {
	begin(e *engine)
	prefilled(e *engine, r *rank, tokens int64) // a batch of prompts was computed
	stepped(e *engine, r *rank)                 // r has made a decode step, with requests that are still there
	ticked(e *engine)                           // after each step of all ranks that wait for each other
}

type request struct {
	number        int64 // from 1
	input, output int64
	done          int64
	arrived       float64 // s
	begun         bool
}

// witness is a printer that sees requests, too.
type witness interface {
	began(e *engine, r *rank, q *request) // decodes from now on
	ended(e *engine, r *rank, q *request)
}

// rank is one data-parallel rank.
type rank struct {
	id    int
	now   float64 // s, its own clock
	reqs  []request
	share float64 // of the load

	// Counters since the start.
	steps     int64 // decode steps
	forwards  int64 // with prefills
	tokens    int64 // produced in decode steps
	outputs   int64 // requests x steps
	prompts   int64 // prompt tokens computed
	decodeSum float64
	preShare  float64 // of the pool, for requests in transfer
}

func (r *rank) held() int64 {
	var n int64
	for i := range r.reqs {
		n += r.reqs[i].input + r.reqs[i].done
	}
	return n
}

type engine struct {
	truth  Truth
	design Design
	rng    *rand.Rand
	ranks  []*rank

	load, context, drift float64 // walks, logarithms
	number               int64   // of the last request
}

func newEngine(t Truth, d Design, seed uint64) *engine {
	e := &engine{truth: t, design: d, rng: rand.New(rand.NewPCG(seed, 0x706c616e746564))}
	for i := range t.Ranks {
		r := &rank{id: i, share: 0.7 + 0.3*float64(i%3)}
		if d.Fixed || d.Flat || d.Even || t.Ranks == 1 {
			r.share = 1
		}
		if i >= t.Ranks-d.Idle {
			r.share = 0
		}
		e.ranks = append(e.ranks, r)
		e.fill(r, true)
	}
	return e
}

// walk moves a mean-reverting walk with the given correlation time and deviation.
func (e *engine) walk(x *float64, dt, tau, sigma float64) {
	k := min(dt/tau, 1)
	*x = *x*(1-k) + sigma*math.Sqrt(2*k)*e.rng.NormFloat64()
}

// fill adds requests until r has as many as it is meant to have. It returns the prompt tokens of those.
func (e *engine) fill(r *rank, start bool) int64 {
	d := &e.design
	want := d.Load * r.share
	if !d.Flat && !(d.Fixed && d.Idle > 0) {
		want *= min(max(math.Exp(e.load), 0.3), 2.2)
	}
	if r.share > 0 {
		want = max(want, 1)
	}
	var tokens int64
	for float64(len(r.reqs)) < math.Round(want) {
		in, out := d.Context, d.Output
		if !d.Fixed {
			in *= math.Exp(e.context + d.Spread*e.rng.NormFloat64())
			out *= e.rng.ExpFloat64()
		}
		e.number++
		q := request{number: e.number, arrived: r.now, input: min(max(int64(in), 4), e.truth.Pool/4), output: max(int64(out), 2)}
		if start {
			q.done = int64(e.rng.Float64() * float64(q.output-1))
		}
		tokens += q.input
		r.reqs = append(r.reqs, q)
	}
	return tokens
}

// cost is what a rank's requests and tokens count in a step.
func (e *engine) cost(r *rank) (requests, tokens float64) {
	for i := range r.reqs {
		n := float64(r.reqs[i].input + r.reqs[i].done)
		if e.truth.Window > 0 {
			n = min(n, e.truth.Window)
		}
		tokens += n
	}
	return float64(len(r.reqs)), tokens
}

// work is what a step of group takes without noise: as on the busiest rank, or as on rank 0 where that straggles and is
// still slower; false: there is none to do.
func (e *engine) work(group []*rank) (took float64, any bool) {
	t := &e.truth
	var requests, tokens, straggler float64
	for _, r := range group {
		n, k := e.cost(r)
		any = any || n > 0
		if r.id == 0 && t.Straggler > 1 && n > 0 {
			straggler = t.Straggler * (t.A + t.B*n + t.C*k)
			continue
		}
		requests, tokens = max(requests, n), max(tokens, k)
	}
	if requests > 0 {
		took = t.A + t.B*requests + t.C*tokens
	}
	return max(took, straggler), any
}

func (e *engine) run(p printer) {
	for {
		group := e.ranks
		if e.truth.Independent {
			late := e.ranks[0]
			for _, r := range e.ranks {
				if r.now < late.now {
					late = r
				}
			}
			group = []*rank{late}
		}
		if group[0].now > e.design.Seconds {
			return
		}
		e.step(p, group)
		p.ticked(e)
	}
}

func (e *engine) step(p printer, group []*rank) {
	t := &e.truth
	dt := (t.A + t.B*e.design.Load + t.C*e.design.Load*e.design.Context) / float64(len(e.ranks)/len(group))
	e.walk(&e.load, dt, 60, 0.6)
	e.walk(&e.context, dt, 100, 0.5)
	e.walk(&e.drift, dt, 10, 1)
	e.prefill(p, group)

	if p, ok := p.(witness); ok {
		for _, r := range group {
			for i := range r.reqs {
				if q := &r.reqs[i]; !q.begun {
					q.begun = true
					p.began(e, r, q)
				}
			}
		}
	}
	base, any := e.work(group)
	if !any {
		for _, r := range group {
			r.now += 0.05
		}
		return
	}
	took := base * (1 + t.Noise*e.rng.NormFloat64()) * (1 + t.Drift*e.drift)
	took = max(took, base/3)
	if e.rng.Float64() < t.Outliers {
		took *= 5
	}
	if e.rng.Float64() < t.Pauses*took {
		took += 0.5 + 2*e.rng.Float64()
	}
	for _, r := range group {
		r.now += took
		e.decode(p, r, took)
	}
}

// prefill lets requests in. On a mixed server their prompts are computed first, and all ranks that step together wait.
func (e *engine) prefill(p printer, group []*rank) {
	var longest int64
	for _, r := range group {
		tokens := e.fill(r, false)
		longest = max(longest, tokens)
		if tokens > 0 && e.design.Mixed {
			r.prompts += tokens
			r.forwards++
			p.prefilled(e, r, tokens)
		}
	}
	if !e.design.Mixed {
		return
	}
	for _, r := range group {
		r.now += prefillToken * float64(longest)
	}
}

func (e *engine) decode(p printer, r *rank, took float64) {
	if len(r.reqs) == 0 {
		return
	}
	e.walk(&r.preShare, took, 30, 0.05)
	r.steps++
	r.forwards++
	r.outputs += int64(len(r.reqs))
	r.decodeSum += took * float64(len(r.reqs))
	for i := range r.reqs {
		n := int64(1)
		// Up to three draft tokens, each accepted with the same chance.
		for range 3 {
			if e.rng.Float64() < (e.truth.Accept-1)/3 {
				n++
			}
		}
		r.reqs[i].done += n
		r.tokens += n
	}
	p.stepped(e, r)
	kept := r.reqs[:0]
	for _, q := range r.reqs {
		if q.done < q.output {
			kept = append(kept, q)
		} else if p, ok := p.(witness); ok {
			p.ended(e, r, &q)
		}
	}
	r.reqs = kept
}
