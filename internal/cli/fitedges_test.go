package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// steady is a log of bins with one or two lines that has something to fit: what is held changes slowly, as lines show moments only.
func steady(lines int) string {
	return madeLog(lines, func(i int) int { return 2 + i/9%16 }, func(i int) int { return 1000 * (10 + i/5%61) }, func(r, k float64) float64 { return 0.01 + 0.001*r + 2e-7*k })
}

// endless is a log without an end that calls after once so many bytes were read, and with every MiB from there on.
type endless struct {
	text  string
	at    int
	until int
	after func()
}

func (e *endless) Read(p []byte) (int, error) {
	for n := 0; n < len(p); {
		k := copy(p[n:], e.text[e.at:])
		e.at = (e.at + k) % len(e.text)
		n += k
	}
	if e.until -= len(p); e.until < 0 {
		e.until += 1 << 20
		e.after()
	}
	return len(p), nil
}

// TestFitInterrupted: a signal while a log is read ends the run without a result; while one without a decode line is
// followed, too.
func TestFitInterrupted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		text string
		args []string
	}{
		{"a long read", steady(1200), []string{"-"}},
		{"a long line", strings.Repeat("x", 1<<16), []string{"-"}},
		{"a long read for JSON", steady(1200), []string{"-", "-o", "json"}},
		{"following without decode lines", "INFO: nothing yet\n", []string{"-", "--follow"}},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		var out, errs bytes.Buffer
		code := Run(ctx, append([]string{"fit"}, tt.args...), &endless{text: tt.text, until: 4 << 20, after: cancel}, &out, &errs)
		if code != exitInterrupted || out.Len() > 0 || errs.String() != "kvroute: interrupted\n" {
			t.Errorf("%s: exit code %d, stdout %.80q, stderr %q", tt.name, code, out.String(), errs.String())
		}
		cancel()
	}
}

// TestFitFollowInterrupted: what was told so far is told in full, and the exit code is that of the fit.
func TestFitFollowInterrupted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		lines, code int
		stderr      string
	}{
		{300, exitOK, ""},
		{30, exitThreshold, "kvroute: the fit is refused: bins of 3s with decode steps: 20, and 30 are the least\nhint: "},
	} {
		path := writeFile(t, filepath.Join(t.TempDir(), "grows.log"), steady(tt.lines))
		ctx, cancel := context.WithCancel(context.Background())
		r, w := io.Pipe()
		var errs bytes.Buffer
		codes := make(chan int, 1)
		go func() {
			codes <- Run(ctx, []string{"fit", "--follow", "--every", "1ms", "--bootstrap", "20", path}, strings.NewReader(""), w, &errs)
			_ = w.Close()
		}()
		out := bufio.NewReader(r)
		first, err := out.ReadString('\n') // a fit so far
		if err != nil {
			t.Fatalf("%v; stderr %s", err, errs.String())
		}
		cancel()
		rest, err := io.ReadAll(out)
		if err != nil {
			t.Fatal(err)
		}
		code := <-codes
		if !strings.Contains(first, fmt.Sprintf("%d bins", tt.lines*2/3)) || !strings.Contains(string(rest), "verdict: ") || code != tt.code || !strings.HasPrefix(errs.String(), tt.stderr) || tt.stderr == "" && errs.Len() > 0 {
			t.Errorf("%d lines: exit code %d, want %d; first %q, then %.60q; stderr %q", tt.lines, code, tt.code, first, rest, errs.String())
		}
	}
}

// failing is a closed pipe.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestFitIntoAClosedPipe(t *testing.T) {
	t.Parallel()
	path := writeFile(t, filepath.Join(t.TempDir(), "a.log"), steady(100))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, args := range [][]string{{path}, {path, "-o", "json"}, {path, "-o", "csv"}, {path, "--follow", "--every", "1ms"}} {
		var errs bytes.Buffer
		code := Run(ctx, append([]string{"fit", "--bootstrap", "20"}, args...), strings.NewReader(""), failing{}, &errs)
		if code != exitFailed || errs.String() != "kvroute: cannot write the result: stdout: broken pipe\n" {
			t.Errorf("%v: exit code %d, stderr %q", args[1:], code, errs.String())
		}
	}
}

