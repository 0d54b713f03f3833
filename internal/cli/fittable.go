package cli

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/kvroute/kvroute/internal/decodelog"
	"github.com/kvroute/kvroute/internal/fit"
)

// fitWidth is how far paragraphs of the table go.
const fitWidth = 80

// writeFitTable prints a fit for people: the verdict first, then what it rests on.
func (a *app) writeFitTable(w io.Writer, r *fitted) error {
	b := &strings.Builder{}
	a.fitVerdict(b, r)
	if err := a.fitCoefficients(b, r); err != nil {
		return err
	}
	a.fitQuality(b, r)
	if a.outTerm || r.flags.ascii {
		b.WriteString(fitPicture(r.Bins, r.flags.ascii))
	}
	if err := a.fitRanks(b, r); err != nil {
		return err
	}
	fitRead(b, r)
	_, err := io.WriteString(w, b.String())
	return err
}

// paragraph prints wrapped text, its further lines indented.
func paragraph(b *strings.Builder, first, text string) {
	indent := strings.Repeat(" ", len([]rune(first)))
	for i, line := range wrap(printable(text), fitWidth-len(indent)) {
		if i > 0 {
			first = indent
		}
		b.WriteString(first + line + "\n")
	}
}

func (a *app) fitVerdict(b *strings.Builder, r *fitted) {
	b.WriteString(a.bold("verdict: "+string(r.Verdict)) + "\n")
	if flags, ok := r.paste(); ok {
		fmt.Fprintf(b, "W = %s tokens of context a request (5 to 95 %%: %s to %s)\n", a.bold(figure(r.Weight.Value)), figure(r.Weight.Low), figure(r.Weight.High))
		paragraph(b, "    ", fmt.Sprintf("One more request on the busiest rank lengthens a decode step as much as %s more tokens of context there.", figure(r.Weight.Value)))
		fmt.Fprintf(b, "\nflags for serve, sim and replay:\n  %s\n", flags)
	} else {
		paragraph(b, "", "No weight: this log does not tell what a request costs beside its tokens.")
	}
	for _, reason := range r.Reasons {
		b.WriteByte('\n')
		paragraph(b, fmt.Sprintf("  %s  ", grade(reason)), reason.Text+" ["+reason.Code+"]")
		if reason.Hint != "" {
			paragraph(b, "      -> ", reason.Hint)
		}
	}
}

// figure prints a number to three digits, with separators of thousands.
func figure(x float64) string {
	if math.IsNaN(x) {
		return "?"
	}
	if math.Abs(x) < 100 || math.IsInf(x, 0) {
		return strconv.FormatFloat(x, 'g', 3, 64)
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(x)))-2)
	return thousands(int64(math.Round(math.Round(x/unit) * unit)))
}

// thousands separates groups of three digits by commas.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

func (a *app) fitCoefficients(b *strings.Builder, r *fitted) error {
	g := &grid{head: []string{"step = a + b R + c T", "fitted", "5 %", "95 %", "plain"}, right: []bool{false, true, true, true, true}}
	row := func(name string, v fit.Interval, plain, unit float64) {
		g.add(name, figure(v.Value*unit), figure(v.Low*unit), figure(v.High*unit), figure(plain*unit))
	}
	row("a  ms", r.A, r.Plain[0], perMS)
	row("b  ms a request", r.B, r.Plain[1], perMS)
	row("c  ms a million tokens", r.C, r.Plain[2], perMSMillion)
	row("W  = b/c, tokens", r.Weight, r.Plain[1]/r.Plain[2], 1)
	b.WriteByte('\n')
	if len(r.Bins) == 0 {
		b.WriteString("nothing to fit\n")
		return nil
	}
	return g.writeTable(b, a.bold)
}

func (a *app) fitQuality(b *strings.Builder, r *fitted) {
	if len(r.Bins) == 0 {
		return
	}
	percent := func(x float64) string {
		if math.IsNaN(x) {
			return "?"
		}
		return fmt.Sprintf("%.1f %%", 100*x)
	}
	text := fmt.Sprintf("R2 %.2f, correlation of requests and tokens %.2f, %d of %d bins of %gs kept", r.R2, r.Corr, r.Kept, len(r.Bins), float64(r.BinNS)/1e9)
	text += fmt.Sprintf("; typical error %s, on the held-out end of the log %s.", percent(r.Insample), percent(r.Heldout))
	b.WriteByte('\n')
	paragraph(b, "", text)
}

