package admin

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/vitals"
)

// watched is the admin API over a fleet without workers, whose vitals the test drives.
type watched struct {
	v        *vitals.Vitals
	hub      *Hub
	server   *httptest.Server
	draining atomic.Bool
	n        int64
}

func watch(t *testing.T) *watched {
	t.Helper()
	x := &watched{v: vitals.New()}
	f, err := fleet.New(fleet.Config{Score: score.Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	x.hub = NewHub(HubConfig{Fleet: f, Vitals: x.v, Version: "test", Draining: x.draining.Load})
	x.server = httptest.NewServer(New(Config{Fleet: f, Hub: x.hub, MaxBody: 1000}))
	t.Cleanup(func() {
		x.server.CloseClientConnections()
		x.server.Close()
		f.Close()
		http.DefaultClient.CloseIdleConnections()
		goleak.VerifyNone(t)
	})
	return x
}

// pick makes one decision.
func (x *watched) pick() {
	x.n++
	d := &score.Decision{Seq: uint64(x.n), RequestID: fmt.Sprint("r", x.n), Policy: score.LeastWork, Tokens: 10, Suggested: -1, Original: -1}
	d.Terms = []score.Terms{{Candidate: score.Candidate{Key: "a"}, Eligible: true}}
	x.v.Picked(time.Now().UnixMilli(), &score.Request{Model: "m"}, d, nil)
}

// events reads a stream's events into snapshots.
func (x *watched) events(t *testing.T, ctx context.Context) <-chan *snapshot.Snapshot {
	t.Helper()
	return x.follow(t, ctx, "interval=100ms")
}

// follow is events with a query.
func (x *watched) follow(t *testing.T, ctx context.Context, query string) <-chan *snapshot.Snapshot {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "GET", x.server.URL+"/v1/admin/stream?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("status %d, %v", resp.StatusCode, resp.Header)
	}
	out := make(chan *snapshot.Snapshot, 100)
	go func() {
		defer close(out)
		defer resp.Body.Close() //nolint:errcheck // only read from
		var s *snapshot.Snapshot
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok {
				continue
			}
			var err error
			if s == nil {
				s, err = snapshot.Decode([]byte(data))
			} else {
				s, err = snapshot.Follow(s, []byte(data))
			}
			if err != nil {
				t.Errorf("%v in %.200s", err, data)
				return
			}
			out <- s
		}
	}()
	return out
}

// until reads snapshots up to one that pleases.
func until(t *testing.T, in <-chan *snapshot.Snapshot, ok func(*snapshot.Snapshot) bool) *snapshot.Snapshot {
	t.Helper()
	end := time.After(20 * time.Second)
	for {
		select {
		case s, more := <-in:
			switch {
			case !more:
				t.Fatal("the stream ended")
			case ok(s):
				return s
			}
		case <-end:
			t.Fatal("waited in vain")
		}
	}
}

