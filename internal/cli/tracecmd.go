package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/trace"
	"github.com/kvroute/kvroute/internal/tracestats"
)

// statsFlags are the flags of trace stats.
type statsFlags struct {
	traffic  traceFlags
	each     bool
	capacity []int
	format   string
}

func (a *app) newTraceStats() *cobra.Command {
	var f statsFlags
	cmd := &cobra.Command{
		Use:   "stats FILE…",
		Short: "Measure a trace: size, shape, and what any prefix cache can reach on it",
		Long: `Hits are leading blocks that are cached before the request itself is put in.
The ceiling is one cache without limit: no router can pass it. --capacity adds
one LRU cache of so many blocks, repeatable or separated by commas. "2nd half"
is the share of tokens hit by the later half of the requests, in a cache that
the earlier half has filled; "of ceiling" compares hit blocks with no limit.

Several files are one trace, in the order given; --each treats them apart.`,
		Example: `  kvroute trace stats traces/golden/sessions80-serial.jsonl.gz
  kvroute trace stats --each --capacity 1000,2k -o json traces/golden/*.gz`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.traffic.take(cmd, args); err != nil {
				return err
			}
			return a.traceStats(cmd.Context(), &f)
		},
	}
	bindTrace(cmd, &f.traffic)
	bindSwitch(cmd, cmd.Flags(), spec{name: "each", group: groupTrace, local: true, usage: "one result a file instead of one for all"}, &f.each)
	bindList(cmd, cmd.Flags(), spec{
		name: "capacity", arg: "BLOCKS", group: groupTrace, local: true,
		usage: "also measure one LRU cache of so many blocks (0: unlimited), repeatable",
	}, ",", &f.capacity, intBetween(0, 1<<31-1))
	bindOutput(cmd, &f.format, formatTable, formatJSON, formatJSONL, formatCSV)
	return cmd
}

