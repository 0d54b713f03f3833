package sweep_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvroute/kvroute/internal/report"
	"github.com/kvroute/kvroute/internal/sweep"
)

func TestParseAxis(t *testing.T) {
	for _, c := range []struct {
		in     string
		flag   string
		values []sweep.Value
	}{
		{"kv-overlap-weight=0,0.25,20", "kv-overlap-weight", []sweep.Value{0.0, 0.25, 20.0}},
		{" --kv-overlap-weight = 1 , 2 ", "kv-overlap-weight", []sweep.Value{1.0, 2.0}},
		{"kv-recent-weight=-0", "kv-recent-weight", []sweep.Value{0.0}},
		{"router-policy=least-work,kv-aware", "router-policy", []sweep.Value{"least-work", "kv-aware"}},
		{"workers=2,4,8", "workers", []sweep.Value{int64(2), int64(4), int64(8)}},
		{"capacity=0,5859,64k,2Ki", "capacity", []sweep.Value{int64(0), int64(5859), int64(64000), int64(2048)}},
		{"event-delay=0,50ms,1m30s", "event-delay", []sweep.Value{"0s", "50ms", "1m30s"}},
		{"prefix-threshold=0,0.5,1", "prefix-threshold", []sweep.Value{0.0, 0.5, 1.0}},
		{"session-affinity=off,both", "session-affinity", []sweep.Value{"off", "both"}},
		{"decode-input-demand=shadow", "decode-input-demand", []sweep.Value{"shadow"}},
		{"decode-request-weight=1e3", "decode-request-weight", []sweep.Value{1000.0}},
		{"outstanding=1,8", "outstanding", []sweep.Value{int64(1), int64(8)}},
		{"routers=1,3", "routers", []sweep.Value{int64(1), int64(3)}},
	} {
		got, err := sweep.ParseAxis(c.in, sweep.Flags())
		if err != nil {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		if got.Flag.Name != c.flag {
			t.Errorf("%q: flag %q, want %q", c.in, got.Flag.Name, c.flag)
		}
		if diff := cmp.Diff(c.values, got.Values); diff != "" {
			t.Errorf("%q: %s", c.in, diff)
		}
	}
}

func TestParseAxisRejects(t *testing.T) {
	for _, c := range []struct{ in, message, hint string }{
		{"kv-overlp-weight=1", `no flag "kv-overlp-weight"`, "kv-overlap-weight"},
		{"wokers=1,2", `no flag "wokers"`, "workers"},
		{"=1", `no flag ""`, "one of"},
		{"kv-overlap-weight", "no '='", "--sweep"},
		{"", "no '='", ""},
		{"kv-overlap-weight=", "no values", ""},
		{"kv-overlap-weight=1,,2", `value ""`, ""},
		{"kv-overlap-weight=1,1.0", "value 1 twice", ""},
		{"kv-overlap-weight=NaN", "not a number", ""},
		{"kv-overlap-weight=inf", "not a number", ""},
		{"kv-overlap-weight=0x10", "not a number", ""},
		{"kv-overlap-weight=-1", "negative", ""},
		{"kv-overlap-weight=1e13", "more than", ""},
		{"prefix-threshold=1.5", "not between 0 and 1", ""},
		{"router-policy=kv-awre", `"kv-awre"`, "kv-aware"},
		{"workers=0", "less than 1", ""},
		{"workers=1.5", "not a whole number", ""},
		{"workers=99999999999999999999", "too large", ""},
		{"capacity=90000000G", "too large", ""},
		{"capacity=-1", "less than 0", ""},
		{"workers=-9223372036854775807gi", "less than 1", ""},
		{"capacity=-9223372036854775808k", "less than 0", ""},
		{"event-delay=50", "not a time", "250ms"},
		{"event-delay=-1s", "negative", ""},
		{"kv-overlap-weight=" + strings.Repeat("1,", 3), "twice", ""},
	} {
		_, err := sweep.ParseAxis(c.in, sweep.Flags())
		if err == nil {
			t.Errorf("%q: no error", c.in)
			continue
		}
		if !strings.Contains(err.Error(), c.message) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: error %q, want %q in it on one line", c.in, err, c.message)
		}
		var h *report.HintError
		if !errors.As(err, &h) || !strings.Contains(h.Hint, c.hint) {
			t.Errorf("%q: hint of %v, want %q", c.in, err, c.hint)
		}
	}
	// What a command does not allow is as unknown as a typo.
	if _, err := sweep.ParseAxis("workers=1", sweep.Flags()[:9]); err == nil {
		t.Error("a flag that is not allowed was taken")
	}
}

func TestParseAxes(t *testing.T) {
	axes, err := sweep.ParseAxes([]string{"workers=2,4", "kv-overlap-weight=1,2"}, sweep.Flags())
	if err != nil || len(axes) != 2 {
		t.Fatalf("%v, %v", axes, err)
	}
	_, err = sweep.ParseAxes([]string{"workers=2,4", "workers=8", "wokers=1"}, sweep.Flags())
	if err == nil || !strings.Contains(err.Error(), "swept twice") || !strings.Contains(err.Error(), "wokers") {
		t.Errorf("both faults: %v", err)
	}
	var many []string
	for _, f := range []string{"workers", "capacity", "outstanding", "routers"} {
		many = append(many, f+"=1,2,3,4,5,6,7,8,9,10,11")
	}
	if _, err := sweep.ParseAxes(many, sweep.Flags()); err == nil || !strings.Contains(err.Error(), "more than 10000 points") {
		t.Errorf("14,641 points: %v", err)
	}
}

func FuzzParseAxis(f *testing.F) {
	for _, s := range []string{"kv-overlap-weight=0,0.25", "router-policy=kv-aware", "workers=2k", "event-delay=1h", "=", "capacity=1Gi,", "--workers = 3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		axis, err := sweep.ParseAxis(s, sweep.Flags())
		if err != nil {
			return
		}
		if len(axis.Values) == 0 {
			t.Fatal("an axis without values")
		}
		texts := make([]string, len(axis.Values))
		for i, v := range axis.Values {
			texts[i] = report.FlagValue(v)
		}
		again, err := sweep.ParseAxis(axis.Flag.Name+"="+strings.Join(texts, ","), sweep.Flags())
		if err != nil {
			t.Fatalf("%q: what is printed does not parse: %v", s, err)
		}
		if diff := cmp.Diff(axis.Values, again.Values); diff != "" {
			t.Fatalf("%q: other values the second time: %s", s, diff)
		}
	})
}
