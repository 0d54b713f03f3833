package router

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// restartable is a worker that can die with everything in flight and come back at its address.
type restartable struct {
	t    *testing.T
	addr string
	h    http.Handler
	srv  *http.Server
}

func (w *restartable) start() {
	l, err := net.Listen("tcp", w.addr)
	if err != nil {
		w.t.Error(err)
		return
	}
	w.addr, w.srv = l.Addr().String(), &http.Server{Handler: w.h}
	go w.srv.Serve(l)
}

// TestRollingRestart kills and starts workers in turn under load. Unary requests in flight have no byte
// with their client yet, so none of them may fail.
func TestRollingRestart(t *testing.T) {
	var served atomic.Int64
	f := newMemory(t, "m")
	f.rotate = true
	var workers []*restartable
	for i := range 3 {
		w := &restartable{t: t, addr: "127.0.0.1:0", h: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			served.Add(1)
			answerOK(fmt.Sprint(i))(w, r)
		})}
		w.start()
		workers = append(workers, w)
		f.add(fmt.Sprint(i), "http://"+w.addr)
		t.Cleanup(func() { w.srv.Close() })
	}
	b := start(t, f, func(c *Config) { c.Breaker.Cooldown = time.Millisecond; c.Breaker.MaxCooldown = time.Millisecond })
	stop := make(chan struct{})
	var sent, failed atomic.Int64
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				sent.Add(1)
				resp, err := b.http.Post(b.url+chatPath, "application/json", strings.NewReader(good1))
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 {
					failed.Add(1)
					t.Errorf("status %d during a restart: %s %v", resp.StatusCode, body, err)
					return
				}
			}
		})
	}
	for round := range 12 {
		w := workers[round%3]
		at := served.Load()
		w.srv.Close()
		eventually(t, "traffic on the others", func() bool { return served.Load() > at+10 || failed.Load() > 0 })
		w.start()
		at = served.Load()
		eventually(t, "traffic after the restart", func() bool { return served.Load() > at+10 || failed.Load() > 0 })
	}
	close(stop)
	wg.Wait()
	b.idle()
	if moved := b.metric(`kvroute_retries_total{reason="no_connection"}`); moved == "0" {
		t.Error("no request met a dead worker: the restarts show nothing")
	}
	t.Logf("%d requests, %d failed", sent.Load(), failed.Load())
}

// TestAuthorizationMatrix says what workers see of a client's Authorization, by endpoint.
func TestAuthorizationMatrix(t *testing.T) {
	for _, path := range []string{chatPath, "/v1/completions"} {
		for _, forward := range []bool{false, true} {
			var got string
			f := newMemory(t, "m")
			f.add("A", serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
				got = r.Header.Get("Authorization")
				answerOK("A")(w, r)
			}).URL)
			b := start(t, f, func(c *Config) {
				if forward {
					c.ForwardHeaders = []string{"authorization"}
				}
			})
			for _, sent := range []string{"", "Bearer k"} {
				header := []string{"Authorization", sent}
				if sent == "" {
					header = nil
				}
				all(t, b.post(path, good1, header...))
				want := ""
				if forward {
					want = sent
				}
				if got != want {
					t.Errorf("%s, forwarded %v, client sends %q: worker sees %q, want %q", path, forward, sent, got, want)
				}
			}
		}
	}
}
