//go:build !cgo

package zmq

import (
	"context"
	"time"

	"github.com/kvroute/kvroute/internal/feed"
)

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
