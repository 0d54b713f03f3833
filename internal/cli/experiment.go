package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/plot"
	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/sweep"
	"github.com/kvroute/kvroute/internal/target"
	"github.com/kvroute/kvroute/internal/trace"
	"github.com/kvroute/kvroute/internal/tracestats"
)

// experiment is what replay and sim have in common: traffic, a fleet, the scorer, sweeps and results.
type experiment struct {
	traffic   traceFlags
	scorer    scorerFlags
	workers   int
	capacity  int64
	sweeps    []string
	repeat    int
	metric    string
	plots     []string
	failIf    []string
	decisions string
	format    string

	axes       []sweep.Axis
	points     []sweep.Point // nil: a single run
	thresholds []report.Threshold
}

// driver is the part that differs: how to make one run. p is the zero Point outside of sweeps.
type driver struct {
	sim   bool         // knows times
	sweep []sweep.Flag // what it can sweep
	// check validates everything but the trace.
	check func(cfg score.Config, p *sweep.Point) error
	run   func(ctx context.Context, w *trace.Workload, cfg score.Config, p *sweep.Point, decisions io.Writer, progress func(done, total int)) (*report.Run, error)
	flags map[string]any // effective flags that are not the scorer's
	// inputs are files it reads beside the traces.
	inputs []named
}

// sweepable returns the flags of the given names with their parsers.
func sweepable(names ...string) []sweep.Flag {
	var out []sweep.Flag
	for _, f := range sweep.Flags() {
		if f.Scorer || contains(names, f.Name) {
			out = append(out, f)
		}
	}
	return out
}

// bindExperiment adds the flags both commands have. capacityUsage words what 0 means.
func bindExperiment(cmd *cobra.Command, x *experiment, capacityUsage string) {
	fs := cmd.Flags()
	bindTrace(cmd, &x.traffic)
	bind(cmd, fs, spec{name: "workers", arg: "N", group: groupFleet, usage: "number of workers"}, &x.workers, intBetween(1, target.MaxTargets))
	bind(cmd, fs, spec{name: "capacity", arg: "BLOCKS", def: "0", group: groupFleet, usage: capacityUsage}, &x.capacity, countBetween(0, 1<<31))
}

// bindResults adds the flags of sweeps and results, after the command's own.
func bindResults(cmd *cobra.Command, x *experiment, sweeps []sweep.Flag, sweepUsage string) {
	fs := cmd.Flags()
	bindScorer(cmd, &x.scorer)
	names := make([]string, len(sweeps))
	for i, f := range sweeps {
		names[i] = f.Name + "="
	}
	bindList(cmd, fs, spec{name: "sweep", arg: "FLAG=a,b,…", group: groupSweep, values: names, usage: sweepUsage}, "", &x.sweeps, parseText)
	bind(cmd, fs, spec{
		name: "repeat", arg: "N", def: "1", group: groupSweep,
		usage: "measure every point on the trace and N-1 resamples of it (of sessions, or of blocks of time), for intervals",
	}, &x.repeat, intBetween(1, 10_000))
	bind(cmd, fs, spec{
		name: "metric", arg: "NAME", group: groupSweep, values: report.MetricNames(),
		usage: "what the recommendation goes by (default ttft_mean, or busiest_miss_blocks without a clock)",
	}, &x.metric, parseText)
	bindOutput(cmd, &x.format, report.Formats()...)
	bindList(cmd, fs, spec{name: "plot", arg: "FILE", group: groupOutput, usage: "also draw the result: .svg, .png, or .html (one page, self-contained); repeatable"}, "", &x.plots, parseText)
	bind(cmd, fs, spec{name: "decisions", arg: "FILE", group: groupOutput, usage: "also write every decision with all its terms, one JSON line each"}, &x.decisions, parseText)
	bindList(cmd, fs, spec{
		name: "fail-if", arg: "CONDITION", group: groupOutput,
		usage: "exit with 3 if it holds for the run (in a sweep: for any swept run), as in 'ttft_p99>800ms' or 'hit_rate<30%'; repeatable",
	}, "", &x.failIf, parseText)
}

// metricsHelp is the paragraph of a help page that lists the metrics of --metric and --fail-if.
func metricsHelp(sim bool) string {
	var names []string
	for _, n := range report.MetricNames() {
		if m, err := report.MetricNamed(n); err == nil && (sim || !m.Sim) {
			names = append(names, n)
		}
	}
	return "\n\nMetrics, for --metric and --fail-if:\n  " + strings.Join(wrap(strings.Join(names, ", "), helpWidth-2), "\n  ")
}

