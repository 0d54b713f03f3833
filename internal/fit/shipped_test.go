package fit_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kvroute/kvroute/internal/decodelog"
	"github.com/kvroute/kvroute/internal/fit"
	"github.com/kvroute/kvroute/internal/testtraces"
)

// samplesOf reads one of the logs of decodelog.
func samplesOf(tb testing.TB, name string) []decodelog.Sample {
	tb.Helper()
	file, err := os.Open(testtraces.Bundled("internal/decodelog/testdata/decode-logs/" + name))
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	return read(tb, name, file)
}

func read(tb testing.TB, name string, r io.Reader) []decodelog.Sample {
	tb.Helper()
	var samples []decodelog.Sample
	_, err := decodelog.Read(context.Background(), []decodelog.Source{{Name: name, R: r}}, decodelog.Options{}, func(s *decodelog.Sample) error {
		samples = append(samples, *s)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return samples
}

func fitSamples(samples []decodelog.Sample, opt fit.Options) *fit.Result {
	f := fit.New(opt)
	for i := range samples {
		f.Add(&samples[i])
	}
	return f.Result()
}

func wholeLog(tb testing.TB, name string, opt fit.Options) *fit.Result {
	return fitSamples(samplesOf(tb, name), opt)
}

func near(tb testing.TB, what string, got, want, relative float64) {
	tb.Helper()
	if !(math.Abs(got-want) <= relative*math.Abs(want)) {
		tb.Errorf("%s = %.10g, want %.10g within %g", what, got, want, relative)
	}
}

// The figures of an independent implementation are in its README.md.
func TestWholeLogs(t *testing.T) {
	r := wholeLog(t, "g52-pd-dp8-nomtp.log.gz", fit.Options{})
	if len(r.Bins) != 310 || r.Unit != fit.UnitAll || r.BinNS != 3e9 {
		t.Errorf("%d bins of %d ns, unit %s; want 310 of 3 s, of all ranks", len(r.Bins), r.BinNS, r.Unit)
	}
	near(t, "kept share", float64(r.Kept)/float64(len(r.Bins)), 0.94, 0.01)
	near(t, "plain a", r.Plain[0], 18.4e-3, 0.05)
	near(t, "plain b", r.Plain[1], 1.26e-3, 0.05)
	near(t, "plain c", r.Plain[2], 13.4e-9, 0.05)
	near(t, "plain W", r.Plain[1]/r.Plain[2], 0.095e6, 0.05)
	near(t, "a", r.A.Value, 17.9e-3, 0.05)
	near(t, "b", r.B.Value, 1.46e-3, 0.05)
	near(t, "c", r.C.Value, 15.2e-9, 0.05)
	near(t, "W", r.Weight.Value, 0.096e6, 0.05)
	near(t, "R2", r.R2, 0.95, 0.01)
	// The reference's interval is 0.04 to 0.13 million, without the stretch for what blocks do not see.
	if w := r.Weight; !(w.Low > 0.02e6 && w.Low < 0.06e6 && w.High > 0.11e6 && w.High < 0.17e6) {
		t.Errorf("interval of W %v, want about 0.04 to 0.13 million", w)
	}
	// So wide an interval cannot be good, whatever the point.
	if r.Verdict != fit.Weak {
		t.Errorf("verdict %s %v, want weak", r.Verdict, r.Reasons)
	}
	if len(r.Ranks) != 8 || r.Spread.Requests < 1 || r.Spread.Tokens < 1 || r.Spread.Straggler != -1 {
		t.Errorf("%d ranks, spread %+v; want 8, and no straggler", len(r.Ranks), r.Spread)
	}

	r = wholeLog(t, "g52-pd-dp8-short.log.gz", fit.Options{})
	if len(r.Bins) != 43 {
		t.Errorf("short: %d bins, want 43", len(r.Bins))
	}
	if r.Verdict != fit.Refused || r.Reasons[0].Code != fit.CodeReachesZero {
		t.Errorf("short: %s %v, want it refused since the interval has no end", r.Verdict, r.Reasons)
	}
}

// The reference takes requests and tokens as printed, at the ends of the intervals. Taken so, the plain fits of both
// logs are its figures.
func TestWholeLogsAsPrinted(t *testing.T) {
	for name, want := range map[string]struct {
		bins    int
		a, b, c float64
	}{
		"g52-pd-dp8-nomtp.log.gz": {310, 18.4e-3, 1.26e-3, 13.4e-9},
		"g52-pd-dp8-short.log.gz": {43, 19.4e-3, 0.69e-3, 213e-9},
	} {
		f := fit.New(fit.Options{Draws: 1})
		for _, s := range samplesOf(t, name) {
			s.Measured, s.Meanwhile = true, true
			f.Add(&s)
		}
		r := f.Result()
		if len(r.Bins) != want.bins {
			t.Errorf("%s: %d bins, want %d", name, len(r.Bins), want.bins)
		}
		near(t, name+": plain a", r.Plain[0], want.a, 0.005)
		near(t, name+": plain b", r.Plain[1], want.b, 0.005)
		near(t, name+": plain c", r.Plain[2], want.c, 0.005)
	}
}

// oracle is what testdata/oracle.py found over the same bins.
var oracle = map[string][3]float64{
	"g52-pd-dp8-nomtp.log.gz": {0.018398109531191923, 0.0012568099541550833, 1.3298278132700802e-08},
	"g52-pd-dp8-short.log.gz": {0.024249033890017528, 0.0003510979553301686, 3.85513213734649e-08},
}

// TestPlainAgreesWithNumpy holds the plain fit against stored values of numpy, and against numpy itself where it is
// (KVROUTE_PYTHON names the interpreter).
func TestPlainAgreesWithNumpy(t *testing.T) {
	python := os.Getenv("KVROUTE_PYTHON")
	if python == "" {
		python = "python3"
	}
	have := exec.Command(python, "-c", "import numpy").Run() == nil
	if !have {
		t.Logf("%s has no numpy: stored values only (KVROUTE_PYTHON names another one)", python)
	}
	for name, want := range oracle {
		r := wholeLog(t, name, fit.Options{Draws: 1})
		for i, what := range []string{"a", "b", "c"} {
			near(t, name+": plain "+what, r.Plain[i], want[i], 1e-6)
		}
		if !have {
			continue
		}
		var rows bytes.Buffer
		for _, b := range r.Bins {
			fmt.Fprintf(&rows, "%.17g,%.17g,%.17g\n", b.Step, b.Running, b.Held)
		}
		cmd := exec.Command(python, filepath.Join("testdata", "oracle.py"))
		cmd.Stdin = &rows
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("oracle.py: %v", err)
		}
		var now [3]float64
		if _, err := fmt.Sscan(string(out), &now[0], &now[1], &now[2]); err != nil {
			t.Fatalf("oracle.py printed %q: %v", out, err)
		}
		t.Logf("%s: numpy %v, fit %v", name, now, r.Plain)
		for i, what := range []string{"a", "b", "c"} {
			near(t, name+": plain "+what+" of numpy now", r.Plain[i], now[i], 1e-6)
		}
	}
}
