//go:build cgo

package fakeengine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pebbe/zmq4"
)

// zmqSocket is a PUB socket, and a ROUTER with a goroutine that answers replays. A ZeroMQ socket may be
// used by one goroutine at a time: the PUB is guarded by the publisher's lock, the ROUTER belongs to its
// goroutine.
type zmqSocket struct {
	ctx     *zmq4.Context
	pub     *zmq4.Socket
	at      string
	replay  string
	stop    chan struct{}
	stopped sync.WaitGroup
}

// replayPoll is how often the replay goroutine looks whether it should end.
const replayPoll = 50 * time.Millisecond

// openSocket opens the sockets of one rank. ask answers a request for replay.
func openSocket(events, replay string, dial bool, ask func(start uint64) [][][]byte) (socket, error) {
	ctx, err := zmq4.NewContext()
	if err != nil {
		return nil, fmt.Errorf("starting ZeroMQ: %w", err)
	}
	z := &zmqSocket{ctx: ctx, stop: make(chan struct{})}
	if z.pub, z.at, err = open(ctx, zmq4.PUB, events, dial); err != nil {
		return nil, errors.Join(err, z.close())
	}
	if replay == "" {
		return z, nil
	}
	router, at, err := open(ctx, zmq4.ROUTER, replay, false)
	if err != nil {
		return nil, errors.Join(err, z.close())
	}
	z.replay = at
	z.stopped.Add(1)
	go func() {
		defer z.stopped.Done()
		z.serve(router, ask)
	}()
	return z, nil
}

func open(ctx *zmq4.Context, kind zmq4.Type, at string, dial bool) (*zmq4.Socket, string, error) {
	s, err := ctx.NewSocket(kind)
	if err != nil {
		return nil, "", fmt.Errorf("opening a %v socket: %w", kind, err)
	}
	fail := func(what string, err error) (*zmq4.Socket, string, error) {
		return nil, "", errors.Join(fmt.Errorf("%s %s: %w", what, at, err), s.Close())
	}
	if err := errors.Join(s.SetLinger(0), s.SetSndhwm(100_000)); err != nil {
		return fail("setting up a socket for", err)
	}
	if strings.HasPrefix(at, "tcp://[") {
		if err := s.SetIpv6(true); err != nil {
			return fail("setting up a socket for", err)
		}
	}
	if dial {
		if err := s.Connect(at); err != nil {
			return fail("connecting to", err)
		}
		return s, at, nil
	}
	if err := s.Bind(at); err != nil {
		return fail("binding", err)
	}
	bound, err := s.GetLastEndpoint()
	if err != nil {
		return fail("asking for the address of", err)
	}
	return s, bound, nil
}

// serve answers replay requests until the socket is closed. Anything but identity, an empty frame and a
// number of 8 bytes is ignored.
func (z *zmqSocket) serve(router *zmq4.Socket, ask func(start uint64) [][][]byte) {
	defer router.Close() //nolint:errcheck // nothing is left to do with it
	poller := zmq4.NewPoller()
	poller.Add(router, zmq4.POLLIN)
	for {
		select {
		case <-z.stop:
			return
		default:
		}
		ready, err := poller.Poll(replayPoll)
		if err != nil && !again(err) {
			return
		}
		if len(ready) == 0 {
			continue
		}
		parts, err := router.RecvMessageBytes(zmq4.DONTWAIT)
		if err != nil || len(parts) != 3 || len(parts[1]) != 0 || len(parts[2]) != 8 {
			continue
		}
		for _, answer := range ask(binary.BigEndian.Uint64(parts[2])) {
			if _, err := router.SendMessageDontwait(parts[0], answer); err != nil {
				break // the client has gone, or reads too slowly
			}
		}
	}
}

// again tells errors that only say: not now.
func again(err error) bool {
	n := zmq4.AsErrno(err)
	return n == zmq4.Errno(4) || n == zmq4.Errno(11) // EINTR, EAGAIN
}

func (z *zmqSocket) send(parts [][]byte) error {
	_, err := z.pub.SendMessageDontwait(parts)
	return err
}

func (z *zmqSocket) endpoints() (string, string) { return z.at, z.replay }

func (z *zmqSocket) close() error {
	close(z.stop)
	z.stopped.Wait()
	var errs []error
	if z.pub != nil {
		errs = append(errs, z.pub.Close())
	}
	return errors.Join(append(errs, z.ctx.Term())...)
}