// prepare checks everything that can be checked without reading the trace.
func (a *app) prepare(x *experiment, d *driver) error {
	cfg := x.scorer.cfg
	var err error
	if x.thresholds, err = report.ParseThresholds(x.failIf...); err != nil {
		return hinted("bad condition", "--fail-if", err)
	}
	if t := report.NeedsSim(x.thresholds); t != nil && !d.sim {
		return usage(fmt.Sprintf("bad condition %q", t.Text), "--fail-if", "a replay has no clock and does not know "+t.Metric.Name, "use kvroute sim")
	}
	if x.metric != "" {
		m, err := report.MetricNamed(x.metric)
		if err != nil {
			return hinted(fmt.Sprintf("bad value %q", x.metric), "--metric", err)
		}
		if m.Sim && !d.sim {
			return usage(fmt.Sprintf("bad metric %q", x.metric), "--metric", "a replay has no clock", "use kvroute sim")
		}
	}
	for _, path := range x.plots {
		if _, err := plot.FormatOf(path); err != nil {
			return hinted("bad plot", "--plot", err)
		}
	}
	if x.decisions == "-" {
		return usage("bad file -", "--decisions", "stdout is for the report", "name a file")
	}
	if len(x.sweeps) == 0 && x.repeat == 1 {
		a.warnUnread(cfg)
		return a.fieldFault(d.check(cfg, &sweep.Point{}))
	}
	if x.decisions != "" {
		return usage("--decisions in a sweep", "--decisions", "a sweep makes many runs and there is one file", "leave --sweep and --repeat out")
	}
	if x.axes, err = sweep.ParseAxes(x.sweeps, d.sweep); err != nil {
		return hinted("bad sweep", "--sweep", err)
	}
	if x.points, err = sweep.Plan(x.axes, cfg, a.setFlags(&cfg)); err != nil {
		var fields score.FieldErrors
		if errors.As(err, &fields) {
			return usage("bad sweep", "--sweep", err.Error(), fields[0].Hint)
		}
		return hinted("bad sweep", "--sweep", err)
	}
	for _, flag := range sweep.Ignored(x.points) {
		a.warn("--sweep %s changes nothing: no policy of this sweep reads it", flag)
	}
	var swept []score.Config
	for i := range x.points {
		if x.points[i].Kind == report.KindSwept {
			swept = append(swept, x.points[i].Config)
		}
	}
	a.warnUnread(swept...)
	for i := range x.points {
		p := &x.points[i]
		if err := d.check(p.Config, p); err != nil {
			var f *fault
			if err = a.fieldFault(err); errors.As(err, &f) && len(x.axes) > 0 {
				f.why += " (at the point " + p.String() + ")"
			}
			return err
		}
	}
	return nil
}

// warnUnread tells of scorer flags on the command line that none of the configurations reads. The
// environment and files may hold settings for other commands and policies.
func (a *app) warnUnread(cfgs ...score.Config) {
	for _, row := range scorerSettings() {
		if a.origins[row.name].Layer != "flag" {
			continue
		}
		read := false
		for _, c := range cfgs {
			read = read || sweep.Reads(c, row.name)
		}
		if !read {
			a.warn("--%s changes nothing: %s does not read it", row.name, cfgs[0].Policy)
		}
	}
}

// perform reads the trace, makes the runs and hands out the results.
func (a *app) perform(ctx context.Context, x *experiment, d *driver) error {
	if err := a.prepare(x, d); err != nil {
		return err
	}
	files, err := a.openResults(x, d)
	defer files.abort()
	if err != nil {
		return err
	}
	w, err := a.load(ctx, &x.traffic)
	if err != nil {
		return err
	}
	doc := &report.Document{Version: version(), Seed: x.scorer.cfg.Seed, Flags: allFlags(&x.scorer.cfg), Trace: describe(w)}
	for name, v := range d.flags {
		doc.Flags[name] = v
	}
	if x.points == nil {
		err = a.single(ctx, x, d, w, files.decisions, doc)
	} else {
		err = a.sweepRuns(ctx, x, d, w, doc)
	}
	if err != nil {
		return err
	}
	return a.deliver(x, doc, files)
}

// resultFiles are the files that a run writes beside its report. They are opened before the work, so
// that a wrong path is told before and not after it.
type resultFiles struct {
	plots     []*report.File // as x.plots
	decisions *report.File   // nil: none
}

func (a *app) openResults(x *experiment, d *driver) (*resultFiles, error) {
	files := &resultFiles{}
	var out []named
	for _, path := range x.plots {
		out = append(out, named{path, "--plot"})
	}
	if x.decisions != "" {
		out = append(out, named{x.decisions, "--decisions"})
	}
	if err := a.keepApart(append(x.traffic.inputs(), d.inputs...), out); err != nil {
		return files, err
	}
	for _, o := range out {
		f, err := report.CreateFile(o.path)
		if err != nil {
			return files, fileFault(o.as, err)
		}
		if o.as == "--plot" {
			files.plots = append(files.plots, f)
		} else {
			files.decisions = f
		}
	}
	return files, nil
}

