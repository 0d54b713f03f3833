//go:build cgo

package fleet_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/kvroute/kvroute/internal/fakeengine"
)

// TestEventsThatMove: an engine starts anew so fast that no health check fails, and publishes at other ports
// than before. The stream waited for the old ones for ever.
func TestEventsThatMove(t *testing.T) {
	var now atomic.Pointer[fakeengine.Engine]
	front := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		at, err := url.Parse(now.Load().URL())
		if err != nil {
			t.Error(err)
		}
		r.SetURL(at)
	}})
	defer front.Close()
	s := newStand(t, options{engines: []fakeengine.Config{vllm(500)}, spec: func(_ int, e *fakeengine.Engine) string {
		now.Store(e)
		return front.URL
	}})
	trusted := func() bool {
		st := s.fleet.States()
		return len(st) == 1 && st[0].Stream.Trust.String() == "trusted"
	}
	s.until("the first engine's events", trusted)
	cfg := vllm(500)
	tok, err := tiny()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Tokenizer, cfg.Events, cfg.Replay = tok, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
	second, err := fakeengine.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	})
	now.Store(second)
	if err := s.engines[0].Crash(0); err != nil {
		t.Fatal(err)
	}
	s.until("the loss of the old endpoint", func() bool { return !trusted() })
	s.until("the second engine's events", trusted)
	c := conversation(rand.New(rand.NewPCG(6, 6)))
	if status, body, err := s.post(context.Background(), "/v1/chat/completions", c); err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", status, err, body)
	}
	s.until("blocks of the second engine", func() bool { return s.fleet.States()[0].Blocks > 0 })
}
