package tui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// dogLooks is how often a watchdog looks while it waits for something.
const dogLooks = 16

// watchdog ends a request whose answer stays away or stops coming. It goes by the wall clock: the time that a
// machine has slept counts, so that a connection which is most likely dead is given up soon after it wakes.
type watchdog struct {
	now    func() time.Time
	cancel context.CancelCauseFunc
	ctx    context.Context
	since  atomic.Int64 // Unix ns from when on it waits; 0: it does not
	limit  atomic.Int64 // ns
	done   sync.WaitGroup
}

// listen starts a watchdog that waits for the beginning of an answer. The request is to be made with the context
// it returns. stop must be called.
func (r *Remote) listen(ctx context.Context) (context.Context, *watchdog) {
	d := &watchdog{now: r.now}
	d.ctx, d.cancel = context.WithCancelCause(ctx)
	d.expect(r.waits.answer)
	tick := time.NewTicker(max(min(r.waits.answer, r.waits.silence)/dogLooks, time.Millisecond))
	d.done.Go(func() {
		defer tick.Stop()
		for {
			select {
			case <-d.ctx.Done():
				return
			case <-tick.C:
				d.look()
			}
		}
	})
	return d.ctx, d
}

func (d *watchdog) look() {
	since, now, limit := d.since.Load(), d.now().UnixNano(), d.limit.Load()
	switch {
	case since == 0:
	case now < since: // the clock was set back
		d.since.CompareAndSwap(since, now)
	case now-since > limit:
		d.cancel(fmt.Errorf("nothing came for %v", time.Duration(limit)))
	}
}

// expect begins to wait anew, for at most limit.
func (d *watchdog) expect(limit time.Duration) {
	d.limit.Store(int64(limit))
	d.since.Store(d.now().UnixNano())
}

func (d *watchdog) stop() {
	d.cancel(nil)
	d.done.Wait()
}

// why is the watchdog's reason if it ended the request, else err.
func (d *watchdog) why(err error) error {
	if cause := context.Cause(d.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// heard is a body whose reads a watchdog waits for. Between them it does not: drawing may take its time.
type heard struct {
	r   io.Reader
	dog *watchdog
}

func (h *heard) Read(p []byte) (int, error) {
	h.dog.since.Store(h.dog.now().UnixNano())
	n, err := h.r.Read(p)
	h.dog.since.Store(0)
	return n, err
}
