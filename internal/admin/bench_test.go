package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kvroute/kvroute/internal/block"
	"github.com/kvroute/kvroute/internal/discovery"
	"github.com/kvroute/kvroute/internal/fleet"
	"github.com/kvroute/kvroute/internal/score"
	"github.com/kvroute/kvroute/internal/snapshot"
	"github.com/kvroute/kvroute/internal/vitals"
)

// BenchmarkTick is what one tick of a watcher costs a router of 64 workers, at two rates of requests: a snapshot, what
// changed in it, and its JSON. Four ticks are made a second.
func BenchmarkTick(b *testing.B) {
	for _, rate := range []int{50, 500} {
		b.Run(fmt.Sprintf("workers=64/rate=%d", rate), func(b *testing.B) { benchmarkTick(b, 64, rate/4) })
	}
	b.Run("workers=1000/rate=500", func(b *testing.B) { benchmarkTick(b, 1000, 125) })
}

func benchmarkTick(b *testing.B, workers, picks int) {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		b.Fatal(err)
	}
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"m","owned_by":"vllm","max_model_len":100}]}`) //nolint:errcheck // a test's own client
		case "/health":
		default:
			http.NotFound(w, r)
		}
	}))
	engine.Listener.Close() //nolint:errcheck // never used
	engine.Listener = l
	engine.Start()
	defer engine.Close()
	v := vitals.New()
	f, err := fleet.New(fleet.Config{Score: score.Defaults(), Vitals: v, HealthInterval: time.Hour, ProbeTimeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	var specs []discovery.Spec
	for i := range workers {
		spec, err := discovery.ParseWorker(fmt.Sprintf("http://127.0.%d.%d:%d", i/250, i%250+1, l.Addr().(*net.TCPAddr).Port))
		if err != nil {
			b.Fatal(err)
		}
		specs = append(specs, spec)
	}
	f.Update(specs)
	for ok := false; !ok; ok, _ = f.Ready() {
		time.Sleep(10 * time.Millisecond)
	}
	states := f.States()
	hub := NewHub(HubConfig{Fleet: f, Vitals: v, Version: "bench"})
	chain := make([]block.Hash, 2000)
	for i := range chain {
		chain[i] = block.Hash(i + 1)
	}
	d := &score.Decision{Policy: score.LeastWork, Tokens: 32_000, Suggested: -1, Original: -1}
	for i := range states {
		d.Terms = append(d.Terms, score.Terms{Candidate: score.Candidate{Key: states[i].RouteKey}, Eligible: true})
	}
	ms := time.Now().UnixMilli()
	sent := hub.Current(0)
	bytes := 0
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		for k := range picks {
			d.Picked = (i + k) % len(states)
			v.Picked(ms+int64(i)*250+int64(k), &score.Request{Model: "m", Blocks: chain[:1000+(i*k)%1000]}, d, "")
		}
		b.StartTimer()
		now := hub.Current(0)
		delta, err := json.Marshal(snapshot.Diff(sent, now))
		if err != nil {
			b.Fatal(err)
		}
		bytes += len(delta)
		sent = now
	}
	b.ReportMetric(float64(bytes)/float64(b.N), "bytes/tick")
}
