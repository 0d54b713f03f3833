package tui

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/sse"
)

// waits are the times of a Remote.
type waits struct {
	first, last time.Duration // before another attempt; doubles from the first to the last
	answer      time.Duration // for the beginning of an answer
	silence     time.Duration // a stream or an answer may send nothing, not even a heartbeat
	poll        time.Duration // between snapshots of a router that has no stream, at least
}

var usualWaits = waits{first: 250 * time.Millisecond, last: 5 * time.Second, answer: 10 * time.Second, silence: 15 * time.Second, poll: time.Second}

// Remote is a router, watched over its admin API. It outlives the router's restarts: the last picture stays.
type Remote struct {
	base     url.URL
	interval time.Duration
	token    string
	client   http.Client
	tape     *Tape  // nil: nothing is recorded
	plain    bool   // the router takes nothing but an interval
	notice   string // what must not be overlooked, once there is something
	waits    waits
	most     int              // bytes of an event
	now      func() time.Time // by the wall clock: a machine that sleeps does not stop it

	last   *snapshot.Snapshot
	lastAt time.Time // when it came
}

// RemoteConfig is how a router is watched.
type RemoteConfig struct {
	URL       *url.URL // without a path, or with the one before /v1
	Interval  time.Duration
	Token     string          // "" none
	Transport *http.Transport // the Remote's own; nil: the default one's settings
	Tape      *Tape           // takes everything that comes; nil: nothing is recorded
}

// NewRemote makes a Remote. Nothing is asked before Run or Fetch.
func NewRemote(c RemoteConfig) *Remote {
	r := &Remote{base: *c.URL, interval: c.Interval, token: c.Token, tape: c.Tape, waits: usualWaits, most: snapshot.MaxBytes}
	r.now = func() time.Time { return time.Now().Round(0) }
	r.base.Path = strings.TrimSuffix(r.base.Path, "/")
	if c.Transport == nil {
		c.Transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	r.client.Transport = c.Transport
	// A router sends nobody elsewhere, and a token is not for everybody.
	r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return r
}

// Name implements Source.
func (r *Remote) Name() string { return r.base.Redacted() }

// Refusal is an answer other than 200. Its text says what the router said, and what to do about it.
type Refusal struct {
	Status int
	Text   string
}

// Error implements error.
func (e *Refusal) Error() string { return e.Text }

// get asks for a path of the admin API.
func (r *Remote) get(ctx context.Context, path, query string) (*http.Response, error) {
	u := r.base
	u.Path += path
	u.RawQuery = query
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, netFault(err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close() // only read from
	return nil, refusal(resp, path)
}

// netFault words an error of a request: without the address, which is told beside it.
func netFault(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &cert):
		return fmt.Errorf("%w (hint: --ca FILE names certificates that vouch for it)", err)
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"): // net/http has no value for it
		return fmt.Errorf("%w (hint: its address begins with http://)", err)
	}
	return err
}

// mostWords bounds what is shown of a refusal.
const mostWords = 300

func refusal(resp *http.Response, path string) error {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	text := resp.Status
	data, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	said := ""
	switch plain := strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain"); {
	case err != nil:
	case json.Unmarshal(data, &body) == nil:
		said = body.Error.Message
	case plain || resp.StatusCode == http.StatusBadRequest: // of proxies, and of a server that wants TLS
		said, _, _ = strings.Cut(strings.TrimSpace(string(data)), "\n")
	}
	if said != "" && !strings.HasPrefix(said, "<") {
		if len(said) > mostWords {
			said = strings.ToValidUTF8(said[:mostWords], "") + "…"
		}
		text += ": " + said
	}
	switch c := resp.StatusCode; {
	case c >= 300 && c < 400:
		text += fmt.Sprintf(" (hint: it points to %.*s: watch that address if it is the router's)", mostWords, resp.Header.Get("Location"))
	case c == http.StatusUnauthorized || c == http.StatusForbidden:
		text += " (hint: --token-file names a token of the router's --admin-token-file)"
	case c == http.StatusNotFound:
		text += fmt.Sprintf(" (hint: is %s a kvroute router? Older ones, and listeners beside --admin-listen, have no %s)", resp.Request.URL.Host, path)
	case c == http.StatusBadRequest && strings.Contains(text, "HTTPS server"):
		text += " (hint: its address begins with https://)"
	}
	return &Refusal{resp.StatusCode, text}
}

// read asks for a path and returns the whole answer, at most max bytes and one more of it.
func (r *Remote) read(ctx context.Context, path string, max int64) ([]byte, error) {
	ctx, dog := r.listen(ctx)
	defer dog.stop()
	resp, err := r.get(ctx, path, "")
	if err != nil {
		return nil, dog.why(err)
	}
	defer resp.Body.Close() // only read from
	dog.expect(r.waits.silence)
	data, err := io.ReadAll(io.LimitReader(&heard{resp.Body, dog}, max+1))
	if err != nil {
		return nil, dog.why(fmt.Errorf("the answer broke off: %w", err))
	}
	return data, nil
}

// ErrNoSnapshot says that a server answered with something else.
var ErrNoSnapshot = errors.New("no snapshot")

