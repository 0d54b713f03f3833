//go:build cgo

package zmq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	zmq4 "github.com/pebbe/zmq4"
)

// waiter sleeps in Go's poller until libzmq has something for a socket.
//
// libzmq signals the descriptor when commands for the socket arrive and resets it when they are
// processed, which a receive that finds nothing does (a send need not). So: try, and only after EAGAIN sleep until the
// next signal. Signals that come in between are kept by the poller.
type waiter struct {
	file *os.File
	conn syscall.RawConn
}

func newWaiter(s *zmq4.Socket) (*waiter, error) {
	fd, err := s.GetFd()
	if err != nil {
		return nil, fmt.Errorf("getting the descriptor of a socket: %w", err)
	}
	// A copy, as os.File closes what it is given, and libzmq closes its own.
	syscall.ForkLock.RLock()
	dup, err := syscall.Dup(fd)
	if err == nil {
		syscall.CloseOnExec(dup)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("copying the descriptor of a socket: %w", err)
	}
	if err := syscall.SetNonblock(dup, true); err != nil {
		return nil, errors.Join(fmt.Errorf("preparing the descriptor of a socket: %w", err), syscall.Close(dup))
	}
	file := os.NewFile(uintptr(dup), "zmq")
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("preparing the descriptor of a socket: %w", err), file.Close())
	}
	return &waiter{file, conn}, nil
}

func (w *waiter) close() error { return w.file.Close() }

// until calls ready, at once and after every signal, until it says true. It returns ctx.Err() once ctx
// is done, and errQuiet after limit without an end; a limit of 0 is none.
func (w *waiter) until(ctx context.Context, limit time.Duration, ready func() bool) error {
	if ready() {
		return nil
	}
	var deadline time.Time
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	if err := w.file.SetReadDeadline(deadline); err != nil {
		return fmt.Errorf("waiting for a socket: %w", err)
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = w.file.SetReadDeadline(time.Unix(1, 0)) // fails only if the file is closed, which ends the wait as well
	})
	is := false
	err := w.conn.Read(func(uintptr) bool { is = ready(); return is })
	if !stop() {
		<-done // its deadline must not hit the next wait
	}
	switch {
	case is: // ready may have taken a message, which must not be lost because ctx ended meanwhile
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errQuiet
	case err != nil:
		return fmt.Errorf("waiting for a socket: %w", err)
	}
	return nil
}

// errQuiet says that nothing came in time.
var errQuiet = errors.New("nothing came in time")

// again says whether a call without waiting found nothing.
func again(err error) bool { return zmq4.AsErrno(err) == zmq4.Errno(syscall.EAGAIN) }
