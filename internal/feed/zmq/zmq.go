//go:build cgo

package zmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/kvroute/kvroute/internal/feed"
)

// maxSockets is more than libzmq's default of 1,023: a stream takes three sockets.
const maxSockets = 60_000

// Transport opens streams over one ZeroMQ context. It is safe for concurrent use.
type Transport struct {
	opt  Options
	zctx *zmq4.Context
	name atomic.Uint64 // of the next monitor
	turn sync.Mutex    // held while sockets are made and closed, so that many at once do not take a thread each
}

// New makes a Transport. Close it after its subscriptions.
func New(opt Options) (*Transport, error) {
	zctx, err := zmq4.NewContext()
	if err != nil {
		return nil, fmt.Errorf("starting ZeroMQ: %w", err)
	}
	if err := errors.Join(zctx.SetMaxSockets(maxSockets), zctx.SetIpv6(true)); err != nil {
		return nil, errors.Join(fmt.Errorf("starting ZeroMQ: %w", err), zctx.Term())
	}
	zctx.SetRetryAfterEINTR(true)
	return &Transport{opt: opt.withDefaults(), zctx: zctx}, nil
}

// Close ends ZeroMQ. It waits for subscriptions that are still open.
func (t *Transport) Close() error {
	if err := t.zctx.Term(); err != nil {
		return fmt.Errorf("stopping ZeroMQ: %w", err)
	}
	return nil
}

// Subscribe opens a stream. With bind, publishers dial endpoint; else it is dialled, now and whenever the
// connection is lost. The topic is a prefix; empty takes everything.
func (t *Transport) Subscribe(_ context.Context, endpoint, topic string, bind bool) (feed.Subscription, error) {
	if err := checkEndpoint(endpoint, bind); err != nil {
		return nil, err
	}
	s := &subscription{t: t, endpoint: endpoint, topic: topic, bind: bind}
	if bind {
		if err := s.open(endpoint); err != nil {
			return nil, errors.Join(err, s.drop())
		}
	}
	return s, nil
}

// socket is a ZeroMQ socket with what wakes its reader.
type socket struct {
	*zmq4.Socket
	wait *waiter
}

func (t *Transport) socket(kind zmq4.Type) (*socket, error) {
	z, err := t.zctx.NewSocket(kind)
	if err != nil {
		return nil, fmt.Errorf("opening a socket: %w", err)
	}
	w, err := newWaiter(z)
	if err != nil {
		return nil, errors.Join(err, z.Close())
	}
	return &socket{z, w}, nil
}

func (s *socket) close() error {
	if s == nil {
		return nil
	}
	return errors.Join(s.wait.close(), s.Close())
}

const (
	connectLimit   = 3 * time.Second // of one attempt to connect
	handshakeLimit = 3 * time.Second
	reconnectIvl   = time.Duration(-1) * time.Millisecond // never: see subscription
	aliveIdle      = 10                                   // seconds of silence before the kernel asks a peer
	aliveEvery     = 5
	aliveCount     = 3
)

// dialer opens a socket that will connect once, and gives up in time.
func (t *Transport) dialer(kind zmq4.Type) (*socket, error) {
	s, err := t.socket(kind)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		s.SetLinger(0),
		s.SetRcvhwm(t.opt.Queue),
		s.SetMaxmsgsize(t.opt.MaxMessage),
		s.SetReconnectIvl(reconnectIvl),
		s.SetConnectTimeout(connectLimit),
		s.SetHandshakeIvl(handshakeLimit),
		s.SetTcpKeepalive(1),
		s.SetTcpKeepaliveIdle(aliveIdle),
		s.SetTcpKeepaliveIntvl(aliveEvery),
		s.SetTcpKeepaliveCnt(aliveCount),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("setting up a socket: %w", err), s.close())
	}
	return s, nil
}

// receive reads one message if there is one.
func (s *socket) receive() (parts [][]byte, ok bool, err error) {
	parts, err = s.RecvMessageBytes(zmq4.DONTWAIT)
	switch {
	case err == nil:
		return parts, true, nil
	case again(err):
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("receiving: %w", err)
}

// Replay asks the ROUTER at endpoint. It is a DEALER that asks, as a REQ would get the first answer only.
func (t *Transport) Replay(ctx context.Context, endpoint string, start uint64, quiet time.Duration, each func(feed.Message) error) (err error) {
	if err := checkEndpoint(endpoint, false); err != nil {
		return err
	}
	addrs, err := resolve(ctx, endpoint)
	if err != nil {
		return err
	}
	d, err := t.dialer(zmq4.DEALER)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	// A name may have an address that nobody listens on: the request goes to the first that answers.
	if err := d.SetImmediate(true); err != nil {
		return fmt.Errorf("setting up a socket: %w", err)
	}
	for _, a := range addrs {
		if err := d.Connect(a); err != nil {
			return fmt.Errorf("connecting to replay endpoint %s: %w", endpoint, err)
		}
	}
	request := feed.AppendReplayRequest(nil, start)
	var failed error
	err = d.wait.until(ctx, quiet, func() bool {
		// Asking what is possible handles the signal that a connection stands; a send may leave it be.
		var can zmq4.State
		if can, failed = d.GetEvents(); failed != nil || can&zmq4.POLLOUT == 0 {
			return failed != nil
		}
		_, failed = d.SendMessageDontwait([]byte{}, request)
		return !again(failed)
	})
	switch {
	case errors.Is(err, errQuiet):
		return fmt.Errorf("replay endpoint %s: no connection in %v", endpoint, quiet)
	case err != nil:
		return err
	case failed != nil:
		return fmt.Errorf("asking replay endpoint %s: %w", endpoint, failed)
	}
	for {
		var parts [][]byte
		err := d.wait.until(ctx, quiet, func() (ok bool) {
			parts, ok, failed = d.receive()
			return ok || failed != nil
		})
		switch {
		case errors.Is(err, errQuiet):
			return fmt.Errorf("replay endpoint %s: no answer in %v", endpoint, quiet)
		case err != nil:
			return err
		case failed != nil:
			return fmt.Errorf("replay endpoint %s: %w", endpoint, failed)
		}
		m, end, err := feed.ParseReplay(parts)
		if err != nil {
			return fmt.Errorf("replay endpoint %s: %w", endpoint, err)
		}
		if end {
			return nil
		}
		if err := each(m); err != nil {
			return err
		}
	}
}
