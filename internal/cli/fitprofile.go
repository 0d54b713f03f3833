package cli

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"github.com/kvroute/kvroute/internal/engine"
	"github.com/kvroute/kvroute/internal/fit"
	"github.com/kvroute/kvroute/internal/plot"
	"github.com/kvroute/kvroute/internal/report"
)

// profileName is what the profile is called: as wished, or after its file.
func (f *fitFlags) nameOfProfile() string {
	if f.profileName != "" {
		return f.profileName
	}
	name := filepath.Base(f.emitProfile)
	return strings.TrimSuffix(name, filepath.Ext(name))
}

// profile makes an engine profile of a fit. What a decode log does not tell is taken from base, and said to be.
func (r *fitted) profile(base *engine.Profile, name string) (*engine.Profile, error) {
	p := *base
	p.Name, p.Measured, p.Assumptions = name, false, nil
	p.Hardware, p.Model, p.Engine = "not told by decode logs", "not told by decode logs", string(r.log.Engine)
	var logs []string
	for _, n := range r.names {
		logs = append(logs, printable(filepath.Base(n)))
	}
	p.StepMS, p.RequestMS, p.ContextMS = r.A.Value*perMS, r.B.Value*perMS, r.C.Value*perMSMillion
	p.Origin = fmt.Sprintf("a, b and c fitted by kvroute %s to %s: %d of %d bins, R2 %.2f, verdict %s", version(), strings.Join(logs, ", "), r.Kept, len(r.Bins), r.R2, r.Verdict)
	assume := func(format string, args ...any) { p.Assumptions = append(p.Assumptions, fmt.Sprintf(format, args...)) }
	if r.Verdict == fit.Refused {
		assume("the fit was refused: a, b and c are not to be trusted")
	}
	if least := r.leastPool(); least > 0 {
		p.KVTokens = least
		p.Origin += fmt.Sprintf("; kv_tokens from %s", r.log.PoolFrom)
	} else {
		assume("kv_tokens is that of the profile %s: the logs do not tell the pool", base.Name)
	}
	assume("prefill speed, chunk, block size, most running requests and transfer are those of the profile %s: decode logs do not tell them", base.Name)
	assume("a worker is one data-parallel rank, and steps as if it were the busiest")
	f := &engine.ProfileFit{
		Verdict: string(r.Verdict), Reasons: []string{}, Engine: string(r.log.Engine), Logs: logs, Digest: r.log.Digest,
		Bins: len(r.Bins), Kept: r.Kept, R2: r.R2,
		StepMS: profileRange(r.A, perMS), RequestMS: profileRange(r.B, perMS), ContextMS: profileRange(r.C, perMSMillion),
	}
	if w := profileRange(r.Weight, 1); finite(w.Low) != nil && finite(w.High) != nil {
		f.Weight = &w
	}
	for _, reason := range r.Reasons {
		f.Reasons = append(f.Reasons, reason.Code)
	}
	p.Fit = f
	return &p, p.Validate()
}

func profileRange(v fit.Interval, unit float64) engine.ProfileRange {
	return engine.ProfileRange{Low: v.Low * unit, High: v.High * unit}
}

// leastPool is the smallest pool of any rank; 0 where none is known.
func (r *fitted) leastPool() int64 {
	least := int64(math.MaxInt64)
	for _, n := range r.log.PoolTokens {
		least = min(least, n)
	}
	if len(r.log.PoolTokens) == 0 {
		return 0
	}
	return least
}

// writeProfile writes the profile of a fit into its file. A refused fit makes none unless that is wished. The error is an
// *unfitError where it cannot be one.
func (a *app) writeProfile(r *fitted, base *engine.Profile, file *report.File) error {
	f := r.flags
	if r.Verdict == fit.Refused && !f.force {
		a.note(f.emitProfile + " is not written, as the fit is refused (--force writes it all the same)")
		return nil
	}
	p, err := r.profile(base, f.nameOfProfile())
	if err != nil {
		return &unfitError{r, err}
	}
	text, err := p.Encode()
	if err != nil {
		return err
	}
	if _, err := file.Write(text); err != nil {
		return fileFault("--emit-profile", err)
	}
	if err := file.Commit(); err != nil {
		return fileFault("--emit-profile", err)
	}
	return nil
}

