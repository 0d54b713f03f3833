// Package watchssh shows the screen of kvroute watch over SSH to those whose public key is listed, and nothing
// else: no passwords, no shell, no commands, no files, no forwarding.
//
// Every session has its own program, fed straight from the router's hub of snapshots. What a client does not read
// stays in its own session, which is closed if that lasts; neither other sessions nor the router wait for it.
package watchssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"charm.land/ssh"
	"charm.land/wish/v2"
	"github.com/prometheus/client_golang/prometheus"
	gossh "golang.org/x/crypto/ssh"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// Hub is where the snapshots come from. It may be asked by any number of sessions at once.
type Hub interface {
	// Current returns a snapshot no older than maxAge, or an older one if nothing has changed since.
	Current(maxAge time.Duration) *snapshot.Snapshot
	// Watch counts a watcher until leave is called; not ok: there are too many.
	Watch() (leave func(), ok bool)
	// Explain returns the full record of a decision.
	Explain(ctx context.Context, id uint64) ([]byte, error)
}

// Config is what a Server needs. All but Name, Limits and Registry is required.
type Config struct {
	Hub      Hub
	Keys     *Keys
	HostKey  gossh.Signer
	Text     func(w io.Writer, s *snapshot.Snapshot) error // a snapshot as text, for those without a terminal
	Name     string                                        // of what is watched, for the header
	Log      *slog.Logger
	Registry prometheus.Registerer // nil: no metrics
	Limits   Limits
}

// Limits bound what clients may take. Zero fields are those of Defaults, but for Idle.
type Limits struct {
	Connections int           // at once
	PerAddress  int           // of them, from one address
	Waiting     int           // of them, without a session yet
	Handshake   time.Duration // from a connection to its session
	Keepalive   time.Duration // between two looks at whether a client is still there and its key still listed
	Stuck       time.Duration // that a client may be silent when asked, or not take what is drawn for it
	Idle        time.Duration // without a key pressed; 0: for ever
	Interval    time.Duration // between two looks at the router
	Grace       time.Duration // for screens to be restored when the server ends
}

// Defaults are the limits of serve.
func Defaults() Limits {
	return Limits{
		Connections: 64, PerAddress: 32, Waiting: 32, Handshake: 10 * time.Second, Keepalive: 15 * time.Second,
		Stuck: 30 * time.Second, Idle: 12 * time.Hour, Interval: 250 * time.Millisecond, Grace: 2 * time.Second,
	}
}

func (l Limits) filled() Limits {
	d := Defaults()
	ints := []struct {
		to   *int
		from int
	}{{&l.Connections, d.Connections}, {&l.PerAddress, d.PerAddress}, {&l.Waiting, d.Waiting}}
	for _, x := range ints {
		if *x.to == 0 {
			*x.to = x.from
		}
	}
	times := []struct {
		to   *time.Duration
		from time.Duration
	}{{&l.Handshake, d.Handshake}, {&l.Keepalive, d.Keepalive}, {&l.Stuck, d.Stuck}, {&l.Interval, d.Interval}, {&l.Grace, d.Grace}}
	for _, x := range times {
		if *x.to == 0 {
			*x.to = x.from
		}
	}
	return l
}

// Server serves screens over SSH.
type Server struct {
	cfg  Config
	lim  Limits
	ssh  *ssh.Server
	done sync.WaitGroup // connections and sessions

	refused  *prometheus.CounterVec // by reason
	sessions *prometheus.CounterVec // by kind
	watching prometheus.Gauge

	mu      sync.Mutex
	closing bool
	conns   map[*conn]struct{}
	waiting int
	perAddr map[netip.Addr]int
	screens map[*screen]struct{}
}

// New makes a Server. Serve makes it listen.
func New(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, lim: cfg.Limits.filled(), conns: map[*conn]struct{}{}, perAddr: map[netip.Addr]int{}, screens: map[*screen]struct{}{}}
	s.refused = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kvroute_watch_ssh_refused_total", Help: "SSH connections and sessions that were turned away, by reason."}, []string{"reason"})
	s.sessions = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kvroute_watch_ssh_sessions_total", Help: "SSH sessions begun, by kind: screen or text."}, []string{"kind"})
	s.watching = prometheus.NewGauge(prometheus.GaugeOpts{Name: "kvroute_watch_ssh_sessions", Help: "SSH sessions open."})
	for _, r := range []string{"limit", "handshake", "key", "session"} {
		s.refused.WithLabelValues(r)
	}
	s.sessions.WithLabelValues("screen")
	s.sessions.WithLabelValues("text")
	if cfg.Registry != nil {
		for _, c := range []prometheus.Collector{s.refused, s.sessions, s.watching} {
			if err := cfg.Registry.Register(c); err != nil {
				return nil, fmt.Errorf("registering metrics: %w", err)
			}
		}
	}
	var err error
	s.ssh, err = wish.NewServer(
		func(srv *ssh.Server) error { srv.AddHostKey(cfg.HostKey); return nil },
		wish.WithVersion("kvroute"),
		wish.WithPublicKeyAuth(s.mayTry),
		wish.WithMiddleware(s.middleware),
	)
	if err != nil {
		return nil, fmt.Errorf("setting up the SSH server: %w", err)
	}
	s.ssh.HandshakeTimeout = s.lim.Handshake
	s.ssh.ConnCallback = s.accept
	s.ssh.ConnectionFailedCallback = s.failed
	s.ssh.ChannelHandlers = map[string]ssh.ChannelHandler{"session": s.channel} // no other kind: no forwarding
	s.ssh.RequestHandlers = map[string]ssh.RequestHandler{}
	s.ssh.SubsystemHandlers = map[string]ssh.SubsystemHandler{}
	return s, nil
}

