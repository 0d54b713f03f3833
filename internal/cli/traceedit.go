package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/trace"
)

// outFlags say where a trace goes, and in which form.
type outFlags struct{ to, out string }

func bindOut(cmd *cobra.Command, o *outFlags) {
	bind(cmd, cmd.Flags(), spec{
		name: "to", arg: "FORMAT", def: trace.KVRoute, group: groupOutput, local: true, values: trace.WriteFormats(),
		usage: strings.Join(trace.WriteFormats(), ", "),
	}, &o.to, oneOf(trace.WriteFormats()...))
	bind(cmd, cmd.Flags(), spec{
		name: "out", arg: "FILE", def: "-", group: groupOutput, local: true,
		usage: "write here, packed if the name ends in .gz or .zst; - is stdout",
	}, &o.out, parseText)
}

// open starts the file that the flags name, before the work; nil stands for stdout. The caller aborts it
// in any case.
func (o *outFlags) open(a *app, inputs []named) (*report.File, error) {
	if o.out == "-" {
		return nil, nil
	}
	if err := a.keepApart(inputs, []named{{o.out, "--out"}}); err != nil {
		return nil, err
	}
	f, err := report.CreateFile(o.out)
	if err != nil {
		return nil, fileFault("--out", err)
	}
	return f, nil
}

// edit reads, makes and writes a trace: a file appears whole or not at all.
func (a *app) edit(ctx context.Context, o *outFlags, inputs []named, make func() (*trace.Workload, error)) error {
	f, err := o.open(a, inputs)
	if err != nil {
		return err
	}
	if f != nil {
		defer f.Abort()
	}
	w, err := make()
	if err != nil {
		return err
	}
	dst, packing := writing{a.stdout, ctx}, ""
	if f != nil {
		dst.w, packing = f, map[string]string{".gz": "gzip", ".zst": "zstd"}[filepath.Ext(o.out)]
	}
	if err := writeTrace(dst, w, o.to, packing); err != nil {
		var te *trace.Error
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &te):
			return &fault{code: exitUsage, what: "cannot write as " + o.to, where: "--to", why: te.Why, hint: te.Hint, err: err}
		case f == nil:
			return failed("cannot write the trace", "stdout", err)
		}
		return fileFault("--out", err)
	}
	if f == nil {
		return nil
	}
	if err := f.Commit(); err != nil {
		return fileFault("--out", err)
	}
	return nil
}

func writeTrace(dst io.Writer, w *trace.Workload, format, packing string) error {
	p, err := trace.Packed(dst, packing)
	if err != nil {
		return err
	}
	tw, err := trace.NewWriter(p, format)
	if err != nil {
		return err
	}
	if err := trace.Save(tw, w); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return p.Close()
}

func (a *app) newTraceConvert() *cobra.Command {
	var (
		t traceFlags
		o outFlags
	)
	cmd := &cobra.Command{
		Use:   "convert FILE…",
		Short: "Convert a trace of any known format to kvroute's or Mooncake's",
		Long: `Requests come out sorted by arrival, the earliest at 0. Block ids are numbered
anew, in first-seen order; what they have in common stays in common.`,
		Example: `  kvroute trace convert traces/golden/sessions80-serial.jsonl.gz --out sessions.jsonl.zst
  kvroute trace convert --to mooncake --limit 100 traces/golden/sessions80-serial.jsonl.gz`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := t.take(cmd, args); err != nil {
				return err
			}
			ctx := cmd.Context()
			return a.edit(ctx, &o, t.inputs(), func() (*trace.Workload, error) { return a.load(ctx, &t) })
		},
	}
	bindTrace(cmd, &t)
	bindOut(cmd, &o)
	return cmd
}

// cutFlags are the flags of trace cut.
type cutFlags struct {
	traffic        traceFlags
	out            outFlags
	requests       [2]int64
	times          [2]time.Duration
	sessions       []string
	first          int
	maxInput       int64
	minLen, maxLen int
}

func (a *app) newTraceCut() *cobra.Command {
	var c cutFlags
	cmd := &cobra.Command{
		Use:   "cut FILE…",
		Short: "Cut requests or sessions out of a trace",
		Long: `Keeps what fits all conditions given. Ranges are A:B, B not included; either end
may be left out. The first request that is kept arrives at 0.`,
		Example: `  # the second hundred requests
  kvroute trace cut --requests 100:200 traces/golden/sessions80-inter16.jsonl.gz --out part.jsonl.gz
  # ten whole sessions
  kvroute trace cut --first-sessions 10 traces/golden/sessions80-serial.jsonl.gz --to mooncake`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.traffic.take(cmd, args); err != nil {
				return err
			}
			return a.traceCut(cmd.Context(), &c)
		},
	}
	bindTrace(cmd, &c.traffic)
	fs := cmd.Flags()
	const g = groupCut
	bind(cmd, fs, spec{name: "requests", arg: "A:B", group: g, local: true, usage: "requests by arrival, counted from 0"}, &c.requests, rangeOf(parseCount))
	bind(cmd, fs, spec{name: "time", arg: "A:B", group: g, local: true, usage: "arrivals since the start, as in 10m:20m"}, &c.times, rangeOf(parseSpan))
	bindList(cmd, fs, spec{name: "session", arg: "ID", group: g, local: true, usage: "this session, repeatable"}, "", &c.sessions, parseText)
	bind(cmd, fs, spec{name: "first-sessions", arg: "N", group: g, local: true, usage: "the first N sessions, by their first request"}, &c.first, intBetween(1, 1<<31-1))
	bind(cmd, fs, spec{name: "max-input", arg: "TOKENS", group: g, local: true, usage: "leave sessions out that have a longer prompt"}, &c.maxInput, countBetween(1, 1<<40))
	bind(cmd, fs, spec{name: "min-requests", arg: "N", group: g, local: true, usage: "leave sessions with fewer requests out"}, &c.minLen, intBetween(1, 1<<31-1))
	bind(cmd, fs, spec{name: "max-requests", arg: "N", group: g, local: true, usage: "leave sessions with more requests out"}, &c.maxLen, intBetween(1, 1<<31-1))
	bindOut(cmd, &c.out)
	return cmd
}

