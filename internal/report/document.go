package report

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// ScorerFlags are the flags that decide (as against those that describe the fleet), in the order they
// are pasted in.
func ScorerFlags() []string {
	return []string{
		"router-policy", "kv-overlap-weight", "kv-prefill-overlap-weight", "kv-decode-overlap-weight", "kv-recent-weight",
		"prefix-threshold", "decode-input-demand", "decode-request-weight", "session-affinity",
	}
}

// Axis is one swept flag with its values in the order given.
type Axis struct {
	Flag   string `json:"flag"`
	Values []any  `json:"values"`
}

// Sweep says how the runs of a sweep came about.
type Sweep struct {
	Axes    []Axis `json:"axes"`
	Repeats int    `json:"repeats"` // the trace itself, then Repeats-1 resamples of it
}

// Document is the whole result of one command.
type Document struct {
	Schema         string          `json:"schema"`
	Version        string          `json:"version"`
	Seed           uint64          `json:"seed"`
	Flags          map[string]any  `json:"flags"` // the effective flags of the command
	Trace          Trace           `json:"trace"`
	Sweep          *Sweep          `json:"sweep,omitempty"`
	Runs           []Run           `json:"runs"`
	Recommendation *Recommendation `json:"recommendation"`
	Changes        *Changes        `json:"changes,omitempty"` // on recordings: the two runs compared
}

// Formats are the names Write knows.
func Formats() []string { return []string{"table", "json", "jsonl", "csv"} }

// CheckFormat returns an error with the nearest names unless Write knows the format.
func CheckFormat(format string) error {
	if slices.Contains(Formats(), format) {
		return nil
	}
	hint := DidYouMean(format, Formats())
	if hint == "" {
		hint = "one of " + strings.Join(Formats(), ", ")
	}
	return &HintError{fmt.Errorf("unknown output format %q", format), hint}
}

// Write prints the document. The same document gives the same bytes.
func (d *Document) Write(w io.Writer, format string) error {
	if err := CheckFormat(format); err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	var err error
	switch format {
	case "json":
		err = d.writeJSON(out)
	case "jsonl":
		err = d.writeJSONL(out)
	case "csv":
		err = d.writeCSV(out)
	case "table":
		err = d.writeTable(out)
	}
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return fmt.Errorf("writing the report as %s: %w", format, err)
	}
	return nil
}

// complete returns the document with what JSON should show as empty rather than null, and its schema.
func (d *Document) complete() Document {
	c := *d
	c.Schema = Schema
	if c.Flags == nil {
		c.Flags = map[string]any{}
	}
	c.Runs = make([]Run, len(d.Runs))
	for i, r := range d.Runs {
		c.Runs[i] = r.complete()
	}
	return c
}

func (r Run) complete() Run {
	if r.Flags == nil {
		r.Flags = map[string]any{}
	}
	if r.RequestsPerWorker == nil {
		r.RequestsPerWorker = []int64{}
	}
	if r.MissBlocksPerWorker == nil {
		r.MissBlocksPerWorker = []int64{}
	}
	return r
}

func (d *Document) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(d.complete())
}

func (d *Document) writeJSONL(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for i := range d.Runs {
		if err := enc.Encode(d.Runs[i].complete()); err != nil {
			return err
		}
	}
	return nil
}

