package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/replay"
	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
)

// notOnRecordings are flags of replay that say what a recording says itself.
var notOnRecordings = []string{
	"capacity", "outstanding", "sweep", "repeat", "metric", "plot", "trace-format", "block-size", "session-stagger", "gap-cap", "speedup", "limit",
}

// onRecording says whether replay was asked to work on a recording rather than to replay a trace: there is
// no fleet on the command line.
func (f *replayFlags) onRecording() bool {
	return f.verify || f.workers == 0 && !sweeps(f.sweeps, "workers")
}

// replayRecording verifies a recording, or shows what other flags change in it.
func (a *app) replayRecording(ctx context.Context, f *replayFlags) error {
	if f.verify && f.workers > 0 {
		return usage("--verify and --workers", "kvroute replay", "a recording has its own workers", "leave --workers out")
	}
	refuse := notOnRecordings
	if f.verify {
		refuse = append([]string{"fail-if", "decisions", "seed"}, refuse...)
		for _, row := range scorerSettings() {
			refuse = append(refuse, row.name)
		}
	}
	for _, name := range refuse {
		if a.origins[name].Layer != "flag" {
			continue
		}
		if f.verify {
			return usage("--verify and --"+name, "kvroute replay", "a recording is verified as it was made", "leave --"+name+" out")
		}
		if contains(notOnRecordings, name) {
			return usage("no fleet", "kvroute replay", "the number of workers is not given", "add --workers N, or leave --"+name+" out to work on a recording of serve")
		}
	}
	rec, done, err := a.openRecording(ctx, f)
	defer done()
	if err != nil {
		return err
	}
	if f.verify {
		return a.verifyRecording(ctx, f, rec)
	}
	return a.compareRecording(ctx, f, rec)
}

// openRecording opens all files of a recording, in any order.
func (a *app) openRecording(ctx context.Context, f *replayFlags) (rec *replay.Recording, done func(), err error) {
	sources, done, err := a.open(ctx, f.traffic.paths)
	if err != nil {
		return nil, done, err
	}
	var names []string
	var readers []*record.Reader
	for _, s := range sources {
		r, err := record.Open(s.R, s.Name)
		if ctx.Err() != nil {
			return nil, done, ctx.Err()
		}
		var e *record.Error
		if errors.As(err, &e) && !e.Damaged && e.Hint == "" && !f.verify {
			// Whatever it is, it is not a recording; as a trace it wants a fleet.
			return nil, done, usage("no fleet", "kvroute replay", "the number of workers is not given", "add --workers N (without it, give a recording of serve)")
		}
		if err != nil {
			return nil, done, recordingFault(err)
		}
		names, readers = append(names, s.Name), append(readers, r)
	}
	rec, err = replay.OrderRecording(names, readers)
	if err != nil {
		return nil, done, recordingFault(err)
	}
	return rec, done, nil
}

// recordingFault gives a reader's error its exit code, as traceFault does.
func recordingFault(err error) error {
	var e *record.Error
	if !errors.As(err, &e) {
		return err
	}
	f := &fault{code: exitUsage, what: "cannot read recording", why: err.Error(), hint: e.Hint, err: err}
	if e.Damaged {
		f.code, f.what = exitFailed, "damaged recording"
	}
	return f
}

// verifyDocument is kvroute.verify/v1.
type verifyDocument struct {
	Schema     string             `json:"schema"`
	Version    string             `json:"version"`
	Seed       uint64             `json:"seed"`
	Flags      map[string]any     `json:"flags"` // of the router
	Run        string             `json:"run"`
	Program    string             `json:"program"`
	Model      string             `json:"model"`
	Equal      bool               `json:"equal"`
	Complete   bool               `json:"complete"`
	Missing    string             `json:"missing"`
	Extent     replay.Extent      `json:"recording"`
	Difference *replay.Difference `json:"difference"`
}

func (a *app) verifyRecording(ctx context.Context, f *replayFlags, rec *replay.Recording) error {
	p := a.newProgress("records")
	v, err := replay.Verify(ctx, rec, func(n int) { p.step(n, 0) })
	p.finish()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return recordingFault(err)
	}
	h := &rec.Header
	missing := v.Missing()
	doc := &verifyDocument{
		Schema: "kvroute.verify/v1", Version: version(), Seed: h.Config.Seed, Flags: allFlags(&h.Config), Run: h.Run, Program: h.Program, Model: h.Model,
		Equal: v.Difference == nil, Complete: v.Difference == nil && missing == "", Missing: missing, Extent: v.Extent, Difference: v.Difference,
	}
	if v.Difference != nil {
		doc.Missing = "" // reading stopped at the difference
	}
	if err := a.emit(func(w io.Writer) error { return doc.write(w, f.format) }); err != nil {
		return err
	}
	if v.Difference == nil {
		if v.Decisions == 0 {
			a.warn("there is no decision in the recording")
		}
		return nil
	}
	d := v.Difference
	why := fmt.Sprintf("decision %d (%s) is not what the same inputs decide", d.Seq, printable(d.ID))
	hint := ""
	if h.Program != version() {
		hint = fmt.Sprintf("the recording is of %s, this is %s: verify with the same version", printable(h.Program), version())
	}
	return &fault{code: exitThreshold, what: "not equal", where: fmt.Sprintf("%s:%d", d.File, d.Line), why: why, hint: hint}
}

