package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kvroute/kvroute/internal/decodelog"
	"github.com/kvroute/kvroute/internal/fit"
)

// followPoll is how often inputs are looked at that had nothing new, and followSoon how soon those that had: a pipe
// hands over a piece at a time.
const (
	followPoll = 200 * time.Millisecond
	followSoon = time.Millisecond
)

// tail reads a file that grows. Where it was rotated (its name leads to another file) or cut short, it goes on with
// what is there now. A Read of nothing means that there is nothing for now.
type tail struct {
	path string
	f    *os.File
	at   int64 // bytes read of f
	last byte  // read last
}

var errPacked = errors.New("a packed file does not grow")

func newTail(path string) (*tail, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		return nil, errFolder
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	head := make([]byte, 4)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) || bytes.HasPrefix(head[:n], []byte{0x1f, 0x8b}) || bytes.HasPrefix(head[:n], []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		_ = f.Close()
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		return nil, errPacked
	}
	return &tail{path: path, f: f, last: '\n'}, nil
}

// Read reads what is new.
func (t *tail) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := t.read(p)
	if n > 0 || err != nil {
		return n, err
	}
	now, err := os.Stat(t.path)
	if err != nil {
		return 0, nil // between the old file and the new one, or gone: it may come again
	}
	own, err := t.f.Stat()
	if err != nil {
		return 0, err
	}
	switch {
	case !os.SameFile(now, own):
		// What was written to the old one before it was moved away.
		if n, err := t.read(p); n > 0 || err != nil {
			return n, err
		}
		f, err := os.Open(t.path)
		if err != nil {
			return 0, nil // as above
		}
		_ = t.f.Close()
		t.f, t.at = f, 0
	case own.Size() < t.at:
		if _, err := t.f.Seek(0, io.SeekStart); err != nil {
			return 0, err
		}
		t.at = 0
	default:
		return 0, nil
	}
	if t.last != '\n' { // the last line of the old file has no end
		p[0], t.last = '\n', '\n'
		return 1, nil
	}
	return t.read(p)
}

func (t *tail) read(p []byte) (int, error) {
	n, err := t.f.Read(p)
	if n > 0 {
		t.at += int64(n)
		t.last = p[n-1]
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Close closes the file.
func (t *tail) Close() error { return t.f.Close() }

// arriving is a patient reader that does not wait.
type arriving struct{ *patient }

// Read returns what has arrived.
func (a arriving) Read(dst []byte) (int, error) {
	if len(a.rest) == 0 && a.err == nil {
		select {
		case c := <-a.chunks:
			a.rest, a.err = c.data, c.err
		default:
			return 0, nil
		}
	}
	n := copy(dst, a.rest)
	a.rest = a.rest[n:]
	if len(a.rest) == 0 && n == 0 {
		return 0, a.err
	}
	return n, nil
}

// openTails opens logs that grow.
func (a *app) openTails(ctx context.Context, f *fitFlags) (sources []decodelog.Source, closeAll func(), err error) {
	return openEach(ctx, f.paths, func() io.Reader { return arriving{newPatient(ctx, a.stdin)} }, func(p string) (io.ReadCloser, error) { return newTail(p) })
}

// followLogs fits what comes, tells the fit every so often, and the last one when the logs or the run end.
func (a *app) followLogs(ctx context.Context, f *fitFlags, out *fitFiles) error {
	sources, closeAll, err := a.openTails(ctx, f)
	defer closeAll()
	if err != nil {
		return err
	}
	fitter := fit.New(f.fitOptions())
	opt := f.logOptions()
	var told, read int64
	last := a.now()
	opt.Idle = func(ctx context.Context, soFar *decodelog.Report) error {
		if now := a.now(); soFar.Used > told && now.Sub(last) >= f.every {
			told, last = soFar.Used, now
			fitter.Describe(soFar)
			if err := a.tellFit(newFitted(fitter.Result(), soFar, sources, f)); err != nil {
				return err
			}
		}
		pause := followPoll
		if soFar.Bytes > read {
			read, pause = soFar.Bytes, followSoon
		}
		wait := time.NewTimer(min(pause, f.every))
		defer wait.Stop()
		select {
		case <-wait.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	rep, err := decodelog.Read(ctx, sources, opt, func(s *decodelog.Sample) error { fitter.Add(s); return nil })
	ended := ctx.Err() != nil && rep != nil && rep.Used > 0
	if err != nil && !ended {
		return logFault(err)
	}
	fitter.Describe(rep)
	err = a.deliverFit(newFitted(fitter.Result(), rep, sources, f), out)
	if err != nil && ended {
		return afterSignal{err} // the signal is how following ends, not why the fit is refused
	}
	return err
}

// tellFit prints a fit that is not the last one: a line, in formats that can be appended to.
func (a *app) tellFit(r *fitted) error {
	switch r.flags.format {
	case formatJSONL:
		return a.emit(func(w io.Writer) error { return a.writeFit(w, r) })
	case formatTable:
	default:
		return nil
	}
	return a.emit(func(w io.Writer) error {
		text := fmt.Sprintf("%s  %-7s  %d bins", a.now().Format(time.TimeOnly), r.Verdict, len(r.Bins))
		if finite(r.Weight.Value) != nil {
			text += fmt.Sprintf("  W %s (%s to %s)  a %s  b %s  c %s  R2 %.2f", figure(r.Weight.Value), figure(r.Weight.Low), figure(r.Weight.High),
				figure(r.A.Value*perMS), figure(r.B.Value*perMS), figure(r.C.Value*perMSMillion), r.R2)
		}
		for _, reason := range r.Reasons {
			if !reason.Remark {
				text += "  " + reason.Code
			}
		}
		_, err := fmt.Fprintln(w, text)
		return err
	})
}
