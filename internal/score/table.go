package score

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"
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
	{"variant", false, func(t *Terms) float64 { return float64(t.Candidate.Variant) }},
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
	parts := d.fold(d.shown())
	for i, cols := range parts {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := d.writePart(w, cols, len(parts) > 1, i == len(parts)-1); err != nil {
			return err
		}
	}
	fmt.Fprintln(w, d.verdict())
	_, err := out.Write(w.Bytes())
	return err
}

// gap stands in front of every column of the table.
const gap = 2

// fold divides the columns into parts that fit a line of 80, each of at least one column. With several
// parts heads have two lines, so that there are few.
func (d *Decision) fold(cols []column) [][]column {
	const line = 80
	first := gap + 1 + gap + len("candidate")
	for i := range d.Terms {
		first = max(first, gap+1+gap+utf8.RuneCountInString(printable(d.Terms[i].Candidate.Key)))
	}
	cells := make([]int, len(cols))
	whole := first
	for k, c := range cols {
		for i := range d.Terms {
			cells[k] = max(cells[k], len(c.text(&d.Terms[i])))
		}
		whole += gap + max(cells[k], len(c.name))
	}
	if whole <= line {
		return [][]column{cols}
	}
	var parts [][]column
	used := line
	for k, c := range cols {
		upper, lower := c.head()
		need := gap + max(cells[k], len(upper), len(lower))
		if used+need > line && (used > first || len(parts) == 0) {
			parts, used = append(parts, nil), first
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], c)
		used += need
	}
	return parts
}

// head is the column's name in two lines, the upper one often empty.
func (c *column) head() (upper, lower string) {
	if upper, lower, ok := strings.Cut(c.name, " "); ok {
		return upper, lower
	}
	return "", c.name
}

// writePart prints some of the columns for every candidate; the notes come with the last ones.
func (d *Decision) writePart(w io.Writer, cols []column, twoLines, last bool) error {
	var b bytes.Buffer
	tw := tabwriter.NewWriter(&b, 0, 0, gap, ' ', tabwriter.AlignRight|tabwriter.DiscardEmptyColumns)
	upper, lower, two := []string{"", ""}, []string{"", "candidate"}, false
	for _, c := range cols {
		up, low := c.head()
		if !twoLines {
			up, low = "", c.name
		}
		two = two || up != ""
		upper, lower = append(upper, up), append(lower, low)
	}
	if two {
		fmt.Fprintln(tw, strings.Join(upper, "\t")+"\t")
	}
	fmt.Fprintln(tw, strings.Join(lower, "\t")+"\t")
	for i := range d.Terms {
		t := &d.Terms[i]
		mark := ""
		if i == d.Picked {
			mark = "*"
		}
		row := []string{mark, printable(t.Candidate.Key)}
		for _, c := range cols {
			row = append(row, c.text(t))
		}
		end := ""
		if last {
			end = note(t)
		}
		fmt.Fprintln(tw, strings.Join(row, "\t")+"\t"+end)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
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
	switch doubt := t.Candidate.Doubt; {
	case doubt != "" && t.Note != "":
		return "  " + printable(t.Note) + "; in doubt: " + printable(doubt)
	case doubt != "":
		return "  in doubt: " + printable(doubt)
	case t.Note != "":
		return "  " + printable(t.Note)
	}
	return ""
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
