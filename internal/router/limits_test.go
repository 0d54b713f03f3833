package router

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestBadRequests(t *testing.T) {
	f := newMemory(t, "m")
	f.add("A", serveWorker(t, answerOK("A")).URL)
	b := start(t, f, func(c *Config) { c.MaxBody = 1000; c.BodyTimeout = 200 * time.Millisecond })
	big := `{"model":"m","x":"` + strings.Repeat("y", 1000) + `"}`
	tests := []struct {
		name, path, body string
		header           []string
		status           int
		code             string
	}{
		{"empty", chatPath, "", nil, 400, "invalid_json"},
		{"no JSON", chatPath, "hello", nil, 400, "invalid_json"},
		{"cut JSON", "/v1/completions", `{"model":`, nil, 400, "invalid_json"},
		{"array", chatPath, "[]", nil, 400, "invalid_json"},
		{"too large", chatPath, big, nil, 413, "body_too_large"},
		{"compressed", chatPath, good1, []string{"Content-Encoding", "gzip"}, 415, "unsupported_encoding"},
		{"unknown model", chatPath, `{"model":"other"}`, nil, 404, "model_not_found"},
		{"no model", chatPath, `{}`, nil, 404, "model_not_found"},
		{"other path", "/v1/embeddings", good1, nil, 404, "not_found"},
		{"wrong method", "/v1/models", good1, nil, 405, "method_not_allowed"},
		{"two sessions", chatPath, good1, []string{"X-Dynamo-Session-ID", "a", "X-Dynamo-Session-ID", "b"}, 400, "invalid_session"},
		{"empty session", chatPath, good1, []string{"X-Dynamo-Session-ID", ""}, 400, "invalid_session"},
		{"long session", chatPath, good1, []string{"X-Dynamo-Session-ID", strings.Repeat("x", 1025)}, 400, "invalid_session"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { wantError(t, b.post(tt.path, tt.body, tt.header...), tt.status, tt.code) })
	}
	t.Run("get", func(t *testing.T) {
		resp, err := b.http.Get(b.url + chatPath)
		if err != nil {
			t.Fatal(err)
		}
		wantError(t, resp, 405, "method_not_allowed")
	})
	for name, text := range map[string]string{
		"too large, length unknown": "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(big), big),
		"body stops":                "Content-Length: 50\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			resp := raw(t, b.url, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\n"+text)
			if strings.HasPrefix(name, "too") {
				wantError(t, resp, 413, "body_too_large")
				return
			}
			wantError(t, resp, 408, "body_timeout")
		})
	}
	if n := len(f.outcomes); n != 0 {
		t.Errorf("%d bad requests reached a worker", n)
	}
	for _, c := range f.calls {
		t.Errorf("bad request was placed: %s", c.Body)
	}
}

