// Package engine models inference engines in virtual time: what one worker does with the requests
// sent to it, when first tokens and ends come, and which blocks its cache holds.
//
// Serial is the discrete-event model with a first-come-first-served prefill queue and decode without
// contention. Batch is continuous batching: steps of fixed, per-request and per-token cost, chunked
// prefill under a token budget, a KV pool with admission, prefix reuse and preemption. Both are
// deterministic integer arithmetic, know nothing of routers, and report through an Observer.
package engine

import (
	"math"
	"math/bits"
)

// Tick is the unit of Batch's clock: one picosecond. Forever means never.
const (
	TicksPerMicrosecond int64 = 1_000_000
	Forever             int64 = math.MaxInt64
)

// Cost is the duration of one step in ticks, as integer coefficients.
//
//	step = Step + PerRequest*R + PerContext*T + PerPrefill*P + PerPrefillSquare*S
//
// R counts the requests that decode in the step, T their context tokens (prompt and answer so far),
// P the prefill tokens of the step and S the growth of the square of each prefilled length: a chunk
// that takes a request from s to s+p tokens adds (s+p)²-s². Step is at least 1: time moves on.
type Cost struct {
	Step             int64
	PerRequest       int64
	PerContext       int64
	PerPrefill       int64
	PerPrefillSquare int64
}

// Scale returns the cost on a worker that runs at the given speed (1 is normal, 0.5 takes twice as
// long), each coefficient rounded to the nearest tick. Speed must be finite and above zero.
func (c Cost) Scale(speed float64) Cost {
	if speed == 1 {
		return c
	}
	div := func(v int64) int64 { return int64(math.Round(float64(v) / speed)) }
	return Cost{max(1, div(c.Step)), div(c.PerRequest), div(c.PerContext), div(c.PerPrefill), div(c.PerPrefillSquare)}
}

// decode returns the time of k consecutive decode steps without prefill: r requests, context tokens t
// in the first step and r more in each further one.
//
//	sum over j<k of Step + PerRequest*r + PerContext*(t + j*r)
func (c Cost) decode(k, r, t int64) int64 {
	one := addSat(c.Step, addSat(mulSat(c.PerRequest, r), mulSat(c.PerContext, t)))
	growth := mulSat(c.PerContext, mulSat(r, k*(k-1)/2))
	return addSat(mulSat(one, k), growth)
}

// prefill returns the extra time of one step that prefills p tokens with square growth s.
func (c Cost) prefill(p, s int64) int64 {
	return addSat(mulSat(c.PerPrefill, p), mulSat(c.PerPrefillSquare, s))
}

// mulSat multiplies two numbers that are not negative and stops at Forever.
func mulSat(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > uint64(Forever) {
		return Forever
	}
	return int64(lo)
}

// addSat adds two numbers that are not negative and stops at Forever.
func addSat(a, b int64) int64 {
	if s := a + b; s >= 0 {
		return s
	}
	return Forever
}
