//go:build cgo

package zmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/kvroute/kvroute/internal/feed"
)

const (
	// firstPause, doubled up to lastPause, lies between attempts to connect.
	firstPause = 100 * time.Millisecond
	lastPause  = 2 * time.Second
	// lookAfter bounds how long a turn of the connection could go unseen, should libzmq not wake us for it.
	lookAfter = 5 * time.Second
	// lookBound is the same where engines dial: there libzmq wakes us before it says who came.
	lookBound = 100 * time.Millisecond
	// connectWait bounds one attempt, should libzmq not report its end.
	connectWait = connectLimit + handshakeLimit + time.Second
)

// events are what is wanted to be known of connections.
const events = zmq4.EVENT_HANDSHAKE_SUCCEEDED | zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL |
	zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq4.EVENT_HANDSHAKE_FAILED_AUTH |
	zmq4.EVENT_DISCONNECTED | zmq4.EVENT_CLOSED

// subscription is one SUB socket.
//
// A connecting one has one connection in its life: libzmq's own reconnecting is off, and after a loss a
// new socket is made. So what is received after Connected came over that connection, and what an engine
// sent before it died cannot be mixed up with what the next one sends.
type subscription struct {
	t               *Transport
	endpoint, topic string
	bind            bool
	sub             *socket
	mon             *socket // events of sub's connections
	up              bool    // Connected was reported, or sub is bound
	started         bool    // of a binding one: the first Connected was reported
	dialling        bool    // sub is open and how its attempt ends is not known yet
	addrs           []string
	pause           time.Duration // between the last round of attempts and the next
	due             time.Time     // of the next round
	told            string        // reason of the last Disconnected
}

// open makes the socket with its monitor, and binds or connects it.
func (s *subscription) open(addr string) error {
	var err error
	if s.sub, err = s.t.dialer(zmq4.SUB); err != nil {
		return err
	}
	name := fmt.Sprintf("inproc://monitor-%d", s.t.name.Add(1))
	if err := s.sub.Monitor(name, events); err != nil {
		return fmt.Errorf("watching a socket: %w", err)
	}
	if s.mon, err = s.t.socket(zmq4.PAIR); err != nil {
		return err
	}
	if err := errors.Join(s.mon.SetLinger(0), s.mon.Connect(name), s.sub.SetSubscribe(s.topic)); err != nil {
		return fmt.Errorf("setting up a socket: %w", err)
	}
	if s.bind {
		if err := s.sub.Bind(addr); err != nil {
			return fmt.Errorf("binding events endpoint %s: %w", s.endpoint, err)
		}
		s.up = true
		return nil
	}
	if err := s.sub.Connect(addr); err != nil {
		return fmt.Errorf("connecting to events endpoint %s: %w", s.endpoint, err)
	}
	return nil
}

// drop closes the sockets with all that is queued in them. The monitor ends first: libzmq's thread for I/O
// waits forever to tell an event that nobody can take any more, and every stream waits with it.
func (s *subscription) drop() error {
	sub, mon := s.sub, s.mon
	s.sub, s.mon, s.up = nil, nil, false
	if sub == nil {
		return nil
	}
	return errors.Join(sub.Monitor("", 0), sub.close(), mon.close())
}

// Close implements feed.Subscription.
func (s *subscription) Close() error {
	if err := s.drop(); err != nil {
		return fmt.Errorf("closing events endpoint %s: %w", s.endpoint, err)
	}
	return nil
}

// Receive implements feed.Subscription.
func (s *subscription) Receive(ctx context.Context) (feed.Message, error) {
	for {
		if err := ctx.Err(); err != nil {
			return feed.Message{}, err
		}
		if s.bind && !s.started {
			s.started = true
			return feed.Message{Event: feed.Connected}, nil
		}
		if !s.up {
			reason, err := s.connect(ctx)
			switch {
			case err != nil:
				return feed.Message{}, err
			case reason == "":
				s.told, s.pause, s.up = "", 0, true
				return feed.Message{Event: feed.Connected}, nil
			case reason != s.told && len(s.addrs) == 0:
				s.told = reason
				return feed.Message{Event: feed.Disconnected, Reason: reason}, nil
			}
			continue
		}
		m, ok, err := s.next(ctx)
		if err != nil || ok {
			return m, err
		}
	}
}

