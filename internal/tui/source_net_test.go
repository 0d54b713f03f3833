package tui

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvroute/kvroute/internal/snapshot"
)

// shortly are waits for tests: attempts follow at once. Those for answers are shortened where they are to run out:
// a busy machine is no silent one.
var shortly = waits{first: time.Millisecond, last: 8 * time.Millisecond, answer: patience, silence: patience, poll: 10 * time.Millisecond}

const patience = 20 * time.Second

// event writes an event of a stream and sends it off.
func event(w http.ResponseWriter, data []byte) {
	fmt.Fprintf(w, "data: %s\n\n", data)
	w.(http.Flusher).Flush()
}

// atURL is a Remote of an address with short waits.
func atURL(t *testing.T, text string) *Remote {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	r := NewRemote(RemoteConfig{URL: u, Interval: 10 * time.Millisecond})
	r.waits = shortly
	return r
}

// TestRemoteOutlivesAnyNetwork: whatever goes wrong after a picture came, it stays, why is told, and the next
// connection brings a new one. Nothing is left when the source ends.
func TestRemoteOutlivesAnyNetwork(t *testing.T) {
	huge := strings.Repeat("x", 1<<16)
	for _, c := range []struct {
		name string
		then func(w http.ResponseWriter, req *http.Request) // after the first snapshot
		want string
	}{
		{"silence", func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }, "nothing came for 300ms"},
		{"cut in an event", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `data: {"run":"a","from":1,`) //nolint:errcheck // the test looks at what the client makes of it
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "the connection was lost: "},
		{"garbage", func(w http.ResponseWriter, req *http.Request) {
			event(w, []byte("\x00\xff<html>"))
			<-req.Context().Done()
		}, "no stream of a router"},
		{"a delta from elsewhere", func(w http.ResponseWriter, req *http.Request) {
			event(w, []byte(`{"run":"other","from":1,"seq":2}`))
			<-req.Context().Done()
		}, "no stream of a router"},
		{"a newer form", func(w http.ResponseWriter, req *http.Request) {
			event(w, []byte(`{"schema":"kvroute.snapshot/v9"}`))
			<-req.Context().Done()
		}, "use a kvroute of the router's version"},
		{"an event without end", func(w http.ResponseWriter, req *http.Request) {
			io.WriteString(w, "data: ") //nolint:errcheck // the client hangs up
			for n := 0; n < 1<<20+2*len(huge); n += len(huge) {
				if _, err := io.WriteString(w, huge); err != nil {
					return
				}
			}
			io.WriteString(w, "\n\n") //nolint:errcheck // the client hangs up
			w.(http.Flusher).Flush()
			<-req.Context().Done()
		}, "more than 1048576 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer goleak.VerifyNone(t, lateGoroutines...)
			var calls atomic.Int32
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				n := calls.Add(1)
				event(w, raw(t, told(fmt.Sprint(n), 1, 1000)))
				if n == 1 {
					c.then(w, req)
					return
				}
				<-req.Context().Done()
			}))
			defer srv.Close()
			r := atURL(t, srv.URL)
			r.most = 1 << 20
			if c.name == "silence" {
				r.waits.silence = 300 * time.Millisecond
			}
			all := watchUntil(t, r, func(u Update) bool { return u.Link == Live && u.Snap.Run != "1" })
			lost := false
			for _, u := range all {
				if u.Link == Lost {
					lost = true
					if u.Snap == nil || u.Snap.Run != "1" {
						t.Errorf("the last picture does not stay: %+v", u)
					}
					if !strings.Contains(u.Reason, c.want) || !strings.Contains(u.Reason, "trying again") {
						t.Errorf("reason %q, want %q in it", u.Reason, c.want)
					}
				}
			}
			if !lost {
				t.Error("nothing told that the picture is old")
			}
		})
	}
}

