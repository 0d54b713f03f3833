package router

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/target"
)

// lone is a fleet of one worker that costs nothing, so that what is measured is the router.
type lone struct {
	url *url.URL
	dec score.Decision
}

func (f *lone) Place(context.Context, *Call) (Ticket, error) { return f, nil }
func (f *lone) Models() []json.RawMessage                    { return nil }
func (f *lone) Ready() (bool, []string)                      { return true, nil }
func (f *lone) Pick(skip func(string) bool) (Lease, error) {
	if skip("w") {
		return nil, ErrNoWorker
	}
	return f, nil
}

func (f *lone) Target() Target {
	return Target{Worker: "w", RouteKey: "w", URL: f.url, Rank: target.NoRank}
}
func (f *lone) Decision() *score.Decision { return &f.dec }
func (f *lone) FirstToken()               {}
func (f *lone) Unbind()                   {}
func (f *lone) Release(Outcome)           {}

// BenchmarkProxy carries requests through the router to a worker in the same process, and directly for
// comparison: the difference is the router's whole path, sockets included, and its share of the worker's
// and the client's.
func BenchmarkProxy(b *testing.B) {
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.URL.RawQuery == "stream" {
			for range 128 {
				stream(w, recA)
			}
			stream(w, recDone)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"x","choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":9,"completion_tokens":3}}`)
	}))
	defer worker.Close()
	u, err := url.Parse(worker.URL)
	if err != nil {
		b.Fatal(err)
	}
	forwarder, err := NewHTTP("", 0)
	if err != nil {
		b.Fatal(err)
	}
	defer forwarder.Close()
	cfg := Defaults()
	cfg.Forwarder, cfg.Registry = forwarder, prometheus.NewRegistry()
	r, err := New(cfg, &lone{url: u})
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Serve(l, nil) }()
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer func() {
		client.CloseIdleConnections()
		if err := r.Close(); err != nil {
			b.Error(err)
		}
		if err := <-done; err != nil {
			b.Error(err)
		}
	}()
	for _, size := range []struct {
		name, query string
		bytes       int
	}{{"200B", "", 200}, {"220KB", "", 220 << 10}, {"1MiB", "", 1 << 20}, {"stream128", "?stream", 200}} {
		body := []byte(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat("Some prose and \"more\"\n", size.bytes/23)))
		for _, to := range []struct{ name, url string }{{"direct", worker.URL}, {"router", "http://" + l.Addr().String()}} {
			b.Run(size.name+"/"+to.name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(body)))
				for b.Loop() {
					resp, err := client.Post(to.url+chatPath+size.query, "application/json", bytes.NewReader(body))
					if err != nil {
						b.Fatal(err)
					}
					if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
						b.Fatal(resp.Status, err)
					}
					resp.Body.Close()
				}
			})
		}
	}
}

// BenchmarkHandler is the router's own work on a request: no socket, a forwarder that answers at once.
func BenchmarkHandler(b *testing.B) {
	cfg := Defaults()
	cfg.Forwarder, cfg.Registry = instant{}, prometheus.NewRegistry()
	r, err := New(cfg, &lone{url: &url.URL{Scheme: "http", Host: "w"}})
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{200, 220 << 10} {
		body := []byte(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat("Some prose and \"more\"\n", size/23)))
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				req := httptest.NewRequest("POST", chatPath, bytes.NewReader(body))
				w := discard{http.Header{}}
				r.ServeHTTP(w, req)
			}
		})
	}
}

type instant struct{}

func (instant) Do(r *http.Request) (*http.Response, error) {
	r.Body.Close()
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, ContentLength: -1, Body: io.NopCloser(strings.NewReader(recA + recB + recUsage + recDone))}, nil
}

type discard struct{ h http.Header }

func (d discard) Header() http.Header         { return d.h }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}
func (d discard) Flush()                      {}
