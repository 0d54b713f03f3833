package fit

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/kvroute/kvroute/internal/decodelog"
)

// Limits of the verdict. They were set before any log was judged by them; docs/fit.md has them in words.
const (
	minBins   = 30   // fewer are refused
	thinBins  = 60   // fewer are weak
	maxCorr   = 0.95 // of R and T
	minR2     = 0.3
	goodWidth = 1.06 // most high/low of a good weight: 5 % off would be nearly three standard deviations
	wideWidth = 3.0  // from here on only the order of magnitude is known
	minKept   = 0.8  // share of the bins
)

// Codes of reasons. They are stable: scripts look at them.
const (
	CodeNoBins      = "no-bins"
	CodeFewBins     = "few-bins"
	CodeNoTokens    = "no-tokens"
	CodeRequests    = "constant-requests"
	CodeTokens      = "constant-tokens"
	CodeCollinear   = "collinear"
	CodeBNegative   = "requests-cost-nothing"
	CodeCNegative   = "tokens-cost-nothing"
	CodeReachesZero = "interval-reaches-zero"
	CodeWide        = "wide-interval"
	CodeImprecise   = "imprecise"
	CodeLowR2       = "low-r2"
	CodePrefill     = "prefill"
	CodeOneRank     = "one-rank"
	CodeMissing     = "missing-ranks"
	CodeSeveral     = "several-engines"
	CodeOutliers    = "outliers"
	CodeDrift       = "drift"
	CodeCurved      = "curved"
	CodeBinLength   = "bin-length"
	CodeMoments     = "moments"
	CodeCoarse      = "coarse-tokens"
	CodeLimits      = "step-limits"
	CodeStraggler   = "straggler"
	CodeCoupling    = "unclear-coupling"
	CodeGraphs      = "graphs"
	CodeLeftOut     = "left-out"
	CodeIndependent = "independent-ranks"
	CodeLongBins    = "longer-bins"
	CodeThinned     = "thinned"
)

// Codes returns the codes of all reasons there are.
func Codes() []string {
	return []string{
		CodeNoBins, CodeFewBins, CodeNoTokens, CodeRequests, CodeTokens, CodeCollinear, CodeBNegative, CodeCNegative,
		CodeReachesZero, CodeWide, CodeImprecise, CodeLowR2, CodePrefill, CodeOneRank, CodeMissing, CodeSeveral, CodeOutliers, CodeDrift,
		CodeCurved, CodeBinLength, CodeMoments, CodeCoarse, CodeLimits, CodeStraggler, CodeCoupling, CodeGraphs, CodeLeftOut, CodeIndependent, CodeLongBins, CodeThinned,
	}
}

// Hints that several reasons share.
const (
	hintVary = "vary both concurrency and context: for an hour, short and long prompts mixed, with the number of " +
		"clients going up and down between a few and the most that production has"
	hintLonger = "take a longer log with more variety: an hour of production traffic, or a benchmark that varies both " +
		"concurrency and context"
)

// evidence is what a verdict is made from.
type evidence struct {
	f        *Fitter
	res      *Result
	design   *design
	est      *estimate
	coupling float64
	coarse   *table
	rankRows *table
}

func (e *evidence) refuse(code, hint, format string, args ...any) {
	e.res.Reasons = append(e.res.Reasons, Reason{Code: code, Refuses: true, Text: fmt.Sprintf(format, args...), Hint: hint})
}

func (e *evidence) weaken(code, hint, format string, args ...any) {
	e.res.Reasons = append(e.res.Reasons, Reason{Code: code, Text: fmt.Sprintf(format, args...), Hint: hint})
}

func (e *evidence) remark(code, format string, args ...any) {
	e.res.Reasons = append(e.res.Reasons, Reason{Code: code, Remark: true, Text: fmt.Sprintf(format, args...)})
}

