package router

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// dial opens a connection to the router, to write to it what no client library would.
func (b *bench) dial() *net.TCPConn {
	b.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		b.t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// A client that stops in the middle of its body never gets what looks like an answer: once the server
// answered 200 with an empty body.
func TestAHalfBodyIsNotAnswered(t *testing.T) {
	f := newMemory(t, "m")
	f.add("w", serveWorker(t, answerOK("w")).URL)
	b := start(t, f, nil)
	for _, head := range []string{"Content-Length: 5000", "Transfer-Encoding: chunked"} {
		c := b.dial()
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n{", chatPath, head)
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
			t.Fatalf("%s: reading: %v", head, err)
		}
		if len(got) > 0 && !strings.HasPrefix(string(got), "HTTP/1.1 4") {
			t.Errorf("%s: half a body was answered with %q", head, got)
		}
	}
	eventually(t, "two lines of the log", func() bool { return strings.Count(b.log.String(), "msg=request") == 2 })
	if len(f.calls) != 0 {
		t.Errorf("%d calls were placed", len(f.calls))
	}
}

// Requests in a row on one connection, and over HTTP/1.0, are answered in order.
func TestOddWires(t *testing.T) {
	f := newMemory(t, "m")
	f.add("w", serveWorker(t, answerOK("w")).URL)
	b := start(t, f, nil)
	one := func(version, more string) string {
		return fmt.Sprintf("POST %s HTTP/%s\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n%s", chatPath, version, len(good1), more, good1)
	}
	chunked := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n", chatPath)
	for i := range len(good1) {
		chunked += "1;name=value\r\n" + good1[i:i+1] + "\r\n"
	}
	for name, tc := range map[string]struct {
		text    string
		answers int
	}{
		"pipelined":            {one("1.1", "") + one("1.1", "") + one("1.1", "Connection: close\r\n"), 3},
		"HTTP/1.0":             {one("1.0", ""), 1},
		"a byte a chunk":       {chunked + "0\r\nTrailer: x\r\n\r\n", 1},
		"Expect":               {one("1.1", "Expect: 100-continue\r\nConnection: close\r\n"), 1},
		"folded headers":       {one("1.1", "X-A: a\r\n b\r\nConnection: close\r\n"), 1},
		"length beside chunks": {strings.Replace(chunked, "Host: x", "Content-Length: 3\r\nHost: x", 1) + "0\r\n\r\n", 1},
	} {
		c := b.dial()
		if _, err := io.WriteString(c, tc.text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r := bufio.NewReader(c)
		for i := range tc.answers {
			resp, err := http.ReadResponse(r, nil)
			if err == nil && resp.StatusCode == 100 {
				resp, err = http.ReadResponse(r, nil)
			}
			if err != nil {
				t.Fatalf("%s: answer %d: %v", name, i, err)
			}
			body := all(t, resp)
			if resp.StatusCode != 200 || !strings.Contains(body, `"id":"w"`) {
				t.Errorf("%s: answer %d is %d %q", name, i, resp.StatusCode, body)
			}
		}
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Errorf("%s: %q (%v) behind the last answer", name, rest, err)
		}
	}
	for i, c := range f.calls {
		if string(c.Body) != good1 {
			t.Errorf("body %d is %q", i, c.Body)
		}
	}
	b.idle()
	if want := fmt.Sprintf("bytes_in=%d ", len(good1)); strings.Count(b.log.String(), want) != 8 {
		t.Errorf("the log does not say %s eight times:\n%s", want, b.log)
	}
}

// Nobody is told of another worker where there is none.
func TestNoRetryIsToldWhereNobodyIsLeft(t *testing.T) {
	f := newMemory(t, "m")
	f.add("A", deadAddress(t))
	b := start(t, f, nil)
	wantError(t, b.post(chatPath, good1), 502, "worker_unreachable")
	b.idle()
	if strings.Contains(b.log.String(), "another worker") {
		t.Errorf("the log tells of another worker:\n%s", b.log)
	}
	if got := b.metric(`kvroute_retries_total{reason="no_connection"}`); got != "0" {
		t.Errorf("%s retries, want 0", got)
	}
	f.add("B", serveWorker(t, answerOK("B")).URL)
	all(t, b.post(chatPath, good1))
	b.idle()
	if want := "worker=B instead_of=A reason=no_connection"; !strings.Contains(b.log.String(), want) {
		t.Errorf("the log does not say %q:\n%s", want, b.log)
	}
}

// A client that writes its whole body before it reads sees why it was refused, not a reset connection.
func TestRefusalsReachClientsThatAreStillSending(t *testing.T) {
	f := newMemory(t, "m")
	f.add("w", serveWorker(t, answerOK("w")).URL)
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("k\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := start(t, f, func(c *Config) {
		var err error
		if c.Keys, err = OpenSecrets(keys, c.Log); err != nil {
			t.Fatal(err)
		}
		c.MaxBody = 16 << 20
	})
	chunk := strings.Repeat("x", 1<<20)
	for name, tc := range map[string]struct {
		path, head string
		size       int // MiB
		status     int
		code       string
	}{
		"too large":           {chatPath, "Authorization: Bearer k\r\n", 20, 413, "body_too_large"},
		"no key":              {chatPath, "", 12, 401, "invalid_api_key"},
		"compressed":          {chatPath, "Authorization: Bearer k\r\nContent-Encoding: gzip\r\n", 12, 415, "unsupported_encoding"},
		"nothing there":       {"/v1/responses", "", 12, 404, "not_found"},
		"too large in chunks": {chatPath, "Authorization: Bearer k\r\nTransfer-Encoding: chunked\r\n", 20, 413, "body_too_large"},
	} {
		c := b.dial()
		chunked := strings.Contains(tc.head, "chunked")
		if !chunked {
			tc.head += fmt.Sprintf("Content-Length: %d\r\n", tc.size<<20)
		}
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\n%s\r\n", tc.path, tc.head)
		for i := range tc.size {
			text := chunk
			if chunked {
				text = fmt.Sprintf("%x\r\n%s\r\n", len(chunk), chunk)
			}
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatalf("%s: sending MiB %d: %v", name, i, err)
			}
		}
		if chunked {
			io.WriteString(c, "0\r\n\r\n")
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		wantError(t, resp, tc.status, tc.code)
	}
	if len(f.calls) != 0 {
		t.Errorf("%d calls were placed", len(f.calls))
	}
}
