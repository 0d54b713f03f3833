package fit

import (
	"math"

	"github.com/kvroute/kvroute/internal/decodelog"
)

// rounding sums up what rounding of shares of the pool does to the tokens held.
type rounding struct {
	squares float64 // of the errors, tokens
	lines   int64
	same    int64 // of them with as many tokens as the line before, so that the error is the same, too
}

func (f *Fitter) round(s *decodelog.Sample, before *rankTotals) {
	if s.HeldError == 0 {
		return
	}
	f.rounded.squares += float64(s.HeldError * s.HeldError)
	f.rounded.lines++
	if before.samples > 0 && s.Held == before.held {
		f.rounded.same++
	}
}

// coarseness is the variance of the tokens of a row that comes from rounding. A row is the mean of the n lines of a bin, each
// of them the mean of two, so that of n+1 lines the first and the last count half. Lines with the same error count as one.
func (f *Fitter) coarseness(binNS int64) float64 {
	if f.rounded.lines == 0 {
		return 0
	}
	n := 1 + float64((f.perBin(binNS)-1)*(1-float64(f.rounded.same)/float64(f.rounded.lines)))
	return f.rounded.squares / float64(f.counts.Samples) * (n - 0.5) / float64(n*n)
}

// roundingError is the usual error of the tokens of a line that is rounded.
func (f *Fitter) roundingError() float64 {
	return math.Sqrt(f.rounded.squares / float64(f.rounded.lines))
}
