// Package zmq carries event streams over ZeroMQ, as vLLM, SGLang, ATOM and TensorRT-LLM publish them:
// a PUB socket that is followed by a SUB, and a ROUTER that a DEALER asks for what was missed. It needs
// libzmq, hence cgo; without it New says so.
//
// No thread waits for a socket: sockets are read without blocking, and goroutines sleep in Go's own
// poller on the descriptor that libzmq signals. Beside libzmq's two threads the number of streams costs
// none.
package zmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
)

// ErrNoZMQ says that this program was built without cgo.
var ErrNoZMQ = errors.New("this build of kvroute has no ZeroMQ and cannot follow engines' events: build it with CGO_ENABLED=1 and libzmq (Debian: libzmq3-dev)")

// Options of a Transport. Zero means the default, which is stated for each.
type Options struct {
	// Queue is the number of messages one subscription keeps while nobody reads it; default 100,000,
	// as many as publishers keep. What does not fit is lost and shows as a gap.
	Queue int
	// MaxMessage is the size in bytes of the largest message taken; default 64 MiB. A larger one ends
	// the connection.
	MaxMessage int64
}

const (
	defaultQueue      = 100_000
	defaultMaxMessage = 64 << 20
)

func (o Options) withDefaults() Options {
	if o.Queue <= 0 {
		o.Queue = defaultQueue
	}
	if o.MaxMessage <= 0 {
		o.MaxMessage = defaultMaxMessage
	}
	return o
}

// checkEndpoint refuses what cannot be an endpoint before libzmq sees it.
func checkEndpoint(endpoint string, bind bool) error {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	switch {
	case !ok || rest == "":
		return fmt.Errorf("events endpoint %q: want tcp://host:port or ipc://path", endpoint)
	case scheme == "ipc":
		return nil
	case scheme != "tcp":
		return fmt.Errorf("events endpoint %q: unknown transport %q, want tcp or ipc", endpoint, scheme)
	}
	host, port, err := net.SplitHostPort(rest)
	switch {
	case err != nil:
		return fmt.Errorf("events endpoint %q: %w", endpoint, err)
	case port == "" || strings.Trim(port, "0123456789") != "" && !(bind && port == "*"):
		return fmt.Errorf("events endpoint %q: the port %q is not a number", endpoint, port)
	case !bind && (host == "*" || host == ""):
		return fmt.Errorf("events endpoint %q: cannot connect to %q; name the host that the engine runs on", endpoint, host)
	}
	return nil
}

// resolve turns the host of a tcp endpoint into addresses, as libzmq would look names up in the thread
// that all sockets share. Other endpoints are returned as they are.
func resolve(ctx context.Context, endpoint string) ([]string, error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return []string{endpoint}, nil
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return nil, fmt.Errorf("events endpoint %q: %w", endpoint, err)
	}
	addrs, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("resolving events endpoint %q: %w", endpoint, err)
	}
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = "tcp://" + net.JoinHostPort(a.String(), port)
	}
	return out, nil
}
