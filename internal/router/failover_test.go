package router

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func hijack(w http.ResponseWriter, text string) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	io.WriteString(conn, text)
	conn.Close()
}

func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		fmt.Fprintf(w, "the worker's own %d", code)
	}
}

// TestFailover has worker A fail in every way there is, with a good worker B beside it.
func TestFailover(t *testing.T) {
	tests := []struct {
		name    string
		a       http.HandlerFunc // nil: nothing listens
		retried bool
		reason  string
		result  string // of A's attempt
		state   breakerState
		busy    bool
		unbound bool
	}{
		{"no connection", nil, true, "no_connection", "no_connection", open, false, true},
		{"500", status(500), true, "status", "failed", open, false, true},
		{"502", status(502), true, "status", "failed", open, false, true},
		{"503", status(503), true, "status", "failed", open, false, true},
		{"503 with a time to come back", status(503, "Retry-After", "1"), true, "busy", "busy", closed, true, false},
		{"429", status(429), true, "busy", "busy", closed, true, false},
		{"reset", func(w http.ResponseWriter, _ *http.Request) { hijack(w, "") }, true, "no_connection", "no_connection", open, false, true},
		{"half a head", func(w http.ResponseWriter, _ *http.Request) { hijack(w, "HTTP/1.1 200 OK\r\nContent-Ty") }, true, "no_connection", "no_connection", open, false, true},
		{"not HTTP", func(w http.ResponseWriter, _ *http.Request) { hijack(w, "hello\r\n\r\n") }, true, "no_connection", "no_connection", open, false, true},
		{"no status", func(w http.ResponseWriter, _ *http.Request) { hijack(w, "HTTP/1.1 007 x\r\nContent-Length: 0\r\n\r\n") }, true, "no_connection", "no_connection", open, false, true},
		{"a head and no body", func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
		}, true, "cut", "cut", open, false, true},
		{"a stream cut before its first record is whole", func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n6\r\ndata: \r\n")
		}, true, "cut", "cut", open, false, true},
		{"a stream without length or chunks, closed before its first record is whole", func(w http.ResponseWriter, _ *http.Request) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {")
		}, true, "cut", "cut", open, false, true},
		{"an empty stream", func(w http.ResponseWriter, _ *http.Request) { stream(w, "") }, true, "cut", "cut", open, false, true},
		{"400", status(400), false, "", "refused", closed, false, false},
		{"401", status(401), false, "", "refused", closed, false, false},
		{"404", status(404), false, "", "refused", closed, false, false},
		{"422", status(422), false, "", "refused", closed, false, false},
		{"307", status(307, "Location", "/elsewhere"), false, "", "refused", closed, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newMemory(t, "m")
			if tt.a == nil {
				f.add("A", deadAddress(t))
			} else {
				f.add("A", serveWorker(t, tt.a).URL)
			}
			f.add("B", serveWorker(t, answerOK("B")).URL)
			b := start(t, f, func(c *Config) { c.Breaker.Threshold = 1 })
			b.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			resp := b.post(chatPath, good1)
			body := all(t, resp)
			b.idle()
			fromB := strings.Contains(body, `"id":"B"`)
			if fromB != tt.retried {
				t.Errorf("answered by B: %v, want %v (%d %s)", fromB, tt.retried, resp.StatusCode, body)
			}
			if !tt.retried {
				if want := fmt.Sprintf("the worker's own %d", resp.StatusCode); body != want {
					t.Errorf("body %q, want %q", body, want)
				}
			} else if got := b.metric(fmt.Sprintf("kvroute_retries_total{reason=%q}", tt.reason)); got != "1" {
				t.Errorf("retries because of %s: %s, want 1", tt.reason, got)
			}
			if got := b.metric(fmt.Sprintf("kvroute_attempts_total{result=%q,worker_id=%q}", tt.result, "A")); got != "1" {
				t.Errorf("attempts on A that are %s: %s, want 1; %s", tt.result, got, b.log)
			}
			want := WorkerState{Breaker: tt.state.String(), Busy: tt.busy}
			if d := cmp.Diff(want, b.r.WorkerState("A")); d != "" {
				t.Errorf("state of A (-want +got):\n%s", d)
			}
			if got := len(f.unbound) > 0; got != tt.unbound {
				t.Errorf("session unbound from A: %v, want %v", got, tt.unbound)
			}
		})
	}
}