func (e *evidence) has(code string) bool {
	return slices.ContainsFunc(e.res.Reasons, func(r Reason) bool { return r.Code == code })
}

// judge finds the reasons and, from them, the verdict: refused if one refuses, else weak if one weakens, else good.
func judge(e *evidence) {
	e.data()
	e.limits()
	if e.est.ok && !e.has(CodeNoBins) {
		e.plane()
		e.weight()
		e.moments()
		e.model()
	}
	e.remarks()
	slices.SortStableFunc(e.res.Reasons, func(x, y Reason) int { return x.grade() - y.grade() })
	e.res.Verdict = Good
	for _, r := range e.res.Reasons {
		switch {
		case r.Refuses:
			e.res.Verdict = Refused
			return
		case !r.Remark:
			e.res.Verdict = Weak
		}
	}
}

func (r Reason) grade() int {
	switch {
	case r.Refuses:
		return 0
	case r.Remark:
		return 2
	}
	return 1
}

// data judges what there is to fit.
func (e *evidence) data() {
	c, bins := &e.res.Counts, e.design.bins()
	if total := c.PrefillBins + int64(len(e.design.rows)) + c.Thinned; total > 0 {
		share := float64(c.PrefillBins) / float64(total)
		hint := "take the log of a decode-only worker, or one in which all prompts are sent first"
		switch text := "prefill ran in %.0f %% of the bins, which then do not show decode steps: this is a server that does both"; {
		case share > 0.5:
			e.refuse(CodePrefill, hint, text, 100*share)
		case share > 0.1:
			e.weaken(CodePrefill, hint, text, 100*share)
		case share > 0:
			e.remark(CodePrefill, "prefill ran in %.1f %% of the bins, which are left out", 100*share)
		}
	}
	if bins == 0 {
		e.refuse(CodeNoBins, "", "no decode step is left to fit: %d samples, %d of them with prefill", c.Samples, c.Prefill)
		return
	}
	e.ranks()
	length := time.Duration(e.res.BinNS)
	if bins < minBins {
		e.refuse(CodeFewBins, hintLonger, "bins of %s with decode steps: %d, and %d are the least", length, bins, minBins)
	} else if bins < thinBins {
		e.weaken(CodeFewBins, hintLonger, "bins of %s with decode steps: %d, and %d or more would say more", length, bins, thinBins)
	}
	if !e.f.held {
		e.refuse(CodeNoTokens, "give the pool of a rank in tokens (--pool-tokens), or take a log that tells the tokens held",
			"the log tells requests but no tokens held, so that their costs cannot be told apart")
		return
	}
	e.ranges()
	if !e.has(CodeRequests) && !e.has(CodeTokens) && !e.has(CodeCollinear) { // waves of equal requests come in turn, too
		e.turns()
	}
}

// ranges judges whether requests and tokens vary enough, and not together.
func (e *evidence) ranges() {
	lowR, highR := extent(e.design.cols.r)
	lowT, highT := extent(e.design.cols.t)
	if highR-lowR < 0.5 {
		e.refuse(CodeRequests, hintVary, "the busiest rank had nearly always the same number of requests (%.3g to %.3g): what one more costs does not show", lowR, highR)
	}
	if highT-lowT < 0.1*highT {
		e.refuse(CodeTokens, hintVary, "the busiest rank held nearly always the same number of tokens (%s to %s): what they cost does not show", tokens(lowT), tokens(highT))
	}
	corr := math.Abs(e.est.corr)
	if all := math.Abs(correlation(e.design.cols.r, e.design.cols.t)); all > corr {
		corr = all
	}
	if corr > maxCorr {
		e.refuse(CodeCollinear, hintVary, "requests and tokens rise and fall together (correlation %.2f), as when all prompts are equally long: what each of them costs cannot be told apart", corr)
	}
}

// extent is where the middle 96 % lie.
func extent(v []float64) (low, high float64) {
	s := slices.Clone(v)
	return quantile(s, 0.02), quantile(s, 0.98)
}

