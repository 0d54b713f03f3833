package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// errStopped is why requests end when the router does.
var errStopped = errors.New("the router is shutting down")

// lastWords is how long cut streams have for their error record.
const lastWords = 2 * time.Second

// Serve answers connections of l with h, the router itself if h is nil, until Drain or Close. TLS is l's affair.
// (A listener made by tls.NewListener with the configuration of LoadTLS speaks HTTP/2 too.)
func (r *Router) Serve(l net.Listener, h http.Handler) error {
	if h == nil {
		h = r
	}
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 15 * time.Second,
		IdleTimeout:       3 * time.Minute,
		MaxHeaderBytes:    256 << 10,
		BaseContext:       func(net.Listener) context.Context { return r.base },
		ErrorLog:          slog.NewLogLogger(r.cfg.Log.Handler(), slog.LevelDebug),
	}
	r.mu.Lock()
	if r.base.Err() != nil {
		r.mu.Unlock()
		return errors.Join(errStopped, l.Close())
	}
	r.servers = append(r.servers, s)
	r.mu.Unlock()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", l.Addr(), err)
	}
	return nil
}

// Drain ends the router gently: it is no longer ready, listens on for DrainDelay so that those who send
// requests notice, then stops listening and lets requests finish for DrainLimit. What is left is cut with
// an error record. It returns an error where something had to be cut, or ctx ended first.
func (r *Router) Drain(ctx context.Context) error {
	if r.draining.Swap(true) {
		return errors.New("draining: the router is draining already")
	}
	r.m.draining.Set(1)
	r.cfg.Log.Info("draining", "in_flight", r.inFlight.Load(), "listening_for", r.cfg.DrainDelay, "finishing_for", r.cfg.DrainLimit)
	if err := sleep(ctx, r.cfg.DrainDelay); err != nil {
		return errors.Join(fmt.Errorf("draining: %w", context.Cause(ctx)), r.Close())
	}
	limited, cancel := ctx, context.CancelFunc(func() {})
	if r.cfg.DrainLimit > 0 {
		limited, cancel = context.WithTimeout(ctx, r.cfg.DrainLimit)
	}
	defer cancel()
	err := r.shutdown(limited)
	if err == nil {
		r.stop(errStopped)
		return nil
	}
	left := r.inFlight.Load()
	r.cfg.Log.Warn("cutting requests that did not end in time", "in_flight", left)
	r.stop(errStopped)
	words, cancelWords := context.WithTimeout(ctx, lastWords)
	defer cancelWords()
	if err := r.shutdown(words); err != nil {
		r.cfg.Log.Warn("closing connections that did not end", "err", err)
	}
	return errors.Join(fmt.Errorf("draining: %d requests did not end in time: %w", left, err), r.Close())
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// shutdown stops listening and waits for requests to end.
func (r *Router) shutdown(ctx context.Context) error {
	r.mu.Lock()
	servers := r.servers
	r.mu.Unlock()
	errs := make(chan error, len(servers))
	for _, s := range servers {
		go func() { errs <- s.Shutdown(ctx) }()
	}
	var all error
	for range servers {
		all = errors.Join(all, <-errs)
	}
	return all
}

// Close ends the router at once. Requests in flight are cut.
func (r *Router) Close() error {
	r.draining.Store(true)
	r.m.draining.Set(1)
	r.mu.Lock()
	servers := r.servers
	r.stop(errStopped)
	r.mu.Unlock()
	var all error
	for _, s := range servers {
		all = errors.Join(all, s.Close())
	}
	return all
}

// promLog hands errors of the metrics page to the log.
type promLog struct{ log *slog.Logger }

func (l promLog) Println(v ...any) { l.log.Error("writing metrics", "err", fmt.Sprint(v...)) }