// raw sends text over a connection of its own and reads an answer.
func raw(t *testing.T, address, text string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestCallHoldsWhatTheBodySays(t *testing.T) {
	f := newMemory(t, "m")
	f.add("A", serveWorker(t, answerOK("A")).URL)
	b := start(t, f, func(c *Config) { c.SessionFields = []string{"prompt_cache_key"} })
	all(t, b.post(chatPath, `{"model":"m","stream":true,"n":3,"cache_salt":"s","prompt_cache_key":"k","images":["u"],"messages":[]}`))
	all(t, b.post("/v1/completions", `{"model":"m","prompt_cache_key":"k"}`, "X-Dynamo-Session-ID", "h"))
	c := f.calls[0]
	if c.Model != "m" || !c.Stream || c.N != 3 || c.Salt != "s" || c.Session != "k" || c.Retention != 2 || !c.Multimodal || len(c.Images) != 1 || c.Endpoint != 0 || string(c.Messages) != "[]" {
		t.Errorf("call %+v", c)
	}
	if c := f.calls[1]; c.Session != "h" || c.Endpoint != 1 || c.N != 1 {
		t.Errorf("call %+v", c)
	}
}

func TestNoWorker(t *testing.T) {
	b := start(t, newMemory(t, "m"), nil)
	resp := b.post(chatPath, good1)
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	wantError(t, resp, 503, "no_worker")
}

func TestAdmission(t *testing.T) {
	large := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 7<<20) + `"}]}`
	for _, tt := range []struct {
		name   string
		change func(*Config)
		scope  string
		body   string
		fit    int // requests at once
	}{
		{"total", func(c *Config) { c.MaxInFlight = 2 }, "total", good1, 2},
		{"worker", func(c *Config) { c.MaxPerWorker = 2 }, "worker", good1, 2},
		{"bodies", func(c *Config) { c.MaxBodies = 10 << 20 }, "bodies", large, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			entered, release := make(chan struct{}), make(chan struct{})
			f := newMemory(t, "m")
			f.add("A", serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
				entered <- struct{}{}
				<-release
				answerOK("A")(w, r)
			}).URL)
			b := start(t, f, tt.change)
			var wg sync.WaitGroup
			for range tt.fit {
				wg.Go(func() {
					if resp := b.post(chatPath, tt.body); resp.StatusCode != 200 {
						t.Errorf("status %d, want 200", resp.StatusCode)
					}
				})
			}
			for range tt.fit {
				<-entered
			}
			resp := b.post(chatPath, tt.body)
			if resp.Header.Get("Retry-After") == "" {
				t.Error("429 without Retry-After")
			}
			wantError(t, resp, 429, "too_many_requests")
			if got := b.metric(fmt.Sprintf("kvroute_admission_rejected_total{scope=%q}", tt.scope)); got != "1" {
				t.Errorf("rejected %s, want 1", got)
			}
			close(release)
			wg.Wait()
			eventually(t, "room to be given back", func() bool { return b.r.inFlight.Load() == 0 && b.r.bodies.used.Load() == 0 })
			go func() {
				for range entered { //nolint:revive // drained until the worker is gone
				}
			}()
			if resp := b.post(chatPath, tt.body); resp.StatusCode != 200 {
				t.Errorf("status %d once there is room, want 200", resp.StatusCode)
			}
			close(entered)
		})
	}
}

func TestAFullWorkerIsPassedOver(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	f := newMemory(t, "m")
	f.add("A", serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-release
		answerOK("A")(w, r)
	}).URL)
	f.add("B", serveWorker(t, answerOK("B")).URL)
	b := start(t, f, func(c *Config) { c.MaxPerWorker = 1 })
	var wg sync.WaitGroup
	wg.Go(func() { b.post(chatPath, good1) })
	<-entered
	if body := all(t, b.post(chatPath, good1)); !strings.Contains(body, `"id":"B"`) {
		t.Errorf("answered %s, want B", body)
	}
	close(release)
	wg.Wait()
}

