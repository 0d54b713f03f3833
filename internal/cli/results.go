package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kvroute/kvroute/internal/report"
)

// named is a file on the command line: its path and the flag that names it, or what it is.
type named struct{ path, as string }

// same says whether two paths lead to one file, through whatever links. Files that are not there yet are
// told apart by the place they would be at. Devices and pipes hold nothing that could be lost.
func same(a, b string) bool {
	sa, errA := os.Stat(a)
	sb, errB := os.Stat(b)
	if errA == nil && errB == nil {
		return sa.Mode().IsRegular() && os.SameFile(sa, sb)
	}
	return errors.Is(errA, fs.ErrNotExist) && errors.Is(errB, fs.ErrNotExist) && place(a) == place(b)
}

// place is where a file that is not there would be.
func place(path string) string {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		dir = filepath.Dir(path) // opening the file will say what is wrong
	}
	full, err := filepath.Abs(filepath.Join(dir, filepath.Base(path)))
	if err != nil {
		return filepath.Join(dir, filepath.Base(path))
	}
	return full
}

// stream says whether path is the file behind an open stream, as with `kvroute … - <path`.
func stream(s any, path string) bool {
	f, ok := s.(*os.File)
	if !ok {
		return false
	}
	a, err := f.Stat()
	if err != nil || !a.Mode().IsRegular() {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

// keepApart refuses results that would replace what is read, or one another.
func (a *app) keepApart(inputs, outputs []named) error {
	if p := a.general.config; p != "" {
		inputs = append(inputs, named{p, "the configuration"})
	} else if p := a.env["KVROUTE_CONFIG"]; p != "" {
		inputs = append(inputs, named{p, "the configuration"})
	}
	for i, out := range outputs {
		clash := ""
		for _, in := range inputs {
			if in.path != "-" && same(in.path, out.path) || in.path == "-" && stream(a.stdin, out.path) {
				clash = in.as + " is read from it"
			}
		}
		for _, other := range outputs[:i] {
			if same(other.path, out.path) {
				clash = other.as + " goes there too"
			}
		}
		if stream(a.stdout, out.path) {
			clash = "stdout goes there too"
		}
		if clash != "" {
			return usage("cannot write "+out.path, out.as, clash, "name another file")
		}
	}
	return nil
}

// traces are the traces that a command reads.
func (t *traceFlags) inputs() []named {
	in := make([]named, len(t.paths))
	for i, p := range t.paths {
		in[i] = named{p, "the trace"}
	}
	return in
}

// fileFault is the fault of a result file that cannot be written.
func fileFault(where string, err error) error {
	f := &fault{code: exitFailed, what: "cannot write the result", where: where, why: pathWhy(err), err: err}
	var fe *report.FileError
	if errors.As(err, &fe) {
		f.what, f.why = "cannot write "+fe.Path, fe.Err.Error()
	}
	return f
}

// writing is a writer that stops when the run is cancelled, between two writes.
type writing struct {
	w   io.Writer
	ctx context.Context // io.Writer has no argument for it
}

// Write passes on unless the run was cancelled.
func (c writing) Write(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, fmt.Errorf("stopped: %w", err)
	}
	return c.w.Write(p)
}