// Fetch returns one snapshot.
func (r *Remote) Fetch(ctx context.Context) (*snapshot.Snapshot, []byte, error) {
	data, err := r.read(ctx, "/v1/admin/snapshot", snapshot.MaxBytes)
	if err != nil {
		return nil, nil, err
	}
	s, err := snapshot.Decode(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrNoSnapshot, err)
	}
	return s, data, nil
}

// Explain implements Source.
func (r *Remote) Explain(ctx context.Context, pick uint64) ([]byte, error) {
	data, err := r.read(ctx, fmt.Sprintf("/v1/admin/decisions/%d", pick), snapshot.MaxBytes)
	if len(data) > snapshot.MaxBytes {
		return nil, fmt.Errorf("the record has more than %d bytes", snapshot.MaxBytes)
	}
	return data, err
}

// Run implements Source.
func (r *Remote) Run(ctx context.Context, send func(Update)) {
	defer r.client.CloseIdleConnections()
	send(Update{Link: Connecting, Reason: "asking " + r.Name()})
	wait := r.waits.first
	for ctx.Err() == nil {
		began := r.now()
		err := r.follow(ctx, send)
		// A connection that HTTP/2 keeps may be dead, and would be used again.
		r.client.CloseIdleConnections()
		if ctx.Err() != nil {
			return
		}
		if r.now().Sub(began) > r.waits.last { // it was good for a while: begin patiently again
			wait = r.waits.first
		}
		r.pause(ctx, send, err, wait/2+rand.N(wait/2))
		wait = min(2*wait, r.waits.last)
	}
}

// pause waits before another attempt and tells meanwhile how old the last picture is.
func (r *Remote) pause(ctx context.Context, send func(Update), why error, wait time.Duration) {
	end := time.NewTimer(wait)
	defer end.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		u := Update{Snap: r.last, Link: Connecting, Reason: why.Error() + "; trying again", Notice: r.notice}
		if r.last != nil {
			u.Link, u.AgeMS = Lost, max(0, r.now().Sub(r.lastAt).Milliseconds())
		}
		send(u)
		select {
		case <-ctx.Done():
			return
		case <-end.C:
			return
		case <-tick.C:
		}
	}
}

// follow reads one stream to its end, which is always an error.
func (r *Remote) follow(ctx context.Context, send func(Update)) error {
	streaming, dog := r.listen(ctx)
	defer dog.stop()
	query := "interval=" + url.QueryEscape(r.interval.String())
	if r.tape == nil && !r.plain { // a tape has all there is, in whole entries, which every version plays
		query += "&changes=1&calm=" + beat.String()
	}
	resp, err := r.get(streaming, "/v1/admin/stream", query)
	var refused *Refusal
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		dog.stop()
		return r.poll(ctx, send)
	}
	if refused != nil && refused.Status == http.StatusBadRequest && !r.plain {
		r.plain = true // an older router may refuse what it does not know
		return err
	}
	if err != nil {
		return dog.why(err)
	}
	defer resp.Body.Close() // only read from
	var failed error
	events := sse.New(r.most, func(e sse.Record) {
		if failed == nil {
			failed = r.take(e, send)
		}
	})
	// A router may look whether to send a heartbeat only when the interval is over.
	body := &heard{resp.Body, dog}
	dog.expect(max(r.waits.silence, r.interval+r.waits.silence/3))
	buf := make([]byte, 64<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			events.Feed(buf[:n])
		}
		switch {
		case failed != nil:
			return failed
		case errors.Is(err, io.EOF):
			return errors.New("the router has ended the stream")
		case err != nil:
			return dog.why(fmt.Errorf("the connection was lost: %w", err))
		}
	}
}

// take takes one event of the stream.
func (r *Remote) take(e sse.Record, send func(Update)) error {
	if e.TooLong {
		return fmt.Errorf("the router sends more than %d bytes at once", r.most)
	}
	s, err := next(r.last, e.Data)
	if err != nil {
		return fmt.Errorf("what comes is no stream of a router: %w", err)
	}
	r.show(s, e.Data, send)
	return nil
}

// next is the snapshot that data is, or that it leads to from last.
func next(last *snapshot.Snapshot, data []byte) (*snapshot.Snapshot, error) {
	if !bytes.HasPrefix(data, []byte(`{"run":`)) { // as deltas begin
		return snapshot.Decode(data)
	}
	if last == nil {
		return nil, errors.New("it begins with a delta")
	}
	return snapshot.Follow(last, data)
}

func (r *Remote) show(s *snapshot.Snapshot, raw []byte, send func(Update)) {
	r.last, r.lastAt = s, r.now()
	if err := r.tape.Write(s, raw); err != nil {
		r.notice, r.tape = "the recording ended: "+err.Error(), nil
	}
	send(Update{Snap: s, Link: Live, Notice: r.notice})
}

// poll asks a router that has no stream for one snapshot after the other.
func (r *Remote) poll(ctx context.Context, send func(Update)) error {
	tick := time.NewTicker(max(r.interval, r.waits.poll))
	defer tick.Stop()
	for {
		s, raw, err := r.Fetch(ctx)
		if err != nil {
			return err
		}
		r.show(s, raw, send)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
