package report

import (
	"fmt"
	"io"
	"strings"
)

// Kinds of the two runs of a comparison.
const (
	KindRecorded = "recorded" // what the router decided
	KindReplayed = "replayed" // what the given flags decide on the same requests, events and load
)

// Caveat says what a comparison on a recording cannot know.
const Caveat = "events and times are the recorded ones: caches fill, and requests end, as they did, wherever a request is sent now"

// Changes compares the decisions of a recording with those that other flags make.
type Changes struct {
	Run       string   `json:"run"`     // of the router
	Program   string   `json:"program"` // version that recorded it
	Model     string   `json:"model"`
	Parts     int      `json:"parts"`
	Complete  bool     `json:"complete"`   // the router closed the recording, and nothing is missing
	Missing   string   `json:"incomplete"` // why not; "" where it is
	Workers   []string `json:"workers"`    // by their number in runs
	Decisions int64    `json:"decisions"`
	Changed   int64    `json:"changed"`
	Share     float64  `json:"changed_share"`
	Moves     []Move   `json:"moves"` // most frequent first
	Recorded  Forecast `json:"recorded"`
	Replayed  Forecast `json:"replayed"`
	Caveat    string   `json:"caveat"`
}

// Move is decisions that changed from one worker to another.
type Move struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Count int64  `json:"count"`
}

// Forecast is what decisions expected where they sent their requests.
type Forecast struct {
	HitBlocks     int64   `json:"predicted_hit_blocks"`
	HitTokens     int64   `json:"predicted_hit_tokens"`
	MissBlocks    int64   `json:"predicted_miss_blocks"`
	Imbalance     float64 `json:"imbalance"`           // requests of the busiest worker over the mean
	PendingTokens float64 `json:"pending_tokens_mean"` // prompt tokens still to be computed in front of a request
	HeldRequests  float64 `json:"held_requests_mean"`  // requests in flight where it went
	ActiveBlocks  float64 `json:"active_blocks_mean"`  // distinct blocks in flight there
}

// maxMoves is how many moves the table shows.
const maxMoves = 12

// writeChanges is the table of a comparison.
func (d *Document) writeChanges(w io.Writer) error {
	c := d.Changes
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s of %s, %s, run %s\n", d.Trace.Name, plural(c.Decisions, "decision"), plural(int64(len(c.Workers)), "worker"), plural(int64(c.Parts), "part"), c.Run)
	if !c.Complete {
		fmt.Fprintf(&b, "incomplete: %s\n", c.Missing)
	}
	verb := "change"
	if c.Changed == 1 {
		verb = "changes"
	}
	fmt.Fprintf(&b, "%s %s (%s)\n\n", plural(c.Changed, "decision"), verb, percent(c.Share))
	cols := []column{
		{left: true, head: []string{""}},
		{left: true, head: []string{"policy"}},
		{head: []string{"predicted", "hit rate"}},
		{head: []string{"predicted", "hit blocks"}},
		{head: []string{"miss", "blocks"}},
		{head: []string{"imbalance"}},
		{head: []string{"tokens", "in front"}},
		{head: []string{"requests", "beside"}},
	}
	for i, f := range []Forecast{c.Recorded, c.Replayed} {
		r := &d.Runs[i]
		for k, cell := range []string{
			r.Kind, r.Policy, percent(Ratio(f.HitBlocks, f.HitBlocks+f.MissBlocks)), decimal(f.HitBlocks), decimal(f.MissBlocks),
			fmt.Sprintf("%.2f", f.Imbalance), fmt.Sprintf("%.0f", f.PendingTokens), fmt.Sprintf("%.2f", f.HeldRequests),
		} {
			cols[k].cells = append(cols[k].cells, cell)
		}
	}
	writeColumns(&b, cols, nil)
	for i := range d.Runs {
		r := &d.Runs[i]
		fmt.Fprintf(&b, "%s: %s\n", r.Kind, FlagsText(r.Flags))
	}
	if len(c.Moves) > 0 {
		b.WriteByte('\n')
		moves := []column{{head: []string{"decisions"}}, {left: true, head: []string{"from"}}, {left: true, head: []string{"to"}}}
		for _, m := range c.Moves[:min(len(c.Moves), maxMoves)] {
			for k, cell := range []string{decimal(m.Count), clean(m.From), clean(m.To)} {
				moves[k].cells = append(moves[k].cells, cell)
			}
		}
		writeColumns(&b, moves, nil)
		if more := len(c.Moves) - maxMoves; more > 0 {
			fmt.Fprintf(&b, "and %s more (-o json has all)\n", plural(int64(more), "pair"))
		}
	}
	fmt.Fprintf(&b, "\n%s\n", strings.Replace(c.Caveat, ", and requests", ",\nand requests", 1))
	_, err := io.WriteString(w, b.String())
	return err
}

// clean keeps control characters of workers' names off terminals.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}
