package router

import (
	"bufio"
	"net"
	"net/http"
	"testing"
	"time"
)

// A kept connection that the server closes as a request comes is replaced, also for requests without a body.
func TestNoBodyOverAClosedConnectionIsSentAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test is over
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // one answer a connection; the next request finds it closed
				defer c.Close() //nolint:errcheck // that is what is tried
				in := bufio.NewReader(c)
				if _, err := http.ReadRequest(in); err != nil {
					return
				}
				if _, err := c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")); err != nil {
					return
				}
				_, _ = http.ReadRequest(in) // whatever comes, it is not answered
			}()
		}
	}()
	h, err := NewHTTP("", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer h.transport.CloseIdleConnections()
	for i := range 5 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := h.Do(req)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		buf := make([]byte, 2)
		if _, err := resp.Body.Read(buf); err != nil && string(buf) != "ok" {
			t.Fatalf("request %d: %v", i, err)
		}
		resp.Body.Close() //nolint:errcheck // only read from
	}
}