// TestRemoteWaitsForQuietRouters: heartbeats keep a stream, also when they come only once an interval.
func TestRemoteWaitsForQuietRouters(t *testing.T) {
	var calls atomic.Int32
	r := remoteOf(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		calls.Add(1)
		event(w, raw(t, told("a", 1, 1000)))
		tick := time.NewTicker(60 * time.Millisecond)
		defer tick.Stop()
		for range 5 {
			<-tick.C
			io.WriteString(w, ": nothing has changed\n\n") //nolint:errcheck // the client may have gone
			w.(http.Flusher).Flush()
		}
		event(w, raw(t, snapshot.Delta{Run: "a", From: 1, Seq: 2, AtMS: 2000}))
		<-req.Context().Done()
	}))
	r.waits = shortly
	r.waits.silence = 30 * time.Millisecond // less than between two heartbeats,
	r.interval = time.Minute                // which such an interval allows
	watchUntil(t, r, func(u Update) bool { return u.Link == Live && u.Snap.Seq == 2 })
	if n := calls.Load(); n != 1 {
		t.Errorf("%d connections, want one", n)
	}
}

// TestRemoteNeverAnswered: a server that takes connections and says nothing, or less than an answer.
func TestRemoteNeverAnswered(t *testing.T) {
	for _, says := range []string{"", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var served sync.WaitGroup
		served.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				served.Go(func() {
					defer c.Close()
					if _, err := c.Read(make([]byte, 4096)); err == nil {
						io.WriteString(c, says) //nolint:errcheck // the client may have gone
					}
					io.Copy(io.Discard, c) //nolint:errcheck // until it has
				})
			}
		})
		tries := 0
		r := atURL(t, "http://"+l.Addr().String())
		r.waits.answer = 300 * time.Millisecond
		all := watchUntil(t, r, func(u Update) bool {
			if strings.Contains(u.Reason, "nothing came for 300ms") {
				tries++
			}
			return tries == 2
		})
		if last := all[len(all)-1]; last.Link != Connecting || last.Snap != nil {
			t.Errorf("got %+v, want that it connects", last)
		}
		if _, _, err := r.Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "nothing came for 300ms") {
			t.Errorf("one snapshot: got %v, want that nothing came", err)
		}
		l.Close()
		served.Wait()
	}
}

// TestRemoteFetchesWhatComesSlowly: a large answer over a slow line takes as long as it takes, while it comes.
func TestRemoteFetchesWhatComesSlowly(t *testing.T) {
	t.Parallel()
	data := raw(t, told("slow", 1, 1000))
	r := remoteOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		tick := time.NewTicker(150 * time.Millisecond)
		defer tick.Stop()
		part := len(data)/16 + 1
		for len(data) > 0 {
			n := min(part, len(data))
			w.Write(data[:n]) //nolint:errcheck // the client's error is looked at
			w.(http.Flusher).Flush()
			data = data[n:]
			<-tick.C
		}
	}))
	r.waits = shortly
	r.waits.silence = 2 * time.Second
	began := time.Now()
	s, _, err := r.Fetch(t.Context())
	if err != nil || s.Run != "slow" {
		t.Errorf("got %+v, %v, want the snapshot", s, err)
	}
	if took := time.Since(began); took < r.waits.silence {
		t.Errorf("it took %v, which shows nothing", took)
	}
}

// holed is a proxy that can make a network lose everything without a word: connections stand and nothing passes.
// New ones are good again.
type holed struct {
	l    net.Listener
	to   string
	done sync.WaitGroup
	mu   sync.Mutex
	lost chan struct{} // closed: the connections made before pass nothing on
	all  []net.Conn
}

func holedProxy(t *testing.T, to string) *holed {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &holed{l: l, to: to, lost: make(chan struct{})}
	h.done.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				a.Close()
				continue
			}
			h.mu.Lock()
			h.all = append(h.all, a, b)
			lost := h.lost
			h.mu.Unlock()
			h.done.Go(func() { pass(a, b, lost) })
			h.done.Go(func() { pass(b, a, lost) })
		}
	})
	return h
}

func pass(to, from net.Conn, lost chan struct{}) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		select {
		case <-lost: // not even an end comes through
			io.Copy(io.Discard, from) //nolint:errcheck // nobody hears of it
			return
		default:
		}
		if err != nil {
			to.Close()
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (h *holed) lose() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.lost)
	h.lost = make(chan struct{})
}

func (h *holed) close() {
	h.l.Close()
	h.mu.Lock()
	for _, c := range h.all {
		c.Close()
	}
	h.mu.Unlock()
	h.done.Wait()
}

