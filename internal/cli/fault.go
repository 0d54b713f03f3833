package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Exit codes, promised in the help of kvroute and in docs/cli-json.md.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitThreshold   = 3
	exitUnreachable = 4
	exitInterrupted = 130
)

// fault is an error as people see it: one line "what: where: why", then a hint where there is
// something to do.
type fault struct {
	code  int
	what  string // what went wrong, with the input that caused it
	where string // flag, variable, file and line; "" where there is no place
	why   string
	hint  string
	err   error // cause, for errors.Is and errors.As
}

// Error joins the parts that are there into one line.
func (f *fault) Error() string {
	parts := make([]string, 0, 3)
	for _, p := range []string{f.what, f.where, f.why} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, ": ")
}

// Unwrap gives the cause.
func (f *fault) Unwrap() error { return f.err }

// usage makes the fault of a wrong command line or configuration.
func usage(what, where, why, hint string) *fault {
	return &fault{code: exitUsage, what: what, where: where, why: why, hint: hint}
}

// failed makes the fault of work that could not be done.
func failed(what, where string, err error) *fault {
	return &fault{code: exitFailed, what: what, where: where, why: err.Error(), err: err}
}

// valueError is what a validator says about a value; the caller adds which flag, variable or file line.
type valueError struct{ why, hint string }

func (e *valueError) Error() string { return e.why }

// badValue turns a validator's error into a fault at a place.
func badValue(text, where string, err error) *fault {
	f := usage(fmt.Sprintf("bad value %q", text), where, err.Error(), "")
	var v *valueError
	if errors.As(err, &v) {
		f.why, f.hint = v.why, v.hint
	}
	f.err = err
	return f
}

// exitCode is the only place where errors become exit codes.
func exitCode(err error) int {
	var f *fault
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &f):
		return f.code
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	default:
		return exitFailed
	}
}

// say prints an error the way every command does: one line, then the hint.
func say(w io.Writer, err error) {
	line := err.Error()
	var f *fault
	hint := ""
	if errors.As(err, &f) {
		hint = f.hint
		if f.code == exitInterrupted {
			line = "interrupted"
		}
	} else if errors.Is(err, context.Canceled) {
		line = "interrupted"
	}
	fmt.Fprintf(w, "kvroute: %s\n", oneLine(line))
	if hint != "" {
		fmt.Fprintf(w, "hint: %s\n", oneLine(hint))
	}
}

// oneLine keeps messages of other packages (a YAML parser's, say) on one line and free of control codes.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	return printable(s)
}

// printable replaces control characters, which could act on a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, s)
}