func (d *verifyDocument) write(w io.Writer, format string) error {
	switch format {
	case formatJSON:
		return writeJSON(w, d)
	case formatJSONL:
		return writeJSONLines(w, []*verifyDocument{d})
	}
	g := &grid{head: []string{"term", "recorded", "replayed"}}
	if d.Difference != nil {
		for _, t := range d.Difference.Terms {
			g.add(printable(t.Name), orDash(t.Recorded), orDash(t.Replayed))
		}
	}
	if format == formatCSV {
		return g.writeCSV(w)
	}
	x := &d.Extent
	plain := func(s string) string { return s }
	if d.Equal {
		fmt.Fprintf(w, "equal: all %s, byte for byte (%d records, %d block changes, %s)\n", counts(int64(x.Decisions), "decision"), x.Records, x.Changes, parts(x.Parts))
		if d.Missing != "" {
			fmt.Fprintf(w, "verified up to the last record; %s\n", printable(d.Missing))
		}
		return nil
	}
	fmt.Fprintf(w, "not equal: decision %d, request %s, after %d that are equal\n\n", d.Difference.Seq, printable(d.Difference.ID), x.Decisions-1)
	return g.writeTable(w, plain)
}

func parts(n int) string { return counts(int64(n), "file") }

// counts is a number of things.
func counts(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.FormatInt(n, 10) + " " + thing + "s"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}

// recordedWith returns the recorded configuration with the settings that the user gave, and the names of
// those that differ by that.
func (a *app) recordedWith(rec *replay.Recording) (cfg score.Config, changed []string, err error) {
	was := rec.Header.Config
	cfg = was
	for _, row := range scorerSettings() {
		if !a.given(row.name) {
			continue
		}
		if err := row.set(&cfg, a.texts[row.name]); err != nil {
			return cfg, nil, badValue(a.texts[row.name], "--"+row.name, err)
		}
		if report.FlagValue(row.get(&cfg)) != report.FlagValue(row.get(&was)) {
			changed = append(changed, row.name)
		}
	}
	if a.given("seed") {
		if cfg.Seed, err = parseSeed(a.texts["seed"]); err != nil {
			return cfg, nil, badValue(a.texts["seed"], "--seed", err)
		}
	}
	return cfg, changed, a.validateScorer(&cfg)
}

func (a *app) compareRecording(ctx context.Context, f *replayFlags, rec *replay.Recording) error {
	cfg, changed, err := a.recordedWith(rec)
	if err != nil {
		return err
	}
	if f.thresholds, err = report.ParseThresholds(f.failIf...); err != nil {
		return hinted("bad condition", "--fail-if", err)
	}
	if t := report.NeedsSim(f.thresholds); t != nil {
		return usage(fmt.Sprintf("bad condition %q", t.Text), "--fail-if", "a replay has no clock and does not know "+t.Metric.Name, "")
	}
	if f.decisions == "-" {
		return usage("bad file -", "--decisions", "stdout is for the report", "name a file")
	}
	if len(changed) == 0 && cfg.Seed == rec.Header.Config.Seed {
		a.note("no scorer flag differs from the recorded ones: nothing can change")
	}
	files, err := a.openResults(&f.experiment, &driver{})
	defer files.abort()
	if err != nil {
		return err
	}
	var decisions io.Writer
	if files.decisions != nil {
		decisions = files.decisions
	}
	p := a.newProgress("records")
	c, err := replay.Compare(ctx, rec, cfg, decisions, func(n int) { p.step(n, 0) })
	p.finish()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if fe := new(report.FileError); errors.As(err, &fe) {
		return fileFault("--decisions", err)
	}
	if err != nil {
		return recordingFault(err)
	}
	c.Trace.Name = traceName(f.traffic.paths)
	for i, side := range []*score.Config{&rec.Header.Config, &cfg} {
		c.Runs[i].Flags = map[string]any{"router-policy": side.Policy}
		for _, row := range scorerSettings() {
			if contains(changed, row.name) {
				if v := row.get(side); v != nil {
					c.Runs[i].Flags[row.name] = v
				}
			}
		}
	}
	doc := &report.Document{Version: version(), Seed: cfg.Seed, Flags: allFlags(&cfg), Trace: c.Trace, Runs: c.Runs[:], Changes: &c.Changes}
	return a.deliverChanges(f, doc, files)
}

// deliverChanges is deliver for a comparison: thresholds are about the replayed run.
func (a *app) deliverChanges(f *replayFlags, doc *report.Document, files *resultFiles) error {
	breaches, err := report.CheckThresholds(f.thresholds, doc.Runs[1:])
	if err != nil {
		return hinted("bad condition", "--fail-if", err)
	}
	if files.decisions != nil {
		if err := files.decisions.Commit(); err != nil {
			return fileFault("--decisions", err)
		}
	}
	if err := a.emit(func(w io.Writer) error { return doc.Write(w, f.format) }); err != nil {
		return err
	}
	return breached(breaches)
}