// TestRemoteOutlivesHalfOpenConnections: nobody says that the network is gone. With HTTP/2, too, where another
// request would go over the same dead connection.
func TestRemoteOutlivesHalfOpenConnections(t *testing.T) {
	for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(version, func(t *testing.T) {
			defer goleak.VerifyNone(t, lateGoroutines...)
			var calls atomic.Int32
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.Proto != version {
					t.Errorf("the request came by %s, want %s", req.Proto, version)
				}
				event(w, raw(t, told(fmt.Sprint(calls.Add(1)), 1, 1000)))
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-req.Context().Done():
						return
					case <-tick.C:
						io.WriteString(w, ": alive\n\n") //nolint:errcheck // the client may have gone
						w.(http.Flusher).Flush()
					}
				}
			}))
			srv.EnableHTTP2 = version == "HTTP/2.0"
			srv.Config.ErrorLog = log.New(io.Discard, "", 0)
			srv.StartTLS()
			defer srv.Close()
			h := holedProxy(t, srv.Listener.Addr().String())
			defer h.close()
			r := atURL(t, "https://"+h.l.Addr().String())
			r.waits.silence = time.Second
			tr := r.client.Transport.(*http.Transport)
			tr.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "example.com"}
			tr.TLSClientConfig.RootCAs.AddCert(srv.Certificate())
			tr.ForceAttemptHTTP2 = srv.EnableHTTP2
			losing := sync.OnceFunc(h.lose)
			watchUntil(t, r, func(u Update) bool {
				if u.Link == Live && u.Snap.Run == "1" {
					losing()
				}
				return u.Link == Live && u.Snap.Run != "1"
			})
		})
	}
}

// TestRemoteAfterSleep: when a machine wakes its clock has gone on. The age counts that, and the connection is
// given up at once, not after the usual silence.
func TestRemoteAfterSleep(t *testing.T) {
	var calls atomic.Int32
	r := remoteOf(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		event(w, raw(t, told(fmt.Sprint(calls.Add(1)), 1, 1000)))
		<-req.Context().Done()
	}))
	r.waits = shortly
	r.waits.silence = time.Hour
	var slept atomic.Int64
	r.now = func() time.Time { return time.Now().Round(0).Add(time.Duration(slept.Load())) }
	oldest := int64(0)
	stop, sleeping := make(chan struct{}), sync.WaitGroup{}
	sleeping.Go(func() { // again and again, so that it does so while something is waited for
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				slept.Add(int64(8 * time.Hour))
			}
		}
	})
	wake := sync.OnceFunc(func() { close(stop); sleeping.Wait() })
	defer wake()
	watchUntil(t, r, func(u Update) bool {
		if u.Link == Lost {
			wake()
			oldest = max(oldest, u.AgeMS)
		}
		return u.Link == Live && u.Snap.Run != "1"
	})
	if hours := oldest / 3_600_000; hours < 8 || hours%8 != 0 {
		t.Errorf("the picture is said to be %d ms old, want what it slept, times of 8 hours", oldest)
	}
}

// TestWatchdogWhenTheClockIsSetBack: it does not wait for the clock to come to where it was.
func TestWatchdogWhenTheClockIsSetBack(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	d := &watchdog{now: func() time.Time { return now }}
	d.ctx, d.cancel = context.WithCancelCause(t.Context())
	d.expect(10 * time.Second)
	now = now.Add(-time.Hour)
	for range 10 {
		d.look()
		now = now.Add(time.Second)
	}
	if d.ctx.Err() != nil {
		t.Error("it gave up too early")
	}
	now = now.Add(2 * time.Second)
	d.look()
	if d.ctx.Err() == nil {
		t.Error("it still waits")
	}
}

// TestRemoteBacksOff: attempts become rare, up to a bound, also when each brings a snapshot first; after a stream
// that lasted they begin anew.
func TestRemoteBacksOff(t *testing.T) {
	for _, answers := range []bool{false, true} {
		var calls atomic.Int32
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			calls.Add(1)
			if answers {
				event(w, raw(t, told("a", 1, 1000)))
				return
			}
			http.Error(w, "starting", http.StatusServiceUnavailable)
		}))
		r := atURL(t, srv.URL)
		r.waits.first, r.waits.last = 10*time.Millisecond, 80*time.Millisecond
		began := time.Now()
		watchUntil(t, r, func(Update) bool { return calls.Load() == 8 })
		// Seven waits: at least half of 10, 20, 40 and four times 80 ms.
		if took := time.Since(began); took < 195*time.Millisecond {
			t.Errorf("answers %v: 8 attempts in %v", answers, took)
		}
		srv.Close()
	}
}

