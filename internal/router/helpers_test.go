package router

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// The server lets a connection stand for half a second after an answer to a body it did not read.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// memory is a fleet of workers at real addresses that chooses the first one it may, and holds its
// callers to the contract: every lease is released once, and nothing is asked of it afterwards.
type memory struct {
	t *testing.T

	mu       sync.Mutex
	model    string
	workers  []string
	urls     map[string]*url.URL
	ranks    map[string]int
	ready    []string
	calls    []Call
	picks    []string
	open     int
	firsts   int
	unbound  []string
	outcomes []Outcome
	rotate   bool
	turn     int
}

func newMemory(t *testing.T, model string) *memory {
	return &memory{t: t, model: model, urls: map[string]*url.URL{}, ranks: map[string]int{}}
}

func (f *memory) add(id, address string) {
	u, err := url.Parse(address)
	if err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.workers, f.urls[id], f.ranks[id] = append(f.workers, id), u, target.NoRank
}

func (f *memory) Place(_ context.Context, c *Call) (Ticket, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Model != f.model {
		return nil, fmt.Errorf("%w: %q", ErrUnknownModel, c.Model)
	}
	kept := *c
	kept.Body = bytes.Clone(c.Body)
	f.calls = append(f.calls, kept)
	return &memTicket{f}, nil
}

func (f *memory) Models() []json.RawMessage {
	return []json.RawMessage{json.RawMessage(`{"id":"org/m","object":"model","extra":{"k":[1, 2]}}`)}
}

func (f *memory) Ready() (bool, []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ready) == 0, f.ready
}

type memTicket struct{ f *memory }

func (k *memTicket) Pick(skip func(string) bool) (Lease, error) {
	f := k.f
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.workers)
	for i := range f.workers {
		at := i
		if f.rotate {
			at = (i + f.turn) % n
		}
		id := f.workers[at]
		if skip(id) {
			continue
		}
		f.turn++
		f.open++
		f.picks = append(f.picks, id)
		return &memLease{f: f, id: id}, nil
	}
	return nil, fmt.Errorf("%w: none of %d", ErrNoWorker, n)
}

type memLease struct {
	f    *memory
	id   string
	done bool // under mu of f
}

func (l *memLease) use(what string) func() {
	l.f.mu.Lock()
	if l.done {
		l.f.t.Errorf("%s of a lease on %s after its release", what, l.id)
	}
	return l.f.mu.Unlock
}

func (l *memLease) Target() Target {
	defer l.use("Target")()
	rank := l.f.ranks[l.id]
	key := target.Key{Worker: l.id, Rank: rank}
	return Target{Worker: l.id, RouteKey: key.RouteKey(), URL: l.f.urls[l.id], Rank: rank}
}

func (l *memLease) Decision() *score.Decision {
	defer l.use("Decision")()
	return &score.Decision{Basis: score.BasisExact, Terms: []score.Terms{{Hits: 3, Blocks: 5}}}
}

func (l *memLease) FirstToken() {
	defer l.use("FirstToken")()
	l.f.firsts++
}

func (l *memLease) Unbind() {
	defer l.use("Unbind")()
	l.f.unbound = append(l.f.unbound, l.id)
}

func (l *memLease) Release(o Outcome) {
	defer l.use("Release")()
	l.done = true
	l.f.open--
	l.f.outcomes = append(l.f.outcomes, o)
}

func (f *memory) lastOutcome() Outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.outcomes) == 0 {
		f.t.Fatal("no lease has been released")
	}
	return f.outcomes[len(f.outcomes)-1]
}

