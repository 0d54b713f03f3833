package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/kvroute/kvroute/internal/decodelog"
	"github.com/kvroute/kvroute/internal/fit"
)

// openLogs opens the logs in order. The caller calls closeAll in any case.
func (a *app) openLogs(ctx context.Context, f *fitFlags) (sources []decodelog.Source, closeAll func(), err error) {
	return openEach(ctx, f.paths, func() io.Reader { return newPatient(ctx, a.stdin) }, func(p string) (io.ReadCloser, error) { return openInput(ctx, p) })
}

// openEach opens paths in order by open, and stdin, which nobody reads otherwise, for "-".
func openEach(ctx context.Context, paths []string, stdin func() io.Reader, open func(path string) (io.ReadCloser, error)) (sources []decodelog.Source, closeAll func(), err error) {
	var files []io.Closer
	closeAll = func() {
		for _, f := range files {
			_ = f.Close() // only read from
		}
	}
	if err := onceEach(paths); err != nil {
		return nil, closeAll, err
	}
	for _, p := range paths {
		if p == "-" {
			sources = append(sources, decodelog.Source{Name: "stdin", R: stdin()})
			continue
		}
		r, err := open(p)
		if ctx.Err() != nil {
			return nil, closeAll, ctx.Err()
		}
		if err != nil {
			return nil, closeAll, logFileFault(p, err)
		}
		files = append(files, r)
		sources = append(sources, decodelog.Source{Name: p, R: r})
	}
	return sources, closeAll, nil
}

// onceEach refuses a file that is named twice, under whatever name, as its lines would count twice, and stdin twice.
func onceEach(paths []string) error {
	infos := make([]fs.FileInfo, len(paths))
	seenStdin := false
	for i, p := range paths {
		if p == "-" {
			if seenStdin {
				return usage("stdin twice", "-", "it can be read only once", "")
			}
			seenStdin = true
			continue
		}
		info, err := os.Stat(p)
		if err != nil || !info.Mode().IsRegular() {
			continue // what cannot be opened is told when it is
		}
		for j, other := range infos[:i] {
			if other != nil && os.SameFile(info, other) {
				return usage("log twice", p, "is the same file as "+paths[j], "name each log once")
			}
		}
		infos[i] = info
	}
	return nil
}

// logFileFault words why a log cannot be opened, with the nearest name in its folder.
func logFileFault(path string, err error) error {
	f := usage("cannot read log "+path, "", pathWhy(err), "")
	switch {
	case errors.Is(err, errPacked):
		f.hint = "fit it without --follow"
	case errors.Is(err, errFolder):
		f.hint = "name the files in it, as in " + filepath.Join(path, "*.log")
	case errors.Is(err, syscall.EMFILE):
		f.hint = "raise the limit (ulimit -n), or join them in the order of their times: cat FILES | kvroute fit -"
	case errors.Is(err, fs.ErrNotExist):
		var names []string
		entries, _ := os.ReadDir(filepath.Dir(path)) // no folder, no names: the hint is a courtesy
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if near := didYouMean(filepath.Base(path), names); strings.HasPrefix(near, "did you mean") {
			f.hint, _, _ = strings.Cut(near, " (one of")
		}
	}
	return f
}

// countLogs makes progress of what is read: bytes as they lie in the files, packed or not.
func countLogs(sources []decodelog.Source, paths []string, p *progress) {
	if p == nil {
		return
	}
	tell := telling(paths, p)
	for i := range sources {
		sources[i].R = counted{sources[i].R, tell}
	}
}

// logReader is decodelog.Read or what stands for it.
type logReader func(context.Context, []decodelog.Source, decodelog.Options, func(*decodelog.Sample) error) (*decodelog.Report, error)

// besides passes samples on to add in their order while the next ones are read: reading and fitting take about as long.
// done waits until add has had them all.
func besides(add func(*decodelog.Sample)) (hand func(*decodelog.Sample) error, done func()) {
	const size, batches = 512, 4
	full, empty := make(chan []decodelog.Sample, batches), make(chan []decodelog.Sample, batches)
	for range batches {
		empty <- make([]decodelog.Sample, 0, size)
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for batch := range full {
			for i := range batch {
				add(&batch[i])
			}
			empty <- batch[:0]
		}
	}()
	batch := <-empty
	hand = func(s *decodelog.Sample) error {
		if batch = append(batch, *s); len(batch) == size {
			full <- batch
			batch = <-empty
		}
		return nil
	}
	return hand, func() {
		full <- batch
		close(full)
		<-finished
	}
}

// headSize is enough to know a recording by, packed or not.
const headSize = 4096

// readerOf finds out whether the inputs are recordings of kvroute, which are read in another way. Inputs are read
// ahead for it.
func readerOf(f *fitFlags, sources []decodelog.Source) (logReader, error) {
	switch decodelog.Engine(f.engine) {
	case decodelog.KVRoute:
		return fit.ReadRecording, nil
	case decodelog.Auto:
	default:
		return decodelog.Read, nil
	}
	var is, isNot string
	for i := range sources {
		b := bufio.NewReaderSize(sources[i].R, headSize)
		head, err := b.Peek(headSize)
		sources[i].R = b // an error other than the end comes again with the next read
		if err == nil || errors.Is(err, io.EOF) {
			if fit.IsRecording(head) {
				is = sources[i].Name
				continue
			}
		}
		isNot = sources[i].Name
	}
	switch {
	case is == "":
		return decodelog.Read, nil
	case isNot != "":
		return nil, usage("cannot fit both", "", fmt.Sprintf("%s is a recording of kvroute serve, %s is not", is, isNot), "fit them one by one")
	}
	return fit.ReadRecording, nil
}

// logFault gives a reader's error its exit code: damaged data is work that failed, everything else is the wrong
// input.
func logFault(err error) error {
	var e *decodelog.Error
	if !errors.As(err, &e) {
		return err
	}
	f := &fault{code: exitUsage, what: "cannot fit", why: err.Error(), hint: e.Hint, err: err}
	if e.Err != nil {
		f.code = exitFailed
	}
	return f
}