// Serve accepts connections until Close is called (nil) or l fails.
func (s *Server) Serve(l net.Listener) error {
	err := s.ssh.Serve(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || errors.Is(err, ssh.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving SSH: %w", err)
}

// Close ends all sessions with their screens restored, as far as clients take part in that within Limits.Grace,
// and returns when all is gone. Nothing is accepted from its beginning on.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closing = true
	for x := range s.screens {
		x.end("the router is stopping")
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), s.lim.Grace)
	defer cancel()
	// Clients hang up when their session has ended; what is left then is cut off.
	err := s.ssh.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	s.mu.Lock()
	for c := range s.conns {
		c.cut()
	}
	s.mu.Unlock()
	s.done.Wait()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}

// conn is an accepted connection. It is counted until it is closed.
type conn struct {
	net.Conn
	srv  *Server
	addr netip.Addr

	once sync.Once
	late *time.Timer // ends it if no session comes

	// Under srv.mu.
	waiting bool // it has had no session yet
	session bool // it has had its session
}

type connKey struct{}

// accept takes a new connection in, or returns nil if there are too many.
func (s *Server) accept(ctx ssh.Context, nc net.Conn) net.Conn {
	c := &conn{Conn: nc, srv: s, waiting: true}
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		c.addr = a.AddrPort().Addr().Unmap().WithZone("")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return nil
	case len(s.conns) >= s.lim.Connections, s.perAddr[c.addr] >= s.lim.PerAddress, s.waiting >= s.lim.Waiting:
		s.refused.WithLabelValues("limit").Inc()
		s.cfg.Log.Debug("ssh connection refused", "address", nc.RemoteAddr(), "reason", "too many connections")
		return nil
	}
	s.conns[c] = struct{}{}
	s.perAddr[c.addr]++
	s.waiting++
	s.done.Add(1)
	c.late = time.AfterFunc(s.lim.Handshake, c.lateNow)
	ctx.SetValue(connKey{}, c)
	return c
}

// Close closes the connection and gives its place free.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		s := c.srv
		s.mu.Lock()
		defer s.mu.Unlock()
		c.late.Stop()
		delete(s.conns, c)
		if s.perAddr[c.addr]--; s.perAddr[c.addr] == 0 {
			delete(s.perAddr, c.addr)
		}
		if c.waiting {
			c.waiting = false
			s.waiting--
		}
		s.done.Done()
	})
	return err
}

// cut ends a connection at once. The server notices by its next read or write and closes it.
func (c *conn) cut() {
	if err := c.Conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		c.srv.cfg.Log.Debug("closing an ssh connection", "address", c.RemoteAddr(), "error", err)
	}
}

func (c *conn) lateNow() {
	c.srv.mu.Lock()
	late := c.waiting
	c.srv.mu.Unlock()
	if late {
		c.cut()
	}
}

// begin takes the connection's one session; not ok: it had it.
func (c *conn) begin() bool {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	if c.session {
		return false
	}
	c.session = true
	if c.waiting {
		c.waiting = false
		c.srv.waiting--
		c.late.Stop()
	}
	return true
}

// mayTry says whether a client that offers a key may prove that it has it. Its session looks again, at the key
// that was proved.
func (s *Server) mayTry(ctx ssh.Context, key ssh.PublicKey) bool {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return false
	}
	if _, err := s.cfg.Keys.allows(key, c.addr); err != nil {
		s.refused.WithLabelValues("key").Inc()
		s.cfg.Log.Info("ssh key refused", "address", c.RemoteAddr(), "key", gossh.FingerprintSHA256(key), "reason", err)
		return false
	}
	return true
}

// failed is told of connections that did not get past the handshake.
func (s *Server) failed(c net.Conn, err error) {
	s.refused.WithLabelValues("handshake").Inc()
	s.cfg.Log.Debug("ssh handshake failed", "address", c.RemoteAddr(), "error", err)
}