func TestStream(t *testing.T) {
	x := watch(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in := x.events(t, ctx)
	first := <-in
	if first.Schema != snapshot.Schema || first.Run == "" || len(first.Picks) != 0 {
		t.Fatalf("begins with %+v", first)
	}
	x.pick()
	x.pick()
	s := until(t, in, func(s *snapshot.Snapshot) bool { return len(s.Picks) == 2 })
	if s.Run != first.Run || s.Seq <= first.Seq || s.Router.Requests != 2 || s.Picks[1].RequestID != "r2" {
		t.Errorf("got %+v", s)
	}
	if code, doc := ask(t, x.server.Config.Handler, "GET", "/v1/admin/decisions/2", ""); code != 200 || doc["id"] != "r2" {
		t.Errorf("decision 2: %d %v", code, doc)
	}
	for path, want := range map[string]int{
		"/v1/admin/decisions/3": 404, "/v1/admin/decisions/x": 400, "/v1/admin/stream?interval=1ms": 400, "/v1/admin/stream?interval=soon": 400,
	} {
		if code, doc := ask(t, x.server.Config.Handler, "GET", path, ""); code != want {
			t.Errorf("%s: %d %v, want %d", path, code, doc, want)
		}
	}
}

// TestStreamEndsWithTheRouter: a drain is shown, and does not wait for those who watch.
func TestStreamEndsWithTheRouter(t *testing.T) {
	x := watch(t)
	in := x.events(t, t.Context())
	<-in
	x.draining.Store(true)
	var last *snapshot.Snapshot
	for s := range in {
		last = s
	}
	if last == nil || !last.Router.Draining {
		t.Errorf("the last that was shown is %+v, want a router that drains", last)
	}
}

// TestSlowWatcher: one that does not read holds up nobody, and costs no memory while it does not.
func TestSlowWatcher(t *testing.T) {
	x := watch(t)
	var d net.Dialer
	slow, err := d.DialContext(t.Context(), "tcp", x.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close() //nolint:errcheck // only to be ignored
	if _, err := fmt.Fprintf(slow, "GET /v1/admin/stream?interval=100ms HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in := x.events(t, ctx)
	until(t, in, func(s *snapshot.Snapshot) bool { return s.Router.Watchers == 2 })
	for range 3 {
		n := uint64(x.n) + 400
		for uint64(x.n) < n {
			x.pick()
		}
		until(t, in, func(s *snapshot.Snapshot) bool { return s.Router.Requests >= n })
	}
	if err := slow.Close(); err != nil {
		t.Fatal(err)
	}
	x.pick()
	until(t, in, func(s *snapshot.Snapshot) bool { x.pick(); return s.Router.Watchers == 1 })
}

func TestTooManyWatchers(t *testing.T) {
	x := watch(t)
	for range MaxWatchers {
		leave, ok := x.hub.Watch()
		if !ok {
			t.Fatal("turned away")
		}
		defer leave()
	}
	if code, doc := ask(t, x.server.Config.Handler, "GET", "/v1/admin/stream", ""); code != 503 {
		t.Errorf("one more: %d %v, want 503", code, doc)
	}
}

// TestNothingChangedNothingMade: as long as nothing happens, everybody gets the same snapshot.
func TestNothingChangedNothingMade(t *testing.T) {
	x := watch(t)
	a := x.hub.Current(0)
	if b := x.hub.Current(0); a != b {
		t.Errorf("another snapshot, number %d after %d, though nothing changed", b.Seq, a.Seq)
	}
	x.pick()
	if b := x.hub.Current(0); b.Seq != a.Seq+1 || b.Router.Requests != 1 {
		t.Errorf("number %d with %d requests, want %d with 1", b.Seq, b.Router.Requests, a.Seq+1)
	}
	if f := x.hub.Fresh(); f.AtMS < a.AtMS {
		t.Errorf("a fresh one is of %d, before %d", f.AtMS, a.AtMS)
	}
}

// TestLargeFleetsAreLookedAtLess: how often a snapshot is made depends on how many targets there are, but where it is
// asked for as of now.
func TestLargeFleetsAreLookedAtLess(t *testing.T) {
	x := watch(t)
	now := time.Now()
	x.hub.cfg.Now = func() time.Time { return now }
	x.hub.Current(0)
	for _, tt := range []struct {
		targets int
		age     time.Duration
		fresh   bool
	}{
		{10, 124 * time.Millisecond, false},
		{10, 125 * time.Millisecond, true},
		{250, 249 * time.Millisecond, false},
		{250, 250 * time.Millisecond, true},
		{1000, 999 * time.Millisecond, false},
		{1000, time.Second, true},
	} {
		last := x.hub.Current(0)
		large := *last
		large.Workers = make([]snapshot.Worker, tt.targets)
		x.hub.last = &large
		x.pick()
		now = now.Add(tt.age)
		if got := x.hub.Current(125*time.Millisecond) != &large; got != tt.fresh {
			t.Errorf("%d targets after %v: fresh %v, want %v", tt.targets, tt.age, got, tt.fresh)
		}
		if x.hub.Current(0) == &large {
			t.Errorf("%d targets: not of now", tt.targets)
		}
	}
}