// connect makes one attempt, after the pause that is due, or goes on with the one that ctx interrupted.
// A reason says in words why it failed.
func (s *subscription) connect(ctx context.Context) (reason string, err error) {
	if !s.dialling {
		if reason, err := s.dial(ctx); reason != "" || err != nil {
			return reason, err
		}
		s.dialling = true
	}
	var ev zmq4.Event
	var failed error
	err = s.mon.wait.until(ctx, connectWait, func() (ok bool) {
		ev, ok, failed = s.event()
		return ok || failed != nil
	})
	if err != nil && !errors.Is(err, errQuiet) {
		return "", err
	}
	s.dialling = false
	switch {
	case failed != nil:
		return failed.Error(), nil
	case ev == zmq4.EVENT_HANDSHAKE_SUCCEEDED:
		s.addrs = nil
		return "", nil
	case ev == 0 || ev == zmq4.EVENT_CLOSED:
		return "no connection to " + s.endpoint + "; trying again", nil
	}
	return s.endpoint + " answers, but not as a ZeroMQ publisher; trying again", nil
}

// dial opens a socket to the next address.
func (s *subscription) dial(ctx context.Context) (reason string, err error) {
	if len(s.addrs) == 0 {
		t := time.NewTimer(time.Until(s.due))
		defer t.Stop()
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-t.C:
		}
		s.pause = min(max(2*s.pause, firstPause), lastPause)
		s.due = time.Now().Add(s.pause)
		if s.addrs, err = resolve(ctx, s.endpoint); err != nil {
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
			return err.Error(), nil
		}
	}
	addr := s.addrs[0]
	s.addrs = s.addrs[1:]
	s.t.turn.Lock()
	defer s.t.turn.Unlock()
	if err := errors.Join(s.drop(), s.open(addr)); err != nil {
		return err.Error(), nil
	}
	return "", nil
}

// event reads one event of the monitor if there is one.
func (s *subscription) event() (zmq4.Event, bool, error) {
	ev, _, _, err := s.mon.RecvEvent(zmq4.DONTWAIT)
	switch {
	case err == nil:
		return ev, true, nil
	case again(err):
		return 0, false, nil
	}
	return 0, false, fmt.Errorf("watching events endpoint %s: %w", s.endpoint, err)
}

// next waits for a message or a turn of the connection. Not ok: look again.
func (s *subscription) next(ctx context.Context) (m feed.Message, ok bool, err error) {
	var parts [][]byte
	var got bool
	var ev zmq4.Event
	var failed error
	look := lookAfter
	if s.bind {
		look = lookBound
	}
	err = s.sub.wait.until(ctx, look, func() bool {
		// Events first where engines dial: one that came anew is told before its batches.
		if s.bind {
			if ev, got, failed = s.event(); got || failed != nil {
				return true
			}
		}
		if parts, got, failed = s.sub.receive(); got || failed != nil {
			return true
		}
		if !s.bind {
			if ev, got, failed = s.event(); got || failed != nil {
				return true
			}
		}
		return false
	})
	switch {
	case errors.Is(err, errQuiet):
		return feed.Message{}, false, nil
	case err != nil:
		return feed.Message{}, false, err
	case failed != nil:
		return feed.Message{}, false, failed
	case parts != nil:
		m, err := feed.ParseLive(parts)
		if err != nil {
			return feed.Message{Event: feed.Garbled, Reason: err.Error()}, true, nil
		}
		return m, true, nil
	case s.bind:
		return feed.Message{Event: feed.Connected}, ev == zmq4.EVENT_HANDSHAKE_SUCCEEDED, nil
	case ev == zmq4.EVENT_HANDSHAKE_SUCCEEDED:
		return feed.Message{}, false, nil
	}
	s.told = "the connection to " + s.endpoint + " was lost"
	return feed.Message{Event: feed.Disconnected, Reason: s.told}, true, s.drop()
}