// writeCSV prints one line a run: policy, kind, the flags any run has, then the numbers. Lists are
// separated by spaces; what a run does not know is empty.
func (d *Document) writeCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	flags := d.flagColumns()
	head := []string{"policy", "kind"}
	head = append(head, flags...)
	head = append(head, "workers", "capacity_blocks", "hit_blocks", "hit_rate", "hit_tokens", "token_hit_rate",
		"requests_per_worker", "miss_blocks_per_worker", "imbalance", "picks_digest", "predicted_hit_blocks")
	sim := slices.ContainsFunc(d.Runs, func(r Run) bool { return r.Sim != nil })
	if sim {
		for _, name := range []string{"ttft", "itl", "e2e", "queue"} {
			for _, part := range []string{"sum", "mean", "p50", "p90", "p99", "max"} {
				head = append(head, name+"_"+part+"_us")
			}
		}
		head = append(head, "makespan_us", "peak_active_blocks", "preemptions", "completed", "lost", "rejected")
	}
	if err := out.Write(head); err != nil {
		return err
	}
	for i := range d.Runs {
		r := &d.Runs[i]
		row := []string{r.Policy, r.Kind}
		for _, f := range flags {
			v, ok := r.Flags[f]
			if !ok {
				row = append(row, "")
				continue
			}
			row = append(row, FlagValue(v))
		}
		row = append(row, strconv.Itoa(r.Workers), decimal(r.CapacityBlocks), decimal(r.HitBlocks), float(r.HitRate),
			decimal(r.HitTokens), float(r.TokenHitRate), list(r.RequestsPerWorker), list(r.MissBlocksPerWorker),
			float(r.Imbalance), r.PicksDigest, decimal(r.PredictedHitBlocks))
		if sim {
			row = append(row, simColumns(r.Sim)...)
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func simColumns(s *Sim) []string {
	if s == nil {
		return make([]string, 4*6+6)
	}
	var row []string
	for _, d := range s.times() {
		if !s.known(d) {
			row = append(row, make([]string, 6)...)
			continue
		}
		row = append(row, decimal(d.Sum), float(d.Mean), decimal(d.P50), decimal(d.P90), decimal(d.P99), decimal(d.Max))
	}
	return append(row, decimal(s.MakespanUS), decimal(s.PeakActiveBlocks), decimal(s.Preemptions), decimal(s.Completed),
		decimal(s.Lost), decimal(s.Rejected))
}

// flagColumns returns the flags that get a column: those of any run, less the ones every run states
// anyway, in the order of Order.
func (d *Document) flagColumns() []string {
	seen := map[string]bool{"router-policy": true, "workers": true}
	var out []string
	for i := range d.Runs {
		for name := range d.Runs[i].Flags {
			if !seen[name] {
				seen[name] = true
				out = append(out, name)
			}
		}
	}
	return d.order(out)
}

// order sorts flag names: swept ones in the order of the axes, then the scorer's, then the rest by name.
func (d *Document) order(names []string) []string {
	place := map[string]int{}
	add := func(name string) {
		if _, ok := place[name]; !ok {
			place[name] = len(place)
		}
	}
	if d.Sweep != nil {
		for _, a := range d.Sweep.Axes {
			add(a.Flag)
		}
	}
	for _, f := range ScorerFlags() {
		add(f)
	}
	slices.SortFunc(names, func(a, b string) int {
		pa, oka := place[a]
		pb, okb := place[b]
		switch {
		case oka && okb:
			return pa - pb
		case oka:
			return -1
		case okb:
			return 1
		}
		return strings.Compare(a, b)
	})
	return names
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
func float(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

func list(ns []int64) string {
	var b strings.Builder
	for i, n := range ns {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(decimal(n))
	}
	return b.String()
}

// FlagValue prints a flag's value as it is typed.
func FlagValue(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

// FlagsText words flags ready to paste: "--router-policy kv-aware --kv-overlap-weight 4".
func FlagsText(flags map[string]any) string {
	var names []string
	for name := range flags {
		names = append(names, name)
	}
	var b strings.Builder
	for _, name := range (&Document{}).order(names) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString("--" + name)
		if v := FlagValue(flags[name]); strings.HasPrefix(v, "-") || v == "" {
			b.WriteString("=" + v)
		} else {
			b.WriteString(" " + v)
		}
	}
	return b.String()
}

// Label names a run in a line: its policy and flags.
func Label(r *Run) string {
	var names []string
	for name := range r.Flags {
		if name != "router-policy" {
			names = append(names, name)
		}
	}
	text := r.Policy
	for _, name := range (&Document{}).order(names) {
		text += " " + name + "=" + FlagValue(r.Flags[name])
	}
	return text
}

// fleet is what of a run's flags is not the scorer's, as a comparable text.
func fleet(r *Run) string {
	var names []string
	for name := range r.Flags {
		if !slices.Contains(ScorerFlags(), name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	text := ""
	for _, name := range names {
		text += name + "=" + FlagValue(r.Flags[name]) + "\n"
	}
	return text
}

// Fleet groups runs that can be compared: runs with equal texts differ in scorer flags only.
func Fleet(r *Run) string { return fmt.Sprintf("%d\n%d\n%s", r.Workers, r.CapacityBlocks, fleet(r)) }
