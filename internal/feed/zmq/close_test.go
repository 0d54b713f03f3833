//go:build cgo

package zmq

import (
	"context"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/feed"
)

// TestClosedWhileConnecting: subscriptions that end at any moment of their connecting leave the others, which
// share libzmq's one thread for I/O, as they were.
func TestClosedWhileConnecting(t *testing.T) {
	p := publish(t, "tcp://127.0.0.1:*", false)
	tr := newTransport(t, Options{})
	for i := range 400 {
		s, err := tr.Subscribe(t.Context(), p.at, "", false)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%40)*50*time.Microsecond)
		_, _ = s.Receive(ctx) // connected or not in time: either is well
		cancel()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	m, err := subscribe(t, tr, p.at, "", false).Receive(within(t))
	if err != nil || m.Event != feed.Connected {
		t.Fatalf("got event %v (%s), %v; want a connection", m.Event, m.Reason, err)
	}
}
