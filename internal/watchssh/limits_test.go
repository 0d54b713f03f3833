package watchssh

import (
	"bytes"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"
)

func TestTwentyWatchersAtOnceBesideOneThatReadsNothing(t *testing.T) {
	st := start(t, Limits{Stuck: time.Hour, Interval: 50 * time.Millisecond}, "")
	defer closeQuietly(st.stall())
	var all []*terminal
	for range 20 {
		all = append(all, st.open(st.dial(), "xterm-256color", 120, 40))
	}
	for _, x := range all {
		x.expect("worker-0", "worker-2")
	}
	for _, x := range all {
		x.forget()
		x.press("?")
		x.expect("help")
	}
	if n := st.metric("kvroute_watch_ssh_sessions"); n != 21 {
		t.Errorf("got %g sessions open, want 21", n)
	}
	for _, x := range all {
		x.press("\x1bq") // as one: not taken for alt+q
	}
	for _, x := range all {
		if code := x.wait(); code != 0 {
			t.Errorf("got exit code %d, want 0", code)
		}
	}
}

// gate is a connection that can stop taking what comes.
type gate struct {
	net.Conn
	mu   sync.RWMutex
	shut chan struct{} // nil: open
}

func (g *gate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

func (g *gate) Read(p []byte) (int, error) {
	g.mu.RLock()
	shut := g.shut
	g.mu.RUnlock()
	if shut != nil {
		<-shut
		return 0, net.ErrClosed
	}
	return g.Conn.Read(p)
}

func (g *gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
	return g.Conn.Close()
}

// stall begins a session whose client then takes nothing any more, on a line that holds little.
func (st *stand) stall() *gate {
	st.t.Helper()
	l, err := net.Listen("unix", filepath.Join(st.t.TempDir(), "s"))
	if err != nil {
		st.t.Fatal(err)
	}
	defer closeQuietly(l)
	here, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		st.t.Fatal(err)
	}
	there, err := l.Accept()
	if err != nil {
		st.t.Fatal(err)
	}
	if err := there.(*net.UnixConn).SetWriteBuffer(1); err != nil {
		st.t.Fatal(err)
	}
	go st.srv.ssh.HandleConn(there)
	g := &gate{Conn: here}
	c, chans, reqs, err := gossh.NewClientConn(g, "pipe", &gossh.ClientConfig{User: "x", Auth: []gossh.AuthMethod{gossh.PublicKeys(st.key)}, HostKeyCallback: gossh.FixedHostKey(st.srv.cfg.HostKey.PublicKey())})
	if err != nil {
		st.t.Fatal(err)
	}
	x := st.open(gossh.NewClient(c, chans, reqs), "xterm-256color", 120, 40)
	x.expect("worker-0")
	g.stop()
	return g
}

func TestAClientThatTakesNothingIsCutOff(t *testing.T) {
	st := start(t, Limits{Stuck: 100 * time.Millisecond}, "")
	g := st.stall()
	defer closeQuietly(g)
	until(t, "its session is over", func() bool {
		return st.metric("kvroute_watch_ssh_sessions") == 0 && strings.Contains(st.log.String(), "the client did not take what was drawn")
	})
}

func TestDisconnectInTheMiddleOfAFrame(t *testing.T) {
	st := start(t, Limits{Interval: 20 * time.Millisecond}, "")
	for range 5 {
		raw, err := net.Dial("tcp", st.addr)
		if err != nil {
			t.Fatal(err)
		}
		c, chans, reqs, err := gossh.NewClientConn(raw, st.addr, &gossh.ClientConfig{User: "x", Auth: []gossh.AuthMethod{gossh.PublicKeys(st.key)}, HostKeyCallback: gossh.FixedHostKey(st.srv.cfg.HostKey.PublicKey())})
		if err != nil {
			t.Fatal(err)
		}
		x := st.open(gossh.NewClient(c, chans, reqs), "xterm-256color", 200, 60)
		x.expect("worker-0")
		closeQuietly(raw) // no goodbye
		x.wait()
	}
	until(t, "sessions end", func() bool { return st.metric("kvroute_watch_ssh_sessions") == 0 })
	if n := strings.Count(st.log.String(), `reason="the client is gone"`); n != 5 {
		t.Errorf("got %d sessions logged as left, want 5: %s", n, st.log)
	}
}

func TestIdleSessionsEndWithTheirScreenRestored(t *testing.T) {
	st := start(t, Limits{Idle: 300 * time.Millisecond}, "")
	x := st.open(st.dial(), "xterm", 80, 24)
	if code := x.wait(); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
	x.expect("worker-0", leaveScreen)
	if got := x.errs.String(); !strings.Contains(got, "no key was pressed for 300ms") {
		t.Errorf("got %q, want why it ended", got)
	}
}