// unfitError is that of a fit whose coefficients make no profile.
type unfitError struct {
	fit *fitted
	err error // of the profile
}

// Error tells all faults in one line.
func (e *unfitError) Error() string {
	if finite(e.fit.A.Value) == nil {
		return "no coefficients could be fitted"
	}
	return strings.ReplaceAll(e.err.Error(), "\n", "; ")
}

func (e *unfitError) Unwrap() error { return e.err }

// fitFiles are files in the making.
type fitFiles struct {
	plots   []*report.File // as the paths of --plot
	profile *report.File   // nil: none
	base    *engine.Profile
}

// openFitFiles finds out before the logs are read whether results can be written.
func (a *app) openFitFiles(f *fitFlags) (*fitFiles, error) {
	files := &fitFiles{}
	for _, path := range f.plots {
		if _, err := plot.FormatOf(path); err != nil {
			return files, hinted("bad plot", "--plot", err)
		}
	}
	var inputs, out []named
	for _, p := range f.paths {
		inputs = append(inputs, named{p, "the log"})
	}
	for _, p := range f.plots {
		out = append(out, named{p, "--plot"})
	}
	if f.emitProfile != "" {
		out = append(out, named{f.emitProfile, "--emit-profile"})
		if _, builtIn := engine.Lookup(f.baseProfile); !builtIn {
			inputs = append(inputs, named{f.baseProfile, "the base profile"})
		}
	}
	if err := a.keepApart(inputs, out); err != nil {
		return files, err
	}
	for _, p := range f.plots {
		file, err := report.CreateFile(p)
		if err != nil {
			return files, fileFault("--plot", err)
		}
		files.plots = append(files.plots, file)
	}
	if f.emitProfile == "" {
		for _, name := range []string{"profile-name", "base-profile", "force"} {
			if a.given(name) {
				return files, usage("--"+name+" without --emit-profile", "--"+name, "no profile is written", "add --emit-profile FILE")
			}
		}
		return files, nil
	}
	var err error
	if files.base, err = loadProfile(f.baseProfile); err != nil {
		return files, atFlag(err, "--base-profile")
	}
	if files.profile, err = report.CreateFile(f.emitProfile); err != nil {
		return files, fileFault("--emit-profile", err)
	}
	return files, nil
}

// atFlag says that a fault of loadProfile is of another flag than --profile.
func atFlag(err error, flag string) error {
	var f *fault
	if errors.As(err, &f) {
		f.where = flag
	}
	return err
}

// abort drops what was not committed.
func (f *fitFiles) abort() {
	for _, p := range f.plots {
		p.Abort()
	}
	if f.profile != nil {
		f.profile.Abort()
	}
}

// writeFitPlots draws a fit into all its files. There is no plane to draw where nothing could be fitted.
func (a *app) writeFitPlots(r *fitted, out *fitFiles) error {
	if len(out.plots) > 0 && (r.Kept == 0 || finite(r.A.Value) == nil) {
		a.note("no plot is written, as there is no fit to draw")
		return nil
	}
	p := &plot.Fit{
		Title: "Decode steps of " + traceName(r.flags.paths), A: r.A.Value, B: r.B.Value, C: r.C.Value,
		Note: fmt.Sprintf("verdict %s  ·  W %s tokens (%s to %s)  ·  R2 %.2f  ·  %d of %d bins  ·  kvroute %s",
			r.Verdict, figure(r.Weight.Value), figure(r.Weight.Low), figure(r.Weight.High), r.R2, r.Kept, len(r.Bins), version()),
	}
	p.Paste, _ = r.paste()
	for _, b := range r.Bins {
		p.Points = append(p.Points, plot.FitPoint{AtNS: b.AtNS, Step: b.Step, Requests: b.Running, Tokens: b.Held, Kept: b.Kept})
	}
	for i, path := range r.flags.plots {
		format, err := plot.FormatOf(path)
		if err != nil {
			return err
		}
		if err := plot.WriteFit(out.plots[i], format, p); err != nil {
			return fileFault("--plot", err)
		}
		if err := out.plots[i].Commit(); err != nil {
			return fileFault("--plot", err)
		}
	}
	return nil
}
