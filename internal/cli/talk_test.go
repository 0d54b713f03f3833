package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/trace"
)

func TestExitCodes(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want int
	}{
		{"none", nil, 0},
		{"plain", errors.New("x"), 1},
		{"usage", usage("a", "b", "c", ""), 2},
		{"wrapped usage", fmt.Errorf("doing: %w", usage("a", "b", "c", "")), 2},
		{"failed", failed("a", "b", errors.New("x")), 1},
		{"threshold", &fault{code: exitThreshold}, 3},
		{"unreachable", &fault{code: exitUnreachable}, 4},
		{"interrupted", fmt.Errorf("running: %w", context.Canceled), 130},
	}
	for _, tt := range tests {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("%s: exit code %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestSayIsOneLineAndAHint(t *testing.T) {
	var b bytes.Buffer
	say(&b, &fault{what: "what", where: "f:3", why: "two\nlines \x1b[31m", hint: "do\nthis"})
	if got, want := b.String(), "kvroute: what: f:3: two; lines ?[31m\nhint: do; this\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	b.Reset()
	say(&b, fmt.Errorf("reading: %w", context.Canceled))
	if got, want := b.String(), "kvroute: interrupted\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestInterruptedRun(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("signal: interrupt"))
	var out, errs bytes.Buffer
	code := Run(ctx, []string{"trace", "stats", "-"}, strings.NewReader(`{"timestamp":0}`), &out, &errs)
	if code != 130 || out.Len() > 0 || errs.String() != "kvroute: interrupted\n" {
		t.Errorf("code %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
}

// TestInterruptedWhileReadingStdin: nobody types anything, the signal ends the run all the same.
func TestInterruptedWhileReadingStdin(t *testing.T) {
	for _, args := range [][]string{{"trace", "stats", "-"}, {"explain", "--decisions", "-"}} {
		ctx, cancel := context.WithCancelCause(context.Background())
		in, w := io.Pipe()
		codes := make(chan int)
		var out, errs bytes.Buffer
		go func() { codes <- Run(ctx, args, in, &out, &errs) }()
		if _, err := w.Write([]byte("{")); err != nil { // the program has begun to read
			t.Fatal(err)
		}
		cancel(errors.New("signal: interrupt"))
		if code := <-codes; code != 130 || out.Len() > 0 || errs.String() != "kvroute: interrupted\n" {
			t.Errorf("%q: code %d, stdout %q, stderr %q", args, code, out.String(), errs.String())
		}
		_ = w.Close() // lets the reading goroutine end
	}
}

// clock is a time that moves when told.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

// stopAt passes on what is written and cancels the run at the first byte.
type stopAt struct {
	w      io.Writer
	cancel context.CancelFunc
}

func (s stopAt) Write(p []byte) (int, error) {
	s.cancel()
	return s.w.Write(p)
}

// TestInterruptedWhileWriting: a signal stops a trace on its way out too, and leaves no file.
func TestInterruptedWhileWriting(t *testing.T) {
	const big = "../../traces/mooncake/conversation_15min.jsonl.gz"
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var out, errs bytes.Buffer
	code := Run(ctx, []string{"trace", "convert", big}, strings.NewReader(""), stopAt{&out, cancel}, &errs)
	if code != 130 || errs.String() != "kvroute: interrupted\n" {
		t.Errorf("to stdout: code %d, stderr %q", code, errs.String())
	}
	for _, name := range []string{"out.jsonl", "out.jsonl.gz", "out.jsonl.zst"} {
		ctx, cancel := context.WithCancel(context.Background())
		dir := t.TempDir()
		a := app{stdout: io.Discard, stderr: io.Discard, env: map[string]string{}}
		err := a.edit(ctx, &outFlags{to: "kvroute", out: filepath.Join(dir, name)}, nil, func() (*trace.Workload, error) {
			w, err := a.loadPaths(ctx, &traceFlags{}, []string{big})
			cancel() // after the last read
			return w, err
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("to %s: got %v, want the interruption", name, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("to %s: left behind: %v, %v", name, left, err)
		}
	}
}

func TestProgress(t *testing.T) {
	c := &clock{time.Unix(0, 0)}
	var b bytes.Buffer
	a := &app{stderr: &b, errTerm: true, now: c.now, env: map[string]string{}}
	p := a.newProgress("requests")
	p.step(10, 1000)
	if b.Len() > 0 {
		t.Fatalf("progress within the first second: %q", b.String())
	}
	c.t = c.t.Add(2 * time.Second)
	p.step(500, 1000)
	if got, want := b.String(), "\r500 of 1000 requests (50 %), 250/s, 2.0s left"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	n := b.Len()
	c.t = c.t.Add(time.Millisecond)
	p.step(501, 1000)
	if b.Len() != n {
		t.Errorf("redrawn after a millisecond: %q", b.String()[n:])
	}
	c.t = c.t.Add(2 * time.Second)
	p.step(1000, 1000)
	b.Reset()
	p.finish()
	if got := strings.TrimRight(b.String(), " \n"); got != "\r1000 requests in 4.0s (250/s)" {
		t.Errorf("last line %q", got)
	}
	if !strings.HasSuffix(b.String(), "\n") {
		t.Error("the last line does not stay")
	}
}

// TestProgressOfTraces: reading and measuring a large trace is seen, and its last line ends before the result.
func TestProgressOfTraces(t *testing.T) {
	const path = "../../traces/mooncake/conversation_15min.jsonl.gz"
	var errs bytes.Buffer
	clock := time.Unix(0, 0)
	a := app{stderr: &errs, errTerm: true, env: map[string]string{}, now: func() time.Time {
		clock = clock.Add(300 * time.Millisecond)
		return clock
	}}
	w, err := a.loadPaths(context.Background(), &traceFlags{}, []string{path})
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	got := errs.String()
	all := short(float64(st.Size())) + " of " + short(float64(st.Size())) + " bytes read (100 %)"
	if !strings.Contains(got, all) || !strings.HasSuffix(got, "\n") || strings.Count(got, "\n") != 1 {
		t.Errorf("reading: got %q, want %q in it and one line at the end", got, all)
	}
	errs.Reset()
	s, err := a.measure(context.Background(), w, []int{10, 20, 30, 40, 50})
	if err != nil || len(s.SingleLRU) != 5 {
		t.Fatalf("measured %d caches, %v; want 5", len(s.SingleLRU), err)
	}
	if got := errs.String(); !strings.Contains(got, "5 of 6 caches measured") || !strings.HasSuffix(got, "\n") {
		t.Errorf("measuring: got %q", got)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := a.measure(ctx, w, []int{10}); !errors.Is(err, context.Canceled) {
		t.Errorf("measuring after a signal: got %v", err)
	}
}

func TestProgressOffTerminal(t *testing.T) {
	for name, a := range map[string]*app{
		"no terminal":   {env: map[string]string{}, now: time.Now},
		"dumb":          {errTerm: true, env: map[string]string{"TERM": "dumb"}, now: time.Now},
		"--no-progress": {errTerm: true, env: map[string]string{}, general: generalFlags{noProgress: true}, now: time.Now},
	} {
		if a.newProgress("x") != nil {
			t.Errorf("%s: progress is shown", name)
		}
	}
	var p *progress // must do nothing
	p.step(1, 2)
	p.finish()
}

func TestColor(t *testing.T) {
	for _, tt := range []struct {
		name string
		a    app
		want bool
	}{
		{"terminal", app{outTerm: true}, true},
		{"pipe", app{}, false},
		{"NO_COLOR", app{outTerm: true, env: map[string]string{"NO_COLOR": "1"}}, false},
		{"dumb", app{outTerm: true, env: map[string]string{"TERM": "dumb"}}, false},
		{"--no-color", app{outTerm: true, general: generalFlags{noColor: true}}, false},
	} {
		if got := tt.a.color(); got != tt.want {
			t.Errorf("%s: colour %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestWrap(t *testing.T) {
	got := wrap("aa bb cc dddddddd e", 5)
	if want := []string{"aa bb", "cc", "dddddddd", "e"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