// abort drops what was not committed.
func (f *resultFiles) abort() {
	for _, p := range f.plots {
		p.Abort()
	}
	if f.decisions != nil {
		f.decisions.Abort()
	}
}

// describe is the head of a report.
func describe(w *trace.Workload) report.Trace {
	t := report.Trace{Name: w.Name, Requests: int64(len(w.Requests))}
	for i := range w.Requests {
		r := &w.Requests[i]
		t.Blocks += int64(w.BlocksOf(r))
		t.InputTokens += r.Input
		t.OutputTokens += r.Output
	}
	t.CeilingHitBlocks, t.CeilingHitTokens = tracestats.Ceiling(w)
	return t
}

// single makes one run.
func (a *app) single(ctx context.Context, x *experiment, d *driver, w *trace.Workload, decisions *report.File, doc *report.Document) error {
	var out io.Writer
	if decisions != nil {
		out = decisions
	}
	p := a.newProgress("requests")
	defer p.finish()
	r, err := d.run(ctx, w, x.scorer.cfg, &sweep.Point{}, out, p.step)
	if fe := new(report.FileError); errors.As(err, &fe) {
		return fileFault("--decisions", err)
	}
	if err != nil {
		return a.fieldFault(err)
	}
	r.Flags = a.setFlags(&x.scorer.cfg)
	doc.Runs = []report.Run{*r}
	return nil
}

// sweepRuns makes all runs of a sweep.
func (a *app) sweepRuns(ctx context.Context, x *experiment, d *driver, w *trace.Workload, doc *report.Document) error {
	p := a.newProgress("requests")
	defer p.finish()
	all := tally{step: p.step}
	res, err := sweep.Run(ctx, w, sweep.Config{
		Points: x.points, Axes: x.axes, Repeats: x.repeat, Seed: x.scorer.cfg.Seed, Metric: x.metric,
		Progress: func(_, runs int) { all.expect(runs * len(w.Requests)) },
	}, func(ctx context.Context, w *trace.Workload, point sweep.Point) (*report.Run, error) {
		return d.run(ctx, w, point.Config, &point, nil, all.part())
	})
	if err != nil {
		return a.fieldFault(err)
	}
	doc.Runs, doc.Recommendation, doc.Sweep = res.Runs, res.Recommendation, &res.Sweep
	return nil
}

// tally adds up the progress of runs that go on at the same time.
type tally struct {
	mu    sync.Mutex
	step  func(done, total int)
	done  int
	total int // 0: not yet known
}

func (t *tally) expect(total int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total = total
}

// part is the progress function of one run.
func (t *tally) part() func(done, total int) {
	before := 0
	return func(done, _ int) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.done += done - before
		before = done
		t.step(t.done, t.total)
	}
}

// deliver writes the plot, the decisions and the report, in this order, so that a report on stdout
// means that the files are there; then it applies the thresholds.
func (a *app) deliver(x *experiment, doc *report.Document, files *resultFiles) error {
	breaches, err := report.CheckThresholds(x.thresholds, doc.Runs)
	if err != nil {
		return hinted("bad condition", "--fail-if", err)
	}
	for i, path := range x.plots {
		format, err := plot.FormatOf(path)
		if err != nil {
			return err
		}
		if err := plot.Write(files.plots[i], format, doc); err != nil {
			return fileFault("--plot", err)
		}
		if err := files.plots[i].Commit(); err != nil {
			return fileFault("--plot", err)
		}
	}
	if files.decisions != nil {
		if err := files.decisions.Commit(); err != nil {
			return fileFault("--decisions", err)
		}
	}
	if err := a.emit(func(w io.Writer) error { return doc.Write(w, x.format) }); err != nil {
		return err
	}
	return breached(breaches)
}

// breached is the fault of conditions that hold; nil where there are none.
func breached(breaches []report.Breach) error {
	if len(breaches) == 0 {
		return nil
	}
	var texts []string
	for _, b := range breaches {
		texts = append(texts, b.String())
	}
	return &fault{code: exitThreshold, what: "the condition holds", where: "--fail-if", why: strings.Join(texts, "; ")}
}

// hinted turns an error of the report's kind, which may carry advice, into a fault of usage.
func hinted(what, where string, err error) error {
	f := usage(what, where, err.Error(), "")
	var h *report.HintError
	if errors.As(err, &h) {
		f.hint = h.Hint
	}
	f.err = err
	return f
}