// TestDrain has a stream that ends in time and one that does not.
func TestDrain(t *testing.T) {
	for _, inTime := range []bool{true, false} {
		t.Run(fmt.Sprintf("in time %v", inTime), func(t *testing.T) {
			entered, release := make(chan struct{}), make(chan struct{})
			f := newMemory(t, "m")
			f.add("A", serveWorker(t, func(w http.ResponseWriter, r *http.Request) {
				stream(w, recA)
				entered <- struct{}{}
				select {
				case <-release:
					stream(w, recDone)
				case <-r.Context().Done():
				}
			}).URL)
			gate := make(chan struct{})
			b := start(t, f, func(c *Config) {
				c.DrainDelay = time.Hour
				if !inTime {
					c.DrainDelay, c.DrainLimit = 0, 20*time.Millisecond
				}
			})
			if inTime {
				b.r.cfg.DrainDelay = 300 * time.Millisecond
			}
			resp := b.post(chatPath, good1)
			<-entered
			drained := make(chan error, 1)
			go func() {
				close(gate)
				drained <- b.r.Drain(context.Background())
			}()
			<-gate
			if inTime {
				eventually(t, "the router to be not ready", func() bool { return b.r.draining.Load() })
				if code, body := b.get("/ready"); code != 503 || !strings.Contains(body, "draining") {
					t.Errorf("/ready while draining: %d %s", code, body)
				}
				if code, _ := b.get("/health"); code != 200 {
					t.Errorf("/health while draining: %d, want 200", code)
				}
				close(release)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Errorf("reading the stream: %v", err)
			}
			err = <-drained
			if inTime {
				if string(body) != recA+recDone || err != nil {
					t.Errorf("stream %q, drained with %v", body, err)
				}
			} else {
				if err == nil {
					t.Error("Drain says nothing of the stream it cut")
				}
				rec, ok := strings.CutPrefix(string(body), recA+"data: ")
				if !ok {
					t.Fatalf("stream %q, want its record and an error record", body)
				}
				checkSchema(t, strings.TrimSpace(rec), "shutting_down")
			}
			if _, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://")); err == nil {
				t.Error("the router still listens")
			}
			if err := b.r.Drain(context.Background()); err == nil {
				t.Error("draining twice gives no error")
			}
		})
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAPIKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	log := &lockedBuffer{}
	writeFile(t, path, "# comment\n\nkey-one\n  key-two  \n")
	keys, err := OpenSecrets(path, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	keys.now = func() time.Time { return now }
	f := newMemory(t, "m")
	f.add("A", serveWorker(t, answerOK("A")).URL)
	b := start(t, f, func(c *Config) { c.Keys = keys })
	want := func(header string, status int) {
		t.Helper()
		resp := b.post(chatPath, good1, "Authorization", header)
		if status == 401 {
			wantError(t, resp, 401, "invalid_api_key")
		} else if resp.StatusCode != status {
			t.Errorf("%q: status %d, want %d", header, resp.StatusCode, status)
		}
	}
	want("Bearer key-one", 200)
	want("bearer key-two", 200)
	for _, bad := range []string{"", "key-one", "Bearer", "Bearer ", "Bearer key-on", "Bearer # comment", "Basic key-one"} {
		want(bad, 401)
	}
	if code, _ := b.get("/v1/models"); code != 401 {
		t.Errorf("/v1/models without a key: %d, want 401", code)
	}
	for _, open := range []string{"/health", "/ready", "/metrics"} {
		if code, _ := b.get(open); code != 200 {
			t.Errorf("%s without a key: %d, want 200", open, code)
		}
	}
	writeFile(t, path, "key-three\n")
	want("Bearer key-one", 200) // looked at less than a second ago
	now = now.Add(2 * time.Second)
	want("Bearer key-one", 401)
	want("Bearer key-three", 200)
	writeFile(t, path, "# nobody\n")
	now = now.Add(2 * time.Second)
	want("Bearer key-three", 200)
	if !strings.Contains(log.String(), "holds no secret") {
		t.Errorf("an empty file was not complained of: %s", log)
	}
	if _, err := OpenSecrets(path, slog.Default()); err == nil {
		t.Error("a file without secrets is accepted at start")
	}
	if _, err := OpenSecrets(filepath.Join(t.TempDir(), "none"), slog.Default()); err == nil {
		t.Error("a missing file is accepted")
	}
}

func TestAdminGuard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	writeFile(t, path, "tok\n")
	tokens, err := OpenSecrets(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	admin := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "admin") })
	tests := []struct {
		name, remote, host, header, value string
		tokens                            bool
		want                              int
	}{
		{"loopback", "127.0.0.1:5", "localhost:8000", "", "", false, 200},
		{"loopback v6", "[::1]:5", "[::1]:8000", "", "", true, 200},
		{"mapped loopback", "[::ffff:127.0.0.1]:5", "127.0.0.1", "", "", true, 200},
		{"from elsewhere", "10.0.0.9:5", "router:8000", "", "", true, 401},
		{"from elsewhere with a token", "10.0.0.9:5", "router:8000", "Authorization", "Bearer tok", true, 200},
		{"wrong token", "10.0.0.9:5", "router:8000", "Authorization", "Bearer no", true, 401},
		{"wrong token from here", "127.0.0.1:5", "localhost", "Authorization", "Bearer no", true, 401},
		{"token where there are none", "10.0.0.9:5", "router", "Authorization", "Bearer tok", false, 401},
		{"through a proxy on this machine", "127.0.0.1:5", "localhost", "X-Forwarded-For", "10.0.0.9", true, 401},
		{"a web page that names us", "127.0.0.1:5", "evil.example:8000", "", "", true, 401},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Defaults()
			cfg.Forwarder, cfg.Admin = &HTTP{}, admin
			if tt.tokens {
				cfg.AdminTokens = tokens
			}
			r, err := New(cfg, newMemory(t, "m"))
			if err != nil {
				t.Fatal(err)
			}
			req := httptest.NewRequest("GET", "/v1/admin/workers", nil)
			req.RemoteAddr, req.Host = tt.remote, tt.host
			if tt.header != "" {
				req.Header.Set(tt.header, tt.value)
			}
			for _, h := range []http.Handler{r, r.AdminHandler()} {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, req)
				if w.Code != tt.want {
					t.Errorf("status %d, want %d: %s", w.Code, tt.want, w.Body)
				}
			}
			r.cfg.AdminElsewhere = true
			w := httptest.NewRecorder()
			r.ServeHTTP(w, req)
			if w.Code != 404 {
				t.Errorf("public listener: status %d though the admin API is elsewhere, want 404", w.Code)
			}
		})
	}
}