// ranks judges whether the busiest rank can be among those seen.
func (e *evidence) ranks() {
	if e.res.Unit == UnitRank {
		return
	}
	seen := map[int32]bool{}
	top := int32(-1)
	for i := range e.f.ranks {
		r := e.f.ranks[i].key.rank
		seen[r] = true
		top = max(top, r)
	}
	if r := e.f.report; r != nil {
		for _, rank := range r.Ranks {
			top = max(top, rank)
		}
		for rank := range r.PoolTokens { // ranks say at the start what they can hold, then some never print
			top = max(top, rank)
		}
	}
	if top < 0 {
		return
	}
	hint := "give the logs of all ranks; if ranks were idle, spread the load so that each gets requests"
	if len(seen) == 1 {
		// vLLM numbers the one engine, too.
		if top == 0 && e.f.report != nil && e.f.report.Engine != decodelog.SGLang {
			return
		}
		only := fmt.Sprintf("rank %d prints", e.f.ranks[0].key.rank)
		if e.f.ranks[0].key.rank == decodelog.NoRank {
			only = "lines without a rank tell"
		}
		e.refuse(CodeOneRank, hint, "only %s decode steps, although the log names ranks: the others are idle or not in this log, and if one of them is busier, steps wait for it unseen", only)
		return
	}
	var missing []int32
	for r := range top + 1 {
		if !seen[r] {
			missing = append(missing, r)
		}
	}
	switch {
	case len(missing) > 0:
	case e.res.Unit == UnitSource:
		e.apart(top)
	default:
		e.strangers()
	}
	if len(missing) > 0 {
		e.refuse(CodeMissing, hint, "ranks %s of 0 to %d print no decode steps: they are idle or not in this log, and if one of them is busier, steps wait for it unseen", list(missing), top)
	}
}

// list prints the first few of v.
func list(v []int32) string {
	s := ""
	for i, x := range v {
		switch {
		case i == 8:
			return s + ", ..."
		case i > 0:
			s += ", "
		}
		s += fmt.Sprint(x)
	}
	return s
}

// plane judges the coefficients and how well they describe the steps.
func (e *evidence) plane() {
	p := e.est.trim
	if !(p[1] > 0) {
		e.refuse(CodeBNegative, hintVary, "more requests do not lengthen the step in this log (%.3g ms a request)", 1e3*p[1])
	}
	if !(p[2] > 0) {
		e.refuse(CodeCNegative, "with sliding windows or little attention work that may be so; then requests alone count, and a weight in tokens has no meaning",
			"more tokens do not lengthen the step in this log (%.3g ms a million tokens)", 1e9*p[2])
	}
	_, highT := extent(e.design.cols.t)
	if steps := median(slices.Clone(e.design.cols.y)); p[2] > 0 && p[2]*highT < 0.01*steps {
		e.refuse(CodeCNegative, "with sliding windows or little attention work that may be so; then requests alone count, and a weight in tokens has no meaning",
			"all tokens held together lengthen the step by less than a hundredth in this log")
	}
	if !(e.est.r2 >= minR2) {
		e.refuse(CodeLowR2, "take the log of a decode-only worker without other load", "requests and tokens explain only %.0f %% of how step times differ: something else decides, such as prefill in between", 100*max(0, e.est.r2))
	}
	if share := float64(e.est.n) / float64(len(e.design.rows)); share < minKept {
		e.weaken(CodeOutliers, "look for what else ran: pauses, profiling, other processes", "%.0f %% of the bins do not lie near any plane and were left out", 100*(1-share))
	}
}

