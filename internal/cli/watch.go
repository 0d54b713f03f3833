package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kvroute/kvroute/internal/playback"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/tui"
)

const groupWatch = "Watching"

// watchFlags are the flags of watch.
type watchFlags struct {
	url       string
	tokenFile string
	ca        string
	interval  time.Duration
	once      bool
	format    string
	record    string
	recordMax int64
	play      string
	speed     float64
	ascii     bool
	mouse     bool
}

const defaultRouter = "http://127.0.0.1:8000"

func (a *app) newWatch() *cobra.Command {
	var f watchFlags
	cmd := &cobra.Command{
		Use:   "watch [URL]",
		Short: "Watch a router live in the terminal: caches, trust, decisions, warnings",
		Long: `Shows what a router believes of each worker's KV cache and how far that can be
trusted, what is in flight, every decision with its reasons, which prefixes are
held where, and what is going wrong. URL is the router's address or that of its
admin listener (default ` + defaultRouter + `). Nothing can be changed.

It outlives the router's restarts and lost connections: the last picture stays,
marked with its age. Press ? for the keys and q to quit.

Off a terminal, or with --once, it prints one snapshot and ends; with --interval
as well, one after the other, and goes on when the router is away for a while.
-o json is the snapshot, see docs/cli-json.md.

--record keeps what was shown; --play shows it again, and recordings of serve
too, with keys for pause, speed and jumps.`,
		Example: `  # the router on this machine
  kvroute watch
  # another one, by its admin listener
  kvroute watch http://10.0.0.1:9000 --token-file admin.token
  # what happened, for a bug report, and again at four times the speed
  kvroute watch --record run.watch
  kvroute watch --play run.watch --speed 4
  # for scripts
  kvroute watch --once -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("too many addresses", args[1], "one router is watched at a time", "")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.url = defaultRouter
			if len(args) > 0 {
				f.url = args[0]
			}
			return a.watch(cmd.Context(), &f, cmd.Flags().Changed("interval"), len(args) > 0)
		},
	}
	fs := cmd.Flags()
	text := func(name, arg, usage string, to *string) {
		bind(cmd, fs, spec{name: name, arg: arg, group: groupWatch, usage: usage}, to, parseText)
	}
	text("token-file", "FILE", "token of the router's admin API, its first line", &f.tokenFile)
	text("ca", "FILE", "certificates that vouch for an https address", &f.ca)
	bind(cmd, fs, spec{name: "interval", arg: "TIME", def: "250ms", group: groupWatch, usage: "time between two looks, 100ms to 1m"}, &f.interval, parseInterval)
	bindSwitch(cmd, fs, spec{name: "once", group: groupWatch, usage: "print one snapshot and end, also on a terminal"}, &f.once)
	text("record", "FILE", "keep what is shown in a file", &f.record)
	bind(cmd, fs, spec{name: "record-max-size", arg: "SIZE", def: "1GiB", group: groupWatch, usage: "end the recording, not the watching, before it is longer"}, &f.recordMax, parseCount)
	text("play", "FILE", "show a recording: of watch, or of serve", &f.play)
	bind(cmd, fs, spec{name: "speed", arg: "X", def: "1", group: groupWatch, usage: "of --play"}, &f.speed, parseSpeed)
	bindSwitch(cmd, fs, spec{name: "ascii", group: groupWatch, usage: "draw with ASCII characters only"}, &f.ascii)
	bindSwitch(cmd, fs, spec{name: "mouse", group: groupWatch, usage: "take the wheel and clicks of a mouse"}, &f.mouse)
	bindOutput(cmd, &f.format, formatTable, formatJSON)
	return cmd
}

func parseInterval(s string) (time.Duration, error) {
	d, err := parseSpan(s)
	if err == nil && (d < 100*time.Millisecond || d > time.Minute) {
		return 0, &valueError{"not between 100ms and 1m", ""}
	}
	return d, err
}

func parseSpeed(s string) (float64, error) {
	x, err := parseReal(s)
	if err == nil && (x < 1.0/16 || x > 1024) {
		return 0, &valueError{"not between 0.0625 and 1024", ""}
	}
	return x, err
}

// watchMode is how a router is shown.
type watchMode uint8

const (
	watchScreen watchMode = iota // interactive
	watchOnce                    // one snapshot
	watchLines                   // one after the other
)

// watchModeOf decides how to show it: on what it is, by the flags and what the streams are.
func watchModeOf(f *watchFlags, intervalSet, inTerm, outTerm, dumb bool) watchMode {
	switch {
	case f.once && !intervalSet:
		return watchOnce
	case !f.once && inTerm && outTerm && !dumb && f.format == formatTable:
		return watchScreen
	case intervalSet:
		return watchLines
	}
	return watchOnce
}

func (a *app) watch(ctx context.Context, f *watchFlags, intervalSet, urlSet bool) error {
	mode := watchModeOf(f, intervalSet, readsTerminal(a.stdin), a.outTerm, a.env["TERM"] == "dumb")
	if f.play != "" {
		switch {
		case urlSet:
			return usage("an address and --play", f.url, "either a router is watched or a file is played", "leave one out")
		case f.record != "":
			return usage("--record and --play", "--record", "what is played is recorded already", "leave one out")
		}
		return a.watchFile(ctx, f, mode)
	}
	u, err := watchURL(f.url)
	if err != nil {
		return badValue(f.url, "URL", err)
	}
	c := tui.RemoteConfig{URL: u, Interval: f.interval}
	if f.tokenFile != "" {
		if c.Token, err = readToken(f.tokenFile); err != nil {
			return err
		}
	}
	if f.ca != "" {
		if c.Transport, err = trusting(f.ca); err != nil {
			return usage("bad certificates", "--ca", err.Error(), "")
		}
	}
	if f.record != "" {
		file, err := os.OpenFile(f.record, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			return usage("cannot record", "--record "+f.record, "the file is there already", "name another one")
		}
		if err != nil {
			return usage("cannot record", "--record "+f.record, pathWhy(err), "")
		}
		defer file.Close() // each line is written when it comes
		defer func() {     // where it stays when the screen is gone
			if err := c.Tape.Err(); err != nil && mode != watchOnce {
				a.warn("the recording %s ended early: %v", f.record, err)
			}
			if !c.Tape.Empty() {
				return
			}
			// It would only be in the way of the next one.
			if err := os.Remove(f.record); err != nil {
				a.warn("the recording %s has nothing in it, and cannot be removed: %s", f.record, pathWhy(err))
			} else if mode == watchScreen {
				a.warn("nothing was recorded: %s gave no snapshot", u.Redacted())
			}
		}()
		if c.Tape, err = tui.NewTape(file, u.Redacted(), f.recordMax); err != nil {
			return failed("cannot record", f.record, err)
		}
	}
	r := tui.NewRemote(c)
	if mode == watchScreen {
		return a.screen(ctx, r, f)
	}
	return a.watchPrinted(ctx, r, f, mode, c.Tape)
}

// screen draws until the user quits or a signal comes, which is a way to quit.
func (a *app) screen(ctx context.Context, src tui.Source, f *watchFlags) error {
	if !signal.Ignored(syscall.SIGHUP) { // of a terminal that goes away
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
		defer stop()
	}
	err := tui.Run(ctx, src, tui.Options{ASCII: f.ascii || !tui.UTF8(func(name string) string { return a.env[name] }), NoColor: !a.color(), Mouse: f.mouse}, a.stdin, a.stdout)
	var own *tui.Fault
	switch {
	case errors.As(err, &own):
		fmt.Fprintf(a.stderr, "%s\n", own.Stack)
		return failed("the screen ended", "", err)
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return failed("the screen ended", "", err)
	}
	return nil
}

// watchPrinted prints snapshots. A router that answered once is waited for when it does not, as on a screen.
func (a *app) watchPrinted(ctx context.Context, r *tui.Remote, f *watchFlags, mode watchMode, tape *tui.Tape) error {
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	answered, away := false, ""
	for {
		s, raw, err := r.Fetch(ctx)
		switch {
		case ctx.Err() != nil && mode == watchLines && answered: // that is how it ends
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !answered:
			return watchFault(r.Name(), err)
		case err != nil:
			if why := err.Error(); why != away {
				away = why
				a.warn("%s does not answer: %s; trying again", r.Name(), why)
			}
		default:
			if away != "" {
				away = ""
				a.note(r.Name() + " answers again")
			}
			answered = true
			if err := tape.Write(s, raw); err != nil && mode == watchOnce {
				return failed("cannot record", f.record, err)
			}
			if err := a.printSnapshot(s, raw, f, mode); err != nil {
				return err
			}
		}
		if mode == watchOnce {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// printSnapshot prints one as a table or JSON; raw may be nil.
func (a *app) printSnapshot(s *snapshot.Snapshot, raw []byte, f *watchFlags, mode watchMode) error {
	return a.emit(func(w io.Writer) error {
		switch {
		case f.format != formatJSON && mode == watchOnce:
			return writeState(w, s, f.play != "")
		case f.format != formatJSON:
			return writeSnapshotLine(w, s)
		case raw == nil:
			var err error
			if raw, err = json.Marshal(s); err != nil {
				return err
			}
		}
		var b bytes.Buffer
		var err error
		if mode == watchOnce {
			err = json.Indent(&b, bytes.TrimSpace(raw), "", "  ")
		} else {
			err = json.Compact(&b, raw)
		}
		if err != nil {
			return err
		}
		b.WriteByte('\n')
		_, err = w.Write(b.Bytes())
		return err
	})
}

// trusting is a transport to servers that only the certificates of a file vouch for.
func trusting(caFile string) (*http.Transport, error) {
	c, err := router.Trusting(caFile)
	var path *fs.PathError
	if errors.As(err, &path) {
		return nil, fmt.Errorf("%s: %s", caFile, pathWhy(err))
	}
	if err != nil {
		return nil, err
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = c
	return t, nil
}

// watchFault words why a router cannot be watched.
func watchFault(name string, err error) error {
	var refused *tui.Refusal
	var schema *snapshot.SchemaError
	switch {
	case errors.As(err, &refused):
		return &fault{code: exitFailed, what: "the router refuses", where: name, why: refused.Text, err: err}
	case errors.As(err, &schema), errors.Is(err, tui.ErrNoSnapshot):
		return failed("cannot read the router's answer", name, err)
	}
	return &fault{code: exitUnreachable, what: "cannot reach the router", where: name, why: err.Error(), hint: "is it running, and is this the address of its --listen or --admin-listen?", err: err}
}

// watchURL is the address of a router; http where it names no scheme.
func watchURL(text string) (*url.URL, error) {
	if text != "" && !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	const hint = "a router's address looks like " + defaultRouter
	switch {
	case err != nil:
		return nil, &valueError{err.Error(), hint}
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, &valueError{"not an http address", hint}
	case u.RawQuery != "" || u.Fragment != "":
		return nil, &valueError{"an address with a query", hint}
	}
	return u, nil
}

// watchFile shows a recording.
func (a *app) watchFile(ctx context.Context, f *watchFlags, mode watchMode) error {
	file, err := os.Open(f.play)
	if err != nil {
		return usage("cannot play", "--play "+f.play, pathWhy(err), "")
	}
	defer file.Close() // only read from
	head := make([]byte, 4096)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return usage("cannot play", "--play "+f.play, pathWhy(err), "")
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return usage("cannot play", "--play "+f.play, pathWhy(err), "a pipe cannot be played: name a file")
	}
	track, err := openTrack(f.play, file, head[:n])
	if err != nil {
		return playFault("cannot play", f.play, err)
	}
	if mode == watchScreen {
		return a.screen(ctx, tui.NewPlayback(f.play, track, f.speed), f)
	}
	return a.playPrinted(ctx, track, f, mode)
}

// playPrinted prints what a recording holds: its last snapshot, or one for every interval of its time. Of a
// damaged one, what comes before the damage.
func (a *app) playPrinted(ctx context.Context, track tui.Track, f *watchFlags, mode watchMode) error {
	// A jump in what serve recorded reads all up to there, and does not make each snapshot on the way.
	if t, ok := track.(*playback.Track); ok && mode == watchOnce {
		_, to := t.Span()
		if err := t.SeekTo(to); err != nil {
			return playFault("cannot play", f.play, err)
		}
	}
	var last *snapshot.Snapshot
	due := int64(0)
	for {
		s, err := track.Next()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if last != nil && mode == watchOnce {
				if err := a.printSnapshot(last, nil, f, mode); err != nil {
					return err
				}
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return playFault("cannot play to the end", f.play, err)
		}
		if last = s; mode == watchLines && s.AtMS >= due {
			due = s.AtMS + f.interval.Milliseconds()
			if err := a.printSnapshot(s, nil, f, mode); err != nil {
				return err
			}
		}
	}
}

// playFault words what is wrong with a recording: where, and what can be done. What is none is a wrong argument.
func playFault(what, name string, err error) error {
	var tape *tui.TapeError
	var run *record.Error
	switch {
	case errors.As(err, &tape):
		f := &fault{code: exitFailed, what: what, why: tape.Error(), hint: tape.Hint, err: err}
		if !tape.Damaged {
			f.code = exitUsage
		}
		return f
	case errors.As(err, &run):
		f := &fault{code: exitFailed, what: what, why: run.Error(), hint: run.Hint, err: err}
		if !run.Damaged {
			f.code = exitUsage
		}
		return f
	}
	return failed(what, name, err)
}

// openTrack finds out what kind of recording a file is.
func openTrack(name string, file *os.File, head []byte) (tui.Track, error) {
	if tui.IsTape(head) {
		return tui.OpenTape(name, file)
	}
	track, err := playback.Open(name, file)
	var bad *record.Error
	if errors.As(err, &bad) && !bad.Damaged && bad.Line <= 1 && bad.Hint == "" {
		return nil, &record.Error{File: name, Why: "a recording neither of kvroute watch --record nor of kvroute serve --record"}
	}
	return track, err
}

// readsTerminal says whether keys can be read from r.
func readsTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
