package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvroute/kvroute/internal/trace"
)

// traceFlags say which traffic to read, and how.
type traceFlags struct {
	paths     []string
	format    string
	blockSize int
	stagger   time.Duration
	gapCap    time.Duration
	speedup   float64
	limit     int
}

// trafficFlags change what is read, so results name them where they were given.
var trafficFlags = []string{"speedup", "limit", "block-size", "trace-format", "session-stagger", "gap-cap"}

// bindTrace adds the flags of commands that read traces. Paths may also be arguments.
func bindTrace(cmd *cobra.Command, t *traceFlags) {
	fs := cmd.Flags()
	bindList(cmd, fs, spec{
		name: "trace", arg: "PATH", group: groupTrace,
		usage: "trace to read, repeatable, also as an argument; - is stdin; gzip and zstd are seen by content",
	}, "", &t.paths, parseText)
	bind(cmd, fs, spec{
		name: "trace-format", arg: "FORMAT", def: trace.Auto, group: groupTrace, values: trace.Formats(),
		usage: strings.Join(trace.Formats(), ", ") + "; auto looks at the content",
	}, &t.format, oneOf(trace.Formats()...))
	bind(cmd, fs, spec{
		name: "block-size", arg: "TOKENS", group: groupTrace,
		usage: "tokens in a block, for formats that do not say (mooncake: 512)",
	}, &t.blockSize, intBetween(1, 1<<20))
	bind(cmd, fs, spec{
		name: "session-stagger", arg: "TIME", def: "20s", group: groupTrace,
		usage: "claude-code: start one session so much after the other",
	}, &t.stagger, parseSpan)
	bind(cmd, fs, spec{
		name: "gap-cap", arg: "TIME", def: "60s", group: groupTrace,
		usage: "claude-code: longest pause inside a session",
	}, &t.gapCap, parseSpan)
	bind(cmd, fs, spec{
		name: "speedup", arg: "X", def: "1", group: groupTrace,
		usage: "divide the arrival times by X",
	}, &t.speedup, parsePositive)
	bind(cmd, fs, spec{
		name: "limit", arg: "N", group: groupTrace,
		usage: "take the first N requests only",
	}, &t.limit, intBetween(1, 1<<31-1))
}

// take adds the command's arguments to --trace and makes sure there is something to read. Arguments are
// of the command line, as --trace is: they replace what the environment or a file says.
func (t *traceFlags) take(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && !cmd.Flags().Changed("trace") {
		t.paths = nil
	}
	for _, arg := range args {
		if arg == "" {
			return usage("empty trace name", cmd.CommandPath(), "want a path, or - for stdin", "")
		}
		t.paths = append(t.paths, arg)
	}
	if len(t.paths) == 0 {
		return usage("no trace given", cmd.CommandPath(), "nothing to read", "give --trace PATH, or - for stdin; small ones are in the folder traces of the source")
	}
	stdin := 0
	for _, p := range t.paths {
		if p == "-" {
			stdin++
		}
	}
	if stdin > 1 {
		return usage("stdin given twice", "--trace -", "it can be read only once", "")
	}
	return nil
}

// options are the reader's, as the flags say.
func (t *traceFlags) options() trace.Options {
	opt := trace.Options{
		Format: t.format, BlockSize: t.blockSize, SessionStagger: t.stagger, GapCap: t.gapCap,
		Speedup: t.speedup, Limit: t.limit,
	}
	// In trace.Options zero stands for the default; here 0s means none.
	if t.stagger == 0 {
		opt.SessionStagger = -1
	}
	return opt
}

// open opens the given paths in order. The caller calls close in any case.
func (a *app) open(ctx context.Context, paths []string) (sources []trace.Source, closeAll func(), err error) {
	var files []io.Closer
	closeAll = func() {
		for _, f := range files {
			_ = f.Close() // only read from
		}
	}
	for _, p := range paths {
		if p == "-" {
			sources = append(sources, trace.Source{Name: "stdin", R: newPatient(ctx, a.stdin)})
			continue
		}
		r, err := openInput(ctx, p)
		switch {
		case ctx.Err() != nil:
			return nil, closeAll, ctx.Err()
		case errors.Is(err, errFolder):
			return nil, closeAll, usage("cannot read trace "+p, "--trace", err.Error(), "name the files in it, as in "+filepath.Join(p, "*.jsonl.gz"))
		case err != nil:
			return nil, closeAll, traceFileFault(p, err)
		}
		files = append(files, r)
		sources = append(sources, trace.Source{Name: p, R: r})
	}
	return sources, closeAll, nil
}

// errFolder is given for a folder where a file is wanted.
var errFolder = errors.New("is a folder")