// weight judges the interval of the weight.
func (e *evidence) weight() {
	w := e.res.Weight
	if !(e.est.trim[1] > 0 && e.est.trim[2] > 0) {
		return
	}
	from, to := "below 0", "no bound"
	if w.Low > 0 {
		from = tokens(w.Low) + " tokens"
	}
	if w.High > 0 && !math.IsInf(w.High, 0) {
		to = tokens(w.High) + " tokens"
	}
	switch {
	case !(w.Low > 0) || !(w.High > 0) || math.IsInf(w.High, 0):
		e.refuse(CodeReachesZero, hintVary, "the weight cannot be told from none, or from one without bound: the 5 to 95 %% interval reaches from %s to %s", from, to)
	case w.High/w.Low > wideWidth:
		e.weaken(CodeWide, hintVary, "the weight is known only by its order of magnitude: the 5 to 95 %% interval spans a factor of %.1f", w.High/w.Low)
	case w.High/w.Low > goodWidth:
		e.weaken(CodeImprecise, hintLonger, "the weight is known to a factor of %.2f only (5 to 95 %% interval %s to %s tokens)", w.High/w.Low, tokens(w.Low), tokens(w.High))
	}
}

// moments judges whether lines come often enough.
func (e *evidence) moments() {
	if e.res.Blur <= 0.05 {
		return
	}
	if e.f.coarseness(e.res.BinNS) > e.f.blur(e.res.BinNS) {
		e.weaken(CodeCoarse, "take a log with longer contexts, or of a smaller pool; of vLLM scrape the metrics, which are exact",
			"shares of the pool are told rounded, which blurs the tokens held by %s or so: the weight may come out too high by %.0f %%",
			tokens(e.f.roundingError()), 100*e.res.Blur)
	} else {
		e.weaken(CodeMoments, "let the engine print more often (SGLang: --decode-log-interval 10; vLLM: scrape the metrics every second)",
			"lines show what ranks held at moments too far apart for what changes between them: the weight may come out too high by %.0f %%", 100*e.res.Blur)
	}
}

// remarks tells what an operator should know, and weakens where much was left out.
func (e *evidence) remarks() {
	c := &e.res.Counts
	if lost := c.Late + c.Bad; c.Samples > 0 && float64(lost) > 0.05*float64(c.Samples) {
		e.weaken(CodeLeftOut, "give files in the order of their times, and one engine's only", "%.0f %% of the samples were left out: %d far too late for their bin, %d that cannot be", 100*float64(lost)/float64(c.Samples), c.Late, c.Bad)
	} else if lost > 0 {
		e.remark(CodeLeftOut, "%d samples came far too late for their bin and %d cannot be: left out", c.Late, c.Bad)
	}
	if g := e.f.graphs; min(g.on, g.off)*20 > g.on+g.off {
		e.weaken(CodeGraphs, "capture graphs for all batch sizes that occur, or take a log without the others", "%.0f %% of the steps ran without a captured graph, which costs more whatever they hold", 100*float64(g.off)/float64(g.on+g.off))
	}
	if e.res.Unit == UnitRank {
		e.remark(CodeIndependent, "ranks do not wait for each other: every rank is fitted with its own requests and tokens")
	}
	if e.res.BinNS > e.f.opt.BinNS {
		e.remark(CodeLongBins, "bins are %g s long, not %g s, as ranks print less often than that", float64(e.res.BinNS)/1e9, float64(e.f.opt.BinNS)/1e9)
	}
	if c.Thinned > 0 {
		e.remark(CodeThinned, "this log is so long that %d of its %d bins were used, picked by chance", len(e.design.rows), c.Thinned+int64(len(e.design.rows)))
	}
}

// tokens writes a number of tokens with three digits that count, thousands apart.
func tokens(x float64) string {
	switch {
	case math.IsInf(x, 1):
		return "infinitely many"
	case math.IsNaN(x) || math.IsInf(x, -1):
		return "unknown"
	}
	if unit := math.Pow(10, math.Floor(math.Log10(math.Abs(x)))-2); unit > 1 {
		x = math.Round(x/unit) * unit
	}
	s := strconv.FormatFloat(math.Round(x), 'f', -1, 64)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