// maxRanks is how many ranks the table shows one by one.
const maxRanks = 32

func (a *app) fitRanks(b *strings.Builder, r *fitted) error {
	if len(r.Ranks) < 2 {
		return nil
	}
	files := false
	for _, k := range r.Ranks {
		files = files || k.Source != r.Ranks[0].Source
	}
	g := &grid{head: []string{"rank", "lines", "requests", "tokens", "step ms", "busiest", "over median ms"}, right: []bool{false, true, true, true, true, true, true}}
	for i, k := range r.Ranks {
		if i == maxRanks {
			break
		}
		name := "-"
		if k.Rank != decodelog.NoRank {
			name = strconv.Itoa(int(k.Rank))
		}
		if files {
			name = printable(r.names[k.Source]) + " " + name
		}
		g.add(name, strconv.FormatInt(k.Samples, 10), figure(k.MeanRunning), figure(k.MeanHeld), figure(k.MeanStep*perMS),
			fmt.Sprintf("%.0f %%", 100*k.Busiest), fmt.Sprintf("%+.2f", k.Residual*perMS))
	}
	b.WriteByte('\n')
	if err := g.writeTable(b, a.bold); err != nil {
		return err
	}
	if n := len(r.Ranks) - maxRanks; n > 0 {
		fmt.Fprintf(b, "and %s more (-o json has all)\n", counts(int64(n), "rank"))
	}
	s := r.Spread
	text := fmt.Sprintf("The busiest rank has %s times the mean of requests and %s times that of tokens", figure(s.Requests), figure(s.Tokens))
	if r.Verdict != fit.Refused && !math.IsNaN(s.Saved) {
		text += fmt.Sprintf("; an even spread would save %.0f %% of the decode step time", 100*s.Saved)
	}
	b.WriteByte('\n')
	paragraph(b, "", text+".")
	if s.Straggler >= 0 {
		paragraph(b, "", r.straggler(&r.Ranks[s.Straggler], files))
	}
	return nil
}

// straggler says which rank is slower than the others, and what that does to them.
func (r *fitted) straggler(k *fit.Rank, files bool) string {
	name := fmt.Sprintf("Rank %d", k.Rank)
	switch {
	case k.Rank == decodelog.NoRank:
		name = r.names[k.Source]
	case files:
		name += " of " + r.names[k.Source]
	}
	if longer := k.Residual * perMS; longer >= 0.01 { // else a step is the same for all
		return fmt.Sprintf("%s is a straggler: its steps last %.2f ms longer than the median.", name, longer)
	}
	return name + " is a straggler: the others wait for it."
}

// fitRead tells what was read and what was left out.
func fitRead(b *strings.Builder, r *fitted) {
	l := r.log
	b.WriteByte('\n')
	paragraph(b, "read: ", fmt.Sprintf("%s of %s, %d of %d lines used, digest %s", counts(int64(len(r.names)), "file"), l.Engine, l.Used, l.Lines, l.Digest))
	if l.PoolFrom != "" {
		lo, hi := int64(math.MaxInt64), int64(0)
		for _, n := range l.PoolTokens {
			lo, hi = min(lo, n), max(hi, n)
		}
		size := thousands(lo)
		if lo != hi {
			size += " to " + thousands(hi)
		}
		paragraph(b, "pool: ", fmt.Sprintf("%s tokens a rank, from %s", size, l.PoolFrom))
	}
	for _, x := range leftOf(l.Left) {
		place := decodelog.Place{File: x.File, Line: x.Line}
		paragraph(b, "left out: ", fmt.Sprintf("%s, as %s (first at %s)", counts(x.Lines, "line"), x.Why, place))
	}
	for _, n := range l.Notes {
		paragraph(b, "note: ", n)
	}
}