func (a *app) traceStats(ctx context.Context, f *statsFlags) error {
	sets := [][]string{f.traffic.paths}
	if f.each {
		sets = nil
		for _, p := range f.traffic.paths {
			sets = append(sets, []string{p})
		}
	}
	var all []*tracestats.Stats
	for _, paths := range sets {
		w, err := a.loadPaths(ctx, &f.traffic, paths)
		if err != nil {
			return err
		}
		s, err := a.measure(ctx, w, f.capacity)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	return a.emit(func(w io.Writer) error {
		switch f.format {
		case formatJSON:
			return writeJSON(w, struct {
				Schema  string              `json:"schema"`
				Version string              `json:"version"`
				Flags   map[string]any      `json:"flags"`
				Traces  []*tracestats.Stats `json:"traces"`
			}{"kvroute.trace-stats/v1", version(), a.givenFlags(), all})
		case formatJSONL:
			return writeJSONLines(w, all)
		case formatCSV:
			return statsGrid(all).writeCSV(w)
		}
		for i, s := range all {
			if i > 0 {
				fmt.Fprintln(w)
			}
			if err := a.writeStats(w, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// measure is tracestats.Of with progress, stopped between two caches by a signal.
func (a *app) measure(ctx context.Context, w *trace.Workload, capacities []int) (*tracestats.Stats, error) {
	p := a.newProgress("caches measured")
	defer p.finish()
	s := tracestats.Of(w, nil)
	for i, c := range capacities {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		p.step(i+1, len(capacities)+1)
		s.AddLRU(w, c)
	}
	return s, ctx.Err()
}

// writeStats prints one trace for people.
func (a *app) writeStats(w io.Writer, s *tracestats.Stats) error {
	b := &s.Basic
	fmt.Fprintf(w, "%s: %s", s.Name, counts(int64(b.Requests), "request"))
	if b.Sessions > 0 {
		fmt.Fprintf(w, ", %s", counts(int64(b.Sessions), "session"))
	}
	fmt.Fprintf(w, ", %s form, %.1f s", s.Format, float64(b.LastMs-b.FirstMs)/1000)
	if b.RateRPS != nil {
		fmt.Fprintf(w, ", %.2f requests/s", *b.RateRPS)
	}
	fmt.Fprint(w, "\n\n")
	shape := &grid{head: []string{"a request", "mean", "p50", "p90", "p99", "max", "total"}, right: []bool{false, true, true, true, true, true, true}}
	n := func(x int64) string { return strconv.FormatInt(x, 10) }
	shape.add("input tokens", fmt.Sprintf("%.1f", b.InputMean), n(b.InputP50), n(b.InputP90), n(b.InputP99), n(b.InputMax), n(b.InputTokens))
	shape.add("output tokens", fmt.Sprintf("%.1f", b.OutputMean), n(b.OutputP50), n(b.OutputP90), n(b.OutputP99), n(b.OutputMax), n(b.OutputTokens))
	if s.Infinite != nil {
		shape.add("blocks", fmt.Sprintf("%.1f", float64(b.BlocksTotal)/float64(max(b.Requests, 1))), n(b.BlocksP50), "", "", n(b.BlocksMax), n(b.BlocksTotal))
	}
	if err := shape.writeTable(w, a.bold); err != nil {
		return err
	}
	if s.Infinite == nil {
		_, err := fmt.Fprintln(w, "\nno prefix information: every prompt is a miss")
		return err
	}
	i := s.Infinite
	fmt.Fprintf(w, "\n%d distinct blocks; %d requests find all their blocks cached\n\n", b.BlocksUnique, i.RequestsFullyHeld)
	hits := &grid{
		head:  []string{"one cache of", "hit blocks", "of blocks", "hit tokens", "of tokens", "2nd half", "of ceiling"},
		right: []bool{false, true, true, true, true, true, true},
	}
	hits.add("no limit", n(i.HitBlocks), share(i.HitBlocks, i.TotalBlocks), n(i.HitTokens), share(i.HitTokens, i.TotalTokens),
		share(i.HitTokens2ndHalf, i.TotalTokens2nd), "")
	for _, l := range s.SingleLRU {
		hits.add(n(int64(l.Cap))+" blocks", n(l.HitBlocks), share(l.HitBlocks, i.TotalBlocks), n(l.HitTokens), share(l.HitTokens, i.TotalTokens),
			share(l.HitTokens2ndHalf, i.TotalTokens2nd), share(l.HitBlocks, i.HitBlocks))
	}
	return hits.writeTable(w, a.bold)
}

// share words a part of a whole in percent.
func share(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

// statsGrid is one line a trace and capacity, for a spreadsheet; capacity "unlimited" is the ceiling.
func statsGrid(all []*tracestats.Stats) *grid {
	g := &grid{head: []string{
		"name", "format", "requests", "sessions", "input_tokens", "output_tokens", "blocks_total", "blocks_unique",
		"capacity", "hit_blocks", "hit_tokens", "hit_blocks_2nd_half", "hit_tokens_2nd_half",
	}}
	n := func(x int64) string { return strconv.FormatInt(x, 10) }
	for _, s := range all {
		b := &s.Basic
		row := func(cells ...string) {
			g.add(append([]string{
				s.Name, s.Format, n(int64(b.Requests)), n(int64(b.Sessions)), n(b.InputTokens), n(b.OutputTokens), n(b.BlocksTotal), n(b.BlocksUnique),
			}, cells...)...)
		}
		if s.Infinite == nil {
			row("", "", "", "", "")
			continue
		}
		i := s.Infinite
		row("unlimited", n(i.HitBlocks), n(i.HitTokens), n(i.HitBlocks2ndHalf), n(i.HitTokens2ndHalf))
		for _, l := range s.SingleLRU {
			row(n(int64(l.Cap)), n(l.HitBlocks), n(l.HitTokens), n(l.HitBlocks2ndHalf), n(l.HitTokens2ndHalf))
		}
	}
	return g
}