func TestTheServersEndRestoresScreens(t *testing.T) {
	st := start(t, Limits{}, "")
	c := st.dial()
	x := st.open(c, "xterm", 80, 24)
	x.expect("worker-0")
	raw, err := net.Dial("tcp", st.addr) // one that never says anything does not hold it up
	if err != nil {
		t.Fatal(err)
	}
	defer closeQuietly(raw)
	st.stop()
	if code := x.wait(); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
	x.expect(leaveScreen)
	if got := x.errs.String(); !strings.Contains(got, "the router is stopping") {
		t.Errorf("got %q, want why it ended", got)
	}
	if _, err := st.dialWith(gossh.PublicKeys(st.key)); err == nil {
		t.Error("a connection was accepted after the end")
	}
}

func TestLimitsOfConnections(t *testing.T) {
	for name, lim := range map[string]Limits{"in all": {Connections: 2}, "per address": {PerAddress: 2}} {
		st := start(t, lim, "")
		a, _ := st.dial(), st.dial()
		if c, err := st.dialWith(gossh.PublicKeys(st.key)); err == nil {
			closeQuietly(c)
			t.Errorf("%s: a third connection was accepted", name)
		}
		closeQuietly(a)
		until(t, name+": a place is free again", func() bool {
			c, err := st.dialWith(gossh.PublicKeys(st.key))
			if err == nil {
				closeQuietly(c)
			}
			return err == nil
		})
		st.stop()
	}
}

func TestThoseWithoutASessionAreFewAndShort(t *testing.T) {
	st := start(t, Limits{Waiting: 1, Handshake: 500 * time.Millisecond}, "")
	raw, err := net.Dial("tcp", st.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer closeQuietly(raw)
	var greeting [8]byte
	if _, err := raw.Read(greeting[:]); err != nil || !bytes.HasPrefix(greeting[:], []byte("SSH-2.0-")) {
		t.Fatalf("got %q, %v, want a greeting", greeting[:], err)
	}
	if c, err := st.dialWith(gossh.PublicKeys(st.key)); err == nil {
		closeQuietly(c)
		t.Error("a second connection was accepted while one had no session")
	}
	buf := make([]byte, 1<<12)
	for err == nil {
		_, err = raw.Read(buf) // ends when the server has had enough
	}
	until(t, "the place is free again", func() bool {
		c, err := st.dialWith(gossh.PublicKeys(st.key))
		if err != nil {
			return false
		}
		// It has proved its key and wants nothing: that ends too.
		if err := c.Wait(); err == nil {
			t.Error("a connection without a session ended in good order, want it cut off")
		}
		return true
	})
}

func TestTooManyWatchers(t *testing.T) {
	st := start(t, Limits{}, "")
	st.hub.most = 1
	a := st.open(st.dial(), "xterm", 80, 24)
	a.expect("worker-0")
	b := st.open(st.dial(), "xterm", 80, 24)
	if code := b.wait(); code != 1 || !strings.Contains(b.errs.String(), "too many watch already") {
		t.Errorf("got exit code %d, %q, want 1 and why", code, b.errs)
	}
}

func TestAFaultEndsOneSessionOnly(t *testing.T) {
	st := start(t, Limits{Interval: time.Hour}, "")
	good := st.open(st.dial(), "xterm", 80, 24)
	good.expect("worker-0")
	st.hub.fault.Store(true)
	bad := st.open(st.dial(), "xterm", 80, 24)
	bad.wait()
	if got := bad.errs.String(); !strings.Contains(got, "a fault of kvroute's own") {
		t.Errorf("got %q, want that it failed", got)
	}
	text := st.open(st.dial(), "", 0, 0)
	if code := text.wait(); code != 1 {
		t.Errorf("a text that cannot be made: got exit code %d, want 1", code)
	}
	if !strings.Contains(st.log.String(), "planted fault") {
		t.Error("the fault is not in the log")
	}
	st.hub.fault.Store(false)
	good.forget()
	good.press("?")
	good.expect("help")
}

func TestAKeyTakenOffTheListEndsItsSessions(t *testing.T) {
	st := start(t, Limits{Keepalive: 20 * time.Millisecond}, "")
	x := st.open(st.dial(), "xterm", 80, 24)
	x.expect("worker-0")
	writeFile(t, st.file, line(newKey(t))+"# changed\n")
	if code := x.wait(); code != 0 {
		t.Errorf("got exit code %d, want 0", code)
	}
	if got := x.errs.String(); !strings.Contains(got, "not listed") {
		t.Errorf("got %q, want that the key is not listed", got)
	}
}