// TestFitOfOddText: what loggers, clocks and copies do to a log is read, or left out and said with its place; the fit remains.
func TestFitOfOddText(t *testing.T) {
	t.Parallel()
	const lines = 1000
	log := steady(lines)
	all := strings.SplitAfter(log, "\n")[:lines]
	shift := func(from string, to string) string { return strings.ReplaceAll(log, from, to) }
	for _, tt := range []struct {
		name  string
		text  string
		lines int    // that are used
		note  string // of notes and of what is left out; "" none
	}{
		{"as it is", log, lines, ""},
		{"over midnight without dates", strings.NewReplacer("[2026-01-01 00:", "[23:", "[2026-01-01 ", "[").Replace(strings.NewReplacer("-01 01:", "-01 00:", "-01 02:", "-01 01:").Replace(log)), lines, "no dates"},
		{"clocks set back in autumn", strings.Join(all[:600], "") + strings.ReplaceAll(strings.Join(all[600:], ""), "2026-01-01 00:", "2025-12-31 23:"), 600, "a.log:601: the clock goes back by 3598 s"},
		{"clocks set forward in spring", strings.Join(all[:600], "") + strings.ReplaceAll(strings.Join(all[600:], ""), "2026-01-01 00:", "2026-01-01 01:"), lines, ""},
		{"a zone", shift("[2026-01-01 00", "2026-01-01T00"), lines, ""},
		{"decimal commas", strings.ReplaceAll(commas(log), "token usage: 0.50", "token usage: 0,50"), lines, "separators"},
		{"a cut last line", log[:len(log)-60], lines - 1, "no throughput in the line, it is cut or shortened"},
		{"Windows' line ends", strings.ReplaceAll(log, "\n", "\r\n"), lines, ""},
		{"junk in the middle", strings.Join(all[:500], "") + "\x00\xff\xfe\x01\x02\n" + strings.Join(all[500:], ""), lines, ""},
	} {
		path := writeFile(t, filepath.Join(t.TempDir(), "a.log"), tt.text)
		code, stdout, stderr := runFit(t, context.Background(), path, "-o", "json")
		var doc fitDocument
		if err := json.Unmarshal([]byte(stdout), &doc); err != nil || code != exitOK || stderr != "" {
			t.Errorf("%s: exit code %d, stderr %q, %v", tt.name, code, stderr, err)
			continue
		}
		told := strings.Join(doc.Input.Notes, "\n")
		for _, l := range doc.Input.Left {
			told += "\n" + l.Why
		}
		if doc.Bins != (2*tt.lines+2)/3 || !strings.Contains(told, tt.note) {
			t.Errorf("%s: %d bins, want those of %d lines; told %q, want %q", tt.name, doc.Bins, tt.lines, told, tt.note)
		}
	}
}

// commas writes throughputs as loggers of other places do.
func commas(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		head, tail, _ := strings.Cut(line, "(token/s): ")
		b.WriteString(head + "(token/s): " + strings.Replace(tail, ".", ",", 1))
	}
	return b.String()
}

// TestFitOfAHugeLine: a line without an end is passed over in bounded memory.
func TestFitOfAHugeLine(t *testing.T) {
	const size = 100 << 20
	var before, now runtime.MemStats
	var most uint64
	look := func() {
		runtime.GC() // what is held counts, not what waits to be collected
		runtime.ReadMemStats(&now)
		most = max(most, now.HeapAlloc)
	}
	line := &endless{text: strings.Repeat("Decode batch, #running-req: 1 ", 1000), after: look}
	in := io.MultiReader(io.LimitReader(line, size), strings.NewReader("\n"+steady(1000)))
	runtime.GC()
	runtime.ReadMemStats(&before)
	var out, errs bytes.Buffer
	code := Run(context.Background(), []string{"fit", "--bootstrap", "20", "-", "-o", "json"}, in, &out, &errs)
	var doc fitDocument
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil || code != exitOK || doc.Bins != 667 {
		t.Fatalf("exit code %d, %d bins, stderr %q, %v", code, doc.Bins, errs.String(), err)
	}
	if long := doc.Input.Other; len(long) != 1 || long[0].Why != "lines above 1 MiB" || long[0].Line != 1 {
		t.Errorf("other lines %+v, want the first as too long", long)
	}
	if most == 0 || most > before.HeapAlloc+32<<20 {
		t.Errorf("with a line of %d MiB memory went from %d to %d MiB", size>>20, before.HeapAlloc>>20, most>>20)
	}
}

// TestFitOfManyFiles: a rotated log in two thousand files is one log.
func TestFitOfManyFiles(t *testing.T) {
	dir := t.TempDir()
	args := []string{"-o", "json"}
	i := 0
	for line := range strings.Lines(steady(2000)) {
		args = append(args, writeFile(t, filepath.Join(dir, fmt.Sprintf("server.log.%04d", i)), line))
		i++
	}
	code, stdout, stderr := runFit(t, context.Background(), args...)
	if strings.Contains(stderr, "too many open files") && strings.Contains(stderr, "hint: raise the limit (ulimit -n)") {
		t.Skip("this machine does not allow as many open files: " + stderr)
	}
	var doc fitDocument
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil || code != exitOK || doc.Bins != 1333 || len(doc.Input.Files) != 2000 || len(doc.Ranks) != 1 {
		t.Errorf("exit code %d, %d bins of %d files, %d ranks, stderr %q, %v", code, doc.Bins, len(doc.Input.Files), len(doc.Ranks), stderr, err)
	}
}
