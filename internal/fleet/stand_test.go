//go:build cgo

package fleet_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/fakeengine"
	"github.com/kvroute/kvroute/internal/feed/zmq"
	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/index"
	"github.com/kvroute/kvroute/internal/pool"
	"github.com/kvroute/kvroute/internal/record"
	"github.com/kvroute/kvroute/internal/recorder"
	"github.com/kvroute/kvroute/internal/replay"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/tinymodel"
	"github.com/kvroute/kvroute/internal/tokenize"
	"github.com/kvroute/kvroute/internal/tokenize/hf"
)

// tiny is the embedded model, loaded once.
var tiny = sync.OnceValues(func() (*tokenize.Model, error) {
	dir, err := os.MkdirTemp("", "tiny")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	dir = filepath.Join(dir, "model")
	if err := tinymodel.WriteTo(dir); err != nil {
		return nil, err
	}
	m, err := hf.Open(dir, hf.Options{})
	if err != nil {
		return nil, err
	}
	meta := tokenize.Meta{ToolTemplate: m.ToolTemplate()}
	for _, s := range m.Special {
		meta.Special = append(meta.Special, tokenize.Special{Name: s.Name, Text: s.Text})
	}
	return tokenize.New(m.Encoder(), m.Template(), meta, tokenize.Limits{})
})

// stand is a router in front of stand-in engines, all in this process and over real sockets.
type stand struct {
	t       testing.TB
	engines []*fakeengine.Engine
	specs   []discovery.Spec
	fleet   *fleet.Fleet
	router  *router.Router
	url     string
	rec     *recorder.Recorder
	file    string // of the recording
	over    *stand // whose engines these are; nil: its own
	log     bytes.Buffer
	close   func()
}

type options struct {
	engines []fakeengine.Config
	score   score.Config
	fleet   func(*fleet.Config)
	router  func(*router.Config)
	noEvent bool
	spec    func(i int, e *fakeengine.Engine) string // nil: the URL, and what the engine does not say
	record  bool
	over    *stand                         // another stand's engines, instead of some of its own
	speaks  func(i int) tokenize.Tokenizer // of the engines; nil: the tiny model
}