// TestRemoteIsNotSentElsewhere: a redirect is told, not followed: the token is for the router.
func TestRemoteIsNotSentElsewhere(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	srv := httptest.NewServer(http.RedirectHandler(other.URL+"/x", http.StatusFound))
	defer srv.Close()
	r := atURL(t, srv.URL)
	r.token = "secret"
	_, _, err := r.Fetch(t.Context())
	if err == nil || !strings.Contains(err.Error(), "302 Found") || !strings.Contains(err.Error(), "points to "+other.URL+"/x") {
		t.Errorf("got %v, want where it points to", err)
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

// TestRemoteOverTLS: with the right certificate it is watched; else it is said what to do.
func TestRemoteOverTLS(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, `{"error":{"message":"a token is needed"}}`, http.StatusUnauthorized)
			return
		}
		event(w, raw(t, told("a", 1, 1000)))
		<-req.Context().Done()
	})
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of each failed handshake
	srv.StartTLS()
	defer srv.Close()
	plain := httptest.NewServer(h)
	defer plain.Close()
	r := atURL(t, srv.URL)
	r.client.Transport.(*http.Transport).TLSClientConfig = srv.Client().Transport.(*http.Transport).TLSClientConfig
	r.token = "secret"
	watchUntil(t, r, func(u Update) bool { return u.Link == Live })
	for _, c := range []struct{ name, url, want string }{
		{"unknown certificate", srv.URL, "--ca FILE"},
		{"no TLS there", strings.Replace(plain.URL, "http:", "https:", 1), "begins with http://"},
		{"TLS there", strings.Replace(srv.URL, "https:", "http:", 1), "begins with https://"},
		{"wrong token", plain.URL, "--token-file"},
	} {
		r := atURL(t, c.url)
		r.token = "wrong"
		if _, _, err := r.Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", c.name, err, c.want)
		}
	}
}

// TestRefusalsAreShort: a page of a proxy is not shown, a text is, up to a bound.
func TestRefusalsAreShort(t *testing.T) {
	for _, c := range []struct{ body, kind, want string }{
		{"<html><h1>Bad gateway", "text/html", "502 Bad Gateway"},
		{"upstream is down\nsecond line", "text/plain", "502 Bad Gateway: upstream is down"},
		{`{"error":{"message":"` + strings.Repeat("é", 1000) + `"}}`, "application/json", "502 Bad Gateway: " + strings.Repeat("é", mostWords/2) + "…"},
	} {
		r := remoteOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.kind)
			w.WriteHeader(http.StatusBadGateway)
			io.WriteString(w, c.body) //nolint:errcheck // the client may have gone
		}))
		if _, _, err := r.Fetch(t.Context()); err == nil || err.Error() != c.want {
			t.Errorf("%.20q: got %v, want %q", c.body, err, c.want)
		}
	}
}

// TestRecordingEndsAndWatchingDoesNot: a full tape is told for as long as the screen is shown.
func TestRecordingEndsAndWatchingDoesNot(t *testing.T) {
	var calls atomic.Uint64
	r := remoteOf(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		for range 50 {
			event(w, raw(t, told("a", calls.Add(1), 1000)))
		}
		<-req.Context().Done()
	}))
	const limit = 2000
	var file strings.Builder
	tape, err := NewTape(&file, "x", limit)
	if err != nil {
		t.Fatal(err)
	}
	r.tape = tape
	all := watchUntil(t, r, func(u Update) bool { return u.Link == Live && u.Snap.Seq == 50 })
	last := all[len(all)-1]
	if !strings.Contains(last.Notice, "the recording ended: it has reached its limit of 2000 bytes") || tape.Err() == nil {
		t.Errorf("got notice %q, error %v, want that the recording ended", last.Notice, tape.Err())
	}
	if n := file.Len(); n > limit || n < limit/2 {
		t.Errorf("the tape has %d bytes, want up to %d", n, limit)
	}
	track, err := OpenTape("t", strings.NewReader(file.String()))
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	for {
		s, err := track.Next()
		if err == io.EOF {
			break
		}
		if err != nil || s.Seq != n+1 {
			t.Fatalf("after %d: %+v, %v, want a whole tape", n, s, err)
		}
		n++
	}
	m := at(120, 40, Options{}, last)
	if text := m.View().Content; !strings.Contains(text, "the recording ended") {
		t.Errorf("the screen does not tell that the recording ended:\n%s", text)
	}
}
