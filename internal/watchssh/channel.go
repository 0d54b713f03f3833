package watchssh

import (
	"slices"

	"charm.land/ssh"
	gossh "golang.org/x/crypto/ssh"
)

// channel opens a connection's one session.
func (s *Server) channel(srv *ssh.Server, sc *gossh.ServerConn, nc gossh.NewChannel, ctx ssh.Context) {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok || !c.begin() {
		s.refused.WithLabelValues("session").Inc()
		if err := nc.Reject(gossh.Prohibited, "one session a connection"); err != nil {
			s.cfg.Log.Debug("rejecting a second ssh session", "error", err)
		}
		return
	}
	// Whatever becomes of the session, its connection does not outlive it: without one it would wait for nothing.
	defer c.cut()
	ssh.DefaultSessionHandler(srv, sc, &strict{NewChannel: nc, srv: s}, ctx)
}

// strict lets only those requests of a session through that a screen needs, in numbers that a screen needs.
type strict struct {
	gossh.NewChannel
	srv *Server
}

// Accept opens the channel. The requests end when the client's do.
func (c *strict) Accept() (gossh.Channel, <-chan *gossh.Request, error) {
	ch, in, err := c.NewChannel.Accept()
	if err != nil {
		return nil, nil, err
	}
	out := make(chan *gossh.Request)
	go func() {
		defer close(out)
		var f filter
		for req := range in {
			if f.passes(req) {
				out <- req // the session handler reads until out is closed
				continue
			}
			if err := req.Reply(false, nil); err != nil {
				c.srv.cfg.Log.Debug("refusing an ssh request", "type", req.Type, "error", err)
			}
		}
	}()
	return ch, out, nil
}

// Variables of a client's environment that say what its terminal can show. They are read, nothing is run with them.
var variables = []string{"TERM", "COLORTERM", "NO_COLOR", "LANG", "LC_ALL", "LC_CTYPE"}

const longestVariable = 64 // bytes of a value

// filter decides on the requests of a session.
type filter struct {
	pty, started bool
	vars         int
}

func (f *filter) passes(req *gossh.Request) bool {
	switch req.Type {
	case "env":
		var kv struct{ Key, Value string }
		if gossh.Unmarshal(req.Payload, &kv) != nil || !slices.Contains(variables, kv.Key) || len(kv.Value) > longestVariable || f.vars >= 2*len(variables) {
			return false
		}
		f.vars++
		return !f.started
	case "pty-req":
		if f.pty || f.started {
			return false
		}
		f.pty = true
		return true
	case "shell", "exec": // a command is answered with why it is not run
		if f.started {
			return false
		}
		f.started = true
		return true
	case "window-change":
		return f.pty && f.started // nobody takes sizes before
	}
	return false // subsystems, agents, X11, signals, breaks
}
