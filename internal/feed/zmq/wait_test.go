//go:build cgo

package zmq

import (
	"context"
	"errors"
	"os"
	"testing"
)

// pipeWaiter waits for the reading end of a pipe.
func pipeWaiter(t *testing.T) *waiter {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	})
	conn, err := r.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return &waiter{r, conn}
}

// TestWhatWasTakenIsNotLost: ready takes a message out of the socket, so that its success counts, even if the
// context ends in the same moment (which streams use to be woken up).
func TestWhatWasTakenIsNotLost(t *testing.T) {
	for _, at := range []int{1, 2} {
		w := pipeWaiter(t)
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		err := w.until(ctx, 0, func() bool {
			if calls++; calls == at {
				cancel()
				return true
			}
			return false
		})
		if err != nil || calls != at {
			t.Errorf("ready at call %d, with the context ending: %v after %d calls, want nil", at, err, calls)
		}
		if err := w.until(ctx, 0, func() bool { return false }); !errors.Is(err, context.Canceled) {
			t.Errorf("nothing is ready and the context has ended: %v", err)
		}
	}
}
