// Package fit finds the decode request weight in measured decode steps. A step of a group of data-parallel ranks
// that step together costs
//
//	y = a + b*R + c*T
//
// with R the requests and T the context tokens of the busiest rank, each the most on any rank. The weight W = b/c is
// the context, in tokens, that costs a step as much as one more request does. It says how far W can be trusted, and
// refuses where it cannot.
package fit

// Options set up a fit. Zero means the default, which is stated for each.
type Options struct {
	BinNS   int64   // length of a bin; default 3 s
	Draws   int     // of the bootstrap; default 400
	Seed    uint64  // of the bootstrap
	Holdout float64 // share of the bins, the last ones, that the held-out error is measured on; default 0.3
	Workers int     // goroutines; default GOMAXPROCS. The result does not depend on it.
}

// Interval is a value with its 5 to 95 % interval.
type Interval struct {
	Value, Low, High float64
}

// Bin is one row of the regression.
type Bin struct {
	AtNS                  int64   // begin
	Step                  float64 // s; median of the bin's samples
	Running               float64 // most requests on any rank
	Held                  float64 // most tokens on any rank
	MeanRunning, MeanHeld float64 // over ranks that printed
	Ranks                 int     // that printed in it
	Samples               int
	Kept                  bool    // not trimmed as an outlier
	Fitted                float64 // s
}

// Verdict is how far the weight can be trusted.
type Verdict string

// The verdicts.
const (
	Good    Verdict = "good"
	Weak    Verdict = "weak"
	Refused Verdict = "refused"
)

// Reason is one ground of a verdict that is not good, or a remark.
type Reason struct {
	Code    string // stable, as in docs/fit.md: "collinear", "few-bins", ...
	Refuses bool   // else it weakens, or (Remark) only tells
	Remark  bool
	Text    string // for an operator
	Hint    string // what to do about it; "" nothing
}

// Result is everything a fit found. Coefficients are those of the trimmed fit, W and all intervals too; Plain has
// the least squares over all bins.
type Result struct {
	Verdict Verdict
	Reasons []Reason
	Weight  Interval // tokens per request; NaN where it is not defined
	A       Interval // s
	B       Interval // s per request
	C       Interval // s per token
	Plain   [3]float64
	R2      float64
	Corr    float64 // of R and T over the kept bins
	Bins    []Bin
	Kept    int
	Heldout float64 // median absolute relative error on the held-out bins, fitted on the others; NaN: too few bins
	Ranks   []Rank
	Spread  Spread

	BinNS    int64 // length of a bin
	Unit     Unit  // what a row of Bins is
	Counts   Counts
	Insample float64 // median absolute relative error of the same fit on the bins it was fitted on
	Draws    int     // of the bootstrap that counted
	Blur     float64 // how much W may be too high, relative, as logs show tokens at moments, and rounded; the intervals include it
	Block    int     // its block, in bins
}

// Unit is which ranks wait for each other, found from the log: those are one row of the regression per bin.
type Unit string

// The units.
const (
	UnitAll    Unit = "all"    // all ranks step together
	UnitSource Unit = "source" // the ranks of one input step together
	UnitRank   Unit = "rank"   // every rank steps for itself: R and T are its own
)

// Counts is what became of the samples.
type Counts struct {
	Samples     int64 // handed over
	Used        int64 // in bins
	Prefill     int64 // left out: prefill ran meanwhile
	Late        int64 // left out: came when their bin had long been closed
	Bad         int64 // left out: step or requests not positive, or tokens negative or not a number
	PrefillBins int64 // rows left out, as one of their ranks prefilled
	Thinned     int64 // rows left out by chance to bound memory
}

// Rank is how one rank compares.
type Rank struct {
	Source, Rank                    int32
	Samples                         int64
	MeanRunning, MeanHeld, MeanStep float64
	Busiest                         float64 // share of the bins in which it had most requests; ranks that had as many share a bin
	Residual                        float64 // s; median of its steps less the bin's median: a straggler's is positive
}

// Spread is how unequal the ranks are, and what evenness would save.
type Spread struct {
	Requests, Tokens float64 // busiest over mean, mean over bins; NaN with one rank
	Saved            float64 // share of the fitted step time that an even spread would save; NaN with one rank
	Straggler        int     // index into Ranks of a rank that explains the step time; -1: none
}
