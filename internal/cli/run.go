// Package cli is the command line of kvroute: flags, environment, files, output and exit codes. It is
// the only package that knows these, and it wires the others together. Nobody imports it but main.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// app is one run of the program: its streams, its environment and what was found out about them.
type app struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	env    map[string]string
	now    func() time.Time
	// outTerm and errTerm say whether stdout and stderr are terminals.
	outTerm, errTerm bool

	general generalFlags
	origins map[string]origin // of every flag of the command that runs, by name
	texts   map[string]string // and their values as typed
	helpErr error             // of a help page that could not be printed
}

// Run executes one command line (without the program's name) and returns the exit code. It reads the
// process's environment; everything else comes in as an argument.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		if name, val, ok := strings.Cut(kv, "="); ok {
			env[name] = val
		}
	}
	a := &app{
		stdin: stdin, stdout: stdout, stderr: stderr, env: env, now: time.Now,
		outTerm: isTerminal(stdout), errTerm: isTerminal(stderr),
	}
	return a.run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	root := a.newRoot()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = a.helpErr
	}
	var told afterSignal
	if err != nil && ctx.Err() != nil && !errors.As(err, &told) {
		// Whatever the work stopped with, it stopped because of the signal (the error may be the context's
		// cause, which names it).
		err = context.Canceled
	}
	if err != nil {
		say(a.stderr, err)
	}
	return exitCode(err)
}

// afterSignal marks an error of work that a signal ends well: it is not the signal's doing, and is told.
type afterSignal struct{ error }

func (e afterSignal) Unwrap() error { return e.error }

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// warn tells something on stderr that does not stop the work.
func (a *app) warn(format string, args ...any) {
	fmt.Fprintf(a.stderr, "kvroute: warning: %s\n", oneLine(fmt.Sprintf(format, args...)))
}

// note tells something on stderr that may help.
func (a *app) note(text string) { fmt.Fprintln(a.stderr, "kvroute: note: "+text) }

// pathWhy is the reason of a file error without the operation and path that os puts in front.
func pathWhy(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return err.Error()
}
