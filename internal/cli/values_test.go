package cli

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/sweep"
)

func TestParseCount(t *testing.T) {
	good := map[string]int64{
		"0": 0, "8": 8, "64k": 64_000, "64K": 64_000, "2GiB": 2 << 30, "1Mi": 1 << 20, "1.5k": 1500, "3MB": 3_000_000,
		"9007199254740993": 9007199254740993, " 5 ": 5, "1e3": 1000, "12 k": 12_000, "7B": 7,
	}
	for text, want := range good {
		if got, err := parseCount(text); err != nil || got != want {
			t.Errorf("parseCount(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "-1k", "x", "1.5", "0x10", "1_000", "nan", "inf", "1e30", "99999999999999999999", "kk", "k", "1kk", "+", "1e-3"} {
		if got, err := parseCount(text); err == nil {
			t.Errorf("parseCount(%q) = %d, want an error", text, got)
		}
	}
}

func TestCountBetween(t *testing.T) {
	parse := countBetween(2, 5000)
	for text, want := range map[string]int64{"2": 2, "5k": 5000, "1Ki": 1024} {
		if got, err := parse(text); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"1", "5001", "4kB", "2b", "1KiB", "x"} { // blocks and workers are no bytes
		if got, err := parse(text); err == nil {
			t.Errorf("%q is %d, want an error", text, got)
		}
	}
}

func TestParseReal(t *testing.T) {
	for text, want := range map[string]float64{"0": 0, "0.25": 0.25, "20": 20, "1e3": 1000} {
		if got, err := parseReal(text); err != nil || got != want {
			t.Errorf("parseReal(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "NaN", "Inf", "-Inf", "-1", "one", "1e999"} {
		if got, err := parseReal(text); err == nil {
			t.Errorf("parseReal(%q) = %v, want an error", text, got)
		}
	}
	if _, err := parsePositive("0"); err == nil {
		t.Error("parsePositive(0): want an error")
	}
}

func TestParseSpan(t *testing.T) {
	if got, err := parseSpan("250ms"); err != nil || got != 250*time.Millisecond {
		t.Errorf("parseSpan(250ms) = %v, %v", got, err)
	}
	for _, text := range []string{"", "5", "-1s", "1 day", "ms"} {
		if got, err := parseSpan(text); err == nil {
			t.Errorf("parseSpan(%q) = %v, want an error", text, got)
		}
	}
}

// TestScorerTable holds the table of scorer flags against its neighbours: the defaults are the
// documented ones, and what a sweep accepts, the flag accepts, and the other way round.
func TestScorerTable(t *testing.T) {
	defaults := map[string]any{
		"router-policy": "least-work", "kv-overlap-weight": 1.0, "kv-prefill-overlap-weight": nil, "kv-decode-overlap-weight": nil,
		"kv-recent-weight": 0.0, "prefix-threshold": 0.5, "decode-input-demand": "off", "decode-request-weight": 0.0, "session-affinity": "off",
	}
	d := score.Defaults()
	var names []string
	for _, row := range scorerSettings() {
		names = append(names, row.name)
		want, ok := defaults[row.name]
		if got := row.get(&d); !ok || got != want {
			t.Errorf("default of --%s is %v, want %v", row.name, got, want)
		}
	}
	if len(names) != len(defaults) {
		t.Errorf("the table has %d flags, want %d", len(names), len(defaults))
	}
	if want := report.ScorerFlags(); !reflect.DeepEqual(names, want) {
		t.Errorf("the table's flags are %q, the report's %q", names, want)
	}
	samples := []string{
		"", "0", "-0", "0.5", "1", "2", "20", "1e3", "1e13", "-1", "NaN", "inf", "one", "off", "on", "shadow", "both", "prefill",
		"kv-aware", "least-work", "kvaware", "OFF", "1k", "0x1p3", "1_0",
	}
	rows := map[string]scorerSetting{}
	for _, row := range scorerSettings() {
		rows[row.name] = row
	}
	for _, f := range sweep.Flags() {
		row, ok := rows[f.Name]
		if ok != f.Scorer {
			t.Errorf("sweep says of %s that it is a scorer flag: %v; the table: %v", f.Name, f.Scorer, ok)
		}
		if !ok {
			continue
		}
		for _, text := range samples {
			if text == "" {
				continue // the end of a sweep's list, not a value
			}
			c := score.Defaults()
			errFlag := row.set(&c, text)
			axis, errSweep := sweep.ParseAxis(f.Name+"="+text, sweep.Flags())
			if errSweep == nil && errFlag == nil {
				if got, want := axis.Values[0], row.get(&c); got != want {
					t.Errorf("%s %q: a sweep reads %v, the flag %v", f.Name, text, got, want)
				}
				continue
			}
			if errFlag == nil {
				errFlag = boundsOnly(&c, f.Name) // what the flag leaves to Validate
			}
			if (errFlag == nil) != (errSweep == nil) {
				t.Errorf("%s %q: a sweep says %v, the flag %v", f.Name, text, errSweep, errFlag)
			}
		}
	}
}

// boundsOnly returns Validate's complaint about one field.
func boundsOnly(c *score.Config, field string) error {
	var all score.FieldErrors
	if errors.As(c.Validate(), &all) {
		for _, e := range all {
			if e.Field == field {
				return e
			}
		}
	}
	return nil
}

func TestParseCandidate(t *testing.T) {
	c, err := parseCandidate("[::1]:8000:hits=8,active=6,pending=4k,held=2,held-tokens=9,recent=1.5")
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "[::1]:8000" || c.Hits != 8 || c.Load.ActiveBlocks != 6 || c.Load.PendingTokens != 4000 ||
		c.Load.HeldRequests != 2 || c.Load.HeldTokens != 9 || c.Recent != 1.5 {
		t.Errorf("got %+v", c)
	}
	if c, err := parseCandidate("host:8000"); err != nil || c.Name != "host:8000" {
		t.Errorf("host:8000: got %+v, %v", c, err)
	}
}

func FuzzParseCandidate(f *testing.F) {
	for _, s := range []string{"W0:hits=8,active=6", "W0", ":hits=1", "a:b:hits=1", "x:hits", "x:hits=1,hits=2", "x:recent=NaN", "=", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := parseCandidate(s)
		if err == nil && (c.Name == "" || !strings.HasPrefix(s, c.Name) || c.Hits < 0 || c.Load.ActiveBlocks < 0 || math.IsNaN(c.Recent)) {
			t.Errorf("%q gives %+v", s, c)
		}
	})
}

func FuzzParseConfig(f *testing.F) {
	for _, s := range []string{"seed: 1\n", "seed: [1, 2]", "# only a comment", "seed: {a: b}", "a: &x 1\nseed: *x", "--- \n...", "seed: |\n  1\n", "\x00", "? seed\n: 1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		settings, err := parseConfig("f.yaml", text, []string{"seed", "router-policy"})
		for name, s := range settings {
			if err == nil && (len(s.values) == 0 || !strings.HasPrefix(s.place, "f.yaml:")) {
				t.Errorf("%q: setting %s is %+v", text, name, s)
			}
		}
		if err != nil && exitCode(err) != exitUsage {
			t.Errorf("%q: exit code %d for %v", text, exitCode(err), err)
		}
	})
}
