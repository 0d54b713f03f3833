package score

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// column is one term in the table. Columns that are zero for all candidates are left out unless they
// are always wanted.
type column struct {
	name   string
	always bool
	value  func(t *Terms) float64
}

// slowColumn has an unknown value, 0.
const slowColumn = "slow"

var columns = []column{
	{"blocks", true, func(t *Terms) float64 { return float64(t.Blocks) }},
	{"hits", true, func(t *Terms) float64 { return float64(t.Hits) }},
	{"misses", true, func(t *Terms) float64 { return float64(t.Blocks - t.Hits) }},
	{"hit tokens", false, func(t *Terms) float64 { return float64(t.HitTokens) }},
	{"active blocks", true, func(t *Terms) float64 { return float64(t.Load.ActiveBlocks) }},
	{"pending tokens", false, func(t *Terms) float64 { return float64(t.Load.PendingTokens) }},
	{"pending requests", false, func(t *Terms) float64 { return float64(t.Load.PendingRequests) }},
	{"held tokens", false, func(t *Terms) float64 { return float64(t.Load.HeldTokens) }},
	{"held requests", false, func(t *Terms) float64 { return float64(t.Load.HeldRequests) }},
	{"recent", false, func(t *Terms) float64 { return t.Recent }},
	{"computed", false, func(t *Terms) float64 { return float64(t.Computed) }},
	{"image hits", false, func(t *Terms) float64 { return float64(t.ImageHits) }},
	{slowColumn, false, func(t *Terms) float64 { return t.Slow }},
	{"demand", false, func(t *Terms) float64 { return t.Demand }},
	{"cost", true, func(t *Terms) float64 { return t.Cost }},
	{"tie", false, func(t *Terms) float64 { return t.Tie }},
}

// hitWeightColumn is shown only where lower tiers make it differ from hits.
var hitWeightColumn = column{"hit weight", true, func(t *Terms) float64 { return t.HitWeight }}

// Table prints the decision for people: what was known of the request, every candidate with its
// terms, and why the winner won.
func (d *Decision) Table(out io.Writer) error {
	w := new(bytes.Buffer)
	fmt.Fprintf(w, "policy %s, role %s, basis %s", printable(d.Policy), d.Role, printable(string(d.Basis)))
	if d.Reason != "" {
		fmt.Fprintf(w, " (%s)", printable(d.Reason))
	}
	if d.Policy == KVAware || d.Policy == LeastLoad {
		fmt.Fprintf(w, ", weight %s", short(d.Weight))
	}
	exact := "estimated"
	if d.TokensExact {
		exact = "exact"
	}
	fmt.Fprintf(w, ", %d input tokens (%s)", d.Tokens, exact)
	if d.Images > 0 {
		fmt.Fprintf(w, ", %d images", d.Images)
	}
	if d.Session != BoundNone {
		fmt.Fprintf(w, ", session %s", printable(string(d.Session)))
	}
	fmt.Fprintln(w)
	cols := d.shown()
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight|tabwriter.DiscardEmptyColumns)
	row := make([]string, 0, len(cols)+3)
	row = append(row, "", "candidate")
	for _, c := range cols {
		row = append(row, c.name)
	}
	fmt.Fprintln(tw, strings.Join(row, "\t")+"\t")
	for i := range d.Terms {
		t := &d.Terms[i]
		mark := ""
		if i == d.Picked {
			mark = "*"
		}
		row = append(row[:0], mark, printable(t.Candidate.Key))
		for _, c := range cols {
			row = append(row, c.text(t))
		}
		fmt.Fprintln(tw, strings.Join(row, "\t")+"\t"+note(t))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, d.verdict())
	_, err := out.Write(w.Bytes())
	return err
}

// text is the column's value, or ? where 0 means that it is not known.
func (c *column) text(t *Terms) string {
	v := c.value(t)
	if v == 0 && c.name == slowColumn {
		return "?"
	}
	return short(v)
}

func note(t *Terms) string {
	if t.Note == "" {
		return ""
	}
	return "  " + printable(t.Note)
}

func (d *Decision) shown() []column {
	var out []column
	for _, c := range columns {
		show, tiers := c.always, false
		for i := range d.Terms {
			t := &d.Terms[i]
			show = show || c.value(t) != 0
			tiers = tiers || t.HitWeight != float64(t.Hits)
		}
		if show {
			out = append(out, c)
		}
		if c.name == "hits" && tiers {
			out = append(out, hitWeightColumn)
		}
	}
	return out
}

// verdicts say in words what each rule means.
var verdicts = map[Rule]string{
	ByCost:     "lowest cost",
	ByLoad:     "lowest costs are equal: the lesser load",
	ByComputed: "lowest costs are equal: the target that computed fewer blocks",
	ByHeld:     "costs and loads are equal, and no blocks to book: the fewest held requests",
	ByOrder:    "costs and ties are equal: the first in route-key order",
	ByOnly:     "the only eligible candidate",
	ByTurn:     "its turn in the rotation",
	ByDraw:     "drawn at random",
	BySession:  "the session is bound to it",
	ByDemand:   "lowest projected decode demand",
}

func (d *Decision) verdict() string {
	if d.Picked < 0 || d.Picked >= len(d.Terms) {
		return "nothing picked"
	}
	why := verdicts[d.TieRule]
	if why == "" {
		why = "a rule of another version"
	}
	text := fmt.Sprintf("picked %s by %s: %s", printable(d.PickedTerms().Candidate.Key), printable(string(d.TieRule)), why)
	if d.Suggested >= 0 && d.Suggested < len(d.Terms) && d.Suggested != d.Picked {
		text += fmt.Sprintf("; decode demand suggests %s", printable(d.Terms[d.Suggested].Candidate.Key))
	}
	if d.Original >= 0 && d.Original < len(d.Terms) && d.Original != d.Picked {
		text += fmt.Sprintf("; without decode demand %s", printable(d.Terms[d.Original].Candidate.Key))
	}
	return text
}

// short prints a number with at most three decimals.
func short(v float64) string {
	s := strconv.FormatFloat(v, 'f', 3, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// printable keeps names from reaching the terminal as control characters or breaking columns.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