// certificate writes a new key and a certificate for 127.0.0.1.
func certificate(t *testing.T, dir string, serial int64) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeFile(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	writeFile(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs})))
	return certFile, keyFile
}

// TestTLS speaks HTTP/2 to the router and TLS to the worker, and changes the router's certificate.
func TestTLS(t *testing.T) {
	worker := httptest.NewTLSServer(answerOK("A"))
	defer worker.Close()
	dir := t.TempDir()
	ca := filepath.Join(dir, "workers.pem")
	writeFile(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: worker.Certificate().Raw})))
	forwarder, err := NewHTTP(ca, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	f := newMemory(t, "m")
	f.add("A", worker.URL)
	b := start(t, f, func(c *Config) { c.Forwarder = forwarder })
	defer forwarder.Close()
	certFile, keyFile := certificate(t, dir, 1)
	conf, stale, err := LoadTLS(certFile, keyFile, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- b.r.Serve(tls.NewListener(l, conf), nil) }()
	ask := func(serial int64) error {
		tr := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Post("https://"+l.Addr().String()+chatPath, "application/json", strings.NewReader(good1))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		if got := resp.TLS.PeerCertificates[0].SerialNumber.Int64(); resp.StatusCode != 200 || resp.ProtoMajor != 2 || got != serial {
			return fmt.Errorf("status %d over HTTP/%d with certificate %d, want 200 over HTTP/2 with %d", resp.StatusCode, resp.ProtoMajor, got, serial)
		}
		return nil
	}
	if err := ask(1); err != nil {
		t.Fatal(err)
	}
	certificate(t, dir, 2)
	eventually(t, "the new certificate", func() bool { return ask(2) == nil })
	if err := stale(); err != nil {
		t.Errorf("stale with a good certificate: %v", err)
	}
	if err := os.WriteFile(certFile, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a certificate that cannot be read to be told of, and the former one served", func() bool { return ask(2) == nil && stale() != nil })
	certificate(t, dir, 3)
	eventually(t, "the next certificate", func() bool { return ask(3) == nil && stale() == nil })
	b.http.CloseIdleConnections()
	if err := b.r.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := NewHTTP(keyFile, time.Second); err == nil {
		t.Error("a file without a certificate is accepted as a CA")
	}
	if _, _, err := LoadTLS(keyFile, certFile, slog.Default()); err == nil {
		t.Error("a key is accepted as a certificate")
	}
}

func TestWorkersCertificatesAreChecked(t *testing.T) {
	worker := httptest.NewUnstartedServer(answerOK("A"))
	worker.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	worker.StartTLS()
	defer worker.Close()
	f := newMemory(t, "m")
	f.add("A", worker.URL)
	b := start(t, f, nil)
	wantError(t, b.post(chatPath, good1), 502, "worker_unreachable")
}

func TestConfigIsChecked(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no forwarder":     func(c *Config) { c.Forwarder = nil },
		"no body":          func(c *Config) { c.MaxBody = 0 },
		"no attempt":       func(c *Config) { c.Retry.Attempts = 0 },
		"ratio":            func(c *Config) { c.Retry.Ratio = -1 },
		"breaker":          func(c *Config) { c.Breaker.MaxCooldown = time.Second },
		"session field":    func(c *Config) { c.SessionFields = []string{"model"} },
		"header":           func(c *Config) { c.ForwardHeaders = []string{"a b"} },
		"connection's own": func(c *Config) { c.ForwardHeaders = []string{"transfer-encoding"} },
	} {
		cfg := Defaults()
		cfg.Forwarder = &HTTP{}
		change(&cfg)
		if _, err := New(cfg, newMemory(t, "m")); err == nil {
			t.Errorf("%s: the configuration is accepted", name)
		}
	}
}