// bench is a router on a real listener, in front of a memory.
type bench struct {
	t     testing.TB
	r     *Router
	fleet *memory
	url   string
	log   *lockedBuffer
	http  *http.Client
	done  chan error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a router until the end of the test, and then wants everything to be given back.
func start(t *testing.T, f *memory, change func(*Config)) *bench {
	t.Helper()
	forwarder, err := NewHTTP("", 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, fleet: f, log: &lockedBuffer{}, http: &http.Client{Transport: &http.Transport{DisableCompression: true}}, done: make(chan error, 1)}
	cfg := Defaults()
	cfg.Forwarder, cfg.Registry = forwarder, prometheus.NewRegistry()
	cfg.Log = slog.New(slog.NewTextHandler(b.log, nil))
	cfg.DrainDelay = 0
	if change != nil {
		change(&cfg)
	}
	if b.r, err = New(cfg, f); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.url = "http://" + l.Addr().String()
	go func() { b.done <- b.r.Serve(l, nil) }()
	t.Cleanup(func() {
		b.http.CloseIdleConnections()
		if err := b.r.Close(); err != nil {
			t.Errorf("closing the router: %v", err)
		}
		if err := <-b.done; err != nil {
			t.Errorf("serving: %v", err)
		}
		b.settled()
		forwarder.Close()
	})
	return b
}

// settled waits until handlers have ended and checks that nothing is held.
func (b *bench) settled() {
	b.t.Helper()
	b.idle()
	b.fleet.mu.Lock()
	open := b.fleet.open
	b.fleet.mu.Unlock()
	if open != 0 {
		b.t.Errorf("%d leases are not released", open)
	}
	if n := b.r.health.inFlight(); n != 0 {
		b.t.Errorf("%d claims on workers are not returned", n)
	}
	eventually(b.t, "the memory of bodies to be given back", func() bool { return b.r.bodies.used.Load() == 0 })
}

// eventually waits for what another goroutine is about to do.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// idle waits until handlers have ended: a client may see the end of an answer a little earlier.
func (b *bench) idle() {
	b.t.Helper()
	eventually(b.t, "the handlers to end", func() bool { return b.r.inFlight.Load() == 0 })
}

const chatPath = "/v1/chat/completions"

func (b *bench) post(path, body string, header ...string) *http.Response {
	b.t.Helper()
	req, err := http.NewRequest("POST", b.url+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := b.http.Do(req)
	if err != nil {
		b.t.Fatalf("POST %s: %v", path, err)
	}
	b.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (b *bench) get(path string) (int, string) {
	b.t.Helper()
	resp, err := b.http.Get(b.url + path)
	if err != nil {
		b.t.Fatalf("GET %s: %v", path, err)
	}
	return resp.StatusCode, all(b.t, resp)
}

func all(t testing.TB, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("reading the answer: %v (so far %q)", err, body)
	}
	return string(body)
}

// wantError checks an error answer against OpenAI's schema.
func wantError(t testing.TB, resp *http.Response, status int, code string) {
	t.Helper()
	body := all(t, resp)
	checkSchema(t, body, code)
	if resp.StatusCode != status {
		t.Errorf("status %d, want %d (%s)", resp.StatusCode, status, body)
	}
	if ct := resp.Header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("error of type %q, want application/json", ct)
	}
	if resp.Header.Get("X-Request-Id") == "" {
		t.Errorf("error without a request id")
	}
}

func checkSchema(t testing.TB, body, code string) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(body))
	dec.DisallowUnknownFields()
	var e struct {
		Error *struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    *string `json:"code"`
		} `json:"error"`
	}
	if err := dec.Decode(&e); err != nil || e.Error == nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Fatalf("%q is not an error in the schema: %v", body, err)
	}
	if e.Error.Code == nil || *e.Error.Code != code {
		t.Errorf("error %q, want code %q", body, code)
	}
}

// metric returns the value of a series as /metrics shows it, 0 if there is none.
func (b *bench) metric(series string) string {
	b.t.Helper()
	_, page := b.get("/metrics")
	for line := range strings.Lines(page) {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return "0"
}

// serveWorker runs a worker until the end of the test.
func serveWorker(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// deadAddress is one that refuses connections.
func deadAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

const good1 = `{"model":"m","messages":[{"role":"user","content":"secret words"}]}`

// answers with a usual completion.
func answerOK(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":%q,"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}`, name)
	}
}

// stream writes records, each flushed.
func stream(w http.ResponseWriter, records ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, r := range records {
		io.WriteString(w, r)
		w.(http.Flusher).Flush()
	}
}

const (
	recRole  = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
	recA     = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
	recB     = "data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\n\n"
	recUsage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n"
	recDone  = "data: [DONE]\n\n"
)