func TestLastAnswerIsReturnedWhenAllFail(t *testing.T) {
	big := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		io.WriteString(w, strings.Repeat("x", maxKept+1))
	}
	tests := []struct {
		name    string
		workers []http.HandlerFunc
		status  int
		body    string // "": an error of ours
		code    string
		retryIn string
	}{
		{"last of two answers", []http.HandlerFunc{status(500), status(503)}, 503, "the worker's own 503", "", ""},
		{"an answer beats a missing one", []http.HandlerFunc{status(500), nil}, 500, "the worker's own 500", "", ""},
		{"busy", []http.HandlerFunc{status(429, "Retry-After", "7"), nil}, 429, "the worker's own 429", "", "7"},
		{"none", []http.HandlerFunc{nil, nil}, 502, "", "worker_unreachable", ""},
		{"a body too large to keep", []http.HandlerFunc{big}, 500, "", "worker_failed", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newMemory(t, "m")
			for i, h := range tt.workers {
				if h == nil {
					f.add(fmt.Sprint(i), deadAddress(t))
				} else {
					f.add(fmt.Sprint(i), serveWorker(t, h).URL)
				}
			}
			b := start(t, f, nil)
			resp := b.post(chatPath, good1)
			if got := resp.Header.Get("Retry-After"); got != tt.retryIn {
				t.Errorf("Retry-After %q, want %q", got, tt.retryIn)
			}
			if tt.body == "" {
				wantError(t, resp, tt.status, tt.code)
				return
			}
			if body := all(t, resp); body != tt.body || resp.StatusCode != tt.status {
				t.Errorf("got %d %q, want %d %q", resp.StatusCode, body, tt.status, tt.body)
			}
		})
	}
}

func TestEachWorkerIsTriedOnceAndRetriesAreBounded(t *testing.T) {
	tests := []struct {
		name     string
		workers  int
		change   func(*Config)
		requests int
		hits     int64
		denied   string
	}{
		{"each once", 3, func(c *Config) { c.Retry.Attempts = 100 }, 1, 3, "nobody"},
		{"attempts", 5, func(c *Config) { c.Retry.Attempts = 2 }, 1, 2, "attempts"},
		{"budget", 3, func(c *Config) { c.Retry = RetryConfig{Attempts: 2, Burst: 4} }, 10, 14, "budget"},
		{"budget by ratio", 3, func(c *Config) { c.Retry = RetryConfig{Attempts: 2, Burst: 1, Ratio: 0.5} }, 10, 10 + 1 + 4, "budget"},
		{"no budget", 3, func(c *Config) { c.Retry = RetryConfig{Attempts: 3} }, 2, 2, "budget"},
		{"time", 3, func(c *Config) {
			var n atomic.Int64 // every look at the clock takes a second
			at := time.Now()
			c.Now = func() time.Time { return at.Add(time.Duration(n.Add(1)) * time.Second) }
			c.Retry.Within = time.Second
		}, 1, 1, "late"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var hits atomic.Int64
			f := newMemory(t, "m")
			for i := range tt.workers {
				s := serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
					hits.Add(1)
					status(500)(w, r)
				})
				f.add(fmt.Sprint(i), s.URL)
			}
			b := start(t, f, func(c *Config) {
				at := time.Now()
				c.Now = func() time.Time { return at }
				c.Breaker.Threshold = 0
				tt.change(c)
			})
			for range tt.requests {
				if resp := b.post(chatPath, good1); resp.StatusCode != 500 {
					t.Fatalf("status %d, want 500", resp.StatusCode)
				}
			}
			b.idle()
			if got := hits.Load(); got != tt.hits {
				t.Errorf("workers were asked %d times for %d requests, want %d", got, tt.requests, tt.hits)
			}
			if got := b.metric(fmt.Sprintf("kvroute_retries_denied_total{reason=%q}", tt.denied)); got == "0" {
				t.Errorf("no retry was denied because of %q", tt.denied)
			}
		})
	}
}