func newStand(t testing.TB, opt options) *stand {
	t.Helper()
	tok, err := tiny()
	if err != nil {
		t.Fatal(err)
	}
	s := &stand{t: t, over: opt.over}
	for i, c := range opt.engines {
		if !opt.noEvent {
			c.Events, c.Replay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
		}
		c.Tokenizer = tok
		if opt.speaks != nil {
			c.Tokenizer = opt.speaks(i)
		}
		e, err := fakeengine.Start(c)
		if err != nil {
			t.Fatal(err)
		}
		s.engines = append(s.engines, e)
		at := e.URL()
		if events, replay := e.Endpoints(0); c.Version == "0.23.0" { // it does not list them
			at += ",events=" + events + ",replay=" + replay
		}
		if opt.spec != nil {
			at = opt.spec(i, e)
		}
		spec, err := discovery.ParseWorker(at)
		if err != nil {
			t.Fatal(err)
		}
		s.specs = append(s.specs, spec)
	}
	if opt.over != nil {
		s.specs = opt.over.specs
	}
	via, err := zmq.New(zmq.Options{})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	client, err := router.NewHTTP("", 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&logTo{t: t, all: &s.log}, nil))
	if opt.score.Policy == "" {
		opt.score = score.Defaults()
	}
	fc := fleet.Config{
		Score: opt.score, Tokenizer: func(string) tokenize.Tokenizer { return tok }, Transport: via,
		Client: &http.Client{Transport: doer{client}}, Log: log, Registry: reg, HealthInterval: 50 * time.Millisecond,
		OnLeave: func(w string) { s.router.Forget(w) },
	}
	if opt.record {
		s.file = filepath.Join(t.TempDir(), "run.jsonl")
		fc.Recorder = func(model string, size int) pool.Recorder {
			s.rec, err = recorder.Start(recorder.Options{
				Header: record.Header{Program: "test", Model: model, BlockSize: size, Config: opt.score},
				Create: recorder.Files(s.file, 0, nil),
				OnStop: func(err error) { t.Errorf("the recording ended early: %v", err) },
			})
			if err != nil {
				t.Error(err)
			}
			return s.rec
		}
	}
	if opt.fleet != nil {
		opt.fleet(&fc)
	}
	if s.fleet, err = fleet.New(fc); err != nil {
		t.Fatal(err)
	}
	rc := router.Defaults()
	rc.Log, rc.Registry, rc.Forwarder = log, reg, client
	rc.Breaker.Cooldown, rc.Breaker.MaxCooldown = 20*time.Millisecond, 100*time.Millisecond
	if opt.router != nil {
		opt.router(&rc)
	}
	if s.router, err = router.New(rc, s.fleet); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s.router)
	s.url = srv.URL
	s.fleet.Update(s.specs)
	s.close = sync.OnceFunc(func() {
		srv.CloseClientConnections()
		srv.Close()
		if err := s.router.Close(); err != nil {
			t.Error(err)
		}
		s.fleet.Close()
		client.Close()
		if err := via.Close(); err != nil {
			t.Error(err)
		}
		for _, e := range s.engines {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
		if s.rec != nil {
			if err := s.rec.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(s.close)
	s.until("ready", func() bool { ok, _ := s.fleet.Ready(); return ok })
	return s
}

type doer struct{ *router.HTTP }

func (d doer) RoundTrip(r *http.Request) (*http.Response, error) { return d.Do(r) }

// logTo shows the warnings of a test that fails, and keeps everything.
type logTo struct {
	t   testing.TB
	mu  sync.Mutex
	all *bytes.Buffer
}

func (l *logTo) Write(p []byte) (int, error) {
	if !bytes.Contains(p, []byte("level=INFO")) {
		l.t.Log(strings.TrimSpace(string(p)))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

// until waits for what happens by itself.
func (s *stand) until(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			_, why := s.fleet.Ready()
			s.t.Fatalf("waited in vain for: %s (not ready: %v)%s", what, why, s.summary())
		}
	}
}

// post sends a body and returns the status and the whole answer.
func (s *stand) post(ctx context.Context, path string, body any, header ...string) (int, []byte, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(data))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(bufio.NewReader(resp.Body))
	return resp.StatusCode, out, err
}

// settle waits until every mirror is what its engine holds, and trusted.
func (s *stand) settle() {
	s.t.Helper()
	s.until("mirrors equal to caches", func() bool {
		for i, st := range s.fleet.States() {
			_ = i
			if st.Stream.Trust.String() != "trusted" || st.ContentHash != s.truth(st) {
				return false
			}
		}
		return true
	})
}

// truth is the content hash of what the engine behind a target really holds.
func (s *stand) truth(st fleet.TargetState) uint64 {
	rank := 0
	if _, r, ok := strings.Cut(st.RouteKey, "#dp"); ok {
		fmt.Sscan(r, &rank)
	}
	engines := s.engines
	if s.over != nil {
		engines = s.over.engines
	}
	for _, e := range engines {
		if strings.TrimPrefix(e.URL(), "http://") != st.WorkerID {
			continue
		}
		return contentOf(s.t, e, rank)
	}
	s.t.Fatalf("no engine behind %s", st.WorkerID)
	return 0
}

// contentOf folds a cache into an index of its own.
func contentOf(t testing.TB, e *fakeengine.Engine, rank int) uint64 {
	x := index.New(16, index.Options{})
	x.Join(0)
	for _, b := range e.Cached(rank) {
		ns := block.Namespace(b.Adapter, b.Salt)
		name := func(h uint64) index.Handle { return index.Handle(h ^ uint64(ns)) } // SGLang's hashes leave the salt out
		op := index.Op{
			Kind: index.Store, Handles: []index.Handle{name(b.Handle)}, Parent: name(b.Parent), HasParent: b.HasParent,
			Namespace: ns, Tokens: b.Tokens, PageSize: len(b.Tokens),
		}
		if _, err := x.Apply(op); err != nil {
			t.Error(err)
		}
	}
	return x.ContentHash(0)
}

// verify ends everything and replays the recording.
func (s *stand) verify() *replay.Verification {
	s.t.Helper()
	s.close()
	f, err := os.Open(s.file)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	r, err := record.Open(f, s.file)
	if err != nil {
		s.t.Fatal(err)
	}
	rec, err := replay.OrderRecording([]string{s.file}, []*record.Reader{r})
	if err != nil {
		s.t.Fatal(err)
	}
	v, err := replay.Verify(context.Background(), rec, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if d := v.Difference; d != nil {
		s.t.Fatalf("decision %d differs: %+v\nrecorded %s\nreplayed %s", d.Seq, d.Terms, d.Recorded, d.Replayed)
	}
	return v
}

// Traffic.

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type chat struct {
	Model     string    `json:"model"`
	Messages  []message `json:"messages"`
	MaxTokens int       `json:"max_tokens"`
	Stream    bool      `json:"stream,omitempty"`
	Options   *usageOpt `json:"stream_options,omitempty"`
	Salt      string    `json:"cache_salt,omitempty"`
	N         int       `json:"n,omitempty"`
}

type usageOpt struct {
	IncludeUsage bool `json:"include_usage"`
}

// text makes words that differ by seed.
func text(rng *rand.Rand, words int) string {
	list := strings.Fields("the router keeps a mirror of every cache and sends each request where its prefix lies already so that nothing is computed twice")
	var b strings.Builder
	for range words {
		b.WriteString(list[rng.IntN(len(list))])
		b.WriteByte(' ')
	}
	return b.String()
}

// conversation draws a request whose prefix others share.
func conversation(rng *rand.Rand) chat {
	topic := rng.IntN(6)
	shared := rand.New(rand.NewPCG(7, uint64(topic)))
	c := chat{Model: "tiny", MaxTokens: 1 + rng.IntN(40), Messages: []message{{"system", text(shared, 60)}}}
	for range 1 + rng.IntN(4) {
		c.Messages = append(c.Messages, message{"user", text(shared, 20+shared.IntN(30))}, message{"assistant", text(shared, 10)})
	}
	c.Messages = append(c.Messages, message{"user", text(rng, 1+rng.IntN(30))})
	return c
}

func (s *stand) summary() string {
	var b strings.Builder
	for _, st := range s.fleet.States() {
		fmt.Fprintf(&b, "\n%s: %s, trust %s (%s), seq %d, %d blocks, %d orphans, content %x, truth %x", st.RouteKey, st.Health,
			st.Stream.Trust, st.Stream.Reason, st.Stream.Seq, st.Blocks, st.Orphans, st.ContentHash, s.truth(st))
	}
	return b.String()
}
