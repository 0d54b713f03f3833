package cli

import (
	"bytes"
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestWatchMode: the screen is only for terminals, and only unless something else is asked for.
func TestWatchMode(t *testing.T) {
	for _, c := range []struct {
		name                             string
		once, json, interval, in, out, d bool
		want                             watchMode
	}{
		{name: "terminal", in: true, out: true, want: watchScreen},
		{name: "terminal, interval", in: true, out: true, interval: true, want: watchScreen},
		{name: "terminal, once", once: true, in: true, out: true, want: watchOnce},
		{name: "terminal, json", json: true, in: true, out: true, want: watchOnce},
		{name: "dumb terminal", in: true, out: true, d: true, want: watchOnce},
		{name: "pipe", in: true, want: watchOnce},
		{name: "input from a pipe", out: true, want: watchOnce},
		{name: "pipe, interval", interval: true, want: watchLines},
		{name: "pipe, json, interval", json: true, interval: true, want: watchLines},
	} {
		f := watchFlags{once: c.once, format: formatTable}
		if c.json {
			f.format = formatJSON
		}
		if got := watchModeOf(&f, c.interval, c.in, c.out, c.d); got != c.want {
			t.Errorf("%s: mode %d, want %d", c.name, got, c.want)
		}
	}
}

// TestWatchExitCodes: who cannot be reached is another thing than who was named wrongly.
func TestWatchExitCodes(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"watch --once http://127.0.0.1:1", exitUnreachable, "hint: is it running"},
		{"watch --once ftp://x", exitUsage, "a router's address looks like"},
		{"watch --interval 1ms", exitUsage, "not between 100ms and 1m"},
		{"watch --play no-such-file", exitUsage, "cannot play"},
		{"watch http://127.0.0.1:1 --play x", exitUsage, "leave one out"},
		{"watch --play x --record y", exitUsage, "leave one out"},
		{"watch https://127.0.0.1:1 --ca no-such-file", exitUsage, "--ca: no-such-file: no such file"},
		{"watch https://127.0.0.1:1 --ca watch_test.go", exitUsage, "watch_test.go holds no certificate"},
		{"watch --record-max-size x", exitUsage, "--record-max-size"},
	} {
		var out, errs bytes.Buffer
		got := Run(context.Background(), strings.Fields(c.args), strings.NewReader(""), &out, &errs)
		if got != c.code || !strings.Contains(errs.String(), c.want) || out.Len() > 0 {
			t.Errorf("%s: code %d, want %d; stdout %q, stderr %q, want %q in it", c.args, got, c.code, out.String(), errs.String(), c.want)
		}
	}
}

// TestPlayedIsNotLive: what a recording tells is not said of a router that is there now.
func TestPlayedIsNotLive(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.watch")
	tape := `{"kvroute":"watch/v1","source":"http://router"}` + "\n" +
		`{"schema":"kvroute.snapshot/v1","run":"r","seq":1,"at_unix_ms":1700000000000,"router":{"ready":true,"policy":"kv-aware"}}` + "\n"
	if err := os.WriteFile(file, []byte(tape), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code := Run(context.Background(), []string{"watch", "--play", file, "--once"}, strings.NewReader(""), &out, &errs)
	if got := out.String(); code != 0 || !strings.Contains(got, "policy kv-aware, recorded, not live\n") || strings.Contains(got, "ready") {
		t.Errorf("code %d, %q, %q", code, got, &errs)
	}
}

// TestWatchLinesOutliveTheRouter: who has answered once is waited for; it is told on stderr, and a signal ends it well.
func TestWatchLinesOutliveTheRouter(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n := calls.Add(1); n == 2 || n == 3 {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, `{"schema":"kvroute.snapshot/v1","run":"r","seq":1,"at_unix_ms":1700000000000}`) //nolint:errcheck // seen below
	}))
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var out, errs guarded
	code := make(chan int, 1)
	go func() {
		code <- Run(ctx, []string{"watch", "--interval", "100ms", srv.URL}, strings.NewReader(""), &out, &errs)
	}()
	errs.await(t, `(warning: http://\S+ does not answer: 503 Service Unavailable: starting; trying again)\n`)
	errs.await(t, `(note: http://\S+ answers again)\n`)
	out.await(t, `(?s)(0 healthy.*0 healthy)`)
	cancel()
	if got := <-code; got != exitOK {
		t.Errorf("exit code %d, want %d", got, exitOK)
	}
	if n := strings.Count(errs.String(), "\n"); n != 2 {
		t.Errorf("%d lines on stderr, want two: %s", n, errs.String())
	}
}

// TestWatchOverTLS: --ca and --token-file get at a router behind TLS.
func TestWatchOverTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "{}", http.StatusForbidden)
			return
		}
		io.WriteString(w, `{"schema":"kvroute.snapshot/v1","run":"r","seq":1,"at_unix_ms":1700000000000}`) //nolint:errcheck // seen below
	}))
	defer srv.Close()
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca"), filepath.Join(dir, "token")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	for name, data := range map[string][]byte{ca: cert, token: []byte("secret\n")} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs bytes.Buffer
	if got := Run(context.Background(), []string{"watch", "--once", srv.URL, "--ca", ca, "--token-file", token}, strings.NewReader(""), &out, &errs); got != exitOK || !strings.Contains(out.String(), "no workers") {
		t.Errorf("exit code %d, stdout %q, stderr %q, want the snapshot", got, out.String(), errs.String())
	}
}