func TestBreakerInTraffic(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	var asked atomic.Int64
	f := newMemory(t, "m")
	f.add("A", serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if broken.Load() {
			status(500)(w, r)
			return
		}
		answerOK("A")(w, r)
	}).URL)
	f.add("B", serveWorker(t, answerOK("B")).URL)
	var clock atomic.Int64
	var opened []string
	b := start(t, f, func(c *Config) {
		c.OnBreaker = func(id string) { opened = append(opened, id) } // one request after the other
		base := time.Now()
		c.Now = func() time.Time { return base.Add(time.Duration(clock.Load())) }
	})
	want := func(who string, n int64) {
		t.Helper()
		b.idle()
		if body := all(t, b.post(chatPath, good1)); !strings.Contains(body, `"id":"`+who+`"`) {
			t.Fatalf("answered %s, want %s", body, who)
		}
		if asked.Load() != n {
			t.Fatalf("A was asked %d times, want %d", asked.Load(), n)
		}
	}
	want("B", 1)
	want("B", 2)
	want("B", 3) // opens
	want("B", 3)
	if got := b.metric(`infera_router_worker_breaker_state{worker_id="A"}`); got != "2" {
		t.Errorf("breaker of A is %s, want 2 (open)", got)
	}
	clock.Add(int64(5 * time.Second))
	want("B", 4) // the probe fails: 10 s now
	clock.Add(int64(9 * time.Second))
	want("B", 4)
	broken.Store(false)
	clock.Add(int64(time.Second))
	want("A", 5)
	want("A", 6)
	b.idle()
	if got := b.metric(`infera_router_worker_breaker_trips_total{worker_id="A"}`); got != "1" {
		t.Errorf("breaker of A tripped %s times, want 1", got)
	}
	if d := cmp.Diff([]string{"A", "A"}, opened); d != "" {
		t.Errorf("told of breakers that opened (-want +got):\n%s", d)
	}
	b.r.Forget("A")
	if _, page := b.get("/metrics"); strings.Contains(page, `worker_id="A"`) || strings.Contains(page, `_worker="A"`) {
		t.Errorf("metrics still tell of a worker that has left")
	}
}

func TestAllOpenAreTriedAnyway(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	f := newMemory(t, "m")
	for _, id := range []string{"A", "B"} {
		f.add(id, serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
			if broken.Load() {
				status(500)(w, r)
				return
			}
			answerOK(id)(w, r)
		}).URL)
	}
	b := start(t, f, func(c *Config) {
		c.Breaker.Threshold = 1
		c.Breaker.Cooldown, c.Breaker.MaxCooldown = time.Hour, time.Hour
	})
	if resp := b.post(chatPath, good1); resp.StatusCode != 500 {
		t.Fatalf("status %d, want the workers' 500", resp.StatusCode)
	}
	broken.Store(false)
	if body := all(t, b.post(chatPath, good1)); !strings.Contains(body, `"id":"A"`) {
		t.Errorf("answered %s, want an answer though all breakers are open", body)
	}
	b.idle()
	if got := b.metric("kvroute_doubtful_dispatch_total"); got != "1" {
		t.Errorf("dispatches to doubtful workers: %s, want 1", got)
	}
	if d := cmp.Diff(Troubles{Failed: 1, Doubtful: 1}, b.r.Troubles()); d != "" {
		t.Errorf("what went wrong (-want +got):\n%s", d)
	}
	if !strings.Contains(b.log.String(), "trying one all the same") {
		t.Errorf("nothing was said of it:\n%s", b.log)
	}
	if got := b.r.WorkerState("A").Breaker; got != "closed" {
		t.Errorf("breaker of A is %s after it answered, want closed", got)
	}
}

// TestClosedConnectionsAreNotFailures has a worker close its kept connections just when the next request
// comes, as servers with a short keep-alive do.
func TestClosedConnectionsAreNotFailures(t *testing.T) {
	var asked atomic.Int64
	s := serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
		conn, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		asked.Add(1)
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
		if _, err := http.ReadRequest(bufio.NewReader(io.MultiReader(buf, conn))); err != nil && err != io.EOF && !strings.Contains(err.Error(), "EOF") {
			return
		}
	})
	f := newMemory(t, "m")
	f.add("A", s.URL)
	b := start(t, f, func(c *Config) { c.Retry.Attempts = 1 })
	for i := range 20 {
		if resp := b.post(chatPath, good1); resp.StatusCode != 200 {
			t.Fatalf("request %d: status %d, want 200: %s\n%s", i, resp.StatusCode, all(t, resp), b.log)
		}
	}
	b.idle()
	if got := b.metric(`kvroute_attempts_total{result="answered",worker_id="A"}`); got != "20" {
		t.Errorf("%s attempts were answered, want 20", got)
	}
}