// rangeOf reads A:B, either end of which may be missing; an end of 0 stands for the last.
func rangeOf[T int64 | time.Duration](parse func(string) (T, error)) func(string) ([2]T, error) {
	return func(s string) (r [2]T, err error) {
		left, right, ok := strings.Cut(s, ":")
		if !ok {
			return r, &valueError{"no : in it", "ranges look like 100:200, :200 or 100:"}
		}
		for i, text := range []string{left, right} {
			if text == "" {
				continue
			}
			if r[i], err = parse(text); err != nil {
				return r, &valueError{fmt.Sprintf("%q: %s", text, err), "ranges look like 100:200, :200 or 100:"}
			}
		}
		if right != "" && r[1] <= r[0] {
			return r, &valueError{why: "nothing lies between its ends"}
		}
		return r, nil
	}
}

func (a *app) traceCut(ctx context.Context, c *cutFlags) error {
	return a.edit(ctx, &c.out, c.traffic.inputs(), func() (*trace.Workload, error) {
		w, err := a.load(ctx, &c.traffic)
		if err != nil {
			return nil, err
		}
		cut, err := trace.Cut(w, trace.CutOptions{
			From: int(c.requests[0]), To: int(c.requests[1]), FromTime: c.times[0], ToTime: c.times[1],
			Sessions: c.sessions, FirstSessions: c.first, MaxInput: c.maxInput, MinLen: c.minLen, MaxLen: c.maxLen,
		})
		if err != nil {
			return nil, editFault("cannot cut", err)
		}
		return cut, nil
	})
}

// editFault words why a trace cannot be cut or merged.
func editFault(what string, err error) error {
	f := usage(what, "", err.Error(), "")
	var te *trace.Error
	if errors.As(err, &te) {
		f.hint = te.Hint
	}
	f.err = err
	return f
}

// mergeFlags are the flags of trace merge.
type mergeFlags struct {
	traffic traceFlags
	out     outFlags
	shift   []time.Duration
	shared  bool
}

func (a *app) newTraceMerge() *cobra.Command {
	var m mergeFlags
	cmd := &cobra.Command{
		Use:   "merge FILE FILE…",
		Short: "Merge traces into one that has all of their traffic at the same time",
		Long: `Every trace starts at 0, or at its --shift. Blocks and sessions of different
traces stay different unless --shared says that equal ids mean the same.`,
		Example: `  kvroute trace merge traces/golden/sessions80-serial.jsonl.gz traces/golden/sessions80-inter16.jsonl.gz --shift 0s --shift 30s --out both.jsonl.gz`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := m.traffic.take(cmd, args); err != nil {
				return err
			}
			return a.traceMerge(cmd.Context(), &m)
		},
	}
	bindTrace(cmd, &m.traffic)
	bindList(cmd, cmd.Flags(), spec{name: "shift", arg: "TIME", group: groupCut, local: true, usage: "start of the first trace, given again of the second, and so on"}, "", &m.shift, parseSpan)
	bindSwitch(cmd, cmd.Flags(), spec{name: "shared", group: groupCut, local: true, usage: "equal blocks and sessions of different traces are the same"}, &m.shared)
	bindOut(cmd, &m.out)
	return cmd
}

func (a *app) traceMerge(ctx context.Context, m *mergeFlags) error {
	switch n := len(m.traffic.paths); {
	case n < 2:
		return usage("one trace only", "kvroute trace merge", "want two or more", "")
	case len(m.shift) > n:
		return usage("too many shifts", "--shift", fmt.Sprintf("%d shifts for %d traces", len(m.shift), n), "")
	}
	return a.edit(ctx, &m.out, m.traffic.inputs(), func() (*trace.Workload, error) {
		var all []*trace.Workload
		for _, p := range m.traffic.paths {
			w, err := a.loadPaths(ctx, &m.traffic, []string{p})
			if err != nil {
				return nil, err
			}
			all = append(all, w)
		}
		w, err := trace.Merge(all, trace.MergeOptions{Shift: m.shift, Shared: m.shared})
		if err != nil {
			return nil, editFault("cannot merge", err)
		}
		return w, nil
	})
}
