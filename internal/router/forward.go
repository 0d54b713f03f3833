package router

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"sync/atomic"
	"time"
)

// HTTP is the Forwarder of HTTP workers.
type HTTP struct{ transport *http.Transport }

// idleConn is how long a connection to a worker is kept unused. Engines commonly close theirs after five
// seconds; being faster keeps requests off connections that are about to go.
const idleConn = 4 * time.Second

// NewHTTP returns a forwarder. caFile names certificates to trust instead of the system's; "" trusts
// those. Proxies of the environment are not used: workers are addressed as they are named.
func NewHTTP(caFile string, connectTimeout time.Duration) (*HTTP, error) {
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: connectTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: connectTimeout,
		IdleConnTimeout:     idleConn,
		MaxIdleConnsPerHost: 4096,
		DisableCompression:  true, // bytes pass as they are
		WriteBufferSize:     32 << 10,
		ReadBufferSize:      16 << 10,
	}
	if caFile != "" {
		c, err := Trusting(caFile)
		if err != nil {
			return nil, fmt.Errorf("reading the workers' CA: %w", err)
		}
		t.TLSClientConfig = c
	}
	return &HTTP{transport: t}, nil
}

// Trusting is how to connect with servers that only the certificates of a file vouch for.
func Trusting(caFile string) (*tls.Config, error) {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New(caFile + " holds no certificate in PEM form")
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// maxStale is how many kept connections a request may find closed before that counts as a failure.
const maxStale = 3

// Do implements Forwarder. Redirects are answers like any other. A request that went out over a kept
// connection and got no byte back is sent again: the worker had closed the connection, most likely
// before the request came. A request with a body must have GetBody.
func (h *HTTP) Do(r *http.Request) (*http.Response, error) {
	var reused, answered atomic.Bool
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn:              func(i httptrace.GotConnInfo) { reused.Store(i.Reused) },
		GotFirstResponseByte: func() { answered.Store(true) },
	})
	req := r.WithContext(ctx)
	for try := 0; ; try++ {
		reused.Store(false)
		resp, err := h.transport.RoundTrip(req)
		if err == nil || try == maxStale || !reused.Load() || answered.Load() || ctx.Err() != nil {
			return resp, err
		}
		req = r.WithContext(ctx)
		if r.GetBody != nil {
			body, bodyErr := r.GetBody()
			if bodyErr != nil {
				return nil, errors.Join(err, bodyErr)
			}
			req.Body = body
		}
	}
}

// Close drops idle connections.
func (h *HTTP) Close() { h.transport.CloseIdleConnections() }
