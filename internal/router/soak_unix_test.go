//go:build unix

package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func descriptors(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("descriptors cannot be counted here: %v", err)
	}
	return len(d)
}

// TestClientAborts has 1,000 clients leave at random points: while the body is sent, before an answer, in
// the middle of a stream. Every lease, claim, goroutine and descriptor comes back, and the workers are
// told of every request that reached them.
func TestClientAborts(t *testing.T) {
	const clients = 1000
	var reached, told atomic.Int64
	var leave sync.Map // request id → how the client leaves
	worker := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		reached.Add(1)
		switch rand.IntN(3) {
		case 0: // silent
		case 1:
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
		default:
			for range rand.IntN(50) {
				if r.Context().Err() == nil {
					stream(w, recA)
				}
			}
		}
		if c, ok := leave.LoadAndDelete(r.Header.Get("X-Request-Id")); ok {
			c.(context.CancelFunc)()
		}
		<-r.Context().Done() // an engine that goes on until it is told
		told.Add(1)
	}
	f := newMemory(t, "m")
	f.rotate = true
	for i := range 3 {
		f.add(fmt.Sprint(i), serveWorker(t, worker).URL)
	}
	b := start(t, f, func(c *Config) { c.Log = nil })
	abort(b, &leave, "warm", 0)
	b.idle()
	b.http.CloseIdleConnections()
	settle := func() (int, int) {
		b.r.cfg.Forwarder.(*HTTP).Close()
		return runtime.NumGoroutine(), descriptors(t)
	}
	eventually(t, "the warm-up to settle", func() bool { g, _ := settle(); return g < 60 })
	goroutines, fds := settle()
	var wg sync.WaitGroup
	for lane := range 20 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(lane), 9))
			for i := range clients / 20 {
				abort(b, &leave, fmt.Sprintf("%d-%d", lane, i), rng.IntN(10))
			}
		})
	}
	wg.Wait()
	b.settled()
	eventually(t, "the workers to be told", func() bool { return told.Load() == reached.Load() })
	eventually(t, "goroutines and descriptors to come back", func() bool {
		b.http.CloseIdleConnections()
		g, d := settle()
		return g <= goroutines+2 && d <= fds+2
	})
	if reached.Load() < clients/2 {
		t.Errorf("only %d of %d requests reached a worker: the aborts come too early to show anything", reached.Load(), clients)
	}
	var ended int64
	for _, o := range outcomes {
		var n int64
		fmt.Sscan(b.metric(fmt.Sprintf(`infera_requests_total{outcome=%q,router="mixed"}`, o)), &n)
		ended += n
		if n > 0 && o != outcomeAborted && o != outcomeClientError && o != outcomeOK {
			t.Errorf("%d requests ended as %s", n, o)
		}
	}
	if got := b.metric(`infera_request_inflight{router="mixed"}`); got != "0" {
		t.Errorf("%s requests in flight by the metric, want 0", got)
	}
	if f.mu.Lock(); len(f.unbound) > 0 {
		t.Errorf("%d aborts were blamed on workers", len(f.unbound))
	}
	f.mu.Unlock()
	t.Logf("%d requests counted, %d reached a worker", ended, reached.Load())
}

// abort sends a request and leaves: in the middle of its body, after a short time, or when the worker has
// got as far as it goes.
func abort(b *bench, leave *sync.Map, id string, how int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var body io.Reader = strings.NewReader(good1)
	switch {
	case how == 9:
		body = &leaving{cancel: cancel}
	case how >= 6:
		timer := time.AfterFunc(time.Duration(rand.IntN(4000))*time.Microsecond, cancel)
		defer timer.Stop()
	default:
		leave.Store(id, cancel)
	}
	req, err := http.NewRequestWithContext(ctx, "POST", b.url+chatPath, body)
	if err != nil {
		b.t.Error(err)
		return
	}
	req.Header.Set("X-Request-Id", id)
	resp, err := b.http.Do(req)
	if err != nil {
		return // left before the answer
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body) // until it leaves
}

// leaving is a body whose client leaves in the middle of it.
type leaving struct {
	cancel context.CancelFunc
	n      int
}

func (l *leaving) Read(p []byte) (int, error) {
	if l.n++; l.n > 3 {
		l.cancel()
		return 0, errors.New("left")
	}
	return copy(p, `{"model":"m","x":"`), nil
}

// TestHugeBodyIsBufferedOnce sends 20 MB with a picture in it.
func TestHugeBodyIsBufferedOnce(t *testing.T) {
	f := newMemory(t, "m")
	seen := make(chan int64, 10)
	s := serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			t.Error(err)
		}
		seen <- n
		io.WriteString(w, "{}")
	})
	f.add("A", s.URL)
	b := start(t, f, nil)
	body := []byte(`{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image\/png;base64,` + strings.Repeat("iVBORw0KGgo\\/AAAA", 1<<16) + strings.Repeat("iVBORw0KGgoAAAAA", 19<<16) + `"}}]}]}`)
	post := func() {
		resp, err := b.http.Post(b.url+chatPath, "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		all(t, resp)
		if n := <-seen; n != int64(len(body)) {
			t.Fatalf("the worker got %d bytes, want %d", n, len(body))
		}
		b.idle()
	}
	post()
	f.calls = nil
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	post()
	runtime.ReadMemStats(&after)
	// The fleet of this test keeps a copy of its own.
	own := uint64(len(body))
	if got := after.TotalAlloc - before.TotalAlloc - own; got > uint64(len(body))*11/10+2<<20 {
		t.Errorf("a body of %d bytes costs %d bytes of allocations, want one copy", len(body), got)
	}
}

