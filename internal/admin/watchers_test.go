package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/router"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/vitals"
)

// narrow is a listener whose connections hold little of what is not read.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(64 << 10)
	}
	return c, err
}

// crowd is the admin API on narrow connections, with metrics.
type crowd struct {
	*watched
	reg *prometheus.Registry
}

func newCrowd(t *testing.T, stuckFor time.Duration) *crowd {
	t.Helper()
	x := &crowd{watched: &watched{v: vitals.New()}, reg: prometheus.NewRegistry()}
	f, err := fleet.New(fleet.Config{Score: score.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	x.hub = NewHub(HubConfig{Fleet: f, Vitals: x.v, Version: "test", Registry: x.reg})
	x.server = httptest.NewUnstartedServer(New(Config{Fleet: f, Hub: x.hub, MaxBody: 1000, stuckFor: stuckFor}))
	x.server.Listener = narrow{x.server.Listener}
	x.server.Start()
	t.Cleanup(func() {
		x.server.CloseClientConnections()
		x.server.Close()
		f.Close()
		http.DefaultClient.CloseIdleConnections()
		goleak.VerifyNone(t)
	})
	return x
}

// metric is the sum of a metric's series, those with a label's value if one is named.
func (x *crowd) metric(t *testing.T, name, value string) (sum float64) {
	t.Helper()
	families, err := x.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if value == "" || m.GetLabel()[0].GetValue() == value {
				found = true
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	if !found {
		t.Fatalf("there is no %s %s", name, value)
	}
	return sum
}

// burst makes decisions that are all kept and have long names.
func (x *crowd) burst(n int) {
	for range n {
		x.n++
		d := &score.Decision{Seq: uint64(x.n), RequestID: strings.Repeat("r", 120) + fmt.Sprint(x.n), Policy: score.LeastWork, Tokens: 10, Suggested: -1, Original: -1}
		d.Terms = []score.Terms{{Candidate: score.Candidate{Key: "a"}, Eligible: true}}
		x.v.Picked(1_700_000_000_000+20*x.n, &score.Request{Model: "m"}, d, nil)
	}
}

// stuck opens a stream and reads its first event and no further.
func (x *crowd) stuck(t *testing.T) (lines *bufio.Reader, s *snapshot.Snapshot) {
	t.Helper()
	addr := x.server.Listener.Addr().(*net.TCPAddr)
	c, err := net.DialTCP("tcp", nil, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // it may be closed already
	if err := c.SetReadBuffer(128 << 10); err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET /v1/admin/stream?interval=100ms HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v, %v", resp, err)
	}
	lines = bufio.NewReader(resp.Body)
	data, err := nextData(lines)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = snapshot.Decode(data); err != nil {
		t.Fatal(err)
	}
	return lines, s
}

func nextData(lines *bufio.Reader) ([]byte, error) {
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		if data, ok := strings.CutPrefix(string(line), "data: "); ok {
			return []byte(data), nil
		}
	}
}

// TestWatcherThatStopsReading: others see everything meanwhile, and when it reads again it comes to the present by
// deltas that follow each other, fewer than the others got.
func TestWatcherThatStopsReading(t *testing.T) {
	x := newCrowd(t, 0)
	lines, s := x.stuck(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	brisk := x.events(t, ctx)
	const ticks = 12
	for range ticks { // some 240 kB each; a connection holds two of them
		x.burst(500)
		until(t, brisk, func(now *snapshot.Snapshot) bool { return now.Router.Requests == uint64(x.n) })
	}
	deltas := 0
	for s.Router.Requests < uint64(x.n) {
		data, err := nextData(lines)
		if err != nil {
			t.Fatal(err)
		}
		d, err := snapshot.DecodeDelta(data)
		if err != nil {
			t.Fatal(err)
		}
		if s, err = s.Apply(d); err != nil {
			t.Fatal(err)
		}
		deltas++
	}
	if deltas > ticks/2 {
		t.Errorf("it got %d deltas, the one that reads %d", deltas, ticks)
	}
	if got := x.metric(t, "kvroute_watch_resyncs_total", ""); got == 0 {
		t.Error("no resync was counted")
	}
	if last := s.Picks[len(s.Picks)-1].RequestID; s.Router.Requests == 0 || !strings.HasSuffix(last, fmt.Sprint(s.Router.Requests)) {
		t.Errorf("at the present it shows %s of %d", last, s.Router.Requests)
	}
	if x.metric(t, "kvroute_watch_cut_total", "") != 0 {
		t.Error("it was cut off")
	}
}

// TestWatcherThatNeverReads is cut off, and nothing of it stays.
func TestWatcherThatNeverReads(t *testing.T) {
	x := newCrowd(t, 300*time.Millisecond)
	x.stuck(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	brisk := x.events(t, ctx)
	until(t, brisk, func(now *snapshot.Snapshot) bool { x.burst(500); return now.Router.Watchers == 2 })
	until(t, brisk, func(now *snapshot.Snapshot) bool { x.burst(500); return now.Router.Watchers == 1 })
	if got := x.metric(t, "kvroute_watch_cut_total", ""); got != 1 {
		t.Errorf("%v were cut off, want 1", got)
	}
	if got := x.metric(t, "kvroute_watch_watchers", ""); got != 1 {
		t.Errorf("%v watch, want 1", got)
	}
}

// TestFiftyWatchers: all see the same, and are sent the same bytes made once.
func TestFiftyWatchers(t *testing.T) {
	x := newCrowd(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const n = 50
	var all []<-chan *snapshot.Snapshot
	for range n {
		all = append(all, x.events(t, ctx))
	}
	var wg sync.WaitGroup
	got := make([]*snapshot.Snapshot, n)
	x.burst(500)
	for i, in := range all {
		wg.Go(func() {
			for s := range in {
				if got[i] = s; s.Router.Watchers == n && s.Router.Requests == 500 {
					return
				}
			}
		})
	}
	wg.Wait()
	for i, s := range got {
		if s == nil || s.Router.Requests != 500 || s.Router.Watchers != n || len(s.Picks) != 500 || s.Picks[499].ID != 500 {
			t.Fatalf("watcher %d ended without having seen everything: %+v", i, s)
		}
	}
	sent, made := x.metric(t, "kvroute_watch_events_total", ""), x.metric(t, "kvroute_watch_snapshots_total", "")
	if sent < n || x.metric(t, "kvroute_watch_events_total", "snapshot") != n || x.metric(t, "kvroute_watch_bytes_total", "") < 50*100_000 {
		t.Errorf("%v events were sent", sent)
	}
	t.Logf("%v events from %v snapshots", sent, made)
	cancel()
	for _, in := range all {
		for range in { //nolint:revive // until it ends
		}
	}
	for end := time.Now().Add(30 * time.Second); x.hub.Watchers() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d still watch", x.hub.Watchers())
		}
	}
}

// TestFramesAreShared: what two watchers are to be sent is made once.
func TestFramesAreShared(t *testing.T) {
	x := watch(t)
	a := x.hub.Current(0)
	x.pick()
	b := x.hub.Current(0)
	one, err := x.hub.frames.delta(a, b, false)
	if err != nil {
		t.Fatal(err)
	}
	two, err := x.hub.frames.delta(a, b, false)
	if err != nil || len(one) == 0 || &one[0] != &two[0] {
		t.Errorf("made twice: %d and %d bytes, %v", len(one), len(two), err)
	}
	for range 3 * maxFrames {
		x.pick()
		c := x.hub.Current(0)
		if _, err := x.hub.frames.delta(a, c, false); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(x.hub.frames.made); n > maxFrames {
		t.Errorf("%d are kept, want at most %d", n, maxFrames)
	}
}

// TestStreamQuery: what is not known is refused, in one line that says what is.
func TestStreamQuery(t *testing.T) {
	x := watch(t)
	for query, want := range map[string]string{
		"interval=1ms":               `interval "1ms" is not a time from 100ms to 1m0s, as in 250ms`,
		"interval=2h":                `interval "2h" is not a time from 100ms to 1m0s, as in 250ms`,
		"interval=soon":              `interval "soon" is not a time from 100ms to 1m0s, as in 250ms`,
		"interval=":                  `interval "" is not a time from 100ms to 1m0s, as in 250ms`,
		"interval=1s&interval=2s":    "interval is there 2 times",
		"intervall=1s":               `"intervall" is not known here: a stream takes interval, changes and calm`,
		"interval=250ms&fields=some": `"fields" is not known here: a stream takes interval, changes and calm`,
		"interval=%zz":               `the query cannot be read: invalid URL escape "%zz"`,
	} {
		code, doc := ask(t, x.server.Config.Handler, "GET", "/v1/admin/stream?"+query, "")
		e, _ := doc["error"].(map[string]any)
		if code != 400 || e["message"] != want || e["code"] != "invalid_query" {
			t.Errorf("%s: %d %v, want 400 %s", query, code, doc, want)
		}
	}
}

// TestStreamThroughTheRouter: a stream passes the router's own listener and that of the admin API, for clients on this
// machine and for those with a token.
func TestStreamThroughTheRouter(t *testing.T) {
	x := watch(t)
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, elsewhere := range []bool{false, true} {
		rc := router.Defaults()
		rc.Admin, rc.AdminElsewhere, rc.Forwarder = x.server.Config.Handler, elsewhere, &router.HTTP{}
		var err error
		if rc.AdminTokens, err = router.OpenSecrets(file, nil); err != nil {
			t.Fatal(err)
		}
		r, err := router.New(rc, x.hub.cfg.Fleet)
		if err != nil {
			t.Fatal(err)
		}
		var h http.Handler = r
		if elsewhere {
			h = r.AdminHandler()
		}
		for _, tt := range []struct {
			far, token string
			code       int
		}{
			{"", "", 200},
			{"10.0.0.7", "", 401},
			{"10.0.0.7", "secret", 200},
			{"10.0.0.7", "wrong", 401},
			{"", "wrong", 401},
		} {
			srv := httptest.NewServer(h)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			req, err := http.NewRequestWithContext(ctx, "GET", srv.URL+"/v1/admin/stream?interval=100ms", nil)
			if err != nil {
				t.Fatal(err)
			}
			if tt.far != "" {
				req.Header.Set("X-Forwarded-For", tt.far)
			}
			if tt.token != "" {
				req.Header.Set("Authorization", "Bearer "+tt.token)
			}
			req.Header.Set("Last-Event-ID", "7") // of another program's ways
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.code {
				t.Errorf("elsewhere %v, %+v: status %d", elsewhere, tt, resp.StatusCode)
			}
			if resp.StatusCode == 200 {
				lines := bufio.NewReader(resp.Body)
				if _, err := nextData(lines); err != nil {
					t.Error(err)
				}
				x.pick()
				data, err := nextData(lines) // at once, not when a buffer is full
				if err != nil || !json.Valid(data) {
					t.Errorf("%v: %s", err, data)
				}
			}
			cancel()
			resp.Body.Close() //nolint:errcheck // only read from
			srv.CloseClientConnections()
			srv.Close()
		}
		if !elsewhere {
			continue
		}
		w := httptest.NewRecorder()
		req := httptest.NewRequest("GET", "/v1/admin/stream", nil)
		req.RemoteAddr, req.Host = "127.0.0.1:5", "localhost"
		r.ServeHTTP(w, req)
		if w.Code != 404 {
			t.Errorf("on the public listener though the admin API has its own: %d, want 404", w.Code)
		}
	}
}
