package watchssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/ssh"
	"github.com/charmbracelet/colorprofile"
	gossh "golang.org/x/crypto/ssh"

	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/tui"
)

// Sizes of screens that are drawn: no terminal has more, and a client may say anything.
const (
	mostColumns, mostRows   = 1000, 500
	usualColumns, usualRows = 80, 24
)

// middleware serves a session. Nothing comes after it.
func (s *Server) middleware(ssh.Handler) ssh.Handler { return s.handle }

func (s *Server) handle(sess ssh.Session) {
	pty, sizes, hasPTY := sess.Pty()
	x := &screen{srv: s, sess: sess, pty: pty, sizes: make(chan ssh.Window, 1)}
	if sizes != nil {
		go x.resize(sizes)
	}
	x.conn, _ = sess.Context().Value(connKey{}).(*conn)
	// A client that has its exit code hangs up; one that does not is cut off.
	defer func() { time.AfterFunc(s.lim.Grace, x.cut) }()
	key := sess.PublicKey()
	if x.conn == nil || key == nil {
		x.refuse("no key was proved")
		return
	}
	x.log = s.cfg.Log.With("key", gossh.FingerprintSHA256(key), "address", sess.RemoteAddr().String())
	g, err := s.cfg.Keys.allows(key, x.conn.addr)
	if err != nil {
		x.refuse(err.Error())
		return
	}
	if sess.RawCommand() != "" {
		x.refuse("commands are not run here: ssh without one shows the screen, ssh -T one snapshot as text")
		return
	}
	if !x.enter() {
		return
	}
	defer s.leave(x)
	leave, ok := s.cfg.Hub.Watch()
	if !ok {
		x.refuse("too many watch already")
		return
	}
	defer leave()
	defer tui.Catch(func(f *tui.Fault) {
		x.fault(f)
		x.finish(faultText, 1)
	})
	kind := "screen"
	if !hasPTY || g.noPTY || pty.Term == "dumb" || pty.Term == "" {
		kind = "text"
	}
	s.sessions.WithLabelValues(kind).Inc()
	begun := time.Now()
	x.log.Info("ssh session begins", "user", sess.User(), "comment", g.comment, "kind", kind, "terminal", pty.Term)
	why := "the text was sent"
	if kind == "screen" {
		why = x.run(key)
	} else {
		x.text()
	}
	x.log.Info("ssh session ends", "reason", why, "after", time.Since(begun).Round(time.Millisecond).String())
}

// enter counts the session as open; not so while the server ends.
func (x *screen) enter() bool {
	s := x.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.screens[x] = struct{}{}
	s.done.Add(1)
	s.watching.Inc()
	return true
}

func (s *Server) leave(x *screen) {
	s.mu.Lock()
	delete(s.screens, x)
	s.mu.Unlock()
	s.watching.Dec()
	s.done.Done()
}

// screen is a session.
type screen struct {
	srv  *Server
	sess ssh.Session
	conn *conn
	pty  ssh.Pty
	log  *slog.Logger

	sizes chan ssh.Window // the last one that is not drawn yet

	program atomic.Pointer[tea.Program] // nil: not drawing yet
	ended   atomic.Pointer[string]      // why, unless its user quit
	failed  atomic.Bool                 // by a fault of the program's own
	idle    *time.Timer
}

// end makes the program quit, with its screen restored.
func (x *screen) end(why string) {
	x.ended.CompareAndSwap(nil, &why)
	if p := x.program.Load(); p != nil {
		go p.Quit() // waits while the program cannot draw
	}
}

// faultText is what a client is told of a panic.
const faultText = "the session failed: a fault of kvroute's own, see the router's log"

// fault ends the session, and only that. The first fault is logged: drawing may fail at every try.
func (x *screen) fault(f *tui.Fault) {
	if x.failed.CompareAndSwap(false, true) {
		x.log.Error("ssh session failed", "panic", f.Value, "stack", string(f.Stack))
	}
	x.end(faultText)
}

// refuse tells the client why there is nothing to see, and ends the session.
func (x *screen) refuse(why string) {
	x.srv.refused.WithLabelValues("session").Inc()
	x.srv.cfg.Log.Info("ssh session refused", "address", x.sess.RemoteAddr().String(), "reason", why)
	x.finish(why, 1)
}

// finish says a last line and sends the exit code.
func (x *screen) finish(why string, code int) {
	if _, err := io.WriteString(&guarded{w: x.sess.Stderr(), limit: x.srv.lim.Stuck, stuck: x.cut}, "kvroute: "+why+"\r\n"); err != nil {
		return // nobody listens any more
	}
	if err := x.sess.Exit(code); err != nil && !errors.Is(err, io.EOF) {
		x.srv.cfg.Log.Debug("ending an ssh session", "error", err)
	}
}

func (x *screen) cut() {
	if x.conn != nil {
		x.conn.cut()
	}
}

// resize takes the sizes of the client's terminal until the session's requests end, and keeps the last. It never
// waits, for the connection's other messages wait behind.
func (x *screen) resize(sizes <-chan ssh.Window) {
	for w := range sizes {
		select {
		case <-x.sizes:
		default:
		}
		x.sizes <- w // has room: nobody else fills it
	}
}

// resizeEvery is the shortest time between two sizes that are drawn, however many a client tells.
const resizeEvery = 50 * time.Millisecond

// fit tells the program the sizes.
func (x *screen) fit(ctx context.Context, p *tea.Program) {
	for {
		select {
		case <-ctx.Done():
			return
		case w := <-x.sizes:
			width, height := size(w)
			p.Send(tea.WindowSizeMsg{Width: width, Height: height})
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(resizeEvery):
		}
	}
}

