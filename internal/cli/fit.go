package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/decodelog"
	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/fit"
)

const (
	groupLogs = "Decode logs"
	groupFit  = "Fit"
)

// fitFlags are the flags of fit.
type fitFlags struct {
	paths      []string
	engine     string
	poolTokens int64
	minStep    time.Duration
	maxStep    time.Duration
	year       int
	follow     bool
	every      time.Duration

	bin       time.Duration
	bootstrap int
	holdout   float64
	seed      uint64

	format      string
	ascii       bool
	plots       []string
	emitProfile string
	profileName string
	baseProfile string
	force       bool
}

func (a *app) newFit() *cobra.Command {
	var f fitFlags
	cmd := &cobra.Command{
		Use:   "fit LOG…",
		Short: "Find the decode request weight in engines' decode logs",
		Long: `Fits the time of a decode step, a + b·R + c·T, to what engines log: R the
requests and T the tokens of context on the busiest rank. The weight W = b/c is
the context, in tokens, that costs a step as much as one more request does:
what serve, sim and replay take as --decode-request-weight.

Logs are decode lines of SGLang (also with ranks, speculation, prefixes of
containers, several files, rotated and packed ones), statistics lines of vLLM
or its metrics scraped over time, and recordings of kvroute serve. - is stdin.

The verdict is good, weak or refused, with the reasons; a refused fit ends with
exit code 3. Each reason is explained in docs/fit.md.`,
		Example: `  kvroute fit traces/decode/g52-pd-dp8-nomtp.log.gz
  # and try what it says on a trace, on a fleet with the costs that were fitted
  kvroute fit traces/decode/g52-pd-dp8-nomtp.log.gz --emit-profile mine.yaml && kvroute sim traces/golden/sessions80-serial.jsonl.gz --engine batch --profile mine.yaml --workers 4
  # for scripts
  zcat traces/decode/g52-pd-dp8-nomtp.log.gz | kvroute fit - -o json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("no log", cmd.CommandPath(), "no file is given", "name decode logs, or - for stdin")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.paths = args
			return a.fit(cmd.Context(), &f)
		},
	}
	bindFitInput(cmd, &f)
	bindFitModel(cmd, &f)
	bindOutput(cmd, &f.format, formatTable, formatJSON, formatJSONL, formatCSV)
	bindSwitch(cmd, cmd.Flags(), spec{name: "ascii", group: groupOutput, usage: "draw the picture of the table in ASCII, also off a terminal"}, &f.ascii)
	bindFitFiles(cmd, &f)
	return cmd
}

func bindFitFiles(cmd *cobra.Command, f *fitFlags) {
	fs := cmd.Flags()
	bindList(cmd, fs, spec{
		name: "plot", arg: "FILE", group: groupOutput, local: true,
		usage: "also draw measured against fitted steps, what is left over time, and the slices of the plane: .svg, .png or .html; repeatable",
	}, "", &f.plots, parseText)
	bind(cmd, fs, spec{
		name: "emit-profile", arg: "FILE", group: groupOutput, local: true,
		usage: "also write an engine profile with what was fitted, for sim --engine batch --profile FILE",
	}, &f.emitProfile, parseText)
	bind(cmd, fs, spec{name: "profile-name", arg: "NAME", group: groupOutput, local: true, usage: "name of that profile (default: the file's)"}, &f.profileName, parseText)
	bind(cmd, fs, spec{
		name: "base-profile", arg: "NAME|FILE", def: engine.DefaultProfile, group: groupOutput, local: true, values: engine.ProfileNames(),
		usage: "profile that the rest of it comes from, as prefill speed and transfer, which decode logs do not tell",
	}, &f.baseProfile, parseText)
	bindSwitch(cmd, fs, spec{name: "force", group: groupOutput, local: true, usage: "write the profile of a refused fit, too"}, &f.force)
}

func bindFitInput(cmd *cobra.Command, f *fitFlags) {
	fs := cmd.Flags()
	engines := []string{string(decodelog.Auto), string(decodelog.SGLang), string(decodelog.VLLM), string(decodelog.ATOM), string(decodelog.KVRoute)}
	bind(cmd, fs, spec{
		name: "engine", arg: "NAME", def: engines[0], group: groupLogs, values: engines, local: true,
		usage: "whose logs they are: auto looks at the content; sglang, vllm, atom, kvroute (recordings)",
	}, &f.engine, oneOf(engines...))
	bind(cmd, fs, spec{
		name: "pool-tokens", arg: "TOKENS", group: groupLogs, local: true,
		usage: "KV pool of a rank, where the log tells its use as a share only and not its size",
	}, &f.poolTokens, countBetween(1, 1<<40))
	bind(cmd, fs, spec{
		name: "min-step", arg: "TIME", def: "5ms", group: groupLogs, local: true,
		usage: "leave out lines whose decode step is shorter",
	}, &f.minStep, spanAtLeast(time.Nanosecond))
	bind(cmd, fs, spec{
		name: "max-step", arg: "TIME", def: "250ms", group: groupLogs, local: true,
		usage: "leave out lines whose decode step is longer: pauses and idle times",
	}, &f.maxStep, spanAtLeast(time.Nanosecond))
	bind(cmd, fs, spec{
		name: "year", arg: "YEAR", group: groupLogs, local: true,
		usage: "year of dates that have none",
	}, &f.year, intBetween(1970, 9999))
	bindSwitch(cmd, fs, spec{
		name: "follow", short: "f", group: groupLogs, local: true,
		usage: "go on as logs grow, also where they are rotated, and tell the fit every so often; interrupted, the last one is printed",
	}, &f.follow)
	bind(cmd, fs, spec{name: "every", arg: "TIME", def: "10s", group: groupLogs, local: true, usage: "how often --follow tells, if lines came"}, &f.every, spanAtLeast(time.Millisecond))
}

func bindFitModel(cmd *cobra.Command, f *fitFlags) {
	fs := cmd.Flags()
	bind(cmd, fs, spec{
		name: "bin", arg: "TIME", def: time.Duration(fit.DefaultBinNS).String(), group: groupFit, local: true,
		usage: "lines of so long a time are one observation: the median step, the busiest rank",
	}, &f.bin, spanAtLeast(100*time.Millisecond))
	bind(cmd, fs, spec{
		name: "bootstrap", arg: "N", def: fmt.Sprint(fit.DefaultDraws), group: groupFit, local: true,
		usage: "draws of the block bootstrap that intervals come from",
	}, &f.bootstrap, intBetween(20, 100_000))
	bind(cmd, fs, spec{
		name: "holdout", arg: "SHARE", def: fmt.Sprint(fit.DefaultHoldout), group: groupFit, local: true,
		usage: "share of the log, its end, that the error of a fit on the rest is measured on",
	}, &f.holdout, parseHoldout)
	bind(cmd, fs, spec{name: "seed", arg: "N", def: "0", group: groupFit, local: true, usage: "seed of the bootstrap"}, &f.seed, parseSeed)
}

// parseHoldout reads a share that leaves something to fit and something to hold out.
func parseHoldout(s string) (float64, error) {
	x, err := parsePositive(s)
	if err == nil && x > 0.9 {
		err = &valueError{why: "more than 0.9"}
	}
	return x, err
}

func (f *fitFlags) logOptions() decodelog.Options {
	return decodelog.Options{
		Engine: decodelog.Engine(f.engine), PoolTokens: f.poolTokens, Year: f.year,
		MinStep: f.minStep.Seconds(), MaxStep: f.maxStep.Seconds(),
	}
}

func (f *fitFlags) fitOptions() fit.Options {
	return fit.Options{BinNS: f.bin.Nanoseconds(), Draws: f.bootstrap, Seed: f.seed, Holdout: f.holdout}
}

// fitted is a fit with what it was made from.
type fitted struct {
	*fit.Result
	log   *decodelog.Report
	names []string // of the logs, by Source
	flags *fitFlags
}

// check finds what is wrong with flags that do not fit together.
func (f *fitFlags) check() error {
	if f.minStep >= f.maxStep {
		return usage("no step can be used", "--min-step", fmt.Sprintf("%s is not below --max-step %s", f.minStep, f.maxStep), "")
	}
	if f.follow && f.engine == string(decodelog.KVRoute) {
		return usage("cannot follow recordings", "--follow", "a recording is read whole", "fit it without --follow")
	}
	return nil
}

func (a *app) fit(ctx context.Context, f *fitFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	if a.given("every") && !f.follow {
		return usage("--every without --follow", "--every", "logs that do not grow are told once", "add --follow")
	}
	out, err := a.openFitFiles(f)
	defer out.abort()
	if err != nil {
		return err
	}
	if f.follow {
		return a.followLogs(ctx, f, out)
	}
	res, err := a.fitLogs(ctx, f)
	if err != nil {
		return err
	}
	return a.deliverFit(res, out)
}

// deliverFit writes the files, then the result, so that a result on stdout means that the files are there. A fit that makes
// no profile is told all the same.
func (a *app) deliverFit(res *fitted, out *fitFiles) error {
	if err := a.writeFitPlots(res, out); err != nil {
		return err
	}
	var unfit *unfitError
	if out.profile != nil {
		if err := a.writeProfile(res, out.base, out.profile); err != nil && !errors.As(err, &unfit) {
			return err
		}
	}
	if err := a.emit(func(w io.Writer) error { return a.writeFit(w, res) }); err != nil {
		return err
	}
	switch err := res.refusal(); {
	case unfit == nil:
		return err
	case err != nil:
		a.note(fmt.Sprintf("%s is not written in spite of --force: %s", res.flags.emitProfile, unfit))
		return err
	}
	return failed("cannot make a profile of this fit", "--emit-profile", unfit)
}

// fitLogs reads all logs to their ends and fits them.
func (a *app) fitLogs(ctx context.Context, f *fitFlags) (*fitted, error) {
	sources, closeAll, err := a.openLogs(ctx, f)
	defer closeAll()
	if err != nil {
		return nil, err
	}
	p := a.newProgress("bytes read")
	defer p.finish()
	countLogs(sources, f.paths, p)
	read, err := readerOf(f, sources)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	fitter := fit.New(f.fitOptions())
	hand, done := besides(fitter.Add)
	rep, err := read(ctx, sources, f.logOptions(), hand)
	done()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, logFault(err)
	}
	p.finish()
	fitter.Describe(rep)
	return newFitted(fitter.Result(), rep, sources, f), nil
}

func newFitted(res *fit.Result, rep *decodelog.Report, sources []decodelog.Source, f *fitFlags) *fitted {
	r := &fitted{Result: res, log: rep, flags: f}
	for _, s := range sources {
		r.names = append(r.names, s.Name)
	}
	return r
}

// refusal is the fault of a refused fit; nil where it is not.
func (r *fitted) refusal() error {
	if r.Verdict != fit.Refused {
		return nil
	}
	f := &fault{code: exitThreshold, what: "the fit is refused", why: "no reason was found"}
	for _, reason := range r.Reasons {
		if reason.Refuses {
			f.why, f.hint = reason.Text, reason.Hint
			break
		}
	}
	return f
}
