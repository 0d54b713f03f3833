package watchssh

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	gossh "golang.org/x/crypto/ssh"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// TestMain finds goroutines that are left. Those of a program's last timers, a second at most, may run out first.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		late := time.Now().Add(patience)
		err := goleak.Find()
		for err != nil && time.Now().Before(late) {
			err = goleak.Find()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// patience is how long a test waits for what must come; none waits that long when all is well.
const patience = 20 * time.Second

// fakeHub tells of a few workers; every snapshot is newer than the last.
type fakeHub struct {
	seq      atomic.Uint64
	watchers atomic.Int64
	most     int64
	fault    atomic.Bool // Current fails
}

func (h *fakeHub) Current(time.Duration) *snapshot.Snapshot {
	if h.fault.Load() {
		panic("planted fault")
	}
	n := h.seq.Add(1)
	s := &snapshot.Snapshot{Schema: snapshot.Schema, Run: "run-1", Seq: n, AtMS: 1_700_000_000_000 + int64(n)*250, Router: snapshot.Router{Ready: true, Policy: "least-work", BlockSize: 16, Version: "v1"}}
	for i := range 3 {
		name := fmt.Sprintf("worker-%d", i)
		s.Workers = append(s.Workers, snapshot.Worker{WorkerID: name, RouteKey: name, Model: "tiny", Role: "mixed", Engine: "vllm", Health: "healthy", Trust: "trusted", HeldRequests: int64(n)})
	}
	return s
}

func (h *fakeHub) Watch() (func(), bool) {
	if n := h.watchers.Add(1); h.most > 0 && n > h.most {
		h.watchers.Add(-1)
		return nil, false
	}
	return func() { h.watchers.Add(-1) }, true
}

func (h *fakeHub) Explain(context.Context, uint64) ([]byte, error) {
	return nil, errors.New("not kept")
}

// stand is a server that runs for a test.
type stand struct {
	t    *testing.T
	hub  *fakeHub
	srv  *Server
	addr string
	key  gossh.Signer // listed
	file string       // of the listed keys
	log  *lines
	reg  *prometheus.Registry
	stop func()
}

// lines is a log that may be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newKey(t *testing.T) gossh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := gossh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func line(key gossh.Signer) string { return string(gossh.MarshalAuthorizedKey(key.PublicKey())) }

// start makes a stand; options come before the key in its file.
func start(t *testing.T, lim Limits, options string) *stand {
	t.Helper()
	if lim.Grace == 0 {
		lim.Grace = 200 * time.Millisecond
	}
	st := &stand{t: t, hub: &fakeHub{}, key: newKey(t), log: &lines{}, reg: prometheus.NewRegistry()}
	st.file = writeFile(t, filepath.Join(t.TempDir(), "keys"), options+line(st.key))
	log := slog.New(slog.NewTextHandler(st.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	keys, err := OpenKeys(st.file, log)
	if err != nil {
		t.Fatal(err)
	}
	st.srv, err = New(Config{
		Hub: st.hub, Keys: keys, HostKey: newKey(t), Name: "router", Log: log, Registry: st.reg, Limits: lim,
		Text: func(w io.Writer, s *snapshot.Snapshot) error {
			for i := range s.Workers {
				if _, err := fmt.Fprintln(w, s.Workers[i].RouteKey); err != nil {
					return err
				}
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	st.addr = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- st.srv.Serve(l) }()
	st.stop = sync.OnceFunc(func() {
		if err := st.srv.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
		if n := st.hub.watchers.Load(); n != 0 {
			t.Errorf("%d watchers are counted after all has ended", n)
		}
		if n := st.metric("kvroute_watch_ssh_sessions"); n != 0 {
			t.Errorf("%g sessions are counted after all has ended", n)
		}
	})
	t.Cleanup(st.stop)
	return st
}

// metric sums up the samples of a metric.
func (st *stand) metric(name string) float64 {
	st.t.Helper()
	families, err := st.reg.Gather()
	if err != nil {
		st.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return sum
}

func (st *stand) dialWith(auth ...gossh.AuthMethod) (*gossh.Client, error) {
	return gossh.Dial("tcp", st.addr, &gossh.ClientConfig{
		User: "somebody", Auth: auth, Timeout: patience, HostKeyCallback: gossh.FixedHostKey(st.srv.cfg.HostKey.PublicKey()),
	})
}

func (st *stand) dial() *gossh.Client {
	st.t.Helper()
	c, err := st.dialWith(gossh.PublicKeys(st.key))
	if err != nil {
		st.t.Fatalf("connecting with a listed key: %v", err)
	}
	st.t.Cleanup(func() { closeQuietly(c) })
	return c
}

// closeQuietly closes what may be closed already.
func closeQuietly(c io.Closer) { _ = c.Close() }

// terminal is a client's session with a screen.
type terminal struct {
	t    *testing.T
	s    *gossh.Session
	keys io.WriteCloser
	errs *lines

	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // something came
	end  chan error    // the session's end
}

func (st *stand) open(c *gossh.Client, term string, width, height int) *terminal {
	st.t.Helper()
	s, err := c.NewSession()
	if err != nil {
		st.t.Fatalf("opening a session: %v", err)
	}
	x := &terminal{t: st.t, s: s, errs: &lines{}, more: make(chan struct{}, 1), end: make(chan error, 1)}
	if term != "" {
		if err := s.RequestPty(term, height, width, gossh.TerminalModes{}); err != nil {
			st.t.Fatalf("asking for a terminal: %v", err)
		}
	}
	if x.keys, err = s.StdinPipe(); err != nil {
		st.t.Fatal(err)
	}
	s.Stdout, s.Stderr = x, x.errs
	if err := s.Shell(); err != nil {
		st.t.Fatalf("beginning a session: %v", err)
	}
	go func() { x.end <- s.Wait() }()
	return x
}

func (x *terminal) Write(p []byte) (int, error) {
	x.mu.Lock()
	x.text.Write(p)
	x.mu.Unlock()
	select {
	case x.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (x *terminal) shown() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.text.String()
}

func (x *terminal) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.text.Reset()
}

// expect waits until all of want were sent since the last forget.
func (x *terminal) expect(want ...string) {
	x.t.Helper()
	late := time.After(patience)
	for {
		text, missing := x.shown(), ""
		for _, w := range want {
			if !strings.Contains(text, w) {
				missing = w
			}
		}
		if missing == "" {
			return
		}
		select {
		case <-x.more:
		case <-late:
			x.t.Fatalf("waiting for %q on the screen, got %q, errors %q", missing, text, x.errs)
		}
	}
}

func (x *terminal) press(keys string) {
	x.t.Helper()
	if _, err := io.WriteString(x.keys, keys); err != nil {
		x.t.Fatalf("pressing %q: %v", keys, err)
	}
}

// wait waits for the session's end and returns its exit code, -1 for none.
func (x *terminal) wait() int {
	x.t.Helper()
	select {
	case err := <-x.end:
		var e *gossh.ExitError
		switch {
		case err == nil:
			return 0
		case errors.As(err, &e):
			return e.ExitStatus()
		}
		return -1
	case <-time.After(patience):
		x.t.Fatalf("the session does not end; screen %q, errors %q", x.shown(), x.errs)
		return -1
	}
}

// until waits for a condition that the server brings about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	late := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(late) {
			t.Fatalf("waiting in vain: %s", what)
		}
		time.Sleep(time.Millisecond) // a poll, nothing depends on its length
	}
}

const leaveScreen = "\x1b[?1049l"

func TestScreenIsShownResizedAndRestored(t *testing.T) {
	st := start(t, Limits{}, "")
	x := st.open(st.dial(), "xterm-256color", 100, 30)
	x.expect("\x1b[?1049h", "worker-0", "worker-2", "least-work")
	x.forget()
	if err := x.s.WindowChange(10, 30); err != nil {
		t.Fatal(err)
	}
	x.expect("60") // the least size that is drawn is named
	x.forget()
	if err := x.s.WindowChange(40, 120); err != nil {
		t.Fatal(err)
	}
	x.expect("worker-1")
	x.press("q")
	if code := x.wait(); code != 0 {
		t.Errorf("got exit code %d after q, want 0", code)
	}
	x.expect(leaveScreen)
	until(t, "the log tells of the session", func() bool { return strings.Contains(st.log.String(), `reason="the user quit"`) })
	if log := st.log.String(); !strings.Contains(log, gossh.FingerprintSHA256(st.key.PublicKey())) || !strings.Contains(log, "address=127.0.0.1") {
		t.Errorf("the log does not tell key and address: %s", log)
	}
	if n := st.metric("kvroute_watch_ssh_sessions_total"); n != 1 {
		t.Errorf("got %g sessions counted, want 1", n)
	}
}

func TestWhoGetsIn(t *testing.T) {
	st := start(t, Limits{}, "")
	refused := map[string][]gossh.AuthMethod{
		"another key": {gossh.PublicKeys(newKey(t))},
		"no key":      nil,
		"a password":  {gossh.Password("secret")},
		"answers": {gossh.KeyboardInteractive(func(_, _ string, q []string, _ []bool) ([]string, error) {
			return make([]string, len(q)), nil
		})},
	}
	for name, auth := range refused {
		c, err := st.dialWith(auth...)
		if err == nil {
			closeQuietly(c)
			t.Errorf("%s got in", name)
		}
	}
	c, err := st.dialWith(gossh.PublicKeys(newKey(t), st.key)) // the second one is listed
	if err != nil {
		t.Fatalf("a listed key after another: %v", err)
	}
	closeQuietly(c)
	if n := st.metric("kvroute_watch_ssh_refused_total"); n == 0 {
		t.Error("no refusal is counted")
	}
}

// A client that offers a listed key last without having it must not be taken for its owner.
func TestAnOfferedKeyIsNoProvedKey(t *testing.T) {
	st := start(t, Limits{}, "")
	other := newKey(t)
	writeFile(t, st.file, `from="192.0.2.1" `+line(st.key)+line(other))
	keys, err := OpenKeys(st.file, st.srv.cfg.Log)
	if err != nil {
		t.Fatal(err)
	}
	st.srv.cfg.Keys = keys
	if c, err := st.dialWith(gossh.PublicKeys(st.key)); err == nil {
		closeQuietly(c)
		t.Error("a key for another address got in")
	}
	c, err := st.dialWith(gossh.PublicKeys(other))
	if err != nil {
		t.Fatal(err)
	}
	defer closeQuietly(c)
	x := st.open(c, "xterm", 80, 24)
	x.expect("worker-0")
	if log, want := st.log.String(), gossh.FingerprintSHA256(other.PublicKey()); !strings.Contains(log, `begins" key=`+want) {
		t.Errorf("the session is not logged under the key that was proved, %s: %s", want, log)
	}
}

func TestNothingButTheScreen(t *testing.T) {
	st := start(t, Limits{}, "")
	c := st.dial()
	if _, err := c.Dial("tcp", st.addr); err == nil {
		t.Error("a connection was forwarded")
	}
	if l, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
		closeQuietly(l)
		t.Error("a port was opened for a client")
	}
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"auth-agent-req@openssh.com", "x11-req", "signal", "break", "window-change"} {
		if ok, err := s.SendRequest(name, true, nil); err != nil || ok {
			t.Errorf("request %s: got %v, %v, want a refusal", name, ok, err)
		}
	}
	if err := s.RequestSubsystem("sftp"); err == nil {
		t.Error("sftp was begun")
	}
	if err := s.Setenv("LD_PRELOAD", "evil.so"); err == nil {
		t.Error("LD_PRELOAD was taken")
	}
	if err := s.Setenv("COLORTERM", "truecolor"); err != nil {
		t.Errorf("COLORTERM was refused: %v", err)
	}
	if err := s.Setenv("COLORTERM", strings.Repeat("x", 1000)); err == nil {
		t.Error("a long COLORTERM was taken")
	}
	if _, err := c.NewSession(); err == nil {
		t.Error("a second session was opened on one connection")
	}
	closeQuietly(s)

	c = st.dial()
	if s, err = c.NewSession(); err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	s.Stderr = &errs
	var exit *gossh.ExitError
	if err := s.Run("id; touch /tmp/x"); !errors.As(err, &exit) || exit.ExitStatus() != 1 {
		t.Errorf("running a command: got %v, want exit code 1", err)
	}
	if got := errs.String(); !strings.Contains(got, "commands are not run here") {
		t.Errorf("got %q, want why no command is run", got)
	}
}

func TestWithoutATerminal(t *testing.T) {
	want := "worker-0\nworker-1\nworker-2\n"
	for name, c := range map[string]struct{ options, term string }{"none asked for": {"", ""}, "dumb": {"", "dumb"}} {
		st := start(t, Limits{}, c.options)
		x := st.open(st.dial(), c.term, 80, 24)
		if code := x.wait(); code != 0 {
			t.Errorf("%s: got exit code %d, want 0", name, code)
		}
		if got := strings.ReplaceAll(x.shown(), "\r\n", "\n"); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	st := start(t, Limits{}, "restrict ")
	x := st.open(st.dial(), "xterm", 80, 24)
	if code := x.wait(); code != 0 || strings.Contains(x.shown(), "\x1b") || !strings.Contains(x.shown(), "worker-1") {
		t.Errorf("a restricted key: got exit code %d, %q, want plain text", code, x.shown())
	}
}

func TestColoursFollowTheTerminal(t *testing.T) {
	for _, c := range []struct {
		term, colorterm, noColor string
		want, never              string
	}{
		{"xterm-256color", "", "", "38;5;", "38;2;"},
		{"xterm", "", "", "\x1b[9", "38;"},
		{"xterm-256color", "", "1", "worker-0", "38;"},
	} {
		st := start(t, Limits{}, "")
		s := st.dial()
		session, err := s.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{"COLORTERM": c.colorterm, "NO_COLOR": c.noColor} {
			if v != "" {
				if err := session.Setenv(k, v); err != nil {
					t.Fatal(err)
				}
			}
		}
		x := &terminal{t: t, s: session, errs: &lines{}, more: make(chan struct{}, 1), end: make(chan error, 1)}
		if err := session.RequestPty(c.term, 30, 100, nil); err != nil {
			t.Fatal(err)
		}
		session.Stdout, session.Stderr = x, x.errs
		if x.keys, err = session.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := session.Shell(); err != nil {
			t.Fatal(err)
		}
		go func() { x.end <- session.Wait() }()
		x.expect(c.want, "worker-0", "worker-2")
		if text := x.shown(); strings.Contains(text, c.never) {
			t.Errorf("%+v: %q was sent: %q", c, c.never, text)
		}
		st.stop()
	}
}