// size is a client's size as it is drawn.
func size(w ssh.Window) (width, height int) {
	width, height = min(w.Width, mostColumns), min(w.Height, mostRows)
	if width <= 0 || height <= 0 {
		return usualColumns, usualRows
	}
	return width, height
}

// text sends one snapshot.
func (x *screen) text() {
	out := &guarded{w: x.sess, limit: x.srv.lim.Stuck, stuck: x.cut}
	if err := x.srv.cfg.Text(out, x.srv.cfg.Hub.Current(x.srv.lim.Interval)); err != nil {
		x.log.Debug("sending a snapshot over ssh", "error", err)
	}
}

// run draws until the user quits, the client is gone or the session is ended. It returns why.
func (x *screen) run(key gossh.PublicKey) string {
	lim := x.srv.lim
	ctx, stop := context.WithCancel(x.sess.Context())
	defer stop()
	env := append(known(x.sess.Environ()), "TERM="+x.pty.Term)
	profile := colorprofile.Env(env)
	width, height := size(x.pty.Window)
	src := &source{hub: x.srv.cfg.Hub, name: x.srv.cfg.Name, interval: lim.Interval}
	model := tui.New(src, tui.Options{ASCII: !tui.UTF8(variable(env)), NoColor: profile < colorprofile.ANSI, Width: width, Height: height})
	x.idle = time.AfterFunc(time.Hour, func() { x.end(fmt.Sprintf("no key was pressed for %v", lim.Idle)) })
	x.idle.Stop()
	defer x.idle.Stop()
	in := &typed{r: x.sess, now: time.Now, seen: x.touch, over: func() { x.end(tooMuch) }}
	out := &guarded{w: x.sess, limit: lim.Stuck, stuck: func() {
		why := "the client did not take what was drawn"
		x.ended.CompareAndSwap(nil, &why)
		x.cut()
	}}
	idle, done := io.Pipe() // keys come by stream
	defer done.Close()      // ends the program's own reader; cannot fail
	p := tea.NewProgram(
		tui.Guard(model, x.fault), tea.WithContext(ctx), tea.WithInput(idle), tea.WithOutput(out), tea.WithEnvironment(env), tea.WithColorProfile(profile),
		tea.WithWindowSize(width, height), tea.WithFPS(tui.FPS), tea.WithoutSignalHandler(), tea.WithFilter(noSuspend),
	)
	x.program.Store(p)
	if x.ended.Load() != nil { // before there was a program to quit
		stop()
	}
	x.touch()
	var feeding sync.WaitGroup
	feeding.Go(func() {
		defer tui.Catch(x.fault)
		tui.Feed(ctx, p, src)
	})
	stream(ctx, in, x.pty.Term, p.Send)
	feeding.Go(func() { x.fit(ctx, p) })
	feeding.Go(func() { x.lookAfter(ctx, key) })
	_, err := p.Run()
	stop()
	feeding.Wait()
	why := "the user quit"
	switch e := x.ended.Load(); {
	case x.failed.Load():
		why = "it failed"
		x.finish(faultText, 1)
	case e != nil:
		why = *e
		x.finish(why, 0)
	case err != nil:
		why = "the client is gone"
	}
	return why
}

// touch begins the time without keys anew.
func (x *screen) touch() {
	if x.srv.lim.Idle > 0 {
		x.idle.Reset(x.srv.lim.Idle)
	}
}

// lookAfter looks now and then whether the client is still there and its key still listed.
func (x *screen) lookAfter(ctx context.Context, key gossh.PublicKey) {
	client, _ := x.sess.Context().Value(ssh.ContextKeyConn).(*gossh.ServerConn)
	tick := time.NewTicker(x.srv.lim.Keepalive)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := x.srv.cfg.Keys.allows(key, x.conn.addr); err != nil {
			x.end(err.Error())
		}
		late := time.AfterFunc(x.srv.lim.Stuck, x.cut)
		_, _, err := client.SendRequest("keepalive@openssh.com", true, nil)
		late.Stop()
		if err != nil {
			return // the connection is gone, and with it the session's context
		}
	}
}

// noSuspend keeps a program running that has no shell to be suspended to.
func noSuspend(_ tea.Model, msg tea.Msg) tea.Msg {
	if _, ok := msg.(tea.SuspendMsg); ok {
		return nil
	}
	return msg
}

// known are the variables that the filter knows, but for TERM, which comes with the terminal.
func known(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == "TERM" || !slices.Contains(variables, name)
	})
}

// variable returns a lookup of a client's variables, "" for what is not set.
func variable(env []string) func(name string) string {
	return func(name string) string {
		for _, v := range env {
			if n, value, _ := strings.Cut(v, "="); n == name {
				return value
			}
		}
		return ""
	}
}

// guarded is a writer whose reader must not wait too long.
type guarded struct {
	w     io.Writer
	limit time.Duration
	stuck func()
}

func (g *guarded) Write(p []byte) (int, error) {
	t := time.AfterFunc(g.limit, g.stuck)
	defer t.Stop()
	return g.w.Write(p)
}

// source reads a hub in this process.
type source struct {
	hub      Hub
	name     string
	interval time.Duration
}

func (s *source) Name() string { return s.name }

// Run sends what has changed. While send waits nothing is kept: the next snapshot is of then.
func (s *source) Run(ctx context.Context, send func(tui.Update)) {
	tick := time.NewTicker(s.interval)
	defer tick.Stop()
	var sent *snapshot.Snapshot
	for {
		if now := s.hub.Current(s.interval / 2); now != sent {
			send(tui.Update{Snap: now, Link: tui.Live})
			sent = now
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *source) Explain(ctx context.Context, pick uint64) ([]byte, error) {
	return s.hub.Explain(ctx, pick)
}