// spy keeps the connections a listener accepts.
type spy struct {
	net.Listener
	mu    sync.Mutex
	conns []*net.TCPConn
}

func (s *spy) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		s.mu.Lock()
		s.conns = append(s.conns, tcp)
		s.mu.Unlock()
	}
	return c, err
}

func noDelay(t *testing.T, c *net.TCPConn) bool {
	t.Helper()
	rc, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	v := 0
	if cerr := rc.Control(func(fd uintptr) { v, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_NODELAY) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return v != 0
}

// TestNoDelay guards against chunks that wait for the acknowledgement of the last: both connections of a
// request have TCP_NODELAY.
func TestNoDelay(t *testing.T) {
	f := newMemory(t, "m")
	f.add("A", serveWorker(t, answerOK("A")).URL)
	dialled := &spy{}
	b := start(t, f, func(c *Config) {
		tr := c.Forwarder.(*HTTP).transport
		dial := tr.DialContext
		tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if tcp, ok := conn.(*net.TCPConn); ok {
				dialled.conns = append(dialled.conns, tcp)
			}
			return conn, err
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := &spy{Listener: l}
	served := make(chan error, 1)
	go func() { served <- b.r.Serve(accepted, nil) }()
	b.url = "http://" + l.Addr().String()
	all(t, b.post(chatPath, good1))
	b.idle()
	for name, s := range map[string]*spy{"to the worker": dialled, "from the client": accepted} {
		s.mu.Lock()
		if len(s.conns) == 0 {
			t.Errorf("no connection %s was seen", name)
		}
		for _, c := range s.conns {
			if !noDelay(t, c) {
				t.Errorf("a connection %s waits to fill packets", name)
			}
		}
		s.mu.Unlock()
	}
	b.http.CloseIdleConnections()
	if err := b.r.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestAClientThatDoesNotReadIsLetGo has a worker that sends without end to a client that takes nothing.
func TestAClientThatDoesNotReadIsLetGo(t *testing.T) {
	told := make(chan struct{})
	f := newMemory(t, "m")
	f.add("A", serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			stream(w, strings.Repeat(recA, 100))
		}
		close(told)
	}).URL)
	b := start(t, f, func(c *Config) { c.ClientTimeout = 50 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(good1), good1)
	<-told
	b.idle()
	if got := b.metric(`infera_requests_total{outcome="client_stalled",router="mixed"}`); got != "1" {
		t.Errorf("stalled clients: %s, want 1\n%s", got, b.log)
	}
	if !f.lastOutcome().Aborted {
		t.Error("the lease was not told that the client is gone")
	}
}

// TestNothingOfThePromptIsTold looks for words of prompts in the log, the metrics and the answers' heads.
func TestNothingOfThePromptIsTold(t *testing.T) {
	f := newMemory(t, "m")
	var turn atomic.Int64
	f.add("A", serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
		switch turn.Add(1) % 4 {
		case 0:
			status(500)(w, r)
		case 1:
			status(400)(w, r)
		case 2:
			stream(w, recA, recB, recUsage, recDone)
		default:
			answerOK("A")(w, r)
		}
	}).URL)
	b := start(t, f, nil)
	const word = "xyzzyplugh"
	for i, body := range []string{
		`{"model":"m","messages":[{"content":"` + word + `"}],"prompt":"` + word + `","user":"` + word + `","cache_salt":"` + word + `"}`,
		`{"model":"m","messages":"` + word, `{"model":"` + word + `"}`, word,
	} {
		for range 8 {
			resp := b.post(chatPath, body, "X-Dynamo-Session-ID", word, "Authorization", word)
			all(t, resp)
			if strings.Contains(fmt.Sprint(resp.Header), word) {
				t.Errorf("body %d: head of the answer %v", i, resp.Header)
			}
		}
	}
	b.idle()
	_, page := b.get("/metrics")
	for name, text := range map[string]string{"log": b.log.String(), "metrics": page} {
		if at := strings.Index(text, word); at >= 0 {
			t.Errorf("the %s holds text of a prompt: %s", name, text[max(0, at-200):min(len(text), at+40)])
		}
	}
	for _, field := range []string{"request_id=", "model=m", "worker=A", "status=200", "outcome=ok", "duration_ms=", "ttft_ms=", "prompt_tokens=9", "cached_tokens=8", "completion_tokens="} {
		if !strings.Contains(b.log.String(), field) {
			t.Errorf("no line of the log has %s", field)
		}
	}
	for _, series := range []string{
		"infera_requests_total", "infera_request_duration_seconds", "infera_request_inflight", "infera_time_to_first_token_seconds", "infera_inter_token_latency_seconds",
		"infera_input_sequence_tokens", "infera_output_sequence_tokens", "infera_prompt_tokens_total", "infera_generation_tokens_total", "infera_router_worker_breaker_state",
		"infera_router_worker_breaker_trips_total", "kvroute_attempts_total", "kvroute_dispatch_seconds", "kvroute_request_body_bytes", "kvroute_draining",
	} {
		if !strings.Contains(page, "# TYPE "+series+" ") {
			t.Errorf("metrics lack %s", series)
		}
	}
}