// openInput opens a file to read. Opening a pipe waits for its writer, and reading it for data: a
// cancelled run waits for neither.
func openInput(ctx context.Context, path string) (io.ReadCloser, error) {
	type both struct {
		io.Reader
		io.Closer
	}
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case st.IsDir():
		return nil, errFolder
	case st.Mode().IsRegular():
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		return both{reading{f, ctx}, f}, nil
	}
	var f *os.File
	opened := make(chan error, 1)
	go func() {
		var err error
		f, err = os.Open(path)
		opened <- err
	}()
	select {
	case err := <-opened:
		if err != nil {
			return nil, err
		}
		return both{newPatient(ctx, f), f}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// traceFileFault words why a trace cannot be opened, with the nearest name in its folder.
func traceFileFault(path string, err error) error {
	f := usage("cannot read trace "+path, "--trace", pathWhy(err), "")
	if errors.Is(err, fs.ErrNotExist) {
		var names []string
		entries, _ := os.ReadDir(filepath.Dir(path)) // no folder, no names: the hint is a courtesy
		for _, e := range entries {
			if e.Name() == filepath.Base(path) {
				f.why = "a symbolic link to a file that is not there"
				return f
			}
			names = append(names, e.Name())
		}
		if near := didYouMean(filepath.Base(path), names); strings.HasPrefix(near, "did you mean") {
			near, _, _ = strings.Cut(near, " (one of")
			f.hint = near
		}
	}
	return f
}

// load reads all traces given as one workload.
func (a *app) load(ctx context.Context, t *traceFlags) (*trace.Workload, error) {
	return a.loadPaths(ctx, t, t.paths)
}

func (a *app) loadPaths(ctx context.Context, t *traceFlags, paths []string) (*trace.Workload, error) {
	sources, closeAll, err := a.open(ctx, paths)
	defer closeAll()
	if err != nil {
		return nil, err
	}
	p := a.newProgress("bytes read")
	defer p.finish()
	count(sources, paths, p)
	opt := t.options()
	opt.Name = traceName(paths)
	w, err := trace.Load(sources, opt)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, traceFault(err)
	}
	if n := w.Unfinished; n > 0 {
		p.finish()
		a.note(fmt.Sprintf("%s: requests left out, as the lengths of their answers are not known: %d (streams tell theirs with serve --stream-usage)", opt.Name, n))
	}
	return w, nil
}

// count makes progress of what is read: bytes as they lie in the files, packed or not.
func count(sources []trace.Source, paths []string, p *progress) {
	if p == nil {
		return
	}
	tell := telling(paths, p)
	for i := range sources {
		sources[i].R = counted{sources[i].R, tell}
	}
}

// telling adds up what is read of all paths.
func telling(paths []string, p *progress) func(n int) {
	total := 0
	for _, path := range paths {
		st, err := os.Stat(path)
		if path == "-" || err != nil || !st.Mode().IsRegular() {
			total = 0 // unknown
			break
		}
		total += int(st.Size())
	}
	done := 0
	return func(n int) {
		done += n
		p.step(done, total)
	}
}

// counted is a reader that tells how much was read.
type counted struct {
	r    io.Reader
	tell func(n int)
}

// Read passes on.
func (c counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.tell(n)
	return n, err
}

// traceName is what results call a trace: the file's name without its endings.
func traceName(paths []string) string {
	name := "stdin"
	if paths[0] != "-" {
		name = printable(filepath.Base(paths[0]))
		for {
			ext := filepath.Ext(name)
			switch ext {
			case ".gz", ".zst", ".jsonl", ".json", ".csv":
				name = strings.TrimSuffix(name, ext)
				continue
			}
			break
		}
	}
	if len(paths) > 1 {
		name = fmt.Sprintf("%s+%d", name, len(paths)-1)
	}
	return name
}

// traceFault gives a reader's error its exit code: damaged data is work that failed, everything else
// is the wrong input.
func traceFault(err error) error {
	var e *trace.Error
	if !errors.As(err, &e) {
		return err
	}
	f := &fault{code: exitUsage, what: "cannot read trace", why: err.Error(), hint: e.Hint, err: err}
	if e.Damaged {
		f.code = exitFailed
	}
	return f
}

// reading is a reader that stops when the run is cancelled, between two reads.
type reading struct {
	r   io.Reader
	ctx context.Context // io.Reader has no argument for it
}

// Read passes on unless the run was cancelled.
func (c reading) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// patient reads stdin and pipes, where a read may wait for ever: a cancelled run does not wait with it. The
// goroutine that reads ends with the input, or with the program.
type patient struct {
	ctx    context.Context // io.Reader has no argument for it
	chunks chan chunk
	rest   []byte
	err    error
}

type chunk struct {
	data []byte
	err  error
}

func newPatient(ctx context.Context, r io.Reader) *patient {
	p := &patient{ctx: ctx, chunks: make(chan chunk)}
	go func() {
		for {
			buf := make([]byte, 64<<10)
			n, err := r.Read(buf)
			select {
			case p.chunks <- chunk{buf[:n], err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return p
}

// Read returns what has arrived, or the context's error.
func (p *patient) Read(dst []byte) (int, error) {
	if len(p.rest) == 0 {
		if p.err != nil {
			return 0, p.err
		}
		select {
		case c := <-p.chunks:
			p.rest, p.err = c.data, c.err
		case <-p.ctx.Done():
			return 0, p.ctx.Err()
		}
	}
	n := copy(dst, p.rest)
	p.rest = p.rest[n:]
	if len(p.rest) == 0 && n == 0 {
		return 0, p.err
	}
	return n, nil
}
