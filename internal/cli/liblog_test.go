package cli

import (
	"bufio"
	"bytes"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A worker that sends more than its answer makes net/http complain through package log, quoting what came.
func TestLibrariesComplainInOurForm(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}secret answer")) //nolint:errcheck // seen below
		}
	}()
	lines := make(chan string, 1)
	flags, out := stdlog.Flags(), stdlog.Writer()
	defer func() { stdlog.SetFlags(flags); stdlog.SetOutput(out) }()
	stdlog.SetFlags(0)
	stdlog.SetOutput(libraryLog{slog.New(slog.NewJSONHandler(lineWriter(lines), nil))})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "{}" {
		t.Fatalf("%q, %v", body, err)
	}
	resp.Body.Close()
	select {
	case line := <-lines:
		if !strings.Contains(line, `"level":"WARN"`) || !strings.Contains(line, "Unsolicited response") || strings.Contains(line, "secret") {
			t.Errorf("logged %s", line)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was logged")
	}
}

type lineWriter chan string

func (w lineWriter) Write(p []byte) (int, error) {
	select {
	case w <- string(bytes.Clone(p)):
	default:
	}
	return len(p), nil
}
