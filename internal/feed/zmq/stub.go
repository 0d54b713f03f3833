//go:build !cgo

package zmq

import (
	"context"
	"errors"
	"time"

	"github.com/kvroute/kvroute/internal/feed"
)

// ErrNoZMQ says that this program was built without cgo.
var ErrNoZMQ = errors.New("this build of kvroute has no ZeroMQ and cannot follow engines' events: build it with CGO_ENABLED=1 and libzmq (Debian: libzmq3-dev)")

// Transport opens streams; in this build it does not exist.
type Transport struct{}

// New returns ErrNoZMQ.
func New(Options) (*Transport, error) { return nil, ErrNoZMQ }

// Subscribe returns ErrNoZMQ.
func (*Transport) Subscribe(context.Context, string, string, bool) (feed.Subscription, error) {
	return nil, ErrNoZMQ
}

// Replay returns ErrNoZMQ.
func (*Transport) Replay(context.Context, string, uint64, time.Duration, func(feed.Message) error) error {
	return ErrNoZMQ
}

// Close does nothing.
func (*Transport) Close() error { return nil }
